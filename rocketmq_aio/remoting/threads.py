"""Function calls in threads of an executor."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")

# A coroutine cannot tell these from its own end or cancellation, which no thread can cause.
AMBIGUOUS: Final = (StopIteration, GeneratorExit, asyncio.CancelledError, CancelledError)


async def run_in_thread(threads: Executor | None, function: Callable[..., T], *args: object) -> T:
    """Return ``function(*args)``, called in a thread with a copy of the caller's context.

    When no thread can be started, the function is not called later either; an executor alone
    would keep the call queued.

    :param threads: None means the executor of the event loop
    :raises RuntimeError: no thread can be started, the executor is shut down, or the function
        raised one of `AMBIGUOUS`
    """
    called: Future[T] = Future()
    call = partial(_call, called, partial(copy_context().run, function, *args))
    try:
        if threads is None:
            handed = asyncio.get_running_loop().run_in_executor(None, call)
            handed.add_done_callback(partial(_end_dropped, called))
        else:
            threads.submit(call)
    except RuntimeError:
        if called.cancel():
            raise
        # A thread that became idle meanwhile has begun the call.
    return await asyncio.wrap_future(called)


async def call_in_thread(
    threads: Executor, function: Callable[..., object], *args: object
) -> object:
    """Return the result of *function*, awaited in the event loop if it is awaitable."""
    result = await run_in_thread(threads, function, *args)
    return await result if inspect.isawaitable(result) else result


def _end_dropped(called: Future[T], handed: asyncio.Future[None]) -> None:
    """Fail a call whose executor, that of the application, has dropped it."""
    if handed.cancelled() and not called.done():
        called.set_exception(RuntimeError("the executor of the event loop was shut down"))


def _call(called: Future[T], function: Callable[[], T]) -> None:
    """Runs in the thread."""
    if not called.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except AMBIGUOUS as raised:
        error = RuntimeError(f"the function raised {type(raised).__name__}")
        error.__cause__ = raised
        called.set_exception(error)
    except BaseException as error:  # noqa: BLE001 - passed to the caller
        called.set_exception(error)
    else:
        called.set_result(result)
