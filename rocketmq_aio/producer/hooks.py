"""Calls the hooks of an application around what a producer does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Final, Protocol, TypeVar, runtime_checkable

from rocketmq_aio.errors import BatchError
from rocketmq_aio.hooks import (
    CheckForbiddenHook,
    EndTransactionContext,
    EndTransactionHook,
    SendContext,
    SendHook,
)
from rocketmq_aio.instance.hook_runner import HookRunner, bound_methods, check_hook
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.send_request import SendRequest

METHODS: Final = ("before_send", "after_send", "check_forbidden", "end_transaction")


@runtime_checkable
class StoredHook(Protocol):
    """A hook of this package: hears of every request that stored something, at little cost."""

    def stored(self, sent: SendRequest, result: SendResult, seconds: float) -> None:
        """The broker has stored *sent*; never raises."""

    def recalled(self, topic: str, message_id: str) -> None:
        """A message was taken back."""


KINDS: Final = SendHook | CheckForbiddenHook | EndTransactionHook | StoredHook

Said = TypeVar("Said")


class SendHooks:
    """Runs hooks around sends; false when there are none.

    :raises ConfigError: one of *hooks* does nothing here, or does it in a coroutine
    """

    def __init__(self, hooks: Iterable[object] = ()) -> None:
        given = list(hooks)
        for hook in given:
            check_hook(hook, KINDS, METHODS)
        self._checks = [h.check_forbidden for h in given if isinstance(h, CheckForbiddenHook)]
        send = [h for h in given if isinstance(h, SendHook)]
        self._before, self._after = (
            bound_methods(send, "before_send"),
            bound_methods(send, "after_send"),
        )
        ends = [h for h in given if isinstance(h, EndTransactionHook)]
        self._ends = bound_methods(ends, "end_transaction")
        self._recalled = [h.recalled for h in given if isinstance(h, StoredHook)]
        self.stored = [h.stored for h in given if isinstance(h, StoredHook)]
        self._runner = HookRunner()

    def __bool__(self) -> bool:
        return bool(self._before or self._checks)

    @property
    def hear_endings(self) -> bool:
        """Whether somebody wants to know how transactions end."""
        return bool(self._ends)

    async def around(self, context: SendContext, send: Callable[[], Awaitable[Said]]) -> Said:
        """Await *send*, which is to send the messages of *context* as they are then.

        :raises Exception: what a hook forbids it with; *send* was not called
        """
        self.before(context)
        started = monotonic()
        try:
            said = await send()
            if isinstance(said, SendResult):
                context.outcomes = (said,)
            elif isinstance(said, list):
                context.outcomes = said
        except BaseException as error:
            self.after(context, started, error)
            raise
        self.after(context, started)
        return said

    def around_future(
        self, context: SendContext, send: Callable[[], asyncio.Future[SendResult]]
    ) -> asyncio.Future[SendResult]:
        """As `around`, of something that is not awaited."""
        self.before(context)
        started = monotonic()

        def ended(future: asyncio.Future[SendResult]) -> None:
            error: BaseException | None = None
            if future.cancelled():
                error = asyncio.CancelledError()
            elif (error := future.exception()) is None:
                context.outcomes = (future.result(),)
            self.after(context, started, error)

        try:
            future = send()
        except BaseException as error:
            self.after(context, started, error)
            raise
        future.add_done_callback(ended)
        return future

    def before(self, context: SendContext) -> None:
        """Ask those who may forbid it, then tell the others."""
        for check in self._checks:
            check(context)
        self._runner.run(self._before, context)

    def after(
        self, context: SendContext, started: float, error: BaseException | None = None
    ) -> None:
        """Tell how it ended."""
        context.seconds = monotonic() - started
        if error is not None:
            context.error = error
            outcomes = error.outcomes if isinstance(error, BatchError) else None
            context.outcomes = outcomes or (error,) * len(context.messages)
        self._runner.run(self._after, context)

    def recalled(self, topic: str, message_id: str) -> None:
        """Tell that a message was taken back."""
        for tell in self._recalled:
            tell(topic, message_id)

    def transaction_ended(self, context: EndTransactionContext) -> None:
        """Tell how a transaction ended."""
        self._runner.run(self._ends, context)
