"""Trace records in the text format of the official tools.

Fields end with U+0001, records with U+0002.  A missing value is the text ``null``, as in Java.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from rocketmq_aio.hooks import EndTransactionContext
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import (
    DELAY,
    KEYS,
    NAME_END,
    PAIR_END,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    find_property,
    parse_properties,
)
from rocketmq_aio.model.values import SendResult, SendStatus, TransactionState
from rocketmq_aio.producer.send_request import SendRequest
from rocketmq_aio.protocol.codes import TRANSACTION_PREPARED
from rocketmq_aio.protocol.record import decode_batch

NOTHING: Final = "null"
NORMAL, HALF, ENDED, DELAYED, ORDERED = range(5)  # message types
SUCCESS, TIMED_OUT, EXCEPTION, NO_ANSWER, FAILED = range(5)  # outcomes of handlers
STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
BOOLS: Final = ("false", "true")
_OK: Final = SendStatus.SEND_OK  # faster than the attribute of the enum
_SHARDING: Final = f"{PAIR_END}{SHARDING_KEY}{NAME_END}"
_DELAYS: Final = [
    f"{PAIR_END}{each}{NAME_END}" for each in (DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS)
]


# Trace topic, topic, record, id and keys of the message
Traced = tuple[str, str, str, str, str]
# A successful request, its result, its duration and the size of its body
StoredSend = tuple[SendRequest, SendResult, float, int]


class TraceBatch(NamedTuple):
    """Records of one topic for one trace topic, with the keys to find them by.

    Columns, not rows: formatting many messages together is cheaper.
    """

    trace_topic: str
    records: Sequence[str]
    ids: Sequence[str]
    keys: Sequence[str]  # of each message, empty if it has none

    def halves(self) -> tuple[TraceBatch, TraceBatch]:
        """Return two batches with half of the records each."""
        middle = len(self.records) // 2
        columns = self[1:]
        first, second = (
            [each[cut] for each in columns] for cut in (slice(middle), slice(middle, None))
        )
        return TraceBatch(self.trace_topic, *first), TraceBatch(self.trace_topic, *second)


def sent(trace_topic: str, group: str, sends: Sequence[StoredSend]) -> TraceBatch:
    """Return the records of sends to one topic and region."""
    out, result, _, _ = sends[0]
    rest = f"{result.region_id}\x01{group}\x01{out.topic}\x01"
    # Concurrent sends share their millisecond.
    starts = {at: f"Pub\x01{at}\x01{rest}" for at in {out.born_ms for out, _, _, _ in sends}}
    named = [out.message_properties or parse_properties(out.properties) for out, _, _, _ in sends]
    # A cheap test first: all property names of delays contain "DEL".
    kinds = [
        _kind(out) if out.sys_flag or out.fixed or b"DEL" in out.properties else NORMAL
        for out, _, _, _ in sends
    ]
    made = [
        f"{starts[out.born_ms]}{result.message_id}\x01{names.get(TAGS, NOTHING)}"
        f"\x01{names.get(KEYS) or NOTHING}\x01{out.target.address}\x01{size}"
        f"\x01{int(seconds * 1000)}\x01{kind}\x01{result.offset_message_id}"
        f"\x01{'true' if result.status is _OK else 'false'}\x02"
        for (out, result, seconds, size), names, kind in zip(sends, named, kinds, strict=True)
    ]
    ids = [result.message_id for _, result, _, _ in sends]
    return TraceBatch(trace_topic, made, ids, [names.get(KEYS, "") for names in named])


def parts_of_batch(stored: StoredSend) -> Iterator[StoredSend]:
    """Yield the messages of a stored batch as single sends."""
    out, result, seconds, _ = stored
    offset_ids = result.offset_message_id.split(",")
    for place, (_, body, properties) in enumerate(decode_batch(out.body)):
        one = msgspec.structs.replace(out, properties=properties, body=b"")
        whose = msgspec.structs.replace(
            result,
            message_id=find_property(properties, b"UNIQ_KEY\x01") or result.message_id,
            offset_message_id=offset_ids[min(place, len(offset_ids) - 1)],
        )
        yield one, whose, seconds, len(body)


def _kind(out: SendRequest) -> int:
    properties = PAIR_END + out.properties.decode("utf-8", "replace")
    if out.sys_flag & TRANSACTION_PREPARED:
        return HALF
    if any(name in properties for name in _DELAYS):
        return DELAYED
    return ORDERED if _SHARDING in properties else NORMAL


def consume_before(
    group: str, message: MessageExt, request_id: str, region: str, keys: str, now_ms: int
) -> str:
    return (
        f"SubBefore\x01{now_ms}\x01{region}\x01{group}\x01{request_id}\x01{message.message_id}"
        f"\x01{message.reconsume_times}\x01{keys or NOTHING}\x02"
    )


def consume_after(
    group: str,
    message_id: str,
    request_id: str,
    keys: str,
    cost_ms: int,
    outcome: int,
    now_ms: int | None,
) -> str:
    """Return the record written after a handler has run; *now_ms* is None for clouds."""
    tail = "" if now_ms is None else f"{now_ms}\x01{group}"
    return (
        f"SubAfter\x01{request_id}\x01{message_id}\x01{cost_ms}\x01{BOOLS[outcome == SUCCESS]}"
        f"\x01{keys or NOTHING}\x01{outcome}\x01{tail}\x02"
    )


def transaction_ended(context: EndTransactionContext, region: str, keys: str, now_ms: int) -> str:
    message = context.message
    return (
        f"EndTransaction\x01{now_ms}\x01{region}\x01{context.group}\x01{message.topic}"
        f"\x01{context.message_id}\x01{message.tags or NOTHING}\x01{keys or NOTHING}"
        f"\x01{context.address}\x01{ENDED}\x01{context.transaction_id}\x01{STATES[context.state]}"
        f"\x01{BOOLS[context.from_check]}\x02"
    )


def recalled(group: str, topic: str, message_id: str, region: str, now_ms: int) -> str:
    return f"Recall\x01{now_ms}\x01{region}\x01{group}\x01{topic}\x01{message_id}\x01true\x02"
