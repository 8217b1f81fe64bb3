"""Fixture: a connection over a transport in memory, which records writes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Self

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.protocol.codes import RESPONSE_FLAG
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.frame import FrameDecoder
from rocketmq_aio.remoting.connection import Connection, OnLate
from tests.unit.remoting.until import settle

PEER: Final = "127.0.0.1:10911"
CODE: Final = 30
MAX_FRAME: Final = 1024 * 1024


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; while stalled nothing leaves, as when the peer does not read."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unsent = 0
        self.most_unsent = 0
        self.ended: str | None = None
        self._connection = connection
        self._high = 0
        self._stalled = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert self.ended is None, "written after the end"
        self.writes.append(bytes(data))
        if self._stalled:
            self.unsent += len(data)
            self.most_unsent = max(self.most_unsent, self.unsent)
            if self.unsent > self._high >= self.unsent - len(data):
                self._connection.pause_writing()

    def stall(self) -> None:
        self._stalled = True

    def flow(self, *, still_stalled: bool = False) -> None:
        """Everything unsent leaves."""
        self._stalled = still_stalled
        self.unsent = 0
        self._connection.resume_writing()

    def pause_reading(self) -> None:
        """Do nothing: `Wire.receive` passes everything at once."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as declared
        return default

    def is_closing(self) -> bool:
        return self.ended is not None

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, how: str) -> None:
        if self.ended is None:
            self.ended = how
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class Wire:
    """A connection, its transport, and the peer's view of both."""

    def __init__(self, *, max_in_flight: int = 1000) -> None:
        self.requested: list[Command] = []  # what the peer asked of this side
        self.lost = 0
        self.connection = Connection(
            PEER,
            on_request=lambda _, command, size: self.requested.append(command),
            on_lost=self._count_loss,
            max_in_flight=max_in_flight,
            max_frame_bytes=MAX_FRAME,
        )
        self.transport = MemoryTransport(self.connection)
        self.connection.connection_made(self.transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.connection.abort("the test is over")
        await settle()

    def ask(
        self,
        body: bytes = b"",
        *,
        timeout: float = 15.0,
        code: int = CODE,
        on_late: OnLate | None = None,
    ) -> asyncio.Task[Command]:
        """Send a request from a task of its own."""
        return asyncio.get_running_loop().create_task(self.request(body, timeout, code, on_late))

    async def request(
        self,
        body: bytes = b"",
        timeout: float = 15.0,
        code: int = CODE,
        on_late: OnLate | None = None,
    ) -> Command:
        def frame(opaque: int) -> tuple[bytes, bytes]:
            return encode_command(Command(code, opaque, body=body), {}), b""

        return await self.connection.roundtrip(code, frame, timeout, on_late=on_late)

    @property
    def written(self) -> list[Command]:
        """Every whole frame that was written; anything else fails the test."""
        commands: list[Command] = []
        splitter = FrameDecoder(
            lambda encoding, header, body: commands.append(decode_command(encoding, header, body)),
            max_frame_bytes=MAX_FRAME,
        )
        raw = b"".join(self.transport.writes)
        splitter.feed(raw)
        assert sum(map(frame_bytes, commands)) == len(raw), "half a frame was written"
        return commands

    def answer(self, request: Command, body: bytes = b"") -> None:
        self.receive(encode_command(Command(0, request.opaque, RESPONSE_FLAG, body=body), {}))

    def receive(self, data: bytes) -> None:
        """Hand *data* to the connection as the event loop would."""
        buffer = self.connection.get_buffer(-1)
        for at in range(0, len(data), len(buffer)):
            chunk = data[at : at + len(buffer)]
            buffer[: len(chunk)] = chunk
            self.connection.buffer_updated(len(chunk))

    def _count_loss(self, _: Connection) -> None:
        self.lost += 1


def frame_bytes(command: Command) -> int:
    return len(encode_command(command, command.ext_fields()))


async def outcome(what: Coroutine[Any, Any, Command] | asyncio.Task[Command]) -> object:
    """Return the body of the answer, or the error."""
    try:
        return (await what).body
    except RocketMQError as error:
        return error
