"""Hooks: code of the application that runs around the client's own work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import check_encoded, encode_properties, take_properties
from rocketmq_aio.model.values import MessageQueue, SendResult, TransactionState


@runtime_checkable
class RPCHook(Protocol):
    """Sees every request before it is signed and written, and every answer.

    Hooks run in order.  One that raises is logged, once per kind of failure, and changes nothing.
    They run on the event loop for every request, and switch off the client's prepared frames: keep
    them short.
    """

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        """May add to or change *ext_fields* of the request."""

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        """Sees the answer to request *code*."""


@dataclass(slots=True, kw_only=True)
class ConsumeContext:
    """One run of a handler; the same object comes before and after it.

    The last four are known afterwards.  *error* is what the handler raised, *seconds* how long it
    ran.  *notes* is for hooks alone: a span that one began, for example.

    Of consumers without handlers it is what one call hands out of one queue: *mode* is ``poll`` or
    ``receive`` then.  Both come before the caller has the messages, so *status* says nothing of
    the work on them.
    """

    group: str
    topic: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    mode: str = "handle"
    notes: dict[str, Any] = field(default_factory=dict)
    status: str | None = None
    error: BaseException | None = None
    seconds: float | None = None


@runtime_checkable
class ConsumeHook(Protocol):
    """Sees every batch before its handler runs, and how that ended; or what a poll hands out.

    Hooks run in order, before and after, on the event loop: keep them short.  One that raises is
    logged, once per kind of failure, and changes nothing.
    """

    def before(self, context: ConsumeContext) -> None:
        """The handler is about to run."""

    def after(self, context: ConsumeContext) -> None:
        """The handler ended, in whatever way."""


@runtime_checkable
class FilterMessageHook(Protocol):
    """Chooses among the messages that were pulled; what it leaves out counts as done.

    Runs on the event loop; one that raises is logged as a `ConsumeHook` is, and leaves none out.
    """

    def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
        """Return those of *messages*, all of one queue, that a handler is to see."""
        ...


class SendContext(msgspec.Struct, kw_only=True, eq=False):
    """One call of a producer that sends; the same object comes before and after it.

    The last three are known afterwards.  *notes* is for hooks alone: a span that one began, for
    example.

    :ivar mode: the method that was called: ``send``, ``send_nowait``, ``send_oneway``,
        ``send_batch``, ``request``, ``reply`` or ``transaction`` (its half message)
    :ivar messages: what is sent, of ``send_batch`` all of it
    :ivar queue: the one that the caller has chosen, if any
    :ivar outcomes: of each message its result, or what failed; empty of ``send_oneway``
    :ivar error: what the caller gets to see, if the call failed
    :ivar seconds: how long it took
    """

    group: str
    mode: str
    messages: tuple[Message, ...]
    queue: MessageQueue | None = None
    notes: dict[str, Any] = {}
    outcomes: Sequence[SendResult | BaseException] = ()
    error: BaseException | None = None
    seconds: float | None = None

    @property
    def message(self) -> Message:
        """The only message, or the first one."""
        return self.messages[0]

    @property
    def result(self) -> SendResult | None:
        """The result of the only message, or of the first one; None if it has none."""
        first = self.outcomes[0] if self.outcomes else None
        return first if isinstance(first, SendResult) else None

    def add_properties(self, properties: Mapping[str, str], place: int = 0) -> None:
        """Let the message at *place* travel with more *properties*; before it is sent only.

        The application's own `Message` stays as it is.

        :raises InvalidMessageError: a name or value is none that can be sent
        """
        changed = _with_properties(self.messages[place], properties)
        self.messages = (*self.messages[:place], changed, *self.messages[place + 1 :])


def _with_properties(message: Message, properties: Mapping[str, str]) -> Message:
    added: dict[str, str] = {}
    check_encoded(message.topic, take_properties(message.topic, properties, added), len(added))
    changed = copy(message)
    changed.properties = message.properties | added
    changed.encoded_properties = encode_properties(changed.properties)
    return changed


@runtime_checkable
class SendHook(Protocol):
    """Sees every call that sends, and how it ended: once, however often it was tried.

    Hooks run in order, before and after, on the event loop: keep them short.  One that raises is
    logged, once per kind of failure, and changes nothing.
    """

    def before_send(self, context: SendContext) -> None:
        """Something is about to be sent; `SendContext.add_properties` may say more with it."""

    def after_send(self, context: SendContext) -> None:
        """The call ended, in whatever way."""


@runtime_checkable
class CheckForbiddenHook(Protocol):
    """May refuse what is about to be sent; asked before any `SendHook`."""

    def check_forbidden(self, context: SendContext) -> None:
        """Raise what the caller is to get; then nothing is sent."""


class EndTransactionContext(msgspec.Struct, kw_only=True, eq=False):
    """A transaction was decided, and the broker told so; of UNKNOWN it may not have been.

    :ivar message: as it was sent; after a check of the broker, as it is stored
    :ivar address: of the broker that holds it
    :ivar from_check: the broker had asked
    :ivar error: why the broker has not confirmed it, if it has not
    """

    group: str
    message: Message | MessageExt
    message_id: str
    transaction_id: str
    state: TransactionState
    address: str
    from_check: bool
    error: BaseException | None = None
    seconds: float | None = None


@runtime_checkable
class EndTransactionHook(Protocol):
    """Sees how transactions end.  Runs on the event loop; failures are those of `SendHook`."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """The broker was told, or could not be told."""
