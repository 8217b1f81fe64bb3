"""Pytest plugin: every pytest run of its users loads it, so it imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocketmq_aio import testing
from rocketmq_aio.testing.plugin import backend_of, unique_name

LOADED = """
import sys, types
import pytest
# Not the package's own __init__: what that imports is not the plugin's doing.
package = types.ModuleType("rocketmq_aio")
package.__path__ = [sys.argv[1]]
sys.modules["rocketmq_aio"] = package
before = set(sys.modules)
import rocketmq_aio.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


def test_the_plugin_imports_only_itself_and_lazy_names() -> None:
    folder = testing.__path__[0].removesuffix("/testing")

    printed = subprocess.run(
        [sys.executable, "-c", LOADED, folder], stdout=subprocess.PIPE, text=True, check=True
    ).stdout

    assert printed.split() == [
        "rocketmq_aio.lazy_names",
        "rocketmq_aio.testing",
        "rocketmq_aio.testing.plugin",
    ]


@pytest.mark.parametrize("name", vars(testing)["__all__"])
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(testing, name).__name__ == name


def test_a_private_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        vars(testing)["__getattr__"]("Server")


def test_test_names_become_topic_names() -> None:
    first, second = (unique_name("test_sends[späť/%RETRY%-1]") for _ in range(2))

    assert first.rpartition("-")[0] == "test_sends-sp-RETRY-1"
    assert first != second


def test_long_test_names_are_shortened_to_topic_names() -> None:
    assert len(unique_name("x" * 300)) <= 127


USERS_TESTS = """
import anyio
import pytest

from rocketmq_aio import Message, Producer
from rocketmq_aio.testing import probe


def test_sync(rocketmq, rocketmq_topic):
    assert rocketmq.backend == "embedded"
    assert probe.masters(rocketmq.namesrv, rocketmq_topic)


async def send(namesrv, group, topic):
    async with Producer(group, namesrv=namesrv) as producer:
        assert (await producer.send(Message(topic, b"body"))).queue_offset == 0


{mark}
async def test_async(rocketmq_namesrv, rocketmq_group, rocketmq_topic):
    await send(rocketmq_namesrv, rocketmq_group, rocketmq_topic)


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_faults(rocketmq_faults, rocketmq_topic):
    rocketmq_faults.refuse(None, times=None)


def test_fresh(rocketmq, rocketmq_fresh_cluster):
    rocketmq_fresh_cluster.brokers[0].kill()
    assert rocketmq.namesrv != rocketmq_fresh_cluster.namesrv
"""

CONFTEST_WITH_LOGS = """
from contextlib import contextmanager
from pathlib import Path
from rocketmq_aio.testing import plugin

class ClusterWithLogs:
    def save_logs(self):
        return Path("the-folder")

@contextmanager
def cluster(backend, version):
    yield ClusterWithLogs()

plugin._cluster = cluster
"""


@pytest.fixture(autouse=True)
def no_backend_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_AIO_BACKEND", raising=False)
    monkeypatch.delenv("ROCKETMQ_NAMESRV", raising=False)


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        (("-p", "no:asyncio"), "@pytest.mark.anyio"),
        (("-o", "asyncio_default_fixture_loop_scope=function"), "@pytest.mark.asyncio"),
    ],
    ids=["anyio", "pytest-asyncio"],
)
def test_fixtures_run_the_embedded_broker_by_default(
    pytester: pytest.Pytester, options: tuple[str, ...], mark: str
) -> None:
    pytester.makepyfile(USERS_TESTS.replace("{mark}", mark))

    result = pytester.runpytest_subprocess("-W", "error", *options)

    result.assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        ((), None, "jvm"),
        ((), "external", "external"),
        (("--rocketmq-backend", "docker"), "external", "docker"),
    ],
    ids=["ini", "environment", "option"],
)
def test_the_option_precedes_the_environment_and_the_ini_setting(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    variable: str | None,
    expected: str,
) -> None:
    pytester.makeini("[pytest]\nrocketmq_backend = jvm")
    if variable is not None:
        monkeypatch.setenv("ROCKETMQ_AIO_BACKEND", variable)

    assert backend_of(pytester.parseconfig(*options)) == expected


def test_an_impossible_backend_fails_with_what_to_do(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(pytester.path))
    pytester.makepyfile("def test_it(rocketmq): pass")

    result = pytester.runpytest_subprocess("--rocketmq-backend", "jvm")

    result.assert_outcomes(errors=1)
    install = "java cannot be found; install with: apt-get"
    result.stdout.fnmatch_lines([f"*RocketMQ backend 'jvm': *{install}*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("options", [("-p", "no:xdist"), ("-n", "1")], ids=["plain", "xdist"])
def test_the_summary_names_the_logs_of_a_failed_session(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makeconftest(CONFTEST_WITH_LOGS)
    pytester.makepyfile("def test_it(rocketmq): assert not rocketmq")

    result = pytester.runpytest_subprocess(*options)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["RocketMQ server logs: the-folder"])
