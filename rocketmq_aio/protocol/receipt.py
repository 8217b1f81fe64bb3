"""Receipts of popped messages, needed to acknowledge them.

On the wire a receipt is text of eight parts.  For a message in a retry topic the broker sets it as
property POP_CK; for others the client builds it from the header of the response.
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
RETRY_V2: Final = "2"  # from about 5.2, if enabled in the broker
RETRY_JOINTS: Final = {RETRY_V1: "_", RETRY_V2: "+"}
ORDER_REVIVE_QUEUE: Final = 999
MAX_SPAN: Final = 4096  # of offsets in one bit set; a pop returns at most 32 messages

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

    def changed(self, answer: ChangeInvisibleTimeResponse) -> Receipt:
        """Return the new receipt after a change of the invisible time."""
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
        """Return the topic where the message is stored: *topic* or a retry topic."""
        joint = RETRY_JOINTS.get(self.marker)
        return topic if joint is None else f"{RETRY_PREFIX}{group}{joint}{topic}"


def parse_receipt(text: str) -> Receipt:
    """Return the receipt in *text*.

    :raises CodecError: it does not have eight valid parts
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


# --- receipts of a response ---------------------------------------------------------------------


class PopInfo(NamedTuple):
    """The tables in a response."""

    starts: Mapping[QueueKey, int]
    offsets: Mapping[QueueKey, list[int]]
    counts: Mapping[tuple[str, str], int]  # marker, queue id or "qo<queue id>%<offset>"


def read_info(answer: PopMessageResponse) -> PopInfo:
    """Return the three texts in *answer* as tables.

    :raises CodecError: one of them is invalid
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
    """Return the receipts of *messages*, in their order.

    :raises CodecError: *answer* lacks the data of a message, or is invalid
    """
    info = read_info(answer)
    seen: dict[QueueKey, int] = defaultdict(int)  # messages before this one, by queue
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
        # Early 5.x brokers send no tables: each queue starts at its first message.
        start = info.starts.get(key, first.setdefault(key, message.queue_offset))
        offset = _offset(info, key, seen[key], message.queue_offset)
        seen[key] += 1
        answered = (answer.pop_time, answer.invisible_time, answer.revive_queue_id)
        made.append(Receipt(start, *answered, NORMAL, broker_name, key[1], offset))
    return made


def _offset(info: PopInfo, key: QueueKey, position: int, own: int) -> int:
    """Return the broker's offset of the message at *position* of its queue."""
    listed = info.offsets.get(key)
    if not info.starts and listed is None:
        return own
    if listed is None or key not in info.starts:
        raise CodecError("offset info of a pop", 0, f"nothing is said of queue {key[1]}")
    # A batch that is stored as one record is listed once.
    return own if own in listed else listed[min(position, len(listed) - 1)]


def order_count(info: PopInfo, receipt: Receipt) -> int:
    """Return how many times an ordered message was popped before."""
    counts, marker = info.counts, receipt.marker
    own = counts.get((marker, f"qo{receipt.queue_id}%{receipt.offset}"))
    return own if own is not None else counts.get((marker, str(receipt.queue_id)), 0)


# --- batch acknowledgement ----------------------------------------------------------------------


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
