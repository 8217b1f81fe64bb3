"""What a pipeline did, so that anybody can check that nothing is missing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rocketmq_aio.spark.offsets import Range


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Offsets that were to be read and of which no row came.

    :ivar start: the first one; *end* is the one after the last
    :ivar reason: why that is right; None: nobody knows, so rows are missing
    """

    start: int
    end: int
    reason: str | None = None

    @property
    def size(self) -> int:
        """How many offsets it covers."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class QueueCount:
    """Rows of one queue, beside the offsets that they came from.

    :ivar rows: different offsets that arrived; None: not counted queue by queue
    :ivar repeated: rows beyond those, with an offset that is there already
    :ivar gaps: where rows are missing; the first thousand of a run
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    rows: int | None = None
    repeated: int = 0
    gaps: tuple[Gap, ...] = ()

    @property
    def offsets(self) -> int:
        """How many messages there are at most."""
        return self.end - self.start

    @property
    def unexplained(self) -> int:
        """How many offsets have no row, and no reason either."""
        if self.rows is None:
            return 0
        known = sum(gap.size for gap in self.gaps if gap.reason is not None)
        return self.offsets - self.rows - known

    @classmethod
    def of(cls, each: Range) -> QueueCount:
        """Return the count of a queue of which nothing was read yet."""
        topic, broker, queue_id, start, end = each
        return cls(topic=topic, broker=broker, queue_id=queue_id, start=start, end=end)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What every pipeline tells.

    :ivar dry_run: nothing was read or written; the queues show what would be
    :ivar interrupted: it was stopped before its end
    :ivar problems: why the result does not add up, a sentence each
    """

    pipeline: str
    dry_run: bool = False
    interrupted: bool = False
    queues: tuple[QueueCount, ...] = ()
    seconds: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def offsets(self) -> int:
        """How many messages were to be read at most."""
        return sum(each.offsets for each in self.queues)

    @property
    def complete(self) -> bool:
        """Whether everything that was to be done is done, and was counted."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON knows."""
        return {**dataclasses.asdict(self), "offsets": self.offsets, "complete": self.complete}
