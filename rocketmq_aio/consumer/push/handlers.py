"""What a handler may say, and how handlers of all kinds are called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from time import monotonic
from typing import Final, TypeAlias, cast

from rocketmq_aio.config.consumer import MAX_CONCURRENCY
from rocketmq_aio.config.functions import check_function
from rocketmq_aio.config.validation import checked_seconds
from rocketmq_aio.consumer.common.hooks import ConsumeHooks
from rocketmq_aio.consumer.common.listeners import is_async
from rocketmq_aio.consumer.common.send_back import DEAD_LETTER
from rocketmq_aio.errors import ConfigError, PayloadError
from rocketmq_aio.hooks import ConsumeContext
from rocketmq_aio.model.codec import Codec, V
from rocketmq_aio.model.message import MessageExt, decode_all
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.threads import run_in_thread

MAX_DELAY_LEVEL: Final = 18


MessageHandler: TypeAlias = Callable[[MessageExt[V]], Awaitable[object] | object]
"""`on_message`: takes a message; plain or async."""
BatchHandler: TypeAlias = Callable[
    [list[MessageExt[V]], "BatchContext"], Awaitable[object] | object
]
"""`on_batch`: takes messages of one queue and a `BatchContext`; plain or async."""
# Takes messages of one queue; what is awaited is a `BatchContext` where the handler said more than
# that it returned.  Anything else means nothing: it may be what the handler happened to return.
Call: TypeAlias = Callable[[list[MessageExt]], Awaitable[object]]
One: TypeAlias = Callable[[MessageExt], Awaitable[object]]


class Answer(Exception):  # noqa: N818 - not an error
    """What a handler raises, or returns, to say more than that it failed."""


class RetryLater(Answer):
    """Raised by a handler: the message is to be tried again.

    :param delay_level: 0 lets the broker choose (longer each time), 1 to 18 is one of its levels
        (1 s 5 s 10 s 30 s 1 m 2 m ... 2 h), -1 makes the message a dead letter at once
    """

    def __init__(self, delay_level: int = 0) -> None:
        if type(delay_level) is not int or not DEAD_LETTER <= delay_level <= MAX_DELAY_LEVEL:
            raise ConfigError("delay_level", delay_level, f"expected -1 to {MAX_DELAY_LEVEL}")
        super().__init__(f"try again with delay level {delay_level}")
        self.delay_level = delay_level


class SuspendQueue(Answer):
    """Raised by an orderly handler: try again in place after *seconds* (default: the setting)."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None:
            checked_seconds("seconds", seconds, least=0)
        super().__init__(f"suspend the queue for {seconds} s")
        self.seconds = seconds


class ConsumeTimeoutError(Exception):
    """The handler took longer than ``consume_timeout_seconds``."""


class UndecodableError(Exception):
    """Messages that the codec cannot read, each with the reason."""

    def __init__(self, messages: list[tuple[MessageExt, PayloadError]]) -> None:
        super().__init__(f"{len(messages)} messages cannot be decoded")
        self.messages = messages


class BatchContext:
    """Says more about a batch than that it was done or failed.

    :ivar queue: all messages of the batch come from it
    :ivar ack_index: set by the handler: the last message that is done; those behind it are tried
        again.  None means all; -1 means none
    :ivar delay_level: of the messages that are tried again, as `RetryLater` has it
    :ivar auto_commit: of an orderly handler: False lets the batch wait for a later `commit`
    """

    __slots__ = ("ack_index", "auto_commit", "committed", "delay_level", "queue", "rolled_back")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.ack_index: int | None = None
        self.delay_level = 0
        self.auto_commit = True
        self.committed = False
        self.rolled_back = False

    @property
    def says_more(self) -> bool:
        """Whether it says anything else than that all is done."""
        return (
            self.ack_index is not None
            or self.auto_commit is not True
            or self.committed
            or self.rolled_back
        )

    def commit(self) -> None:
        """Of an orderly handler: this batch, and those before that were not, are done."""
        self.committed = True

    def rollback(self) -> None:
        """Of an orderly handler: all messages since the last commit are to come again."""
        self.rolled_back = True

    def done(self, size: int) -> int:
        """Return how many messages of a batch of *size* are done.

        :raises ConfigError: the handler has set something else than numbers
        """
        RetryLater(self.delay_level)  # checks it
        if self.rolled_back:
            return 0
        last = self.ack_index
        if last is None:
            return size
        if type(last) is not int:
            raise ConfigError("ack_index", last, "expected a whole number or None")
        return max(0, min(last + 1, size))


