"""Server side of a connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, Protocol as Interface, cast

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.frame import FrameDecoder

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024  # the limit of Java peers
LINGER_ZERO: Final = struct.pack("ii", 1, 0)  # closing with it sends a reset


class Peer(Interface):
    """Callbacks for the events of a connection."""

    def opened(self, connection: ServerConnection) -> None: ...

    def received(self, connection: ServerConnection, encoding: int, command: Command) -> None: ...

    def closed(self, connection: ServerConnection) -> None: ...


class ServerConnection(asyncio.Protocol):
    """Reads frames and writes raw bytes.

    Invalid input closes the connection without a response, like on brokers.
    """

    def __init__(self, number: int, peer: Peer) -> None:
        self.number = number
        self.is_open = False
        self.received_bytes = 0
        self.received_chunks = 0
        self.fault: CodecError | None = None
        self._peer = peer
        self._splitter = FrameDecoder(self._frame, max_frame_bytes=MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self.is_open = True
        self._peer.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self.received_chunks += 1
        try:
            self._splitter.feed(data)
        except CodecError as fault:
            self.fault = fault
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._peer.closed(self)

    @property
    def client_address(self) -> tuple[str, int]:
        """Host and port of the client."""
        host, port = self._transport_().get_extra_info("peername")[:2]
        return host, port

    def write(self, data: bytes) -> None:
        if self.is_open and data:
            self._transport_().write(data)

    def stall(self) -> None:
        """Stop reading, so that the socket buffers fill."""
        if self.is_open:
            self._transport_().pause_reading()

    def resume(self) -> None:
        if self.is_open:
            self._transport_().resume_reading()

    def close(self) -> None:
        """Close gracefully: written data is still delivered."""
        self.is_open = False
        self._transport_().close()

    def reset(self) -> None:
        """Close immediately: the client sees a reset."""
        self.is_open = False
        abort_with_reset(self._transport_())

    def abort(self) -> None:
        self.is_open = False
        self._transport_().abort()

    def _frame(self, encoding: int, header: bytes, body: bytes) -> None:
        if self.is_open:  # the handler of an earlier frame may have closed it
            self._peer.received(self, encoding, decode_command(encoding, header, body))

    def _transport_(self) -> asyncio.Transport:
        assert self._transport is not None, "used before it was connected"
        return self._transport


def abort_with_reset(transport: asyncio.WriteTransport) -> None:
    """Close immediately; the peer sees a reset."""
    raw: socket.socket = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    transport.abort()
