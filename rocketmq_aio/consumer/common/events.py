"""What a consumer reports besides messages: events, as values, for whoever wants to watch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Self, TypeAlias
from weakref import WeakSet

import msgspec

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.consumer.offsets.local_file import CorruptOffsetFile
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue

logger = get_logger(__name__)

MAX_UNREAD: Final = 1000  # a reader that does not read loses the oldest ones


class QueuesAssigned(msgspec.Struct, frozen=True, kw_only=True):
    """This consumer reads these queues from now on."""

    queues: tuple[MessageQueue, ...]


class QueuesRevoked(msgspec.Struct, frozen=True, kw_only=True):
    """These queues are given up; what was settled is committed."""

    queues: tuple[MessageQueue, ...]


class SubscriptionsDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """Members of the group want different things of a topic, so messages are lost for some.

    *ours* is this member's expression, *theirs* that of another member or the one that brokers
    hold for the group; None where the topic is not subscribed to.
    """

    topic: str
    ours: str | None
    theirs: str | None


class ClientIdNotUnique(msgspec.Struct, frozen=True, kw_only=True):
    """Another client has this one's id, so both read the same queues and leave others alone.

    *addresses* are those of both as a broker sees them.  Give each its own ``instance_name``.  Pop
    consumers do not emit it: brokers share messages out to them without looking at ids.
    """

    client_id: str
    addresses: tuple[str, ...]


class TopicMissing(msgspec.Struct, frozen=True, kw_only=True):
    """No name server knows a subscribed topic, so nothing is read of it; emitted once per outage.

    *namesrv* are the name servers in use.  *nearest* is the existing topic with the most similar
    name, None when there is none or topics cannot be listed.  The consumer reads the topic as soon
    as it exists, and emits `TopicFound`.
    """

    topic: str
    namesrv: tuple[str, ...]
    nearest: str | None


class TopicFound(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that was reported by `TopicMissing` exists now."""

    topic: str


class SubscriptionMatchesNothing(msgspec.Struct, frozen=True, kw_only=True):
    """So many messages of a topic were passed over, and none came through the filter."""

    topic: str
    expression: str
    messages: int


class OffsetCorrected(msgspec.Struct, frozen=True, kw_only=True):
    """The broker said that *requested* does not exist; reading goes on at *corrected*.

    *policy* is the ``offset_illegal`` setting; *remark* holds the broker's words, for example
    OFFSET_RESET when an administrator moved the group.  *dropped* messages were in the cache.
    """

    queue: MessageQueue
    requested: int
    corrected: int
    policy: str
    remark: str
    dropped: int


class QueueHeld(msgspec.Struct, frozen=True, kw_only=True):
    """The broker said that *requested* does not exist, and ``offset_illegal`` is ``"error"``.

    Nothing is pulled of the queue until a `seek` says where to go on; the broker would do so at
    *suggested*.  *remark* holds its words.
    """

    queue: MessageQueue
    requested: int
    suggested: int
    remark: str


class MessageUnreadable(msgspec.Struct, frozen=True, kw_only=True):
    """The stored message at *offset* cannot be read; *policy* is the ``unreadable`` setting.

    With ``"hold"`` the queue waits there and is asked again, until it can be read or somebody
    seeks.  A popped message comes again by itself, whatever the setting is.
    """

    queue: MessageQueue
    offset: int
    reason: str
    policy: str = "hold"


class MessageUndecodable(msgspec.Struct, frozen=True, kw_only=True):
    """The codec cannot read a message; *policy* is the ``undecodable`` setting, and is followed."""

    queue: MessageQueue
    offset: int
    message_id: str
    reason: str
    policy: str


class PullFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing can be pulled of the queue now; told once, and tried again until it works."""

    queue: MessageQueue
    reason: str


class CommitFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of some queues could not be stored; it is kept and tried again."""

    queues: tuple[MessageQueue, ...]
    reason: str


class HandlerStuck(msgspec.Struct, frozen=True, kw_only=True):
    """The handler has been working on the message at *offset* for *seconds*; told once."""

    queue: MessageQueue
    offset: int
    message_id: str
    seconds: float


class MessageDeadLettered(msgspec.Struct, frozen=True, kw_only=True):
    """The message failed so often, or in such a way, that it went to the dead letters."""

    queue: MessageQueue
    offset: int
    message_id: str
    reconsume_times: int
    reason: str


class MessageDropped(msgspec.Struct, frozen=True, kw_only=True):
    """A broadcasting consumer gave up a message: nobody tries it again.

    A concurrent one does so when the handler fails, an orderly one where others have dead letters.
    """

    queue: MessageQueue
    offset: int
    message_id: str
    reason: str


class LeaseLost(msgspec.Struct, frozen=True, kw_only=True):
    """The lock of an orderly queue ran out or is somebody else's: nothing more is delivered."""

    queue: MessageQueue


class AckFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A popped message is done, and the group will, or may, get it again all the same."""

    queue: MessageQueue
    offset: int
    message_id: str
    reason: str


ConsumerEvent: TypeAlias = (
    QueuesAssigned
    | QueuesRevoked
    | SubscriptionsDiffer
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
    | PullFailed
    | CommitFailed
    | AckFailed
    | CorruptOffsetFile
)


class EventStream:
    """Yields events from the moment it was made, until the consumer is closed."""

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
        """Something happened."""
        self._unread.append(event)
        self._changed.set()

    def end(self) -> None:
        """Nothing will happen any more; what is unread still comes."""
        self._ended = True
        self._changed.set()


class EventStreams:
    """Hands every event to every stream that somebody still holds, and to the listener.

    :param listener: called at once with every event; must not wait
    """

    def __init__(self, listener: Callable[[ConsumerEvent], object] | None = None) -> None:
        self._listener = listener
        self._streams: WeakSet[EventStream] = WeakSet()
        self._ended = False

    def open(self) -> EventStream:
        """Return a stream of what happens from now on."""
        stream = EventStream(ended=self._ended)
        self._streams.add(stream)
        return stream

    def publish(self, event: ConsumerEvent) -> None:
        """Give *event* to all streams; never blocks."""
        for stream in list(self._streams):
            stream.add(event)
        if self._listener is not None:
            try:
                self._listener(event)
            except APPLICATION_ERRORS:
                logger.exception("event_listener_failed", event_value=repr(event))

    def close(self) -> None:
        """End every stream after what it still holds."""
        self._ended = True
        for stream in list(self._streams):
            stream.end()
