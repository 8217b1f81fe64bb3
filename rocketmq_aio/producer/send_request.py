"""A message on its way: what stays the same over all attempts, and where the next one goes."""

from __future__ import annotations

import msgspec

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import MAX_PROPERTIES
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo, reply_header
from rocketmq_aio.protocol.codes import COMPRESSED, COMPRESSION_BITS, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.compression import compress
from rocketmq_aio.protocol.fastjson import READ_ERRORS
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.send import (
    SendMessage,
    SendMessageResponse,
)
from rocketmq_aio.remoting.response_errors import broker_error

# The broker stores more than is sent: its cluster name, and from 5.x region and trace flag.
PROPERTIES_SPARE = 160
STATUSES = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
SOME_ID = "0" * 32
# Of a body: from here on compressing it takes some 0.1 ms, ten times what it costs to hand it to a
# thread and back; smaller ones are not worth the switches between threads.
ASIDE_FROM = {"zlib": 8 * 1024, "zstd": 16 * 1024, "lz4": 64 * 1024}
SEND = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)


_decode_answer = msgspec.json.Decoder(SendMessageResponse, strict=False).decode


def not_a_message(given: object) -> InvalidMessageError:
    """Return the error for something else that was given as a message."""
    return InvalidMessageError(None, f"expected Message(topic, body), got {type(given).__name__}")


class SendRequest(msgspec.Struct, gc=False):
    """One send: aimed at a *target*, `frame` makes what goes over the wire."""

    target: SendTarget
    topic: str
    message_id: str
    body: bytes
    properties: bytes
    sys_flag: int
    flag: int
    born_ms: int
    batch: bool = False
    fixed: bool = False  # the queue is kept over all attempts
    failed_brokers: frozenset[str] = frozenset()
    reply: bool = False  # to a request
    packing: tuple[str, int] | None = None  # kind and level of the compression that is yet to come
    named: dict[str, str] | None = None  # those properties that are of the message; not changed

    def compress(self) -> None:
        """Compress the body as *packing* says, unless it does not shrink."""
        if self.packing is None:
            return
        kind, level = self.packing
        self.packing = None
        packed = compress(self.body, kind, level)
        # What does not shrink stays plain: grown, it could be too large for the broker.
        if len(packed) < len(self.body):
            self.body, self.sys_flag = packed, self.sys_flag | COMPRESSED | COMPRESSION_BITS[kind]

    def frame(self, opaque: int) -> tuple[bytes, bytes]:
        """Return head and body of a prepared frame."""
        target, body = self.target, self.body
        template = target.template
        if self.batch or self.reply:
            template = target.batch_template if self.batch else target.reply_template
        numbers = (target.queue.queue_id, self.sys_flag, self.flag)
        size = len(body)
        return template.frame_head(opaque, numbers, self.born_ms, self.properties, size), body

    def header(self, publish: TopicPublishInfo) -> SendMessage:
        """Return the same as a typed header, for signed requests and hooks."""
        header = publish.header(self.target.queue, batch=self.batch)
        if self.reply:
            header = reply_header(header)
        return msgspec.structs.replace(
            header,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_ms,
            flag=self.flag,
            properties=self.properties.decode(),
        )

    @property
    def code(self) -> int:
        """The code of the request that `frame` makes."""
        if self.reply:
            return SEND_REPLY
        return SEND_BATCH if self.batch else SEND

    def result(self, command: Command) -> SendResult:
        """Return what the broker's answer says.

        :raises BrokerError: it says no
        """
        status = STATUSES.get(command.code)
        if status is None:
            raise broker_error(command, self.target.address)
        try:
            answer = _decode_answer(command.ext)  # type: ignore[arg-type]
        except (TypeError, *READ_ERRORS):  # a binary header, or one that is odd
            answer = read_header(command, SendMessageResponse)
        queue = self.target.queue
        if answer.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, answer.queue_id)
        return SendResult(
            status,
            self.message_id,
            answer.msg_id,
            queue,
            answer.queue_offset,
            answer.transaction_id,
            answer.region_id,
            answer.recall_handle,
            answer.trace_on != "false",
        )


def outgoing(
    message: Message,
    target: SendTarget,
    message_id: str,
    born_ms: int,
    config: ProducerConfig,
    extra: str = "",
) -> SendRequest:
    """Return *message* ready to be sent: identified, its properties encoded, its body compressed.

    *extra* are properties in wire form that are not the message's own.
    A very large body is still to be compressed: then ``packing`` of the result is set.

    :raises InvalidMessageError: body or properties are too large
    """
    body, kind = message.body, config.compression
    if len(body) > config.max_message_bytes:
        raise _too_large(message, config)
    properties = encode_properties(message, message_id, extra)
    sent = SendRequest(
        target, message.topic, message_id, body, properties, 0, message.flag, born_ms
    )
    sent.named = message.properties
    if len(body) >= config.compress_above_bytes and kind is not None:
        sent.packing = kind, config.compression_level
        if len(body) < ASIDE_FROM[kind]:
            sent.compress()
    return sent


def check_sizes(message: Message, config: ProducerConfig) -> None:
    """Refuse what `outgoing` would refuse, before anybody is asked where to send it.

    :raises InvalidMessageError: body or properties are too large
    """
    if len(message.body) > config.max_message_bytes:
        raise _too_large(message, config)
    encode_properties(message, SOME_ID)


def _too_large(message: Message, config: ProducerConfig) -> InvalidMessageError:
    size, most = len(message.body), config.max_message_bytes
    reason = f"the body has {size} bytes, max_message_bytes is {most}"
    return InvalidMessageError(message.topic, reason)


def encode_properties(message: Message, message_id: str, extra: str = "") -> bytes:
    """Return all properties of *message* with its id and *extra* ones, in wire form.

    :raises InvalidMessageError: they are too long for the stored record
    """
    encoded = f"{message.encoded_properties}UNIQ_KEY\x01{message_id}\x02{extra}".encode()
    check_properties(message.topic, encoded)
    return encoded


def check_properties(topic: str, encoded: bytes) -> None:
    """Refuse properties that are too long for the stored record.

    :raises InvalidMessageError: they are
    """
    if len(encoded) > MAX_PROPERTIES - PROPERTIES_SPARE:
        reason = (
            f"keys, tags and properties take {len(encoded)} bytes, "
            f"at most {MAX_PROPERTIES - PROPERTIES_SPARE} fit"
        )
        raise InvalidMessageError(topic, reason)
