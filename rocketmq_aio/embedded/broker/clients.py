"""Consumer groups and their members on the broker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rocketmq_aio.admin.server_results import ProducerInfo
from rocketmq_aio.embedded.broker.filters import FilterError, compile_sql
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.handlers import answers, handles, reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.bodies import (
    CheckClientRequest,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    SubscriptionData,
)
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests import groups
from rocketmq_aio.protocol.requests.admin import GetProducerConnections, ProducerConnections


class Group:
    """Consumer group: member connections with client ids, and subscriptions."""

    def __init__(self) -> None:
        self.members: dict[int, str] = {}  # connection number -> client id
        self.connections: dict[int, groups.ConnectionBody] = {}
        self.last: ConsumerData | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.fingerprint = 0


class ClientProcessor:
    """Groups and their members.

    :param notify: sends the notification of a changed group to connections
    """

    def __init__(self, state: BrokerState, notify: Callable[[str, Iterable[int]], None]) -> None:
        self.groups: dict[str, Group] = {}
        self.producers: dict[str, dict[int, groups.ConnectionBody]] = {}
        self._state = state
        self._notify = notify

    @handles(RequestCode.HEART_BEAT)
    def heartbeat(self, command: Command, connection: ServerConnection) -> Response:
        data = read_body(command.body, HeartbeatData)
        if connection.now is not None and (data.producer_data_set or data.consumer_data_set):
            connection.heartbeat_at = connection.now()
        client = groups.ConnectionBody(
            client_id=data.client_id,
            client_addr="{}:{}".format(*connection.client_address),
            language=connection.language,
            version=command.version,
        )
        for producer in data.producer_data_set:
            self.producers.setdefault(producer.group_name, {})[connection.number] = client
        changed = not data.heartbeat_fingerprint
        for consumer in data.consumer_data_set:
            changed |= self._register(consumer, data, connection.number, client)
        if not self._state.version.is_5:
            return Response()
        response = groups.HeartbeatResponse(supports_v2=True, subscription_changed=changed)
        return Response(ext=to_ext_fields(response))

    @handles(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, command: Command, connection: ServerConnection) -> Response:
        header = read_header(command, groups.UnregisterClient)
        if header.producer_group is not None:
            self._remove_producer(header.producer_group, connection.number)
        if header.consumer_group is not None:
            self._remove(header.consumer_group, connection.number)
        number = connection.number
        registered = any(number in members for members in self.producers.values())
        if not registered and not any(number in each.members for each in self.groups.values()):
            connection.heartbeat_at = math.inf  # it may go on without heartbeats
        return Response()

    @reads(groups.GetConsumerListByGroup)
    def list(self, header: groups.GetConsumerListByGroup) -> object:
        group = self.groups.get(header.consumer_group)
        if group is None:
            raise ErrorResponse(f"no consumer for this group, {header.consumer_group}")
        return ConsumerList(consumer_id_list=list(group.members.values()))

    @reads(groups.GetConsumerConnectionList)
    def connections(self, header: groups.GetConsumerConnectionList) -> object:
        group = self.groups.get(header.consumer_group)
        if group is None or group.last is None:
            remark = f"the consumer group[{header.consumer_group}] not online"
            raise ErrorResponse(remark, ResponseCode.CONSUMER_NOT_ONLINE)
        return groups.ConsumerConnections(
            connection_set=list(group.connections.values()),
            subscription_table=group.subscriptions,
            consume_type=group.last.consume_type,
            message_model=group.last.message_model,
            consume_from_where=group.last.consume_from_where,
        )

    @reads(GetProducerConnections)
    def producer_connections(self, header: GetProducerConnections) -> object:
        members = self.producers.get(header.producer_group)
        if not members:
            raise ErrorResponse(f"the producer group[{header.producer_group}] not exist")
        return ProducerConnections(connection_set=list(members.values()))

    @answers(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self) -> object:
        now = self._state.clock.now_ms()

        def described(each: groups.ConnectionBody) -> ProducerInfo:
            address = f"/{each.client_addr}"
            return ProducerInfo(each.client_id, address, each.language, each.version, now)

        members = self.producers.items()
        return {"data": {name: [*map(described, each.values())] for name, each in members}}

    @reads(CheckClientRequest, RequestCode.CHECK_CLIENT_CONFIG)
    def check(self, body: CheckClientRequest) -> None:
        data = body.subscription_data
        if data.expression_type == "SQL92":
            try:
                compile_sql(data.sub_string, is_5=self._state.version.is_5)
            except FilterError as error:
                raise ErrorResponse(str(error), ResponseCode.SUBSCRIPTION_PARSE_FAILED) from None

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return what the last heartbeat of *group* subscribed to."""
        return self.groups[group].subscriptions.get(topic) if group in self.groups else None

    def disconnected(self, connection: int) -> None:
        """Remove the registrations of a closed connection."""
        for name in list(self.producers):
            self._remove_producer(name, connection)
        for name in list(self.groups):
            self._remove(name, connection)

    def _register(
        self, consumer: ConsumerData, data: HeartbeatData, number: int, who: groups.ConnectionBody
    ) -> bool:
        """Register a member; return whether its subscription differs from that of its group."""
        exists = self._state.ensure_group(consumer.group_name)
        if not exists and self._state.version.is_5:
            return False  # 4.9 still lists the member, but rejects its pulls
        if exists:
            self._state.make_retry_topic(consumer.group_name, unit=consumer.unit_mode)
        group = self.groups.setdefault(consumer.group_name, Group())
        changed = number not in group.members
        group.members[number] = data.client_id
        group.connections[number] = who
        group.last = consumer
        differs = group.fingerprint not in (0, data.heartbeat_fingerprint)
        if not data.without_sub:
            wanted = {each.topic: each for each in consumer.subscription_data_set}
            changed |= wanted.keys() != group.subscriptions.keys()
            group.subscriptions = {
                topic: _newer(each, group.subscriptions.get(topic))
                for topic, each in wanted.items()
            }
            group.fingerprint = data.heartbeat_fingerprint
        if changed:
            self._notify(consumer.group_name, list(group.members))
        return differs

    def _remove_producer(self, name: str, connection: int) -> None:
        members = self.producers.get(name, {})
        if members.pop(connection, None) is not None and not members:
            del self.producers[name]

    def _remove(self, name: str, connection: int) -> None:
        group = self.groups.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        del group.connections[connection]
        if group.members:
            self._notify(name, list(group.members))
        else:
            del self.groups[name]


def _newer(new: SubscriptionData, old: SubscriptionData | None) -> SubscriptionData:
    return new if old is None or new.sub_version > old.sub_version else old
