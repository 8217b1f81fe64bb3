"""Tail check: offsets near the end of a queue that a broker passes over before it can read them.

A broker of 5.5.0 lists a new message of a compacted topic (``cleanup.policy=COMPACTION``) a moment
before it can read it, and cannot read the newest ones for seconds while it replaces files: a pull
without a filter passes over them (seen live).
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Final

from rocketmq_aio.model.message import MessageExt

NEW_SECONDS: Final = 10.0  # in which messages are hardly compacted
GAP_SECONDS: Final = 10.0  # then the messages of a gap are gone


class TailCheck:
    """Finds gaps in unfiltered responses that are not due to compaction.

    Those are at offsets that are new, or behind the messages of a response: brokers pass over
    compacted offsets when they look for the next message.
    """

    __slots__ = ("_end", "_gap", "_new_end", "_noted_at", "_since")

    def __init__(self) -> None:
        self._end: int | None = None  # offsets from there on are new; None: there was no response
        self._new_end = 0  # of the queue, when it was noted
        self._noted_at = 0.0
        self._gap = -1  # the first offset of the gap that is waited for
        self._since = 0.0

    def read_until(
        self, messages: Sequence[MessageExt], offset: int, next_offset: int, end: int
    ) -> int:
        """Return *next_offset*, or the first offset whose message may appear.

        :param messages: all that a broker returned from *offset* to *next_offset*
        :param end: of the queue, in the response
        """
        now = monotonic()
        if len(messages) < next_offset - offset:
            gap = self._first_gap(messages, offset, next_offset)
            if gap < next_offset and self._may_appear(gap, now):
                return gap
        if self._end is None:
            self._end, self._new_end, self._noted_at = end, end, now
        elif now - self._noted_at >= NEW_SECONDS:
            self._end, self._new_end, self._noted_at = self._new_end, end, now
        return next_offset

    def _first_gap(self, messages: Sequence[MessageExt], offset: int, next_offset: int) -> int:
        gap = next_offset if self._end is None else max(offset, self._end)
        for message in messages:
            if message.queue_offset > gap:
                return gap
            if message.queue_offset == gap:
                gap += 1
        return min(gap, messages[-1].queue_offset + 1 if messages else offset)

    def _may_appear(self, gap: int, now: float) -> bool:
        if gap != self._gap:
            self._gap, self._since = gap, now
        return now - self._since < GAP_SECONDS
