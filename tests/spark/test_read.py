"""Batch reads from a real broker, compared with the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rocketmq_aio import Message, MessageExt, Producer, ProducerConfig, PullConsumer
from rocketmq_aio.spark.arrow.columns import COLUMNS, SCHEMA
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection, ReadOptions
from rocketmq_aio.spark.read.batch_reader import read
from rocketmq_aio.spark.read.data_loss import DataLossError
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.plugin import unique_name
from tests.spark.support import wait_until, write_batches, write_messages
from tests.unit.spark.rows import row_of

MIB: Final = 1024 * 1024


def load(spark: SparkSession, namesrv: str, *columns: str, **options: str) -> DataFrame:
    schema = ", ".join(f"{name} {COLUMNS[name].simpleString()}" for name in columns)
    reader = spark.read.format("rocketmq").options(nameServer=namesrv, **options)
    return (reader.schema(schema) if columns else reader).load()


def held(namesrv: str, *topics: str, count: int) -> list[MessageExt]:
    """All messages of *topics* by queue, as soon as there are *count*."""
    found: list[MessageExt] = []

    def complete() -> bool:
        found[:] = asyncio.run(_pulled(namesrv, topics))
        return len(found) >= count

    wait_until(complete, f"{count} messages")
    return found


async def _pulled(namesrv: str, topics: tuple[str, ...]) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with PullConsumer("spark-tests-reader", namesrv=namesrv) as consumer:
        for topic in topics:
            for queue in await consumer.message_queues(topic):
                offset = await consumer.min_offset(queue)
                while messages := (await consumer.pull(queue, offset)).messages:
                    found += messages
                    offset = messages[-1].queue_offset + 1
    return found


def place(row: dict[str, Any]) -> tuple[str, str, int, int]:
    return row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]


def near(row: dict[str, Any]) -> tuple[int, int]:
    return row["queueOffset"], row.get("queueId", 0)


def plain(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts comparable with `row_of`."""
    rows = [row.asDict() for row in frame.collect()]
    for row in rows:
        for name in {"bornTimestamp", "storeTimestamp"} & row.keys():
            row[name] = row[name].astimezone(UTC)
        row.update({"body": bytes(row["body"])} if "body" in row else {})
    return rows


async def send_all_kinds(namesrv: str, topic: str) -> int:
    """Send single, compressed and batched messages; return their number."""
    config = ProducerConfig(compress_above_bytes=1000)
    async with Producer("spark-tests-producer", namesrv=namesrv, config=config) as producer:
        single = [
            Message(topic, b"%d" % n, tags="new", keys=[f"k{n}", "both"], properties={"n": str(n)})
            for n in range(30)
        ]
        large = [Message(topic, b"large " * 1000, flag=7) for _ in range(5)]
        bare = [Message(topic, bytes([255, 0, n]), properties={"name": "Zoë €"}) for n in range(5)]
        await asyncio.gather(*map(producer.send, single + large + bare))
        await producer.send_batch([Message(topic, b"in a batch", tags="b") for _ in range(20)])
    return 60


def test_all_columns_match_the_client(spark: SparkSession, namesrv: str, topic: str) -> None:
    count = asyncio.run(send_all_kinds(namesrv, topic))
    messages = sorted(map(row_of, held(namesrv, topic, count=count)), key=place)
    frame = load(spark, namesrv, subscribe=topic)
    assert frame.schema == SCHEMA
    assert sorted(plain(frame), key=place) == messages
    names = [*COLUMNS]
    for chosen in (names[::-1], ["queueId", *names[6::3]], ["queueOffset"]):
        rows = plain(load(spark, namesrv, *chosen, subscribe=topic))
        expected = [{name: row[name] for name in chosen} for row in messages]
        assert [*rows[0]] == chosen
        assert sorted(rows, key=near) == sorted(expected, key=near)


def test_rows_of_several_topics_and_ranges(
    spark: SparkSession, namesrv: str, rocketmq_cluster: Cluster
) -> None:
    topics = [f"spark-range-{which}-{id(spark)}" for which in "abc"]
    for each in topics:
        write_messages(namesrv, each, [f"{each}-{n}" for n in range(40)])
    messages = held(namesrv, *topics[:2], count=80)
    bodies = [
        row.body for row in load(spark, namesrv, "body", subscribe=",".join(topics[:2])).collect()
    ]
    assert sorted(bodies) == sorted(message.body for message in messages)
    broker = rocketmq_cluster.brokers[0].name
    queue_id = max(messages, key=lambda message: message.queue_offset).queue.queue_id
    chosen = {
        "assign": json.dumps({topics[0]: {broker: [queue_id]}}),
        "startingOffsets": json.dumps({topics[0]: {broker: {str(queue_id): 2}}}),
        "endingOffsets": json.dumps({topics[0]: {broker: {str(queue_id): 6}}}),
    }
    rows = load(spark, namesrv, "queueId", "queueOffset", **chosen).collect()
    assert [tuple(row) for row in rows] == [(queue_id, offset) for offset in range(2, 6)]


def test_an_empty_topic_has_no_rows(spark: SparkSession, namesrv: str, topic: str) -> None:
    assert load(spark, namesrv, subscribe=topic).collect() == []


