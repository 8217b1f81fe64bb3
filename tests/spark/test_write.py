"""Writes to a real broker, read back with the client."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rocketmq_aio import MessageExt, MessageQueue, PullConsumer, PullStatus
from rocketmq_aio.spark import register
from tests.spark.support import wait_until

GUIDE: Final = Path(__file__).parents[2] / "docs" / "guide" / "spark.md"
POISONED_ROW: Final = 500
ROWS_AT_ONCE: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


async def _pulled(namesrv: str, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with PullConsumer("spark-tests-reader", namesrv=namesrv) as consumer:
        for queue in await consumer.message_queues(topic):
            offset = await consumer.min_offset(queue)
            while True:
                pulled = await consumer.pull(queue, offset, max_messages=1000)
                if pulled.status is not PullStatus.FOUND:
                    break
                found += pulled.messages
                offset = pulled.next_offset
    return found


def read_back(namesrv: str, topic: str, count: int) -> list[MessageExt]:
    """Everything that *topic* holds once it holds *count* messages."""
    found: list[MessageExt] = []

    def enough() -> bool:
        found[:] = asyncio.run(_pulled(namesrv, topic))
        return len(found) >= count

    wait_until(enough, f"{count} messages")
    return found


def write(frame: DataFrame, namesrv: str, topic: str | None = None, **options: object) -> None:
    if topic is not None:
        options["topic"] = topic
    given = {name: str(value) for name, value in options.items()}
    frame.write.format("rocketmq").options(nameServer=namesrv, **given).mode("append").save()


def numbered(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS STRING) AS body")


def ids_by_body(messages: Iterable[MessageExt]) -> dict[bytes, set[str]]:
    ids = defaultdict(set)
    for each in messages:
        ids[each.body].add(each.message_id)
    return ids


def read(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    reader = spark.read.format("rocketmq").options(nameServer=namesrv, subscribe=topic)
    return reader.schema("queueOffset long").load()


# --- stored messages ------------------------------------------------------------------------------


def test_a_read_right_after_a_large_write_has_all_of_it(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    write(numbered(spark, 300_000), namesrv, topic)

    assert read(spark, namesrv, topic).count() == 300_000


def test_another_thread_saves_and_loads_after_register(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    def work() -> int:
        register(spark)
        write(numbered(spark, 10), namesrv, topic)
        return read(spark, namesrv, topic).count()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(work).result() == 10


def test_every_column_is_stored(spark: SparkSession, namesrv: str, topic: str) -> None:
    plain: dict[str, Any] = {"tags": None, "keys": None, "properties": None, "flag": None}
    frame = spark.createDataFrame(
        [
            {**plain, "body": b"\x00\xff raw"},
            {
                "body": b"full",
                "tags": "new",
                "keys": ["k1", "k2"],
                "properties": {"ü": "ö"},
                "flag": 7,
            },
        ],
        "body binary, tags string, keys array<string>, properties map<string,string>, flag int",
    )
    write(frame, namesrv, topic)
    found = {each.body: each for each in read_back(namesrv, topic, 2)}

    bare, full = found[b"\x00\xff raw"], found[b"full"]
    assert (bare.tags, bare.keys, bare.flag) == (None, (), 0)
    assert (full.tags, full.keys, full.flag) == ("new", ("k1", "k2"), 7)
    assert full.property("ü") == "ö"
    assert len({bare.message_id, full.message_id}) == 2


def test_a_topic_column_sends_each_row_to_its_topic(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    other = f"{topic}-other"
    frame = spark.createDataFrame(
        [("a", topic, "x y"), ("b", other, None)], "body string, topic string, keys string"
    )
    write(frame, namesrv)

    (first,), (second,) = read_back(namesrv, topic, 1), read_back(namesrv, other, 1)
    assert (first.body, first.keys) == (b"a", ("x", "y"))
    assert (second.body, second.keys) == (b"b", ())


def test_many_rows_are_stored_once_each(spark: SparkSession, namesrv: str, topic: str) -> None:
    write(numbered(spark, 30_000), namesrv, topic, batchBytes=5000, sendWindow=4)
    found = read_back(namesrv, topic, 30_000)

    assert sorted(int(each.body) for each in found) == list(range(30_000))
    assert len({each.message_id for each in found}) == 30_000
    assert all(len(each.message_id) == 32 and int(each.message_id, 16) for each in found)


def test_an_empty_frame_writes_nothing(spark: SparkSession, topic: str) -> None:
    write(numbered(spark, 0), "127.0.0.1:1", topic)


def test_keys_keep_their_order_in_one_queue(spark: SparkSession, namesrv: str, topic: str) -> None:
    frame = spark.range(0, 4000, 1, 1).selectExpr(
        "CAST(id AS STRING) AS body", "CONCAT('customer ', id % 20) AS shardingKey"
    )
    write(frame, namesrv, topic, batchRecords=16)
    bodies: dict[str | None, list[int]] = defaultdict(list)
    queues: dict[str | None, set[MessageQueue]] = defaultdict(set)
    for each in read_back(namesrv, topic, 4000):
        bodies[each.sharding_key].append(int(each.body))
        queues[each.sharding_key].add(each.queue)

    assert sorted(map(len, bodies.values())) == [200] * 20
    assert all(numbers == sorted(numbers) for numbers in bodies.values())
    assert {len(each) for each in queues.values()} == {1}
    assert len(set.union(*queues.values())) > 1


def test_rows_are_stored_in_their_explicit_queue(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    write(numbered(spark, 4), namesrv, topic)  # so that the topic is there
    broker = read_back(namesrv, topic, 4)[0].queue.broker_name
    frame = numbered(spark, 100, tasks=1).selectExpr(
        "CONCAT('chosen ', body) AS body", f"'{broker}' AS brokerName", "2 AS queueId"
    )
    write(frame, namesrv, topic)

    chosen = [each for each in read_back(namesrv, topic, 104) if each.body.startswith(b"chosen")]
    assert {each.queue for each in chosen} == {MessageQueue(topic, broker, 2)}
    assert [each.body for each in chosen] == [b"chosen %d" % number for number in range(100)]


def test_a_priority_selects_the_queue_and_is_read_again(
    spark: SparkSession, namesrv: str, topic: str, rocketmq_version: str
) -> None:
    priorities = {b"none": None, b"lowest": 0, b"second": 1, b"beyond": 100}
    rows = [(body.decode(), priority) for body, priority in priorities.items()]
    write(spark.createDataFrame(rows, "body string, priority int"), namesrv, topic)
    found = {each.body: each for each in read_back(namesrv, topic, len(rows))}

    assert {body: each.priority for body, each in found.items()} == priorities
    if rocketmq_version.startswith("5"):
        assert found[b"lowest"].queue.queue_id == 0
        assert found[b"second"].queue.queue_id == 1
        assert found[b"beyond"].queue.queue_id > 1
    reader = spark.read.format("rocketmq").options(nameServer=namesrv, subscribe=topic)
    read_again = reader.schema("priority int, body binary").load().collect()
    assert {bytes(row["body"]): row["priority"] for row in read_again} == priorities


def test_delayed_rows_are_delivered_later(
    spark: SparkSession, namesrv: str, topic: str, rocketmq_version: str
) -> None:
    at = datetime.now(UTC) + timedelta(seconds=4)
    rows: list[tuple[str, int | None, datetime | None]] = [("level", 1, None), ("now", None, None)]
    if rocketmq_version.startswith("5"):
        rows.append(("time", None, at))
    frame = spark.createDataFrame(rows, "body string, delayLevel int, deliverTimestamp timestamp")
    write(frame, namesrv, topic)
    found = {each.body: each for each in read_back(namesrv, topic, len(rows))}

    waited = found[b"level"].store_time - found[b"level"].born_time
    assert waited > timedelta(seconds=0.9)
    if b"time" in found:
        assert found[b"time"].store_time > at - timedelta(seconds=1)


# --- repeats --------------------------------------------------------------------------------------


def test_a_retried_task_sends_the_same_ids(spark: SparkSession, namesrv: str, topic: str) -> None:
    def poisoned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            bodies = batch.column(0).to_pylist()
            if context.attemptNumber() == 0 and str(POISONED_ROW) in bodies:
                bodies = [None] * len(bodies)
            yield pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.string())})

    spark.conf.set(ROWS_AT_ONCE, "100")
    try:
        frame = numbered(spark, 1000, tasks=1).mapInArrow(poisoned, "body string")
        write(frame, namesrv, topic)
    finally:
        spark.conf.unset(ROWS_AT_ONCE)
    found = read_back(namesrv, topic, 1200)
    ids = ids_by_body(found)

    assert sorted(map(int, ids)) == list(range(1000))
    assert {len(each) for each in ids.values()} == {1}
    assert len(set.union(*ids.values())) == 1000
    assert len(found) > 1000


def test_a_restarted_stream_sends_the_same_ids(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run_to_the_end() -> None:
        lines = spark.readStream.text(str(source)).selectExpr("value AS body")
        options = {"nameServer": namesrv, "topic": topic, "checkpointLocation": str(checkpoint)}
        query = (
            lines.writeStream.format("rocketmq")
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for number in range(2):
        text = "\n".join(f"{number}{line:03}" for line in range(100))
        (source / f"{number}.txt").write_text(text)
        run_to_the_end()
    first = read_back(namesrv, topic, 200)
    for committed in (checkpoint / "commits").glob("*1*"):
        committed.unlink()  # as if the driver had been killed before it wrote that
    run_to_the_end()
    ids = ids_by_body(read_back(namesrv, topic, 300))

    assert len(first) == len({each.message_id for each in first}) == 200
    assert len(ids) == 200
    assert ids == ids_by_body(first)


# --- rejections -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["'x' AS body", "'y' AS tag"], {}, "column='tag': unknown column"),
        (["'x' AS body", "'1' AS flag"], {}, "column='flag': its type is string, expected int"),
        (["'x' AS body"], {"topik": "x"}, "did you mean topic"),
    ],
    ids=repr,
)
def test_an_invalid_frame_is_rejected_before_any_send(
    spark: SparkSession, columns: list[str], options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        write(spark.range(1).selectExpr(*columns), "127.0.0.1:1", "never", **options)


def test_rows_without_a_topic_are_rejected(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="set the option, or add a column topic"):
        write(numbered(spark, 1), "127.0.0.1:1")


def test_overwrite_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    writer = numbered(spark, 1).write.format("rocketmq")
    with pytest.raises(PySparkException, match="never replaced: use mode"):
        writer.options(nameServer="127.0.0.1:1", topic="never").mode("overwrite").save()


@pytest.mark.parametrize(("mode", "words"), [("complete", "never replaced"), ("update", "update")])
def test_output_modes_other_than_append_are_rejected(
    spark: SparkSession, tmp_path: Path, mode: str, words: str
) -> None:
    (tmp_path / "1.txt").write_text("x")
    counts = (
        spark.readStream.text(str(tmp_path)).groupBy("value").count().selectExpr("value AS body")
    )
    options = {"nameServer": "127.0.0.1:1", "topic": "never"}
    stream = counts.writeStream.format("rocketmq").options(**options).outputMode(mode)
    with pytest.raises(PySparkException, match=f"(?i){words}"):
        stream.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()


def test_an_oversized_body_is_rejected_with_its_size(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    frame = spark.range(0, 1).selectExpr("REPEAT('x', 4194305) AS body")
    with pytest.raises(PySparkException, match=f"{topic}.*row 0 of the task.*4194305 bytes"):
        write(frame, namesrv, topic)


def test_an_unreachable_cluster_fails_with_the_reason(spark: SparkSession, topic: str) -> None:
    with pytest.raises(PySparkException, match="NameServerUnavailableError"):
        write(numbered(spark, 1), "127.0.0.1:1", topic, retries=0, sendTimeoutMs=500)


def statements_with_inserts() -> list[str]:
    """The statements of the SQL blocks of the guide that have inserts."""
    blocks = re.findall(r"^```sql\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    return [line for each in blocks if "INSERT" in each for line in each.split(";\n") if line]


def test_the_inserts_of_the_guide_write_messages(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    try:
        for statement in statements_with_inserts():
            spark.sql(statement.replace("127.0.0.1:9876", namesrv).replace("orders", topic))
        named = f"WITH (`nameServer`='{namesrv}', `topic`='{topic}')"
        with pytest.raises(PySparkException, match="messages are never replaced"):
            spark.sql(f"INSERT OVERWRITE sales {named} VALUES ('x', 'y', 'z')")
        columns = "body string, keys string, tags string"
        frame = spark.createDataFrame([("jam", "44", "new")], columns)
        frame.writeTo("sales").option("nameServer", namesrv).option("topic", topic).append()
        spark.sql("CREATE TABLE all_columns USING rocketmq")
        with pytest.raises(PySparkException, match="name those to write in CREATE TABLE"):
            spark.sql(f"INSERT INTO all_columns {named} (body) VALUES (X'31')")
    finally:
        for each in ("TABLE sales", "TABLE all_columns", "VIEW stock"):
            spark.sql(f"DROP {each.replace(' ', ' IF EXISTS ')}")

    found = sorted((m.body, m.keys, m.tags) for m in read_back(namesrv, topic, 5))
    assert found == [
        (b"cake", ("43",), None),
        (b"jam", ("44",), "new"),
        (b"milk", (), None),
        (b"pie", (), None),
        (b"tea", ("42",), "new"),
    ]
