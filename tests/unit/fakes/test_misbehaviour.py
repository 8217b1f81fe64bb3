"""Greetings of other servers are not frames."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.connection import MAX_FRAME_BYTES
from rocketmq_aio.embedded.faults import GARBAGE
from rocketmq_aio.embedded.responses import Raw
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.frame import FrameDecoder
from tests.fakes.misbehaviour import GRPC_SETTINGS, HTTP_PAGE, NO_JSON, TWO_GIBIBYTES


def received(data: bytes) -> list[Command]:
    commands: list[Command] = []
    splitter = FrameDecoder(
        lambda *parts: commands.append(decode_command(*parts)), max_frame_bytes=MAX_FRAME_BYTES
    )
    splitter.feed(data)
    return commands


@pytest.mark.parametrize("raw", [HTTP_PAGE, TWO_GIBIBYTES, Raw(GARBAGE), NO_JSON])
def test_greetings_are_not_frames(raw: Raw) -> None:
    with pytest.raises(CodecError):
        received(raw.data)


def test_the_greeting_of_a_grpc_port_looks_like_a_partial_frame() -> None:
    assert received(GRPC_SETTINGS.data) == []
