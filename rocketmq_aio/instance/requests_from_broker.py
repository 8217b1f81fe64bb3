"""Requests from brokers: dispatched to the producer or consumer of the group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import Final

import anyio
import msgspec

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import NotSupportedError
from rocketmq_aio.instance.inner_clients import (
    DirectConsumer,
    InnerClient,
    InnerConsumer,
    InnerTransactionProducer,
)
from rocketmq_aio.instance.pending_replies import PendingReplies
from rocketmq_aio.instance.stack_dump import all_stacks
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import CORRELATION_ID, PRODUCER_GROUP, find_property
from rocketmq_aio.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerStatusBody,
    DirectOutcome,
    queue_table,
    read_reset_offsets,
)
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.namespaces import namespace_of
from rocketmq_aio.protocol.record import decode_message
from rocketmq_aio.protocol.replies import reply_message
from rocketmq_aio.protocol.requests.from_broker import (
    CheckTransactionState,
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    NotifyConsumerIdsChanged,
    PushReplyMessage,
    ResetOffset,
)
from rocketmq_aio.remoting.inbound_requests import Reply

MAX_OFFSET: Final = 2**63 - 1
DIRECT_SECONDS: Final = 9.0  # the broker waits 10 s
RESET_SECONDS: Final = 9.0  # a store of the application may hang; the broker does not wait

logger = get_logger(__name__)

Handler = Callable[[Command], Awaitable[Reply]]
OK: Final[Reply] = (ResponseCode.SUCCESS, None, b"")
SWITCHED_OFF: Final = "switched off at this client by the setting {} of its ClientConfig"
NO_STACKS: Final = SWITCHED_OFF.format("allow_stack_dumps")
CORRELATION_ID_NAME: Final = CORRELATION_ID.encode() + b"\x01"
SETTINGS: Final[dict[int, str]] = {  # that switch a request off
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "allow_offset_resets",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "allow_direct_consumption",
}
MAX_WARNINGS: Final = 100  # peers choose how many kinds there are


class BrokerRequestHandler:
    """Dispatches each request of a broker to the producer or consumer of its group.

    Without such a client the request is rejected, or dropped if it is oneway.  So are requests of
    administrators that *config* does not allow.
    """

    def __init__(
        self,
        consumers: Mapping[str, InnerConsumer],
        producers: Mapping[str, InnerClient],
        replies: PendingReplies,
        config: ClientConfig,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._replies = replies
        self._config = config
        self._namespace = namespace_of(config)
        self._warned: set[tuple[str, ...]] = set()
        self._handlers: dict[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._deliver_reply,
        }

    async def handle(self, address: str, command: Command) -> Reply | None:
        """Return the reply to *command* from the broker at *address*."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._check_transaction(address, command)
            return None
        handler = self._handlers.get(command.code)
        if handler is None:
            remark = f"request type {command.code} is not supported by this client"
            raise NotSupportedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, address)
        setting = SETTINGS.get(command.code)
        if setting is not None and not getattr(self._config, setting):
            self._warn_once("broker_request_refused", address, setting=setting)
            return ResponseCode.NO_PERMISSION, SWITCHED_OFF.format(setting), b""
        if self._namespace is None:
            return await handler(command)
        self._namespace.broker_request(command)
        code, text, body = await handler(command)
        return code, text, self._namespace.outer_json(command.code, body)

    def _check_transaction(self, address: str, command: Command) -> None:
        header = read_header(command, CheckTransactionState)
        message = self._message(command, header.broker_name or "")
        group = message.property(PRODUCER_GROUP) or ""
        client = self._producers.get(group)
        if isinstance(client, InnerTransactionProducer):
            client.on_transaction_check(address, header, message)
        else:  # the broker repeats the check, perhaps with another producer
            self._warn_once("transaction_check_without_producer", address, group=group)

    def _warn_once(self, event: str, address: str, **subject: str) -> None:
        """Log the first *event* of each peer and subject, at most `MAX_WARNINGS` of them."""
        kind = (event, address, *subject.values())
        if kind not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(kind)
            logger.warning(event, address=address, **subject)

    async def _deliver_reply(self, command: Command) -> Reply:
        header = read_header(command, PushReplyMessage)
        properties = (header.properties or "").encode()
        correlation_id = find_property(properties, CORRELATION_ID_NAME) or ""
        reply = self._replies.take(correlation_id)
        if reply is None:
            return OK  # its body is not inflated
        try:
            reply.set_result(reply_message(header, command.body))
        except Exception as error:  # the request would wait forever
            reply.set_exception(copy(error))  # a copy: raising changes an error
            raise
        return OK

    async def _members_changed(self, command: Command) -> Reply:
        header = read_header(command, NotifyConsumerIdsChanged)
        # Brokers also notify about groups that are not (or no longer) registered here.
        if (consumer := self._consumers.get(header.consumer_group)) is not None:
            consumer.on_members_changed()
        return OK

    async def _reset_offsets(self, command: Command) -> Reply:
        header = read_header(command, ResetOffset)
        offsets = {
            queue: offset
            for queue, offset in read_reset_offsets(command.body).items()
            if queue.topic == header.topic and 0 <= offset <= MAX_OFFSET
        }
        client = self._client(header.group)
        # The queues have moved when it begins to commit; what is not committed is due again later.
        with anyio.move_on_after(RESET_SECONDS):
            await client.reset_offsets(header.topic, offsets)
        return OK

    async def _consumer_status(self, command: Command) -> Reply:
        header = read_header(command, GetConsumerStatus)
        offsets = await self._client(header.group).consumed_offsets(header.topic)
        body = ConsumerStatusBody(message_queue_table=queue_table(offsets))
        return ResponseCode.SUCCESS, None, msgspec.json.encode(body)

    async def _running_info(self, command: Command) -> Reply:
        header = read_header(command, GetConsumerRunningInfo)
        client = self._client(header.consumer_group)
        if header.check_id is not None:
            client.on_own_id_queried(header.check_id)
        info = client.running_info()
        if header.jstack_enable:
            stacks = all_stacks() if self._config.allow_stack_dumps else NO_STACKS
            info = msgspec.structs.replace(info, jstack=stacks)
        return ResponseCode.SUCCESS, None, msgspec.json.encode(info)

    async def _consume_directly(self, command: Command) -> Reply:
        header = read_header(command, ConsumeMessageDirectly)
        client = self._client(header.consumer_group)
        if not isinstance(client, DirectConsumer):
            remark = f"request type {command.code} is not supported: the consumer has no handler"
            raise NotSupportedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        message = self._message(command, header.broker_name or "")
        result = ConsumeDirectlyResult(
            consume_result=DirectOutcome.RAISED,
            remark=f"cancelled: it was not done within {DIRECT_SECONDS:g} s",
            spent_time_mills=int(DIRECT_SECONDS * 1000),
        )
        with anyio.move_on_after(DIRECT_SECONDS):
            result = await client.consume_directly(message, header.broker_name)
        return ResponseCode.SUCCESS, None, msgspec.json.encode(result)

    def _message(self, command: Command, broker_name: str) -> MessageExt:
        message = decode_message(command.body, broker_name)
        if self._namespace is not None:
            self._namespace.received(message)
        return message

    def _client(self, group: str) -> InnerConsumer:
        if (consumer := self._consumers.get(group)) is None:
            remark = f"this client has no consumer of group {group!r}"
            raise NotSupportedError(ResponseCode.SYSTEM_ERROR, remark)
        return consumer
