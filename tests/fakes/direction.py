"""One direction of a proxy: faults of its frames and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rocketmq_aio.embedded.notifier import WAIT_SECONDS, Notifier
from tests.fakes.frame_rules import PassingFrame, Rule


class Cut(Exception):  # noqa: N818 - not an error: requested by a test
    """End of the connection; with *reset* both ends see a reset."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__(reset)
        self.reset = reset


@dataclass(slots=True)
class Point:
    """Position in the stream of a connection: *byte* bytes after the first *frame* frames."""

    frame: int
    byte: int
    reset: bool = False
    stall: bool = False


class HeldFrames:
    """Frames held until a test releases them, in any order."""

    def __init__(self, emit: Callable[[int, bytes], None]) -> None:
        self.frames: list[PassingFrame] = []
        self._emit = emit
        self._changed = Notifier()

    def __call__(self, frame: PassingFrame) -> Iterable[bytes]:
        self.frames.append(frame)
        self._changed.notify()
        return ()

    async def wait(self, count: int, seconds: float = WAIT_SECONDS) -> None:
        what = f"{count} held frame(s)"
        await self._changed.until(lambda: len(self.frames) >= count, what, seconds)

    def release(self, *indexes: int) -> None:
        """Forward the frames at *indexes* in this order; default: all."""
        leaving = [self.frames[index] for index in indexes or range(len(self.frames))]
        self.frames = [frame for frame in self.frames if frame not in leaving]
        for frame in leaving:
            self._emit(frame.connection, frame.data)


class Direction:
    """Faults of one direction for all connections; a test can change them at any time.

    :ivar delay_seconds: delay of every piece; the order stays
    :ivar bytes_per_second: rate limit; None: no limit
    :ivar slice_bytes: size of each write
    :ivar merge_seconds: time to collect data for one write
    """

    def __init__(self, emit: Callable[[int, bytes], None]) -> None:
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.slice_bytes: int | None = None
        self.merge_seconds = 0.0
        self.points: list[Point] = []
        self.changed = Notifier()
        self._stalled = False
        self._emit = emit
        self._rules: list[tuple[int | None, Rule, int | None]] = []

    def on(self, rule: Rule, *, code: int | None = None, times: int | None = 1) -> None:
        """Apply *rule* to the next *times* frames: requests of *code* or their responses."""
        self._rules.append((code, rule, times))

    def off(self) -> None:
        """Remove all faults."""
        self._rules.clear()
        self.points.clear()
        self.delay_seconds = self.merge_seconds = 0.0
        self.bytes_per_second = self.slice_bytes = None
        self.flow()

    def hold(self, *, code: int | None = None, times: int | None = None) -> HeldFrames:
        """Hold frames until a test releases them."""
        held = HeldFrames(self._emit)
        self.on(held, code=code, times=times)
        return held

    def cut(self, *, frame: int = 0, byte: int = 0, reset: bool = False) -> None:
        """Close the next connection that reaches *byte* bytes after its first *frame* frames."""
        self.points.append(Point(frame, byte, reset=reset))

    def stall_at(self, *, frame: int = 0, byte: int = 0) -> None:
        """Stall this direction when a connection reaches the position."""
        self.points.append(Point(frame, byte, stall=True))

    def stall(self) -> None:
        """Stop reading and writing on all connections until `flow`."""
        self._stalled = True

    def flow(self) -> None:
        self._stalled = False
        self.changed.notify()

    async def until_flowing(self) -> None:
        while self._stalled:  # ended by the test, or cancelled when the proxy stops
            await self.changed.until(lambda: not self._stalled, "the direction to flow", 3600)

    def pieces_for(self, frame: PassingFrame) -> Iterable[bytes]:
        """Return what to forward instead of *frame*."""
        for index, (code, rule, times) in enumerate(self._rules):
            if code is None or code == frame.request_code:
                if times == 1:
                    del self._rules[index]
                elif times is not None:
                    self._rules[index] = (code, rule, times - 1)
                return rule(frame)
        return (frame.data,)


class StreamPosition:
    """Position of one connection in one direction."""

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self._passed = 0
        self._ends = [0]  # end position of each forwarded frame

    def begin(self, length: int) -> None:
        """Record that a frame of *length* bytes is sent next."""
        self._ends.append(self._ends[-1] + length)

    def passed(self, length: int) -> None:
        self._passed += length

    def take_point(self, length: int) -> tuple[int, Point] | None:
        """Remove and return the next point within *length* bytes, with its distance."""
        reached = [
            (ahead, index)
            for index, point in enumerate(self._direction.points)
            if point.frame < len(self._ends)
            and 0 <= (ahead := self._ends[point.frame] + point.byte - self._passed) <= length
        ]
        if not reached:
            return None
        ahead, index = min(reached)
        return ahead, self._direction.points.pop(index)
