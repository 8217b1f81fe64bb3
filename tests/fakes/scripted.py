"""Embedded servers that record frames."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.notifier import WAIT_SECONDS
from rocketmq_aio.embedded.responses import Close, ErrorResponse, Outcome, Response
from rocketmq_aio.embedded.server import EmbeddedServer
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import JSON_HEADER, RESPONSE_FLAG
from rocketmq_aio.protocol.command import Command
from tests.fakes.recording import Recorder, WireFrame

NONCE: Final = "nonce"  # an ext field that every response repeats


class ScriptedServer(EmbeddedServer):
    """Embedded server that records all frames, and raises at its end what its handlers raised."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - of the other base
        super().__init__(*args, **options)
        self.recorded = Recorder()

    @property
    def wire(self) -> list[WireFrame]:
        return self.recorded.wire

    @property
    def connects(self) -> list[float]:
        return self.recorded.connects

    @property
    def requests(self) -> list[WireFrame]:
        return self.recorded.requests

    def requests_of(self, code: int) -> list[Command]:
        return self.recorded.requests_of(code)

    async def wait_for(
        self, code: int, count: int = 1, seconds: float = WAIT_SECONDS
    ) -> list[Command]:
        """Wait for *count* requests of *code*; return all since the start."""
        return await self.recorded.wait_for(code, count, seconds)

    def opened(self, connection: ServerConnection) -> None:
        self.recorded.connected()
        super().opened(connection)

    def received(self, connection: ServerConnection, encoding: int, command: Command) -> None:
        self.recorded.received(connection.number, encoding, command)
        super().received(connection, encoding, command)

    def _send(self, connection: ServerConnection, request: Command) -> None:
        number = connection.number
        self.recorded.add(number, JSON_HEADER, request, request.code, sent=True)
        super()._send(connection, request)

    def _respond(
        self, connection: ServerConnection, encoding: int, command: Command, outcome: Outcome
    ) -> None:
        sent = not command.is_oneway and connection.is_open
        if isinstance(outcome, Response) and sent:
            answer = Command(outcome.code, command.opaque, RESPONSE_FLAG, outcome.remark)
            answer.ext, answer.body = dict(outcome.ext), outcome.body
            self.recorded.add(connection.number, encoding, answer, command.code, sent=True)
        super()._respond(connection, encoding, command, outcome)

    def _failed(self, error: BaseException, command: Command, *, scripted: bool) -> Outcome:
        outcome = super()._failed(error, command, scripted=scripted)
        if not scripted and not isinstance(error, Close | ErrorResponse | CodecError):
            self.errors.append(error)
        return outcome

    def frame(self, command: Command, response: Response, encoding: int = JSON_HEADER) -> bytes:
        if (nonce := command.ext_fields().get(NONCE)) is not None:
            response = replace(response, ext={**response.ext, NONCE: nonce})
        return super().frame(command, response, encoding)
