"""What the micro-batches of a query came to: rows, and the offsets that they were read from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rocketmq_aio.spark.offsets import Queue, Range, StreamOffset

# A duration of batches that ran; progress of an idle query has the id of the batch to come.
RAN: Final = "addBatch"
NO_COUNTS: Final[Mapping[str, int]] = {}


class Batches:
    """Adds up batches as their progress becomes known, each once; Spark forgets old ones."""

    def __init__(self) -> None:
        self.rows = 0
        self.counted: dict[str, int] = {}  # what was observed, by its name
        self._last = -1
        self._read: dict[Queue, list[Range]] = {}  # of a queue that starts over, several

    def add(self, progress: Iterable[Any], observed: str) -> None:
        """Take what is new in *progress*: objects of Spark, in the order of their batches.

        :param observed: the name under which the query observes its counts
        """
        for each in progress:
            if RAN in each.durationMs and each.batchId > self._last and each.sources:
                self._last = each.batchId
                self._take(each.sources[0], each.observedMetrics.get(observed))

    def _take(self, source: Any, counts: Any) -> None:  # noqa: ANN401 - Spark's own, and rows
        self.rows += source.numInputRows
        for name, number in (counts.asDict() if counts is not None else NO_COUNTS).items():
            self.counted[name] = self.counted.get(name, 0) + number
        before, after = _offset(source.startOffset), _offset(source.endOffset)
        for queue, end in after.end.items():
            ranges = self._read.setdefault(queue, [])
            if ranges and queue not in after.begun:
                ranges[-1] = ranges[-1]._replace(end=end)
            else:
                start = after.start_of(queue, before)
                ranges.append(Range(*queue, end if start is None else start, end))

    @property
    def ranges(self) -> list[Range]:
        """What was read, sorted by queue; of each log of a queue one range, in their order."""
        return [each for queue in sorted(self._read) for each in self._read[queue]]


def _offset(text: str | None) -> StreamOffset:
    """Read what Spark shows of an offset; before the first batch that is nothing."""
    found = json.loads(text) if text else None
    return StreamOffset.from_json(found) if found else StreamOffset(at_start=True)
