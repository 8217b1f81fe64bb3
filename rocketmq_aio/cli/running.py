"""Running the coroutines of commands."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rocketmq_aio.signals import stop_signals


def run_async(work: Coroutine[Any, Any, int], *, on_signal: int | None = None) -> int:
    """Run *work* until it ends, or the first SIGINT or SIGTERM cancels it; return its exit code.

    :param on_signal: the exit code after a signal, where that is the normal end
    :raises KeyboardInterrupt: a signal, without *on_signal*; or a second signal
    """
    code = asyncio.run(_cancelled_by_signals(work, on_signal))
    if code is None:
        raise KeyboardInterrupt
    return code


async def _cancelled_by_signals(
    work: Coroutine[Any, Any, int], on_signal: int | None
) -> int | None:
    loop, task, received = asyncio.get_running_loop(), asyncio.ensure_future(work), False

    def stop() -> None:
        nonlocal received
        if received:
            raise KeyboardInterrupt
        received = True
        loop.call_soon_threadsafe(task.cancel)

    with stop_signals(stop):
        try:
            return await task
        except asyncio.CancelledError:
            if not received:
                raise
            return on_signal
