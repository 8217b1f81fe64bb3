"""The loops every Python subject is measured with, and the lines they tell the runner.

A subject prints ``START`` when the measured window opens and ``STOP`` when it closes: the runner
samples the broker's CPU time at those lines.  ``RESULT {json}`` follows, computed after the window.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

SETTLE_SECONDS: Final = 20.0  # operations in flight when the window closes end within this
TAG_ONLY: Final = {"TAGS": "TagA"}
KEY: Final = "order-1234567"
TRACE: Final = {"traceId": "4bf92f3577b34da6a3ce929d0e0e4736"}
REPORTED_ERRORS: Final = 3
MAX_ERRORS: Final = 1000  # beyond this the run is invalid, and may never yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One workload, as the runner ordered it.

    *rich* messages carry keys and a property of the user beside the tag; *total* is the size of a
    backlog that is consumed once, 0 for one without end; *rate* is in messages a second.
    """

    namesrv: str
    topic: str
    in_flight: int = 1
    batch: int = 1
    body_bytes: int = 1024
    warmup_seconds: float = 1.0
    seconds: float = 4.0
    total: int = 0
    pull_batch: int = 32
    handler_batch: int = 1
    rate: int = 0
    rich: bool = False

    def body(self) -> bytes:
        """Return letters that do not repeat, the same in every process."""
        return bytes(random.Random(1).choices(b"abcdefghijklmnop", k=self.body_bytes))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell_result(**values: float) -> None:
    say("RESULT " + json.dumps(values))


class Window:
    """The measured time; what it took of this process, read from the kernel at both its ends."""

    def __init__(self) -> None:
        self._started = self._cpu = 0.0
        self.figures: dict[str, float] = {}

    def open(self) -> None:
        say("START")
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def close(self) -> None:
        cpu, seconds = time.process_time() - self._cpu, time.perf_counter() - self._started
        self.figures = {"seconds": seconds, "cpu_seconds": cpu, **_memory()}
        say("STOP")


def _memory() -> dict[str, float]:
    """Return what this process holds and the most it held, in MiB."""
    names = {"VmHWM": "rss_mib", "VmRSS": "rss_now_mib"}
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        pairs = [line.split(":", 1) for line in status]
    return {names[name]: int(value.split()[0]) / 1024 for name, value in pairs if name in names}


@dataclass(slots=True)
class Recorder:
    """Latencies of a window, and what was acknowledged over the whole life of the process."""

    per_operation: int = 1
    running: bool = True
    errors: int = 0
    before_window: int = 0
    latencies: array[int] = field(default_factory=lambda: array("q"))

    def open_window(self) -> None:
        self.before_window = len(self.latencies)
        del self.latencies[:]

    def acknowledged(self) -> int:
        return (self.before_window + len(self.latencies)) * self.per_operation


def percentiles(nanoseconds: Sequence[int], prefix: str = "") -> dict[str, float]:
    """Return p50, p99 and p999 in microseconds, and the largest; *prefix* goes before each name."""
    ordered = sorted(nanoseconds)
    if not ordered:
        return {}
    last = len(ordered) - 1
    ranks = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999, "max_us": 1.0}
    return {
        prefix + name: ordered[min(last, int(len(ordered) * rank))] / 1e3
        for name, rank in ranks.items()
    }


async def closed_loop(
    operation: Callable[[], Awaitable[object]], options: Options, *, per_operation: int = 1
) -> None:
    """Keep ``options.in_flight`` operations going through warm-up and window; tell the result."""
    recorder = Recorder(per_operation=per_operation)
    async with asyncio.timeout(options.warmup_seconds + options.seconds + SETTLE_SECONDS):
        async with asyncio.TaskGroup() as workers:
            for _ in range(options.in_flight):
                workers.create_task(_repeat(operation, recorder))
            window, measured = await _watch_window(recorder, options)
            recorder.running = False
    tell_result(
        messages=measured * per_operation,
        acknowledged=recorder.acknowledged(),
        errors=recorder.errors,
        **window.figures,
        **percentiles(recorder.latencies[:measured]),
    )


async def _repeat(operation: Callable[[], Awaitable[object]], recorder: Recorder) -> None:
    clock, latencies = time.perf_counter_ns, recorder.latencies
    while recorder.running:
        started = clock()
        try:
            await operation()
        except Exception as error:  # a failed send is counted; many are fatal
            recorder.errors += 1
            if recorder.errors <= REPORTED_ERRORS:
                print(repr(error), file=sys.stderr)
            if recorder.errors > MAX_ERRORS:
                raise
        else:
            latencies.append(clock() - started)


async def _watch_window(recorder: Recorder, options: Options) -> tuple[Window, int]:
    window = Window()
    await asyncio.sleep(options.warmup_seconds)
    recorder.open_window()
    window.open()
    await asyncio.sleep(options.seconds)
    measured = len(recorder.latencies)
    window.close()
    return window, measured


class Drain:
    """Progress through a backlog of *total* messages; the window is its middle nine tenths.

    The first and the last twentieth are left out: joining the group and queues that run dry at
    different times are not the rate of consuming.
    """

    def __init__(self, total: int, *, measured: bool = True) -> None:
        self.count = 0
        self._low, self._high = total // 20, total - total // 20
        self._window = Window() if measured else None
        self._counted_at_start = 0
        self._measured = 0

    def add(self, count: int) -> None:
        before, self.count = self.count, self.count + count
        if self._window is None:
            return
        if before < self._low <= self.count:
            self._counted_at_start = self.count
            self._window.open()
        elif before < self._high <= self.count:
            self._measured = self.count - self._counted_at_start
            self._window.close()

    def figures(self) -> dict[str, float]:
        """Return what the window took, and how many messages came in it."""
        assert self._window is not None
        return {"messages": self._measured, **self._window.figures}


class Seen:
    """Which offsets of which queues came: a byte each, so that checking costs little memory."""

    def __init__(self) -> None:
        self._queues: dict[int, bytearray] = {}
        self.unique = 0
        self.repeated = 0

    def add(self, places: Iterable[tuple[int, int]]) -> None:
        """Mark messages by queue id and offset."""
        for queue_id, offset in places:
            marks = self._queues.setdefault(queue_id, bytearray())
            if offset >= len(marks):
                marks.extend(bytes(2 * offset + 1 - len(marks)))
            self.repeated += marks[offset]
            self.unique += not marks[offset]
            marks[offset] = 1


async def timed_window(count: Callable[[], int], options: Options) -> None:
    """Measure how far *count* goes in the window, for a backlog that does not end."""
    window = Window()
    await asyncio.sleep(options.warmup_seconds)
    before = count()
    window.open()
    await asyncio.sleep(options.seconds)
    measured = count() - before
    window.close()
    tell_result(messages=measured, **window.figures)
