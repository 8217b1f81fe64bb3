"""Sends that travel together: concurrent calls become batches, each caller gets its own outcome.

Messages gather until there are enough or they have waited long enough; one timer and one task
belong to a batch, none to a message.  Batches to one queue, chosen or that of a key, go one after
another, for brokers work on the requests of a connection in any order; what gathers meanwhile
leaves together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic, time_ns
from typing import Final

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    NotConnectedError,
    NotRunningError,
    RocketMQError,
    SendAttempt,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import DELAY, WAIT
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.explicit_batch import ENTRY_BYTES
from rocketmq_aio.producer.batching.pending_batch import (
    SPREAD_SECONDS,
    Entry,
    PendingBatch,
    refuse,
    settle,
)
from rocketmq_aio.producer.in_flight import InFlightLimiter
from rocketmq_aio.producer.send_request import check_sizes, encode_properties
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.message_id import MessageIdGenerator

# What a broker would refuse in a batch, or store as something else.
GOES_ALONE: Final = frozenset(
    (DELAY, "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TRAN_MSG")
)
TOO_LARGE: Final = "size exceeded"  # of batches, in the words of a live 5.5.0 broker (code 1)
LEAST_SECONDS: Final = 0.01  # less time than this is not worth a request

Transmit = Callable[[Sequence[Entry], MessageQueue | None, float], Awaitable[SendResult]]


class BatchAccumulator:
    """Gathers messages, sends what has gathered, and tells everybody what became of it.

    :param room: what is added has its place there, and this gives it back
    :param transmit: sends entries to a queue or any: (entries, queue, deadline) -> result of all
    :param spawn: runs a coroutine function with an argument as a task, or raises
        `NotRunningError`
    """

    def __init__(
        self,
        settings: AutoBatch,
        config: ProducerConfig,
        ids: MessageIdGenerator,
        room: InFlightLimiter,
        transmit: Transmit,
        spawn: Callable[..., None],
    ) -> None:
        self._linger = settings.linger_seconds
        self._max_bytes = min(settings.max_bytes, config.max_message_bytes)
        self._max_messages = settings.max_messages
        self._alone_from = config.max_message_bytes + 1
        if config.compression is not None:
            # Batches are not compressed.
            self._alone_from = min(self._alone_from, config.compress_above_bytes)
        self._config = config
        self._ids = ids
        self._room = room
        self._transmit = transmit
        self._spawn = spawn
        self._open: dict[object, PendingBatch] = {}
        self._lanes: dict[
            MessageQueue, deque[PendingBatch]
        ] = {}  # closed ones, the first under way
        self._held: dict[
            MessageQueue, PendingBatch
        ] = {}  # open and due, while others are under way
        self._live: set[PendingBatch] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def takes(self, message: Message) -> bool:
        """Whether *message* may travel with others."""
        return (
            len(message.body) < self._alone_from
            and GOES_ALONE.isdisjoint(message.properties)
            and not message.topic.startswith(RETRY_PREFIX)
        )

    def add(  # flat: it runs for every message
        self,
        message: Message,
        queue: MessageQueue | None,
        seconds: float,
        deadline: float,
        *,
        alone: bool = False,
    ) -> asyncio.Future[SendResult]:
        """Return the future of *message*, whose room is taken.

        :param seconds: what it was given in all, until *deadline*
        :param alone: it travels without others, but keeps its place among those to its queue
        :raises InvalidMessageError: body or properties are too large; its room is given back
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        message_id = self._ids.next_id(time_ns() // 1_000_000)
        length = len(message.body)
        try:
            if alone:
                check_sizes(message, self._config)
            properties = encode_properties(message, message_id)
        except BaseException:
            self._room.give(length)
            raise
        reply: asyncio.Future[SendResult] = loop.create_future()
        size = ENTRY_BYTES + length + len(properties)
        key = (queue or message.topic, message.properties[WAIT], seconds)
        gathering = self._open.get(key)
        if (
            gathering is None
            or alone
            or gathering.size + size > self._max_bytes
            or abs(deadline - gathering.deadline) > SPREAD_SECONDS
        ):
            gathering = self._begin(PendingBatch(key, queue, deadline))
        entries = gathering.entries
        entries.append((reply, message, message_id, properties))
        gathering.size += size
        gathering.bodies += length
        if deadline < gathering.deadline:
            gathering.deadline = deadline
        if alone or len(entries) >= self._max_messages or gathering.size >= self._max_bytes:
            self._close(gathering)
        return reply

    def close_all(self) -> None:
        """Send what waits for company."""
        for gathering in list(self._open.values()):
            self._close(gathering)

    async def flush(self) -> None:
        """Send what waits, and return when all that was added before has its outcome."""
        self.close_all()
        replies = [entry[0] for each in self._live for entry in each.waiting]
        if replies:
            await asyncio.wait(replies)

    # --- inside ---------------------------------------------------------------------------------

    def _begin(self, gathering: PendingBatch) -> PendingBatch:
        if (earlier := self._open.get(gathering.key)) is not None:
            self._close(earlier)
        if (queue := gathering.queue) is not None:  # nobody may overtake those to the same queue
            for each in [each for each in self._open.values() if each.queue == queue]:
                self._close(each)
        self._open[gathering.key] = gathering
        self._live.add(gathering)
        assert self._loop is not None
        if self._linger:
            # Half of the time is for the request, however long it could wait for company.
            seconds = min(self._linger, (gathering.deadline - monotonic()) / 2)
            gathering.timer = self._loop.call_later(seconds, self._due, gathering)
        else:
            gathering.timer = self._loop.call_soon(self._due, gathering)
        return gathering

    def _due(self, gathering: PendingBatch) -> None:
        """Send it, unless it has to wait for others to its queue: then more may join."""
        if (queue := gathering.queue) is not None and queue in self._lanes:
            self._held[queue] = gathering
            self._expire_in_time(gathering)
        else:
            self._close(gathering)

    def _expire_in_time(self, gathering: PendingBatch) -> None:
        """Let it wait for others to its queue no longer than its messages have time."""
        assert self._loop is not None
        left = gathering.deadline - monotonic()
        gathering.timer = self._loop.call_later(left, self._expire, gathering)

    def _expire(self, gathering: PendingBatch) -> None:
        if waiting := gathering.waiting:
            refuse(waiting, _out_of_time(waiting))

    def _close(self, gathering: PendingBatch) -> None:
        """Let nobody join any more, and send it, or line it up behind others to its queue."""
        assert gathering.timer is not None
        gathering.timer.cancel()
        del self._open[gathering.key]
        queue = gathering.queue
        if queue is not None and queue in self._lanes:
            self._held.pop(queue, None)
            self._lanes[queue].append(gathering)
            self._expire_in_time(gathering)
            return
        try:
            if queue is None:
                self._spawn(self._deliver, gathering)
            else:
                self._spawn(self._run_lane, queue)
                self._lanes[queue] = deque([gathering])
        except NotRunningError as error:
            self._end(gathering, error)

    async def _run_lane(self, queue: MessageQueue) -> None:
        lane = self._lanes[queue]
        try:
            while lane:
                await self._deliver(lane[0])
                lane.popleft()
                if not lane and queue in self._held:
                    self._close(self._held[queue])
        finally:
            if queue in self._held:
                self._close(self._held[queue])
            del self._lanes[queue]
            for gathering in lane:  # cancelled: the client was closed
                self._end(gathering, ClosedError("the client was closed"))

    async def _deliver(self, gathering: PendingBatch) -> None:
        assert gathering.timer is not None
        gathering.timer.cancel()
        try:
            waiting = gathering.waiting
            if waiting:
                gathering.left = True
                await self._send(waiting, gathering)
        finally:
            self._end(gathering, ClosedError("the client was closed"))

    async def _send(self, entries: Sequence[Entry], gathering: PendingBatch) -> None:
        deadline = gathering.deadline
        try:
            if deadline - monotonic() < LEAST_SECONDS:
                raise _out_of_time(entries)
            whole = await self._transmit(entries, gathering.queue, deadline)
        except RocketMQError as error:
            if len(entries) == 1 or not _may_concern_one(error):
                refuse(entries, error)
                return
        except Exception as error:  # noqa: BLE001 - for those who send; here it would end the client
            refuse(entries, error)
            return
        else:
            settle(entries, whole)
            return
        # Nothing of it was stored: the others need not suffer for one, or for the whole's size.
        middle = len(entries) // 2
        await self._send(entries[:middle], gathering)
        await self._send(entries[middle:], gathering)

    def _end(self, gathering: PendingBatch, error: RocketMQError) -> None:
        """Give the room back; *error* is for those who got no outcome."""
        if gathering not in self._live:
            return
        if gathering.timer is not None:
            gathering.timer.cancel()
        self._live.discard(gathering)
        self._room.give(gathering.bodies, len(gathering.entries))
        left_over = gathering.waiting
        if left_over and gathering.left:
            attempt = SendAttempt(address="-", cause=error, seconds=0.0)
            error = SendUnknownError(left_over[0][1].topic, left_over[0][2], [attempt])
        refuse(left_over, error)


def _may_concern_one(error: RocketMQError) -> bool:
    """Whether the broker surely stored nothing, for a reason that may lie in one message."""
    causes = [each.cause for each in error.attempts] if type(error) is SendError else [error]
    return any(
        isinstance(cause, BrokerError)
        and (cause.code == ResponseCode.MESSAGE_ILLEGAL or TOO_LARGE in (cause.remark or ""))
        for cause in causes
    )


def _out_of_time(entries: Iterable[Entry]) -> SendError:
    _, message, message_id, _ = next(iter(entries))
    reason = "others to its queue took all the time that it had (send_timeout_seconds)"
    cause = NotConnectedError("-", reason)
    return SendError(
        message.topic, message_id, [SendAttempt(address="-", cause=cause, seconds=0.0)]
    )
