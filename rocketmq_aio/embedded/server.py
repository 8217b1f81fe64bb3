"""Base of the embedded servers: port, connections, scripted handlers, recorded frames."""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Final, NamedTuple, Self

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.held_responses import HeldResponses
from rocketmq_aio.embedded.notifier import WAIT_SECONDS, Notifier
from rocketmq_aio.embedded.responses import (
    Close,
    Handler,
    Outcome,
    Raw,
    Response,
    Script,
    as_handler,
    resolve,
)
from rocketmq_aio.protocol.codes import (
    BINARY_HEADER,
    JSON_HEADER,
    RESPONSE_FLAG,
    V5_0_0,
    ResponseCode,
)
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.protocol.header import RequestHeader, to_ext_fields

HOST: Final = "127.0.0.1"
NONCE: Final = "nonce"  # an ext field that every response repeats


class Version(NamedTuple):
    """Version of RocketMQ, with the differences of its servers."""

    name: str
    number: int
    response_headers: str  # "request": in the header encoding of the request; "json": always JSON

    @property
    def is_5(self) -> bool:
        return self.number >= V5_0_0


VERSIONS: Final = {
    "4.9.7": Version("4.9.7", 407, "request"),
    "5.5.0": Version("5.5.0", 513, "json"),
}


@dataclass(frozen=True, slots=True)
class WireFrame:
    """A recorded frame; *request_code* is that of the request or of the answered request."""

    at: float
    connection: int
    sent: bool  # by the server
    encoding: int
    command: Command
    request_code: int


