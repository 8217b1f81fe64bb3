"""Connection: lost frame boundaries, and streams that are only slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketmq_aio.errors import ConnectionLostError, RequestTimeoutError
from rocketmq_aio.protocol.codes import RESPONSE_FLAG
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.remoting import connection as connection_module
from tests.unit.remoting.until import settle
from tests.unit.remoting.wire import Wire, outcome

SHORT = 0.02
BODY = bytes(64 * 1024)
TOO_LONG = (512 * 1024).to_bytes(4, "big")  # below the bound, far above what comes


def answer_to(request: Command, body: bytes = b"", *, binary: bool = True) -> bytes:
    reply = Command(0, request.opaque, RESPONSE_FLAG, body=body)
    return encode_command(reply, {}, binary=binary)


def with_wrong_length(frame: bytes) -> bytes:
    return TOO_LONG + frame[4:]


async def ask_until_lost(wire: Wire, *, answered: bool, binary: bool = True) -> None:
    """Send requests that time out, with answers that arrive too late or not at all."""
    while wire.connection.loss is None:
        error = await outcome(wire.request(timeout=SHORT))
        assert isinstance(error, RequestTimeoutError | ConnectionLostError)
        if answered and wire.connection.loss is None:
            wire.receive(answer_to(wire.written[-1], binary=binary))


async def times_out(wire: Wire, times: int = 3) -> None:
    for _ in range(times):
        assert isinstance(await outcome(wire.request(timeout=SHORT)), RequestTimeoutError)


async def test_a_wrong_length_prefix_ends_the_connection_although_bytes_keep_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.05)
    async with Wire() as wire:
        first = wire.ask(timeout=SHORT)
        await settle()
        wire.receive(with_wrong_length(answer_to(wire.written[0])))
        await ask_until_lost(wire, answered=True)

        assert isinstance(await outcome(first), RequestTimeoutError)
        assert "no complete frame" in str(wire.connection.loss)
        assert wire.transport.ended == "aborted"


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_an_incomplete_answer_that_contains_another_answer_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, binary: bool
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.0)
    async with Wire() as wire:
        long_poll = wire.ask(timeout=60.0)
        await settle()
        wire.receive(with_wrong_length(answer_to(wire.written[0], binary=binary)))
        swallowed = wire.ask(timeout=SHORT)
        await settle()
        wire.receive(answer_to(wire.written[1], binary=binary))

        assert isinstance(await outcome(swallowed), RequestTimeoutError)
        assert isinstance(await outcome(long_poll), ConnectionLostError)
        assert "no complete frame" in str(wire.connection.loss)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_a_large_expected_response_may_be_slow(
    monkeypatch: pytest.MonkeyPatch, binary: bool
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.0)
    async with Wire() as wire:
        pull = wire.ask(timeout=60.0)
        await settle()
        frame = answer_to(wire.written[0], BODY, binary=binary)
        third = len(frame) // 3
        for at in (0, third):
            wire.receive(frame[at : at + third])
            await times_out(wire)
        wire.receive(frame[2 * third :])

        assert await outcome(pull) == BODY
        assert wire.connection.usable


async def test_a_large_request_of_the_peer_may_take_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.0)
    async with Wire() as wire:
        frame = encode_command(Command(326, 9, body=BODY), {})
        wire.receive(frame[:-1])
        await times_out(wire)
        wire.receive(frame[-1:])

        assert [command.body for command in wire.requested] == [BODY]
        assert wire.connection.usable


async def test_an_incomplete_unexpected_response_aborts_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.05)
    async with Wire() as wire:
        pull = wire.ask(timeout=60.0)
        await settle()
        wire.receive(answer_to(wire.written[0], BODY)[:-1])
        pull.cancel()
        await asyncio.wait([pull])
        await ask_until_lost(wire, answered=False)

        assert "no complete frame" in str(wire.connection.loss)


@pytest.mark.parametrize(
    "received",
    [
        *(lambda frame, came=came: frame[:came] for came in (1, 7, 12)),
        lambda frame: frame[:-1].replace(b"{", b"[", 1),
    ],
    ids=["length", "prefix", "header", "unreadable header"],
)
async def test_an_incomplete_or_unreadable_header_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, received: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.05)
    async with Wire() as wire:
        pull = wire.ask(timeout=60.0)
        await settle()
        wire.receive(received(answer_to(wire.written[0], BODY, binary=False)))
        await ask_until_lost(wire, answered=False)

        assert isinstance(await outcome(pull), ConnectionLostError)
        assert "no complete frame" in str(wire.connection.loss)


async def test_a_connection_between_two_frames_is_kept_when_requests_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.0)
    async with Wire() as wire:
        await times_out(wire)
        wire.receive(answer_to(wire.written[0]))  # too late, and whole
        await times_out(wire)

        assert wire.connection.usable


async def test_a_frame_is_timed_from_its_own_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 60.0)
    async with Wire() as wire:
        abandoned = wire.ask(timeout=60.0)
        await settle()
        frame = answer_to(wire.written[0], BODY)
        abandoned.cancel()
        await asyncio.wait([abandoned])
        for _ in range(3):  # each of them is the only incomplete one for less than a minute
            wire.receive(frame[:-1])
            await times_out(wire, 1)
            wire.receive(frame[-1:])
            wire.connection._stuck_since -= 59.0
        wire.connection._stuck_since -= 60.0
        await times_out(wire)  # none is incomplete now

        assert wire.connection.usable


def test_lost_frame_boundaries_are_noticed_within_a_few_seconds() -> None:
    assert connection_module.STUCK_FRAME_SECONDS <= 5.0
