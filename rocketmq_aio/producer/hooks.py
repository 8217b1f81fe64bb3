"""Send hooks: calls the application's hooks around sends and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from rocketmq_aio.config.validation import check_hook
from rocketmq_aio.errors import BatchError
from rocketmq_aio.hooks import (
    CheckForbiddenHook,
    EndTransactionContext,
    EndTransactionHook,
    SendContext,
    SendHook,
)
from rocketmq_aio.instance.hook_runner import HookRunner, bound_methods
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.send_request import SendRequest

METHODS: Final = ("before_send", "after_send", "check_forbidden", "end_transaction")


@runtime_checkable
class StoredHook(Protocol):
    """An internal hook that is called for every request that stored something."""

    def stored(self, request: SendRequest, result: SendResult, seconds: float, size: int) -> None:
        """Called after the broker stored *request*; must not raise.

        :param size: of the body, which only the request of a batch still has
        """

    def recalled(self, topic: str, message_id: str) -> None:
        """Called after a message was recalled."""


KINDS: Final = SendHook | CheckForbiddenHook | EndTransactionHook | StoredHook

T = TypeVar("T")


class SendHooks:
    """Runs hooks around the sends of *group*; false when there are none.

    :raises ConfigError: one of *hooks* has no method for producers, or an async one
    """

    def __init__(self, group: str, hooks: Iterable[object]) -> None:
        self._group = group
        given = list(hooks)
        for hook in given:
            check_hook(hook, KINDS, METHODS)
        self._checks = [h.check_forbidden for h in given if isinstance(h, CheckForbiddenHook)]
        send = [h for h in given if isinstance(h, SendHook)]
        self._before = bound_methods(send, "before_send")
        self._after = bound_methods(reversed(send), "after_send")
        ends = [h for h in given if isinstance(h, EndTransactionHook)]
        self._ends = bound_methods(ends, "end_transaction")
        self.has_end_transaction = bool(ends)
        self._recalled = [h.recalled for h in given if isinstance(h, StoredHook)]
        self.stored = [h.stored for h in given if isinstance(h, StoredHook)]
        self._runner = HookRunner()

    def __bool__(self) -> bool:
        return bool(self._before or self._checks)

    def context(self, mode: str, queue: MessageQueue | None, *messages: Message) -> SendContext:
        return SendContext(group=self._group, mode=mode, messages=messages, queue=queue)

    def around_message(
        self,
        mode: str,
        message: Message,
        queue: MessageQueue | None,
        send: Callable[[Message], Coroutine[Any, Any, T]],
    ) -> Coroutine[Any, Any, T]:
        """Await *send* with *message*, or with the message that hooks replace it by."""
        if not self:
            return send(message)
        context = self.context(mode, queue, message)
        return self.around(context, lambda: send(context.message))

    async def around(self, context: SendContext, send: Callable[[], Awaitable[T]]) -> T:
        """Await *send*, which sends the messages that *context* has after the hooks.

        :raises Exception: the error of a `CheckForbiddenHook`; *send* was not called
        """
        self.before(context)
        started = monotonic()
        try:
            result = await send()
            if isinstance(result, SendResult):
                context.outcomes = (result,)
            elif isinstance(result, list):
                context.outcomes = result
        except BaseException as error:
            self.after(context, started, error)
            raise
        self.after(context, started)
        return result

    def around_future(
        self, context: SendContext, send: Callable[[], asyncio.Future[SendResult]]
    ) -> asyncio.Future[SendResult]:
        """Do as `around` for a future that is returned at once."""
        self.before(context)
        started = monotonic()
        try:
            sent = send()
        except BaseException as error:
            self.after(context, started, error)
            raise
        # The error of `sent` counts as retrieved when the hooks have it; the caller may not care.
        returned: asyncio.Future[SendResult] = sent.get_loop().create_future()

        def on_sent(_: object) -> None:
            error = sent.exception()
            if returned.cancelled():
                return  # in this turn: `on_returned` follows
            if error is not None:
                self.after(context, started, error)
                returned.set_exception(error)
            else:
                context.outcomes = (sent.result(),)
                self.after(context, started)
                returned.set_result(sent.result())

        def on_returned(_: object) -> None:
            if returned.cancelled():
                sent.remove_done_callback(on_sent)
                sent.cancel()
                self.after(context, started, asyncio.CancelledError())

        sent.add_done_callback(on_sent)
        returned.add_done_callback(on_returned)
        return returned

    def before(self, context: SendContext) -> None:
        """Call `check_forbidden`, then `before_send`."""
        for check in self._checks:
            check(context)
        self._runner.run(self._before, context)

    def after(
        self, context: SendContext, started: float, error: BaseException | None = None
    ) -> None:
        context.seconds = monotonic() - started
        if error is not None:
            context.error = error
            outcomes = error.outcomes if isinstance(error, BatchError) else None
            context.outcomes = outcomes or (error,) * len(context.messages)
        self._runner.run(self._after, context)

    def recalled(self, topic: str, message_id: str) -> None:
        for recalled in self._recalled:
            recalled(topic, message_id)

    def transaction_ended(self, context: EndTransactionContext) -> None:
        self._runner.run(self._ends, context)
