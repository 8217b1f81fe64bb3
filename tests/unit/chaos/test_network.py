"""Simulated network: what the system of a dead process does."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.chaos.loop import Process, SimulatedLoop
from tests.chaos.network import Network


class Peer(asyncio.Protocol):
    """One side of a connection.

    :ivar transport: while it is connected
    """

    def __init__(self) -> None:
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None


def test_a_write_to_the_lost_connection_of_a_dead_process_resets_it() -> None:
    loop, client, server = SimulatedLoop(0), Process("client"), Peer()
    network = Network(loop)
    listening = network.listen(lambda: server, "127.0.0.1", 0)

    async def run() -> None:
        connect = network.connect(Peer, "127.0.0.1", listening.port)
        end, _ = await loop.create_task(connect, context=client.context())
        server.transport.write(b"on its way when the process dies")
        end.fail(ConnectionResetError("lost by a fault"))  # without a packet to the server
        loop.kill(client)
        network.kill(client)
        await asyncio.sleep(1)
        server.transport.write(b"later")
        await asyncio.sleep(1)

    loop.run_until_complete(run())

    assert server.transport is None
