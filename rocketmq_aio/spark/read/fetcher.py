"""Fetcher: pulls ranges of queues with many requests in flight and returns results in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Final, NamedTuple

import anyio

from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.consumer.pull.result import PullStatus, RawPull
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.data_loss import Extent
from rocketmq_aio.spark.read.retrying_puller import (
    FIRST_SEGMENT,
    MAX_SEGMENT,
    IsGone,
    QueueGoneError,
    RangeCursor,
    RetryingPuller,
    cursor_of,
    is_cut,
    is_filtered,
)

READ_AHEAD: Final = 2  # times the window: segments that may start before the first one is complete
MAX_BUFFERED_BYTES: Final = 16 * 1024 * 1024  # in results that wait for an earlier one
CHUNK_BYTES: Final = 256 * 1024
CHUNK_RESULTS: Final = 64
MAX_QUEUED_CHUNKS: Final = 4  # waiting for the thread of the task


class FetchedMessages(NamedTuple):
    """Stored messages in *body*; only those from *start* to *end* (excluded) are wanted."""

    cursor: RangeCursor
    start: int
    end: int
    body: bytes
    offset_delta: int
    extent: Extent


class MissingOffsets(NamedTuple):
    """The offsets from *start* to *end* (excluded) do not exist any more."""

    cursor: RangeCursor
    start: int
    end: int
    extent: Extent
    was_cut: bool  # the queue ends below them
    resumes_at: int  # where the broker continues


FetchResult = FetchedMessages | MissingOffsets
Chunk = list[FetchResult]


@dataclass(eq=False)
class _Segment:
    """Offsets of a range that one worker pulls in order."""

    cursor: RangeCursor
    start: int
    end: int
    results: Chunk = field(default_factory=list)  # not delivered yet
    done: bool = False
    error: RocketMQError | None = None
    updated: asyncio.Event = field(default_factory=asyncio.Event)


class Fetcher:
    """Fetches *ranges* in order with up to ``pullWindow`` pulls in flight.

    Runs on the loop; the thread of the task calls only `chunks`.
    """

    def __init__(
        self, pulls: RawPulls, ranges: Sequence[Range], options: ReadOptions, is_gone: IsGone
    ) -> None:
        self._pulls = RetryingPuller(pulls, options, is_gone)
        self._options = options
        self._cursors = [cursor_of(each, options) for each in ranges if each.size > 0]
        self._current = 0
        self._segments: deque[_Segment] = deque()  # started and not delivered, in order
        self._buffered_bytes = 0
        self._changed = asyncio.Event()
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._chunk_permits = asyncio.Semaphore(MAX_QUEUED_CHUNKS)
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- the thread of the task -------------------------------------------------------------------

    def chunks(self) -> Iterator[Chunk]:
        """Yield the results in order until `finish`; blocks."""
        while (chunk := self._chunks.get()) is not None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._chunk_permits.release)
            yield chunk

    def finish(self) -> None:
        """Let `chunks` end after the queued results."""
        self._chunks.put(None)

    # --- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch all ranges; `ReadError`, after the earlier results, if a queue cannot be read."""
        self._loop = asyncio.get_running_loop()
        # If foreign code cancels a worker, the group swallows it and cancels the rest.
        failure: BaseException | None = asyncio.CancelledError()
        total = sum(cursor.wanted.size for cursor in self._cursors)
        async with anyio.create_task_group() as tasks:
            for _ in range(min(self._options.pull_window, -(-total // FIRST_SEGMENT))):
                tasks.start_soon(self._run_worker)
            try:
                await self._deliver()
                failure = None
            except RocketMQError as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def refetch(self, cursor: RangeCursor, start: int, end: int) -> Chunk:
        """Fetch the offsets of a response again that was decoded only in part."""
        segment = _Segment(replace(cursor, position=cursor.wanted.end), start, end)
        while start < end:
            start = await self._pull_once(segment, start)
        self._buffered_bytes -= size_of(segment.results)
        return segment.results

    async def _run_worker(self) -> None:
        while (segment := await self._next_segment()) is not None:
            try:
                await self._pull_segment(segment)
            except RocketMQError as error:
                segment.error = error
            segment.done = True
            segment.updated.set()

    async def _next_segment(self) -> _Segment | None:
        most, segments = READ_AHEAD * self._options.pull_window, self._segments
        while segments and (len(segments) >= most or self._buffered_bytes >= MAX_BUFFERED_BYTES):
            self._changed.clear()
            await self._changed.wait()
        while self._current < len(self._cursors):
            cursor = self._cursors[self._current]
            if cursor.position < cursor.wanted.end:
                end = min(cursor.position + cursor.segment_size, cursor.wanted.end)
                segment = _Segment(cursor, cursor.position, end)
                cursor.position = end
                self._segments.append(segment)
                self._changed.set()
                return segment
            self._current += 1
        self._changed.set()
        return None

    async def _deliver(self) -> None:
        """Pass the results to the thread of the task, in order."""
        chunk: Chunk = []
        size = 0
        while (segment := await self._first_updated()) is not None:
            results, segment.results = segment.results, []
            chunk += results
            gained = size_of(results)
            size += gained
            self._buffered_bytes -= gained
            if segment.done:
                self._segments.popleft()
            self._changed.set()
            if size >= CHUNK_BYTES or len(chunk) >= CHUNK_RESULTS or segment.error is not None:
                await self._put_chunk(chunk)
                chunk, size = [], 0
            if segment.error is not None:
                raise segment.error
        await self._put_chunk(chunk)

    async def _first_updated(self) -> _Segment | None:
        """Return the first segment as soon as it has results or is done; None at the end."""
        while not self._segments:
            if self._current >= len(self._cursors):
                return None
            self._changed.clear()
            await self._changed.wait()
        segment = self._segments[0]
        while not segment.results and not segment.done:
            segment.updated.clear()
            await segment.updated.wait()
        return segment

    async def _put_chunk(self, chunk: Chunk) -> None:
        if chunk:
            await self._chunk_permits.acquire()
            self._chunks.put(chunk)

    # --- one segment ------------------------------------------------------------------------------

    async def _pull_segment(self, segment: _Segment) -> None:
        """Pull until the segment is complete."""
        at = segment.start
        while at < segment.end:
            while self._buffered_bytes >= MAX_BUFFERED_BYTES and segment is not self._segments[0]:
                self._changed.clear()
                await self._changed.wait()
            at = await self._pull_once(segment, at)
            segment.updated.set()

    async def _pull_once(self, segment: _Segment, at: int) -> int:
        """Pull once at offset *at* and return the next offset."""
        count = min(self._options.pull_batch_size, segment.end - at)
        try:
            response = await self._pulls.pull(segment.cursor, at, count)
        except QueueGoneError:
            end = segment.cursor.wanted.end
            return self._skip(segment, at, end, lost=end, extent=Extent(0, 0), was_cut=True)
        return self._add_response(segment, at, count, response)

    def _add_response(self, segment: _Segment, at: int, count: int, response: RawPull) -> int:
        """Add *response* to the segment and return the next offset."""
        cursor, reached = segment.cursor, response.next_offset
        extent = Extent(response.min_offset, response.max_offset)
        if response.status is PullStatus.FOUND:
            if reached > segment.end == cursor.position:  # no other segment follows: extend it
                segment.end = cursor.position = min(reached, cursor.wanted.end)
            end = min(reached, segment.end)
            body, delta = response.body, response.offset_delta
            segment.results.append(FetchedMessages(cursor, at, end, body, delta, extent))
            self._buffered_bytes += len(response.body)
            cursor.adapt(count, reached - at)
            return end
        was_cut = is_cut(response, at)
        if was_cut:
            reached = cursor.wanted.end
        filtered = response.status is PullStatus.NO_MATCH and is_filtered(cursor.subscription)
        lost = min(reached, extent.minimum) if filtered else reached
        return self._skip(segment, at, reached, lost=lost, extent=extent, was_cut=was_cut)

    def _skip(
        self, segment: _Segment, at: int, reached: int, *, lost: int, extent: Extent, was_cut: bool
    ) -> int:
        """Continue at *reached*; offsets below *lost* are missing, also beyond the segment."""
        cursor = segment.cursor
        for start, most in ((at, segment.end), (cursor.position, cursor.wanted.end)):
            if (end := min(lost, most)) > start:
                missing = MissingOffsets(cursor, start, end, extent, was_cut, reached)
                segment.results.append(missing)
        cursor.position = max(cursor.position, min(reached, cursor.wanted.end))
        cursor.segment_size = min(max(cursor.segment_size, reached - at), MAX_SEGMENT)
        return min(reached, segment.end)


def size_of(results: Chunk) -> int:
    """Return the size of the bodies in *results*."""
    return sum([len(each.body) for each in results if isinstance(each, FetchedMessages)])
