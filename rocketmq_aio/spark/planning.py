"""Ranges of queues -> input partitions of Spark; equal input gives equal output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options import ReadOptions


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """What one task reads, one range after the other."""

    ranges: tuple[Range, ...]


def plan(ranges: Iterable[Range], options: ReadOptions) -> list[QueuePartition]:
    """Return the partitions that cover *ranges* exactly; empty ranges are left out."""
    return [QueuePartition((each,)) for each in ranges if each.size > 0]
