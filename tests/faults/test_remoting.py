"""Connections under faults: real sockets, a fault proxy, misbehaving servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.faults import CONNECT, GARBAGE, Fault, Faults
from rocketmq_aio.embedded.responses import Close, Outcome, Raw, Response
from rocketmq_aio.errors import (
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.protocol.command import Command
from tests.fakes.frame_rules import Rule, corrupt, truncate
from tests.fakes.misbehaviour import GRPC_SETTINGS, HTTP_PAGE, NO_JSON, TWO_GIBIBYTES
from tests.fakes.stopwatch import Stopwatch
from tests.faults.lines import SHORT, Line, line
from tests.unit.remoting.clients import ASK, CODE, open_client
from tests.unit.remoting.until import succeeds, until, until_done

PATIENT = 15.0  # more than anything here takes


# --- servers that misbehave ----------------------------------------------------------------------

GREETINGS: dict[str, tuple[Outcome, tuple[type[RocketMQError], ...]]] = {
    "HTTP server": (HTTP_PAGE, (ConnectionLostError, NotConnectedError)),
    "gRPC server": (GRPC_SETTINGS, (RequestTimeoutError,)),
    "2 GiB frame": (TWO_GIBIBYTES, (ConnectionLostError, NotConnectedError)),
    "garbage": (Raw(GARBAGE), (ConnectionLostError, NotConnectedError)),
    "no JSON": (NO_JSON, (ConnectionLostError, NotConnectedError)),
    "hang up": (Close(), (ConnectionLostError, NotConnectedError)),
    "reset": (Close(reset=True), (ConnectionLostError, NotConnectedError)),
    "half a length": (Raw(b"\x00\x00"), (RequestTimeoutError,)),
    "nothing": (None, (RequestTimeoutError,)),
}


@pytest.mark.parametrize("kind", GREETINGS)
async def test_a_server_of_another_protocol_fails_only_the_call(kind: str) -> None:
    greeting, errors = GREETINGS[kind]
    async with line() as made:
        made.broker.faults.handle(CONNECT, greeting, times=None)
        made.broker.faults.drop(CODE, executed=False, times=None)
        for _ in range(3):
            with Stopwatch() as passed, pytest.raises(errors):
                await made.ask(SHORT if RequestTimeoutError in errors else PATIENT)
            assert passed.seconds < SHORT + 1.0

        made.broker.faults.clear()
        for connection in list(made.broker.connections.values()):
            connection.close()
        await made.works_again()


async def test_an_http_server_is_named_in_the_error() -> None:
    async with line() as made:
        made.broker.faults.handle(CONNECT, HTTP_PAGE, times=None)

        with pytest.raises((ConnectionLostError, NotConnectedError), match="HTTP"):
            await until_refused(made)


async def until_refused(made: Line) -> None:
    for _ in range(50):
        await made.ask(PATIENT)


RESPONSES: dict[str, tuple[Callable[[Faults], Fault], type[RocketMQError] | None]] = {
    "twice": (lambda faults: faults.duplicate(CODE), None),
    "with garbage after": (lambda faults: faults.garbage(CODE, after_response=True), None),
    "half": (lambda faults: faults.truncate(CODE, close=False), RequestTimeoutError),
    "half, then closed": (lambda faults: faults.truncate(CODE), ConnectionLostError),
    "with another opaque": (lambda faults: faults.wrong_opaque(CODE), RequestTimeoutError),
    "never": (lambda faults: faults.drop(CODE), RequestTimeoutError),
    "closed": (lambda faults: faults.close(CODE), ConnectionLostError),
    "reset": (lambda faults: faults.reset(CODE), ConnectionLostError),
    "as 2 GiB": (lambda faults: faults.handle(CODE, TWO_GIBIBYTES), ConnectionLostError),
    "as garbage": (lambda faults: faults.garbage(CODE), ConnectionLostError),
    "as HTTP": (lambda faults: faults.handle(CODE, HTTP_PAGE), ConnectionLostError),
}


@pytest.mark.parametrize("kind", RESPONSES)
async def test_a_malformed_response_raises_its_own_error_and_recovers(kind: str) -> None:
    add_fault, error = RESPONSES[kind]
    async with line() as made:
        await made.ask()
        add_fault(made.broker.faults)
        if error is None:
            assert (await made.ask(PATIENT)).code == 0
        else:
            with Stopwatch() as passed, pytest.raises(error):
                await made.ask(PATIENT if error is ConnectionLostError else SHORT)
            assert passed.seconds < SHORT + 1.0

        if kind == "half":  # bytes after half a frame are part of it
            made.proxy.cut()
        await made.works_again()


async def test_connecting_ends_within_the_connect_timeout() -> None:
    """A full backlog drops the SYN: the client gets no response."""
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        async with open_client(ClientConfig(connect_timeout_seconds=0.2)) as opened:
            with Stopwatch() as passed, pytest.raises(NotConnectedError, match="connect timeout"):
                await opened.ask(address)

            assert passed.seconds < 1.0


# --- connections that are cut --------------------------------------------------------------------


async def test_cutting_the_connection_at_any_byte_of_a_response_recovers() -> None:
    async with line() as made:
        await made.ask()
        (answer,) = [frame for frame in made.proxy.frames if not frame.upward]
        for byte in range(0, len(answer.data) + 1, 7):
            made.proxy.down.cut(frame=0, byte=byte, reset=bool(byte % 2))
            made.proxy.cut()
            await made.proxy.wait_for_connections(0)
            await until(lambda: not made.opened.client.is_connected(made.broker.address))
            with_answer = byte == len(answer.data)
            if not await succeeds(made.ask(1.0)):
                assert not with_answer
            made.proxy.down.off()
            await until_done(lambda: succeeds(made.ask()))

        await made.works_again()


async def test_cutting_the_connection_at_any_byte_of_a_request_recovers() -> None:
    async with line() as made:
        await made.ask()
        (request,) = [frame for frame in made.proxy.frames if frame.upward]
        for byte in range(0, len(request.data) + 1, 7):
            made.proxy.up.cut(frame=0, byte=byte, reset=bool(byte % 2))
            made.proxy.cut()
            await made.proxy.wait_for_connections(0)
            await until(lambda: not made.opened.client.is_connected(made.broker.address))
            await succeeds(made.ask(1.0))
            made.proxy.up.off()
            await until_done(lambda: succeeds(made.ask()))

        await made.works_again()


class Load:
    """Callers that send requests continuously and check that each response is their own."""

    def __init__(self, made: Line) -> None:
        self.answered = 0
        self.wrong: list[str] = []
        self._made = made
        made.broker.faults.handle(CODE, self._echo, times=None)

    def _echo(self, command: Command, _connection: ServerConnection) -> Outcome:
        return Response(remark=command.body.decode())

    async def ask(self, caller: int, times: int) -> None:
        for number in range(times):
            said = f"{caller}/{number}"
            try:
                answer = await self._made.opened.client.request(
                    self._made.broker.address, ASK, said.encode(), timeout=PATIENT
                )
            except RocketMQError:
                await asyncio.sleep(0.002)
                continue
            self.answered += 1
            if answer.remark != said:
                self.wrong.append(f"{said} got {answer.remark}")


@pytest.mark.parametrize("reset", [False, True])
async def test_many_cuts_under_load_never_mix_up_responses(reset: bool) -> None:
    async with line() as made:
        load = Load(made)

        async def keep_cutting() -> None:
            for cut_at in range(50, 2000, 50):
                await until(lambda at=cut_at: load.answered >= at, seconds=30)  # type: ignore[misc]
                made.proxy.cut(reset=reset)

        cutting = asyncio.create_task(keep_cutting())
        await asyncio.gather(*(load.ask(caller, 200) for caller in range(10)))
        cutting.cancel()
        await asyncio.wait([cutting])

        assert load.wrong == []
        assert load.answered > 500
        assert 5 < len(made.proxy.connects) < 200


async def test_reconnects_to_a_disconnecting_server_are_paced() -> None:
    async with line() as made:
        made.broker.faults.connect(times=None)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 1.0
        while loop.time() < deadline:
            await succeeds(made.ask(SHORT))
            await asyncio.sleep(0.001)

        assert len(made.broker.connects) <= 10


# --- unusual reads -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
async def test_response_chunks_of_any_size_are_decoded(size: int) -> None:
    async with line() as made:
        made.proxy.up.slice_bytes = made.proxy.down.slice_bytes = size
        answers = await asyncio.gather(*(made.ask(10.0) for _ in range(20)))

        assert {answer.code for answer in answers} == {0}


async def test_many_responses_in_one_read_are_decoded() -> None:
    async with line() as made:
        await made.ask()
        held = made.proxy.down.hold()
        asked = [asyncio.create_task(made.ask(5.0)) for _ in range(50)]
        await held.wait(50)
        made.proxy.down.off()
        held.release(*reversed(range(50)))

        assert {(await each).code for each in asked} == {0}


async def test_a_duplicate_response_is_dropped() -> None:
    async with line() as made:
        made.broker.faults.duplicate(CODE, times=None)
        answers = [await made.ask() for _ in range(20)]

        assert {answer.code for answer in answers} == {0}
        connection = made.opened.client._connections[made.broker.address]
        assert connection.stray_replies >= 19


RULES: dict[str, Rule] = {
    "the length": corrupt(0),
    "the header length": corrupt(5),
    "the header encoding": corrupt(4),
    "the header": corrupt(9),
    "its end": truncate(20),
}


@pytest.mark.parametrize("what", RULES)
async def test_a_damaged_response_ends_the_connection_or_the_call(what: str) -> None:
    async with line() as made:
        await made.ask()
        made.proxy.down.on(RULES[what])
        with pytest.raises((ConnectionLostError, RequestTimeoutError)):
            await made.ask(SHORT)
        made.proxy.cut()

        await made.works_again()
