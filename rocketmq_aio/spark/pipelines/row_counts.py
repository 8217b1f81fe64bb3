"""Row counts of queues, compared with the offsets that were read, and reasons of gaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Final

from pyspark.sql import DataFrame, Window, functions as F

from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.static_topics import is_logical
from rocketmq_aio.spark.offsets import Queue, Range
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.summary import Gap, QueueCount
from rocketmq_aio.spark.runtime import Runtime

MAX_GAPS: Final = 1000
QUEUE: Final = ["topic", "brokerName", "queueId"]
PLACE: Final = "topic string, brokerName string, queueId int"


def count_rows(rows: DataFrame, ranges: Iterable[Range]) -> list[QueueCount]:
    """Count the rows in each of *ranges*; gaps have no reasons yet."""
    expected = list(ranges)
    arrived = _select_ranges(rows, expected)
    counts = dict.fromkeys((each.queue for each in expected), (0, 0)) | _rows_and_offsets(arrived)
    short = [each for each in expected if counts[each.queue][1] < each.size]
    gaps = _gaps(arrived, short) if short else {}
    return [_count(each, *counts[each.queue], gaps.get(each.queue, [])) for each in expected]


def _select_ranges(rows: DataFrame, ranges: list[Range]) -> DataFrame:
    """Return the coordinates of the rows that are in one of *ranges*."""
    table = rows.sparkSession.createDataFrame(
        [(*each.queue, each.start, each.end) for each in ranges],
        f"{PLACE}, startOffset long, endOffset long",
    )
    inside = "queueOffset >= startOffset AND queueOffset < endOffset"
    return rows.select(*QUEUE, "queueOffset").join(F.broadcast(table), QUEUE).where(inside)


def _rows_and_offsets(arrived: DataFrame) -> dict[Queue, tuple[int, int]]:
    """Return the numbers of rows and of distinct offsets by queue."""
    offsets = arrived.groupBy(*QUEUE, "queueOffset").agg(F.count(F.lit(1)).alias("copies"))
    sums = offsets.groupBy(*QUEUE).agg(F.sum("copies"), F.count(F.lit(1)))
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in sums.collect()}


def _count(each: Range, rows: int, offsets: int, gaps: list[Gap]) -> QueueCount:
    repeated = rows - offsets
    return replace(QueueCount.of(each), rows=offsets, repeated=repeated, gaps=tuple(gaps))


def _gaps(arrived: DataFrame, short: list[Range]) -> dict[Queue, list[Gap]]:
    """Return missing offsets by queue: before the first row, between rows and after the last."""
    edges = arrived.sparkSession.createDataFrame(
        [(*each.queue, offset) for each in short for offset in (each.start - 1, each.end)],
        f"{PLACE}, queueOffset long",
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


def explain_gaps(connection: Connection, counts: Iterable[QueueCount]) -> list[QueueCount]:
    """Look up the reasons of gaps: messages that brokers no longer hold are not lost here.

    If a request to a broker fails, the gaps of its queues keep no reason.
    """
    runtime, counts = Runtime.get(connection), list(counts)
    if sum(len(each.gaps) for each in counts) >= MAX_GAPS:  # there may be more
        counts = mark_sparse(connection, counts)
    consumer = runtime.pull_consumer()
    return [runtime.call(_explain, consumer, each) if each.gaps else each for each in counts]


def mark_sparse(connection: Connection, counts: Iterable[QueueCount]) -> list[QueueCount]:
    """Look up which queues have offsets without a message; none if their broker does not answer."""
    runtime, found = Runtime.get(connection), dict[str | MessageQueue, bool]()
    marked = []
    for each in counts:
        queue = MessageQueue(each.topic, each.broker, each.queue_id)
        key = queue if is_logical(queue) else each.topic
        if key not in found:
            found[key] = runtime.call(_is_sparse, runtime.pulls(), queue)
        marked.append(replace(each, sparse=found[key]))
    return marked


async def _is_sparse(pulls: RawPulls, queue: MessageQueue) -> bool:
    try:
        await pulls.learn_route(queue.topic)
        settings = await pulls.topic_settings(queue)
    except RocketMQError:
        return False
    return settings.is_compacted or len(settings.part_starts) > 1


async def _explain(consumer: PullConsumer, count: QueueCount) -> QueueCount:
    queue = MessageQueue(count.topic, count.broker, count.queue_id)
    try:
        begin = await consumer.min_offset(queue)
        parts = chain.from_iterable(split_gap(gap, begin) for gap in count.gaps)
        gaps = tuple([await _gap_reason(consumer, queue, part) for part in parts])
    except RocketMQError:
        return count
    return replace(count, gaps=gaps)


def split_gap(gap: Gap, begin: int) -> list[Gap]:
    """Split *gap* at *begin*, the first offset of the queue: messages before it were deleted."""
    reason = f"deleted by the broker: the queue begins at {begin} now"
    if gap.end <= begin:
        return [replace(gap, reason=reason)]
    if gap.start >= begin:
        return [gap]
    return [Gap(start=gap.start, end=begin, reason=reason), replace(gap, start=begin)]


async def _gap_reason(consumer: PullConsumer, queue: MessageQueue, gap: Gap) -> Gap:
    """Add a reason if the next message of the broker is behind the gap."""
    if gap.reason is not None:
        return gap
    result = await consumer.pull(queue, gap.start, 1)
    if result.status is PullStatus.OFFSET_RESET:  # does not say what the gap holds
        return gap
    found = result.status is PullStatus.FOUND
    following = result.messages[0].queue_offset if found else result.next_offset
    if following < gap.end:
        return gap
    return replace(gap, reason=f"the broker holds no message from {gap.start} to {gap.end - 1}")


def count_problems(counts: Iterable[QueueCount], *, filtered: bool) -> list[str]:
    """Return a text for each queue with repeated or, unless *filtered*, missing rows."""
    found = []
    for each in counts:
        queue = f"{each.topic}/{each.broker}/{each.queue_id}"
        if each.repeated:
            found.append(f"{queue}: {each.repeated} rows are there more than once")
        if each.unexplained and not filtered:
            found.append(f"{queue}: {each.unexplained} of {each.offsets} messages are missing")
    return found
