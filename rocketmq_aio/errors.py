"""All exceptions of this package: one type per decision of the caller.

The message says what happened and what to do; attributes hold the facts.  ``remark`` is the
broker's own text, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketmq_aio.model.errors import (
    CodecError as CodecError,
    ConfigError as ConfigError,
    InvalidMessageError as InvalidMessageError,
    PayloadError as PayloadError,
    RocketMQError as RocketMQError,
    shown as shown,
    text_of as text_of,
)
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue, SendResult

NO_ADDRESS: Final = "-"  # no server has a part in it
SHOWN_ATTEMPTS: Final = 5  # the last ones; the attribute has them all


def missing_extra(name: str) -> str:
    """Return how to install the extra *name*, for errors about a missing library."""
    return f"install rocketmq-aio with its extra [{name}]"


def with_notes(error: BaseException) -> str:
    """Return the message of *error* with its notes."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


class NotRunningError(RocketMQError):
    """Called before ``start()``, from another event loop, or after a permanent failure."""


class ClosedError(NotRunningError):
    """Called after ``close()``, or closed during the call."""


class NameServerUnavailableError(RocketMQError):
    """No name server responded; ``addresses`` maps each tried address to its cause."""

    def __init__(self, addresses: Mapping[str, BaseException]) -> None:
        causes = "; ".join(
            f"{address}: {shown(str(e)).removeprefix(f'{address}: ')}"
            for address, e in addresses.items()
        )
        super().__init__(f"no name server responded ({causes or 'none is configured'})")
        self.addresses = dict(addresses)


class RouteNotFoundError(RocketMQError):
    """The topic does not exist, or has no readable or writable queue for this call."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic!r}: {reason}")
        self.topic = topic


class NotConnectedError(RocketMQError):
    """The request was not sent: retrying is safe."""

    def __init__(self, address: str, reason: str) -> None:
        place = "" if address == NO_ADDRESS else f"{shown(address)}: "
        super().__init__(place + shown(reason))
        self.address = address
        self.reason = reason


class ConnectionLostError(RocketMQError):
    """The request was sent and its response lost: the broker may have executed it."""

    def __init__(self, address: str, code: int, reason: str) -> None:
        super().__init__(
            f"{shown(address)}: connection lost with request {code} unanswered: {shown(reason)}"
        )
        self.address = address
        self.code = code
        self.reason = reason


class RequestTimeoutError(RocketMQError, TimeoutError):
    """The request was sent and timed out: the broker may have executed it."""

    def __init__(self, address: str, code: int, seconds: float) -> None:
        super().__init__(f"{shown(address)}: no response to request {code} within {seconds:.3g} s")
        self.address = address
        self.code = code
        self.seconds = seconds


class BrokerError(RocketMQError):
    """The broker or name server returned an error code; ``remark`` is its text."""

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        where = f"{shown(address)}: " if address else ""
        super().__init__(f"{where}code {code}: {shown(remark) or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


class AuthError(BrokerError):
    """Wrong or missing credentials: retrying does not help."""


class PermissionDeniedError(BrokerError):
    """The topic, the group or the account lacks the permission."""


class BusyError(BrokerError):
    """The broker is overloaded: retry after a pause."""


class SubscriptionError(BrokerError):
    """The broker rejected the filter expression or the subscription of the group."""


class OffsetIllegalError(BrokerError):
    """The offset is not in the queue, and ``offset_illegal="error"`` forbids correcting it."""


class MessageNotFoundError(BrokerError):
    """No message is stored at the requested position."""


class NotSupportedError(BrokerError):
    """The peer does not support this request: too old, or not a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempt:
    """One attempt of a send: broker address ("-": no request was sent), cause, duration."""

    address: str
    cause: BaseException
    seconds: float


def _described(attempt: SendAttempt) -> str:
    if attempt.address == NO_ADDRESS:
        return shown(str(attempt.cause))
    name = type(attempt.cause).__name__
    return f"{attempt.address} after {attempt.seconds:.3f} s: {name}: {shown(str(attempt.cause))}"


class SendError(RocketMQError):
    """A send failed after all attempts; no broker stored the message."""

    outcome = "the message was not stored"

    def __init__(self, topic: str, message_id: str, attempts: Sequence[SendAttempt]) -> None:
        tried = "; ".join(_described(attempt) for attempt in attempts[-SHOWN_ATTEMPTS:])
        if (unshown := len(attempts) - SHOWN_ATTEMPTS) > 0:
            tried = f"{unshown} more attempts; {tried}"
        given_id = f" ({message_id})" if message_id else ""
        super().__init__(f"send to {topic!r}{given_id} failed, {self.outcome}: {tried}")
        self.topic = topic
        self.message_id = message_id
        self.attempts = tuple(attempts)


class SendUnknownError(SendError):
    """At least one attempt may have stored the message: sending again may duplicate it."""

    outcome = "it may have been stored"


