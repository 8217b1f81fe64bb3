"""Server side of a connection."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol as Interface, cast

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import BINARY_HEADER
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.frame import FrameDecoder
from rocketmq_aio.protocol.templates import TemplateDecoder

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024  # the limit of Java peers
HIGH_WATER_BYTES: Final = 1024 * 1024  # unsent bytes that stop reading requests
MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024  # of a client that does not read; then it is dropped
# Languages of clients, by their code in binary headers.
LANGUAGES: Final = """JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST
    NODE_JS""".split()
FROZEN: Final = "frozen"
LINGER_ZERO: Final = struct.pack("ii", 1, 0)  # closing with it sends a reset


class Peer(Interface):
    """Callbacks for the events of a connection."""

    def opened(self, connection: ServerConnection) -> None: ...

    def received(self, connection: ServerConnection, encoding: int, command: Command) -> None: ...

    def closed(self, connection: ServerConnection) -> None: ...


class ServerConnection(asyncio.Protocol):
    """Reads frames and writes raw bytes, joined into one write per event-loop turn.

    Invalid input closes the connection without a response, like on brokers. A client that does not
    read its responses is not read either, and is dropped at `MAX_UNSENT_BYTES`.

    :ivar active_at: when data came or went last, by *now*, if that is set
    :ivar heartbeat_at: when a registered client sent its last heartbeat, by *now*
    :ivar language: of the client, as in connection lists
    :ivar tasks: of requests that are not answered yet
    :ivar pushed: responses of the client that the server waits for, by opaque
    """

    def __init__(self, number: int, peer: Peer) -> None:
        self.number = number
        self.is_open = False
        self.language = ""
        self.client_address: tuple[str, int] = ("0.0.0.0", 0)
        self.now: Callable[[], float] | None = None
        self.active_at = 0.0
        self.heartbeat_at = math.inf
        self.tasks: set[asyncio.Future[Any]] = set()
        self.pushed: dict[int, asyncio.Future[Command]] = {}
        self._peer = peer
        self._decoder = FrameDecoder(self._frame, max_frame_bytes=MAX_FRAME_BYTES)
        self._decode = TemplateDecoder().decode
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._flushing: asyncio.Handle | None = None
        self._paused: set[str] = set()  # why nothing is read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self.is_open = True
        if peername := transport.get_extra_info("peername"):
            self.client_address = peername[:2]
        self._peer.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.now is not None:
            self.active_at = self.now()
        try:
            self._decoder.feed(data)
        except CodecError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._drop_unsent()
        self._peer.closed(self)

    def pause_writing(self) -> None:
        self._set_paused("unsent data", paused=True)

    def resume_writing(self) -> None:
        self._set_paused("unsent data", paused=False)

    def write(self, data: bytes) -> None:
        """Send *data* with everything else that is written in this turn of the event loop."""
        if not self.is_open or not data:
            return
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > HIGH_WATER_BYTES:
            self._flush()
        elif self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def freeze(self) -> None:
        """Read and write nothing until `unfreeze`."""
        self._set_paused(FROZEN, paused=True)

    def unfreeze(self) -> None:
        self._set_paused(FROZEN, paused=False)
        self._flush()

    def close(self) -> None:
        """Close gracefully: written data is still delivered."""
        self._flush()
        self.is_open = False
        self._transport.close()

    def reset(self) -> None:
        """Close immediately: the client sees a reset."""
        self.is_open = False
        abort_with_reset(self._transport)

    def abort(self) -> None:
        self.is_open = False
        self._transport.abort()

    def after_fork(self) -> None:
        """Replace the descriptor of the copy in a forked child: the parent's stays."""
        detach(self._transport.get_extra_info("socket"))

    def _frame(self, encoding: int, header: bytes, body: bytes) -> None:
        if self.is_open:  # the handler of an earlier frame may have closed it
            if not self.language:
                self.language = _language_of(encoding, header)
            self._peer.received(self, encoding, self._decode(encoding, header, body))

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._unsent and self.is_open and FROZEN not in self._paused:
            if self.now is not None:
                self.active_at = self.now()
            data = b"".join(self._unsent)
            self._drop_unsent()
            self._transport.write(data)
            unsent = self._transport.get_write_buffer_size()
        else:
            unsent = self._unsent_bytes
        if unsent > MAX_UNSENT_BYTES:
            self.abort()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    def _set_paused(self, reason: str, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(reason)
        if self.is_open:
            transport = self._transport
            (transport.pause_reading if self._paused else transport.resume_reading)()


class _Language(msgspec.Struct):
    language: str = "OTHER"


_decode_language = msgspec.json.Decoder(_Language).decode


def _language_of(encoding: int, header: bytes) -> str:
    """Return the language of the client that sent *header*."""
    if encoding == BINARY_HEADER:
        code = header[2] if len(header) > 2 else len(LANGUAGES)
        return LANGUAGES[code] if code < len(LANGUAGES) else "OTHER"
    try:
        return _decode_language(header).language
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return "OTHER"  # or garbage, which the decoder of the header rejects


def abort_with_reset(transport: asyncio.WriteTransport) -> None:
    """Close immediately; the peer sees a reset."""
    raw: socket.socket = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    transport.abort()


def detach(raw: socket.socket) -> None:
    """Replace the descriptor of *raw* by that of an unconnected socket."""
    if raw.fileno() >= 0:
        with socket.socket() as unconnected:
            os.dup2(unconnected.fileno(), raw.fileno())
