"""Every exception of this package, one tree, one type per decision of the caller.

A message says what happened and what to do; the facts are attributes, so that nobody has to
parse a message.  What a broker said is kept word for word in ``remark``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketmq_aio.model.errors import (
    CodecError as CodecError,
)
from rocketmq_aio.model.errors import (
    ConfigError as ConfigError,
)
from rocketmq_aio.model.errors import (
    InvalidMessageError as InvalidMessageError,
)
from rocketmq_aio.model.errors import (
    PayloadError as PayloadError,
)
from rocketmq_aio.model.errors import (
    RocketMQError as RocketMQError,
)
from rocketmq_aio.model.errors import (
    shown as shown,
)
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue, SendResult

SHOWN_ATTEMPTS: Final = 5  # of the last ones; the attribute keeps them all


def missing_extra(name: str) -> str:
    """Return what to install where a library is missing, wherever the package comes from."""
    return f"install rocketmq-aio with its extra [{name}]"


def with_notes(error: BaseException) -> str:
    """Return what *error* says, and the notes that were added to it."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


class NotRunningError(RocketMQError):
    """Called before ``start()``, from another event loop, or after the client failed for good."""


class ClosedError(NotRunningError):
    """Called after ``close()``, or closed while the call was waiting."""


class NameServerUnavailableError(RocketMQError):
    """No name server answered; ``addresses`` maps each one tried to its own cause."""

    def __init__(self, addresses: Mapping[str, BaseException]) -> None:
        causes = "; ".join(
            f"{address}: {shown(str(e)).removeprefix(f'{address}: ')}"
            for address, e in addresses.items()
        )
        super().__init__(f"no name server answered ({causes or 'none is configured'})")
        self.addresses = dict(addresses)


class RouteNotFoundError(RocketMQError):
    """The name server knows no such topic, or it has no queue that may be used this way."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic!r}: {reason}")
        self.topic = topic


class NotConnectedError(RocketMQError):
    """The request never left this process: repeating it is safe."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLostError(RocketMQError):
    """The request left and no answer will come: the broker may have acted on it."""

    def __init__(self, address: str, code: int, reason: str) -> None:
        super().__init__(f"{address}: connection lost with request {code} unanswered: {reason}")
        self.address = address
        self.code = code
        self.reason = reason


class RequestTimeoutError(RocketMQError, TimeoutError):
    """The request left and was not answered in time: the broker may have acted on it."""

    def __init__(self, address: str, code: int, seconds: float) -> None:
        super().__init__(f"{address}: no answer to request {code} within {seconds:.3g} s")
        self.address = address
        self.code = code
        self.seconds = seconds


