"""Fixtures: servers in containers. `make test-containers` provides engine and image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.testing import Cluster
from tests.collecting import limit_tests

TEST_SECONDS: Final = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limit_tests(items, Path(__file__).parent, TEST_SECONDS)


@pytest.fixture(scope="session")
def rocketmq_cluster(rocketmq_version: str) -> Iterator[Cluster]:
    """The public fixture, always with the container backend."""
    with Cluster.start(rocketmq_version, backend="containers") as cluster:
        yield cluster
