"""The bound on unanswered sends."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.producer.in_flight import InFlightLimiter
from tests.unit.costs import cpu_seconds


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Line:
    """Tasks that wait for room, and the order in which they got it."""

    def __init__(self, room: InFlightLimiter) -> None:
        self.entered: list[str] = []
        self._room = room

    def join(self, name: str, size: int = 1) -> asyncio.Task[None]:
        return asyncio.create_task(self._enter(name, size))

    async def _enter(self, name: str, size: int) -> None:
        await self._room.wait_and_acquire(size)
        self.entered.append(name)


def test_room_is_counted_by_number_and_by_bytes() -> None:
    by_count, by_bytes = InFlightLimiter(2, 1000), InFlightLimiter(1000, 10)

    assert [by_count.try_acquire(1) for _ in range(3)] == [True, True, False]
    assert [by_bytes.try_acquire(size) for size in (6, 5, 4)] == [True, False, True]


def test_what_is_larger_than_the_whole_bound_goes_alone() -> None:
    room = InFlightLimiter(1000, 10)
    assert room.try_acquire(1)
    assert not room.try_acquire(50)
    room.release(1)

    assert room.try_acquire(50)
    assert not room.try_acquire(1)


def test_what_was_taken_is_given_back() -> None:
    room = InFlightLimiter(1000, 10)
    for _ in range(100):
        assert room.try_acquire(7)
        room.release(7)

    assert (room.count, room.bytes) == (0, 0)


async def test_those_who_wait_enter_in_order_and_nobody_overtakes_them() -> None:
    room = InFlightLimiter(2, 10)
    line = Line(room)
    assert room.try_acquire(6)
    large, small = line.join("large", 8), line.join("small", 1)
    await settle()
    assert not room.try_acquire(1)  # there is room, but somebody waits
    assert line.entered == []
    room.release(6)
    await asyncio.gather(large, small)

    assert line.entered == ["large", "small"]


async def test_a_large_one_who_leaves_lets_the_small_ones_in() -> None:
    room = InFlightLimiter(10, 10)
    line = Line(room)
    assert room.try_acquire(6)
    large, small = line.join("large", 8), line.join("small", 1)
    await settle()
    large.cancel()
    await small

    assert line.entered == ["small"]
    assert (room.count, room.bytes) == (2, 7)


async def test_room_given_to_one_who_leaves_in_that_moment_is_passed_on() -> None:
    room = InFlightLimiter(1, 10)
    line = Line(room)
    assert room.try_acquire(1)
    leaving, staying = line.join("leaving"), line.join("staying")
    await settle()
    room.release(1)  # the one who leaves has it, and has not run
    leaving.cancel()
    await asyncio.wait([leaving])
    await staying

    assert line.entered == ["staying"]
    assert (room.count, room.bytes) == (1, 1)


async def test_everybody_in_line_can_leave_at_once() -> None:
    room = InFlightLimiter(1, 10)
    line = Line(room)
    assert room.try_acquire(1)
    waiting = [line.join(str(number)) for number in range(50)]
    await settle()
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    room.release(1)

    assert (room.count, room.bytes) == (0, 0)
    assert room.try_acquire(1)


async def test_a_closed_line_tells_who_waits_and_keeps_the_count() -> None:
    room = InFlightLimiter(1, 10)
    line = Line(room)
    assert room.try_acquire(1)
    waiting = [line.join("a"), line.join("b")]
    await settle()
    room.close(LookupError("closed"))
    for task in waiting:
        with pytest.raises(LookupError, match="closed"):
            await task

    assert (room.count, room.bytes) == (1, 1)


async def test_a_closed_line_lets_nobody_in_any_more() -> None:
    room = InFlightLimiter(10, 10)
    room.close(LookupError("closed"))

    assert not room.try_acquire(1)
    for _ in range(2):
        with pytest.raises(LookupError, match="closed"):
            await room.wait_and_acquire(1)
    assert (room.count, room.bytes) == (0, 0)


async def test_waiters_that_leave_take_no_memory_behind_one_that_waits() -> None:
    room = InFlightLimiter(1, 10)
    line = Line(room)
    assert room.try_acquire(1)
    staying = line.join("staying")
    await settle()
    for number in range(50):
        leaving = line.join(str(number))
        await settle()
        leaving.cancel()
        await asyncio.wait([leaving])

    assert len(room._waiters) == 1
    room.release(1)
    await staying


def test_the_cost_of_leaving_grows_with_the_number_of_waiters_not_its_square() -> None:
    async def leave(count: int) -> None:
        room = InFlightLimiter(1, 10)
        assert room.try_acquire(1)
        waiting = [asyncio.create_task(room.wait_and_acquire(1)) for _ in range(count)]
        await settle()
        for task in reversed(waiting):  # the last in line first
            task.cancel()
        await asyncio.wait(waiting)

    few, many = (cpu_seconds(lambda n=n: asyncio.run(leave(n))) for n in (500, 8000))  # type: ignore[misc]  # a bound loop variable

    assert many < 50 * few  # 16 times as many; the square is 256


async def test_empty_is_told_when_the_last_send_ends() -> None:
    room = InFlightLimiter(10, 10)
    await room.wait_until_empty()
    assert room.try_acquire(1)
    assert room.try_acquire(1)
    empty = asyncio.create_task(room.wait_until_empty())
    await settle()
    room.release(1)
    await settle()
    assert not empty.done()
    room.release(1)

    await empty
