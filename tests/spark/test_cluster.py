"""The connector on a standalone cluster, also when executors are killed."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.pipelining import stored
from tests.spark.servers import SparkCluster
from tests.spark.support import active_executors, running_session, wait_until, write_messages
from tests.spark.task_hold import HELD_AFTER, HOLD_SECONDS, HeldTask, TaskHold

EXECUTORS: Final = 3
BODIES: Final = [f"order {number}" for number in range(400)]
ROWS_AT_ONCE: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH_ROWS: Final = 50
ROWS_PER_TASK: Final = 1000
PADDING: Final = "x" * 1000  # so that buffers between Python and the JVM are flushed
MESSAGES_PER_BATCH: Final = 1500
EXECUTOR_SETTINGS: Final = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
# A copy of each task that is not among the first half to finish.
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.5",
}


@pytest.fixture(scope="module")
def spark_cluster() -> Iterator[SparkCluster]:
    """A standalone master with a worker for each executor."""
    with SparkCluster.start(workers=EXECUTORS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster_session(
    jvm: None, spark_cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session whose tasks run on the workers; a process has one session at a time."""
    folder = tmp_path_factory.mktemp("spark-on-cluster")
    with running_session(
        folder, master=spark_cluster.master, settings=EXECUTOR_SETTINGS
    ) as session:
        yield session


@pytest.fixture
def session(cluster_session: SparkSession) -> Iterator[SparkSession]:
    """The session of the cluster with an executor on each worker and small record batches."""
    wait_until(
        lambda: len(active_executors(cluster_session)) == EXECUTORS,
        f"{EXECUTORS} executors are active",
        seconds=HOLD_SECONDS,
    )
    cluster_session.conf.set(ROWS_AT_ONCE, str(BATCH_ROWS))
    yield cluster_session
    cluster_session.conf.unset(ROWS_AT_ONCE)


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[TaskHold]:
    hold = TaskHold(tmp_path)
    yield hold
    hold.release()


def ids_by_row(namesrv: str, topic: str) -> dict[int, list[str]]:
    """The message ids of rows, which begin with their number."""
    found = defaultdict(list)
    for message in stored(namesrv, topic):
        found[int(message.body.split()[0])].append(message.message_id)
    return found


# --- speculation: first, because a process has one session at a time ------------------------------


