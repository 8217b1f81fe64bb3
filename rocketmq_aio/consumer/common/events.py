"""Consumer events: values that a consumer publishes, and streams of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar
from weakref import WeakSet

import msgspec

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue

logger = get_logger(__name__)

E = TypeVar("E", bound="ConsumerEvent")

MAX_UNREAD: Final = 1000  # per stream; then the oldest events are dropped


class QueuesAssigned(msgspec.Struct, frozen=True, kw_only=True):
    """Queues were assigned to this consumer."""

    queues: tuple[MessageQueue, ...]


class QueuesRevoked(msgspec.Struct, frozen=True, kw_only=True):
    """Queues were revoked, and their progress committed."""

    queues: tuple[MessageQueue, ...]


class SubscriptionsDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """Members of the group subscribe to a topic differently, so that some miss messages.

    *ours* is this member's expression, *theirs* that of another member or of the broker's table for
    the group; None where the topic is not subscribed to.
    """

    topic: str
    ours: str | None
    theirs: str | None


class MembersDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """Members of the group differ in a setting that all must share.

    *setting* is ``message_model`` or ``orderly``, *ours* this member's value, *theirs* that of
    another.  Clustering members leave a share of the queues to a broadcasting one, which neither
    commits nor retries; a concurrent member breaks the order of the queues assigned to it.
    """

    setting: str
    ours: str
    theirs: str


class ClientIdNotUnique(msgspec.Struct, frozen=True, kw_only=True):
    """Another client has the same id, so both read the same queues and nobody reads the others.

    *addresses* are those of both as a broker sees them.  Give each its own ``instance_name``.  Pop
    consumers do not emit it: brokers assign messages to them without client ids.
    """

    client_id: str
    addresses: tuple[str, ...]


class TopicMissing(msgspec.Struct, frozen=True, kw_only=True):
    """No name server knows a subscribed topic; emitted once per outage.

    *namesrv* are the name servers in use.  *nearest* is the existing topic with the most similar
    name, None if there is none or topics cannot be listed.  The consumer reads the topic as soon as
    it exists, and emits `TopicFound`.
    """

    topic: str
    namesrv: tuple[str, ...]
    nearest: str | None


class TopicFound(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that `TopicMissing` reported exists now."""

    topic: str


class SubscriptionMatchesNothing(msgspec.Struct, frozen=True, kw_only=True):
    """The filter matched none of the last *messages* messages of a topic."""

    topic: str
    expression: str
    messages: int


class OffsetCorrected(msgspec.Struct, frozen=True, kw_only=True):
    """The offset *requested* does not exist at the broker; reading continues at *corrected*.

    *policy* is the ``offset_illegal`` setting; *remark* is the broker's, such as OFFSET_RESET after
    an administrator reset offsets.  *dropped* cached messages were discarded.
    """

    queue: MessageQueue
    requested: int
    corrected: int
    policy: str
    remark: str
    dropped: int


class QueueHeld(msgspec.Struct, frozen=True, kw_only=True):
    """The offset *requested* does not exist at the broker, and ``offset_illegal`` is ``"error"``.

    The queue is not pulled until you call `seek`; the broker suggests the offset *suggested*.
    *remark* is the broker's.
    """

    queue: MessageQueue
    requested: int
    suggested: int
    remark: str


class MessageUnreadable(msgspec.Struct, frozen=True, kw_only=True):
    """The stored message at *offset* cannot be read; *policy* is the ``unreadable`` setting.

    With ``"hold"`` the queue waits there and retries until the message can be read or you call
    `seek`.  A popped message is redelivered whatever the setting is.
    """

    queue: MessageQueue
    offset: int
    reason: str
    policy: str = "hold"


class MessageUndecodable(msgspec.Struct, frozen=True, kw_only=True):
    """The codec cannot decode a message; *policy* is the ``undecodable`` setting."""

    queue: MessageQueue
    offset: int
    message_id: str
    reason: str
    policy: str


class PullFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Pulling a queue fails; emitted once per outage, retried until it succeeds.

    Emitted for one queue of a topic if the broker does not know the group, or rejects pull
    consumers (``rejectPullConsumerEnable``): then none is assigned.
    """

    queue: MessageQueue
    reason: str


class CommitFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of some queues could not be committed; the commit is retried."""

    queues: tuple[MessageQueue, ...]
    reason: str


