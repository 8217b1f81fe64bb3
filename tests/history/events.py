"""Events of a run; times are seconds of CLOCK_MONOTONIC, which the processes of a machine share.

Each event is a line of JSON in the file of its process.  What takes time is two events: the second
(`SendEnded`, `HandlerEnded`, `Confirmed` ...) names the first by its number.  A killed process
leaves the first one without its end, whose outcome is then unknown.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Final

import msgspec

from rocketmq_aio.model.values import MessageQueue

UID: Final = "uid"  # the property that a recorder adds to each message
MAX_BODY: Final = 64  # bytes; of longer bodies the digest is recorded


class Outcome(Enum):
    """Outcome of an operation; only FAIL certainly had no effect."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


def short_body(body: bytes) -> bytes:
    """Return *body*, or its digest and size if it is long."""
    if len(body) <= MAX_BODY:
        return body
    return b"sha256 %s of %d bytes" % (hashlib.sha256(body).hexdigest().encode(), len(body))


class Event(msgspec.Struct, kw_only=True, tag=True, omit_defaults=True):
    """Base of all events."""


class OfMessage(Event, kw_only=True):
    """Base of events about a message; *uid* is the property of that name, else ""."""

    body: bytes = b""
    uid: str = ""

    @property
    def identity(self) -> str:
        """The identity that all copies of the message share."""
        return self.uid or self.body.decode(errors="replace")


# --- producers ------------------------------------------------------------------------------------


class Sent(OfMessage, kw_only=True):
    """One call of send; sends of one *task* are awaited one after another.

    :ivar attempts: how often it was written to a broker
    :ivar producer: client id of the producer
    :ivar batch: number of the call whose messages, in their order, fit into one request
    :ivar transaction: it is a half message: visible only after a commit
    :ivar delay_seconds: from its storage until consumers may get it, where it is known
    """

    started: float
    number: str = ""
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    topic: str = ""
    queue: MessageQueue | None = None
    offset: int | None = None
    message_id: str | None = None
    task: str | None = None
    ordering_key: str | None = None
    producer: str = ""
    batch: str = ""
    transaction: bool = False
    delayed: bool = False
    delay_seconds: float = 0.0
    attempts: int = 0
    error: str = ""


class Attempted(Event, kw_only=True):
    """The send *number* was written to a broker, once more."""

    at: float
    number: str


class SendEnded(Event, kw_only=True):
    """The send *number* returned, raised or was cancelled."""

    at: float
    number: str
    outcome: Outcome
    queue: MessageQueue | None = None
    offset: int | None = None
    message_id: str | None = None
    error: str = ""


class Recalled(Event, kw_only=True):
    """The delivery of a delayed message was cancelled; *confirmed*: the broker agreed."""

    at: float
    number: str
    uid: str
    confirmed: float | None = None


class Decided(Event, kw_only=True):
    """The application decided a transaction: "commit", "rollback" or "unknown".

    :ivar checked: in its check function, else in its local transaction
    """

    at: float
    uid: str
    state: str
    checked: bool = False


class LocalPart(Event, kw_only=True):
    """The local transaction of *uid* began."""

    at: float
    uid: str


class TransactionEnded(Event, kw_only=True):
    """END_TRANSACTION was sent for a message; the half message is at *log_offset*."""

    at: float
    message_id: str
    log_offset: int = 0
    state: str
    checked: bool = False
    number: str = ""
    confirmed: float | None = None


class LogEntry(OfMessage, kw_only=True):
    """One message in a queue after the run."""

    queue: MessageQueue
    offset: int
    message_id: str
    tags: str | None = None


# --- consumers ------------------------------------------------------------------------------------


class Joined(Event, kw_only=True):
    """A consumer started; *kind* is "push", "lite", "pull" or "pop".

    :ivar store: the name of its offset store, which in broadcasting outlives it
    """

    at: float
    consumer: str
    group: str
    process: str = ""
    kind: str = "push"
    orderly: bool = False
    broadcast: bool = False
    store: str = ""


class Left(Event, kw_only=True):
    """A consumer was closed."""

    at: float
    consumer: str
    group: str


class Subscribed(Event, kw_only=True):
    """A group reads a topic; *expression* selects tags, or is None if it is unknown."""

    group: str
    topic: str
    expression: str | None = "*"


class OfQueue(Event, kw_only=True):
    """Base of events about a queue of a group."""

    queue: MessageQueue
    group: str = ""
    consumer: str = ""


class Assigned(OfQueue, kw_only=True):
    """A queue was assigned to a consumer."""

    at: float


class Revoked(OfQueue, kw_only=True):
    """A queue was revoked, and its progress committed; or its lock was lost."""

    at: float
    lost_lock: bool = False


class Epoch(OfQueue, kw_only=True):
    """Period of assignment of a queue to a consumer; a seek or reset starts another.

    *begin* is the offset to be read first, where it is known.
    """

    number: int
    started: float
    ended: float | None = None
    begin: int | None = None
    lost_lock: bool = False

    def covers(self, at: float) -> bool:
        return self.started <= at and (self.ended is None or at <= self.ended)


class Reset(OfQueue, kw_only=True):
    """Consumption continues at *offset*: a seek of *consumer*, or a reset of the whole group."""

    at: float
    offset: int


class Poll(Event, kw_only=True):
    """One call of poll, which marks the messages of earlier ones as processed."""

    number: int
    consumer: str
    started: float
    group: str = ""