class BackpressureError(RocketMQError):
    """`send_nowait` reached ``max_in_flight``: the message was not sent; retry, or await `send`."""

    def __init__(self, topic: str, in_flight: int, in_flight_bytes: int) -> None:
        super().__init__(
            f"no room for a message to {topic!r}: {in_flight} sends with {in_flight_bytes} bytes "
            "are unanswered (max_in_flight, max_in_flight_bytes)"
        )
        self.topic = topic
        self.in_flight = in_flight
        self.in_flight_bytes = in_flight_bytes


class HalfMessageError(RocketMQError):
    """The half message was stored with a weaker guarantee than required, and rolled back.

    The local transaction did not run: retry the whole transaction.  ``result.status`` is the
    guarantee that was missed.
    """

    def __init__(self, result: SendResult) -> None:
        missed = f"half message {result.message_id} was stored with {result.status.name} only"
        super().__init__(f"{missed}: the transaction is rolled back")
        self.result = result


class ReplyTimeoutError(RocketMQError, TimeoutError):
    """No reply arrived; ``message_id`` is the id of the request, None if it was not sent.

    A consumer may have processed the request all the same.
    """

    def __init__(self, topic: str, message_id: str | None, reason: str) -> None:
        super().__init__(f"request to {topic!r} ({message_id or '-'}): {reason}")
        self.topic = topic
        self.message_id = message_id
        self.reason = reason


class BatchError(RocketMQError):
    """Some requests of a `send_batch` call failed.

    ``outcomes`` has the `SendResult` or the error of each message, in their order.
    """

    def __init__(self, outcomes: Sequence[SendResult | RocketMQError]) -> None:
        failed = [each for each in outcomes if isinstance(each, RocketMQError)]
        first = f": {failed[0]}" if failed else ""
        super().__init__(f"{len(failed)} of {len(outcomes)} messages failed{first}")
        self.outcomes = tuple(outcomes)


class CommitError(RocketMQError):
    """Some queues could not be committed; ``lost`` maps each one to its cause."""

    def __init__(self, lost: Mapping[MessageQueue, BaseException]) -> None:
        causes = "; ".join(f"{shown(str(queue))}: {shown(str(e))}" for queue, e in lost.items())
        super().__init__(f"{len(lost)} queue(s) not committed: {causes}")
        self.lost = dict(lost)


class AdminError(RocketMQError):
    """An administrative call failed on some servers and succeeded on the others.

    ``done`` maps server names to results, ``failed`` to causes; calls for several topics, members
    or names have these instead of servers (*of*).  ``unchanged`` is True if a call that changes
    something failed while it was still reading.  Repeating the call is safe.
    """

    def __init__(
        self,
        action: str,
        done: Mapping[str, object],
        failed: Mapping[str, RocketMQError],
        *,
        of: str = "servers",
        unchanged: bool = False,
    ) -> None:
        causes = "; ".join(_named(shown(name), shown(str(e))) for name, e in failed.items())
        of_all = f"{len(failed)} of {len(done) + len(failed)} {of}"
        others = f"; done on {', '.join(map(shown, done))}" if done else ""
        if unchanged:
            others = "; nothing was changed"
        super().__init__(f"{shown(action)} failed on {of_all}: {causes}{others}")
        self.action = action
        self.done = dict(done)
        self.failed = dict(failed)
        self.of = of
        self.unchanged = unchanged


def _named(name: str, cause: str) -> str:
    """Return *cause* with the name of its server, which may be the address that it begins with."""
    return cause if cause.startswith(f"{name}: ") else f"{name}: {cause}"


class UnreadableMessagesError(RocketMQError):
    """Some of the requested messages cannot be read; ``messages`` has the others.

    ``unreadable`` maps each, with its body as stored, to the cause.
    """

    def __init__(
        self, messages: Iterable[MessageExt], unreadable: Iterable[tuple[MessageExt, CodecError]]
    ) -> None:
        self.messages = tuple(messages)
        self.unreadable = dict(unreadable)
        found = len(self.messages) + len(self.unreadable)
        causes = "; ".join(
            f"{shown(str(message.queue))} at offset {message.queue_offset}: {shown(str(fault))}"
            for message, fault in self.unreadable.items()
        )
        of_all = f"{len(self.unreadable)} of {found} messages cannot be read"
        super().__init__(f"{of_all} (the others are in .messages): {causes}")


class ReceiptError(RocketMQError):
    """The receipt of a popped message has, or may have, expired: it may be redelivered."""

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__(f"message {shown(message_id)}: {reason}")
        self.message_id = message_id
        self.reason = reason


class AckError(RocketMQError):
    """Some messages were not acknowledged and may be redelivered; ``lost`` maps them to causes."""

    def __init__(self, lost: Iterable[tuple[MessageExt, RocketMQError]]) -> None:
        self.lost = dict(lost)
        first = next(iter(self.lost.values()), None)
        super().__init__(f"{len(self.lost)} message(s) not surely acknowledged: {first}")


# No response came: the server may be down; it executed the request at most after the last two.
NO_RESPONSE: Final = (NotConnectedError, ConnectionLostError, RequestTimeoutError)
