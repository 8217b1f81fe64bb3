"""Connections that are silent in one or both directions."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

import pytest

from rocketmq_aio.errors import ConnectionLostError, RequestTimeoutError, RocketMQError
from rocketmq_aio.protocol.codes import RESPONSE_FLAG
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.frame import FrameDecoder
from rocketmq_aio.remoting import connection as connection_module
from tests.fakes.frame_rules import with_length
from tests.faults.lines import SHORT, line
from tests.unit.remoting.clients import ASK, CODE, open_client
from tests.unit.remoting.until import until

LARGE: Final = 2 * 900_000


async def test_lost_responses_time_out_and_keep_the_connection() -> None:
    async with line() as made:
        await made.ask()
        made.broker.faults.drop(CODE, times=3)
        for _ in range(3):
            with pytest.raises(RequestTimeoutError):
                await made.ask(0.1)
        await made.works_again()

        assert len(made.proxy.connects) == 1


async def test_late_responses_are_dropped() -> None:
    async with line() as made:
        await made.ask()
        held = made.broker.faults.hold(CODE, times=3)
        for _ in range(3):
            with pytest.raises(RequestTimeoutError):
                await made.ask(0.1)
        held.release()
        await made.works_again()

        connection = made.opened.client._connections[made.broker.address]
        assert connection.stray_replies == 3
        assert len(made.proxy.connects) == 1


async def test_a_silent_connection_is_aborted_and_reopened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.3)
    async with line() as made:
        await made.ask()
        made.proxy.stall()
        waiting = asyncio.create_task(made.ask(60.0))  # as a long poll would
        while made.opened.client.is_connected(made.broker.address):
            with pytest.raises((RequestTimeoutError, ConnectionLostError)):
                await made.ask(0.1)
        with pytest.raises(ConnectionLostError, match="silent"):
            await waiting
        made.proxy.flow()

        await made.works_again()


async def test_a_wrong_length_prefix_replaces_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.3)
    async with line() as made:
        await made.ask()
        made.proxy.down.on(with_length(0xFFFFF0))
        with pytest.raises(RequestTimeoutError):
            await made.ask(0.1)
        while made.opened.client.is_connected(made.broker.address):
            with pytest.raises((RequestTimeoutError, ConnectionLostError)):
                await made.ask(0.1)  # the response is read as part of the frame that never ends
        await made.works_again()

        assert len(made.proxy.connects) == 2


def test_silence_is_detected_within_fifteen_seconds() -> None:
    keepalive = 6 + 3 * 3  # seconds until the kernel closes an idle connection

    assert connection_module.SILENCE_SECONDS + 3.0 <= 15.0
    assert keepalive <= 15.0


async def test_a_slow_connection_causes_no_false_timeouts() -> None:
    async with line() as made:
        made.proxy.up.delay_seconds = made.proxy.down.delay_seconds = 0.2
        answers = await asyncio.gather(*(made.ask() for _ in range(50)))

        assert {answer.code for answer in answers} == {0}


async def test_a_response_lost_in_one_direction_times_out() -> None:
    async with line() as made:
        await made.ask()
        asked = len(made.broker.requests)
        made.proxy.down.stall()
        with pytest.raises(RequestTimeoutError):
            await made.ask(SHORT)

        await until(lambda: len(made.broker.requests) == asked + 1, "the request")
        made.proxy.flow()
        await made.works_again()


async def read_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request, whose bytes are read at 320 KiB per second."""

    def answer(encoding: int, header: bytes, body: bytes) -> None:
        request = decode_command(encoding, header, body)
        writer.write(encode_command(Command(0, request.opaque, RESPONSE_FLAG), {}))

    decoder = FrameDecoder(answer, max_frame_bytes=LARGE)
    while data := await reader.read(32 * 1024):
        decoder.feed(data)
        await asyncio.sleep(0.1)
    writer.close()


async def test_a_large_request_over_a_slow_link_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.5)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    server = await asyncio.start_server(read_slowly, sock=listening, limit=16 * 1024)
    async with server, open_client() as opened:
        await opened.ask(address)
        large = asyncio.create_task(
            opened.client.request(address, ASK, bytes(LARGE // 2), timeout=60.0)
        )
        while not large.done():
            with suppress(RequestTimeoutError):
                await opened.ask(address, timeout=0.1)

        assert (await large).code == 0
        assert len(opened.connected) == 1


# --- memory --------------------------------------------------------------------------------------


async def test_a_server_that_does_not_read_blocks_callers_with_bounded_memory() -> None:
    body = bytes(256 * 1024)
    async with line() as made:
        await made.ask()
        for stalled in made.broker.connections.values():
            stalled.freeze()
        made.proxy.stall()

        async def send() -> str:
            try:
                await made.opened.client.request(made.broker.address, ASK, body, timeout=SHORT)
            except RocketMQError as error:
                return type(error).__name__
            return "answered"

        first = await asyncio.gather(*(send() for _ in range(50)))
        second = await asyncio.gather(*(send() for _ in range(200)))

        assert "RequestTimeoutError" in first  # all of them, unless the machine is too slow
        assert "answered" not in first
        assert set(second) == {"NotConnectedError"}  # not one of them was written
        made.proxy.cut(reset=True)
        made.proxy.flow()
        await made.works_again()
