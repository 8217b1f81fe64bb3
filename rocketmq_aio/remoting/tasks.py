"""Who owns the tasks: a task group in a host task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from rocketmq_aio.log import get_logger

logger = get_logger(__name__)

CLOSE_SECONDS: Final = 5.0  # for tasks that are cancelled already and only clean up


# Whether code runs in a task of a host, or in one that such a task made.
_is_hosted: ContextVar[bool] = ContextVar("rocketmq_aio_is_hosted", default=False)


def is_hosted() -> bool:
    """Whether this may be a task that somebody waits for who closes a host."""
    return _is_hosted.get()


class TaskHost:
    """Owns long-lived tasks, so that ``start()`` and ``close()`` may come from different tasks.

    anyio binds a task group to the task that opened it; notebooks, fixtures and web frameworks
    start and stop in different ones.  A task that raises ends all of them: that is a bug of this
    package, kept in `failure` for every later call to report.
    """

    def __init__(self, name: str, *, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._group: TaskGroup | None = None
        self._closing: asyncio.Future[None] | None = None
        self._host: asyncio.Task[None] | None = None
        self._opened = False
        self._asked_to_close = False

    async def start(self) -> None:
        """Open the group; returns when tasks can be spawned.  Cancelled, it leaves nothing."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._closing = loop.create_future()
        self._host = loop.create_task(self._run(ready, self._closing), name=self._name)
        try:
            await ready
        except asyncio.CancelledError:
            self._asked_to_close = True
            self._host.cancel()
            raise

    def spawn(
        self, function: Callable[..., Coroutine[Any, Any, Any]], *args: object, name: str
    ) -> None:
        """Start *function* in the group; ignored once the group is closing."""
        group, closing = self._group, self._closing
        if group is not None and closing is not None and not closing.done():
            token = _is_hosted.set(True)  # the task takes a copy with it
            group.start_soon(function, *args, name=f"{self._name}:{name}")
            _is_hosted.reset(token)

    async def close(self) -> None:
        """Cancel everything and wait until it is gone; may be called twice and concurrently."""
        self._asked_to_close = True
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)
        host = self._host
        if host is None or host is asyncio.current_task():
            return
        await asyncio.wait([host], timeout=CLOSE_SECONDS)
        if not host.done():
            logger.error("tasks_did_not_end", host=self._name)

    async def _run(self, ready: asyncio.Future[None], closing: asyncio.Future[None]) -> None:
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._opened = True
                if not ready.done():
                    ready.set_result(None)
                await closing
                group.cancel_scope.cancel()
        except Exception as error:
            cause = first_cause(error)
            logger.exception("background_task_failed", host=self._name, exc_info=cause)
            self._on_failure(cause)
        except asyncio.CancelledError as cancelled:
            if self._opened and not self._asked_to_close:  # the program ends, or somebody erred
                self._on_failure(cancelled)
            raise
        finally:
            self._group = None
            if not closing.done():
                closing.set_result(None)


def first_cause(error: BaseException) -> BaseException:
    """Return the first single exception inside *error*, which may be a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