class Paused(OfQueue, kw_only=True):
    """The application paused a queue of a `LitePullConsumer`, or resumed it."""

    at: float
    paused: bool


class Pulled(OfQueue, kw_only=True):
    """A pull of all messages from *offset* on returned those at *offsets*."""

    at: float
    offset: int
    next_offset: int
    offsets: list[int]


class RangeRead(OfQueue, kw_only=True):
    """A Spark task read the offsets from *begin* to *end* (excluded) for a micro-batch.

    :ivar rows: offset and identity of each row
    """

    at: float
    batch: int
    begin: int
    end: int
    rows: list[tuple[int, str]]


class Checkpointed(Event, kw_only=True):
    """A micro-batch of *group* is in the sink and in the checkpoint: its last reads count."""

    at: float
    group: str
    batch: int


class Processed(Event, kw_only=True):
    """The application processed all messages that *consumer* returned, or those before *offset*."""

    at: float
    consumer: str
    group: str = ""
    queue: MessageQueue | None = None
    offset: int | None = None


class Delivered(OfMessage, kw_only=True):
    """One message that a poll, pull or receive returned.

    :ivar until: when it becomes visible to others again (pop)
    """

    at: float
    queue: MessageQueue
    offset: int
    group: str = ""
    consumer: str = ""
    epoch: int = 0
    poll: int = 0
    tries: int = 0
    log_offset: int | None = None
    until: float | None = None


class Handled(OfMessage, kw_only=True):
    """One call of a handler with one message; *ended* is None if it did not end.

    *tries* is the reconsume count that the handler saw.  OK settles the message, FAIL asks for
    another try, UNKNOWN is a handler that was cancelled or came too late.  The messages of a batch
    have the same *call*.
    """

    queue: MessageQueue
    offset: int
    started: float
    number: str = ""
    call: str = ""
    group: str = ""
    consumer: str = ""
    epoch: int = 0
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    tries: int = 0
    log_offset: int | None = None
    until: float | None = None

    @property
    def at(self) -> float:
        return self.started


class HandlerEnded(Event, kw_only=True):
    """The handler call *number* ended."""

    at: float
    number: str
    outcome: Outcome


class Settled(OfQueue, kw_only=True):
    """A message is committable: processed, or not *final*: stored for a retry."""

    at: float
    offset: int
    uid: str = ""
    final: bool = True


class SentBack(Event, kw_only=True):
    """A message was sent back, by its position in the commit log, or as a copy with *uid*.

    *tries* is the reconsume count of the copied message; its redeliveries have higher ones.
    """

    at: float
    number: str
    group: str
    broker: str = ""
    log_offset: int | None = None
    uid: str = ""
    tries: int = 0
    dead: bool = False
    confirmed: float | None = None


class DeadLettered(OfQueue, kw_only=True):
    """A consumer reported that it sent a message to the dead-letter topic."""

    at: float
    offset: int


class LockChange(OfQueue, kw_only=True):
    """A broker locked a queue for *consumer*, or was asked to unlock it.

    :ivar refused: the broker has given the queue to another consumer, or says so
    """

    at: float
    held: bool
    refused: bool = False


class Commit(OfQueue, kw_only=True):
    """A commit that was sent: *offset* is the next to be read.

    *confirmed* is when the broker's response arrived.
    """

    at: float
    offset: int
    number: str = ""
    confirmed: float | None = None


class Acked(OfQueue, kw_only=True):
    """The acknowledgement of a popped message was sent; *queue* is where the copy is stored."""

    at: float
    offset: int
    number: str = ""
    confirmed: float | None = None


class Hidden(OfQueue, kw_only=True):
    """The invisible time of a popped message changed: others may get it from *until* on."""

    at: float
    offset: int
    until: float


class Confirmed(Event, kw_only=True):
    """The broker confirmed the commit, acknowledgement or decision *number*."""

    at: float
    number: str


# --- the run --------------------------------------------------------------------------------------


class Fault(Event, kw_only=True):
    """A fault, and whether its effect was observed.

    :ivar kind: "kill", "stall", "cut" ... or ""
    :ivar target: the process, consumer or broker that it hits, or ""
    """

    started: float
    healed: float
    observed: bool = True
    kind: str = ""
    target: str = ""


class Drained(Event, kw_only=True):
    """All groups have consumed everything, and nothing follows."""

    at: float


class Call(Event, kw_only=True):
    """One call of a public coroutine; *ended* is None if it did not end."""

    name: str
    deadline: float
    ended: float | None


class Echo(Event, kw_only=True):
    """The nonce of a call, and the nonce of its reply."""

    sent: str
    received: str | None


AnyEvent = (
    Sent
    | Attempted
    | SendEnded
    | Recalled
    | Decided
    | LocalPart
    | TransactionEnded
    | LogEntry
    | Joined
    | Left
    | Subscribed
    | Assigned
    | Revoked
    | Reset
    | Poll
    | Paused
    | Pulled
    | RangeRead
    | Checkpointed
    | Processed
    | Delivered
    | Handled
    | HandlerEnded
    | Settled
    | SentBack
    | DeadLettered
    | LockChange
    | Commit
    | Acked
    | Hidden
    | Confirmed
    | Fault
    | Drained
    | Call
    | Echo
)
"""The type of a line of a history file."""
