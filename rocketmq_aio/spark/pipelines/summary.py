"""Summaries and progress reports of pipelines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from rocketmq_aio.spark.offsets import Range


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Offsets of a range without rows.

    :ivar start: the first offset; *end* is exclusive
    :ivar reason: why there are no rows; None: unknown, so rows are missing
    """

    start: int
    end: int
    reason: str | None = None

    @property
    def size(self) -> int:
        """Number of offsets in the gap."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class QueueCount:
    """Rows of one queue, and the offsets that were read.

    :ivar rows: number of distinct offsets that arrived; None: not counted by queue
    :ivar repeated: number of further rows, whose offsets are there already
    :ivar gaps: missing rows; limited to 1000 gaps per run
    :ivar sparse: offsets without a message are normal, because the topic is compacted or a static
        queue was moved: of missing rows only those in *gaps* without a reason are a loss
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    rows: int | None = None
    repeated: int = 0
    gaps: tuple[Gap, ...] = ()
    sparse: bool = False

    @property
    def offsets(self) -> int:
        """Number of offsets, the maximum of messages."""
        return self.end - self.start

    @property
    def unexplained(self) -> int:
        """Number of offsets with neither a row nor a reason."""
        if self.rows is None:
            return 0
        if self.sparse:
            return sum(gap.size for gap in self.gaps if gap.reason is None)
        known = sum(gap.size for gap in self.gaps if gap.reason is not None)
        return self.offsets - self.rows - known

    @classmethod
    def of(cls, each: Range) -> QueueCount:
        """Return the count of a range that has not been read."""
        topic, broker, queue_id = each.queue
        return cls(topic=topic, broker=broker, queue_id=queue_id, start=each.start, end=each.end)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Result of a pipeline.

    :ivar dry_run: nothing was written or sent; the queues show what would be read
    :ivar interrupted: the pipeline was stopped before its end
    :ivar problems: why the counts do not add up, one sentence each
    """

    pipeline: str
    dry_run: bool = False
    interrupted: bool = False
    queues: tuple[QueueCount, ...] = ()
    seconds: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def offsets(self) -> int:
        """Number of offsets of all queues, the maximum of messages."""
        return sum(each.offsets for each in self.queues)

    @property
    def complete(self) -> bool:
        """Whether the pipeline finished and its counts add up."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as values for JSON."""
        return {**dataclasses.asdict(self), "offsets": self.offsets, "complete": self.complete}


class Report(Protocol):
    """Callback for the progress of a pipeline; called from any thread, until it raises."""

    def __call__(self, step: str, done: int, total: int, /) -> None:
        """Receive that *done* of *total* parts of *step* are done; the total may grow."""


def no_report(step: str, done: int, total: int) -> None:
    """Ignore progress."""
