"""Streams from a real broker: each message once, across restarts, changes and limits."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from rocketmq_aio import Message, MessageQueue, Producer, PullConsumer
from rocketmq_aio.spark import LagListener, QueryLag, lag_report
from rocketmq_aio.testing import Cluster
from tests.spark.support import wait_until, write_messages

PACE_SECONDS = 0.05  # between twenty messages: a core is left for Spark
SLIM = "queueOffset long, queueId int, body binary"


def stream(spark: SparkSession, namesrv: str, **options: str) -> DataStreamReader:
    basic = {"nameServer": namesrv, "startingOffsets": "earliest"}
    impatient = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "50"}
    return spark.readStream.format("rocketmq").options(**{**basic, **impatient, **options})


def copying(frame: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:  # noqa: ANN401
    """Start or resume a query that copies *frame* into files."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start()


def copy_stored(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Copy what is stored now with a query that starts or resumes, and stop it."""
    query = copying(frame, folder)
    query.processAllAvailable()
    query.stop()
    return query


def copied(spark: SparkSession, folder: Path) -> list[str]:
    rows = spark.read.schema(SLIM).parquet(str(folder / "rows")).select("body").collect()
    return sorted(row.body.decode() for row in rows)


def finished(query: StreamingQuery, seconds: int = 120) -> None:
    assert query.awaitTermination(seconds)


def numbered(first: int, end: int) -> list[str]:
    return [f"{number:06d}" for number in range(first, end)]


def offset_log(folder: Path, batch: int) -> dict[str, Any]:
    """The offset that Spark wrote down for a batch."""
    found = (folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[-1]
    return dict(json.loads(found))


@contextmanager
def producing(namesrv: str, topic: str, at_least: int) -> Iterator[list[str]]:
    """Send on and on in a thread; the block is entered when *at_least* are stored."""
    sent: list[str] = []
    enough, over = threading.Event(), threading.Event()

    async def produce() -> None:
        async with Producer("spark-busy-producer", namesrv=namesrv) as producer:
            while not over.is_set():
                bodies = numbered(len(sent), len(sent) + 20)
                await asyncio.gather(*(producer.send(Message(topic, b.encode())) for b in bodies))
                sent.extend(bodies)
                if len(sent) >= at_least:
                    enough.set()
                await asyncio.sleep(PACE_SECONDS)

    thread = threading.Thread(target=asyncio.run, args=(produce(),))
    thread.start()
    try:
        assert enough.wait(30)
        yield sent
    finally:
        over.set()
        thread.join()


async def stored_from(namesrv: str, topic: str, offsets: dict[str, dict[str, int]]) -> list[str]:
    """Return the bodies of all messages from these offsets on, in no order."""
    bodies = []
    async with PullConsumer("spark-tests-reader", namesrv=namesrv) as consumer:
        for broker, queues in offsets.items():
            for queue_id, start in queues.items():
                queue, at = MessageQueue(topic, broker, int(queue_id)), start
                end = await consumer.max_offset(queue)
                while at < end:
                    result = await consumer.pull(queue, at)
                    bodies += [each.body.decode() for each in result.messages]
                    at = result.next_offset
    return sorted(bodies)


def test_a_restarted_query_resumes_at_its_checkpoint(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, namesrv, topic=topic).schema(SLIM).load()
    write_messages(namesrv, topic, numbered(0, 100))
    copy_stored(frame, tmp_path)
    write_messages(namesrv, topic, numbered(100, 150))
    copy_stored(frame, tmp_path)

    assert copied(spark, tmp_path) == numbered(0, 150)


def test_a_limit_bounds_each_batch_except_with_trigger_once(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, namesrv, topic=topic, maxOffsetsPerTrigger="30").schema(SLIM).load()
    write_messages(namesrv, topic, numbered(0, 100))
    query = copy_stored(frame, tmp_path)
    counts = [each["numInputRows"] for each in query.recentProgress]
    write_messages(namesrv, topic, numbered(100, 200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # once is deprecated
        query = copying(frame, tmp_path, once=True)
    finished(query)

    assert sum(counts) == 100
    assert max(counts) <= 30
    assert [each["numInputRows"] for each in query.recentProgress] == [100]
    assert copied(spark, tmp_path) == numbered(0, 200)


def test_new_queues_are_read_from_their_minimum(
    spark: SparkSession, rocketmq_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    namesrv = rocketmq_cluster.namesrv
    write_messages(namesrv, topic, numbered(0, 40))
    frame = stream(spark, namesrv, topic=topic, startingOffsets="latest").schema(SLIM).load()
    query = copying(frame, tmp_path)
    query.processAllAvailable()
    rocketmq_cluster.create_topic(topic, queues=6)
    write_messages(namesrv, topic, numbered(40, 100))
    wait_until(lambda: len(copied(spark, tmp_path)) == 60, "all rows are there", seconds=120)
    query.stop()

    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert copied(spark, tmp_path) == numbered(40, 100)
    assert {row.queueId for row in rows.select("queueId").distinct().collect()} == set(range(6))


def test_a_pattern_matches_topics_created_later(
    spark: SparkSession, rocketmq_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    namesrv, later = rocketmq_cluster.namesrv, f"{topic}-later"
    write_messages(namesrv, topic, numbered(0, 10))
    frame = stream(spark, namesrv, subscribePattern=f"{topic}.*").schema(SLIM).load()
    query = copying(frame, tmp_path)
    query.processAllAvailable()
    rocketmq_cluster.create_topic(later, queues=1)
    write_messages(namesrv, later, numbered(10, 20))
    wait_until(lambda: len(copied(spark, tmp_path)) == 20, "all rows are there", seconds=120)
    query.stop()
    rocketmq_cluster.delete_topic(later)

    assert copied(spark, tmp_path) == numbered(0, 20)


def test_available_now_ends_under_load_and_commits_for_the_group(
    spark: SparkSession, namesrv: str, topic: str, group: str, tmp_path: Path
) -> None:
    options = {"topic": topic, "group": group, "commitOffsets": "true"}
    frame = stream(spark, namesrv, maxOffsetsPerTrigger="5000", **options).schema(SLIM).load()
    with producing(namesrv, topic, at_least=500) as sent:
        finished(copying(frame, tmp_path, availableNow=True))
        first = copied(spark, tmp_path)
        query = copying(frame, tmp_path, availableNow=True)
        finished(query)
        second = copied(spark, tmp_path)

    reached = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])["end"][topic]
    assert 500 <= len(first) < len(second) < len(sent)
    assert len(set(second)) == len(second)
    assert asyncio.run(committed(namesrv, topic, group)) == reached


async def committed(namesrv: str, topic: str, group: str) -> dict[str, dict[str, int | None]]:
    found: dict[str, dict[str, int | None]] = {}
    async with PullConsumer(group, namesrv=namesrv) as consumer:
        for queue in await consumer.message_queues(topic):
            offset = await consumer.committed(queue)
            found.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return found


def test_latest_on_a_busy_topic_loses_nothing_after_the_recorded_start(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, namesrv, topic=topic, startingOffsets="latest").schema(SLIM).load()
    with producing(namesrv, topic, at_least=100):
        query = copying(frame, tmp_path)
        wait_until(lambda: len(query.recentProgress) >= 2, "two batches", seconds=120)
    query.processAllAvailable()
    query.stop()

    start = offset_log(tmp_path, 0)["from"][topic]
    read = copied(spark, tmp_path)
    assert read == asyncio.run(stored_from(namesrv, topic, start))
    assert len(read) > 0


def test_lag_is_part_of_the_progress(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    lags: list[QueryLag] = []
    listener = LagListener(lags.append)
    spark.streams.addListener(listener)
    frame = stream(spark, namesrv, topic=topic, maxOffsetsPerTrigger="40").schema(SLIM).load()
    write_messages(namesrv, topic, numbered(0, 100))
    query = copying(frame, tmp_path)
    query.processAllAvailable()
    wait_until(
        lambda: bool(lags) and lags[-1].total == 0, "the last batch is reported", seconds=120
    )
    report = lag_report(query)
    query.stop()
    spark.streams.removeListener(listener)

    assert [lag.total for lag in lags if lag.input_rows] == [60, 20, 0]
    assert [lag.by_topic() for lag in report] == [{topic: 0}]


def copy_then_recreate(cluster: Cluster, topic: str, frame: DataFrame, folder: Path) -> None:
    """Copy 40 messages of *topic*, then delete and create it, and wait until it is empty."""
    write_messages(cluster.namesrv, topic, numbered(0, 40))
    copy_stored(frame, folder)
    cluster.delete_topic(topic)
    cluster.create_topic(topic, queues=4)

    async def ends() -> list[int]:
        async with PullConsumer("spark-tests-reader", namesrv=cluster.namesrv) as consumer:
            return [await consumer.max_offset(q) for q in await consumer.message_queues(topic)]

    wait_until(lambda: asyncio.run(ends()) == [0] * 4, "the topic is empty")


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_recreated_topic_fails_or_is_read_again(
    spark: SparkSession, rocketmq_cluster: Cluster, topic: str, tmp_path: Path, fail: str
) -> None:
    namesrv = rocketmq_cluster.namesrv
    frame = stream(spark, namesrv, topic=topic, failOnDataLoss=fail).schema(SLIM).load()
    copy_then_recreate(rocketmq_cluster, topic, frame, tmp_path)
    query = copying(frame, tmp_path)
    if fail == "true":
        with pytest.raises(StreamingQueryException, match=r"wanted offset.*failOnDataLoss=false"):
            query.processAllAvailable()
        return
    query.processAllAvailable()
    write_messages(namesrv, topic, numbered(40, 60))
    query.processAllAvailable()
    query.stop()

    assert copied(spark, tmp_path) == numbered(0, 60)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_recreated_topic_longer_than_the_checkpoint_is_detected(
    spark: SparkSession, rocketmq_cluster: Cluster, topic: str, tmp_path: Path, fail: str
) -> None:
    namesrv = rocketmq_cluster.namesrv
    frame = stream(spark, namesrv, topic=topic, failOnDataLoss=fail).schema(SLIM).load()
    copy_then_recreate(rocketmq_cluster, topic, frame, tmp_path)
    write_messages(namesrv, topic, numbered(40, 140))
    query = copying(frame, tmp_path)
    if fail == "true":
        with pytest.raises(StreamingQueryException, match="the log was replaced"):
            query.processAllAvailable()
        assert copied(spark, tmp_path) == numbered(0, 40)
        return
    query.processAllAvailable()
    query.stop()

    assert copied(spark, tmp_path) == numbered(0, 140)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_deleted_topic_fails_the_query_or_is_skipped(
    spark: SparkSession, rocketmq_cluster: Cluster, topic: str, tmp_path: Path, fail: str
) -> None:
    namesrv = rocketmq_cluster.namesrv
    other = f"{topic}-other"
    rocketmq_cluster.create_topic(other, queues=1)
    write_messages(namesrv, other, numbered(0, 10))
    both = f"{topic},{other}"
    frame = stream(spark, namesrv, subscribe=both, failOnDataLoss=fail).schema(SLIM).load()
    query = copying(frame, tmp_path)
    query.processAllAvailable()
    rocketmq_cluster.delete_topic(other)
    if fail == "true":
        with pytest.raises(StreamingQueryException, match="failOnDataLoss=false"):
            query.awaitTermination(120)
        return
    write_messages(namesrv, topic, numbered(10, 20))
    wait_until(lambda: len(copied(spark, tmp_path)) == 20, "the other topic is read", seconds=120)
    query.stop()

    assert copied(spark, tmp_path) == numbered(0, 20)


def test_commit_offsets_rejects_a_group_with_live_members(
    spark: SparkSession, namesrv: str, topic: str, group: str, tmp_path: Path
) -> None:
    async def while_a_member_lives() -> str:
        from rocketmq_aio import LitePullConsumer

        async with LitePullConsumer(group, namesrv=namesrv) as member:
            await member.subscribe(topic)
            await member.poll(timeout_seconds=1)
            return await asyncio.to_thread(failure)

    def failure() -> str:
        options = {"topic": topic, "group": group, "commitOffsets": "true"}
        query = copying(stream(spark, namesrv, **options).schema(SLIM).load(), tmp_path)
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination(120)
        return str(raised.value)

    assert "commitOffsets=True: group" in asyncio.run(while_a_member_lives())
