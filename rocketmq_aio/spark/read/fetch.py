"""Pulls ranges of queues with many requests in flight, and hands the answers over in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
    FIRST_STEP,
    LONGEST_STEP,
    Brokers,
    Part,
    RetryingPuller,
    TopicDeletedError,
    filters,
    part_of,
)

AHEAD: Final = 2  # times the window: steps that may be taken before the first of them is done
HELD_BYTES: Final = 16 * 1024 * 1024  # of answers that wait for an earlier one
CHUNK_BYTES: Final = 256 * 1024
CHUNK_ANSWERS: Final = 64
CHUNKS: Final = 4  # that wait for the thread of the task


class Found(NamedTuple):
    """Stored messages; those from *start* up to, but without, *end* are meant."""

    part: Range
    start: int
    end: int
    body: bytes
    offset_delta: int
    extent: Extent


class Gone(NamedTuple):
    """Nobody has the offsets from *start* up to, but without, *end*."""

    part: Range
    start: int
    end: int
    extent: Extent
    was_cut: bool  # the queue ends before them


Piece = Found | Gone
Chunk = list[Piece]


@dataclass(eq=False)
class _Step:
    """Offsets of a part that are asked for one after the other."""

    part: Part
    start: int
    end: int
    pieces: Chunk = field(default_factory=list)  # found, and not handed over yet
    done: bool = False
    error: RocketMQError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Fetch:
    """Reads *ranges* one after the other, with up to ``pullWindow`` pulls in flight.

    It lives on the loop; only the `chunks` are taken by the thread of the task.
    """

    def __init__(
        self, pulls: RawPulls, ranges: Sequence[Range], options: ReadOptions, registered: Brokers
    ) -> None:
        self._pulls = RetryingPuller(pulls, options, registered)
        self._options = options
        self._parts = [part_of(each, options) for each in ranges if each.size > 0]
        self._current = 0
        self._steps: deque[_Step] = deque()  # taken and not handed over, in order
        self._held = 0
        self._changed = asyncio.Event()
        self._ready: SimpleQueue[Chunk | None] = SimpleQueue()
        self._room = asyncio.Semaphore(CHUNKS)
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- the thread of the task -----------------------------------------------------------------

    def chunks(self) -> Iterator[Chunk]:
        """Yield the answers in order, as they come; blocks.  `end` ends it."""
        while (chunk := self._ready.get()) is not None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._room.release)
            yield chunk

    def end(self) -> None:
        """Let `chunks` end after what is there."""
        self._ready.put(None)

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch everything.

        :raises ReadError: a queue cannot be read; what came before it was handed over
        """
        self._loop = asyncio.get_running_loop()
        failure: RocketMQError | None = None
        total = sum(part.wanted.size for part in self._parts)
        async with anyio.create_task_group() as tasks:
            for _ in range(min(self._options.pull_window, -(-total // FIRST_STEP))):
                tasks.start_soon(self._work)
            try:
                await self._hand_over()
            except RocketMQError as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def again(self, wanted: Range, start: int, end: int) -> Chunk:
        """Fetch offsets once more, of which an answer could be read in part only."""
        part = part_of(wanted, self._options)
        part.cursor = wanted.end
        step = _Step(part, start, end)
        while start < end:
            start = await self._advance(step, start)
        self._held -= size_of(step.pieces)
        return step.pieces

    async def _work(self) -> None:
        while (step := await self._take()) is not None:
            try:
                await self._fill(step)
            except RocketMQError as error:
                step.error = error
            step.done = True
            step.news.set()

    async def _take(self) -> _Step | None:
        while self._is_far_ahead():
            self._changed.clear()
            await self._changed.wait()
        while self._current < len(self._parts):
            part = self._parts[self._current]
            if part.cursor < part.wanted.end:
                end = min(part.cursor + part.step, part.wanted.end)
                step = _Step(part, part.cursor, end)
                part.cursor = end
                self._steps.append(step)
                self._changed.set()
                return step
            self._current += 1
        self._changed.set()
        return None

    def _is_far_ahead(self) -> bool:
        if not self._steps:
            return False
        return len(self._steps) >= AHEAD * self._options.pull_window or self._held >= HELD_BYTES

    async def _hand_over(self) -> None:
        """Give what is found to the thread, in order."""
        chunk: Chunk = []
        size = 0
        while (step := await self._next()) is not None:
            pieces, step.pieces = step.pieces, []
            chunk += pieces
            gained = size_of(pieces)
            size += gained
            self._held -= gained
            if step.done:
                self._steps.popleft()
            self._changed.set()
            if size >= CHUNK_BYTES or len(chunk) >= CHUNK_ANSWERS or step.error is not None:
                await self._put(chunk)
                chunk, size = [], 0
            if step.error is not None:
                raise step.error
        await self._put(chunk)

    async def _next(self) -> _Step | None:
        """Return the first step when there is something new of it; None at the end."""
        while not self._steps:
            if self._current >= len(self._parts):
                return None
            self._changed.clear()
            await self._changed.wait()
        step = self._steps[0]
        while not step.pieces and not step.done:
            step.news.clear()
            await step.news.wait()
        return step

    async def _put(self, chunk: Chunk) -> None:
        if chunk:
            await self._room.acquire()
            self._ready.put(chunk)

    # --- one step -------------------------------------------------------------------------------

    async def _fill(self, step: _Step) -> None:
        """Ask until nothing of the step is left."""
        at = step.start
        while at < step.end:
            while self._held >= HELD_BYTES and step is not self._steps[0]:
                self._changed.clear()
                await self._changed.wait()
            at = await self._advance(step, at)
            step.news.set()

    async def _advance(self, step: _Step, at: int) -> int:
        """Ask once for what is at *at*, and return where to go on."""
        count = min(self._options.pull_batch_size, step.end - at)
        try:
            answer = await self._pulls.progress(step.part, at, count)
        except TopicDeletedError:
            end = step.part.wanted.end
            return self._skip(step, at, end, lost=end, extent=Extent(0, 0), was_cut=True)
        return self._took(step, at, count, answer)

    def _took(self, step: _Step, at: int, count: int, answer: RawPull) -> int:
        """Enter *answer* in the step, and return where to go on."""
        part, reached = step.part, answer.next_offset
        extent = Extent(answer.min_offset, answer.max_offset)
        if answer.status is PullStatus.FOUND:
            self._lengthen(step, reached)
            end = min(reached, step.end)
            step.pieces.append(
                Found(part.wanted, at, end, answer.body, answer.offset_delta, extent)
            )
            self._held += len(answer.body)
            part.learn(count, reached - at)
            return end
        illegal = answer.status is PullStatus.OFFSET_ILLEGAL
        was_cut = illegal and reached < at
        if was_cut:
            reached = part.wanted.end
        skipped = filters(part.subscription) and not illegal
        lost = min(reached, extent.minimum) if skipped else reached
        return self._skip(step, at, reached, lost=lost, extent=extent, was_cut=was_cut)

    def _skip(
        self, step: _Step, at: int, reached: int, *, lost: int, extent: Extent, was_cut: bool
    ) -> int:
        """Go on at *reached*, also with what nobody asked for yet; up to *lost* there was more."""
        part = step.part
        for start, most in ((at, step.end), (part.cursor, part.wanted.end)):
            if (end := min(lost, most)) > start:
                step.pieces.append(Gone(part.wanted, start, end, extent, was_cut))
        part.cursor = max(part.cursor, min(reached, part.wanted.end))
        part.step = min(max(part.step, reached - at), LONGEST_STEP)
        return min(reached, step.end)

    def _lengthen(self, step: _Step, reached: int) -> None:
        """Let the step have what was answered beyond it, if nobody else asked for that yet."""
        part = step.part
        if reached > step.end == part.cursor:
            step.end = part.cursor = min(reached, part.wanted.end)


def size_of(pieces: Chunk) -> int:
    """Return how many bytes wait in *pieces*."""
    return sum([len(each.body) for each in pieces if isinstance(each, Found)])
