"""pytest plugin: fixtures that provide a RocketMQ, by default the embedded one.

Every pytest run in an environment with rocketmq_aio loads this module, so it imports only
pytest until a fixture is requested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rocketmq_aio.embedded.clock import Clock
    from rocketmq_aio.embedded.faults import Faults
    from rocketmq_aio.testing import Cluster

DEFAULT_VERSION: Final = "5.5.0"
DEFAULT_BACKEND: Final = "embedded"
BACKENDS: Final = ("embedded", "jvm", "docker", "external", "auto")
NAME_CHARACTERS: Final = 60  # of the test name; a topic has at most 127
FIXTURE_QUEUES: Final = 4
LOGS: Final = pytest.StashKey[list[str]]()  # of each worker of pytest-xdist
WORKER_LOGS: Final = "rocketmq_logs"  # in what a worker returns


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rocketmq")
    group.addoption(
        "--rocketmq-version",
        default=os.environ.get("ROCKETMQ_VERSION", DEFAULT_VERSION),
        help="version of the RocketMQ servers that fixtures start"
        " (default: ROCKETMQ_VERSION, then %(default)s)",
    )
    group.addoption(
        "--rocketmq-backend",
        choices=BACKENDS,
        help="where fixtures run RocketMQ: embedded (in this process), jvm, docker, external"
        " (ROCKETMQ_NAMESRV) or auto, the first real one that is possible"
        " (default: ROCKETMQ_AIO_BACKEND, then the ini setting rocketmq_backend)",
    )
    parser.addini("rocketmq_backend", "default of --rocketmq-backend", default=DEFAULT_BACKEND)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for logs in config.stash.get(LOGS, ()):
        terminalreporter.write_line(f"RocketMQ server logs: {logs}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ANN401 - of pytest-xdist
    if (logs := getattr(node, "workeroutput", {}).get(WORKER_LOGS)) is not None:
        node.config.stash.setdefault(LOGS, []).append(logs)


def backend_of(config: pytest.Config) -> str:
    """Return the backend of the option, else of the environment, else of the ini file."""
    option = config.getoption("--rocketmq-backend")
    name = option or os.environ.get("ROCKETMQ_AIO_BACKEND") or config.getini("rocketmq_backend")
    return str(name)


@pytest.fixture(scope="session")
def rocketmq_version(pytestconfig: pytest.Config) -> str:
    """The version of the servers (``--rocketmq-version``)."""
    return str(pytestconfig.getoption("--rocketmq-version"))


@pytest.fixture(scope="session")
def rocketmq_backend(pytestconfig: pytest.Config) -> str:
    """The backend of the clusters (``--rocketmq-backend``)."""
    return backend_of(pytestconfig)


@pytest.fixture(scope="session")
def rocketmq_cluster(
    request: pytest.FixtureRequest, rocketmq_backend: str, rocketmq_version: str
) -> Iterator[Cluster]:
    """A name server and a broker for the test session.

    If a test of the session failed, the server logs are kept; the summary names the folder.
    """
    with _cluster(rocketmq_backend, rocketmq_version) as cluster:
        yield cluster
        if request.session.testsfailed and (logs := cluster.save_logs()) is not None:
            request.config.stash[LOGS] = [str(logs)]
            if (output := getattr(request.config, "workeroutput", None)) is not None:
                output[WORKER_LOGS] = str(logs)


@pytest.fixture
def rocketmq_fresh_cluster(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """A name server and a broker for one test, which may break them."""
    with _cluster(rocketmq_backend, rocketmq_version) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq(rocketmq_cluster: Cluster) -> Cluster:
    """The cluster of the session; a project that overrides `rocketmq_cluster` changes it, too."""
    return rocketmq_cluster


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
    if rocketmq_cluster.backend == "embedded":
        rocketmq_cluster.faults.clear()  # one of the test could refuse the deletion
    rocketmq_cluster.delete_topic(topic)


@pytest.fixture
def rocketmq_group(request: pytest.FixtureRequest) -> str:
    """A unique group name."""
    return unique_name(request.node.name)


@pytest.fixture
def rocketmq_faults(rocketmq_cluster: Cluster) -> Iterator[Faults]:
    """The faults of the session's cluster, removed after the test; only the embedded one has any.

    On another backend the test is skipped.
    """
    _require_embedded(rocketmq_cluster, "faults")
    yield rocketmq_cluster.faults
    rocketmq_cluster.faults.clear()


@pytest.fixture
def rocketmq_clock(rocketmq_cluster: Cluster) -> Clock:
    """The clock of the session's cluster; only the embedded one can be moved.

    On another backend the test is skipped.
    """
    _require_embedded(rocketmq_cluster, "a clock that can be moved")
    return rocketmq_cluster.clock


def unique_name(name: str) -> str:
    """Return a valid, unique RocketMQ name that begins with *name*."""
    words = re.sub(r"[^0-9A-Za-z_]+", "-", name)[:NAME_CHARACTERS].strip("-")
    return f"{words}-{os.urandom(6).hex()}"


@contextmanager
def _cluster(backend: str, version: str) -> Iterator[Cluster]:
    from rocketmq_aio.testing import Cluster, ClusterError

    try:
        cluster = Cluster.start(version, backend=backend)
    except ClusterError as error:  # its text says what to install or to set
        pytest.fail(f"RocketMQ backend {backend!r}: {error}", pytrace=False)
    with cluster:
        yield cluster


def _require_embedded(cluster: Cluster, what: str) -> None:
    if cluster.backend != "embedded":
        pytest.skip(f"only the embedded broker has {what}: --rocketmq-backend embedded")
