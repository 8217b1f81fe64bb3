"""Spark and a real broker for the tests of the connector.

`make test-spark` runs this folder once per RocketMQ version (`--rocketmq-version`). Where
Spark or a broker cannot be started the tests fail; they are never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from rocketmq_aio.spark import register
from rocketmq_aio.spark.options.source_options import Connection
from tests.collecting import limit_tests, run_first
from tests.spark.support import end_jvm, running_session, use_this_python

HERE: Final = Path(__file__).parent
TEST_SECONDS: Final = 900  # for hanging tests only: a busy machine may be ten times slower
# The slowest first, so that parallel runs do not end with one of them alone.
SLOW_MODULES: Final = (
    *("test_faults", "test_example", "test_cluster", "test_pipeline_commands", "test_stream"),
    *("test_pipelines", "test_secrets", "test_shipping", "test_connect", "test_read", "test_write"),
)
# pyspark 4.3 warns of any pandas 3.
NOISE: Final = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limit_tests(items, HERE, TEST_SECONDS)
    run_first(items, SLOW_MODULES)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(NOISE))


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    """The environment of all processes that tests start."""
    use_this_python()


@pytest.fixture(scope="session")
def jvm() -> Iterator[None]:
    """The JVM that all sessions of this process have; it ends with the tests."""
    yield
    end_jvm()


@pytest.fixture(scope="module")
def spark(jvm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on `local[2,4]` for the tests of a module; its queries are stopped with it."""
    with running_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module")
def pipelines(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def connection(namesrv: str) -> Connection:
    return Connection(name_server=namesrv)
