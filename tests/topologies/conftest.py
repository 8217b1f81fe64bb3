"""Clusters of several servers, shared by the tests of a session; each test leaves them running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.testing import Cluster

HERE: Final = Path(__file__).parent
TEST_SECONDS: Final = 400  # reached only by a hanging test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set timeouts for tests only: a fixture may download RocketMQ and has its own deadlines."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


@pytest.fixture(scope="session")
def replicated(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """A master with one slave."""
    with Cluster.start(rocketmq_version, backend=rocketmq_backend, slaves=1) as cluster:
        yield cluster
