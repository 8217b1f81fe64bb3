"""What a handler may say, and how handlers of all kinds are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, Final, TypeAlias

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.message import MessageExt, MessageQueue

MAX_DELAY_LEVEL: Final = 18
DEAD_LETTER: Final = -1

MessageHandler: TypeAlias = Callable[[MessageExt], Awaitable[object] | object]
BatchHandler: TypeAlias = Callable[[list[MessageExt], "BatchContext"], Awaitable[object] | object]
# Takes messages of one queue; returns what the handler said besides, if it had the chance to.
Call: TypeAlias = Callable[[list[MessageExt]], Awaitable["BatchContext | None"]]


class RetryLater(Exception):  # noqa: N818 - it is an answer of the handler, not an error
    """Raised by a handler: the message is to be tried again.

    :param delay_level: 0 lets the broker choose (longer each time), 1 to 18 is one of its levels
        (1 s 5 s 10 s 30 s 1 m 2 m ... 2 h), -1 makes the message a dead letter at once
    """

    def __init__(self, delay_level: int = 0) -> None:
        if type(delay_level) is not int or not DEAD_LETTER <= delay_level <= MAX_DELAY_LEVEL:
            raise ConfigError("delay_level", delay_level, f"expected -1 to {MAX_DELAY_LEVEL}")
        super().__init__(f"try again with delay level {delay_level}")
        self.delay_level = delay_level


class SuspendQueue(Exception):  # noqa: N818 - likewise
    """Raised by an orderly handler: try again in place after *seconds* (default: the setting)."""

    def __init__(self, seconds: float | None = None) -> None:
        good = seconds is None or (
            isinstance(seconds, int | float)
            and not isinstance(seconds, bool)
            and 0 <= seconds < 10**9
        )
        if not good:
            raise ConfigError("seconds", seconds, "expected a number of seconds, 0 or more")
        super().__init__(f"suspend the queue for {seconds} s")
        self.seconds = seconds


class ConsumeTimeoutError(Exception):
    """The handler took longer than ``consume_timeout_seconds``."""


class BatchContext:
    """Says more about a batch than that it was done or failed.

    :ivar queue: all messages of the batch come from it
    :ivar ack_index: set by the handler: the last message that is done; those behind it are tried
        again.  None means all; -1 means none
    :ivar delay_level: of the messages that are tried again, as `RetryLater` has it
    """

    __slots__ = ("ack_index", "delay_level", "queue")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.ack_index: int | None = None
        self.delay_level = 0

    def done(self, size: int) -> int:
        """Return how many messages of a batch of *size* are done.

        :raises ConfigError: the handler has set something else than numbers
        """
        last = self.ack_index
        if last is None:
            return size
        if type(last) is not int:
            raise ConfigError("ack_index", last, "expected a whole number or None")
        RetryLater(self.delay_level)  # checks it
        return max(0, min(last + 1, size))


def is_async(handler: Callable[..., object]) -> bool:
    """Whether *handler* is to be called on the event loop; others get a thread."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked for, not whether
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def caller_of(
    on_message: MessageHandler | None, on_batch: BatchHandler | None, threads: Executor | None
) -> Call:
    """Return what workers call; *threads* is where plain functions run."""
    if on_message is not None:
        return _calling_one(on_message, threads)
    assert on_batch is not None
    return _calling_batch(on_batch, threads)


def _calling_one(handler: MessageHandler, threads: Executor | None) -> Call:
    if threads is None:

        async def call(messages: list[MessageExt]) -> None:
            await handler(messages[0])  # type: ignore[misc]  # it is async
    else:

        async def call(messages: list[MessageExt]) -> None:
            await _in_thread(threads, handler, messages[0])

    return call


def _calling_batch(handler: BatchHandler, threads: Executor | None) -> Call:
    async def call(messages: list[MessageExt]) -> BatchContext:
        context = BatchContext(messages[0].queue)
        if threads is None:
            await handler(messages, context)  # type: ignore[misc]  # it is async
        else:
            await _in_thread(threads, handler, messages, context)
        return context

    return call


async def _in_thread(threads: Executor, handler: Callable[..., object], *args: Any) -> None:  # noqa: ANN401
    run = copy_context().run  # so that the handler sees the caller's context variables
    outcome = await asyncio.get_running_loop().run_in_executor(threads, run, handler, *args)
    if inspect.isawaitable(outcome):  # a plain function that returns a coroutine
        await outcome
