"""Network in memory: connections with delays, fragments, partitions, resets and silence.

A connection has two `Stream` objects.  Bytes arrive in order, each piece at its own time; a blocked
stream keeps them, as TCP does while it sends again.  Who writes to an end that is closed gets a
reset.  The options of the sockets of this client decide when it notices a silent peer.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final

from tests.chaos.loop import Process, SimulatedLoop, current_process

KERNEL_BYTES: Final = 128 * 1024  # sent, but not read by the peer, before a transport keeps more
DEFAULT_HIGH: Final = 64 * 1024
MOST_READ: Final = 64 * 1024  # bytes of one call of a protocol
KEEP_ALIVE_SECONDS: Final = 15.0  # of clients; see `remoting/connection.py`
SERVER_IDLE_SECONDS: Final = 120.0  # brokers close connections that are silent
FIRST_PORT: Final = 10_000
FIRST_CLIENT_PORT: Final = 40_000

# Delay of a piece in seconds, by weight: mostly a local network, sometimes a loaded one.
DELAYS: Final = ((0.00005, 0.0005, 60), (0.0005, 0.005, 35), (0.005, 0.05, 5))


@dataclass(slots=True)
class Condition:
    """Condition of the network between a process and a server.

    :ivar blocked_out: nothing passes from the process to the server
    :ivar blocked_in: nothing passes from the server to the process
    :ivar slow_seconds: additional delay of a piece, at most
    """

    blocked_out: bool = False
    blocked_in: bool = False
    slow_seconds: float = 0.0


class FakeSocket:
    """The methods of a socket that the package uses."""

    family = socket.AF_UNIX  # so that no TCP option is set

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.lingers = True

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def setsockopt(self, _level: int, option: int, _value: object) -> None:
        if option == socket.SO_LINGER:
            self.lingers = False

    def fileno(self) -> int:
        return -1


class Stream:
    """Bytes on the way to one end of a connection."""

    def __init__(self, receiver: End, *, to_server: bool) -> None:
        self.receiver = receiver
        self.to_server = to_server
        self.flying: deque[tuple[float, bytes | None]] = deque()  # None: the end of the stream
        self.bytes = 0
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_blocked(self) -> bool:
        condition = self.receiver.condition
        return condition.blocked_out if self.to_server else condition.blocked_in

    def send(self, data: bytes | None) -> None:
        network = self.receiver.network
        for piece in [None] if data is None else network.pieces(data):
            at = network.loop.time() + network.delay(self.receiver.condition)
            self._last = at = max(at, self._last)
            self.flying.append((at, piece))
            self.bytes += len(piece or b"")
        self.schedule()

    def schedule(self) -> None:
        """Deliver the first piece at its time, if nothing hinders it."""
        receiver = self.receiver
        if not self.flying or self.is_blocked:
            return
        if receiver.closed:  # its system responds, also for a dead process
            self.flying.clear()
            receiver.peer.reset_later()
        elif self._timer is None:
            loop, context = receiver.network.loop, receiver.context
            self._timer = loop.call_at(self.flying[0][0], self._arrive, context=context)

    def _arrive(self) -> None:
        self._timer = None
        receiver = self.receiver
        if receiver.closed:
            self.flying.clear()
            receiver.peer.reset_later()
            return
        if self.is_blocked or receiver.reading_paused:
            return  # `schedule` is called when that ends
        now, data = receiver.network.loop.time(), bytearray()
        ended = False
        while self.flying and self.flying[0][0] <= now and len(data) < MOST_READ:
            piece = self.flying.popleft()[1]
            if piece is None:
                ended = True
            else:
                data += piece
        self.bytes -= len(data)
        if data:
            receiver.deliver(bytes(data))
            receiver.peer.sent_some()
        if ended and not receiver.closed:
            receiver.ended()
        self.schedule()


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: Network,
        condition: Condition,
        context: Context,
        protocol: Any,
        names: tuple[tuple[str, int], tuple[str, int]],
    ) -> None:
        extra = {"sockname": names[0], "peername": names[1], "socket": FakeSocket(names[0])}
        super().__init__(extra)
        self.network = network
        self.condition = condition
        self.context = context
        self.process: Process = context[current_process]
        self.protocol = protocol
        self.closed = False  # the socket is closed
        self.closing = False  # the application has closed it
        self.reading_paused = False
        self.peer: End
        self.incoming: Stream
        self._high = DEFAULT_HIGH
        self._protocol_paused = False

    @property
    def outgoing(self) -> Stream:
        return self.peer.incoming

    # --- called by protocols --------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.closed or self.closing or not data:
            return
        self.outgoing.send(bytes(data))
        if not self._protocol_paused and self.get_write_buffer_size() > self._high:
            self._protocol_paused = True
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return max(0, self.outgoing.bytes - KERNEL_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = DEFAULT_HIGH if high is None else high

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False
        self.incoming.schedule()

    def is_closing(self) -> bool:
        return self.closing or self.closed

    def close(self) -> None:
        if not self.is_closing():
            self.closing = True
            self.outgoing.send(None)
            self._lose(None)

    def abort(self) -> None:
        if self.closed:
            return
        lingers = self.get_extra_info("socket").lingers
        if not self.closing:
            if lingers:
                self.outgoing.send(None)
            else:
                self.outgoing.flying.clear()
                self.peer.reset_later()
        self._lose(None)

    # --- called by the network ------------------------------------------------------------------

    def deliver(self, data: bytes) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return
        while data and not self.closed:
            buffer = memoryview(self.protocol.get_buffer(-1))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    def ended(self) -> None:
        """The peer has closed."""
        if not self.protocol.eof_received():
            self.close()

    def sent_some(self) -> None:
        """The peer has read."""
        if self._protocol_paused and self.get_write_buffer_size() <= self._high // 4:
            loop = self.network.loop
            loop.call_soon(self._resume_protocol, context=self.context)

    def _resume_protocol(self) -> None:
        if self._protocol_paused and not self.closed:
            self._protocol_paused = False
            self.protocol.resume_writing()

    def reset_later(self) -> None:
        """The peer has no such connection any more: lose this one when its packet arrives."""
        if self.closed:
            return
        error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        delay = self.network.delay(self.condition)
        self.network.loop.call_later(delay, self.fail, error, context=self.context)

    def fail(self, error: Exception) -> None:
        """Lose the connection by *error*, without the peer."""
        if self.closed:
            return
        if self.incoming.is_blocked and isinstance(error, ConnectionResetError):
            return  # the reset is lost as everything else is
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.network.ends.pop(self, None)
        self.network.loop.call_soon(self._tell, error, context=self.context)

    def _tell(self, error: Exception | None) -> None:
        self.protocol.connection_lost(error)


class ListeningSocket(FakeSocket):
    def fileno(self) -> int:
        return self.address[1]


class FakeServer:
    """A listening socket."""

    def __init__(self, network: Network, make: Callable[[], Any], port: int) -> None:
        self.make = make
        self.context = current_context()
        self.network = network
        self.sockets = (ListeningSocket(("127.0.0.1", port)),)

    @property
    def port(self) -> int:
        return self.sockets[0].address[1]

    def close(self) -> None:
        if self.network.servers.get(self.port) is self:
            del self.network.servers[self.port]

    async def start_serving(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


class Network:
    """All servers and connections of a run."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        loop.network = self
        self.servers: dict[int, FakeServer] = {}
        self.ends: dict[End, None] = {}
        self._conditions: dict[tuple[str, int], Condition] = {}
        self._ports = FIRST_PORT
        self._client_ports = FIRST_CLIENT_PORT

    def condition(self, process: str, port: int) -> Condition:
        return self._conditions.setdefault((process, port), Condition())

    def delay(self, condition: Condition) -> float:
        draw = self.loop.random
        ((least, most, _),) = draw.choices(DELAYS, [weight for *_, weight in DELAYS])
        return draw.uniform(least, most) + condition.slow_seconds * draw.random()

    def pieces(self, data: bytes) -> list[bytes]:
        """Cut *data*, mostly into one piece, sometimes into some."""
        draw = self.loop.random
        if draw.random() < 0.9 or len(data) < 2:
            return [data]
        cuts = sorted({draw.randrange(1, len(data)) for _ in range(draw.randint(1, 4))})
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    # --- called by the loop ---------------------------------------------------------------------

    def listen(self, make: Callable[[], Any], _host: str, port: int) -> FakeServer:
        if port == 0:
            port = self._ports = self._ports + 1
        if port in self.servers:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        server = self.servers[port] = FakeServer(self, make, port)
        return server

    async def connect(self, make: Callable[[], Any], host: str, port: int) -> tuple[End, Any]:
        context = current_context()
        process: Process = context[current_process]
        condition = self.condition(process.name, port)
        await asyncio.sleep(self.delay(condition))
        while condition.blocked_in or condition.blocked_out:  # noqa: ASYNC110 - as TCP does
            await asyncio.sleep(1.0)  # the packet is sent again
        server = self.servers.get(port)
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {(host, port)}")
        self._client_ports += 1
        mine, theirs = ("127.0.0.1", self._client_ports), (host, port)
        protocol = server.context.run(server.make)
        remote = End(self, condition, server.context, protocol, (theirs, mine))
        local = End(self, condition, context, make(), (mine, theirs))
        for end, peer in ((remote, local), (local, remote)):
            end.peer = peer
            end.incoming = Stream(end, to_server=end is remote)
            self.ends[end] = None
        self.loop.call_soon(protocol.connection_made, remote, context=server.context)
        try:
            await asyncio.sleep(self.delay(condition))
        except BaseException:
            local.closed = True
            self.ends.pop(local, None)
            local.outgoing.send(None)
            raise
        if local.closed:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        local.protocol.connection_made(local)
        local.incoming.schedule()
        return local, local.protocol

    # --- faults ---------------------------------------------------------------------------------

    def between(self, process: str | None, port: int | None) -> list[End]:
        """Return the open client ends of connections; None stands for any."""
        return [
            end
            for end in self.ends
            if not end.incoming.to_server
            and (process is None or end.process.name == process)
            and (port is None or end.get_extra_info("peername")[1] == port)
        ]

    def block(self, process: str, port: int, *, out: bool, into: bool) -> None:
        """Lose everything in these directions until `heal`; clients notice after a while."""
        condition = self.condition(process, port)
        condition.blocked_out, condition.blocked_in = out, into
        for end in self.between(process, port):
            self.loop.call_later(KEEP_ALIVE_SECONDS, self._notice, end, condition)

    def heal(self, process: str, port: int) -> None:
        condition = self.condition(process, port)
        condition.blocked_in = condition.blocked_out = False
        condition.slow_seconds = 0.0
        for end in list(self.ends):
            if end.condition is condition:
                end.incoming.schedule()

    def _notice(self, end: End, condition: Condition) -> None:
        if condition.blocked_in or condition.blocked_out:
            self.vanish(end, OSError(errno.ETIMEDOUT, "Connection timed out"))

    def vanish(self, end: End, error: Exception) -> None:
        """Lose the connection at *end* only; its peer notices when it writes, or when idle."""
        self.loop.call_soon(end.fail, error, context=end.context)
        peer = end.peer
        self.loop.call_later(SERVER_IDLE_SECONDS, peer.abort, context=peer.context)

    def reset(self, end: End) -> None:
        """Reset both sides of a connection."""
        end.reset_later()
        end.peer.reset_later()

    def kill(self, process: Process) -> None:
        """Close the sockets of a dead process as its system does."""
        for end in list(self.ends):
            if end.process is process:
                end.closed = True
                del self.ends[end]
                end.outgoing.send(None)


def current_context() -> Context:
    """Return a context of the current process."""
    return current_process.get().context()
