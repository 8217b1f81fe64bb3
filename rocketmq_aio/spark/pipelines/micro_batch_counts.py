"""Sums over the micro-batches of a streaming query: rows and ranges of offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rocketmq_aio.spark.offsets import Queue, Range, StreamOffset

# A duration that only batches have; progress of an idle query has the id of the next batch.
RAN: Final = "addBatch"
NO_COUNTS: Final[Mapping[str, int]] = {}


class BatchSums:
    """Adds up each batch once; call `add` often, because Spark drops the progress of old ones."""

    def __init__(self) -> None:
        self.rows = 0
        self.counted: dict[str, int] = {}  # observed counts by name
        self._last = -1
        self._read: dict[Queue, list[Range]] = {}  # several for a queue that starts over

    def add(self, progress: Iterable[Any], observed: str) -> None:
        """Add the new batches in *progress*, Spark's objects in the order of their batches.

        :param observed: the name under which the query observes its counts
        """
        for each in progress:
            if RAN in each.durationMs and each.batchId > self._last and each.sources:
                self._last = each.batchId
                self._add_batch(each.sources[0], each.observedMetrics.get(observed))

    def _add_batch(self, source: Any, counts: Any) -> None:  # noqa: ANN401 - Spark's objects
        self.rows += source.numInputRows
        for name, number in (counts.asDict() if counts is not None else NO_COUNTS).items():
            self.counted[name] = self.counted.get(name, 0) + number
        before, after = _offset(source.startOffset), _offset(source.endOffset)
        for queue, end in after.end.items():
            ranges = self._read.setdefault(queue, [])
            if ranges and queue not in after.starts:
                ranges[-1] = ranges[-1]._replace(end=end)
            else:
                start = after.start_of(queue, before)
                ranges.append(Range(*queue, end if start is None else start, end))

    @property
    def ranges(self) -> list[Range]:
        """Ranges sorted by queue; a queue that starts over has one for each log, in order."""
        return [each for queue in sorted(self._read) for each in self._read[queue]]


def _offset(text: str | None) -> StreamOffset:
    """Decode an offset of the progress; before the first batch there is none."""
    found = json.loads(text) if text else None
    return StreamOffset.from_json(found) if found else StreamOffset(at_start=True)
