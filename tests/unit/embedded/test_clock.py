"""The clock of embedded clusters: real time, moved by `advance`."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from rocketmq_aio.embedded.clock import COMPACT_AT, Clock

HOUR = 3600.0


async def test_time_starts_at_real_time_and_moves_by_advance() -> None:
    clock = Clock()
    before, start = time.time_ns() // 1_000_000, clock.monotonic()
    clock.advance(HOUR)

    assert before + 3_600_000 <= clock.now_ms() <= time.time_ns() // 1_000_000 + 3_600_000
    assert clock.monotonic() >= start + HOUR


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None])
async def test_time_advances_by_a_positive_number(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"seconds={seconds!r}: expected a number from 0 on"):
        Clock().advance(seconds)


async def test_due_timers_run_in_order_each_at_its_time() -> None:
    clock, seen = Clock(), []
    start = clock.monotonic()
    for hours in (3, 1, 2, 5):
        clock.call_later(hours * HOUR, lambda: seen.append(round((clock.monotonic() - start) / 60)))
    clock.advance(4 * HOUR)

    assert seen == [60, 120, 180]


async def test_timers_that_callbacks_start_run_in_the_same_advance() -> None:
    clock = Clock()
    seen: list[int] = []

    def again() -> None:
        seen.append(len(seen))
        clock.call_later(HOUR, again)

    clock.call_later(HOUR, again)
    clock.advance(3.5 * HOUR)

    assert seen == [0, 1, 2]


async def test_timers_run_in_real_time_without_advance() -> None:
    clock, order = Clock(), []
    clock.call_later(0.02, lambda: order.append("second"))
    clock.call_later(0.01, lambda: order.append("first"))
    async with asyncio.timeout(5):
        await clock.wait(0.03)

    assert order == ["first", "second"]


async def test_a_cancelled_timer_does_not_run() -> None:
    clock, seen = Clock(), []
    timers = [clock.call_later(1, lambda: seen.append(1)) for _ in range(3 * COMPACT_AT)]
    for timer in timers[:-1]:
        timer.cancel()
        timer.cancel()
    clock.advance(2)
    timers[-1].cancel()

    assert seen == [1]
    assert not clock._timers
    assert not clock._cancelled_timers


async def test_a_callback_that_raises_does_not_stop_the_clock() -> None:
    clock, seen = Clock(), asyncio.Event()
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    clock.call_later(0, lambda: 1 / 0)
    clock.call_later(0.01, seen.set)
    async with asyncio.timeout(5):
        await seen.wait()

    assert len(errors) == 1


async def test_a_callback_that_raises_during_an_advance_does_not_stop_the_clock() -> None:
    clock, ran = Clock(), asyncio.Event()

    def broken() -> None:
        raise ValueError("broken")

    clock.call_later(HOUR, broken)
    clock.call_later(HOUR + 0.01, ran.set)
    with pytest.raises(ValueError, match="broken"):
        clock.advance(HOUR)

    async with asyncio.timeout(5):
        await ran.wait()


def test_time_advances_without_an_event_loop() -> None:
    clock = Clock()
    fired: list[int] = []
    for seconds in (60, 120):
        clock.call_later(seconds, partial(fired.append, seconds))

    clock.advance(60)

    assert fired == [60]


async def test_a_wait_ends_when_time_is_advanced() -> None:
    clock = Clock()
    waiting = asyncio.create_task(clock.wait(HOUR))
    await asyncio.sleep(0)
    clock.advance(HOUR)

    await asyncio.wait_for(waiting, 5)


async def test_a_cancelled_wait_leaves_no_timer() -> None:
    clock = Clock()
    waiting = asyncio.create_task(clock.wait(HOUR))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    clock.advance(2 * HOUR)

    assert waiting.cancelled()
