"""Addresses: valid forms, address mapping, name resolution, sockets of the application."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from typing import Any, NoReturn

import pytest

from rocketmq_aio.config.client import ClientConfig, OpenSocket
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.remoting import dial
from tests.fakes.broker import FakeBroker
from tests.fakes.tls import client_context, server_context
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.clients import CODE, MuteError, open_client
from tests.unit.remoting.until import until


async def test_ipv6_addresses_are_understood() -> None:
    async with FakeBroker(host="::1") as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)

        assert (await opened.ask(f"[::1]:{broker.port}")).code == 0
        assert (await opened.ask(f"::1:{broker.port}")).code == 0


async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer):
        await reader.read(-1)


@pytest.mark.parametrize("first", ["refuses", "never answers"])
async def test_a_name_is_tried_at_each_of_its_addresses(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(_: dial.Resolver, host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(dial.Resolver, "resolve", resolve)
    config = ClientConfig(tls=client_context(), connect_timeout_seconds=1)
    async with FakeBroker(tls=server_context()) as broker, open_client(config) as opened:
        broker.faults.handle(CODE, Response(), times=None)
        async with AsyncExitStack() as stack:
            if first == "never answers":
                server = await asyncio.start_server(never_answers, "127.0.0.2", broker.port)
                await stack.enter_async_context(server)

            assert (await opened.ask(f"localhost:{broker.port}")).code == 0


async def test_a_lookup_that_an_executor_drops_fails_the_request_and_nothing_else() -> None:
    released = threading.Event()
    pool = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    pool.submit(released.wait, 15)
    async with FakeBroker() as broker, open_client() as opened:
        asked = asyncio.create_task(opened.ask(f"localhost:{broker.port}"))
        await until(lambda: bool(opened.client._dialer._resolver._lookups))
        pool.shutdown(wait=False, cancel_futures=True)
        released.set()

        with pytest.raises(NotConnectedError, match="shut down"):
            await asked


def test_a_resolver_without_threads_fails_the_request_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async def ask() -> None:
        async with FakeBroker() as broker, open_client() as opened:
            broker.faults.handle(CODE, Response(), times=None)
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", start)
                with pytest.raises(NotConnectedError, match="can't start new thread"):
                    await opened.ask(f"localhost:{broker.port}")

            assert (await opened.ask(broker.address)).code == 0

    # Not on uvloop, which resolves in threads of its own.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(ask())


async def test_one_lookup_of_a_name_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups, answered = list[str](), threading.Event()
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *given: Any, **more: Any) -> Any:  # noqa: ANN401
        lookups.append(host)
        answered.wait(60)
        return look_up(host, *given, **more)

    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)
        dialer = dial.Dialer(ClientConfig(connect_timeout_seconds=0.05))
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await dialer.dial(f"localhost:{broker.port}", NotImplementedError)  # type: ignore[arg-type]  # never called
        answered.set()
        await until(lambda: not dialer._resolver._lookups)
        one = list(lookups)
        code = (await opened.ask(f"localhost:{broker.port}")).code

    assert one == ["localhost"]
    assert (code, len(lookups)) == (0, 2)


async def test_lookups_that_hang_leave_threads_to_the_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, most, lock, answered = 0, 0, threading.Lock(), threading.Event()

    def getaddrinfo(host: str, port: int, **_: object) -> object:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        answered.wait(60)
        with lock:
            running -= 1
        if host == "x":
            raise socket.gaierror("not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    resolver = dial.Resolver()
    names = ["x", *(f"broker-{number}" for number in range(20))]
    asked = [asyncio.create_task(resolver.resolve(name, 1)) for name in (*names, *names)]
    await until(lambda: running == dial.LOOKUPS_AT_ONCE)
    for task in (asked[5], asked[-1]):  # waiting ones
        task.cancel()
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    answered.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)

    assert most == dial.LOOKUPS_AT_ONCE
    assert outcomes.count(["10.0.0.1"]) == 2 * 20 - 2
    assert [type(each) for each in outcomes if isinstance(each, BaseException)] == [
        *(socket.gaierror, asyncio.CancelledError),
        *(socket.gaierror, asyncio.CancelledError),
    ]
    await until(lambda: not resolver._lookups and not resolver._waiters)


class OneCallFails(ThreadPoolExecutor):
    """Cannot start a thread for the lookup of one name."""

    def submit(self, call: Any, /, *args: Any, **more: Any) -> Any:  # noqa: ANN401
        if call.args[0] == "failing":
            raise RuntimeError("can't start new thread")
        return super().submit(call, *args, **more)


@pytest.mark.parametrize("first", ["cancelled", "failing", "shared"])
async def test_a_turn_that_a_caller_does_not_use_goes_to_the_next(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = [f"hanging-{number}" for number in range(dial.LOOKUPS_AT_ONCE)]
    released = {name: threading.Event() for name in (*hanging, "shared")}

    def getaddrinfo(host: str, port: int, **_: object) -> object:
        if host in released:
            released[host].wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    asyncio.get_running_loop().set_default_executor(OneCallFails(9))
    resolver = dial.Resolver()
    running = [asyncio.create_task(resolver.resolve(name, 1)) for name in hanging]
    unused = [asyncio.create_task(resolver.resolve(first, 1)) for _ in range(2)]
    following = asyncio.create_task(resolver.resolve("following", 1))
    await asyncio.sleep(0)
    if first == "cancelled":
        for task in unused:  # in the step in which the first of them is woken
            resolver._lookups[hanging[0], 1].add_done_callback(lambda _, t=task: t.cancel())  # type: ignore[misc]
    for name in hanging[: 2 if first == "shared" else 1]:
        released[name].set()
    await until(following.done)

    assert following.result() == ["10.0.0.1"]
    for event in released.values():
        event.set()
    await asyncio.wait([*running, *unused])
    assert len([task for task in unused if task.cancelled() or task.exception()]) == (
        0 if first == "shared" else 2
    )


async def test_localhost_is_a_name() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)

        assert (await opened.ask(f"localhost:{broker.port}")).code == 0


@pytest.mark.parametrize(
    "address", ["nonsense", "host:0", "a b:1", f"{'x' * 64}.example:10911", "ho\x00st:1", "x..y:1"]
)
async def test_an_address_that_is_none_fails_the_request_and_nothing_else(address: str) -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response())
        with pytest.raises(NotConnectedError):
            await opened.ask(address)

        assert (await opened.ask(broker.address)).code == 0


async def test_the_address_mapper_replaces_the_address_of_a_broker() -> None:
    asked_for: list[str] = []
    async with FakeBroker() as broker:
        broker.faults.handle(CODE, Response())

        def mapper(address: str) -> str:
            asked_for.append(address)
            return broker.address

        async with open_client(ClientConfig(address_mapper=mapper)) as opened:
            assert (await opened.ask("10.1.2.3:10911")).code == 0

    assert asked_for == ["10.1.2.3:10911"]


@pytest.mark.parametrize("mapped", [None, 5, "nowhere", LookupError("unknown"), MuteError()])
async def test_a_mapper_that_fails_fails_the_request_and_nothing_else(mapped: object) -> None:
    def mapper(address: str) -> str:
        if address.startswith("127."):
            return address
        if isinstance(mapped, Exception):
            raise mapped
        return mapped  # type: ignore[return-value]  # that is the point

    async with FakeBroker() as broker, open_client(ClientConfig(address_mapper=mapper)) as opened:
        broker.faults.handle(CODE, Response())
        with pytest.raises(NotConnectedError, match=r"mapper|expected host:port"):
            await opened.ask("10.1.2.3:10911")

        assert (await opened.ask(broker.address)).code == 0


# --- sockets of the application -----------------------------------------------------------------


def open_to(broker: FakeBroker, asked_for: list[tuple[str, int]]) -> OpenSocket:
    """Return an `open_socket` that connects to *broker*, whatever it is asked for."""

    async def open_socket(host: str, port: int) -> socket.socket:
        asked_for.append((host, port))
        opened = socket.socket()
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, (broker.host, broker.port))
        return opened

    return open_socket


async def test_connections_use_the_sockets_that_the_application_opens() -> None:
    asked_for: list[tuple[str, int]] = []
    async with nothing_left(), FakeBroker() as broker:
        broker.faults.handle(CODE, Response(), times=None)
        config = ClientConfig(
            address_mapper=lambda address: address.replace("broker", "other"),
            open_socket=open_to(broker, asked_for),
        )
        async with open_client(config) as opened:
            for _ in range(2):
                assert (await opened.ask("broker.internal:10911")).code == 0

    assert asked_for == [("other.internal", 10911)]


async def test_tls_over_a_socket_of_the_application_verifies_the_name_of_the_address() -> None:
    async with nothing_left(), FakeBroker(tls=server_context()) as broker:
        broker.faults.handle(CODE, Response(), times=None)
        config = ClientConfig(tls=client_context(), open_socket=open_to(broker, []))
        async with open_client(config) as opened:
            assert (await opened.ask("localhost:10911")).code == 0
            with pytest.raises(NotConnectedError, match=r"is not valid for|doesn't match"):
                await opened.ask("elsewhere.example:10911")


async def cancelled(host: str, port: int) -> socket.socket:
    raise asyncio.CancelledError


async def refused(host: str, port: int) -> socket.socket:
    raise ConnectionRefusedError("by the proxy")


async def nothing(host: str, port: int) -> socket.socket:
    return None  # type: ignore[return-value]  # a mistake


async def datagrams(host: str, port: int) -> socket.socket:
    with socket.socket(type=socket.SOCK_DGRAM) as opened:
        return opened


def not_async(host: str, port: int) -> int:
    return 5


@pytest.mark.parametrize(
    ("open_socket", "reason"),
    [
        (cancelled, "open_socket raised .*CancelledError"),
        (refused, "open_socket raised .*by the proxy"),
        (nothing, "open_socket returned None, expected a connected stream socket"),
        (datagrams, "open_socket returned .*expected a connected stream socket"),
        (not_async, "open_socket returned 5, expected a connected stream socket"),
    ],
)
async def test_a_socket_that_cannot_be_opened_fails_the_request_and_nothing_else(
    open_socket: OpenSocket, reason: str
) -> None:
    async with FakeBroker() as broker:
        broker.faults.handle(CODE, Response())
        usual = open_to(broker, [])

        def either(host: str, port: int) -> Awaitable[socket.socket]:
            return (usual if host == "127.0.0.1" else open_socket)(host, port)

        async with open_client(ClientConfig(open_socket=either)) as opened:
            with pytest.raises(NotConnectedError, match=reason):
                await opened.ask("10.1.2.3:10911")

            assert (await opened.ask(broker.address)).code == 0


async def test_a_tls_socket_is_rejected_since_the_client_adds_tls_itself() -> None:
    async def secured(host: str, port: int) -> socket.socket:
        return client_context().wrap_socket(
            socket.socket(), server_hostname="localhost", do_handshake_on_connect=False
        )

    async with open_client(ClientConfig(open_socket=secured)) as opened:
        with pytest.raises(NotConnectedError, match=r"expected .* without TLS"):
            await opened.ask("10.1.2.3:10911")


async def test_opening_a_socket_ends_with_the_connect_timeout() -> None:
    ended = asyncio.Event()

    async def stalled(host: str, port: int) -> socket.socket:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    config = ClientConfig(open_socket=stalled, connect_timeout_seconds=0.05)
    async with open_client(config) as opened:
        with pytest.raises(NotConnectedError, match="connect timeout"):
            await opened.ask("10.1.2.3:10911")

        assert ended.is_set()
