"""Executors of a standalone cluster killed during a stream and during a write."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.pipelining import stored
from tests.spark.servers import SparkCluster
from tests.spark.support import active_executors, wait_until, write_messages

EXECUTORS: Final = 3
ROWS_AT_ONCE: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH_ROWS: Final = 50
HELD_AFTER: Final = 4  # record batches that a held task has passed on
HOLD_SECONDS: Final = 600.0  # the test has failed long before
ROWS_PER_TASK: Final = 1000
PADDING: Final = "x" * 1000  # so that buffers between Python and the JVM are flushed
MESSAGES_PER_BATCH: Final = 1500


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A paused task; *pid* is its Python process."""

    pid: int
    partition: int


class TaskHold:
    """Holds one task in the middle of its rows until `release`; its next attempt passes."""

    def __init__(self, folder: Path) -> None:
        self._claimed = folder / "claimed"
        self._released = folder / "released"

    def step(self, *, stream_batch: int | None = None) -> Callable[..., Iterator[pa.RecordBatch]]:
        """A function for `mapInArrow` that passes rows on and holds the first task that comes.

        With *stream_batch* only tasks of that micro-batch are held.
        """
        claimed, released = str(self._claimed), str(self._released)
        wanted = None if stream_batch is None else str(stream_batch)
        held_after, hold_seconds = HELD_AFTER, HOLD_SECONDS

        # Pickled by value: executors cannot import this module.
        def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            for number, batch in enumerate(batches):
                right_batch = wanted in (None, context.getLocalProperty("streaming.sql.batchId"))
                if number == held_after and right_batch:
                    hold(context.partitionId())
                yield batch

        def hold(partition: int) -> None:
            written = f"{claimed}.{os.getpid()}"
            with open(written, "w", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {partition}")
            try:
                os.link(written, claimed)
            except FileExistsError:
                return  # another task is held, or this is the next attempt
            deadline = time.monotonic() + hold_seconds
            while not os.path.exists(released) and time.monotonic() < deadline:
                time.sleep(0.05)

        return pass_on

    def wait(self) -> HeldTask:
        """Wait until a task is held."""
        wait_until(self._claimed.exists, "a task is held", seconds=HOLD_SECONDS)
        pid, partition = map(int, self._claimed.read_text().split())
        return HeldTask(pid, partition)

    def release(self) -> None:
        self._released.touch()


@pytest.fixture(scope="module")
def spark_cluster() -> Iterator[SparkCluster]:
    with SparkCluster.start(workers=EXECUTORS) as cluster:
        yield cluster


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
    def ids_by_row() -> dict[int, list[str]]:
        found = defaultdict(list)
        for message in stored(namesrv, topic):
            found[int(message.body.split()[0])].append(message.message_id)
        return found

    def rows_of(task: HeldTask) -> set[int]:
        return {row for row in ids_by_row() if row // ROWS_PER_TASK == task.partition}

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
    wait_until(lambda: len(ids_by_row()) == total, "every row is stored")

    ids = ids_by_row()
    repeated = {row for row, copies in ids.items() if len(copies) > 1}
    assert set(ids) == set(range(total))
    assert sent
    assert sent <= repeated <= rows_of(task)
    assert {len(copies) for copies in ids.values()} == {1, 2}
    assert len({id_ for copies in ids.values() for id_ in copies}) == total
    assert all(len(set(copies)) == 1 for copies in ids.values())
