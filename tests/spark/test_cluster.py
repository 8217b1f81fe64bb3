"""The connector on a standalone cluster with two workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.spark.support import write_messages

BODIES: Final = [f"order {number}" for number in range(400)]


def test_tasks_run_on_both_workers_with_the_interpreter_of_the_driver(
    cluster_session: SparkSession,
) -> None:
    def where(_: object) -> tuple[str, str]:
        return os.environ["SPARK_EXECUTOR_DIRS"], sys.executable

    found = cluster_session.sparkContext.parallelize(range(8), 8).map(where).collect()

    assert {python for _, python in found} == {sys.executable}
    assert len({folder for folder, _ in found}) == 2


def test_a_topic_is_read_and_written_by_executors(
    cluster_session: SparkSession, namesrv: str, topic: str
) -> None:
    write_messages(namesrv, topic, BODIES)
    options = {"nameServer": namesrv, "subscribe": topic, "minPartitions": "4"}
    read = cluster_session.read.format("rocketmq").options(**options).load()

    upper = read.selectExpr("upper(cast(body AS string)) AS body", "msgId AS keys")
    upper.write.format("rocketmq").options(nameServer=namesrv, topic=topic).mode("append").save()

    again = cluster_session.read.format("rocketmq").options(**options).load().collect()
    assert read.rdd.getNumPartitions() == 4
    assert sorted(bytes(row.body).decode() for row in again) == sorted(
        [*BODIES, *(body.upper() for body in BODIES)]
    )
    assert {row.keys for row in again if row.keys} == {
        row.msgId for row in again if bytes(row.body).decode() in BODIES
    }


def test_another_query_resumes_from_the_checkpoint(
    cluster_session: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    stream = (
        cluster_session.readStream.format("rocketmq")
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

    rows = cluster_session.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(BODIES)
    assert len({(row.queueId, row.queueOffset) for row in rows}) == len(BODIES)
