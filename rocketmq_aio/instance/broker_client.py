"""Broker client: one typed method per request, addressed by the route table."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

import msgspec

from rocketmq_aio.errors import RouteNotFoundError
from rocketmq_aio.instance.name_servers import NameServers, is_from_proxy
from rocketmq_aio.instance.routes import RouteTable
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import CheckClientRequest, ConsumerList
from rocketmq_aio.protocol.codes import MASTER_ID, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import RequestHeader, queue_fields, read_header
from rocketmq_aio.protocol.requests.admin import ClusterInfoBody, GetClusterInfo
from rocketmq_aio.protocol.requests.from_broker import GetConsumerRunningInfo
from rocketmq_aio.protocol.requests.groups import (
    AssignmentRequest,
    AssignmentResponse,
    CheckClientConfig,
    ConsumerConnections,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    MemberState,
    MessageQueueAssignment,
    QueryAssignment,
)
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
from rocketmq_aio.remoting.remoting_client import SUCCESS, RemotingClient
from rocketmq_aio.remoting.response_errors import broker_error

T = TypeVar("T")

# Without a code of its own; the remark is "no consumer for this group, <group>".
NO_MEMBERS = "no consumer for this group"
NULL_GROUP = '"consumerGroupInfo" is null'


class BrokerClient:
    """Requests to brokers; each call has ``request_timeout_seconds`` as its deadline.

    All raise `NotConnectedError`, `ConnectionLostError`, `RequestTimeoutError`, `BrokerError`, or
    `ClosedError`.
    """

    def __init__(
        self, remoting: RemotingClient, name_servers: NameServers, routes: RouteTable
    ) -> None:
        self._remoting = remoting
        self._name_servers = name_servers
        self._routes = routes

    async def read(
        self,
        address: str,
        header: RequestHeader,
        kind: type[T],
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> T:
        """Send a request to *address* and return the JSON body of the response as *kind*."""
        command = await self._remoting.request_checked(address, header, body, timeout=timeout)
        return read_body(command.body, kind)

    # --- offsets --------------------------------------------------------------------------------

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker of *queue*; that of a logical queue may change."""
        return self._routes.broker_of(queue)

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is certainly none.

        Brokers before 5.0 return 0 for a young queue without a committed offset.
        """
        return await self._query_offset(self._routes.master_of(queue), group, queue)

    async def query_copied_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset that a slave has, if no route names a master.

        Slaves copy offsets every ten seconds: it may be too low, or missing.

        :raises NotConnectedError: there is a master, or no slave either
        """
        return await self._query_offset(self._routes.slave_of(queue), group, queue)

    async def _query_offset(self, address: str, group: str, queue: MessageQueue) -> int | None:
        header = QueryConsumerOffset(
            consumer_group=group, set_zero_if_not_found=False, **queue_fields(queue)
        )
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        command = await self._request_at(address, queue, header, accept)
        if command.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return read_header(command, OffsetResponse).offset

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit *offset*, the next one to consume."""
        fields = queue_fields(queue)
        header = UpdateConsumerOffset(consumer_group=group, commit_offset=offset, **fields)
        await self._request(queue, header)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message."""
        return await self._offset(queue, GetMaxOffset(**queue_fields(queue)))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still stored.

        Without a master the request goes to a slave.
        """
        address = self._routes.named_master(queue) or self._routes.slave_of(queue)
        command = await self._request_at(address, queue, GetMinOffset(**queue_fields(queue)))
        return read_header(command, OffsetResponse).offset

    async def offset_for_time(self, queue: MessageQueue, millis: int) -> int:
        """Return the first offset stored at or after *millis* (since 1970)."""
        return await self._offset(queue, SearchOffset(timestamp=millis, **queue_fields(queue)))

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the first message was stored, in ms since 1970; -1: there is none."""
        command = await self._request(queue, GetEarliestMsgStoretime(**queue_fields(queue)))
        return read_header(command, TimestampResponse).timestamp

    async def _offset(self, queue: MessageQueue, header: RequestHeader) -> int:
        return read_header(await self._request(queue, header), OffsetResponse).offset

    async def _request(self, queue: MessageQueue, header: RequestHeader) -> Command:
        """Return the response of the master of *queue*."""
        return await self._request_at(self._routes.master_of(queue), queue, header)

    async def _request_at(
        self,
        address: str,
        queue: MessageQueue,
        header: RequestHeader,
        accept: Container[int] = SUCCESS,
    ) -> Command:
        command = await self._remoting.request(address, header)
        if command.code == ResponseCode.NOT_LEADER_FOR_QUEUE:  # a logical queue has moved
            self._routes.invalidate(queue.topic)
        if command.code not in accept:
            raise broker_error(command, address)
        return command

    # --- groups ---------------------------------------------------------------------------------

    async def consumer_ids_at(self, group: str, address: str) -> list[str]:
        """Return the client ids of the members registered with the broker at *address*."""
        command = await self._remoting.request(
            address, GetConsumerListByGroup(consumer_group=group)
        )
        if command.code == ResponseCode.SYSTEM_ERROR and _has_no_members(command):
            return []
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)
        return read_body(command.body, ConsumerList).consumer_id_list

    async def query_assignment(
        self, request: AssignmentRequest, address: str | None = None
    ) -> list[MessageQueueAssignment] | None:
        """Return the assignment of the client by the broker at *address*; None if unknown.

        Without an address the request goes to any broker of the topic.

        :raises NotSupportedError: the broker is older than 5.0
        """
        address, body = address or self.any_broker(request.topic), msgspec.json.encode(request)
        response = await self.read(address, QueryAssignment(), AssignmentResponse, body)
        return response.message_queue_assignments

    async def consumer_connections(self, group: str, address: str) -> ConsumerConnections:
        """Return the members of the group connected to the broker at *address*."""
        header = GetConsumerConnectionList(consumer_group=group)
        return await self.read(address, header, ConsumerConnections)

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
        return await self.read(address, header, MemberState, timeout=timeout)

    async def check_filter(self, client_id: str, group: str, wanted: Subscription) -> None:
        """Let a broker check the filter expression; any broker if the topic does not exist yet.

        :raises SubscriptionError: it is rejected; unchecked, it would deliver everything
        :raises RouteNotFoundError: no broker is known
        """
        request = CheckClientRequest(
            client_id=client_id, group=group, subscription_data=wanted.to_body()
        )
        if self._routes.known(wanted.topic) is None:
            address = await self._any_registered_broker(wanted.topic)
        else:
            address = self.any_broker(wanted.topic)
        body = msgspec.json.encode(request)
        await self._remoting.request_checked(address, CheckClientConfig(), body)

    def any_broker(self, topic: str) -> str:
        """Return the address of a random broker of the topic, a master if there is one."""
        route = self._routes.known(topic)
        return _random_address(topic, route.brokers.values() if route is not None else ())

    async def _any_registered_broker(self, topic: str) -> str:
        """Return the address of a random broker of the clusters, for a topic without a route."""
        command = await self._name_servers.request(GetClusterInfo())
        table = read_body(command.body, ClusterInfoBody).broker_addr_table
        return _random_address(topic, [broker.broker_addrs for broker in table.values()])


def _random_address(topic: str, brokers: Iterable[Mapping[int, str]]) -> str:
    """Return a random address, that of a master if there is one."""
    replicas = list(brokers)
    masters = [each[MASTER_ID] for each in replicas if MASTER_ID in each]
    others = [address for each in replicas for address in each.values()]
    if not masters and not others:
        raise RouteNotFoundError(topic, "no broker is known")
    return random.choice(masters or others)


def _has_no_members(command: Command) -> bool:
    """Whether the error response says that the group is unknown."""
    remark = command.remark or ""
    # A proxy fails with a NullPointerException, whose text depends on the version of Java.
    at_proxy = is_from_proxy(command) and (not remark or NULL_GROUP in remark)
    return at_proxy or remark.startswith(NO_MEMBERS)