class BrokerError(RocketMQError):
    """The broker (or name server) said no; ``remark`` holds its own words."""

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        super().__init__(f"{address}: code {code}: {shown(remark) or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


class AuthError(BrokerError):
    """Wrong or missing credentials: ask a human, never retry."""


class PermissionDeniedError(BrokerError):
    """The topic, the group or the account may not do this."""


class BusyError(BrokerError):
    """The broker is overloaded: worth retrying after a pause."""


class SubscriptionError(BrokerError):
    """The filter expression or the group's subscription is not accepted."""


class OffsetIllegalError(BrokerError):
    """The queue holds no such offset, and the policy is not to correct it silently."""


class MessageNotFoundError(BrokerError):
    """No message is stored at the place that an administrator asked for, or none any more."""


class NotSupportedError(BrokerError):
    """The peer does not know this request: too old, or not a broker at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempt:
    """One try of a send: where it went, how it ended, how long it took."""

    address: str
    cause: BaseException
    seconds: float


class SendError(RocketMQError):
    """A send failed after all attempts, and no broker stored the message."""

    outcome = "the message was not stored"

    def __init__(self, topic: str, message_id: str, attempts: Sequence[SendAttempt]) -> None:
        tried = "; ".join(
            f"{a.address} after {a.seconds:.3f} s: {type(a.cause).__name__}: {shown(str(a.cause))}"
            for a in attempts[-SHOWN_ATTEMPTS:]
        )
        if (unshown := len(attempts) - SHOWN_ATTEMPTS) > 0:
            tried = f"{unshown} more attempts; {tried}"
        super().__init__(f"send to {topic!r} ({message_id}) failed, {self.outcome}: {tried}")
        self.topic = topic
        self.message_id = message_id
        self.attempts = tuple(attempts)


class SendUnknownError(SendError):
    """At least one attempt may have stored it: sending again may store it twice."""

    outcome = "it may have been stored"


class BackpressureError(RocketMQError):
    """`send_nowait` found no room: the message was not sent; try later, or await `send`."""

    def __init__(self, topic: str, in_flight: int, in_flight_bytes: int) -> None:
        super().__init__(
            f"no room for a message to {topic!r}: {in_flight} sends with {in_flight_bytes} bytes "
            "are unanswered (max_in_flight, max_in_flight_bytes)"
        )
        self.topic = topic
        self.in_flight = in_flight
        self.in_flight_bytes = in_flight_bytes


class HalfMessageError(RocketMQError):
    """The message of a transaction was not stored as safely as asked for, and was taken back.

    The local part did not run: the whole transaction may be tried again.  ``result`` says what was
    missing.
    """

    def __init__(self, result: SendResult) -> None:
        missed = f"half message {result.message_id} was stored with {result.status.name} only"
        super().__init__(f"{missed}: the transaction is rolled back")
        self.result = result


class ReplyTimeoutError(RocketMQError, TimeoutError):
    """A request has no reply: ``message_id`` is that of the request, None if it was not sent.

    Whoever was asked may have worked on it all the same.
    """

    def __init__(self, topic: str, message_id: str | None, reason: str) -> None:
        super().__init__(f"request to {topic!r} ({message_id or '-'}): {reason}")
        self.topic = topic
        self.message_id = message_id
        self.reason = reason


class BatchError(RocketMQError):
    """Of the requests of one `send_batch` call some failed.

    ``outcomes`` holds, in the order of the messages, a `SendResult` or the error of each.
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
    """Of several servers some did not do what an administrator asked for; the others did.

    ``done`` maps the name of each that did to what came of it, ``failed`` each other one to its
    cause.  What was asked for may be asked for again.
    """

    def __init__(
        self, action: str, done: Mapping[str, object], failed: Mapping[str, RocketMQError]
    ) -> None:
        causes = "; ".join(f"{shown(name)}: {shown(str(e))}" for name, e in failed.items())
        of_all = f"{len(failed)} of {len(done) + len(failed)} servers"
        others = f"; done on {', '.join(map(shown, done))}" if done else ""
        super().__init__(f"{shown(action)} failed on {of_all}: {causes}{others}")
        self.action = action
        self.done = dict(done)
        self.failed = dict(failed)


class UnreadableMessagesError(RocketMQError):
    """Of the messages that an administrator asked for some cannot be read; ``messages`` has the
    others.

    ``unreadable`` maps each of them, with its body as it is stored, to the cause.
    """

    def __init__(
        self,
        messages: Iterable[MessageExt],
        unreadable: Iterable[tuple[MessageExt, CodecError]],
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
    """The receipt of a popped message is dead, or may be: the group may get the message again."""

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__(f"message {shown(message_id)}: {reason}")
        self.message_id = message_id
        self.reason = reason


class AckError(RocketMQError):
    """The group will, or may, get some messages again; ``lost`` maps each one to its cause."""

    def __init__(self, lost: Iterable[tuple[MessageExt, RocketMQError]]) -> None:
        self.lost = dict(lost)
        first = next(iter(self.lost.values()), None)
        super().__init__(f"{len(self.lost)} message(s) not surely acknowledged: {first}")
