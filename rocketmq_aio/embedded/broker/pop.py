"""PopProcessor: invisible messages, acknowledgements and redelivery."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable
from itertools import count, cycle
from random import randrange
from typing import Final, NamedTuple

from rocketmq_aio.embedded.broker.delay_queue import MAX_LONG, DelayQueue
from rocketmq_aio.embedded.broker.filters import FilterError, Matches, compile_filter
from rocketmq_aio.embedded.broker.pop_order import PopOrder
from rocketmq_aio.embedded.broker.pull import PARSE_FAILED, select
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, discard_keys
from rocketmq_aio.embedded.broker.store import QueueLog, StoredMessage
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.bodies import BatchAckRequest
from rocketmq_aio.protocol.codes import PERM_READ, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import GroupQueueRequest, to_ext_fields
from rocketmq_aio.protocol.receipt import (
    NORMAL,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    parse_receipt,
    retry_topics,
    stored_topic,
)
from rocketmq_aio.protocol.requests.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)

MAX_MESSAGES: Final = 32
MAX_BIT_SET_BYTES: Final = 4096  # of an acknowledged batch; a pop returns at most 32 messages
MAX_AGE_MS: Final = 500  # of a request whose poll time is over
REVIVE_QUEUES: Final = 8
FIRST_POP_TIME: Final = "1ST_POP_TIME"
NOTHING_POPPED: Final = to_ext_fields(
    PopMessageResponse(pop_time=0, invisible_time=0, revive_queue_id=0, rest_num=0)
)


class PopQueue(NamedTuple):
    """A queue to pop from; for markers 1 and 2 the topic is a retry topic."""

    topic: str
    marker: str
    queue_id: int


class Delivery(NamedTuple):
    """A popped message, invisible to its group."""

    group: str
    queue: PopQueue
    offset: int
    pop_time: int


class Hidden(NamedTuple):
    """A delivery until the end of its invisible time, in ms; *suspend*: then it is no retry."""

    delivery: Delivery
    end: int
    suspend: bool = False


class Popped(NamedTuple):
    """Messages of one queue in a response.

    :ivar begin: the offset from which they were read
    :ivar tries: by offset, how often they were popped before, of ordered pops
    """

    queue: PopQueue
    begin: int
    messages: list[StoredMessage]
    tries: dict[int, int]


class PopProcessor:
    """Pops messages, and stores unacknowledged ones in a retry topic.

    Messages are redelivered when their invisible time ends; a real broker needs some seconds more.
    A pop commits the offset that it reached, an ordered one that of its first message.

    :ivar retry_v2: use the names of retry topics of version 2
    :ivar invisible: deliveries that are not acknowledged
    """

    def __init__(self, state: BrokerState) -> None:
        self.retry_v2 = False
        self.invisible: dict[Delivery, Hidden] = {}
        self._state = state
        self._orders: dict[tuple[str, PopQueue], PopOrder] = {}  # of pops
        self._revive_queues = cycle(range(REVIVE_QUEUES))
        self._turns = count()
        self._expiring = DelayQueue[Hidden](state.clock, self._expire, self._expires)
        state.on_topic_deleted = self._forget

    # --- popping --------------------------------------------------------------------------------

    @reads(PopMessage, version=5)
    def pop(self, header: PopMessage) -> object:
        self._check(header)
        matches = _filter(header)
        age = self._state.clock.now_ms() - header.born_time
        if header.born_time and header.poll_time and age - header.poll_time > MAX_AGE_MS:
            return Response(ResponseCode.POLLING_TIMEOUT, NOTHING_POPPED)
        response = self._pop(header, matches)
        if response.code == ResponseCode.SUCCESS or age >= header.poll_time or not header.poll_time:
            return response
        return self._hold(header, matches, (header.poll_time - age) / 1000)

    async def _hold(self, header: PopMessage, matches: Matches | None, seconds: float) -> Response:
        """Respond when a message comes or becomes visible, at the latest after *seconds*."""
        clock = self._state.clock
        deadline = clock.monotonic() + seconds
        topics = (header.topic, *retry_topics(header.consumer_group, header.topic).values())
        while True:
            response = self._pop(header, matches)
            left = deadline - clock.monotonic()
            if response.code == ResponseCode.SUCCESS or left <= 0:
                return response
            await self._state.store.arrivals.wait(topics, left)
            self._check(header)  # the topic may be another one now, with fewer queues

    def _check(self, header: PopMessage) -> None:
        topic = self._state.topic(header.topic)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{header.topic}] is forbidden"
            raise ErrorResponse(remark, ResponseCode.NO_PERMISSION)
        if header.max_msg_nums > MAX_MESSAGES or header.queue_id >= len(topic.queues):
            raise self._state.invalid("max message number or queue id is out of range")
        self._state.check_consumer(header.consumer_group)

    def _pop(self, header: PopMessage, matches: Matches | None) -> Response:
        now = self._state.clock.now_ms()
        self._expiring.deliver_due()
        popped: list[Popped] = []
        room, left = header.max_msg_nums, 0
        for queue in self._queues_to_pop(header):
            if (taken := self._take(queue, header, matches, room, now)) is not None:
                popped.append(taken)
                room -= len(taken.messages)
            log = self._log(queue)
            left += max(0, log.max_offset - self._begin(header.consumer_group, queue, log))
        if header.order:  # what was popped is not committed
            left -= header.max_msg_nums - room
        answer = PopMessageResponse(
            pop_time=now,
            invisible_time=header.invisible_time,
            revive_queue_id=ORDER_REVIVE_QUEUE if header.order else next(self._revive_queues),
            rest_num=left,
            start_offset_info=_items((each.queue, each.begin) for each in popped),
            msg_offset_info=_items(
                (each.queue, ",".join(str(stored.offset) for stored in each.messages))
                for each in popped
            ),
            order_count_info=";".join(map(_counts, popped)) if header.order else None,
        )
        if not popped:
            remark = "NO_MESSAGE_IN_QUEUE"
            return Response(ResponseCode.POLLING_TIMEOUT, to_ext_fields(answer), remark=remark)
        stored = [(each, message) for each in popped for message in each.messages]
        body = b"".join([self._record(header.topic, *each, answer) for each in stored])
        messages = [message for _, message in stored]
        self._state.delivered(header.consumer_group, header.topic, messages, len(body))
        return Response(ResponseCode.SUCCESS, to_ext_fields(answer), body, "FOUND")

    def _take(
        self, queue: PopQueue, header: PopMessage, matches: Matches | None, room: int, now: int
    ) -> Popped | None:
        """Pop up to *room* messages of *queue*; None: there are none, or they have to wait."""
        state, group, log = self._state, header.consumer_group, self._log(queue)
        key, end = (group, queue.topic, queue.queue_id), now + header.invisible_time
        if state.reset_offsets.pop(key, None) is not None:
            self._orders.pop((group, queue), None)
        order = self._orders.setdefault((group, queue), PopOrder()) if header.order else None
        if order is not None and order.blocks(header.attempt_id, now):
            return None
        # A new group begins at the first message, if the queue has lost none.
        at_end = header.init_mode and log.min_offset
        begin = self._begin(group, queue, log, first=log.max_offset - 1 if at_end else 0)
        found: list[StoredMessage] = []
        reached = begin
        while not found and room > 0 and reached < log.max_offset:
            found, reached = select(log, reached, room, matches if queue.marker == NORMAL else None)
        if order is None:
            if reached > begin:
                state.commit(*key, reached)
            for stored in found:
                self._hide(Hidden(Delivery(group, queue, stored.offset, now), end))
            return Popped(queue, begin, found, {}) if found else None
        if not found:
            return None
        offsets = [stored.offset for stored in found]
        tries = order.deliver(header.attempt_id, offsets, now, end)
        state.commit(*key, offsets[0])
        self._wake_at(end, queue.topic)
        return Popped(queue, begin, found, tries)

    def _log(self, queue: PopQueue) -> QueueLog:
        return self._state.topic(queue.topic).queues[queue.queue_id]

    def _begin(self, group: str, queue: PopQueue, log: QueueLog, *, first: int = 0) -> int:
        """Return the offset to pop next: the committed one, or *first*."""
        key = group, queue.topic, queue.queue_id
        return max(self._state.committed.get(key, first), log.min_offset)

    def _queues(self, header: GroupQueueRequest) -> list[PopQueue]:
        """Return the queues of the request: those of retry topics first."""
        store = self._state.store
        queues = [
            PopQueue(name, marker, queue_id)
            for marker, name in retry_topics(header.consumer_group, header.topic).items()
            if name in store.topics
            for queue_id in range(len(store.topics[name].queues))
        ]
        numbers: Iterable[int] = (header.queue_id,)
        if header.queue_id < 0:
            numbers = range(len(self._state.topic(header.topic).queues))
        return [*queues, *(PopQueue(header.topic, NORMAL, number) for number in numbers)]

    def _queues_to_pop(self, header: PopMessage) -> list[PopQueue]:
        """Return the queues of the request, of a topic with priorities the last ones first.

        Otherwise each pop begins at another queue.  Retry topics follow, as brokers do by default
        with priorities, and with four of five other pops; ordered pops do not read them.
        """
        queues, topic = self._queues(header), self._state.topic(header.topic)
        normal = [each for each in queues if each.marker == NORMAL]
        if header.order:
            return normal
        group = self._state.group_setting(header.consumer_group, "attributes")
        factor = int(group.get("priority.factor", "100"))  # in percent
        if topic.attributes.get("message.type") != "PRIORITY" or randrange(100) >= factor:
            turn = next(self._turns)
            first = turn % max(len(normal), 1)
            retries = [each for each in queues if each.marker != NORMAL]
            rotated = [*normal[first:], *normal[:first]]
            return [*retries, *rotated] if turn % 5 == 0 else [*rotated, *retries]
        return sorted(queues, key=lambda each: (each.marker != NORMAL, -each.queue_id))

    def _record(
        self, topic: str, popped: Popped, stored: StoredMessage, answer: PopMessageResponse
    ) -> bytes:
        """Return a record; that of a retry topic with the requested *topic* and a receipt."""
        queue = popped.queue
        if queue.marker == NORMAL:
            return stored.record
        times = answer.pop_time, answer.invisible_time, answer.revive_queue_id
        place = queue.marker, self._state.name, queue.queue_id
        receipt = Receipt(popped.begin, *times, *place, stored.offset)
        properties = {**stored.properties, "POP_CK": str(receipt)}
        again = stored.to_new(topic, stored.queue_id, properties=properties)
        return self._state.store.record_of(again, stored)

    # --- acks and renewals ----------------------------------------------------------------------

    @reads(AckMessage, version=5)
    def ack(self, header: AckMessage) -> None:
        delivery, receipt = self._delivery(header)
        self._ack(delivery, ordered=receipt.is_ordered)

    @reads(Command, RequestCode.BATCH_ACK_MESSAGE, version=5)
    def ack_batch(self, command: Command) -> Response:
        acks = read_body(command.body, BatchAckRequest).acks if command.body else []
        for each in acks:
            topic = stored_topic(each.group, each.marker, each.topic)
            queue = PopQueue(topic, each.marker, each.queue_id)
            bits = int.from_bytes(b64decode(each.bits)[:MAX_BIT_SET_BYTES], "little")
            for bit in range(bits.bit_length()):
                if bits >> bit & 1:
                    offset = each.start_offset + bit
                    ordered = each.revive_queue_id == ORDER_REVIVE_QUEUE
                    self._ack(Delivery(each.group, queue, offset, each.pop_time), ordered=ordered)
        return Response() if acks else Response(ResponseCode.NO_MESSAGE)

    @reads(ChangeInvisibleTime, version=5)
    def change(self, header: ChangeInvisibleTime) -> object:
        delivery, receipt = self._delivery(header)
        now = self._state.clock.now_ms()
        end = now + header.invisible_time
        if receipt.is_ordered:
            if (order := self._orders.get((delivery.group, delivery.queue))) is not None:
                order.hide(delivery.offset, delivery.pop_time, end)
            popped_at, invisible = receipt.pop_time, end - receipt.pop_time
            self._wake_at(end, delivery.queue.topic)
        else:
            # An expired receipt is accepted: the message is delivered twice.
            self.invisible.pop(delivery, None)
            popped_at, invisible = max(now, receipt.pop_time + 1), header.invisible_time
            changed = delivery._replace(pop_time=popped_at)
            self._hide(Hidden(changed, end, bool(header.suspend)))
        return ChangeInvisibleTimeResponse(
            pop_time=popped_at, invisible_time=invisible, revive_queue_id=receipt.revive_queue_id
        )

    def _ack(self, delivery: Delivery, *, ordered: bool) -> None:
        self._expiring.deliver_due()
        if ordered:
            queue = delivery.queue
            key = delivery.group, queue.topic, queue.queue_id
            order = self._orders.get((delivery.group, queue))
            following = None if order is None else order.ack(delivery.offset, delivery.pop_time)
            if following is not None and key not in self._state.reset_offsets:
                self._state.commit(*key, following)
            self._state.store.arrivals.wake(queue.topic)
        else:
            self.invisible.pop(delivery, None)

    def _delivery(self, header: AckMessage) -> tuple[Delivery, Receipt]:
        receipt = parse_receipt(header.extra_info)
        self._state.topic(header.topic)
        log = self._state.store.queue(header.topic, header.queue_id)
        if log is None:
            remark = f"queueId[{header.queue_id}] is illegal"
            raise ErrorResponse(remark, ResponseCode.MESSAGE_ILLEGAL)
        if not log.min_offset <= header.offset <= log.max_offset:
            raise ErrorResponse("offset is illegal", ResponseCode.NO_MESSAGE)
        queue = PopQueue(header.topic, receipt.marker, header.queue_id)
        return Delivery(header.consumer_group, queue, header.offset, receipt.pop_time), receipt

    def _forget(self, topic: str) -> None:
        """Delete what is known about a deleted topic, and its retry topics."""
        discard_keys(self._orders, lambda key: key[1].topic == topic)
        discard_keys(self.invisible, lambda delivery: delivery.queue.topic == topic)
        for group in {group for group, name, _ in self._state.committed if name == topic}:
            for name in retry_topics(group, topic).values():
                self._state.delete_topic(name)

    # --- redelivery -----------------------------------------------------------------------------

    def restore(self, invisible: Iterable[Hidden]) -> None:
        """Restore popped messages and the ends of their invisible times."""
        for hidden in invisible:
            self._hide(hidden)

    def _hide(self, hidden: Hidden) -> None:
        hidden = hidden._replace(end=min(hidden.end, MAX_LONG))  # a snapshot can store it
        self.invisible[hidden.delivery] = hidden
        self._expiring.add(hidden.end, hidden)

    def _wake_at(self, end: int, topic: str) -> None:
        clock = self._state.clock
        seconds = max(0, end - clock.now_ms() + 1) / 1000
        clock.call_later(seconds, lambda: self._state.store.arrivals.wake(topic))

    def _expires(self, hidden: Hidden) -> bool:
        """Whether the delivery is not acknowledged, and its message not deleted."""
        if self.invisible.get(hidden.delivery) != hidden:
            return False
        if self._stored(hidden.delivery) is None:
            del self.invisible[hidden.delivery]
            return False
        return True

    def _stored(self, delivery: Delivery) -> StoredMessage | None:
        log = self._state.store.queue(delivery.queue.topic, delivery.queue.queue_id)
        return None if log is None else log.get(delivery.offset)

    def _expire(self, hidden: Hidden) -> None:
        """Store a message in the retry topic: its invisible time is over."""
        delivery = hidden.delivery
        del self.invisible[delivery]
        stored = self._stored(delivery)
        assert stored is not None, "checked by the delay queue"
        topic = delivery.queue.topic
        if delivery.queue.marker == NORMAL:
            marker = RETRY_V2 if self.retry_v2 else RETRY_V1
            topic = stored_topic(delivery.group, marker, topic)
        self._state.store.ensure_topic(topic, 1)
        properties = {FIRST_POP_TIME: str(delivery.pop_time)} | stored.properties
        times = stored.reconsume_times + (not hidden.suspend)
        again = stored.to_new(topic, 0, properties=properties, reconsume_times=times)
        self._state.store.append(again)


def _filter(header: PopMessage) -> Matches | None:
    if header.exp is None or not header.exp.strip():
        return None
    try:
        if header.exp_type not in (None, "", "TAG", "SQL92"):
            raise FilterError(f"unknown kind: {header.exp_type}")
        return compile_filter(header.exp, header.exp_type, is_5=True)
    except FilterError:
        raise ErrorResponse(PARSE_FAILED, ResponseCode.SUBSCRIPTION_PARSE_FAILED) from None


def _counts(popped: Popped) -> str:
    """Return the counts of the messages popped before, and the least of all for older clients."""
    marker, number, tries = popped.queue.marker, popped.queue.queue_id, popped.tries
    counted = [f"{marker} qo{number}%{offset} {n}" for offset, n in tries.items() if n]
    return ";".join([*counted, f"{marker} {number} {min(tries.values())}"])


def _items(entries: Iterable[tuple[PopQueue, object]]) -> str:
    return ";".join(f"{queue.marker} {queue.queue_id} {value}" for queue, value in entries)