class HandlerStuck(msgspec.Struct, frozen=True, kw_only=True):
    """A handler has been working on the message at *offset* for *seconds*; emitted once."""

    queue: MessageQueue
    offset: int
    message_id: str
    seconds: float


class MessageDeadLettered(msgspec.Struct, frozen=True, kw_only=True):
    """A message went to the dead-letter topic."""

    queue: MessageQueue
    offset: int
    message_id: str
    reconsume_times: int
    reason: str


class MessageDropped(msgspec.Struct, frozen=True, kw_only=True):
    """A broadcasting consumer dropped a message: it is not retried.

    A concurrent consumer does so when the handler fails, an orderly one when retries are used up.
    """

    queue: MessageQueue
    offset: int
    message_id: str
    reason: str


class LeaseLost(msgspec.Struct, frozen=True, kw_only=True):
    """The lock of an orderly queue expired, or another member has it: its delivery stops.

    `LeaseRegained` or `QueuesRevoked` follows.
    """

    queue: MessageQueue


class LeaseRegained(msgspec.Struct, frozen=True, kw_only=True):
    """This member has the lock of an orderly queue again: its delivery goes on where it stopped."""

    queue: MessageQueue


class AckFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The acknowledgement of a popped message failed: it is, or may be, redelivered."""

    queue: MessageQueue
    offset: int
    message_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptOffsetFile:
    """A corrupt offset file was moved to *kept_as*.

    *recovered* is True if the backup was used; else the queues are new to the group, and messages
    may be skipped or repeated, depending on ``start_from``.
    """

    path: Path
    kept_as: Path
    reason: str
    recovered: bool


ConsumerEvent: TypeAlias = (
    QueuesAssigned
    | QueuesRevoked
    | SubscriptionsDiffer
    | MembersDiffer
    | ClientIdNotUnique
    | SubscriptionMatchesNothing
    | TopicMissing
    | TopicFound
    | OffsetCorrected
    | QueueHeld
    | MessageUnreadable
    | MessageUndecodable
    | HandlerStuck
    | MessageDeadLettered
    | MessageDropped
    | LeaseLost
    | LeaseRegained
    | PullFailed
    | CommitFailed
    | AckFailed
    | CorruptOffsetFile
)


def message_event(kind: Callable[..., E], message: MessageExt, **fields: object) -> E:
    queue, offset, message_id = message.queue, message.queue_offset, message.message_id
    return kind(queue=queue, offset=offset, message_id=message_id, **fields)


def dead_lettered(message: MessageExt, reason: str) -> MessageDeadLettered:
    times = message.reconsume_times
    return message_event(MessageDeadLettered, message, reconsume_times=times, reason=reason)


class EventStream:
    """Yields events from its creation until the consumer is closed."""

    def __init__(self, *, ended: bool) -> None:
        self._unread: deque[ConsumerEvent] = deque(maxlen=MAX_UNREAD)
        self._ended = ended
        self._changed = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerEvent:
        while not self._unread:
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._unread.popleft()

    def add(self, event: ConsumerEvent) -> None:
        self._unread.append(event)
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()


class EventStreams:
    """Publishes events to all open streams and to *listener*.

    :param listener: called synchronously with every event; must not block
    """

    def __init__(self, listener: Callable[[ConsumerEvent], object] | None = None) -> None:
        self._listener = listener
        self._streams: WeakSet[EventStream] = WeakSet()
        self._ended = False

    def open(self) -> EventStream:
        """Return a stream of the events from now on."""
        stream = EventStream(ended=self._ended)
        self._streams.add(stream)
        return stream

    def publish(self, event: ConsumerEvent) -> None:
        """Add *event* to all streams; never blocks."""
        for stream in list(self._streams):
            stream.add(event)
        if self._listener is not None:
            try:
                self._listener(event)
            except APPLICATION_ERRORS:
                logger.exception("event_listener_failed", event_value=repr(event))

    def close(self) -> None:
        self._ended = True
        for stream in list(self._streams):
            stream.end()
