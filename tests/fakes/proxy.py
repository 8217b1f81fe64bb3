"""TCP proxy with fault injection between client and server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Final, Self

from rocketmq_aio.embedded.connection import abort_with_reset
from rocketmq_aio.embedded.notifier import WAIT_SECONDS, Notifier
from rocketmq_aio.model.address import parse_address
from tests.fakes.direction import Cut, Direction, StreamPosition
from tests.fakes.frame_rules import OTHER, FrameCutter, PassingFrame, read_frame

HOST: Final = "127.0.0.1"
READ_BYTES: Final = 64 * 1024
QUEUED_PIECES: Final = 1024  # a full queue stops reading
RATE_SLICES: Final = 20  # writes per second of a rate-limited direction

FLUSH_SECONDS: Final = 1.0
EXPECTED: Final = (Cut, ConnectionError)  # ways for a connection to end

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Piece = bytes | Exception  # the exception that ended the source


class FaultProxy:
    """Forwards everything unless faults are set; *up* and *down* are its two directions.

    It forwards whole frames, so a partial frame waits for its rest; other data passes unchanged.
    *frames* has the received frames in order.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.port = 0
        self.up = Direction(lambda number, data: self._emit(number, data, upward=True))
        self.down = Direction(lambda number, data: self._emit(number, data, upward=False))
        self.frames: list[PassingFrame] = []
        self.connects: list[float] = []
        self.errors: list[Exception] = []
        self.links: dict[int, Link] = {}  # the open connections
        self.changed = Notifier()
        self._server: asyncio.Server | None = None
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life -----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def map_address(self, advertised: str) -> str:
        """Map the address of the target to the proxy, for `ClientConfig.address_mapper`."""
        return self.address if advertised == self.target else advertised

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.errors and error is None:
            raise ExceptionGroup("a rule of the proxy failed", self.errors)

    async def accept(self) -> None:
        """Accept connections, on the earlier port if there was one."""
        self._server = await asyncio.start_server(self._accepted, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Refuse new connections until `accept`; open connections stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    # --- faults of whole connections ------------------------------------------------------------

    def cut(self, *, reset: bool = False) -> None:
        """Close all connections."""
        for link in self.links.values():
            link.end(reset=reset)

    def stall(self) -> None:
        """Stall both directions; connections stay open."""
        self.up.stall()
        self.down.stall()

    def flow(self) -> None:
        self.up.flow()
        self.down.flow()

    async def wait_for_connections(self, count: int, seconds: float = WAIT_SECONDS) -> None:
        what = f"{count} connection(s) through the proxy"
        await self.changed.until(lambda: len(self.links) == count, what, seconds)

    # --- inside ---------------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects.append(asyncio.get_running_loop().time())
        task = asyncio.create_task(self._serve((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: Stream) -> None:
        try:
            server = await asyncio.open_connection(*parse_address(self.target))
        except BaseException as error:
            abort_with_reset(client[1].transport)
            await asyncio.gather(client[1].wait_closed(), return_exceptions=True)
            if isinstance(error, OSError):
                return
            raise
        number = next(self._numbers)
        link = self.links[number] = Link(self, number, client, server)
        self.changed.notify()
        try:
            self.errors += await link.run()
        finally:
            del self.links[number]
            self.changed.notify()

    def _emit(self, number: int, data: bytes, *, upward: bool) -> None:
        link = self.links.get(number)
        if link is not None:
            (link.upward if upward else link.downward).emit(data)


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, number: int, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._number = number
        self._writers = (client[1], server[1])
        self._asked: dict[tuple[bool, int], int] = {}  # (answer goes up, opaque) -> request code
        self._ended = asyncio.get_running_loop().create_future()
        self.upward = Pump(proxy.up, client[0], server[1], self._passing(upward=True))
        self.downward = Pump(proxy.down, server[0], client[1], self._passing(upward=False))

    async def run(self) -> list[Exception]:
        """Forward bytes until either end closes or a cut; return the error."""
        pumps = (self.upward, self.downward)
        tasks = [asyncio.ensure_future(work) for p in pumps for work in (p.read(), p.write())]
        ends = [tasks[1], tasks[3], self._ended]
        reset = False
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            reset = any(_is_reset(each) for each in ends)
            if not reset and not self._ended.done():
                await self._flush()
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._close(reset=reset)
        return [e for e in results if isinstance(e, Exception) and not isinstance(e, EXPECTED)]

    def end(self, *, reset: bool) -> None:
        if not self._ended.done():
            self._ended.set_result(reset)

    async def _flush(self) -> None:
        """Wait shortly for written data to be sent."""
        for writer in self._writers:
            writer.close()
            with suppress(OSError):  # includes TimeoutError
                await asyncio.wait_for(writer.wait_closed(), FLUSH_SECONDS)

    async def _close(self, *, reset: bool) -> None:
        for writer in self._writers:
            if reset and not writer.is_closing():
                abort_with_reset(writer.transport)
            writer.transport.abort()
        closings = [writer.wait_closed() for writer in self._writers]
        await asyncio.gather(*closings, return_exceptions=True)

    def _passing(self, *, upward: bool) -> Callable[[bytes], list[bytes]]:
        direction = self._proxy.up if upward else self._proxy.down

        def passing(data: bytes) -> list[bytes]:
            frame = self._read(data, upward=upward)
            if frame is None:
                return [data]
            self._proxy.frames.append(frame)
            self._proxy.changed.notify()
            return list(direction.pieces_for(frame))

        return passing

    def _read(self, data: bytes, *, upward: bool) -> PassingFrame | None:
        command = read_frame(data)
        if command is None:
            return None
        if command.is_response:
            code = self._asked.get((upward, command.opaque), OTHER)
        else:
            code = self._asked[not upward, command.opaque] = command.code
        return PassingFrame(
            at=asyncio.get_running_loop().time(),
            connection=self._number,
            upward=upward,
            request_code=code,
            command=command,
            data=data,
        )


class Pump:
    """One direction of a connection: reader, queue and writer."""

    def __init__(
        self,
        direction: Direction,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        passing: Callable[[bytes], list[bytes]],
    ) -> None:
        self._direction = direction
        self._source = source
        self._target = target
        self._passing = passing
        self._position = StreamPosition(direction)
        self._queue: asyncio.Queue[tuple[float, Piece]] = asyncio.Queue(QUEUED_PIECES)
        self._loop = asyncio.get_running_loop()

    async def read(self) -> None:
        cutter = FrameCutter()
        try:
            while data := await self._source.read(READ_BYTES):
                for piece in cutter.feed(data):
                    await self._take(self._passing(piece))
                await self._direction.until_flowing()
            await self._take(cutter.rest())
            ending: Exception = Cut(reset=False)
        except ConnectionError:
            ending = Cut(reset=True)
        except Exception as error:  # noqa: BLE001 - a test's own rule: the writer raises it
            ending = error
        await self._queue.put((self._due(), ending))

    async def write(self) -> None:
        """Write due pieces until the end of the source, which is raised.

        :raises Cut: the source has ended, or a point was reached
        """
        while True:
            pieces = await self._next_pieces()
            whole = [piece for piece in pieces if isinstance(piece, bytes)]
            for each in whole:
                self._position.begin(len(each))
            await self._write_to_point(b"".join(whole))
            for piece in pieces:
                if isinstance(piece, Exception):
                    raise piece

    def emit(self, data: bytes) -> None:
        """Queue *data*."""
        self._queue.put_nowait((self._due(), data))

    async def _take(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            await self._queue.put((self._due(), piece))

    def _due(self) -> float:
        return self._loop.time() + self._direction.delay_seconds

    async def _next_pieces(self) -> list[Piece]:
        due, piece = await self._queue.get()
        await asyncio.sleep(max(0.0, due - self._loop.time()))
        await self._direction.until_flowing()
        pieces: list[Piece] = [piece]
        if self._direction.merge_seconds and isinstance(piece, bytes):
            await asyncio.sleep(self._direction.merge_seconds)
            while not self._queue.empty():
                pieces.append(self._queue.get_nowait()[1])
        return pieces

    async def _write_to_point(self, data: bytes) -> None:
        while (reached := self._position.take_point(len(data))) is not None:
            ahead, point = reached
            await self._write_slices(data[:ahead])
            data = data[ahead:]
            if not point.stall:
                raise Cut(reset=point.reset)
            self._direction.stall()
            await self._direction.until_flowing()
        await self._write_slices(data)

    async def _write_slices(self, data: bytes) -> None:
        direction = self._direction
        rate = direction.bytes_per_second
        size = direction.slice_bytes or len(data)
        if rate is not None:
            size = max(1, min(size, int(rate / RATE_SLICES)))
        for at in range(0, len(data), max(size, 1)):
            piece = data[at : at + size]
            self._target.write(piece)
            await self._target.drain()
            self._position.passed(len(piece))
            await asyncio.sleep(len(piece) / rate if rate is not None else 0)


def _is_reset(end: asyncio.Future[None]) -> bool:
    if not end.done():
        return False
    error = end.exception()
    if error is None:
        return bool(end.result())
    return error.reset if isinstance(error, Cut) else True
