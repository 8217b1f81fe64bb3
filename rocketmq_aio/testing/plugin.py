"""pytest plugin: fixtures that provide a real RocketMQ.

Every pytest run in an environment with rocketmq_aio loads this module, so it imports only
pytest until a fixture is requested.
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
NAME_CHARACTERS: Final = 60  # of the test name; a topic has at most 127
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
    """The version of the servers (``--rocketmq-version``)."""
    return str(pytestconfig.getoption("--rocketmq-version"))


@pytest.fixture(scope="session")
def rocketmq_cluster(request: pytest.FixtureRequest, rocketmq_version: str) -> Iterator[Cluster]:
    """A name server and a broker for the test session.

    If a test of the session failed, the server logs are kept; the summary names the folder.
    """
    from rocketmq_aio.testing import Cluster

    with Cluster.start(rocketmq_version) as cluster:
        yield cluster
        if request.session.testsfailed:
            request.config.stash[LOGS] = cluster.save_logs()


@pytest.fixture(scope="session")
def rocketmq_namesrv(rocketmq_cluster: Cluster) -> str:
    """The address of the name server."""
    return rocketmq_cluster.namesrv


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest, rocketmq_cluster: Cluster) -> Iterator[str]:
    """A topic with four queues per broker for one test, deleted after it."""
    rocketmq_cluster.check_running()
    topic = unique_name(request.node.name)
    rocketmq_cluster.create_topic(topic, queues=FIXTURE_QUEUES)
    yield topic
    rocketmq_cluster.delete_topic(topic)


@pytest.fixture
def rocketmq_group(request: pytest.FixtureRequest) -> str:
    """A unique group name."""
    return unique_name(request.node.name)


def unique_name(name: str) -> str:
    """Return a valid, unique RocketMQ name that begins with *name*."""
    words = re.sub(r"[^0-9A-Za-z_]+", "-", name)[:NAME_CHARACTERS].strip("-")
    return f"{words}-{uuid.uuid4().hex[:12]}"