def test_tags_and_sql_are_filtered_by_the_broker(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    for tag in ("Aa", "BB", "C"):  # the first two have one hash
        write_messages(namesrv, topic, [tag], tags=tag, properties={"size": str(ord(tag[0]))})
    held(namesrv, topic, count=3)
    by_tag = load(spark, namesrv, "tags", subscribe=topic, subExpression="Aa || C")
    by_sql = load(
        spark, namesrv, "tags", subscribe=topic, subExpression="size > 65", expressionType="SQL92"
    )
    assert sorted(row.tags for row in by_tag.collect()) == ["Aa", "C"]
    assert sorted(row.tags for row in by_sql.collect()) == ["BB", "C"]


def test_a_limit_does_not_wait_for_the_whole_range(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    write_batches(namesrv, topic, 20_000, b"x" * 1000)
    frame = load(spark, namesrv, "queueOffset", "body", subscribe=topic)
    assert len(frame.limit(5).collect()) == 5
    assert frame.count() == 20_000


def test_timestamps_select_store_times(spark: SparkSession, namesrv: str, topic: str) -> None:
    write_messages(namesrv, topic, [f"{n}" for n in range(200)])
    messages = held(namesrv, topic, count=200)
    times = sorted(message.store_time for message in messages)
    start, end = times[40], times[150]
    for first, last in ((start, end), (end + timedelta(days=1), end + timedelta(days=2))):
        options = {"startingTimestamp": iso(first), "endingTimestamp": iso(last)}
        rows = load(spark, namesrv, "body", subscribe=topic, **options).collect()
        expected = [m.body for m in messages if first <= m.store_time < last]
        assert sorted(row.body for row in rows) == sorted(expected)


def iso(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds")


def test_an_unknown_column_is_rejected_before_the_read(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    reader = spark.read.format("rocketmq").options(nameServer=namesrv, subscribe=topic)
    with pytest.raises(PySparkException, match=r"unknown column; give any of topic string"):
        reader.schema("offset long").load().collect()


def test_sql_reads_a_view_and_a_table_with_options_in_the_statement(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    write_messages(namesrv, topic, ["a", "b"])
    options = f"`nameServer`='{namesrv}', `subscribe`='{topic}'"
    named = f"nameServer '{namesrv}', subscribe '{topic}'"

    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE refused USING rocketmq OPTIONS ({named})")
    spark.sql(f"CREATE TEMPORARY VIEW orders USING rocketmq OPTIONS ({named})")
    rows = spark.sql("SELECT CAST(body AS STRING), queueOffset FROM orders").collect()
    spark.sql("CREATE TABLE topics USING rocketmq")
    try:
        counted = spark.sql(f"SELECT count(*) FROM topics WITH ({options})").collect()
        with pytest.raises(PySparkException, match="name the options in each statement"):
            spark.sql("SELECT count(*) FROM topics").collect()
    finally:
        spark.sql("DROP TABLE topics")
        spark.sql("DROP VIEW orders")

    assert sorted(row.body for row in rows) == ["a", "b"]
    assert counted[0][0] == 2


async def fill(namesrv: str, topic: str, batches: int) -> None:
    """Send one message, which creates the topic, then batches of 40."""
    config = ProducerConfig(send_timeout_seconds=30.0, compression=None)
    async with Producer("spark-tests-producer", namesrv=namesrv, config=config) as producer:
        await producer.send(Message(topic, b"first"))
        for _ in range(batches):
            await producer.send_batch([Message(topic, b"x" * 10_000) for _ in range(40)])


@pytest.mark.timeout(600, func_only=True)  # starts a cluster twice
def test_messages_deleted_by_retention_fail_or_are_skipped(
    spark: SparkSession, fresh_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """The test deletes files as retention does, while the broker is down."""
    properties = {
        "storePathRootDir": str(tmp_path),
        "storePathCommitLog": str(tmp_path / "commitlog"),
        "mappedFileSizeCommitLog": str(MIB),
        "maxMessageSize": str(MIB // 2),
    }
    with fresh_cluster(backend="jvm", broker_properties=properties) as cluster:
        topic, namesrv = "spark-retention", cluster.namesrv
        asyncio.run(fill(namesrv, topic, batches=10))
        held(namesrv, topic, count=401)
        [broker] = cluster.brokers
        broker.stop()
        for file in sorted((tmp_path / "commitlog").iterdir())[:2]:
            file.unlink()
        broker.start()
        start = json.dumps({topic: {broker.name: {str(queue): 0 for queue in range(4)}}})
        options = {"subscribe": topic, "startingOffsets": start}
        with pytest.raises(PySparkException, match=r"messages are lost: topic 'spark-retention'"):
            load(spark, namesrv, "queueOffset", **options).collect()
        rows = load(
            spark, namesrv, "queueId", "queueOffset", failOnDataLoss="false", **options
        ).collect()
        left = held(namesrv, topic, count=1)
    assert 0 < len(left) < 401
    assert sorted(map(tuple, rows)) == sorted((m.queue.queue_id, m.queue_offset) for m in left)


def test_a_recreated_topic_that_ends_at_the_read_offset_is_data_loss(
    rocketmq_cluster: Cluster, connection: Connection, topic: str
) -> None:
    name = unique_name(f"{topic[:40]}-again")
    for count in (20, 10):
        rocketmq_cluster.create_topic(name, queues=1)
        wait_until(lambda: held(connection.name_server, name, count=0) == [], "the topic is empty")
        write_messages(connection.name_server, name, map(str, range(count)))
        held(connection.name_server, name, count=count)
        if count == 20:
            rocketmq_cluster.delete_topic(name)
    options = ReadOptions(connection=connection, subscribe=(name,), fetch_retry_interval_ms=10)
    planned = [Range(name, rocketmq_cluster.brokers[0].name, 0, 10, 20)]

    with pytest.raises(DataLossError, match="wanted offset 10, the queue has 0 to 10"):
        list(read(planned, options, SCHEMA))
    assert list(read(planned, replace(options, fail_on_data_loss=False), SCHEMA)) == []
