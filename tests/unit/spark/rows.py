"""Rows that a read returns for messages of the client."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt


def row_of(message: MessageExt) -> dict[str, Any]:
    """Return all columns of *message*; a time out of the calendar is null."""
    return {
        "topic": message.topic,
        "flag": message.flag,
        "body": message.body,
        "properties": message.properties,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "bornTimestamp": _time(message, "born_time"),
        "storeTimestamp": _time(message, "store_time"),
        "msgId": message.message_id,
        "keys": message.properties.get("KEYS"),
        "tags": message.tags,
        "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "priority": message.priority,
    }


def _time(message: MessageExt, name: str) -> datetime | None:
    try:
        time: datetime = getattr(message, name)
    except CodecError:
        return None
    return time
