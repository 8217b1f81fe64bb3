"""Time that counts, and time that does not."""

from __future__ import annotations

import asyncio
import time

from tests.fakes.stopwatch import Stopwatch


async def test_waiting_is_measured() -> None:
    with Stopwatch() as passed:
        for _ in range(15):
            await asyncio.sleep(0.02)

    assert 0.2 < passed.seconds < 0.6


async def test_cpu_time_is_measured() -> None:
    with Stopwatch() as passed:
        began = time.process_time()
        while time.process_time() - began < 0.3:
            pass

    assert 0.25 < passed.seconds < 0.6


async def test_a_stall_of_the_process_is_excluded() -> None:
    with Stopwatch() as passed:
        await asyncio.sleep(0.05)
        time.sleep(1)  # noqa: ASYNC251 - as if the process were stopped

    assert passed.seconds < 0.3
    assert passed.delayed > 0.7
