"""Receipts of popped messages, needed to acknowledge them.

On the wire a receipt is text of eight parts.  For a message in a retry topic the broker sets it as
property POP_CK; for others the client builds it from the header of the response.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import find_property
from rocketmq_aio.protocol.bodies import BatchAck
from rocketmq_aio.protocol.record import RawRecord
from rocketmq_aio.protocol.requests.pop import ChangeInvisibleTimeResponse, PopMessageResponse

POP_CK: Final = b"POP_CK\x01"
NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"  # from about 5.2, if enabled in the broker
RETRY_JOINTS: Final = {RETRY_V1: "_", RETRY_V2: "+"}
ORDER_REVIVE_QUEUE: Final = 999
MAX_SPAN: Final = 4096  # of offsets in one bit set; a pop returns at most 32 messages

MAX_LONG: Final = 2**63 - 1
LONG: Final = re.compile(r"[+-]?[0-9]{1,19}")

QueueKey = tuple[str, int]  # marker, queue id


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A delivery of a message."""

    start_offset: int
    pop_time: int  # ms, by the broker's clock
    invisible_time: int  # ms
    revive_queue_id: int
    marker: str
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_time} {self.invisible_time} {self.revive_queue_id} "
            f"{self.marker} {self.broker_name} {self.queue_id} {self.offset}"
        )

    @property
    def is_ordered(self) -> bool:
        """Whether it was popped in order."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def changed(self, response: ChangeInvisibleTimeResponse) -> Receipt:
        """Return the new receipt after a change of the invisible time."""
        return msgspec.structs.replace(
            self,
            start_offset=self.offset,
            pop_time=response.pop_time,
            invisible_time=response.invisible_time,
            revive_queue_id=response.revive_queue_id,
        )

    def stored_topic(self, group: str, topic: str) -> str:
        """Return the topic where the message is stored: *topic* or a retry topic."""
        return stored_topic(group, self.marker, topic)


def stored_topic(group: str, marker: str, topic: str) -> str:
    """Return the topic that has the messages of a marker: *topic* or a retry topic."""
    joint = RETRY_JOINTS.get(marker)
    return topic if joint is None else f"{RETRY_PREFIX}{group}{joint}{topic}"


def retry_topics(group: str, topic: str) -> dict[str, str]:
    """Return the names of the retry topics of *topic* by marker."""
    return {marker: stored_topic(group, marker, topic) for marker in RETRY_JOINTS}


def parse_receipt(text: str) -> Receipt:
    """Return the receipt in *text*; CodecError if it does not have eight valid parts."""
    parts = text.split(" ")
    if len(parts) != 8:
        raise CodecError("receipt", 0, f"{len(parts)} parts instead of 8: {text!r}")
    start, popped, invisible, revive, marker, broker, queue, offset = parts
    try:
        numbers = (_long(start), _long(popped), _long(invisible), _long(revive))
        return Receipt(*numbers, marker, broker, _long(queue), _long(offset))
    except ValueError as error:
        raise CodecError("receipt", 0, f"{error}: {text!r}") from None


def _long(text: str) -> int:
    """Return the number in *text*; ValueError if Java would not read a long."""
    number = int(text) if LONG.fullmatch(text) else MAX_LONG + 1
    if not -MAX_LONG - 1 <= number <= MAX_LONG:
        raise ValueError(f"{text!r} is not a 64-bit number")
    return number


class PopInfo(NamedTuple):
    """The tables in a response."""

    starts: Mapping[QueueKey, int]
    offsets: Mapping[QueueKey, list[int]]
    counts: Mapping[tuple[str, str], int]  # marker, queue id or "qo<queue id>%<offset>"


def read_info(response: PopMessageResponse) -> PopInfo:
    """Return the three texts in *response* as tables; CodecError if one is invalid."""
    try:
        starts, offsets, counts = map(
            _items,
            (response.start_offset_info, response.msg_offset_info, response.order_count_info),
        )
        return PopInfo(
            {(marker, _long(queue)): _long(offset) for marker, queue, offset in starts},
            {(marker, _long(queue)): [*map(_long, o.split(","))] for marker, queue, o in offsets},
            {(marker, where): _long(count) for marker, where, count in counts},
        )
    except ValueError as error:
        raise CodecError("offset info of a pop", 0, str(error)) from None


def _items(text: str | None) -> list[list[str]]:
    return [item.split(" ") for item in (text or "").split(";") if item]


def receipts(
    messages: Iterable[MessageExt], response: PopMessageResponse, broker_name: str
) -> list[Receipt]:
    """Return the receipts of *messages*; CodecError if data is missing or invalid."""
    maker = _ReceiptMaker(response, broker_name)
    result: list[Receipt] = []
    for message in messages:
        if (text := find_property(message.raw_properties, POP_CK)) is not None:
            receipt = parse_receipt(text)
            maker.count((receipt.marker, receipt.queue_id))
        else:
            receipt = maker.make((NORMAL, message.queue.queue_id), message.queue_offset)
        result.append(receipt)
    return result


def with_receipts(
    body: bytes,
    response: PopMessageResponse,
    topic: str,
    retries: Mapping[str, str],
    broker_name: str,
) -> bytes:
    """Return *body* with the records of the topics *retries* as brokers usually send them.

    They replace the topic by *topic* and add the receipt.  5.0.0 sends stored records, and so do
    newer brokers with ``popConsumerKVServiceEnable`` or ``popResponseReturnActualRetryTopic``.

    :param retries: from `retry_topics`
    :raises CodecError: the response has no receipts for them
    """
    markers = {name.encode(): marker for marker, name in retries.items()}
    if not any(stored in body for stored in markers):
        return body
    maker = _ReceiptMaker(response, broker_name)
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        try:
            record = RawRecord.read(body, at)
        except CodecError:  # the decoder reports it
            parts.append(body[at:])
            break
        at += len(record.data)
        if (marker := markers.get(record.topic)) is not None:
            receipt = maker.make((marker, record.queue_id), record.queue_offset)
            record = record.changed(topic.encode(), POP_CK + str(receipt).encode())
        parts.append(record.data)
    return b"".join(parts)


class _ReceiptMaker:
    """Makes the receipts of the messages of a response that have none, in their order."""

    def __init__(self, response: PopMessageResponse, broker_name: str) -> None:
        self._response = response
        self._broker_name = broker_name
        self._info = read_info(response)
        self._positions: dict[QueueKey, int] = defaultdict(int)  # of the next message, by queue
        self._first: dict[QueueKey, int] = {}

    def count(self, key: QueueKey) -> None:
        """Note a message that has a receipt."""
        self._positions[key] += 1

    def make(self, key: QueueKey, queue_offset: int) -> Receipt:
        response = self._response
        # Early 5.x brokers send no tables: each queue starts at its first message.
        start = self._info.starts.get(key, self._first.setdefault(key, queue_offset))
        offset = _offset(self._info, key, self._positions[key], queue_offset)
        self._positions[key] += 1
        fields = (response.pop_time, response.invisible_time, response.revive_queue_id)
        return Receipt(start, *fields, key[0], self._broker_name, key[1], offset)


def _offset(info: PopInfo, key: QueueKey, position: int, own: int) -> int:
    """Return the broker's offset of the message at *position* of its queue."""
    listed = info.offsets.get(key)
    if not info.starts and listed is None:
        return own
    if listed is None or key not in info.starts:
        raise CodecError("offset info of a pop", 0, f"there is none of queue {key[1]}")
    # A batch that is stored as one record is listed once.
    return own if own in listed else listed[min(position, len(listed) - 1)]


