"""Clusters of several servers, shared by the tests of a module; each test leaves them running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.testing import Cluster
from tests.collecting import limit_tests

HERE: Final = Path(__file__).parent
TEST_SECONDS: Final = 400  # reached only by a hanging test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limit_tests(items, HERE, TEST_SECONDS)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.topologies)


@pytest.fixture(scope="module")
def replicated(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """A master with one slave."""
    with Cluster.start(rocketmq_version, backend=rocketmq_backend, slaves=1) as cluster:
        yield cluster
