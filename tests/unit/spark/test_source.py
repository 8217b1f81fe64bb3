"""Data source: discovery, schema and readers before any read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructField, StructType

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.spark import RocketMQDataSource, register
from rocketmq_aio.spark.arrow.columns import SCHEMA
from rocketmq_aio.spark.offsets import StreamOffset
from rocketmq_aio.spark.options.source_options import read_options
from rocketmq_aio.spark.read.batch_reader import RocketMQBatchReader
from rocketmq_aio.spark.read.stream_reader import RocketMQStreamReader
from rocketmq_aio.spark.runtime import Runtime
from rocketmq_aio.spark.source import check_streams
from tests.unit.spark.driving import TOPIC, put
from tests.unit.spark.reading import reading

BASIC = {"nameServer": "127.0.0.1:9876", "subscribe": "orders"}


def stream_reader(**options: str) -> RocketMQStreamReader:
    source = RocketMQDataSource({**BASIC, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, RocketMQStreamReader)
    return reader


def test_spark_discovers_the_source() -> None:
    import pyspark_rocketmq

    assert pyspark_rocketmq.DefaultSource is RocketMQDataSource
    assert RocketMQDataSource.name() == "rocketmq"


def test_discovery_does_not_import_arrow() -> None:
    heavy = "{'pyarrow', 'pandas', 'rocketmq_aio.spark.read.stream_reader'} & set(sys.modules)"
    code = f"import sys, pyspark_rocketmq; sys.exit(str({heavy} or ''))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.strip() == ""


def test_the_first_columns_match_the_java_connector() -> None:
    assert RocketMQDataSource(BASIC).schema().fieldNames()[:9] == [
        "topic",
        "flag",
        "body",
        "properties",
        "brokerName",
        "queueId",
        "queueOffset",
        "bornTimestamp",
        "storeTimestamp",
    ]


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"startOffsets": "earliest"}, SCHEMA, "did you mean startingOffsets"),
        ({}, StructType([StructField("offset", LongType())]), "queueOffset"),
    ],
)
def test_an_invalid_stream_raises_in_its_first_call(
    options: dict[str, str], schema: StructType, message: str
) -> None:
    """Spark 4.3 replaces an error of `streamReader` by one of its own."""
    reader = RocketMQDataSource({**BASIC, **options}).streamReader(schema)
    calls: list[Callable[[], object]] = [
        reader.initialOffset,
        reader.getDefaultReadLimit,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(InputPartition(0)),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=message):
            call()


@pytest.mark.parametrize("version", ["4.0.1", "4.1.0", "3.5.6"])
def test_streams_of_older_spark_versions_are_rejected(version: str) -> None:
    with pytest.raises(PySparkNotImplementedError, match=f"4.2 or newer, this is {version}"):
        check_streams(version)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0.dev1", "5.0.0"])
def test_streams_of_newer_spark_versions_are_accepted(version: str) -> None:
    check_streams(version)


def test_the_initial_offset_is_a_marker() -> None:
    reader = stream_reader()

    assert reader.initialOffset() == reader.initialOffset() == {"v": 1, "at": "start"}


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
    ],
)
def test_the_default_read_limit_follows_the_options(options: dict[str, str], limit: object) -> None:
    assert stream_reader(**options).getDefaultReadLimit() == limit


def test_an_empty_batch_has_no_partitions() -> None:
    offset = {"v": 1, "end": {"orders": {"broker-a": {"0": 5}}}}

    assert stream_reader().partitions(offset, offset) == []


def test_a_reader_can_be_pickled() -> None:
    reader = stream_reader(maxOffsetsPerTrigger="5")

    assert pickle.loads(pickle.dumps(reader)).getDefaultReadLimit() == ReadMaxRows(5)


def test_a_stream_continues_with_a_new_client_after_a_failure() -> None:
    with reading() as cluster:
        given = {"nameServer": cluster.cluster.namesrv, "startingOffsets": "earliest"}
        given |= {"subscribe": TOPIC, "commitOffsets": "true"}
        options = read_options(given, streaming=True)
        cluster.broker.create_group(options.connection.group)
        reader = RocketMQStreamReader(options, SCHEMA)
        first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        put(cluster.cluster.broker, 3)
        Runtime.get(options.connection).instance.failure = RuntimeError("broken")

        end = reader.latestOffset(first, ReadAllAvailable())
        reader.commit(end)

        assert StreamOffset.from_json(end).end[TOPIC, "broker-a", 0] == 3
        assert cluster.broker.committed(options.connection.group, TOPIC, 0) == 3


@pytest.mark.parametrize("streaming", [True, False])
def test_a_read_that_starts_while_no_name_server_responds_retries(streaming: bool) -> None:
    with reading() as here:
        given = {"nameServer": here.cluster.namesrv, "fetchOffset.retryIntervalMs": "1"}
        options = read_options({**given, "subscribe": TOPIC}, streaming=streaming)
        refused = here.cluster.faults.refuse(RequestCode.GET_ROUTEINFO_BY_TOPIC, times=3)

        if streaming:
            reader = RocketMQStreamReader(options, SCHEMA)
            reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        else:
            RocketMQBatchReader(options, SCHEMA).partitions()

        assert refused.count == 3


def test_a_stream_keeps_its_client_until_a_renewed_one_reaches_a_name_server() -> None:
    with reading() as here:
        given = {"nameServer": here.cluster.namesrv, "fetchOffset.numRetries": "0"}
        options = read_options({**given, "subscribe": TOPIC}, streaming=True)
        reader = RocketMQStreamReader(options, SCHEMA)
        first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        Runtime.get(options.connection)._files = None  # as if the certificate was replaced
        here.stop_name_server()
        batches = reader._batches
        assert batches is not None
        batches._topics = None  # as if a second had passed

        assert reader.latestOffset(first, ReadAllAvailable()) == first


def test_create_table_with_options_is_rejected() -> None:
    """Spark passes these options to CREATE TABLE and not to SELECT."""
    handed = {"option.nameserver": "x:1", "nameserver": "x:1", "owner": "o", "provider": "rocketmq"}

    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
        RocketMQDataSource(handed).schema()


def test_create_table_without_options_has_all_columns() -> None:
    handed = {"owner": "root", "provider": "rocketmq"}

    assert RocketMQDataSource(handed).schema() == SCHEMA


def test_register_makes_the_session_active_in_the_calling_thread() -> None:
    calls: list[object] = []
    session_class = SimpleNamespace(setActiveSession=lambda it: calls.append(("active", it)))
    spark: Any = SimpleNamespace(
        dataSource=SimpleNamespace(register=lambda it: calls.append(("registered", it))),
        _jvm="jvm",
        _jsparkSession="session",
        _get_j_spark_session_class={"jvm": session_class}.get,
    )

    register(spark)

    assert calls == [("registered", RocketMQDataSource), ("active", "session")]


def test_register_of_a_connect_session_needs_no_jvm() -> None:
    calls: list[object] = []
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=calls.append))

    register(spark)

    assert calls == [RocketMQDataSource]
