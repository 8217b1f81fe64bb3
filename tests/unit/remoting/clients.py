"""Fixture: a remoting client with background tasks of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import NotSupportedError
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.inbound_requests import Reply, RequestHandler
from rocketmq_aio.remoting.remoting_client import RemotingClient

ASK: Final = GetMaxOffset(topic="orders", queue_id=0)
CODE: Final = GetMaxOffset.code


class MuteError(Exception):
    """An exception of an application that has no text."""

    def __str__(self) -> str:
        raise LookupError


@dataclass
class Opened:
    """The client, and what it told its owner."""

    client: RemotingClient
    tasks: BackgroundTasks
    connected: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)

    async def ask(self, address: str, *, timeout: float = 15.0) -> Command:
        return await self.client.request(address, ASK, timeout=timeout)


async def refuse(address: str, command: Command) -> Reply | None:
    raise NotSupportedError(3, f"code {command.code} from {address}")


@asynccontextmanager
async def open_client(
    config: ClientConfig | None = None, on_request: RequestHandler = refuse
) -> AsyncIterator[Opened]:
    """Yield a started client; afterwards it is closed and has left no task."""
    before = asyncio.all_tasks()
    connected: list[str] = []
    unreachable: list[str] = []
    failures: list[BaseException] = []
    host = BackgroundTasks("test", on_failure=failures.append)
    client = RemotingClient(
        config or ClientConfig(),
        host,
        on_request=on_request,
        on_connected=connected.append,
        on_unreachable=unreachable.append,
        advice=lambda address: "",
    )
    await host.start()
    client.start()
    try:
        yield Opened(client, host, connected, failures, unreachable)
    finally:
        client.close()
        await host.close()
    assert failures == []
    left = [task for task in asyncio.all_tasks() - before if "test" in task.get_name()]
    assert left == []
