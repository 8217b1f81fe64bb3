"""Trace records, in the text form that the official tools read.

Fields end with U+0001, a record with U+0002.  What is not there is the text ``null``, as Java
writes it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rocketmq_aio.hooks import EndTransactionContext
from rocketmq_aio.message import MessageExt, SendResult, SendStatus
from rocketmq_aio.producer.decisions import TransactionState
from rocketmq_aio.producer.outgoing import Outgoing
from rocketmq_aio.properties import (
    DELAY,
    KEYS,
    NAME_END,
    PAIR_END,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    find_property,
)
from rocketmq_aio.protocol.codes import TRANSACTION_PREPARED
from rocketmq_aio.protocol.record import decode_batch

NOTHING: Final = "null"
NORMAL, HALF, ENDED, DELAYED, ORDERED = range(5)  # kinds of messages
SUCCESS, TIMED_OUT, EXCEPTION, NO_ANSWER, FAILED = range(5)  # how handlers end
STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
BOOLS: Final = ("false", "true")
_OK: Final = SendStatus.SEND_OK  # to ask an enum for its member takes longer
_TAGS, _KEYS, _SHARDING = (f"{PAIR_END}{each}{NAME_END}" for each in (TAGS, KEYS, SHARDING_KEY))
_DELAYS: Final = [
    f"{PAIR_END}{each}{NAME_END}" for each in (DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS)
]


# Where it is written, what it is about, the record, the message's id and keys
Traced = tuple[str, str, str, str, str]
# A request that stored something, the answer, how long it took, and the size of its body
StoredSend = tuple[Outgoing, SendResult, float, int]


def sent(where: str, group: str, stored: StoredSend) -> Traced:
    """Return the record of a message that was stored."""
    out, result, seconds, size = stored
    properties = PAIR_END + out.properties.decode()
    _, found, tags = properties.partition(_TAGS)
    tags = tags.partition(PAIR_END)[0] if found else NOTHING
    _, found, keys = properties.partition(_KEYS)
    keys = keys.partition(PAIR_END)[0] if found else ""
    kind = NORMAL
    # Three long searches are seldom worth their time: all of these names hold those letters.
    if out.sys_flag or "DEL" in properties or _SHARDING in properties:
        kind = _kind(out, properties)
    topic, message_id = out.topic, result.message_id
    record = (
        f"Pub\x01{out.born_ms}\x01{result.region_id}\x01{group}\x01{topic}\x01{message_id}"
        f"\x01{tags}\x01{keys or NOTHING}\x01{out.target.address}\x01{size}"
        f"\x01{int(seconds * 1000)}\x01{kind}\x01{result.offset_message_id}"
        f"\x01{'true' if result.status is _OK else 'false'}\x02"
    )
    return where, topic, record, message_id, keys


def sent_batch(where: str, group: str, stored: StoredSend) -> list[Traced]:
    """Return the records of messages that were stored together."""
    out, result, seconds, _ = stored
    offset_ids = result.offset_message_id.split(",")
    made = []
    for place, (_, body, properties) in enumerate(decode_batch(out.body)):
        one = msgspec.structs.replace(out, properties=properties)
        whose = msgspec.structs.replace(
            result,
            message_id=find_property(properties, b"UNIQ_KEY\x01") or result.message_id,
            offset_message_id=offset_ids[min(place, len(offset_ids) - 1)],
        )
        made.append(sent(where, group, (one, whose, seconds, len(body))))
    return made


def _kind(out: Outgoing, properties: str) -> int:
    if out.sys_flag & TRANSACTION_PREPARED:
        return HALF
    if any(name in properties for name in _DELAYS):
        return DELAYED
    return ORDERED if _SHARDING in properties else NORMAL


def handed_over(
    group: str, message: MessageExt, request_id: str, region: str, keys: str, now_ms: int
) -> str:
    """Return the record of a message that a handler is about to get."""
    return (
        f"SubBefore\x01{now_ms}\x01{region}\x01{group}\x01{request_id}\x01{message.message_id}"
        f"\x01{message.reconsume_times}\x01{keys or NOTHING}\x02"
    )


def handled(
    group: str,
    message_id: str,
    request_id: str,
    keys: str,
    cost_ms: int,
    how: int,
    now_ms: int | None,
) -> str:
    """Return the record of a message that a handler is done with; *now_ms* is None in clouds."""
    tail = "" if now_ms is None else f"{now_ms}\x01{group}"
    return (
        f"SubAfter\x01{request_id}\x01{message_id}\x01{cost_ms}\x01{BOOLS[how == SUCCESS]}"
        f"\x01{keys or NOTHING}\x01{how}\x01{tail}\x02"
    )


def transaction_ended(context: EndTransactionContext, region: str, keys: str, now_ms: int) -> str:
    """Return the record of a decision."""
    message = context.message
    return (
        f"EndTransaction\x01{now_ms}\x01{region}\x01{context.group}\x01{message.topic}"
        f"\x01{context.message_id}\x01{message.tags or NOTHING}\x01{keys or NOTHING}"
        f"\x01{context.address}\x01{ENDED}\x01{context.transaction_id}\x01{STATES[context.state]}"
        f"\x01{BOOLS[context.from_check]}\x02"
    )


def recalled(group: str, topic: str, message_id: str, region: str, now_ms: int) -> str:
    """Return the record of a message that was taken back."""
    return f"Recall\x01{now_ms}\x01{region}\x01{group}\x01{topic}\x01{message_id}\x01true\x02"
