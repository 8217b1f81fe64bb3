"""Base of the embedded servers: port, connections, faults, requests to clients."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final, NamedTuple, Self, TypedDict, TypeVar, Unpack

from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.connection import ServerConnection, detach
from rocketmq_aio.embedded.faults import CONNECT, Fault, Faults
from rocketmq_aio.embedded.loop_thread import (
    LoopThread,
    awaited_or_blocking,
    from_any_thread,
    waits_for_clients,
)
from rocketmq_aio.embedded.notifier import WAIT_SECONDS, Notifier
from rocketmq_aio.embedded.responses import (
    Close,
    ErrorResponse,
    HandlerResult,
    Outcome,
    Raw,
    Response,
    resolve,
)
from rocketmq_aio.errors import CodecError
from rocketmq_aio.log import get_logger
from rocketmq_aio.protocol.codes import BINARY_HEADER, JSON_HEADER, RESPONSE_FLAG, ResponseCode
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.protocol.header import RequestHeader, to_ext_fields
from rocketmq_aio.remoting.fork import reset_after_fork

R = TypeVar("R")
HOST: Final = "127.0.0.1"
BACKLOG: Final = 1024
FREE_PORT_TRIES: Final = 3
MAX_ERRORS: Final = 100
# From Python 3.12.1 on, a closed server also waits for TLS handshakes, which may never end.
HANDSHAKE_SECONDS: Final = 1.0

logger = get_logger(__name__)


class Version(NamedTuple):
    """Version of RocketMQ, with the differences of its servers."""

    name: str
    number: int
    response_headers: str  # "request": in the header encoding of the request; "json": always JSON
    is_5: bool

    @property
    def major(self) -> int:
        return 5 if self.is_5 else 4


VERSIONS: Final = {
    "4.9.7": Version("4.9.7", 407, "request", is_5=False),
    "5.5.0": Version("5.5.0", 513, "json", is_5=True),
}


class ServerOptions(TypedDict, total=False):
    """Settings of every server; those without a value have a default.

    :param response_headers: encoding of response headers: "json", or "request" for that of the
        request; default: the version's
    :param tls: accept TLS only
    :param host: address or name to listen on, and to give to clients
    :param port: default: any free one
    :param preferred_port: used instead of any other if it is free
    :param idle_seconds: close connections without traffic, and those of registered clients without
        a heartbeat, for so long; default: never
    :param clock: of the cluster; default: one of its own, as for faults and thread
    """

    response_headers: str | None
    tls: ssl.SSLContext | None
    host: str
    port: int
    preferred_port: int
    idle_seconds: float | None
    clock: Clock
    faults: Faults
    thread: LoopThread


class EmbeddedServer:
    """Server on a loopback port; state and port survive a restart.

    Its methods can be called from any thread if the cluster runs in one of its own; otherwise from
    the event loop, where `start`, `stop` and `restart` are awaited.

    :ivar errors: exceptions of handlers of faults and of callbacks for events; raised at the end of
        the ``async with`` block
    :ivar bound_host: the address that *host* resolved to
    """

    name: str

    def __init__(self, version: str, **options: Unpack[ServerOptions]) -> None:
        if version not in VERSIONS:
            raise ValueError(f"version={version!r}: choose from {', '.join(VERSIONS)}")
        self.version = VERSIONS[version]
        self.response_headers = options.get("response_headers") or self.version.response_headers
        if unknown := sorted(options.keys() - ServerOptions.__annotations__.keys()):
            expected = ", ".join(ServerOptions.__annotations__)
            raise TypeError(f"{unknown[0]}: servers have no such argument; they have {expected}")
        self.host = options.get("host", HOST)
        self.bound_host = self.host
        self.port = options.get("port", 0)
        self._preferred_port = options.get("preferred_port", 0)
        self.thread = options.get("thread") or LoopThread()
        self.clock = options.get("clock") or Clock(self.thread)
        self.faults = options.get("faults") or Faults(self.clock, self.thread)
        self.faults.servers.append(self)
        self.errors: deque[BaseException] = deque(maxlen=MAX_ERRORS)
        self.connections: dict[int, ServerConnection] = {}  # open connections
        self.changed = Notifier()  # of the set of connections
        self._tls = options.get("tls")
        self._idle_seconds = options.get("idle_seconds")
        self._servers: list[asyncio.Server] = []  # one for each port, while it is running
        self._closing: list[asyncio.Server] = []  # until connections and tasks have ended
        self._tasks: set[asyncio.Future[Outcome]] = set()  # of requests, also of lost connections
        self._turn = asyncio.Lock()  # of starts and stops
        self._frozen = False
        self._numbers = count(1)
        self._opaques = count(1)

    def process(self, command: Command, connection: ServerConnection) -> HandlerResult:
        """Return the response of a real server."""
        raise NotImplementedError

    def not_supported(self, command: Command, _connection: object = None) -> Response:
        """Return the error response to a request of unknown code."""
        remark = f" request type {command.code} not supported by the embedded server"
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    @staticmethod
    def error_outcome(error: Close | ErrorResponse | CodecError) -> Outcome:
        """Return the outcome of a request whose handler raised *error*."""
        if isinstance(error, Close):
            return error
        if isinstance(error, ErrorResponse):
            return error.response
        remark = f"java.lang.NullPointerException: {error}"  # as servers fail on missing fields
        return Response(ResponseCode.SYSTEM_ERROR, remark=remark)

    # --- life -----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where it listens: ``host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether it accepts connections."""
        return bool(self._servers)

    @awaited_or_blocking
    async def start(self) -> None:
        """Listen, on the earlier port if there was one; without effect on a running server."""
        async with self._turn:
            await self._ensure_started()

    @awaited_or_blocking
    async def stop(self) -> None:
        """Close all connections, refuse new ones, and wait for all tasks."""
        self._shut(reset=False)  # also if it is cancelled while it waits for its turn
        async with self._turn:
            self._shut(reset=False)
            await self._closed()

    @awaited_or_blocking
    async def restart(self) -> None:
        """Stop and start on the same port."""
        async with self._turn:
            self._shut(reset=False)
            await self._closed()
            await self._ensure_started()

    @from_any_thread
    def kill(self) -> None:
        """Reset all connections and refuse new ones, as after the end of the process.

        Messages and offsets stay; what a real server has only in memory is lost, such as locks.
        """
        self._shut(reset=True)

    @from_any_thread
    def freeze(self) -> None:
        """Read and write nothing until `resume`, like a stopped process; connections stay open."""
        self._frozen = True
        for connection in self.connections.values():
            connection.freeze()

    @from_any_thread
    def resume(self) -> None:
        """Continue after `freeze`."""
        self._frozen = False
        for connection in list(self.connections.values()):
            connection.unfreeze()

    async def _ensure_started(self) -> None:
        if not self._servers:
            try:
                await self._start()
            except BaseException:
                self._shut(reset=False)
                raise

    async def _start(self) -> None:
        await self._closed()
        self._frozen = False
        ports = [self.port] if self.port else [self._preferred_port, *[0] * FREE_PORT_TRIES]
        while ports:
            try:
                await self._serve(ports.pop(0))
                break
            except OSError:
                if not ports:
                    raise  # the caller closes what listens
                self._shut(reset=False)
                self.port = 0
        reset_after_fork(self)

    async def _serve(self, port: int) -> None:
        servers = self._servers = await self._listen(port)
        for number, server in enumerate(list(servers)):
            if self._servers is not servers:
                return  # it was killed meanwhile
            try:
                await server.start_serving()
                if not _listens(server):
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            except OSError:  # another socket that had the port, too, listens now
                servers.remove(server)
                server.close()
                if number == 0:
                    raise

    async def _listen(self, port: int) -> list[asyncio.Server]:
        """Return what listens on *port*, or on any free one if it is 0."""
        server = await self._bind(port)
        self.bound_host, self.port = server.sockets[0].getsockname()[:2]
        return [server]

    async def _bind(self, port: int) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            lambda: ServerConnection(next(self._numbers), self),
            self.host,
            port,
            ssl=self._tls,
            backlog=BACKLOG,
            start_serving=False,  # a cancelled start must find the server, to close it
        )

    def _shut(self, *, reset: bool) -> None:
        if not self._servers:
            return
        self._closing, self._servers = self._servers, []
        for server in self._closing:
            _close(server)
        self._frozen = False
        current = asyncio.current_task()
        for connection in list(self.connections.values()):
            connection.tasks.discard(current)  # the handler of a fault that stops its server
            for task in connection.tasks:
                task.cancel()
            connection.tasks.clear()  # a second cancellation would interrupt their cleanup
            (connection.reset if reset else connection.abort)()
        self._tasks.discard(current)

    async def _closed(self) -> None:
        """Wait until connections and tasks of a closed server have ended."""
        if not self._closing:
            return
        what = "the connections to close, and handlers of faults that were cancelled to end"
        own = {asyncio.current_task()}  # an eager task is added after its first step
        await self.changed.until(
            lambda: not self.connections and self._tasks <= own, what, WAIT_SECONDS
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                for server in self._closing:
                    await server.wait_closed()
        self._closing = []

    def after_fork(self) -> None:
        """Replace the sockets of the copy in a forked child, which would keep the port open."""
        for server in self._servers:
            for listening in server.sockets:
                detach(listening)
        for connection in self.connections.values():
            connection.after_fork()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.stop()
        if self.errors and error is None:
            raise BaseExceptionGroup("a handler failed", list(self.errors))

    # --- tests ----------------------------------------------------------------------------------

    @waits_for_clients
    async def wait_for_connections(self, count: int, seconds: float = WAIT_SECONDS) -> None:
        """Wait until exactly *count* connections are open."""
        what = f"{count} open connection(s)"
        await self.changed.until(lambda: len(self.connections) == count, what, seconds)

    # --- requests to clients --------------------------------------------------------------------

    @waits_for_clients
    async def push(
        self,
        request: Command | RequestHeader,
        *,
        body: bytes = b"",
        to: ServerConnection | None = None,
        seconds: float = WAIT_SECONDS,
    ) -> Command | None:
        """Send a request to a client; return the response, None for oneway.

        It goes to the newest connection unless *to* says otherwise.

        :raises ConnectionError: no client is connected
        """
        if not self.connections:
            raise ConnectionError(f"no client is connected to {self.name}")
        connection = to or self.connections[max(self.connections)]
        if isinstance(request, RequestHeader):
            request = Command(request.code, 0, ext=to_ext_fields(request), body=body)
        request.opaque = opaque = next(self._opaques)
        response: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        connection.pushed[opaque] = response
        try:
            self._send(connection, request)
            if request.is_oneway:
                return None
            async with asyncio.timeout(seconds):
                return await response
        finally:
            del connection.pushed[opaque]

    def _send(self, connection: ServerConnection, request: Command) -> None:
        ext = request.ext_fields()
        connection.write(encode_command(request, ext, version=self.version.number))

    # --- what connections report ----------------------------------------------------------------

    def opened(self, connection: ServerConnection) -> None:
        self.connections[connection.number] = connection
        if not self._servers:  # stopped since it accepted the connection
            connection.abort()
            return
        if self._idle_seconds is not None:
            connection.now = self.clock.monotonic
            connection.active_at = connection.now()
            self._close_when_idle(connection, self._idle_seconds)
        if self._frozen:
            connection.freeze()
        elif self.faults.active:
            request = Command(CONNECT, 0)
            if (fault := self.faults.take(self, request)) is not None:
                self._run(connection, JSON_HEADER, request, fault)
        self.changed.notify()

    def _close_when_idle(self, connection: ServerConnection, seconds: float) -> None:
        since = min(connection.active_at, connection.heartbeat_at)
        left = since + seconds - self.clock.monotonic()
        if left > 0:
            self.clock.call_later(left, partial(self._close_when_idle, connection, seconds))
        elif connection.is_open:  # a client that stands still would not read the rest
            connection.abort()

    def received(self, connection: ServerConnection, encoding: int, command: Command) -> None:
        if command.is_response:
            response = connection.pushed.get(command.opaque)
            if response is not None and not response.done():
                response.set_result(command)
            return
        fault = self.faults.take(self, command) if self.faults.active else None
        self._run(connection, encoding, command, fault)

    def closed(self, connection: ServerConnection) -> None:
        del self.connections[connection.number]
        for task in connection.tasks:
            task.cancel()
        for response in connection.pushed.values():
            if not response.done():
                response.set_exception(ConnectionResetError("closed before the client answered"))
        self.changed.notify()

    async def execute(self, command: Command, connection: ServerConnection) -> Outcome:
        """Return the outcome of a request without faults."""
        try:
            return await resolve(self.process(command, connection))
        except Exception as error:  # noqa: BLE001 - as in `_run`
            return self._failed(error, command, scripted=False)

    def frame(self, command: Command, response: Response, encoding: int = JSON_HEADER) -> bytes:
        """Return the frame of *response* to *command*."""
        code, opaque, remark = response.code, command.opaque, response.remark
        answer = Command(code, opaque, RESPONSE_FLAG, remark, body=response.body)
        binary = encoding == BINARY_HEADER and self.response_headers == "request"
        return encode_command(answer, response.ext, binary=binary, version=self.version.number)

    # --- inside ---------------------------------------------------------------------------------

    def _run(
        self, connection: ServerConnection, encoding: int, command: Command, fault: Fault | None
    ) -> None:
        """Respond to *command* as *fault* does, or without one."""
        scripted = fault is not None
        handle = self.process if fault is None else partial(fault.respond, self)
        outcome = self._result(partial(handle, command, connection), command, scripted=scripted)
        if isinstance(outcome, Response) or not inspect.isawaitable(outcome):
            self._respond(connection, encoding, command, outcome)
            return
        # The task is that of the outcome itself: a coroutine around it, cancelled before it
        # starts, would never await the outcome.
        task = asyncio.ensure_future(outcome)
        connection.tasks.add(task)
        self._tasks.add(task)

        def respond(done: asyncio.Future[Outcome]) -> None:
            connection.tasks.discard(done)
            self._tasks.discard(done)
            if self._closing:
                self.changed.notify()
            if not done.cancelled() or connection.is_open:
                result = self._result(done.result, command, scripted=scripted)
                self._respond(connection, encoding, command, result)

        task.add_done_callback(respond)

    def _result(self, get: Callable[[], R], command: Command, *, scripted: bool) -> R | Outcome:
        """Return the result of a handler; it must not end the server if it is an exception."""
        try:
            return get()
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError:  # not by this server, whose connection is open
            return self._failed(
                RuntimeError("the handler was cancelled"), command, scripted=scripted
            )
        except BaseException as error:  # noqa: BLE001 - also that of `pytest.fail`
            return self._failed(error, command, scripted=scripted)

    def _failed(self, error: BaseException, command: Command, *, scripted: bool) -> Outcome:
        """Return the outcome of a request whose handler raised; *scripted*: that of a fault."""
        if isinstance(error, Close | ErrorResponse | CodecError):
            return self.error_outcome(error)
        if scripted:
            self.errors.append(error)
            return Close()
        logger.error("request_failed", server=self.name, code=command.code, exc_info=error)
        return Response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _respond(
        self, connection: ServerConnection, encoding: int, command: Command, outcome: Outcome
    ) -> None:
        if isinstance(outcome, Response):
            if not command.is_oneway and connection.is_open:
                connection.write(self.frame(command, outcome, encoding))
        elif isinstance(outcome, Raw):
            connection.write(outcome.data)
            if outcome.close:
                connection.close()
        elif isinstance(outcome, Close):
            (connection.reset if outcome.reset else connection.close)()


def _listens(server: asyncio.Server) -> bool:
    """Whether it listens; uvloop only logs that it cannot, and closes the socket or has None."""
    return all(each is not None and each.fileno() >= 0 for each in server.sockets)


def _close(server: asyncio.Server) -> None:
    """Refuse connections from now on.

    A closed server of asyncio loses a connection that it has accepted, but not made yet (CPython
    issue 109564); it is made first, and aborted by `EmbeddedServer.opened`.
    """
    loop = asyncio.get_running_loop()
    accepting = [loop.remove_reader(each.fileno()) for each in server.sockets]
    if not any(accepting):
        server.close()  # of uvloop, which makes a connection when it accepts it
        return
    for each in server.sockets:
        with suppress(OSError):  # not on each system; the queue of the socket is closed soon
            each.shutdown(socket.SHUT_RD)
    loop.call_soon(server.close)
