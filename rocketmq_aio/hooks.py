"""Hooks: callbacks of the application around requests, sends, handlers and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from rocketmq_aio.model.errors import InvalidMessageError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import (
    MAX_PROPERTIES,
    check_encoded,
    encode_properties,
    take_properties,
)
from rocketmq_aio.model.values import MessageQueue, SendResult, TransactionState

# With room for what producers and brokers add: the id, the producer group, where to reply.
MAX_WITH_ADDED: Final = MAX_PROPERTIES - 1024


@runtime_checkable
class RPCHook(Protocol):
    """Called for every request before it is signed and written, and for every response.

    Hooks run in order, on the event loop: keep them short.  With an RPC hook the client does not
    use prepared frames.  A hook that raises is logged, once per kind of failure, and ignored.
    """

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        """Called before a request; may change *ext_fields*."""

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        """Called after the response to request *code*."""


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumeContext:
    """A run of a handler; the same object is passed before and after it.

    *status*, *error* (raised by the handler, or a retry that it returned) and *seconds* (duration)
    are set afterwards.  *notes* is for hooks only, for example for a span.

    For consumers without handlers it is the messages of one queue that a call returns; *mode* is
    ``poll`` or ``receive``.  Both methods run before the call returns, so *status* does not cover
    the processing.
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
    """Called around every run of a handler, or for the messages that a poll returns.

    Hooks run in order, `after` in reverse order, on the event loop: keep them short.  A hook that
    raises is logged, once per kind of failure, and ignored.
    """

    def before(self, context: ConsumeContext) -> None:
        """Called before the handler runs."""

    def after(self, context: ConsumeContext) -> None:
        """Called after the handler returned, raised or was cancelled."""


@runtime_checkable
class FilterMessageHook(Protocol):
    """Filters pulled messages; those it leaves out count as processed.

    Runs on the event loop.  A hook that raises is logged as a `ConsumeHook` is; it filters nothing.
    """

    def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
        """Return those of *messages*, all of one queue, to pass to the handler."""
        ...


class SendContext(msgspec.Struct, kw_only=True, eq=False):
    """A send call of a producer; the same object is passed before and after it.

    *outcomes*, *error* and *seconds* are set afterwards.  *notes* is for hooks only, for example
    for a span.

    :ivar mode: the method called: ``send``, ``send_nowait``, ``send_oneway``,
        ``send_batch``, ``request``, ``reply`` or ``transaction`` (its half message)
    :ivar messages: the messages; all of a ``send_batch``
    :ivar queue: the queue passed by the caller, if any
    :ivar outcomes: the result or error of each message; empty for ``send_oneway``
    :ivar error: the exception raised to the caller, if any
    :ivar seconds: duration
    """

    group: str
    mode: str
    messages: Sequence[Message]
    queue: MessageQueue | None = None
    notes: dict[str, Any] = {}
    outcomes: Sequence[SendResult | BaseException] = ()
    error: BaseException | None = None
    seconds: float | None = None

    @property
    def message(self) -> Message:
        """The first message."""
        return self.messages[0]

    @property
    def result(self) -> SendResult | None:
        """The result of the first message, or None."""
        first = self.outcomes[0] if self.outcomes else None
        return first if isinstance(first, SendResult) else None

    def add_properties(self, properties: Mapping[str, str], place: int = 0) -> None:
        """Add *properties* to the message at index *place*; only in ``before_send``.

        The application's `Message` is not changed.

        :raises InvalidMessageError: a name or value is invalid, or the properties of the message
            would be too large
        """
        message, added = copy(self.messages[place]), dict[str, str]()
        check_encoded(message.topic, take_properties(message.topic, properties, added), len(added))
        message.properties = message.properties | added
        message.encoded_properties = encode_properties(message.properties)
        if (size := len(message.encoded_properties.encode())) > MAX_WITH_ADDED:
            reason = f"its keys, tags and properties would take {size} bytes"
            raise InvalidMessageError(message.topic, f"{reason}, hooks may fill {MAX_WITH_ADDED}")
        if not isinstance(self.messages, list):  # once, not for each message of a batch
            self.messages = list(self.messages)
        self.messages[place] = message


@runtime_checkable
class SendHook(Protocol):
    """Called around every send call, once whatever the number of attempts.

    Hooks run in order, `after_send` in reverse order, on the event loop: keep them short.  A hook
    that raises is logged, once per kind of failure, and ignored.
    """

    def before_send(self, context: SendContext) -> None:
        """Called before the send; `SendContext.add_properties` may add to the messages."""

    def after_send(self, context: SendContext) -> None:
        """Called after the send succeeded, failed or was cancelled."""


@runtime_checkable
class CheckForbiddenHook(Protocol):
    """Called before any `SendHook`; may reject the send."""

    def check_forbidden(self, context: SendContext) -> None:
        """Raise an exception to reject the send; the caller gets it."""


class EndTransactionContext(msgspec.Struct, kw_only=True, eq=False):
    """The end of a transaction; for UNKNOWN the broker may not have been notified.

    :ivar message: the message sent; after a check by the broker, the stored one
    :ivar address: address of the broker that stores it
    :ivar from_check: whether the broker checked the transaction
    :ivar error: why the broker did not confirm the end, if so
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
    """Called when a transaction ends, on the event loop; errors as for `SendHook`."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Called after END_TRANSACTION was sent, or failed."""
