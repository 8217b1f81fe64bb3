"""Fixtures and settings of the broker tests, in addition to the public fixtures.

`make test` runs this folder once per RocketMQ version (`--rocketmq-version`). Where no
server can be started the tests fail; they are never skipped.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.admin.client import AdminClient
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.plugin import backend_of
from tests.broker.official_tool import OfficialTool
from tests.collecting import limit_tests, run_first

LONG_TIMEOUT_SECONDS: Final = 15.0
LONG_TIMEOUTS: Final = (
    (ClientConfig, "request_timeout_seconds"),
    (ClientConfig, "connect_timeout_seconds"),
    (ProducerConfig, "send_timeout_seconds"),
)
FREEZING_MODULES: Final = ("test_fault_isolation", "test_producer_faults", "test_restarts")
# They restart brokers and take minutes, so that parallel runs begin with them.  The first three
# are those of tests/topologies that run together with this folder.
SLOW_MODULES: Final = (
    *("test_slaves", "test_failover", "test_rolling"),
    *("test_producer_faults", "test_restarts", "test_mqadmin", "test_push_faults"),
    *("test_transactions", "test_testing", "test_pop", "test_ordered_sends", "test_admin"),
    *("test_requests_java", "test_static_topics", "test_locks"),
)
REASONS: Final = pytest.StashKey[Counter[str]]()
TEST_SECONDS: Final = 400  # reached only by a hanging test


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_real_broker(reason): deselected with --rocketmq-backend embedded"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set timeouts and the order of modules, and deselect what the embedded broker cannot do."""
    limit_tests(items, Path(__file__).parent, TEST_SECONDS)
    run_first(items, SLOW_MODULES)
    if backend_of(config) == "embedded":
        _deselect_for_real_brokers(config, items)


def _deselect_for_real_brokers(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = {item: item.get_closest_marker("needs_real_broker") for item in items}
    reasons = Counter(mark.args[0] for mark in marked.values() if mark is not None)
    config.stash[REASONS] = reasons
    config.hook.pytest_deselected(items=[item for item, mark in marked.items() if mark])
    items[:] = [item for item, mark in marked.items() if mark is None]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print why tests need a real broker, and figures such as durations and duplicates."""
    for reason, count in config.stash.get(REASONS, Counter()).items():
        terminalreporter.write_line(f"{count} tests need a real broker: {reason}")
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
async def admin(rocketmq_namesrv: str) -> AsyncIterator[AdminClient]:
    async with AdminClient(namesrv=rocketmq_namesrv) as client:
        yield client


@pytest.fixture
def queue(rocketmq_cluster: Cluster, rocketmq_topic: str) -> MessageQueue:
    """The first queue of the topic."""
    return MessageQueue(rocketmq_topic, rocketmq_cluster.brokers[0].name, 0)


@pytest.fixture
def mqadmin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a temporary folder: mqadmin writes files into the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def official_tool(
    rocketmq_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OfficialTool]:
    """mqadmin on the cluster of the session, in one JVM."""
    folder = tmp_path_factory.mktemp("mqadmin")
    with closing(OfficialTool(rocketmq_cluster.version, rocketmq_cluster.namesrv, folder)) as tool:
        yield tool
