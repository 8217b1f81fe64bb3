"""In-flight limiter: limits, order, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.producer.in_flight import InFlightLimiter
from tests.unit.costs import cpu_seconds
from tests.unit.remoting.until import settle


class Line:
    """Tasks that wait for the limiter, and the order in which they entered."""

    def __init__(self, limiter: InFlightLimiter) -> None:
        self.entered: list[str] = []
        self._limiter = limiter

    def join(self, name: str, size: int = 1) -> asyncio.Task[None]:
        return asyncio.create_task(self._enter(name, size))

    async def _enter(self, name: str, size: int) -> None:
        await self._limiter.wait_and_acquire(size)
        self.entered.append(name)


def test_sends_are_limited_by_count_and_by_bytes() -> None:
    by_count, by_bytes = InFlightLimiter(2, 1000), InFlightLimiter(1000, 10)

    assert [by_count.try_acquire(1) for _ in range(3)] == [True, True, False]
    assert [by_bytes.try_acquire(size) for size in (6, 5, 4)] == [True, False, True]


def test_a_body_above_the_byte_limit_is_accepted_alone() -> None:
    limiter = InFlightLimiter(1000, 10)
    assert limiter.try_acquire(1)
    assert not limiter.try_acquire(50)
    limiter.release(1)

    assert limiter.try_acquire(50)
    assert not limiter.try_acquire(1)


def test_release_makes_room() -> None:
    limiter = InFlightLimiter(1000, 10)
    for _ in range(100):
        assert limiter.try_acquire(7)
        limiter.release(7)

    assert (limiter.count, limiter.bytes) == (0, 0)


async def test_waiters_enter_in_order_and_are_not_overtaken() -> None:
    limiter = InFlightLimiter(2, 10)
    line = Line(limiter)
    assert limiter.try_acquire(6)
    large, small = line.join("large", 8), line.join("small", 1)
    await settle()
    assert not limiter.try_acquire(1)  # there is room, but another caller waits
    assert line.entered == []
    limiter.release(6)
    await asyncio.gather(large, small)

    assert line.entered == ["large", "small"]


async def test_cancelling_a_large_waiter_admits_smaller_ones() -> None:
    limiter = InFlightLimiter(10, 10)
    line = Line(limiter)
    assert limiter.try_acquire(6)
    large, small = line.join("large", 8), line.join("small", 1)
    await settle()
    large.cancel()
    await small

    assert line.entered == ["small"]
    assert (limiter.count, limiter.bytes) == (2, 7)


async def test_a_place_given_to_a_waiter_that_is_cancelled_is_passed_on() -> None:
    limiter = InFlightLimiter(1, 10)
    line = Line(limiter)
    assert limiter.try_acquire(1)
    leaving, staying = line.join("leaving"), line.join("staying")
    await settle()
    limiter.release(1)  # the one who leaves has it, and has not run
    leaving.cancel()
    await asyncio.wait([leaving])
    await staying

    assert line.entered == ["staying"]
    assert (limiter.count, limiter.bytes) == (1, 1)


async def test_all_waiters_can_be_cancelled_at_once() -> None:
    limiter = InFlightLimiter(1, 10)
    line = Line(limiter)
    assert limiter.try_acquire(1)
    waiting = [line.join(str(number)) for number in range(50)]
    await settle()
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    limiter.release(1)

    assert (limiter.count, limiter.bytes) == (0, 0)
    assert limiter.try_acquire(1)


async def test_close_fails_waiters_and_keeps_the_count() -> None:
    limiter = InFlightLimiter(1, 10)
    line = Line(limiter)
    assert limiter.try_acquire(1)
    waiting = [line.join("a"), line.join("b")]
    await settle()
    limiter.close(LookupError("closed"))
    for task in waiting:
        with pytest.raises(LookupError, match="closed"):
            await task

    assert (limiter.count, limiter.bytes) == (1, 1)


async def test_a_closed_limiter_fails_later_callers() -> None:
    limiter = InFlightLimiter(10, 10)
    limiter.close(LookupError("closed"))

    assert not limiter.try_acquire(1)
    for _ in range(2):
        with pytest.raises(LookupError, match="closed"):
            await limiter.wait_and_acquire(1)
    assert (limiter.count, limiter.bytes) == (0, 0)


async def test_cancelled_waiters_take_no_memory_behind_a_waiting_one() -> None:
    limiter = InFlightLimiter(1, 10)
    line = Line(limiter)
    assert limiter.try_acquire(1)
    staying = line.join("staying")
    await settle()
    for number in range(50):
        leaving = line.join(str(number))
        await settle()
        leaving.cancel()
        await asyncio.wait([leaving])

    assert len(limiter._waiters) == 1
    limiter.release(1)
    await staying


def test_cancelling_waiters_is_linear() -> None:
    async def leave(count: int) -> None:
        limiter = InFlightLimiter(1, 10)
        assert limiter.try_acquire(1)
        waiting = [asyncio.create_task(limiter.wait_and_acquire(1)) for _ in range(count)]
        await settle()
        for task in reversed(waiting):  # the last in line first
            task.cancel()
        await asyncio.wait(waiting)

    few, many = (cpu_seconds(lambda n=n: asyncio.run(leave(n))) for n in (250, 4000))  # type: ignore[misc]  # a bound loop variable

    assert many < 128 * few  # 16 times as many; the square is 256


async def test_wait_until_empty_returns_when_the_last_send_ends() -> None:
    limiter = InFlightLimiter(10, 10)
    await limiter.wait_until_empty()
    assert limiter.try_acquire(1)
    assert limiter.try_acquire(1)
    empty = asyncio.create_task(limiter.wait_until_empty())
    await settle()
    limiter.release(1)
    await settle()
    assert not empty.done()
    limiter.release(1)

    await empty


async def test_sends_end_after_wait_until_empty_was_cancelled() -> None:
    limiter = InFlightLimiter(10, 10)
    assert limiter.try_acquire(1)
    empty = asyncio.create_task(limiter.wait_until_empty())
    await settle()
    empty.cancel()
    await asyncio.wait([empty])
    limiter.release(1)

    assert (limiter.count, limiter.bytes) == (0, 0)
    await limiter.wait_until_empty()