class Handler:
    """What the application gave to handle messages with, ready to be called by workers.

    :ivar threads: where plain functions run; None for an async handler
    :ivar call: takes messages of one queue
    :ivar one: an async handler of single messages with nothing around it, else None
    :raises ConfigError: not exactly one of the two is given, or it cannot be called so
    """

    def __init__(
        self,
        on_message: MessageHandler | None,
        on_batch: BatchHandler | None,
        *,
        name: str,
    ) -> None:
        if (on_message is None) == (on_batch is None):
            raise ConfigError("on_message", on_message, "give either on_message= or on_batch=")
        handler = on_batch if on_message is None else on_message
        if on_message is not None:
            check_function("on_message", on_message, "message")
        else:
            check_function("on_batch", on_batch, "messages", "context")
        assert handler is not None
        self.threads: ThreadPoolExecutor | None = None
        if not is_async(handler):
            # As many threads as workers that wait for one are made, however many may be.
            self.threads = ThreadPoolExecutor(MAX_CONCURRENCY, thread_name_prefix=name)
        self.call: Call = (
            _calling_one(on_message, self.threads)
            if on_message is not None
            else _calling_batch(cast(BatchHandler, on_batch), self.threads)
        )

        self.one: One | None = None
        if on_message is not None and self.threads is None:
            self.one = cast(One, on_message)

    def wrap(self, around: Callable[[Call], Call]) -> None:
        """Put something around every call."""
        self.one = None
        self.call = around(self.call)


def _calling_one(handler: MessageHandler, threads: Executor | None) -> Call:
    if threads is None:  # the handler's own coroutine is what is awaited: no other around it
        return lambda messages: cast(Awaitable[object], handler(messages[0]))
    return lambda messages: _in_thread(threads, handler, messages[0])


def _calling_batch(handler: BatchHandler, threads: Executor | None) -> Call:
    async def call(messages: list[MessageExt]) -> BatchContext | Answer | None:
        context = BatchContext(messages[0].queue)
        said: object
        if threads is None:
            said = await handler(messages, context)  # type: ignore[misc]  # it is async
        else:
            said = await _in_thread(threads, handler, messages, context)
        if isinstance(said, Answer):
            return said
        return context if context.says_more else None

    return call


async def _in_thread(threads: Executor, handler: Callable[..., object], *args: object) -> object:
    outcome = await run_in_thread(threads, handler, *args)
    if inspect.isawaitable(outcome):  # a plain function that returns a coroutine
        outcome = await outcome
    return outcome


def decoding(call: Call, codec: Codec) -> Call:
    """Return a call that gives messages their values first.

    It raises `UndecodableError`, and calls no handler, when some have none.
    """

    async def decode_and_call(messages: list[MessageExt]) -> object:
        _, bad = decode_all(codec, messages)
        if bad:
            raise UndecodableError(bad)
        return await call(messages)

    return decode_and_call


def hooked(call: Call, hooks: ConsumeHooks, group: str) -> Call:
    """Return a call that tells *hooks* about each batch."""

    async def tell_and_call(messages: list[MessageExt]) -> object:
        first = messages[0]
        context = ConsumeContext(
            group=group, topic=first.topic, queue=first.queue, messages=messages
        )
        hooks.before(context)
        started = monotonic()
        try:
            said = await call(messages)
        except BaseException as error:
            context.status, context.error = "failed", error
            raise
        else:
            context.status = "ok"
            return said
        finally:
            context.seconds = monotonic() - started
            hooks.after(context)

    return tell_and_call
