"""Input partitions of Spark, planned deterministically from ranges of queues.

A task costs as much as reading about ten thousand rows, so small ranges share one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from rocketmq_aio.spark.offsets import Range, StreamOffset
from rocketmq_aio.spark.options.source_options import ReadOptions


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """The ranges that one task reads, in this order."""

    ranges: tuple[Range, ...]


def plan(ranges: Iterable[Range], options: ReadOptions) -> list[QueuePartition]:
    """Return partitions that cover *ranges*; ``maxPartitions`` overrides the maximum of records."""
    pieces = sorted(each for each in ranges if each.size > 0)
    if not pieces:
        return []
    if (most := options.max_records_per_partition) is not None:
        pieces = [part for piece in pieces for part in _split(piece, -(-piece.size // most))]
    pieces = _split_to(pieces, options.min_partitions or 1)
    tasks = _pack(pieces, options)
    return [QueuePartition(tuple(sorted(task))) for task in sorted(tasks)]


def plan_between(
    start: StreamOffset, end: StreamOffset, options: ReadOptions
) -> list[QueuePartition]:
    """Return the partitions of a micro-batch; a pure function of its two offsets."""
    starts = {queue: end.start_of(queue, start) for queue in end.end}
    known = ((queue, at) for queue, at in starts.items() if at is not None)
    ranges = (Range(*queue, at, end.end[queue], end.mark_of(queue)) for queue, at in known)
    return plan(ranges, options)


def _split_to(pieces: list[Range], wanted: int) -> list[Range]:
    """Split into at least *wanted* ranges; the range with the largest parts first."""
    heap = [(-piece.size, piece, 1) for piece in pieces]  # largest part first, whole, parts
    heapq.heapify(heap)
    for _ in range(wanted - len(pieces)):
        largest, piece, count = heap[0]
        if largest >= -1:
            break  # one offset each
        heapq.heapreplace(heap, (-piece.size // (count + 1), piece, count + 1))
    return [part for _, piece, count in heap for part in _split(piece, count)]


def _split(piece: Range, count: int) -> list[Range]:
    bounds = [piece.start + piece.size * at // count for at in range(count + 1)]
    return [piece._replace(start=start, end=end) for start, end in pairwise(bounds)]


def _pack(pieces: list[Range], options: ReadOptions) -> list[list[Range]]:
    least = options.min_records_per_partition
    if options.max_records_per_partition is not None:
        least = min(least, options.max_records_per_partition)
    total = sum(piece.size for piece in pieces)
    count = max(options.min_partitions or 1, -(-total // least))
    count = min(count, options.max_partitions or count)
    if len(pieces) <= count:
        return [[piece] for piece in pieces]
    by_broker: dict[str, list[Range]] = {}
    for piece in pieces:
        by_broker.setdefault(piece.broker, []).append(piece)
    if count < len(by_broker):
        return _fill(pieces, count, options)
    shares = _shares(by_broker, count)
    return [task for broker, n in shares.items() for task in _fill(by_broker[broker], n, options)]


def _shares(by_broker: dict[str, list[Range]], count: int) -> dict[str, int]:
    """Give each broker one task, then one more to the broker with most offsets per task."""
    sizes = {broker: sum(piece.size for piece in held) for broker, held in by_broker.items()}
    shares = dict.fromkeys(by_broker, 1)
    for _ in range(count - len(by_broker)):
        open_ones = [broker for broker, n in shares.items() if n < len(by_broker[broker])]
        shares[max(open_ones, key=lambda broker: sizes[broker] / shares[broker])] += 1
    return shares


def _fill(pieces: list[Range], count: int, options: ReadOptions) -> list[list[Range]]:
    """Put each range, the largest first, into the task with the fewest offsets."""
    most = options.max_records_per_partition if options.max_partitions is None else None
    tasks: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(count)]
    for piece in sorted(pieces, key=lambda each: (-each.size, each)):
        size, number, ranges = tasks[0]  # distinct numbers: ranges are not compared
        if most is not None and size + piece.size > most:
            heapq.heappush(tasks, (piece.size, len(tasks), [piece]))
        else:
            ranges.append(piece)
            heapq.heapreplace(tasks, (size + piece.size, number, ranges))
    return [ranges for _, _, ranges in tasks]
