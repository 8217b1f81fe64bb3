"""Waiting for other tasks: until a condition holds, or for turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from rocketmq_aio.embedded.notifier import WAIT_SECONDS
from rocketmq_aio.errors import RocketMQError
from tests.fakes.stopwatch import Stopwatch

LOOK_SECONDS: Final = 0.002


async def settle(turns: int = 10) -> None:
    """Let every task that can go on do so, for *turns* turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(
    seen: Callable[[], object], what: str = "a change", seconds: float = WAIT_SECONDS
) -> None:
    """Return once *seen* is true.

    :raises TimeoutError: it was not within *seconds* in which this process could run
    """
    await until_done(lambda: _looked(seen), what, seconds)


async def until_done(
    tried: Callable[[], Awaitable[object]], what: str = "a success", seconds: float = WAIT_SECONDS
) -> None:
    """Return once *tried* gives something true."""
    with Stopwatch() as passed:
        while not await tried():
            if passed.seconds > seconds:
                raise TimeoutError(f"waited {seconds:g} s for {what}")
            await asyncio.sleep(LOOK_SECONDS)


async def _looked(seen: Callable[[], object]) -> object:
    return seen()


async def succeeds(asked: Coroutine[Any, Any, object]) -> bool:
    """Whether *asked* ends without an error of this package."""
    try:
        await asked
    except RocketMQError:
        return False
    return True
