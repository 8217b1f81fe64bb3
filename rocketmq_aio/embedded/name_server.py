"""Embedded name server."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable
from typing import Any, Final

import msgspec

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.embedded.server import EmbeddedServer
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.client import GetRouteInfo

STANDARD_JSON_SINCE: Final = 401  # 4.9.4: newer clients get broker ids as strings


class EmbeddedNameServer(EmbeddedServer):
    """Routes to the registered brokers, always current; *advertised* overrides their addresses.

    :param dialect: "standard" or "fastjson" (``{0:"..."}``) for all routes; default: by
        the client's version, like real ones
    """

    def __init__(
        self,
        *,
        version: str = "5.5.0",
        response_headers: str | None = None,
        dialect: str | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(version, response_headers, tls, port)
        self.brokers: list[EmbeddedBroker] = []
        self.advertised: dict[str, str] = {}  # broker name -> address
        self.headless: set[str] = set()  # brokers with only a replica registered
        self.dialect = dialect

    def register(self, broker: EmbeddedBroker) -> None:
        self.brokers.append(broker)

    def unregister(self, broker: EmbeddedBroker) -> None:
        self.brokers.remove(broker)

    def process(
        self, command: Command, connection: ServerConnection
    ) -> Outcome | Awaitable[Outcome]:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if not self.version.is_5:
                return None  # 4.9 name servers do not respond to unknown codes
            return self.not_supported(command)
        try:
            asked = read_header(command, GetRouteInfo)
        except CodecError as fault:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(fault))
        holders = [broker for broker in self.brokers if asked.topic in broker.topics]
        if not holders:
            remark = f"No topic route info in name server for the topic: {asked.topic}"
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        standard = command.version >= STANDARD_JSON_SINCE or bool(asked.accept_standard_json_only)
        if self.dialect is not None:
            standard = self.dialect == "standard"
        return Response(body=self.route(asked.topic, holders, standard=standard))

    def route(self, topic: str, holders: list[EmbeddedBroker], *, standard: bool) -> bytes:
        """Return the route as JSON, or with numeric keys like Java's fastjson."""
        body = msgspec.json.encode(
            {
                "brokerDatas": [self._broker_data(broker) for broker in holders],
                "filterServerTable": {},
                "queueDatas": [_queue_data(broker, topic) for broker in holders],
            }
        )
        return body if standard else body.replace(b'"brokerAddrs":{"0":', b'"brokerAddrs":{0:')

    def _broker_data(self, broker: EmbeddedBroker) -> dict[str, Any]:
        address = self.advertised.get(broker.name, broker.address)
        return {
            "brokerAddrs": {"1" if broker.name in self.headless else str(MASTER_ID): address},
            "brokerName": broker.name,
            "cluster": broker.state.cluster,
            "enableActingMaster": False,
        }


def _queue_data(broker: EmbeddedBroker, topic: str) -> dict[str, Any]:
    held = broker.topics[topic]
    return {
        "brokerName": broker.name,
        "perm": held.perm,
        "readQueueNums": len(held.queues),
        "topicSysFlag": 0,
        "writeQueueNums": len(held.queues),
    }