class EmbeddedServer:
    """Server on a loopback port; state and port survive a restart.

    An exception of a handler closes the connection and is raised by the ``async with`` block.
    """

    def __init__(
        self,
        version: str,
        response_headers: str | None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.version = VERSIONS[version]
        self.response_headers = response_headers or self.version.response_headers
        self.port = port  # 0: any free one
        self.wire: list[WireFrame] = []
        self.connects: list[float] = []
        self.errors: list[Exception] = []
        self.connections: dict[int, ServerConnection] = {}  # open connections
        self.changed = Notifier()
        self._tls = tls
        self._asked: Counter[int] = Counter()
        self._script = Script()
        self._on_connect = Script()
        self._server: asyncio.Server | None = None
        self._numbers = count(1)
        self._opaques = count(1)
        self._tasks: dict[
            asyncio.Task[None], int
        ] = {}  # task -> number of the connection it responds to
        self._pushed: dict[tuple[int, int], asyncio.Future[Command]] = {}

    def process(
        self, command: Command, connection: ServerConnection
    ) -> Outcome | Awaitable[Outcome]:
        """Return the default response, that of a real server."""
        raise NotImplementedError

    def not_supported(self, command: Command) -> Response:
        """Return the error response to a request of unknown code."""
        remark = f" request type {command.code} not supported by the embedded server"
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    # --- life -----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        """Listen, on the earlier port if there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ServerConnection(next(self._numbers), self), HOST, self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections, refuse new ones, and wait for all tasks."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections.values()):
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.changed.until(lambda: not self.connections, "the connections to close")
        await server.wait_closed()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        if self.errors and error is None:
            raise ExceptionGroup("a scripted handler failed", self.errors)

    # --- script ---------------------------------------------------------------------------------

    def on(self, code: int, what: Handler | Outcome, times: int | None = 1) -> None:
        """Respond to the next *times* requests of *code* with *what*; None: to all.

        *what* is a handler ``(command, connection) -> outcome``, which may be a coroutine function,
        or an outcome. It may call `answer` for the default.
        """
        self._script.add(code, as_handler(what), times)

    def off(self, code: int) -> None:
        """Restore the default response to *code*."""
        self._script.remove(code)

    def on_connect(self, what: Outcome, times: int | None = 1) -> None:
        """Apply *what* to the next connections: `Raw` sends bytes, `Close` closes."""
        self._on_connect.add(0, as_handler(what), times)

    def hold(self, code: int, times: int | None = None) -> HeldResponses:
        """Execute requests of *code*, but hold their responses until released."""
        held = HeldResponses(self.process)
        self.on(code, held, times)
        return held

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
        """
        connection = to or self.connections[max(self.connections)]
        if isinstance(request, RequestHeader):
            ext = to_ext_fields(request)
            request = Command(request.code, 0, body=body)
        else:
            ext = request.ext_fields()
        request.opaque = next(self._opaques)
        reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._pushed[connection.number, request.opaque] = reply
        try:
            self._send(connection, request, ext, JSON_HEADER, request.code)
            if request.is_oneway:
                return None
            async with asyncio.timeout(seconds):
                return await reply
        finally:
            del self._pushed[connection.number, request.opaque]

    # --- history --------------------------------------------------------------------------------

    @property
    def requests(self) -> list[WireFrame]:
        """Requests of clients in the order of arrival."""
        return [frame for frame in self.wire if not frame.sent and not frame.command.is_response]

    def requests_of(self, code: int) -> list[Command]:
        return [frame.command for frame in self.requests if frame.command.code == code]

    async def wait_for(
        self, code: int, count: int = 1, seconds: float = WAIT_SECONDS
    ) -> list[Command]:
        """Wait for *count* requests of *code*; return all since the start."""
        what = f"{count} request(s) of code {code}"
        await self.changed.until(lambda: self._asked[code] >= count, what, seconds)
        return self.requests_of(code)

    async def wait_for_connections(self, count: int, seconds: float = WAIT_SECONDS) -> None:
        """Wait until exactly *count* connections are open."""
        what = f"{count} open connection(s)"
        await self.changed.until(lambda: len(self.connections) == count, what, seconds)

    # --- what connections report ----------------------------------------------------------------

    def opened(self, connection: ServerConnection) -> None:
        self.connections[connection.number] = connection
        self.connects.append(asyncio.get_running_loop().time())
        handler = self._on_connect.take(0)
        if handler is not None:
            outcome = handler(Command(0, 0), connection)
            assert not inspect.isawaitable(outcome)
            self._act(connection, outcome)
        self.changed.notify()

    def received(self, connection: ServerConnection, encoding: int, command: Command) -> None:
        if command.is_response:
            self._response(connection, encoding, command)
            return
        self._record(connection, encoding, command, command.code, sent=False)
        self._asked[command.code] += 1
        handler = self._script.take(command.code) or self.process
        try:
            outcome = handler(command, connection)
        except Close as close:
            outcome = close
        except Exception as error:  # noqa: BLE001 - a handler of a test, whose error fails the test
            self.errors.append(error)
            outcome = Close()
        if inspect.isawaitable(outcome):
            task = asyncio.ensure_future(self._answer_later(connection, encoding, command, outcome))
            self._tasks[task] = connection.number
            task.add_done_callback(self._tasks.pop)
            if inspect.iscoroutine(outcome):  # the task may be cancelled before it starts
                task.add_done_callback(lambda _: outcome.close())
        else:
            self._answer(connection, encoding, command, outcome)
        self.changed.notify()

    def closed(self, connection: ServerConnection) -> None:
        del self.connections[connection.number]
        for task, number in self._tasks.items():
            if number == connection.number:
                task.cancel()
        for (number, _), reply in self._pushed.items():
            if number == connection.number and not reply.done():
                reply.set_exception(ConnectionResetError("closed before the client answered"))
        self.changed.notify()

    def frame(self, command: Command, reply: Response, encoding: int = JSON_HEADER) -> bytes:
        """Return the frame of *reply* to *command*, for tests that corrupt it."""
        ext = dict(reply.ext)
        if (nonce := command.ext_fields().get(NONCE)) is not None:
            ext[NONCE] = nonce
        answer = Command(reply.code, command.opaque, RESPONSE_FLAG, reply.remark, body=reply.body)
        binary = encoding == BINARY_HEADER and self.response_headers == "request"
        return encode_command(answer, ext, binary=binary, version=self.version.number)

    # --- inside ---------------------------------------------------------------------------------

    def _response(self, connection: ServerConnection, encoding: int, command: Command) -> None:
        reply = self._pushed.get((connection.number, command.opaque))
        asked = next(
            (f.request_code for f in reversed(self.wire) if _asked(f, connection, command)), -1
        )
        self._record(connection, encoding, command, asked, sent=False)
        if reply is not None and not reply.done():
            reply.set_result(command)
        self.changed.notify()

    async def _answer_later(
        self,
        connection: ServerConnection,
        encoding: int,
        command: Command,
        outcome: Awaitable[Outcome],
    ) -> None:
        try:
            result = await resolve(outcome)
        except Close as close:
            result = close
        except Exception as error:  # noqa: BLE001 - as in `received`
            self.errors.append(error)
            result = Close()
        self._answer(connection, encoding, command, result)

    def _answer(
        self, connection: ServerConnection, encoding: int, command: Command, outcome: Outcome
    ) -> None:
        if not isinstance(outcome, Response):
            self._act(connection, outcome)
        elif not command.is_oneway and connection.is_open:
            data = self.frame(command, outcome, encoding)
            answer = Command(outcome.code, command.opaque, RESPONSE_FLAG, outcome.remark)
            answer.ext, answer.body = dict(outcome.ext), outcome.body
            self._record(connection, encoding, answer, command.code, sent=True)
            connection.write(data)

    def _act(self, connection: ServerConnection, outcome: Outcome) -> None:
        if isinstance(outcome, Raw):
            connection.write(outcome.data)
            if outcome.close:
                connection.close()
        elif isinstance(outcome, Close):
            (connection.reset if outcome.reset else connection.close)()

    def _send(
        self,
        connection: ServerConnection,
        command: Command,
        ext: dict[str, str],
        encoding: int,
        request_code: int,
    ) -> None:
        self._record(connection, encoding, command, request_code, sent=True)
        connection.write(encode_command(command, ext, version=self.version.number))

    def _record(
        self,
        connection: ServerConnection,
        encoding: int,
        command: Command,
        request_code: int,
        *,
        sent: bool,
    ) -> None:
        at = asyncio.get_running_loop().time()
        self.wire.append(WireFrame(at, connection.number, sent, encoding, command, request_code))


def _asked(frame: WireFrame, connection: ServerConnection, response: Command) -> bool:
    return (
        frame.sent
        and not frame.command.is_response
        and frame.connection == connection.number
        and frame.command.opaque == response.opaque
    )
