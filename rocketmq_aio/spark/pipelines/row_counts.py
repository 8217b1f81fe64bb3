"""Rows that arrived, beside the offsets they came from: what proves that nothing is missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it

from rocketmq_aio.spark.offsets import Queue, Range
from rocketmq_aio.spark.pipelines.summary import Gap, QueueCount

MAX_GAPS: Final = 1000
QUEUE: Final = ["topic", "brokerName", "queueId"]
RANGES: Final = "topic string, brokerName string, queueId int, startOffset long, endOffset long"


def count(rows: DataFrame, ranges: Iterable[Range]) -> list[QueueCount]:
    """Count, for each of *ranges*, the rows whose offset is in it; gaps are not yet explained."""
    wanted = list(ranges)
    arrived = _within(rows, wanted)
    counts = _counts(arrived)
    found = [_count(each, *counts.get(each.queue, (0, 0))) for each in wanted]
    short = [each for each in wanted if counts.get(each.queue, (0, 0))[1] < each.size]
    gaps = _gaps(arrived, short) if short else {}
    return [replace(c, gaps=tuple(gaps.get((c.topic, c.broker, c.queue_id), ()))) for c in found]


def _within(rows: DataFrame, ranges: list[Range]) -> DataFrame:
    """Return the coordinates of those rows that are in one of *ranges*."""
    table = rows.sparkSession.createDataFrame([tuple(each) for each in ranges], RANGES)
    inside = (F.col("queueOffset") >= F.col("startOffset")) & (
        F.col("queueOffset") < F.col("endOffset")
    )
    return rows.select(*QUEUE, "queueOffset").join(F.broadcast(table), QUEUE).where(inside)


def _counts(arrived: DataFrame) -> dict[Queue, tuple[int, int]]:
    """Return rows and different offsets by queue."""
    offsets = arrived.groupBy(*QUEUE, "queueOffset").agg(F.count(F.lit(1)).alias("copies"))
    sums = offsets.groupBy(*QUEUE).agg(F.sum("copies"), F.count(F.lit(1)))
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in sums.collect()}


def _count(each: Range, rows: int, offsets: int) -> QueueCount:
    return replace(QueueCount.of(each), rows=offsets, repeated=rows - offsets)


def _gaps(arrived: DataFrame, short: list[Range]) -> dict[Queue, list[Gap]]:
    """Return where offsets are missing, by queue: before, between and after what is there."""
    edges = arrived.sparkSession.createDataFrame(
        [(*each.queue, offset) for each in short for offset in (each.start - 1, each.end)],
        "topic string, brokerName string, queueId int, queueOffset long",
    )
    queues = edges.select(*QUEUE).distinct()
    points = arrived.select(*QUEUE, "queueOffset").join(F.broadcast(queues), QUEUE).union(edges)
    before = F.lag("queueOffset").over(Window.partitionBy(*QUEUE).orderBy("queueOffset"))
    steps = points.withColumn("before", before).where("queueOffset - before > 1")
    found: dict[Queue, list[Gap]] = {}
    for row in steps.orderBy(*QUEUE, "queueOffset").limit(MAX_GAPS).collect():
        gap = Gap(start=row["before"] + 1, end=row["queueOffset"])
        found.setdefault((row["topic"], row["brokerName"], row["queueId"]), []).append(gap)
    return found
