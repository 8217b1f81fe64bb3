"""Client, fault proxy and fake broker in series."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.protocol.command import Command
from tests.fakes.broker import FakeBroker
from tests.fakes.proxy import FaultProxy
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.clients import Opened, open_client
from tests.unit.remoting.until import succeeds, until_done

SHORT = 0.3  # timeout in seconds for calls without a response


@dataclass
class Line:
    """A client connected to a broker through a proxy."""

    opened: Opened
    proxy: FaultProxy
    broker: FakeBroker

    async def ask(self, timeout: float = 15.0) -> Command:
        return await self.opened.ask(self.broker.address, timeout=timeout)

    async def works_again(self, seconds: float = 5.0) -> None:
        """Wait for a successful call, then check a hundred more, sequential and concurrent."""
        await until_done(lambda: succeeds(self.ask()), "a call to succeed", seconds)
        for _ in range(10):
            answers = await asyncio.gather(*(self.ask() for _ in range(10)))
            assert {answer.code for answer in answers} == {0}
        connections = self.opened.client._connections.values()
        assert {each.in_flight for each in connections} == {0}


@asynccontextmanager
async def line(**settings: float) -> AsyncIterator[Line]:
    async with nothing_left(), FakeBroker() as broker, FaultProxy(broker.address) as proxy:
        broker.create_topic("orders")
        config = ClientConfig(address_mapper=proxy.map_address, **settings)  # type: ignore[arg-type]
        async with open_client(config) as opened:
            yield Line(opened, proxy, broker)
