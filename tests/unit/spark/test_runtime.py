"""Runtime: the loop thread of a process and its clients."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketmq_aio.errors import ConfigError, NameServerUnavailableError
from rocketmq_aio.instance import name_servers
from rocketmq_aio.spark import runtime as runtime_module
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.runtime import MAX_KEPT, Runtime, client_config
from tests.fakes.tls import CERTIFICATES
from tests.unit.spark.reading import reading

HERE = Connection(name_server="127.0.0.1:1")


def test_equal_connections_share_a_client_and_others_do_not() -> None:
    first = Runtime.get(HERE)
    assert Runtime.get(pickle.loads(pickle.dumps(HERE))) is first
    other = Runtime.get(Connection(name_server="127.0.0.1:1", group="another"))
    assert other.instance.client_id != first.instance.client_id


def test_calls_run_on_one_loop_thread() -> None:
    async def where() -> tuple[int, asyncio.AbstractEventLoop]:
        return threading.get_ident(), asyncio.get_running_loop()

    seen = {Runtime.get(HERE).call(where) for _ in range(3)}
    assert len(seen) == 1
    assert seen.pop()[0] != threading.get_ident()


def test_a_call_raises_errors_and_the_loop_keeps_running() -> None:
    async def fail(text: str) -> None:
        raise ConfigError("group", text, "no")

    async def echo(number: int) -> int:
        return number

    with pytest.raises(ConfigError, match="group='x'"):
        Runtime.get(HERE).call(fail, "x")
    assert Runtime.get(HERE).call(echo, 7) == 7


def test_an_interrupted_call_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime.get(HERE)
    started, ended = threading.Event(), threading.Event()

    async def stay() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    def interrupt(*_: object) -> None:
        assert started.wait(30)
        raise KeyboardInterrupt

    def submit(*args: Any) -> Future[Any]:  # noqa: ANN401 - those of `Runtime.submit`
        future = Runtime.submit(runtime, *args)
        monkeypatch.setattr(future, "result", interrupt)
        return future

    monkeypatch.setattr(runtime, "submit", submit)
    with pytest.raises(KeyboardInterrupt):
        runtime.call(stay)
    assert ended.wait(30)


def test_a_forked_child_starts_its_own_loop() -> None:
    async def process() -> int:
        return os.getpid()

    parent = Runtime.get(HERE)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        runtime = Runtime.get(HERE)
        good = runtime is not parent and runtime.call(process) == os.getpid()
        os.write(write, b"y" if good else b"n")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"y"
    os.waitpid(child, 0)


def test_the_interpreter_exits_while_the_loop_runs() -> None:
    program = (
        "from rocketmq_aio.spark.options.source_options import Connection\n"
        "from rocketmq_aio.spark.runtime import Runtime\n"
        "Runtime.get(Connection(name_server='127.0.0.1:1'))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def numbered(number: int) -> Connection:
    return Connection(name_server="127.0.0.1:1", group=f"group-{number}")


def test_least_recently_used_clients_are_closed() -> None:
    closed = threading.Event()
    runtime = Runtime.get(numbered(0))
    first = runtime.instance
    wait_closed = first.tasks.close

    async def close() -> None:
        await wait_closed()
        closed.set()

    first.tasks.close = close  # type: ignore[method-assign]
    del runtime
    for number in range(1, MAX_KEPT + 1):
        Runtime.get(numbered(number))

    assert closed.wait(30)
    assert first.has_ended
    assert Runtime.get(numbered(0)).instance is not first


def test_a_client_in_use_is_not_closed() -> None:
    used = Runtime.get(numbered(0))
    for number in range(1, 2 * MAX_KEPT):
        Runtime.get(numbered(number))

    assert not used.instance.has_ended
    assert Runtime.get(numbered(0)) is used


def test_recently_used_connections_are_kept() -> None:
    kept = Runtime.get(numbered(0)).instance
    for number in range(1, 2 * MAX_KEPT):
        Runtime.get(numbered(number))
        assert Runtime.get(numbered(0)).instance is kept


def test_a_client_that_failed_is_replaced() -> None:
    first = Runtime.get(HERE)
    first.instance.failure = RuntimeError("broken")
    assert Runtime.get(HERE) is not first


def test_a_client_that_was_closed_is_replaced() -> None:
    first = Runtime.get(HERE)
    first.call(first.instance.close)
    assert Runtime.get(HERE) is not first


def test_clients_of_a_runtime_are_started_once_and_a_failed_producer_is_replaced() -> None:
    with reading() as cluster:
        runtime = Runtime.get(cluster.connection)
        first = runtime.producer()

        assert runtime.pulls() is runtime.pulls()
        assert runtime.pull_consumer() is runtime.pull_consumer()
        assert runtime.producer() is first
        assert len(runtime._producers) == 1
        first.client.failure = RuntimeError("broken")
        assert runtime.producer() is not first
        assert len(runtime._producers) == 1


def test_clients_start_while_no_name_server_responds() -> None:
    runtime = Runtime.get(HERE)

    assert runtime.pull_consumer() is runtime.pull_consumer()
    assert runtime.producer() is runtime.producer()


def test_a_runtime_waits_for_the_address_server(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []

    async def fetch(url: str, _: float) -> tuple[str, ...]:
        requests.append(url)
        if len(requests) < 3:
            raise NameServerUnavailableError({url: OSError("connection refused")})
        return ("127.0.0.1:1",)

    monkeypatch.setattr(name_servers, "fetch_addresses", fetch)
    monkeypatch.setattr(runtime_module, "ADDRESS_SERVER_PAUSES", (0, 0))
    runtime = Runtime.get(Connection(name_server="http://localhost:1/list"))

    assert runtime.instance.name_servers.addresses == ("127.0.0.1:1",)
    assert len(requests) == 3


def test_a_connection_has_a_namespace() -> None:
    given = Connection(name_server="127.0.0.1:1", namespace="staging")

    assert client_config(given).namespace == "staging"


def test_options_take_precedence_over_environment_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "of the process")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "hidden")
    assert getattr(client_config(HERE).credentials, "access_key", None) == "of the process"
    given = Connection(name_server="127.0.0.1:1", access_key="mine", secret_key="s")
    assert getattr(client_config(given).credentials, "access_key", None) == "mine"


def test_unreadable_certificate_files_are_named() -> None:
    wrong = Connection(name_server="127.0.0.1:1", tls=True, tls_ca_file="/nowhere/ca.pem")
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        client_config(wrong)


def test_replaced_certificate_files_are_read_again(tmp_path: Path) -> None:
    trusted = tmp_path / "ca.pem"
    given = Connection(name_server="127.0.0.1:1", tls=True, tls_ca_file=str(trusted))
    shutil.copy(CERTIFICATES / "localhost.pem", trusted)
    first = Runtime.get(given)

    assert Runtime.get(given) is first
    trusted.write_text("half of a fil")
    assert Runtime.get(given) is first
    shutil.copy(CERTIFICATES / "elsewhere.pem", trusted)
    renewed = Runtime.get(given)
    assert renewed is not first
    assert Runtime.get(given) is renewed


def test_certificate_files_are_renewed_when_the_address_server_responds_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(url: str, _: float) -> tuple[str, ...]:
        if away:
            raise NameServerUnavailableError({url: OSError("connection refused")})
        return ("127.0.0.1:1",)

    monkeypatch.setattr(name_servers, "fetch_addresses", fetch)
    monkeypatch.setattr(runtime_module, "ADDRESS_SERVER_PAUSES", ())
    away, trusted = False, tmp_path / "ca.pem"
    shutil.copy(CERTIFICATES / "localhost.pem", trusted)
    given = Connection(name_server="http://localhost:1/list", tls=True, tls_ca_file=str(trusted))
    first = Runtime.get(given)
    shutil.copy(CERTIFICATES / "elsewhere.pem", trusted)

    away = True
    assert Runtime.get(given) is first
    away = False
    assert Runtime.get(given) is not first


def test_an_encrypted_key_is_rejected_without_a_prompt() -> None:
    encrypted = str(CERTIFICATES / "encrypted.pem")
    given = Connection(
        name_server="127.0.0.1:1", tls=True, tls_cert_file=encrypted, tls_key_file=encrypted
    )
    with pytest.raises(ConfigError, match=r"encrypted\.pem.*decrypt it"):
        client_config(given)
