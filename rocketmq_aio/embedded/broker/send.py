"""SendProcessor on the broker."""

from __future__ import annotations

from rocketmq_aio.embedded.broker.delay_levels import DelayLevels
from rocketmq_aio.embedded.broker.send_back import SendBackProcessor
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Handlers
from rocketmq_aio.embedded.broker.store import REGION, NewMessage, StoredMessage
from rocketmq_aio.embedded.broker.timers import TimerProcessor, with_handle
from rocketmq_aio.embedded.broker.transactions import TransactionProcessor
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import UNIQ_KEY, parse_properties
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.record import decode_batch
from rocketmq_aio.protocol.requests.send import SendMessage, SendMessageResponse

MAX_BODY_BYTES = 4 * 1024 * 1024


class SendProcessor:
    """Stores sent messages and batches."""

    def __init__(
        self,
        state: BrokerState,
        delays: DelayLevels,
        backs: SendBackProcessor,
        transactions: TransactionProcessor,
        timers: TimerProcessor,
    ) -> None:
        self._state = state
        self._delays = delays
        self._backs = backs
        self._transactions = transactions
        self._timers = timers

    def handlers(self) -> Handlers:
        return {RequestCode.SEND_MESSAGE_V2: self.send, RequestCode.SEND_BATCH_MESSAGE: self.send}

    def send(self, command: Command, connection: ServerConnection) -> Response:
        header = read_header(command, SendMessage)
        queue_id = self._queue_id(header)
        self._check(command.body)
        incoming = NewMessage(
            topic=header.topic,
            queue_id=queue_id,
            body=command.body,
            properties=(header.properties or "").encode(),
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_ms=header.born_timestamp,
            born_host=connection.client_address,
            reconsume_times=header.reconsume_times or 0,
        )
        if header.topic.startswith(RETRY_PREFIX):
            incoming = self._backs.placed(incoming, header.max_reconsume_times)
        due_ms = self._timers.due_ms(parse_properties(incoming.properties))
        if due_ms is not None and not header.batch:
            held, handle = self._timers.hold(incoming, due_ms)
            return with_handle(self._stored([held], queue_id, batch=False), handle)
        # The flag decides, not the code: 320 without it stores the batch as one message.
        stored = self._batch(incoming) if header.batch else [self._single(incoming)]
        return self._stored(stored, queue_id, batch=bool(header.batch))

    def _queue_id(self, header: SendMessage) -> int:
        state = self._state
        if header.topic not in state.store.topics and state.auto_create_topics:
            state.store.create_topic(header.topic, header.default_topic_queue_nums)
        topic = state.topic(header.topic)
        if not topic.write_queues and header.queue_id < 0:
            raise ErrorResponse(
                ResponseCode.SYSTEM_ERROR, "java.lang.ArithmeticException: / by zero"
            )
        if header.queue_id >= max(topic.write_queues, topic.read_queues):
            raise state.invalid(f"request queueId[{header.queue_id}] is illegal")
        return max(header.queue_id, 0)  # a real broker chooses at random

    def _check(self, body: bytes) -> None:
        if not body and self._state.version.is_5:
            raise ErrorResponse(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: body")
        if len(body) > MAX_BODY_BYTES:
            raise ErrorResponse(
                ResponseCode.MESSAGE_ILLEGAL, "the message is illegal, maybe too long"
            )

    def _single(self, incoming: NewMessage) -> StoredMessage:
        if b"TRAN_MSG\x01true\x02" in incoming.properties:
            return self._transactions.hold(incoming)
        return self._delays.store(incoming)

    def _batch(self, incoming: NewMessage) -> list[StoredMessage]:
        batch = parse_properties(incoming.properties)
        entries = [
            NewMessage(
                topic=incoming.topic,
                queue_id=incoming.queue_id,
                body=body,
                properties=properties,
                flag=flag,
                sys_flag=incoming.sys_flag,
                born_ms=incoming.born_ms,
                born_host=incoming.born_host,
            )
            for flag, body, properties in decode_batch(incoming.body)
        ]
        return [
            self._state.store.append_entry(entry, batch, self._state.clock.now_ms())
            for entry in entries
        ]

    def _stored(self, stored: list[StoredMessage], queue_id: int, *, batch: bool) -> Response:
        is_5 = self._state.version.is_5
        answer = SendMessageResponse(
            msg_id=",".join(each.message_id for each in stored),
            queue_id=queue_id,
            queue_offset=stored[0].offset,
            transaction_id=stored[0].properties.get(UNIQ_KEY) if is_5 and not batch else None,
            region_id=REGION,
            trace_on="true",
        )
        return Response(ext=to_ext_fields(answer))
