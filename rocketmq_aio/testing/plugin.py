"""pytest fixtures that give a test suite a real RocketMQ.

Every pytest run of an environment where rocketmq_aio is installed loads this module, so
it imports nothing but pytest until a fixture is asked for.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from rocketmq_aio.testing import Cluster

DEFAULT_VERSION: Final = "5.5.0"
NAME_CHARACTERS: Final = 60  # of a test's name; a topic may have 127 in all
FIXTURE_QUEUES: Final = 4
LOGS: Final = pytest.StashKey[Path | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("rocketmq").addoption(
        "--rocketmq-version",
        default=os.environ.get("ROCKETMQ_VERSION", DEFAULT_VERSION),
        help="version of the RocketMQ servers that fixtures start"
        " (default: ROCKETMQ_VERSION, then %(default)s)",
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if (logs := config.stash.get(LOGS, None)) is not None:
        terminalreporter.write_line(f"RocketMQ server logs: {logs}")


@pytest.fixture(scope="session")
def rocketmq_version(pytestconfig: pytest.Config) -> str:
    """The version of the servers, as `--rocketmq-version` says."""
    return str(pytestconfig.getoption("--rocketmq-version"))


@pytest.fixture(scope="session")
def rocketmq_cluster(request: pytest.FixtureRequest, rocketmq_version: str) -> Iterator[Cluster]:
    """A name server and a broker that live as long as the test session.

    When a test of the session failed, the servers' logs are kept; the summary says where.
    """
    from rocketmq_aio.testing import Cluster

    with Cluster.start(rocketmq_version) as cluster:
        yield cluster
        if request.session.testsfailed:
            request.config.stash[LOGS] = cluster.save_logs()


@pytest.fixture(scope="session")
def rocketmq_namesrv(rocketmq_cluster: Cluster) -> str:
    """The address that clients take as their name server."""
    return rocketmq_cluster.namesrv


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest, rocketmq_cluster: Cluster) -> Iterator[str]:
    """A topic of four queues per broker for this test alone, deleted after it."""
    rocketmq_cluster.check_running()
    topic = unique_name(request.node.name)
    rocketmq_cluster.create_topic(topic, queues=FIXTURE_QUEUES)
    yield topic
    rocketmq_cluster.delete_topic(topic)


@pytest.fixture
def rocketmq_group(request: pytest.FixtureRequest) -> str:
    """A group name that no other test uses."""
    return unique_name(request.node.name)


def unique_name(name: str) -> str:
    """Return *name* as RocketMQ takes it, with an ending that makes it unique."""
    words = re.sub(r"[^0-9A-Za-z_]+", "-", name)[:NAME_CHARACTERS].strip("-")
    return f"{words}-{uuid.uuid4().hex[:12]}"
