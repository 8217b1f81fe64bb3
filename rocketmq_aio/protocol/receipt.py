"""Receipts of popped messages: what a broker has to be told to acknowledge one.

A receipt goes over the wire as text of eight parts.  Of a message in a retry topic the broker
writes it (property POP_CK), of others the client builds it from what the answer says about queues.
"""

from __future__ import annotations

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
from rocketmq_aio.protocol.requests.pop import ChangeInvisibleTimeResponse, PopMessageResponse

POP_CK: Final = b"POP_CK\x01"
NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"  # since 5.2 or so, where a broker is set to it
RETRY_JOINTS: Final = {RETRY_V1: "_", RETRY_V2: "+"}
ORDER_REVIVE_QUEUE: Final = 999
MAX_SPAN: Final = 4096  # of the offsets in one bit set; a pop brings 32 messages

QueueKey = tuple[str, int]  # marker, queue id


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """One delivery of one message."""

    start_offset: int
    pop_time: int  # ms, by the clock of the broker
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
        """It came with an ordered pop."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def changed(self, answer: ChangeInvisibleTimeResponse) -> Receipt:
        """Return the receipt that replaces this one after its invisible time was changed."""
        return Receipt(
            self.offset,
            answer.pop_time,
            answer.invisible_time,
            answer.revive_queue_id,
            self.marker,
            self.broker_name,
            self.queue_id,
            self.offset,
        )

    def stored_topic(self, group: str, topic: str) -> str:
        """Return the topic in which the message is stored: *topic*, or a retry topic of it."""
        joint = RETRY_JOINTS.get(self.marker)
        return topic if joint is None else f"{RETRY_PREFIX}{group}{joint}{topic}"


def parse_receipt(text: str) -> Receipt:
    """Return the receipt in *text*.

    :raises CodecError: it has not eight parts, or one of them is no number
    """
    parts = text.split(" ")
    if len(parts) != 8:
        raise CodecError("receipt", 0, f"{len(parts)} parts instead of 8: {text!r}")
    start, popped, invisible, revive, marker, broker, queue, offset = parts
    try:
        numbers = (int(start), int(popped), int(invisible), int(revive))
        return Receipt(*numbers, marker, broker, int(queue), int(offset))
    except ValueError as error:
        raise CodecError("receipt", 0, f"{error}: {text!r}") from None


# --- the receipts of an answer ------------------------------------------------------------------


class PopInfo(NamedTuple):
    """What an answer says about its queues."""

    starts: Mapping[QueueKey, int]
    offsets: Mapping[QueueKey, list[int]]
    counts: Mapping[tuple[str, str], int]  # marker, queue id or "qo<queue id>%<offset>"


def read_info(answer: PopMessageResponse) -> PopInfo:
    """Return the three texts of *answer* as tables.

    :raises CodecError: one of them cannot be read
    """
    try:
        starts = {
            (marker, int(queue)): int(offset)
            for marker, queue, offset in _items(answer.start_offset_info)
        }
        offsets = {
            (marker, int(queue)): [int(each) for each in listed.split(",")]
            for marker, queue, listed in _items(answer.msg_offset_info)
        }
        counts = {
            (marker, where): int(count) for marker, where, count in _items(answer.order_count_info)
        }
    except ValueError as error:
        raise CodecError("offset info of a pop", 0, str(error)) from None
    return PopInfo(starts, offsets, counts)


def _items(text: str | None) -> list[list[str]]:
    return [item.split(" ") for item in (text or "").split(";") if item]


def receipts(
    messages: Iterable[MessageExt], answer: PopMessageResponse, broker_name: str
) -> list[Receipt]:
    """Return the receipt of every message of an answer, in its order.

    :raises CodecError: the answer says nothing of a message, or nothing that can be read
    """
    info = read_info(answer)
    seen: dict[QueueKey, int] = defaultdict(int)  # messages before, whose receipt is built here
    first: dict[QueueKey, int] = {}
    made: list[Receipt] = []
    for message in messages:
        written = find_property(message.raw_properties, POP_CK)
        if written is not None:
            receipt = parse_receipt(written)
            seen[receipt.marker, receipt.queue_id] += 1
            made.append(receipt)
            continue
        key = (NORMAL, message.queue.queue_id)
        # Brokers of early 5.x say nothing of queues: all begin at the first message they gave.
        start = info.starts.get(key, first.setdefault(key, message.queue_offset))
        offset = _offset(info, key, seen[key], message.queue_offset)
        seen[key] += 1
        answered = (answer.pop_time, answer.invisible_time, answer.revive_queue_id)
        made.append(Receipt(start, *answered, NORMAL, broker_name, key[1], offset))
    return made


def _offset(info: PopInfo, key: QueueKey, position: int, own: int) -> int:
    """Return the offset by which the broker knows the message at *position* of its queue."""
    listed = info.offsets.get(key)
    if not info.starts and listed is None:
        return own
    if listed is None or key not in info.starts:
        raise CodecError("offset info of a pop", 0, f"nothing is said of queue {key[1]}")
    # A batch that is stored as one record is listed once and has several messages.
    return own if own in listed else listed[min(position, len(listed) - 1)]


def order_count(info: PopInfo, receipt: Receipt) -> int:
    """Return how often an ordered message was taken before."""
    counts, marker = info.counts, receipt.marker
    own = counts.get((marker, f"qo{receipt.queue_id}%{receipt.offset}"))
    return own if own is not None else counts.get((marker, str(receipt.queue_id)), 0)


# --- batch acknowledgement ----------------------------------------------------------------------


def bit_set(offsets: Iterable[int], start: int) -> str:
    """Return *offsets* as a bit set counted from *start*, as the body of a batch ack has it."""
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start)
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def fits_batch(receipt: Receipt) -> bool:
    """Whether the message can be a bit in a batch ack."""
    return 0 <= receipt.offset - receipt.start_offset < MAX_SPAN


def batch_acks(group: str, done: Iterable[tuple[str, Receipt]]) -> list[BatchAck]:
    """Return the entries that acknowledge *done*: topic (never a retry topic) and receipt each."""
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
