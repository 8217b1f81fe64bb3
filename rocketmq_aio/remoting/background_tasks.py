"""Background tasks: a task group in a task of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.log import get_logger

logger = get_logger(__name__)

TaskFunction = Callable[..., Coroutine[Any, Any, Any]]

CLOSE_SECONDS: Final = 5.0  # for the cleanup of cancelled tasks

# True in background tasks, in calls of application code, and in the tasks that they make.
_in_background: ContextVar[bool] = ContextVar("rocketmq_aio_in_background", default=False)


# The task of the function that `call_isolated` calls; inherited by the tasks that it makes.
_isolated: ContextVar[asyncio.Task[Any] | None] = ContextVar("rocketmq_aio_isolated", default=None)


def in_background_task() -> bool:
    """Whether the close of a client may be waiting for the current task."""
    return _in_background.get()


def in_isolated_call() -> bool:
    """Whether a function that `call_isolated` calls runs in the current task."""
    task = _isolated.get()
    return task is not None and task is asyncio.current_task()


class BackgroundTasks:
    """Owns long-lived tasks, so that ``start()`` and ``close()`` may come from different tasks.

    anyio binds a task group to the task that opened it; notebooks, fixtures and web frameworks
    start and stop in different tasks.  When a task raises or is cancelled by foreign code, all of
    them end and *on_failure* is called.
    """

    def __init__(self, name: str, *, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._group: TaskGroup | None = None
        self._closing: asyncio.Future[None] | None = None
        self._host: asyncio.Task[None] | None = None
        # By the id of the call: asyncio would warn of a coroutine that nothing awaits.
        self._not_begun: dict[int, Coroutine[Any, Any, None]] = {}
        self._close_called = False

    @property
    def is_ending(self) -> bool:
        """Whether the tasks are being cancelled: by `close`, a failure, or the end of the program.

        A CancelledError at another time comes from foreign code.
        """
        group, closing, host = self._group, self._closing, self._host
        if group is None or closing is None or host is None:
            return True
        return closing.done() or group.cancel_scope.cancel_called or host.cancelling() > 0

    async def start(self) -> None:
        """Open the group; returns when tasks can be spawned."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._closing = loop.create_future()
        self._host = loop.create_task(self._run(ready, self._closing), name=self._name)
        try:
            await ready
        except asyncio.CancelledError:
            self._close_called = True
            self._host.cancel()
            raise

    def spawn(self, function: TaskFunction, *args: object, name: str) -> bool:
        """Start *function* in the group; does nothing and returns False once that is closing."""
        group, closing = self._group, self._closing
        if group is None or closing is None or closing.done():
            return False
        call = function, args, f"{self._name}:{name}"
        task = self._not_begun[id(call)] = self._guard(call)
        group.start_soon(lambda: task, name=call[2])
        return True

    async def close(self) -> None:
        """Cancel all tasks and wait for their end; may be called twice and concurrently."""
        self._close_called = True
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)
        host = self._host
        if host is None or host is asyncio.current_task():
            return
        await asyncio.wait([host], timeout=CLOSE_SECONDS)
        if not host.done():
            logger.error("tasks_did_not_end", host=self._name)

    async def _guard(self, call: tuple[TaskFunction, tuple[object, ...], str]) -> None:
        """Run a task; raise an error for a foreign cancellation, which anyio would swallow."""
        del self._not_begun[id(call)]
        function, args, name = call
        _in_background.set(True)
        try:
            await function(*args)
        except asyncio.CancelledError as error:
            if self.is_ending:
                raise
            raise RuntimeError(f"{name} was cancelled by code that does not own it") from error

    async def _run(self, ready: asyncio.Future[None], closing: asyncio.Future[None]) -> None:
        cause: BaseException | None = None
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                if not ready.done():
                    ready.set_result(None)
                await closing
                group.cancel_scope.cancel()
        except asyncio.CancelledError as cancelled:  # the program ends, or foreign code cancelled
            cause = None if self._close_called else cancelled
            raise
        except BaseException as error:
            cause = first_cause(error)
            logger.exception("background_task_failed", host=self._name, exc_info=cause)
        finally:  # `closing` is done: anyio cancels it when it ends the group, also silently
            for task in self._not_begun.values():  # cancelled before their first step
                task.close()
            if not self._close_called:
                cause = cause or RuntimeError(f"the tasks of {self._name} ended unexpectedly")
            if cause is not None:
                self._on_failure(cause)


async def call_isolated(function: Callable[..., object], *args: object) -> object:
    """Call application code, plain or async, in a task of its own, and return its result.

    Cancelling the caller cancels the code; the code cannot cancel the caller.

    :raises RuntimeError: the code raised CancelledError or GeneratorExit, which is the cause
    """
    outcome: object = None
    failure: BaseException | None = None

    async def run() -> None:
        nonlocal outcome, failure
        _in_background.set(True)
        _isolated.set(asyncio.current_task())
        try:
            outcome = function(*args)
            if inspect.isawaitable(outcome):
                outcome = await outcome
        except APPLICATION_ERRORS as error:
            failure = error

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if isinstance(failure, asyncio.CancelledError | GeneratorExit):
        raise RuntimeError(f"the function raised {type(failure).__name__}") from failure
    if failure is not None:
        raise failure
    return outcome


def first_cause(error: BaseException) -> BaseException:
    """Return the first single exception inside *error*, which may be a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
