"""Send request: a message or batch in wire form, with the target of its next attempt."""

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
from rocketmq_aio.protocol.requests.send import SendMessage, SendMessageResponse
from rocketmq_aio.remoting.response_errors import broker_error

# The broker adds properties: its cluster name, and from 5.x region and trace flag (62 bytes with
# the default names).  A namespace of version 1 adds up to 77.
PROPERTIES_SPARE = 160
MAX_OWN_PROPERTIES = MAX_PROPERTIES - PROPERTIES_SPARE
# At the delivery time brokers add times, rolls, topic and queue, up to 265 bytes.  They accept a
# message that has less room, and lose it then.
MAX_TIMED_PROPERTIES = MAX_OWN_PROPERTIES - 270
STATUSES = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
PLACEHOLDER_ID = "0" * 32
# Bodies of at least this size are compressed in a thread: it takes about 0.1 ms, ten times the cost
# of switching to a thread and back.
THREAD_FROM = {"zlib": 8 * 1024, "zstd": 16 * 1024, "lz4": 64 * 1024}
SEND = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)


_decode_response = msgspec.json.Decoder(SendMessageResponse, strict=False).decode


def not_a_message(given: object) -> InvalidMessageError:
    return InvalidMessageError(None, f"expected Message(topic, body), got {type(given).__name__}")


class SendRequest(msgspec.Struct, gc=False):
    """One send to *target*; `frame` makes the frame of an attempt."""

    target: SendTarget
    topic: str
    message_id: str
    body: bytes
    properties: bytes
    sys_flag: int
    flag: int
    born_ms: int
    batch: bool = False
    fixed: bool = False  # retries keep the queue
    failed_brokers: frozenset[str] = frozenset()
    is_reply: bool = False
    compression: tuple[str, int] | None = None  # kind and level, while the body is to be compressed
    message_properties: dict[str, str] | None = None  # of the message itself; read-only

    def compress(self) -> None:
        """Compress the body as `compression` says, unless that makes it larger."""
        if self.compression is None:
            return
        kind, level = self.compression
        self.compression = None
        compressed = compress(self.body, kind, level)
        # A body that grew could be too large for the broker.
        if len(compressed) < len(self.body):
            self.body = compressed
            self.sys_flag |= COMPRESSED | COMPRESSION_BITS[kind]

    def frame(self, opaque: int) -> tuple[bytes, bytes]:
        """Return head and body of a prepared frame."""
        target, body = self.target, self.body
        template = target.template
        if self.batch or self.is_reply:
            template = target.batch_template if self.batch else target.reply_template
        numbers = (target.queue.queue_id, self.sys_flag, self.flag)
        size = len(body)
        return template.frame_head(opaque, numbers, self.born_ms, self.properties, size), body

    def header(self, publish: TopicPublishInfo) -> SendMessage:
        header = publish.header(self.target.queue, batch=self.batch)
        if self.is_reply:
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
        if self.is_reply:
            return SEND_REPLY
        return SEND_BATCH if self.batch else SEND

    def result(self, command: Command) -> SendResult:
        """Return the result in the response *command*.

        :raises BrokerError: the broker rejected the send
        """
        status = STATUSES.get(command.code)
        if status is None:
            raise broker_error(command, self.target.address)
        try:
            response = _decode_response(command.ext)  # type: ignore[arg-type]
        except (TypeError, *READ_ERRORS):  # a binary or an unusual header
            response = read_header(command, SendMessageResponse)
        queue = self.target.queue
        if response.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, response.queue_id)
        return SendResult(
            status,
            self.message_id,
            response.msg_id,
            queue,
            response.queue_offset,
            response.transaction_id,
            response.region_id,
            response.recall_handle,
            response.trace_on != "false",
        )


def make_request(
    message: Message,
    target: SendTarget,
    message_id: str,
    born_ms: int,
    config: ProducerConfig,
    extra: str = "",
) -> SendRequest:
    """Return the request of *message*, with encoded properties and compressed body.

    A very large body is not compressed yet: ``compression`` of the result is set.

    :param extra: more properties, in wire form
    :raises InvalidMessageError: body or properties are too large
    """
    body, kind = message.body, config.compression
    if len(body) > config.max_message_bytes:
        raise too_large(message.topic, "the body", len(body), config.max_message_bytes)
    properties = encode_with_id(message, message_id, extra)
    request = SendRequest(
        target, message.topic, message_id, body, properties, 0, message.flag, born_ms
    )
    request.message_properties = message.properties
    if len(body) >= config.compress_above_bytes and kind is not None:
        request.compression = kind, config.compression_level
        if len(body) < THREAD_FROM[kind]:
            request.compress()
    return request


def check_sizes(message: Message, config: ProducerConfig) -> None:
    """Validate the sizes that `make_request` validates, before a route is requested.

    :raises InvalidMessageError: body or properties are too large
    """
    if len(message.body) > config.max_message_bytes:
        raise too_large(message.topic, "the body", len(message.body), config.max_message_bytes)
    encode_with_id(message, PLACEHOLDER_ID)


def too_large(topic: str, what: str, size: int, max_bytes: int) -> InvalidMessageError:
    return InvalidMessageError(topic, f"{what} has {size} bytes, max_message_bytes is {max_bytes}")


def encode_with_id(message: Message, message_id: str, extra: str = "") -> bytes:
    """Return all properties of *message* with its id and *extra* ones, in wire form.

    :raises InvalidMessageError: they are too long for the stored record, or not UTF-8
    """
    text = f"{message.encoded_properties}UNIQ_KEY\x01{message_id}\x02{extra}"
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # of the message they are checked before
        reason = "sharding_key: it may not hold half a surrogate pair"
        raise InvalidMessageError(message.topic, reason) from None
    most = MAX_TIMED_PROPERTIES if message.timed else MAX_OWN_PROPERTIES
    if len(encoded) > most:
        raise too_many_properties(message.topic, len(encoded), most)
    return encoded


def too_many_properties(topic: str, size: int, most: int) -> InvalidMessageError:
    reason = f"keys, tags and properties take {size} bytes, at most {most} fit"
    return InvalidMessageError(topic, reason)
