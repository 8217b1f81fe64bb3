"""Handlers: results that they may raise or return, and calls of every kind of handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from time import monotonic
from typing import TypeAlias, TypeGuard, cast

from rocketmq_aio.config.consumer import MAX_CONCURRENCY
from rocketmq_aio.config.validation import check_function, checked_seconds, is_async
from rocketmq_aio.consumer.common.hooks import ConsumeHooks
from rocketmq_aio.consumer.common.redelivery import check_delay_level
from rocketmq_aio.errors import ConfigError, PayloadError
from rocketmq_aio.hooks import ConsumeContext
from rocketmq_aio.model.codec import Codec, V
from rocketmq_aio.model.errors import CopyableException
from rocketmq_aio.model.message import MessageExt, decode_all
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.threads import call_in_thread

MessageHandler: TypeAlias = Callable[[MessageExt[V]], Awaitable[object] | object]
"""`on_message`: takes a message; plain or async."""
BatchHandler: TypeAlias = Callable[
    [list[MessageExt[V]], "BatchContext"], Awaitable[object] | object
]
"""`on_batch`: takes messages of one queue and a `BatchContext`; plain or async."""
# Takes messages of one queue; results other than a `BatchContext` or `RetryRequest` are ignored.
Call: TypeAlias = Callable[[list[MessageExt]], Awaitable[object]]
One: TypeAlias = Callable[[MessageExt], Awaitable[object]]


class RetryRequest(CopyableException):
    """Raised or returned by a handler to choose how a message is retried."""


class RetryLater(RetryRequest):
    """Raised by a handler to have the message redelivered.

    :param delay_level: 0 lets the broker choose (longer each time), a larger one is of its table (1
        to 18 by default: 1 s 5 s 10 s 30 s 1 m 2 m ... 2 h), -1 sends the message to the
        dead-letter topic at once
    """

    delay_level = 0  # of subclasses that do not call this constructor

    def __init__(self, delay_level: int = 0) -> None:
        check_delay_level(delay_level)
        super().__init__(f"try again with delay level {delay_level}")
        self.delay_level = delay_level


class SuspendQueue(RetryRequest):
    """Raised by an orderly handler to be retried in place after *seconds*.

    The default is ``suspend_seconds``.
    """

    seconds: float | None = None  # of subclasses that do not call this constructor

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None:
            checked_seconds("seconds", seconds, least=0)
        super().__init__(f"suspend the queue for {seconds} s")
        self.seconds = seconds


def is_retry_request(result: object) -> TypeGuard[RetryRequest]:
    """Whether a handler returned a request for a retry.

    By type: `isinstance` reads an attribute of *result*, which may raise anything.
    """
    return issubclass(type(result), RetryRequest)


class ConsumeTimeoutError(Exception):
    """The handler took longer than ``consume_timeout_seconds``."""


class UndecodableError(Exception):
    """The codec cannot decode some messages; *messages* pairs each with the reason."""

    def __init__(self, messages: list[tuple[MessageExt, PayloadError]]) -> None:
        super().__init__(f"{len(messages)} messages cannot be decoded")
        self.messages = messages


class BatchContext:
    """Lets a batch handler acknowledge part of a batch, or commit later.

    :ivar queue: the queue of all messages of the batch
    :ivar ack_index: set by the handler: index of the last message that is done; those behind it
        are retried.  None means all are done, -1 none
    :ivar delay_level: for the retried messages, as in `RetryLater`; also if the handler raises
    :ivar auto_commit: of an orderly handler: False keeps the batch uncommitted until `commit`
    """

    __slots__ = (
        *("ack_index", "auto_commit", "committed", "delay_level", "error", "queue"),
        "rolled_back",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.ack_index: int | None = None
        self.delay_level = 0
        self.auto_commit = True
        self.committed = False
        self.rolled_back = False
        self.error: Exception | None = None  # that the handler raised after it set a delay level

    @property
    def says_more(self) -> bool:
        """Whether the handler changed anything: else the whole batch is done."""
        chosen = self.ack_index is not None or self.auto_commit is not True
        return chosen or self.committed or self.rolled_back

    def commit(self) -> None:
        """Of an orderly handler: commit this batch and the uncommitted ones before it."""
        self.committed = True

    def rollback(self) -> None:
        """Of an orderly handler: redeliver all messages since the last commit."""
        self.rolled_back = True

    def done(self, size: int) -> int:
        """Return how many messages of a batch of *size* are done.

        :raises ConfigError: the handler set something other than numbers
        """
        check_delay_level(self.delay_level)
        if self.rolled_back or self.error is not None:
            return 0
        last = self.ack_index
        if last is None:
            return size
        if type(last) is not int:
            raise ConfigError("ack_index", last, "expected a whole number or None")
        return max(0, min(last + 1, size))


class Handler:
    """The application's handler, as workers call it.

    :ivar threads: runs a plain function; None for an async handler
    :ivar call: takes messages of one queue
    :ivar one: the handler itself if it is async, takes single messages and is not wrapped
    :raises ConfigError: not exactly one handler is given, or its signature does not fit
    """

    def __init__(
        self, on_message: MessageHandler | None, on_batch: BatchHandler | None, *, name: str
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
            # The executor starts a thread only when a worker needs one.
            self.threads = ThreadPoolExecutor(MAX_CONCURRENCY, thread_name_prefix=name)
        self.call: Call
        self.one: One | None = None
        if on_message is None:
            self.call = _calling_batch(cast(BatchHandler, on_batch), self.threads)
        else:
            self.call = _calling_one(on_message, self.threads)
            if self.threads is None:
                self.one = cast(One, on_message)

    def wrap(self, around: Callable[[Call], Call]) -> None:
        self.one = None
        self.call = around(self.call)


def _calling_one(handler: MessageHandler, threads: Executor | None) -> Call:
    if threads is None:  # await the handler's own coroutine, without another around it
        return lambda messages: cast(Awaitable[object], handler(messages[0]))
    return lambda messages: call_in_thread(threads, handler, messages[0])


def _calling_batch(handler: BatchHandler, threads: Executor | None) -> Call:
    async def call(messages: list[MessageExt]) -> BatchContext | RetryRequest | None:
        context = BatchContext(messages[0].queue)
        given = list(messages)  # the handler may change its list, even after a timeout
        result: object
        try:
            if threads is None:
                result = await handler(given, context)  # type: ignore[misc]  # it is async
            else:
                result = await call_in_thread(threads, handler, given, context)
        except Exception as error:  # the application's code
            if context.delay_level == 0 or is_retry_request(error):
                raise
            context.error = error
            return context
        if is_retry_request(result):
            return result
        return context if context.says_more else None

    return call


def decoding(call: Call, codec: Codec) -> Call:
    """Return a call that decodes the values of messages first.

    It raises `UndecodableError` without calling the handler if some cannot be decoded.
    """

    async def decode_and_call(messages: list[MessageExt]) -> object:
        _, bad = decode_all(codec, messages)
        if bad:
            raise UndecodableError(bad)
        return await call(messages)

    return decode_and_call


def hooked(call: Call, hooks: ConsumeHooks, group: str) -> Call:
    async def run_hooks_and_call(messages: list[MessageExt]) -> object:
        first = messages[0]
        context = ConsumeContext(
            group=group, topic=first.topic, queue=first.queue, messages=list(messages)
        )
        hooks.before(context)
        started = monotonic()
        try:
            result = await call(messages)
        except BaseException as error:
            context.status, context.error = "failed", error
            raise
        else:
            context.status = "ok"
            if type(result) is BatchContext:
                context.error = result.error
            elif is_retry_request(result):  # returned instead of raised
                context.error = result
            if context.error is not None:
                context.status = "failed"
            return result
        finally:
            context.seconds = monotonic() - started
            hooks.after(context)

    return run_hooks_and_call
