"""Embedded name server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any, Final, Unpack

import msgspec

from rocketmq_aio.admin.server_results import read_properties
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.store import READ_WRITE, UNIT, UNIT_GROUP
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.handlers import answers, handlers_of, handles, reads
from rocketmq_aio.embedded.loop_thread import from_any_thread
from rocketmq_aio.embedded.responses import Handler, HandlerResult, Response, properties_body
from rocketmq_aio.embedded.server import EmbeddedServer, ServerOptions
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.bodies import BrokerData
from rocketmq_aio.protocol.codes import PERM_WRITE, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests import admin, operations
from rocketmq_aio.protocol.requests.groups import GetRouteInfo

ORDER_CONFIGS: Final = "ORDER_TOPIC_CONFIG"
RETURN_ORDER: Final = "orderMessageEnable"  # whether routes have the order configuration
SETTINGS: Final = {  # with the defaults of real name servers
    "clusterTest": "false",
    RETURN_ORDER: "false",
    "productEnvName": "center",
    "returnOrderTopicConfigToBroker": "true",
}
ADDRESSES: Final = re.compile(rb'"brokerAddrs":{[^}]*}')
BROKER_ID: Final = re.compile(rb'"(\d+)":')
REGISTER_SECONDS: Final = 30.0  # between two registrations of a broker
# Flags of topics that a request is about, and those it wants.
UNIT_FLAGS: Final[dict[int, tuple[int, int]]] = {
    OtherCode.GET_UNIT_TOPIC_LIST: (UNIT, UNIT),
    OtherCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_GROUP, UNIT_GROUP),
    OtherCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (UNIT | UNIT_GROUP, UNIT_GROUP),
}
STANDARD_JSON_SINCE: Final = 401  # 4.9.4: newer clients get broker ids as strings


class EmbeddedNameServer(EmbeddedServer):
    """Routes to the registered brokers that run."""

    @checked_arguments
    def __init__(self, *, version: str = "5.5.0", **options: Unpack[ServerOptions]) -> None:
        super().__init__(version, **options)
        self.name = "namesrv"
        self._registered: dict[EmbeddedBroker, bool] = {}
        self.configs: dict[str, dict[str, str]] = {}  # KV configuration by namespace
        self.settings = dict(SETTINGS)
        self.wiped: set[str] = set()  # brokers without write permission in all routes
        self._handlers = handlers_of(self.version.major, self)

    @property
    def brokers(self) -> list[EmbeddedBroker]:
        """The masters that are registered, or have a registered replica."""
        return [broker for broker, known in self._registered.items() if known and self._ids(broker)]

    def register(self, broker: EmbeddedBroker) -> None:
        """Register a master with its replicas."""
        self._registered[broker] = True
        for each in (broker, *broker.replicas):
            each.assignments.read_queues = self.read_queues
            each.static_topics.executor_at = self.executor_at

    @from_any_thread
    def unregister(self, broker: EmbeddedBroker) -> None:
        self._registered[broker] = False

    @from_any_thread
    def forget_brokers(self, seconds: float = REGISTER_SECONDS) -> None:
        """Make all routes empty until brokers register again, as after a restart of a real one.

        They do so after *seconds* of the cluster's clock.
        """
        for broker, known in self._registered.items():
            if known:
                self.unregister(broker)
                self.clock.call_later(seconds, partial(self.register, broker))

    def process(self, command: Command, connection: ServerConnection) -> HandlerResult:
        handler = self._handlers.get(command.code)
        if handler is None:  # 4.9 name servers do not respond
            return self.not_supported(command) if self.version.is_5 else None
        try:
            return handler(command, connection)
        except CodecError as fault:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(fault))

    @handles(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def topic_route(self, command: Command, _connection: ServerConnection) -> Response:
        header = read_header(command, GetRouteInfo)
        if (route := self.route(header.topic)) is None:
            remark = f"No topic route info in name server for the topic: {header.topic}"
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        standard = command.version >= STANDARD_JSON_SINCE or bool(header.accept_standard_json_only)
        body = msgspec.json.encode(route)
        return Response(body=body if standard else _with_numbers(body))

    @answers(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self) -> object:
        clusters: dict[str, list[str]] = {}
        for broker in self.brokers:
            clusters.setdefault(broker.state.cluster, []).append(broker.name)
        table = {broker.name: self._broker_data(broker) for broker in self.brokers}
        body = admin.ClusterInfoBody(broker_addr_table=table, cluster_addr_table=clusters)
        return Response(body=_with_numbers(msgspec.json.encode(body)))

    @reads(
        Command, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER
    )
    def topics(self, command: Command) -> admin.TopicList:
        """List the topics of all clusters, or of one."""
        cluster = command.ext_fields().get("cluster")
        chosen = [each for each in self.brokers if cluster in (None, each.state.cluster)]
        return _listed(name for broker in chosen for name in broker.topics)

    @answers(OtherCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self) -> object:
        own = {each for broker in self.brokers for each in (broker.state.cluster, broker.name)}
        return _listed(sorted(own))

    @reads(Command, *UNIT_FLAGS)
    def unit_topics(self, command: Command) -> admin.TopicList:
        """List the topics with the flags of units that the request code is for."""
        mask, flags = UNIT_FLAGS[command.code]
        topics = chain.from_iterable(broker.topics.items() for broker in self.brokers)
        return _listed(name for name, topic in topics if topic.sys_flag & mask == flags)

    @reads(Command, RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def write_permission(self, command: Command) -> Response:
        """Take the write permission of a broker, or give it back; count its topics."""
        name = command.ext_fields().get("brokerName", "")
        wiped = command.code == RequestCode.WIPE_WRITE_PERM_OF_BROKER
        (self.wiped.add if wiped else self.wiped.discard)(name)
        topics = sum(len(broker.topics) for broker in self.brokers if broker.name == name)
        return Response(ext={"wipeTopicCount" if wiped else "addTopicCount": str(topics)})

    @reads(admin.PutKVConfig)
    def put_config(self, header: admin.PutKVConfig) -> None:
        self.configs.setdefault(header.namespace, {})[header.key] = header.value

    @reads(admin.GetKVConfig)
    def get_config(self, header: admin.GetKVConfig) -> object:
        value = self.configs.get(header.namespace, {}).get(header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return Response(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return Response(ext={"value": value})

    @reads(admin.DeleteKVConfig)
    def delete_config(self, header: admin.DeleteKVConfig) -> None:
        self.configs.get(header.namespace, {}).pop(header.key, None)

    @reads(operations.ListKVConfig)
    def list_configs(self, header: operations.ListKVConfig) -> object:
        table = self.configs.get(header.namespace)
        if table is None:
            remark = f"No config item, Namespace: {header.namespace}"
            return Response(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return {"table": table}

    @answers(RequestCode.GET_NAMESRV_CONFIG)
    def config(self) -> object:
        return Response(body=properties_body({**self.settings, "listenPort": str(self.port)}))

    @reads(Command, RequestCode.UPDATE_NAMESRV_CONFIG)
    def update_config(self, command: Command) -> None:
        """Store settings; unknown names are ignored, as by real name servers."""
        given = read_properties(command.body)
        self.settings |= {name: value for name, value in given.items() if name in self.settings}

    @answers(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def forget_topic(self) -> None:
        """Do nothing: routes follow the brokers, and those that have the topic keep it."""

    @answers(OtherCode.REGISTER_BROKER)
    def refuse_registration(self) -> object:
        remark = "the embedded name server has embedded brokers only: others cannot register"
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    def executor_at(self, name: str) -> Handler | None:
        """Return what executes requests for the queues of the broker *name*, if it runs."""
        return next((broker.run_handler for broker in self.brokers if broker.name == name), None)

    def read_queues(self, topic: str) -> dict[str, int]:
        """Return the number of queues to read of *topic* by broker."""
        return {each.name: each.topics[topic].read_queues for each in self._holders(topic)}

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return the current route of a topic; None: no broker has it."""
        holders = self._holders(topic)
        if not holders:
            return None
        route: dict[str, Any] = {
            "brokerDatas": [self._broker_data(broker) for broker in holders],
            "filterServerTable": {},
            "queueDatas": [self._queue_data(broker, topic) for broker in holders],
        }
        order = self.configs.get(ORDER_CONFIGS, {}).get(topic)
        if order is not None and self.settings[RETURN_ORDER] == "true":
            route["orderTopicConf"] = order
        mappings = {each.name: each.static_topics.route_info(topic) for each in holders}
        if any(mappings.values()):
            route["topicQueueMappingByBroker"] = {n: m for n, m in mappings.items() if m}
        return route

    def _holders(self, topic: str) -> list[EmbeddedBroker]:
        return [broker for broker in self.brokers if topic in broker.topics]

    def _ids(self, broker: EmbeddedBroker) -> dict[int, str]:
        """Return the addresses of a master and its replicas that run, by broker id."""
        running = [each for each in (broker, *broker.replicas) if each.is_running]
        return {each.broker_id: each.address for each in running}

    def _broker_data(self, broker: EmbeddedBroker) -> BrokerData:
        return BrokerData(
            broker_name=broker.name, cluster=broker.state.cluster, broker_addrs=self._ids(broker)
        )

    def _queue_data(self, broker: EmbeddedBroker, topic: str) -> dict[str, Any]:
        held, permission = broker.topics[topic], broker.state.permission
        perm = held.perm if permission == READ_WRITE else held.perm & permission
        return {
            "brokerName": broker.name,
            "perm": perm & ~PERM_WRITE if broker.name in self.wiped else perm,
            "readQueueNums": held.read_queues,
            "topicSysFlag": held.sys_flag,
            "writeQueueNums": held.write_queues,
        }


def _listed(names: Iterable[str]) -> admin.TopicList:
    return admin.TopicList(topic_list=list(dict.fromkeys(names)))


def _with_numbers(body: bytes) -> bytes:
    """Return JSON with broker ids as bare numbers, like Java's fastjson."""
    return ADDRESSES.sub(lambda match: BROKER_ID.sub(rb"\1:", match[0]), body)
