"""SendProcessor: stores sent messages and batches."""

from __future__ import annotations

from dataclasses import dataclass
from random import randrange
from typing import Final, cast

from msgspec import defstruct
from msgspec.structs import fields, replace

from rocketmq_aio.embedded.broker.delay_levels import DelayLevels, number
from rocketmq_aio.embedded.broker.send_back import SendBackProcessor
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import (
    TRACE_FIELDS,
    UNIT,
    UNIT_GROUP,
    NewMessage,
    StoredMessage,
)
from rocketmq_aio.embedded.broker.timers import TIMER_DELAY_SEC, TIMER_TOPIC, TimerProcessor
from rocketmq_aio.embedded.broker.topics import TEMPLATE_TOPIC, topic_fault
from rocketmq_aio.embedded.broker.transactions import TransactionProcessor
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.handlers import handles
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.names import RETRY_PREFIX, UNSENDABLE_TOPICS
from rocketmq_aio.model.properties import (
    DELAY,
    MAX_PROPERTIES,
    PRIORITY,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    parse_properties,
    read_priority,
)
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import Header, read_header
from rocketmq_aio.protocol.record import decode_batch
from rocketmq_aio.protocol.requests.send import SendMessage

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
PERM_INHERIT: Final = 1  # of templates for topics that sends create
# The header of code 10, which Go clients send: the same fields with long names.
_LONG_FIELDS = [
    (f.name, f.type, *(() if f.required else (f.default,))) for f in fields(SendMessage)
]
LONG_HEADER: Final = cast(
    "type[SendMessage]",
    defstruct("LongSendMessage", _LONG_FIELDS, bases=(Header,), frozen=True, kw_only=True),
)
FORBIDDEN_TOPICS: Final = UNSENDABLE_TOPICS - {TIMER_TOPIC}
DELAYED_OR_HALF: Final = frozenset(
    (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, "TRAN_MSG")
)
BATCH_TOO_LARGE: Final = "java.lang.RuntimeException: message body size exceeded"  # of 5.x
ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit"
    f" {MAX_BODY_BYTES}B, msg properties length limit 32KB."
)


