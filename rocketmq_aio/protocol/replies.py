"""Reply messages: decode PUSH_REPLY_MESSAGE_TO_CLIENT requests of brokers."""

from __future__ import annotations

import zlib
from functools import lru_cache
from ipaddress import ip_address
from struct import Struct, error as struct_error
from typing import Final

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import BORN_IPV6, COMPRESSED, STORE_IPV6
from rocketmq_aio.protocol.compression import inflate
from rocketmq_aio.protocol.record import CRC_MASK, MAGIC_V1
from rocketmq_aio.protocol.requests.from_broker import PushReplyMessage

# The fixed fields of a stored record, as `MessageExt` decodes them; a reply has no offsets.
_HEAD: Final = Struct(">iiIiiqqiq")
_PORT: Final = Struct(">i")
_TIME: Final = Struct(">q")
_TAIL: Final = Struct(">iqi")
NO_HOST: Final = b"\0\0\0\0"
HOSTS_REMEMBERED: Final = 256  # hosts of repliers and brokers: few


def reply_message(header: PushReplyMessage, body: bytes) -> MessageExt:
    """Return a pushed reply as a message; its queue has no broker name, its offset is 0.

    :raises CodecError: the body cannot be inflated, or a number does not fit its field
    """
    properties = (header.properties or "").encode()
    plain = inflate(body, header.sys_flag) if header.sys_flag & COMPRESSED else body
    queue = MessageQueue(header.topic, "", header.queue_id)
    try:
        head = _head(header, body)
    except struct_error as error:
        raise CodecError("PushReplyMessage", 8, str(error)) from error
    return MessageExt(header.topic, plain, queue, 0, head, properties)


def _head(header: PushReplyMessage, body: bytes) -> bytes:
    born, store = _host(header.born_host), _host(header.store_host)
    sys_flag = header.sys_flag & ~(BORN_IPV6 | STORE_IPV6)
    sys_flag |= BORN_IPV6 * (len(born) > 8) | STORE_IPV6 * (len(store) > 8)
    crc = zlib.crc32(body) & CRC_MASK
    numbers = (header.queue_id, header.flag, 0, 0, sys_flag, header.born_timestamp)
    head = _HEAD.pack(0, MAGIC_V1, crc, *numbers)
    tail = _TAIL.pack(header.reconsume_times or 0, 0, len(body))
    return b"".join((head, born, _TIME.pack(header.store_timestamp), store, tail))


@lru_cache(HOSTS_REMEMBERED)
def _host(text: str) -> bytes:
    """Return ``ip:port`` packed; zeros if it is invalid."""
    host, _, port = text.rpartition(":")
    try:
        return ip_address(host.strip("/[]")).packed + _PORT.pack(int(port))
    except (ValueError, struct_error):
        return NO_HOST + _PORT.pack(0)
