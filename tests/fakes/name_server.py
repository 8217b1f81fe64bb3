"""Embedded name server of the fault tests."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.handlers import handles
from rocketmq_aio.embedded.name_server import EmbeddedNameServer
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.codes import MASTER_ID, RequestCode
from rocketmq_aio.protocol.command import Command
from tests.fakes.scripted import ScriptedServer

PROXY_FIELDS: Final = {"TRACE_ON": "false", "MSG_REGION": ""}


class FakeNameServer(ScriptedServer, EmbeddedNameServer):
    """Records frames; keeps stopped brokers in its routes, as if their machines had vanished.

    :ivar advertised: addresses that override those of masters, by broker name
    :ivar headless: brokers with only a replica registered
    :ivar is_proxy: add to routes what a 5.x proxy adds to all its responses
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the base
        super().__init__(**options)
        self.keeps_lost_brokers = True
        self.advertised: dict[str, str] = {}
        self.headless: set[str] = set()
        self.is_proxy = False

    @handles(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def topic_route(self, command: Command, connection: ServerConnection) -> Response:
        response = super().topic_route(command, connection)
        return replace(response, ext=PROXY_FIELDS) if self.is_proxy else response

    def _ids(self, broker: EmbeddedBroker) -> dict[int, str]:
        ids = super()._ids(broker)
        if self.keeps_lost_brokers:
            ids = {each.broker_id: each.address for each in (broker, *broker.replicas)}
        if broker.broker_id in ids and broker.name in self.advertised:
            ids[broker.broker_id] = self.advertised[broker.name]
        if broker.name in self.headless and (master := ids.pop(MASTER_ID, None)) is not None:
            ids.setdefault(1, master)
        return ids
