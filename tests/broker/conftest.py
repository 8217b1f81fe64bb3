"""Real servers for our own tests, beyond the fixtures that users have too.

`make test` runs this folder once per RocketMQ version (`--rocketmq-version`). Where no
server can be started the tests fail; they are never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from rocketmq_aio.message import MessageQueue
from rocketmq_aio.testing import Cluster

HERE: Final = Path(__file__).parent
TEST_SECONDS: Final = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time tests alone: a fixture may download RocketMQ first, and has deadlines of its own."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests recorded: how long it took, how many copies came."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name} = {value}")


@pytest.fixture(scope="module")
def fresh_cluster(rocketmq_version: str) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, with the arguments of `Cluster.start`, for tests that break them.

    They end with the module; a test that is done with one before closes it, for they are heavy.
    """
    with ExitStack() as running:

        def start(**options: Any) -> Cluster:  # noqa: ANN401 - those of Cluster.start
            return running.enter_context(Cluster.start(rocketmq_version, **options))

        yield start


@pytest.fixture(scope="module")
def two_broker_cluster(rocketmq_version: str) -> Iterator[Cluster]:
    """Two masters for the tests of one module, which leaves both running and reachable."""
    with Cluster.start(rocketmq_version, brokers=2) as cluster:
        yield cluster


@pytest.fixture
def namesrv(rocketmq_namesrv: str) -> str:
    return rocketmq_namesrv


@pytest.fixture
def topic(rocketmq_topic: str) -> str:
    return rocketmq_topic


@pytest.fixture
def group(rocketmq_group: str) -> str:
    return rocketmq_group


@pytest.fixture
def queue(rocketmq_cluster: Cluster, rocketmq_topic: str) -> MessageQueue:
    """The first queue of the topic."""
    return MessageQueue(rocketmq_topic, rocketmq_cluster.brokers[0].name, 0)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the admin tool, which leaves files where it is run."""
    monkeypatch.chdir(tmp_path)