def order_count(info: PopInfo, receipt: Receipt) -> int:
    """Return how many times an ordered message was popped before."""
    counts, marker = info.counts, receipt.marker
    own = counts.get((marker, f"qo{receipt.queue_id}%{receipt.offset}"))
    return own if own is not None else counts.get((marker, str(receipt.queue_id)), 0)


def bit_set(offsets: Iterable[int], start: int) -> str:
    """Return *offsets* as a bit set relative to *start*, in the form of a batch ack."""
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start)
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def fits_batch(receipt: Receipt) -> bool:
    """Whether a batch ack can contain the message."""
    return 0 <= receipt.offset - receipt.start_offset < MAX_SPAN


def batch_acks(group: str, done: Iterable[tuple[str, Receipt]]) -> list[BatchAck]:
    """Return entries that acknowledge *done*: pairs of topic (not a retry topic) and receipt."""
    offsets: dict[tuple[str, Receipt], list[int]] = defaultdict(list)
    for topic, receipt in done:
        alike = msgspec.structs.replace(receipt, offset=0)
        offsets[topic, alike].append(receipt.offset)
    return [
        BatchAck(
            group=group,
            topic=topic,
            marker=alike.marker,
            start_offset=alike.start_offset,
            queue_id=alike.queue_id,
            revive_queue_id=alike.revive_queue_id,
            pop_time=alike.pop_time,
            invisible_time=alike.invisible_time,
            bits=bit_set(listed, alike.start_offset),
        )
        for (topic, alike), listed in offsets.items()
    ]
