"""Requests of administrators that a broker forwards to consumers, and offset resets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from rocketmq_aio.embedded.broker.clients import ClientProcessor, Group
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import QueueLog
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import NO_QUEUES, queue_key, queue_table
from rocketmq_aio.protocol.codes import ONEWAY_FLAG, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import Header, RequestHeader, read_header, to_ext_fields
from rocketmq_aio.protocol.requests import from_broker
from rocketmq_aio.protocol.requests.admin import InvokeResetOffset
from rocketmq_aio.protocol.requests.operations import GetMemberOffsets

Push = Callable[[RequestHeader | Command, int, float], Awaitable[Command | None]]

CONSUME_MSG_TIMEOUT: Final = 207
FORWARD_SECONDS: Final = 10.0
STATUS_SECONDS: Final = 5.0
END: Final = -1  # as a time of a reset


class CloneHeader(Header, frozen=True):
    """Groups between which offsets are copied."""

    src_group: str
    dest_group: str
    topic: str = ""


class ForwardingProcessor:
    """Forwards requests to consumers; resets and clones offsets.

    :param push: sends a request to a connection and returns the response; None: oneway
    """

    def __init__(self, state: BrokerState, clients: ClientProcessor, push: Push) -> None:
        self._state = state
        self._clients = clients
        self._push = push

    @reads(Command, RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def forward(self, command: Command) -> Response:
        """Forward *command* to the first connection of the client that it names."""
        header = read_header(command, from_broker.ConsumeMessageDirectly)
        ext, body = command.ext_fields(), b""
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            body = self._record(header.msg_id or "")
            ext = {**ext, "brokerName": self._state.name}
            if self._state.version.is_5:
                ext |= {"topicSysFlag": "0", "groupSysFlag": "0"}
        who = f"<{header.consumer_group}> <{header.client_id}>"
        members = self._members(header.consumer_group).members
        numbers = [n for n, client_id in members.items() if client_id == header.client_id]
        if not numbers:
            raise ErrorResponse(f"The Consumer {who} not online")
        forwarded = Command(command.code, 0, ext=ext, body=body)
        try:
            response = await self._push(forwarded, numbers[0], FORWARD_SECONDS)
        except TimeoutError:
            raise ErrorResponse(f"consumer {who} timeout", CONSUME_MSG_TIMEOUT) from None
        except ConnectionError as error:
            raise ErrorResponse(f"invoke consumer {who} Exception: {error}") from None
        assert response is not None
        return Response(response.code, remark=response.remark, body=bytes(response.body))

    @reads(GetMemberOffsets)
    async def status(self, header: GetMemberOffsets) -> object:
        members = self._members(header.group).members
        if not members:
            raise ErrorResponse(f"No Any Consumer online in the consumer group: [{header.group}]")
        table: dict[str, msgspec.Raw] = {}
        for number, client_id in list(members.items()):
            if header.client_addr in (None, "", client_id):
                request = from_broker.GetConsumerStatus(topic=header.topic, group=header.group)
                table[client_id] = await self._status_of(number, request)
        return {"consumerTable": table, "messageQueueTable": {}}

    @reads(InvokeResetOffset)
    async def reset(self, header: InvokeResetOffset) -> object:
        if self._state.version.is_5 and self._state.enabled("useServerSideResetOffset", True):
            offsets = self._reset_at_broker(header)
        else:
            offsets = await self._reset_members(header)
        return {"offsetTable": self._table(header.topic, offsets)}

    @reads(CloneHeader, OtherCode.CLONE_GROUP_OFFSET)
    def clone(self, header: CloneHeader) -> None:
        """Copy the offsets of a topic; without one, real brokers copy none."""
        committed = self._state.committed
        for (group, topic, number), offset in list(committed.items()):
            if group == header.src_group and topic == header.topic:
                committed[header.dest_group, topic, number] = offset

    # --- inside ---------------------------------------------------------------------------------

    def _record(self, message_id: str) -> bytes:
        """Return the message with an offset message id; empty if it is not stored."""
        try:
            offset = int(message_id[-16:], 16)
        except ValueError:
            raise ErrorResponse(f"msgId is invalid: {message_id}") from None
        found = self._state.store.find(offset)
        return b"" if found is None else found.record

    async def _status_of(self, number: int, request: from_broker.GetConsumerStatus) -> msgspec.Raw:
        try:
            response = await self._push(request, number, STATUS_SECONDS)
        except (TimeoutError, ConnectionError):
            return NO_QUEUES
        if response is None or response.code != ResponseCode.SUCCESS:
            return NO_QUEUES
        found = read_body(bytes(response.body), dict[str, Any]).get("messageQueueTable") or {}
        return queue_table({queue_key(key): offset for key, offset in found.items()})

    def _reset_at_broker(self, header: InvokeResetOffset) -> dict[int, int]:
        """Commit the offsets, which the next pull of each queue returns."""
        topic = self._state.topic(header.topic, "Topic {} does not exist")
        self._state.group(header.group, "Group {} does not exist")
        queue_id = -1 if header.queue_id is None else header.queue_id
        logs = dict(topic.to_read())
        if queue_id >= 0:
            logs = {queue_id: logs.get(queue_id, QueueLog())}
        offsets = {number: _at_time(log, header.timestamp) for number, log in logs.items()}
        if queue_id >= 0 and header.offset is not None and header.offset != -1:
            log = logs[queue_id]
            if not log.min_offset <= header.offset <= log.max_offset + 1:
                place = f"[{log.min_offset}-{log.max_offset}]"
                remark = f"Target offset {header.offset} not in consume queue range {place}"
                raise ErrorResponse(remark)
            offsets[queue_id] = header.offset
        for number, offset in offsets.items():
            key = header.group, header.topic, number
            self._state.committed[key] = self._state.reset_offsets[key] = offset
        return offsets

    async def _reset_members(self, header: InvokeResetOffset) -> dict[int, int]:
        """Send the offsets to all members, which reset themselves."""
        topic = self._state.store.find_topic(header.topic)
        if topic is None:
            remark = "[reset-offset] reset offset failed, no topic in this broker."
            raise ErrorResponse(f"{remark} topic={header.topic}")
        offsets: dict[int, int] = {}
        for number, log in topic.to_write():
            before = self._state.committed.get((header.group, header.topic, number))
            if before is None:
                raise ErrorResponse(f"THe consumer group <{header.group}> not exist")
            offset = _at_time(log, header.timestamp)
            offsets[number] = offset if header.is_force else min(offset, before)
        members = self._members(header.group).members
        if not members:
            what = f"Group: {header.group} Topic: {header.topic} Timestamp: {header.timestamp}"
            remark = f"Consumer not online, so can not reset offset, {what}"
            raise ErrorResponse(remark, ResponseCode.CONSUMER_NOT_ONLINE)
        body = msgspec.json.encode({"offsetTable": self._table(header.topic, offsets)})
        reset = from_broker.ResetOffset(
            group=header.group, topic=header.topic, timestamp=header.timestamp, is_force=False
        )
        for number in list(members):
            push = Command(reset.code, 0, ONEWAY_FLAG, ext=to_ext_fields(reset), body=body)
            await self._push(push, number, FORWARD_SECONDS)
        return offsets

    def _members(self, group: str) -> Group:
        return self._clients.groups.get(group) or Group()

    def _table(self, topic: str, offsets: dict[int, Any]) -> msgspec.Raw:
        return queue_table(
            {MessageQueue(topic, self._state.name, n): offset for n, offset in offsets.items()}
        )


def _at_time(log: QueueLog, timestamp: int) -> int:
    return log.max_offset if timestamp <= END else log.search(timestamp)
