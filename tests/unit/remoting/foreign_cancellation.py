"""Exceptions that application code leaks into the task that runs it."""

from __future__ import annotations

import asyncio


async def raise_generator_exit() -> None:
    raise GeneratorExit


async def await_cancelled_task() -> None:
    inner = asyncio.create_task(asyncio.sleep(3600))
    inner.cancel()
    await inner


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancel_own_task_and_wait() -> None:
    cancel_own_task()
    await asyncio.sleep(0)
