"""Connection: lost frame boundaries, and streams that are only slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketmq_aio.errors import ConnectionLostError, RequestTimeoutError
from rocketmq_aio.protocol.codes import RESPONSE_FLAG, RequestCode
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.remoting import connection as connection_module
from rocketmq_aio.remoting.connection import PATIENT, SWEEP_SECONDS
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


# --- slow links -----------------------------------------------------------------------------------


async def trickle(wire: Wire, frame: bytes, parts: int = 4) -> None:
    """Receive the start of *frame* now, and its parts, each later than two checks of timeouts."""
    wire.receive(frame[:100])
    size = -(-len(frame) // parts)
    for at in range(100, len(frame), size):
        await asyncio.sleep(2.5 * SWEEP_SECONDS)
        wire.receive(frame[at : at + size])


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE])
async def test_pulls_do_not_time_out_while_their_responses_arrive(code: int) -> None:
    async with Wire() as wire:
        first = wire.ask(code=code, timeout=2 * SWEEP_SECONDS)
        second = wire.ask(code=code, timeout=2 * SWEEP_SECONDS)  # its response is behind that
        await settle()
        frames = [answer_to(request, BODY) for request in wire.written]
        await trickle(wire, frames[0])
        await trickle(wire, frames[1])

        assert await outcome(first) == BODY
        assert await outcome(second) == BODY


@pytest.mark.parametrize("code", sorted(PATIENT))
async def test_responses_of_a_consumer_may_be_behind_a_large_one(code: int) -> None:
    async with Wire() as wire:
        pull = wire.ask(code=RequestCode.PULL_MESSAGE)
        small = wire.ask(code=code, timeout=2 * SWEEP_SECONDS)
        await settle()
        pulled, answered = (answer_to(request, BODY) for request in wire.written)
        await trickle(wire, pulled)
        wire.receive(answered)

        assert await outcome(pull) == await outcome(small) == BODY


async def test_pulls_do_not_time_out_between_two_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SLOW_LINK_SECONDS", 60.0)
    async with Wire() as wire:
        first = wire.ask(code=RequestCode.PULL_MESSAGE)
        await settle()
        frame = answer_to(wire.written[0], BODY)
        await trickle(wire, frame)
        second = wire.ask(code=RequestCode.PULL_MESSAGE, timeout=SHORT)
        await asyncio.sleep(3 * SWEEP_SECONDS)
        wire.receive(answer_to(wire.written[1], BODY))

        assert await outcome(first) == await outcome(second) == BODY


async def test_sends_time_out_although_large_responses_arrive() -> None:
    async with Wire() as wire:
        pull = wire.ask(code=RequestCode.PULL_MESSAGE)
        send = wire.ask(code=RequestCode.SEND_MESSAGE_V2, timeout=4 * SWEEP_SECONDS)
        await settle()
        frame = answer_to(wire.written[0], BODY)
        await trickle(wire, frame)

        assert isinstance(await outcome(send), RequestTimeoutError)
        assert await outcome(pull) == BODY


async def test_pulls_time_out_once_their_response_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "STUCK_FRAME_SECONDS", 0.5)
    monkeypatch.setattr(connection_module, "SLOW_LINK_SECONDS", 0.5)
    async with Wire() as wire:
        pull = wire.ask(code=RequestCode.PULL_MESSAGE, timeout=2 * SWEEP_SECONDS)
        await settle()
        frame = answer_to(wire.written[0], BODY)
        await trickle(wire, frame[:-1])
        assert not pull.done()

        assert isinstance(await outcome(pull), RequestTimeoutError)
        assert "no complete frame" in str(wire.connection.loss)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_pulls_time_out_if_a_response_is_swallowed(binary: bool) -> None:
    async with Wire() as wire:
        pull = wire.ask(code=RequestCode.PULL_MESSAGE, timeout=60.0)
        await settle()
        wire.receive(with_wrong_length(answer_to(wire.written[0], binary=binary)))
        swallowed = wire.ask(code=RequestCode.ACK_MESSAGE, timeout=6 * SWEEP_SECONDS)
        await settle()
        wire.receive(answer_to(wire.written[1], binary=binary))

        assert isinstance(await outcome(swallowed), RequestTimeoutError)
        assert not pull.done()


async def test_neither_a_slow_frame_nor_a_request_waits_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "MAX_SLOW_SECONDS", 0.5)
    monkeypatch.setattr(connection_module, "SLOW_LINK_SECONDS", 0.2)
    async with Wire() as wire:
        pull = wire.ask(code=RequestCode.PULL_MESSAGE, timeout=2 * SWEEP_SECONDS)
        await settle()
        frame = answer_to(wire.written[0], BODY)
        for at in range(len(frame) - 1):
            if pull.done():
                break
            wire.receive(frame[at : at + 1])
            await asyncio.sleep(SWEEP_SECONDS / 2)

        assert isinstance(await outcome(pull), RequestTimeoutError)


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
