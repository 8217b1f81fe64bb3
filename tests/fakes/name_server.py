"""Fake name server, and the HTTP endpoint that lists name servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.client import GetRouteInfo
from tests.fakes.broker import FakeBroker
from tests.fakes.connection import FakeConnection
from tests.fakes.script import Outcome, Reply
from tests.fakes.server import HOST, FakeServer

STANDARD_JSON_SINCE: Final = 401  # 4.9.4: newer clients get broker ids as strings


class FakeNameServer(FakeServer):
    """Routes to the registered brokers, always current; *advertised* overrides their addresses.

    :param dialect: "standard" or "fastjson" (``{0:"..."}``) for all routes; default: by
        the client's version, like real ones
    """

    def __init__(
        self,
        *,
        version: str = "5.5.0",
        answers: str | None = None,
        dialect: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(version, answers, tls)
        self.brokers: list[FakeBroker] = []
        self.advertised: dict[str, str] = {}  # broker name -> address
        self.headless: set[str] = set()  # brokers with only a replica registered
        self.dialect = dialect

    def register(self, broker: FakeBroker) -> None:
        self.brokers.append(broker)

    def unregister(self, broker: FakeBroker) -> None:
        self.brokers.remove(broker)

    def answer(self, command: Command, connection: FakeConnection) -> Outcome | Awaitable[Outcome]:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if not self.version.is_5:
                return None  # 4.9 name servers do not respond to unknown codes
            remark = f" request type {command.code} not supported"
            return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            asked = read_header(command, GetRouteInfo)
        except CodecError as fault:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=str(fault))
        holders = [broker for broker in self.brokers if asked.topic in broker.topics]
        if not holders:
            remark = f"No topic route info in name server for the topic: {asked.topic}"
            return Reply(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        standard = command.version >= STANDARD_JSON_SINCE or bool(asked.accept_standard_json_only)
        if self.dialect is not None:
            standard = self.dialect == "standard"
        return Reply(body=self.route(asked.topic, holders, standard=standard))

    def route(self, topic: str, holders: list[FakeBroker], *, standard: bool) -> bytes:
        """Return the route as JSON, or with numeric keys like Java's fastjson."""
        body = msgspec.json.encode(
            {
                "brokerDatas": [self._broker_data(broker) for broker in holders],
                "filterServerTable": {},
                "queueDatas": [_queue_data(broker, topic) for broker in holders],
            }
        )
        return body if standard else body.replace(b'"brokerAddrs":{"0":', b'"brokerAddrs":{0:')

    def _broker_data(self, broker: FakeBroker) -> dict[str, Any]:
        address = self.advertised.get(broker.name, broker.address)
        return {
            "brokerAddrs": {"1" if broker.name in self.headless else str(MASTER_ID): address},
            "brokerName": broker.name,
            "cluster": broker.state.cluster,
            "enableActingMaster": False,
        }


def _queue_data(broker: FakeBroker, topic: str) -> dict[str, Any]:
    held = broker.topics[topic]
    return {
        "brokerName": broker.name,
        "perm": held.perm,
        "readQueueNums": len(held.queues),
        "topicSysFlag": 0,
        "writeQueueNums": len(held.queues),
    }


class FakeAddressServer:
    """Responds to every GET with a list of name servers, like RocketMQ's discovery endpoint."""

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses
        self.status = "200 OK"
        self.requests: list[str] = []  # request lines
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/rocketmq/nsaddr"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, HOST)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(EOFError, ConnectionError):  # the client closed the connection
                await self._answer(reader, writer)
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.split(b"\r\n", 1)[0].decode())
        body = self.addresses.encode()
        writer.write(
            f"HTTP/1.1 {self.status}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
