"""PopProcessor of the broker: invisible messages, acknowledgements and redelivery."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from rocketmq_aio.embedded.broker.pop_order import PopOrders
from rocketmq_aio.embedded.broker.pull import PullProcessor
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Handlers
from rocketmq_aio.embedded.broker.store import NewMessage, QueueLog, StoredMessage
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.bodies import BatchAckRequest
from rocketmq_aio.protocol.codes import PERM_READ, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.receipt import (
    NORMAL,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    parse_receipt,
)
from rocketmq_aio.protocol.requests.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from rocketmq_aio.protocol.subscription import java_hash

MOST: Final = 32
LATE_MS: Final = 500
BODY_AT: Final = 88


class Place(NamedTuple):
    """Position of a stored message; for markers 1 and 2 the topic is a retry topic."""

    topic: str
    marker: str
    queue_id: int


class Lease(NamedTuple):
    """Invisible message of a group."""

    group: str
    place: Place
    offset: int
    pop_time: int


@dataclass(slots=True)
class Taken:
    """Result of one pop."""

    messages: list[tuple[Place, StoredMessage]] = field(default_factory=list)
    starts: dict[Place, int] = field(default_factory=dict)
    counts: dict[Place, int] = field(default_factory=dict)


class PopProcessor:
    """PopProcessor messages, and stores unacknowledged ones in a retry topic.

    Messages are redelivered when they expire; a real broker needs some seconds more.

    :ivar retry_v2: use the names of retry topics of version 2
    """

    def __init__(self, state: BrokerState, pulls: PullProcessor) -> None:
        self.retry_v2 = False
        self.leases: dict[Lease, int] = {}  # lease -> its end in ms
        self._state = state
        self._pulls = pulls
        self._next: dict[tuple[str, Place], int] = {}
        self._orders = PopOrders()
        self._revive_queues = count()

    def handlers(self) -> Handlers:
        if not self._state.version.is_5:
            return {}
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
            RequestCode.BATCH_ACK_MESSAGE: self.ack_batch,
        }

    # --- popping --------------------------------------------------------------------------------

    def pop(self, command: Command, _connection: ServerConnection) -> Outcome | Awaitable[Outcome]:
        asked = read_header(command, PopMessage)
        self._check(asked)
        age = self._state.clock.now_ms() - asked.born_time
        if asked.born_time and asked.poll_time and age - asked.poll_time > LATE_MS:
            return Response(ResponseCode.POLLING_TIMEOUT, to_ext_fields(_nothing(0, 0, 0)))
        reply = self._reply(asked)
        if reply.code != ResponseCode.SUCCESS and asked.poll_time and age < asked.poll_time:
            return self._hold(asked, (asked.poll_time - age) / 1000)
        return reply

    async def _hold(self, asked: PopMessage, seconds: float) -> Outcome:
        found: list[Response] = []

        def look() -> bool:
            reply = self._reply(asked)
            if reply.code == ResponseCode.SUCCESS:
                found.append(reply)
            return bool(found)

        with suppress(TimeoutError):
            await self._state.store.changed.until(look, "a message", seconds, self._state.clock)
        return found[0] if found else self._reply(asked)

    def _check(self, asked: PopMessage) -> None:
        self._state.ensure_group(asked.consumer_group)
        topic = self._state.topic(asked.topic)
        if not topic.perm & PERM_READ:
            raise ErrorResponse(
                ResponseCode.NO_PERMISSION, f"the topic[{asked.topic}] is forbidden"
            )
        if asked.max_msg_nums > MOST or asked.queue_id >= len(topic.queues):
            raise self._state.invalid("max message number or queue id is out of range")
        self._state.check_group(asked.consumer_group)

    def _reply(self, asked: PopMessage) -> Response:
        now = self._state.clock.now_ms()
        self.revive(now)
        revive = ORDER_REVIVE_QUEUE if asked.order else next(self._revive_queues) % 8
        taken = self._take_ordered(asked, now) if asked.order else self._take(asked, now)
        answer = PopMessageResponse(
            pop_time=now,
            invisible_time=asked.invisible_time,
            revive_queue_id=revive,
            rest_num=0,
            start_offset_info=_items(taken.starts.items()),
            msg_offset_info=_items(
                (place, ",".join(str(s.offset) for p, s in taken.messages if p == place))
                for place in taken.starts
            ),
            order_count_info=_items(taken.counts.items()) if asked.order else None,
        )
        if not taken.messages:
            remark = "NO_MESSAGE_IN_QUEUE"
            return Response(ResponseCode.POLLING_TIMEOUT, to_ext_fields(answer), remark=remark)
        body = b"".join([self._record(each, taken, answer, asked) for each in taken.messages])
        return Response(ResponseCode.SUCCESS, to_ext_fields(answer), body, "FOUND")

    def _take(self, asked: PopMessage, now: int) -> Taken:
        taken = Taken()
        matches = self._filter(asked)
        for place in self._places(asked):
            key = (asked.consumer_group, place)
            log = self._state.store.topics[place.topic].queues[place.queue_id]
            begin = max(self._next.get(key, self._first(asked, log)), log.min_offset)
            for stored in log.since(begin):
                if len(taken.messages) == asked.max_msg_nums:
                    break
                self._next[key] = stored.offset + 1
                if place.marker == NORMAL and not matches(stored):
                    continue
                taken.messages.append((place, stored))
                taken.starts.setdefault(place, begin)
                lease = Lease(asked.consumer_group, place, stored.offset, now)
                self._lend(lease, now + asked.invisible_time)
            self._next.setdefault(key, begin)
        return taken

    def _take_ordered(self, asked: PopMessage, now: int) -> Taken:
        taken = Taken()
        matches = self._filter(asked)
        for place in self._places(asked):
            if place.marker != NORMAL:
                continue
            log = self._state.store.topics[place.topic].queues[place.queue_id]
            order = self._orders.of(asked.consumer_group, place)
            if order.blocks(asked.attempt_id, now):
                continue
            begin = self._first(asked, log) if order.next is None else order.next
            found = [s for s in log.since(begin) if matches(s)]
            found = found[: asked.max_msg_nums - len(taken.messages)]
            if not found:
                continue
            taken.messages += [(place, stored) for stored in found]
            taken.starts[place] = begin
            offsets = [stored.offset for stored in found]
            end = now + asked.invisible_time
            taken.counts[place] = order.lend(asked.attempt_id, offsets, end)
            self._call_at(end)
        return taken

    @staticmethod
    def _first(asked: PopMessage, log: QueueLog) -> int:
        """Start offset of a group: the first message, if the queue has lost none."""
        return log.max_offset - 1 if asked.init_mode and log.min_offset else log.min_offset

    def _places(self, asked: PopMessage) -> list[Place]:
        """Topics of the request: the retry topics first."""
        places = []
        for marker, joint in ((RETRY_V1, "_"), (RETRY_V2, "+")):
            name = f"%RETRY%{asked.consumer_group}{joint}{asked.topic}"
            if name in self._state.store.topics:
                places.append(Place(name, marker, 0))
        numbers: Iterable[int] = (asked.queue_id,)
        if asked.queue_id < 0:
            numbers = range(len(self._state.topic(asked.topic).queues))
        return [*places, *(Place(asked.topic, NORMAL, number) for number in numbers)]

    def _filter(self, asked: PopMessage) -> Callable[[StoredMessage], bool]:
        expression = asked.exp or "*"
        if asked.exp_type == "SQL92":
            sql = self._pulls.sql
            return lambda stored: sql is None or sql(expression, stored.properties)
        if expression == "*":
            return lambda _stored: True
        hashes = {java_hash(tag.strip()) for tag in expression.split("||")}
        return lambda stored: stored.tag_hash in hashes

    def _record(
        self,
        found: tuple[Place, StoredMessage],
        taken: Taken,
        answer: PopMessageResponse,
        asked: PopMessage,
    ) -> bytes:
        """Return a record; that of a retry topic with the requested topic and a receipt."""
        place, stored = found
        if place.marker == NORMAL:
            return stored.record
        receipt = Receipt(
            taken.starts[place],
            answer.pop_time,
            answer.invisible_time,
            answer.revive_queue_id,
            place.marker,
            self._state.name,
            place.queue_id,
            stored.offset,
        )
        properties = encode_properties({**stored.properties, "POP_CK": str(receipt)}).encode()
        topic = asked.topic.encode()
        tail = bytes([len(topic)]) + topic + len(properties).to_bytes(2, "big") + properties
        body_end = BODY_AT + len(stored.body)
        return (body_end + len(tail)).to_bytes(4, "big") + stored.record[4:body_end] + tail

    # --- acks and renewals ----------------------------------------------------------------------

    def ack(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, AckMessage)
        self._ack(asked.consumer_group, self._lease_of(asked), parse_receipt(asked.extra_info))
        return Response()

    def ack_batch(self, command: Command, _connection: ServerConnection) -> Response:
        if not command.body:
            return Response(ResponseCode.NO_MESSAGE)
        for each in read_body(command.body, BatchAckRequest).acks:
            bits = int.from_bytes(b64decode(each.bits), "little")
            for bit in range(bits.bit_length()):
                if not bits >> bit & 1:
                    continue
                receipt = Receipt(
                    each.start_offset,
                    each.pop_time,
                    each.invisible_time,
                    each.revive_queue_id,
                    each.marker,
                    self._state.name,
                    each.queue_id,
                    each.start_offset + bit,
                )
                topic = receipt.stored_topic(each.group, each.topic)
                place = Place(topic, each.marker, each.queue_id)
                lease = Lease(each.group, place, receipt.offset, each.pop_time)
                self._ack(each.group, lease, receipt)
        return Response()

    def change(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, ChangeInvisibleTime)
        lease, receipt, now = (
            self._lease_of(asked),
            parse_receipt(asked.extra_info),
            self._state.clock.now_ms(),
        )
        end = now + asked.invisible_time
        popped_at, invisible = now, asked.invisible_time
        if receipt.is_ordered:
            self._orders.of(lease.group, lease.place).move(lease.offset, end)
            popped_at, invisible = receipt.pop_time, end - receipt.pop_time
            self._call_at(end)
        else:
            # An expired receipt is accepted: the message is delivered twice.
            self.leases.pop(lease, None)
            self._lend(lease._replace(pop_time=max(now, receipt.pop_time + 1)), end)
            popped_at = max(now, receipt.pop_time + 1)
        answer = ChangeInvisibleTimeResponse(
            pop_time=popped_at, invisible_time=invisible, revive_queue_id=receipt.revive_queue_id
        )
        return Response(ext=to_ext_fields(answer))

    def _ack(self, group: str, lease: Lease, receipt: Receipt) -> None:
        self.revive(self._state.clock.now_ms())
        if receipt.is_ordered:
            self._orders.of(group, lease.place).ack(lease.offset)
            self._state.store.changed.notify()
        else:
            self.leases.pop(lease, None)

    def _lease_of(self, asked: AckMessage | ChangeInvisibleTime) -> Lease:
        try:
            receipt = parse_receipt(asked.extra_info)
        except ValueError as fault:
            raise ErrorResponse(ResponseCode.SYSTEM_ERROR, str(fault)) from None
        topic = self._state.topic(asked.topic)
        log = topic.queues[asked.queue_id]
        if not log.min_offset <= asked.offset <= log.max_offset:
            raise ErrorResponse(ResponseCode.NO_MESSAGE, "offset is illegal")
        place = Place(asked.topic, receipt.marker, asked.queue_id)
        return Lease(asked.consumer_group, place, asked.offset, receipt.pop_time)

    # --- redelivery -----------------------------------------------------------------------------

    def _lend(self, lease: Lease, end: int) -> None:
        self.leases[lease] = end
        self._call_at(end)

    def _call_at(self, end: int) -> None:
        clock = self._state.clock
        seconds = max(0, end - clock.now_ms() + 1) / 1000
        clock.call_later(seconds, self._state.store.changed.notify)

    def revive(self, now: int) -> None:
        """Store expired messages in the retry topic."""
        for lease in [lease for lease, end in self.leases.items() if end <= now]:
            del self.leases[lease]
            self._store_again(lease)

    def _store_again(self, lease: Lease) -> None:
        store, place = self._state.store, lease.place
        log = store.topics[place.topic].queues[place.queue_id]
        stored = log.messages[lease.offset - log.min_offset]
        topic = place.topic
        if place.marker == NORMAL:
            topic = f"%RETRY%{lease.group}{'+' if self.retry_v2 else '_'}{place.topic}"
        store.create_topic(topic, 1)
        again = NewMessage(
            topic=topic,
            queue_id=0,
            body=stored.body,
            properties=encode_properties(stored.properties).encode(),
            born_ms=stored.store_ms,
            reconsume_times=reconsume_times(stored) + 1,
        )
        store.append(again, self._state.clock.now_ms())


def reconsume_times(stored: StoredMessage) -> int:
    return int.from_bytes(stored.record[72:76], "big")


def _nothing(pop_time: int, invisible_time: int, revive: int) -> PopMessageResponse:
    return PopMessageResponse(
        pop_time=pop_time, invisible_time=invisible_time, revive_queue_id=revive, rest_num=0
    )


def _items(entries: Iterable[tuple[Place, object]]) -> str:
    return ";".join(f"{place.marker} {place.queue_id} {value}" for place, value in entries)
