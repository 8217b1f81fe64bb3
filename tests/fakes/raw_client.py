"""Minimal client: one connection, raw requests and responses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Final, Self

from rocketmq_aio.model.address import parse_address
from rocketmq_aio.protocol.codes import CLIENT_VERSION, ONEWAY_FLAG
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.frame import HEADER_MASK, LENGTH, PREFIX
from rocketmq_aio.protocol.header import RequestHeader, to_ext_fields

ANSWER_SECONDS: Final = 10.0  # real brokers check held pulls every 5 s
READ_BYTES: Final = 64 * 1024


class RawClient:
    """Client of one server; *binary* and *version* are those of its requests."""

    def __init__(
        self,
        address: str,
        *,
        binary: bool = False,
        version: int = CLIENT_VERSION,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = parse_address(address)
        self._binary = binary
        self._version = version
        self._tls = tls
        self._opaques = count(1)
        self._reader = asyncio.StreamReader()
        self._writer: asyncio.StreamWriter | None = None
        self._buffer = bytearray()
        self._aside: list[Command] = []  # received while waiting for another frame
        self.encoding = -1  # of the last frame read

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(*self._address, ssl=self._tls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.transport.abort()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def ask(self, header: RequestHeader, body: bytes = b"") -> Command:
        """Send a request and return its answer."""
        return await self.answer(self.send(header, body))

    def send(self, header: RequestHeader, body: bytes = b"", *, oneway: bool = False) -> int:
        """Write a request; return its opaque."""
        return self.send_fields(header.code, to_ext_fields(header), body, oneway=oneway)

    def send_fields(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> int:
        """Write a request of any code with any fields; return its opaque."""
        opaque = next(self._opaques)
        command = Command(code, opaque, ONEWAY_FLAG if oneway else 0, body=body)
        self.write(
            encode_command(command, fields or {}, binary=self._binary, version=self._version)
        )
        return opaque

    def write(self, data: bytes) -> None:
        """Write raw bytes."""
        assert self._writer is not None, "used outside its block"
        self._writer.write(data)

    async def flush(self) -> None:
        """Send written data before more is written."""
        assert self._writer is not None, "used outside its block"
        await self._writer.drain()
        await asyncio.sleep(0)

    async def answer(self, opaque: int, seconds: float = ANSWER_SECONDS) -> Command:
        """Return the answer to the request *opaque*.

        :raises TimeoutError: it did not come in time
        :raises EOFError: the server closed the connection
        """
        return await self._next(lambda c: c.is_response and c.opaque == opaque, seconds)

    async def request(self, code: int, seconds: float = ANSWER_SECONDS) -> Command:
        """Return the next request of *code* that the server sends."""
        return await self._next(lambda c: not c.is_response and c.code == code, seconds)

    def respond(self, request: Command, code: int = 0) -> None:
        """Answer a request of the server."""
        self.write(encode_command(Command(code, request.opaque, 1), {}, version=self._version))

    async def end(self, seconds: float = ANSWER_SECONDS) -> bytes:
        """Return the data received until the server closed the connection."""
        async with asyncio.timeout(seconds):
            try:
                self._buffer += await self._reader.read()
            except ConnectionResetError:
                return b""
        return bytes(self._buffer)

    async def _next(self, wanted: Callable[[Command], bool], seconds: float) -> Command:
        for command in self._aside:
            if wanted(command):
                self._aside.remove(command)
                return command
        async with asyncio.timeout(seconds):
            while not wanted(command := await self._read()):
                self._aside.append(command)
        return command

    async def _read(self) -> Command:
        length, word = PREFIX.unpack_from(await self.received(PREFIX.size))
        frame = await self.received(LENGTH.size + length)
        del self._buffer[: len(frame)]
        self.encoding = word >> 24
        body_at = PREFIX.size + (word & HEADER_MASK)
        return decode_command(self.encoding, frame[PREFIX.size : body_at], frame[body_at:])

    async def received(self, count: int) -> bytes:
        """Return the next *count* bytes; they stay buffered in case the wait is cancelled."""
        while len(self._buffer) < count:
            chunk = await self._reader.read(READ_BYTES)
            if not chunk:
                raise EOFError(f"the server closed the connection after {bytes(self._buffer)!r}")
            self._buffer += chunk
        return bytes(self._buffer[:count])