@dataclass(slots=True)
class SendProcessor:
    """Stores sent messages and batches."""

    _state: BrokerState
    _delays: DelayLevels
    _send_backs: SendBackProcessor
    _transactions: TransactionProcessor
    _timers: TimerProcessor

    @handles(OtherCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def send(self, command: Command, connection: ServerConnection) -> Response:
        is_long = command.code == OtherCode.SEND_MESSAGE
        header = read_header(command, LONG_HEADER if is_long else SendMessage)
        try:
            queue_id = self._queue_id(header)
            self._check_body(header, command.body)
            properties = parse_properties((header.properties or "").encode())
            if self._state.version.is_5:
                properties.pop("POP_CK", None)
                if not header.batch:
                    queue_id = self._queue_by_priority(header.topic, properties, queue_id)
            message = NewMessage(
                topic=header.topic,
                queue_id=queue_id,
                body=command.body,
                properties=properties,
                flag=header.flag,
                sys_flag=header.sys_flag,
                born_ms=header.born_timestamp,
                born_host=connection.client_address,
                reconsume_times=header.reconsume_times or 0,
            )
            # The flag decides, not the code: 320 without it stores the batch as one message.
            if header.batch:
                return self._response(self._store_batch(message), message, batch=True)
            return self._store_single(message, header.max_reconsume_times)
        except ErrorResponse as error:
            return replace(error.response, ext=TRACE_FIELDS)

    def _queue_id(self, header: SendMessage) -> int:
        state, name = self._state, header.topic
        is_new = name not in state.store.topics
        # In a light message queue of a real broker it would hide another message.
        if name in FORBIDDEN_TOPICS or (is_new and state.store.is_light(name)):
            remark = f"Sending message to topic[{name}] is forbidden."
            raise ErrorResponse(remark, ResponseCode.NO_PERMISSION)
        if is_new:
            if (fault := topic_fault(name, is_5=state.version.is_5)) is not None:
                raise state.invalid(fault)
            self._create_topic(header)
        topic = state.topic(name)
        if not topic.write_queues and header.queue_id < 0:
            raise ErrorResponse("java.lang.ArithmeticException: / by zero")
        if header.queue_id >= max(topic.write_queues, topic.read_queues):
            raise state.invalid(f"request queueId[{header.queue_id}] is illegal")
        return header.queue_id if header.queue_id >= 0 else randrange(topic.write_queues)

    def _queue_by_priority(self, topic: str, properties: dict[str, str], queue_id: int) -> int:
        """Return the queue of a message: that of its priority; drop one that does not count."""
        if (priority := read_priority(properties.get(PRIORITY))) is None:
            return queue_id
        if SHARDING_KEY in properties or not DELAYED_OR_HALF.isdisjoint(properties):
            del properties[PRIORITY]
            return queue_id
        return min(priority, self._state.topic(topic).write_queues - 1)

    def _create_topic(self, header: SendMessage) -> None:
        """Create the topic of a send from the template that it names, if that is allowed."""
        state, name = self._state, header.default_topic
        template = state.store.topics.get(name)
        if template is not None and template.perm & PERM_INHERIT:
            if name == TEMPLATE_TOPIC and not state.auto_create_topics:
                return
            queues = max(0, min(header.default_topic_queue_nums, template.write_queues))
            flag = UNIT if header.unit_mode else 0
            state.store.create_topic(header.topic, queues, sys_flag=flag)
        elif header.topic.startswith(RETRY_PREFIX):
            flag = UNIT_GROUP if header.unit_mode else 0
            state.store.create_topic(header.topic, 1, sys_flag=flag)

    def _check_body(self, header: SendMessage, body: bytes) -> None:
        is_5 = self._state.version.is_5
        if not body and (is_5 or header.batch):
            raise ErrorResponse("java.lang.NullPointerException: body")
        if len(body) > MAX_BODY_BYTES:
            if header.batch and is_5:
                raise ErrorResponse(BATCH_TOO_LARGE)
            raise ErrorResponse(ILLEGAL, ResponseCode.MESSAGE_ILLEGAL)

    def _store_single(self, message: NewMessage, max_reconsume_times: int | None) -> Response:
        if message.topic.startswith(RETRY_PREFIX):
            message = self._send_backs.placed(message, max_reconsume_times)
        is_plain = DELAYED_OR_HALF.isdisjoint(message.properties)
        if is_plain and not self._state.version.is_5:
            message.properties.pop(WAIT, None)
        encoded = self._state.store.encode_properties(message)
        if len(encoded) > MAX_PROPERTIES:
            raise ErrorResponse(ILLEGAL, ResponseCode.MESSAGE_ILLEGAL)
        if is_plain:
            stored = self._state.store.append_encoded(message, encoded)
        elif (due_ms := self._timers.due_ms(message.properties)) is not None:
            stored, handle = self._timers.store(message, due_ms)
            response = self._response([stored], message)
            return replace(response, ext={**response.ext, "recallHandle": handle})
        elif message.properties.get("TRAN_MSG") == "true":
            stored = self._transactions.store(message)
        else:
            stored = self._delays.store(message)
        return self._response([stored], message)

    def _store_batch(self, batch: NewMessage) -> list[StoredMessage]:
        if number(batch.properties, DELAY):
            raise ErrorResponse(ILLEGAL, ResponseCode.MESSAGE_ILLEGAL)
        if batch.topic.startswith(RETRY_PREFIX) and self._state.version.is_5:
            remark = f"batch request does not support retry group {batch.topic}"
            raise ErrorResponse(remark, ResponseCode.MESSAGE_ILLEGAL)
        entries = list(decode_batch(batch.body))
        if any(len(properties) > MAX_PROPERTIES for _, _, properties in entries):
            raise ErrorResponse(ILLEGAL, ResponseCode.MESSAGE_ILLEGAL)
        return self._state.store.append_batch(batch, entries)

    def _response(
        self, stored: list[StoredMessage], message: NewMessage, *, batch: bool = False
    ) -> Response:
        ids = [each.message_id for each in stored]
        ext = {
            "msgId": ids[0] if len(ids) == 1 else ",".join(ids),
            "queueId": str(message.queue_id),
            "queueOffset": str(stored[0].offset),
            **TRACE_FIELDS,
        }
        if self._state.version.is_5 and not batch:
            key = message.properties.get(UNIQ_KEY) or stored[0].properties.get(UNIQ_KEY)
            if key is not None:
                ext["transactionId"] = key
        return Response(ext=ext)
