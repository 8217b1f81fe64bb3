"""Connections over TLS, whose transports read while they close."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.protocol.codes import RESPONSE_FLAG
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.frame import FrameDecoder
from tests.fakes.tls import client_context, server_context
from tests.unit.remoting.clients import ASK, open_client
from tests.unit.remoting.until import until
from tests.unit.remoting.wire import MAX_FRAME

GARBAGE = bytes([0x7F, 0xFF, 0xFF, 0xFF])


class Peer(asyncio.Protocol):
    """Keeps the responses to requests."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self._decoder = FrameDecoder(self._hold, max_frame_bytes=MAX_FRAME)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)

    def _hold(self, encoding: int, header: bytes, body: bytes) -> None:
        opaque = decode_command(encoding, header, body).opaque
        self.held.append(encode_command(Command(0, opaque, RESPONSE_FLAG), {}))


@pytest.mark.parametrize("last", [b"", GARBAGE], ids=["", "garbage"])
async def test_a_retired_connection_ends_silently_if_its_peer_closes_with_the_last_response(
    last: bytes,
) -> None:
    loop, peer = asyncio.get_running_loop(), Peer()
    failed: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failed.append(context))
    server = await loop.create_server(lambda: peer, "127.0.0.1", 0, ssl=server_context())
    async with server, open_client(ClientConfig(tls=client_context())) as opened:
        host, port = server.sockets[0].getsockname()
        asked = loop.create_task(opened.client.request(f"{host}:{port}", ASK))
        await until(lambda: peer.held)
        opened.client.forget({f"{host}:{port}"})
        peer.transport.write(peer.held[0])
        peer.transport.write(last)
        peer.transport.close()

        assert (await asked).code == 0
        await until(lambda: not opened.client._retiring)
        assert failed == []
