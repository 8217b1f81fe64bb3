"""Received messages without a broker, for unit tests of handlers."""

from __future__ import annotations

import time
from typing import Final

from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.embedded.broker.store import NewMessage, encode_record, packed_host
from rocketmq_aio.model.codec import Codec, V
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import UNIQ_KEY
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.record import IPV4_HEAD

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
BROKER_NAME: Final = "broker-a"
MESSAGE_ID: Final = "7F000001000018B4AAC20000{:08X}"


@checked_arguments
def received_message(
    sent: Message,
    *,
    codec: Codec[V] | None = None,
    queue_id: int = 0,
    queue_offset: int = 0,
    reconsume_times: int = 0,
    message_id: str | None = None,
) -> MessageExt[V]:
    """Return *sent* as a consumer would receive it, for a test that calls a handler.

    :param codec: the codec of the consumer, which makes `MessageExt.value`
    :param reconsume_times: how often it failed before
    :param message_id: default: one that depends on *queue_offset*
    :raises ConfigError: an argument is invalid
    """
    checked_count("queue_id", queue_id, least=0, most=MAX_INT)
    checked_count("queue_offset", queue_offset, least=0, most=MAX_LONG)
    checked_count("reconsume_times", reconsume_times, least=0, most=MAX_INT)
    properties = sent.encoded_properties
    if UNIQ_KEY not in sent.properties:
        properties += f"{UNIQ_KEY}\x01{message_id or MESSAGE_ID.format(queue_offset % 2**32)}\x02"
    encoded = properties.encode()
    now = time.time_ns() // 1_000_000
    stored = NewMessage(
        topic=sent.topic,
        queue_id=queue_id,
        body=sent.body,
        born_ms=now,
        reconsume_times=reconsume_times,
    )
    parts, host = (sent.flag, sent.body, encoded), packed_host(stored.born_host)
    head = encode_record(stored, parts, (queue_offset, 0), now, host)[:IPV4_HEAD]
    queue = MessageQueue(sent.topic, BROKER_NAME, queue_id)
    return MessageExt(sent.topic, sent.body, queue, queue_offset, head, encoded, codec=codec)
