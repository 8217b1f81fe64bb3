"""Fixtures and settings of the broker tests, in addition to the public fixtures.

`make test` runs this folder once per RocketMQ version (`--rocketmq-version`). Where no
server can be started the tests fail; they are never skipped.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.testing import Cluster

HERE: Final = Path(__file__).parent
LONG_TIMEOUT_SECONDS: Final = 15.0
LONG_TIMEOUTS: Final = (
    (ClientConfig, "request_timeout_seconds"),
    (ClientConfig, "connect_timeout_seconds"),
    (ProducerConfig, "send_timeout_seconds"),
)
FREEZING_MODULES: Final = ("test_fault_isolation", "test_producer_faults", "test_restarts")
TEST_SECONDS: Final = 400  # reached only by a hanging test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set timeouts for tests only: a fixture may download RocketMQ and has its own deadlines."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests recorded, such as durations and duplicates."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name} = {value}")


@pytest.fixture(autouse=True)
def long_timeouts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the default timeouts for a busy machine.

    Modules that freeze brokers are excluded: they test the timeouts.
    """
    if request.path.stem in FREEZING_MODULES:
        return
    for settings, name in LONG_TIMEOUTS:
        defaults = inspect.unwrap(vars(settings)["__init__"]).__kwdefaults__
        assert name in defaults
        monkeypatch.setitem(defaults, name, LONG_TIMEOUT_SECONDS)


@pytest.fixture
def queue(rocketmq_cluster: Cluster, rocketmq_topic: str) -> MessageQueue:
    """The first queue of the topic."""
    return MessageQueue(rocketmq_topic, rocketmq_cluster.brokers[0].name, 0)


@pytest.fixture
def mqadmin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a temporary folder: mqadmin writes files into the current one."""
    monkeypatch.chdir(tmp_path)