def test_a_speculative_copy_of_a_task_sends_the_same_ids(
    jvm: None, spark_cluster: SparkCluster, namesrv: str, topic: str, tmp_path: Path
) -> None:
    total = EXECUTORS * ROWS_PER_TASK
    first_sent, over = tmp_path / "first-sent", tmp_path / "over"
    places = {False: str(over), True: str(first_sent)}
    held_after, hold_seconds = HELD_AFTER, HOLD_SECONDS

    # Pickled by value: executors cannot import this module.
    def hold_first_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        is_copy = context.attemptNumber() > 0
        for number, batch in enumerate(batches):
            held = number == (0 if is_copy else held_after) and context.partitionId() == 0
            deadline = time.monotonic() + hold_seconds
            while held and not os.path.exists(places[is_copy]) and time.monotonic() < deadline:
                time.sleep(0.05)
            yield batch

    def let_the_copy_send() -> None:
        wait_until(lambda: 0 in ids_by_row(namesrv, topic), "the first attempt has sent rows")
        first_sent.touch()

    settings = {**EXECUTOR_SETTINGS, **SPECULATION}
    with (
        running_session(tmp_path, master=spark_cluster.master, settings=settings) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        session.conf.set(ROWS_AT_ONCE, str(BATCH_ROWS))
        sent = pool.submit(let_the_copy_send)
        rows = session.range(0, total, 1, EXECUTORS).selectExpr(f"concat(id, ' {PADDING}') AS body")
        write = rows.mapInArrow(hold_first_attempt, "body string").write.format("rocketmq")
        options = {"nameServer": namesrv, "topic": topic, "sendTimeoutMs": "60000"}
        try:
            write.options(**options).mode("append").save()
        finally:
            over.touch()
        sent.result()

    ids = ids_by_row(namesrv, topic)
    assert set(ids) == set(range(total))
    assert len(ids[0]) == 2
    assert all(len(set(each)) == 1 for each in ids.values())
    assert len({each[0] for each in ids.values()}) == total


# --- without faults -------------------------------------------------------------------------------


def test_tasks_run_on_all_workers_with_the_interpreter_of_the_driver(session: SparkSession) -> None:
    def where(_: object) -> tuple[str, str]:
        return os.environ["SPARK_EXECUTOR_DIRS"], sys.executable

    found = session.sparkContext.parallelize(range(8), 8).map(where).collect()

    assert {python for _, python in found} == {sys.executable}
    assert len({folder for folder, _ in found}) == EXECUTORS


def test_a_topic_is_read_and_written_by_executors(
    session: SparkSession, namesrv: str, topic: str
) -> None:
    write_messages(namesrv, topic, BODIES)
    options = {"nameServer": namesrv, "subscribe": topic, "minPartitions": "4"}
    read = session.read.format("rocketmq").options(**options).load()

    upper = read.selectExpr("upper(cast(body AS string)) AS body", "msgId AS keys")
    upper.write.format("rocketmq").options(nameServer=namesrv, topic=topic).mode("append").save()

    again = session.read.format("rocketmq").options(**options).load().collect()
    assert read.rdd.getNumPartitions() == 4
    assert sorted(bytes(row.body).decode() for row in again) == sorted(
        [*BODIES, *(body.upper() for body in BODIES)]
    )
    assert {row.keys for row in again if row.keys} == {
        row.msgId for row in again if bytes(row.body).decode() in BODIES
    }


def test_another_query_resumes_from_the_checkpoint(
    session: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    stream = (
        session.readStream.format("rocketmq")
        .options(nameServer=namesrv, subscribe=topic, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "150")
        .schema("body binary, queueId int, queueOffset long")
        .load()
    )

    for part in (BODIES[:200], BODIES[200:]):
        write_messages(namesrv, topic, part)
        sink = stream.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()

    rows = session.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(BODIES)
    assert len({(row.queueId, row.queueOffset) for row in rows}) == len(BODIES)


# --- lost executors -------------------------------------------------------------------------------


def lose_executor(cluster: SparkCluster, session: SparkSession, task: HeldTask) -> None:
    """Kill the executor of *task*; return when the driver has removed it."""
    executor = cluster.kill_executor_of(task.pid)
    wait_until(
        lambda: executor not in active_executors(session),
        f"executor {executor} is lost",
        seconds=HOLD_SECONDS,
    )


def test_a_stream_is_exact_when_an_executor_is_lost_in_a_batch(
    spark_cluster: SparkCluster,
    session: SparkSession,
    hold: TaskHold,
    namesrv: str,
    topic: str,
    tmp_path: Path,
) -> None:
    def start(*, available_now: bool) -> StreamingQuery:
        source = session.readStream.format("rocketmq").options(
            nameServer=namesrv,
            subscribe=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(MESSAGES_PER_BATCH),
            minPartitions=str(EXECUTORS),
        )
        rows = source.schema("body binary, brokerName string, queueId int, queueOffset long").load()
        passed_on = rows.mapInArrow(hold.step(stream_batch=1), rows.schema)
        sink = passed_on.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if available_now:
            sink = sink.trigger(availableNow=True)
        return sink.start()

    bodies = [f"{number} {PADDING}" for number in range(3 * MESSAGES_PER_BATCH)]
    write_messages(namesrv, topic, bodies[:-MESSAGES_PER_BATCH])
    query = start(available_now=False)
    lose_executor(spark_cluster, session, hold.wait())
    write_messages(namesrv, topic, bodies[-MESSAGES_PER_BATCH:])
    hold.release()
    query.processAllAvailable()
    query.stop()
    before_restart = session.read.parquet(str(tmp_path / "sink")).count()
    start(available_now=True).awaitTermination()

    copied = session.read.parquet(str(tmp_path / "sink")).collect()
    rows = Counter((row.brokerName, row.queueId, row.queueOffset, row.body) for row in copied)
    in_log = Counter(
        (m.queue.broker_name, m.queue.queue_id, m.queue_offset, m.body)
        for m in stored(namesrv, topic)
    )
    assert query.exception() is None
    assert rows == in_log
    assert sorted(bytes(row.body).decode() for row in copied) == sorted(bodies)
    assert before_restart == len(bodies)


def test_a_write_repeats_only_the_task_of_a_lost_executor(
    spark_cluster: SparkCluster, session: SparkSession, hold: TaskHold, namesrv: str, topic: str
) -> None:
    def rows_of(task: HeldTask) -> set[int]:
        return {row for row in ids_by_row(namesrv, topic) if row // ROWS_PER_TASK == task.partition}

    def lose_executor_after_rows() -> tuple[HeldTask, set[int]]:
        """Return the held task and what it had sent when its executor was killed."""
        try:
            task = hold.wait()
            wait_until(lambda: bool(rows_of(task)), "the held task has sent rows")
            sent = rows_of(task)
            lose_executor(spark_cluster, session, task)
        finally:
            hold.release()
        return task, sent

    total = EXECUTORS * ROWS_PER_TASK
    rows = session.range(0, total, 1, EXECUTORS).selectExpr(f"concat(id, ' {PADDING}') AS body")
    with ThreadPoolExecutor(1) as pool:
        loss = pool.submit(lose_executor_after_rows)
        write = rows.mapInArrow(hold.step(), "body string").write.format("rocketmq")
        # Avoids retries after timeouts on a busy machine.
        options = {"nameServer": namesrv, "topic": topic, "sendTimeoutMs": "60000"}
        write.options(**options).mode("append").save()
        task, sent = loss.result()
    wait_until(lambda: len(ids_by_row(namesrv, topic)) == total, "every row is stored")

    ids = ids_by_row(namesrv, topic)
    repeated = {row for row, copies in ids.items() if len(copies) > 1}
    assert set(ids) == set(range(total))
    assert sent
    assert sent <= repeated <= rows_of(task)
    assert {len(copies) for copies in ids.values()} == {1, 2}
    assert len({id_ for copies in ids.values() for id_ in copies}) == total
    assert all(len(set(copies)) == 1 for copies in ids.values())
