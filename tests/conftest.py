"""Shared by all tests: unit tests of the client run on both event loops, others on asyncio's.

The fixtures are for tests with real servers, beyond those that users have too.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rocketmq_aio.testing import Cluster
from tests.server_options import server_options

UNIT = Path(__file__).parent / "unit"
# Of what runs in an application's event loop; the rest does not depend on its kind.
ON_BOTH_LOOPS = tuple(
    UNIT / name
    for name in (
        *("consumer", "embedded", "instance", "producer", "remoting", "trace"),
        "test_signals.py",
    )
)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "mqadmin(commands): compares AdminClient or rmq with these commands, or with their effect"
        " on clients; tests/unit/test_documented_names.py needs a test for each command",
    )


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Run unit tests of the client once per event loop."""
    if not {item.path, *item.path.parents}.isdisjoint(ON_BOTH_LOOPS):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def rocketmq_backend(rocketmq_backend: str, rocketmq_version: str) -> Iterator[str]:
    """The public fixture; Java servers get options for fast starts."""
    with pytest.MonkeyPatch.context() as patch:
        if rocketmq_backend in ("jvm", "auto") and shutil.which("mvn"):
            patch.setenv("JAVA_OPT_EXT", server_options(rocketmq_version))
        yield rocketmq_backend


@pytest.fixture(scope="module")
def fresh_cluster(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, with the arguments of `Cluster.start`, for tests that break them.

    They end with the module; a test that is done with one before closes it, for they are heavy.
    """
    with ExitStack() as running:

        def start(**options: Any) -> Cluster:  # noqa: ANN401 - those of Cluster.start
            secured = "accounts" in options or "tls" in options
            default = "jvm" if secured and rocketmq_backend != "embedded" else rocketmq_backend
            chosen = {"backend": default, **options}
            return running.enter_context(Cluster.start(rocketmq_version, **chosen))

        yield start


@pytest.fixture(scope="module")
def two_broker_cluster(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """Two masters for the tests of one module, which leaves both running and reachable."""
    with Cluster.start(rocketmq_version, brokers=2, backend=rocketmq_backend) as cluster:
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
