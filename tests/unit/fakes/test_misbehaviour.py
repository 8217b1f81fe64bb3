"""Each misbehaviour is what its name says."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.connection import MAX_FRAME_BYTES
from rocketmq_aio.embedded.responses import Raw
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.frame import FrameDecoder
from tests.fakes.broker import FakeBroker
from tests.fakes.conformance.ground import Ground, send_header
from tests.fakes.misbehaviour import (
    GARBAGE,
    GRPC_SETTINGS,
    HTTP_PAGE,
    NO_JSON,
    STRANGE_OPAQUE,
    TWO_GIBIBYTES,
    answered_to_nobody,
    answered_twice,
    answered_with_garbage_after,
    half_answered,
    unanswered,
)
from tests.fakes.raw_client import RawClient

SEND = RequestCode.SEND_MESSAGE_V2
GROUND = Ground("", "", "5.5.0", "orders", "billing")


async def test_a_second_answer_equals_the_first() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.on(SEND, answered_twice(broker))
        opaque = client.send(send_header(GROUND), b"body")
        first, second = await client.answer(opaque), await client.answer(opaque)

        assert first.ext_fields() == second.ext_fields()
        assert len(broker.messages("orders")) == 1


async def test_half_a_response_can_be_followed_by_nothing_or_a_close() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.on(SEND, half_answered(broker))
        opaque = client.send(send_header(GROUND), b"body")
        await broker.wait_for(SEND)
        with pytest.raises(TimeoutError):
            await client.answer(opaque, seconds=0.05)
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.on(SEND, half_answered(broker, close=True))
        opaque = client.send(send_header(GROUND), b"body")
        with pytest.raises(EOFError):
            await client.answer(opaque)

        assert len(broker.messages("orders")) == 1


async def test_a_response_can_be_followed_by_garbage() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.on(SEND, answered_with_garbage_after(broker))
        answer = await client.ask(send_header(GROUND), b"body")
        await broker.stop()

        assert answer.code == 0
        assert await client.end() == GARBAGE.data


async def test_a_response_can_have_an_unknown_opaque() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.on(SEND, answered_to_nobody(broker))
        client.send(send_header(GROUND), b"body")

        assert (await client.answer(STRANGE_OPAQUE)).code == 0


async def test_a_request_can_be_executed_without_a_response() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.on(SEND, unanswered(broker))
        opaque = client.send(send_header(GROUND), b"body")
        await broker.wait_for(SEND)
        with pytest.raises(TimeoutError):
            await client.answer(opaque, seconds=0.05)

        assert len(broker.messages("orders")) == 1


def received(data: bytes) -> list[Command]:
    commands: list[Command] = []
    splitter = FrameDecoder(
        lambda *parts: commands.append(decode_command(*parts)), max_frame_bytes=MAX_FRAME_BYTES
    )
    splitter.feed(data)
    return commands


@pytest.mark.parametrize("raw", [HTTP_PAGE, TWO_GIBIBYTES, GARBAGE, NO_JSON])
def test_greetings_are_not_frames(raw: Raw) -> None:
    with pytest.raises(CodecError):
        received(raw.data)


def test_the_greeting_of_a_grpc_port_looks_like_a_partial_frame() -> None:
    assert received(GRPC_SETTINGS.data) == []
