"""Broker client: one typed method per request, addressed by the route table."""

from __future__ import annotations

import random
from typing import TypeVar

import msgspec

from rocketmq_aio.errors import RouteNotFoundError
from rocketmq_aio.instance.routes import RouteTable
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import CheckClientRequest, ConsumerList
from rocketmq_aio.protocol.codes import MASTER_ID, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import Header, RequestHeader, read_header
from rocketmq_aio.protocol.requests.assignment import (
    AssignmentRequest,
    AssignmentResponse,
    MessageQueueAssignment,
    QueryAssignment,
)
from rocketmq_aio.protocol.requests.client import (
    CheckClientConfig,
    GetConsumerListByGroup,
    UnregisterClient,
)
from rocketmq_aio.protocol.requests.connections import (
    ConsumerConnections,
    GetConsumerConnectionList,
    MemberState,
)
from rocketmq_aio.protocol.requests.from_broker import GetConsumerRunningInfo
from rocketmq_aio.protocol.requests.offsets import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffset,
    TimestampResponse,
    UpdateConsumerOffset,
)
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.client import RemotingClient
from rocketmq_aio.remoting.response_errors import broker_error

H = TypeVar("H", bound=Header)

# Without a code of its own; the remark is "no consumer for this group, <group>".
NO_MEMBERS = "no consumer for this group"


class BrokerClient:
    """Requests to brokers; each call has ``request_timeout_seconds`` as its deadline.

    All raise `NotConnectedError`, `ConnectionLostError`, `RequestTimeoutError` or `BrokerError`.
    """

    def __init__(self, remoting: RemotingClient, routes: RouteTable) -> None:
        self._remoting = remoting
        self._routes = routes

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is certainly none.

        Brokers before 5.0 return 0 for a young queue without a committed offset.
        """
        header = QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
            broker_name=queue.broker_name,
        )
        command, address = await self._request(queue, header)
        if command.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _read(command, OffsetResponse, address).offset

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit *offset*, the next one to consume."""
        header = UpdateConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        command, address = await self._request(queue, header)
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message."""
        header = GetMaxOffset(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return (await self._request_typed(queue, header, OffsetResponse)).offset

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still stored."""
        header = GetMinOffset(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return (await self._request_typed(queue, header, OffsetResponse)).offset

    async def offset_for_time(self, queue: MessageQueue, millis: int) -> int:
        """Return the first offset stored at or after *millis* (since 1970)."""
        header = SearchOffset(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=millis,
            broker_name=queue.broker_name,
        )
        return (await self._request_typed(queue, header, OffsetResponse)).offset

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return the store time of the first message, in milliseconds since 1970."""
        header = GetEarliestMsgStoretime(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return (await self._request_typed(queue, header, TimestampResponse)).timestamp

    async def consumer_ids(self, group: str, topic: str) -> list[str]:
        """Return the client ids of the members registered with one broker of the topic."""
        return await self.consumer_ids_at(group, self._any_broker(topic))

    async def consumer_ids_at(self, group: str, address: str) -> list[str]:
        """Return the client ids of the members registered with the broker at *address*."""
        header = GetConsumerListByGroup(consumer_group=group)
        command = await self._remoting.request(address, header)
        if command.code == ResponseCode.SYSTEM_ERROR and (command.remark or "").startswith(
            NO_MEMBERS
        ):
            return []
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)
        return read_body(command.body, ConsumerList).consumer_id_list

    async def query_assignment(
        self, request: AssignmentRequest
    ) -> list[MessageQueueAssignment] | None:
        """Return the assignment of the client by one broker of the topic; None if unknown.

        :raises NotSupportedError: the broker is older than 5.0
        """
        address = self._any_broker(request.topic)
        body = msgspec.json.encode(request)
        command = await self._remoting.request(address, QueryAssignment(), body)
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)
        return read_body(command.body, AssignmentResponse).message_queue_assignments

    async def consumer_connections(self, group: str, address: str) -> ConsumerConnections:
        """Return the members of the group connected to the broker at *address*."""
        header = GetConsumerConnectionList(consumer_group=group)
        command = await self._remoting.request(address, header)
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)
        return read_body(command.body, ConsumerConnections)

    async def member_state(
        self,
        group: str,
        client_id: str,
        address: str,
        *,
        check_id: str | None = None,
        timeout: float | None = None,
    ) -> MemberState:
        """Return the running info of a member, requested through the broker at *address*."""
        header = GetConsumerRunningInfo(
            consumer_group=group, client_id=client_id, check_id=check_id
        )
        command = await self._remoting.request(address, header, timeout=timeout)
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)
        return read_body(command.body, MemberState)

    async def check_filter(self, client_id: str, group: str, wanted: Subscription) -> None:
        """Let a broker of the topic check the filter expression.

        :raises SubscriptionError: it is rejected; unchecked, it would deliver everything
        """
        address = self._any_broker(wanted.topic)
        request = CheckClientRequest(
            client_id=client_id, group=group, subscription_data=wanted.to_body()
        )
        body = msgspec.json.encode(request)
        command = await self._remoting.request(address, CheckClientConfig(), body)
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)

    async def unregister(self, address: str, header: UnregisterClient) -> None:
        """Unregister from a group on one broker."""
        command = await self._remoting.request(address, header)
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)

    async def _request_typed(self, queue: MessageQueue, header: RequestHeader, kind: type[H]) -> H:
        command, address = await self._request(queue, header)
        return _read(command, kind, address)

    async def _request(self, queue: MessageQueue, header: RequestHeader) -> tuple[Command, str]:
        """Return the response of the master of *queue*, and its address."""
        address = self._routes.master_of(queue)
        command = await self._remoting.request(address, header)
        if command.code == ResponseCode.NOT_LEADER_FOR_QUEUE:  # a logical queue has moved
            self._routes.invalidate(queue.topic)
        return command, address

    def _any_broker(self, topic: str) -> str:
        """Return the address of a random broker of the topic, a master if there is one."""
        route = self._routes.known(topic)
        replicas = list(route.brokers.values()) if route is not None else []
        masters = [each[MASTER_ID] for each in replicas if MASTER_ID in each]
        others = [address for each in replicas for address in each.values()]
        if not masters and not others:
            raise RouteNotFoundError(topic, "its route has no broker")
        return random.choice(masters or others)


def _read(command: Command, kind: type[H], address: str) -> H:
    if command.code != ResponseCode.SUCCESS:
        raise broker_error(command, address)
    return read_header(command, kind)
