"""The compiled frame decoder agrees with Python, and odd arguments."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.frame import FrameDecoder
from tests.unit.cores import typed, using

MAX = 200
Words = st.integers(0, 2**32 - 1) | st.integers(0, MAX + 8) | st.none()


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return a frame, whose lengths may be wrong."""
    header, body = draw(st.binary(max_size=30)), draw(st.binary(max_size=60))
    length, word = draw(Words), draw(Words)
    length = 4 + len(header) + len(body) if length is None else length
    word = len(header) if word is None else word
    return length.to_bytes(4, "big") + word.to_bytes(4, "big") + header + body


def fed(chunks: list[bytes]) -> tuple[Any, ...]:
    seen: list[Any] = []
    decoder = FrameDecoder(lambda *parts: seen.append([*map(typed, parts)]), max_frame_bytes=MAX)
    for chunk in chunks:
        try:
            decoder.feed(memoryview(bytearray(chunk)))
        except CodecError as fault:
            return seen, fault.field, fault.position, fault.reason
        seen.append((decoder.position, decoder.has_unfinished, decoder.unfinished()))
    return (seen,)


@settings(max_examples=600)
@given(st.lists(frames(), max_size=6), st.lists(st.integers(0, 500), max_size=8))
def test_streams_are_cut_alike(
    built_core: ModuleType, stream: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(stream)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in pairwise(bounds)]

    with using(built_core):
        compiled = fed(chunks)
    with using(None):
        assert compiled == fed(chunks)


@pytest.mark.parametrize("at", [-(2**63), -1, 12, 2**63 - 1])
def test_positions_outside_of_the_data_deliver_nothing(built_core: ModuleType, at: int) -> None:
    assert built_core.cut_frames(bytes(12), at, 100, pytest.fail) == at


@pytest.mark.parametrize(
    "arguments", [(), (b"", 0, 1), ("", 0, 1, print), (b"", "0", 1, print), (b"", 0, None, print)]
)
def test_other_arguments_raise(built_core: ModuleType, arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        built_core.cut_frames(*arguments)


def test_what_is_called_may_raise(built_core: ModuleType) -> None:
    def fail(*_: object) -> None:
        raise LookupError("bad")

    buffer = bytearray(b"\0\0\0\x04\0\0\0\0" * 3)
    with pytest.raises(LookupError):
        built_core.cut_frames(buffer, 0, 100, fail)
    buffer.clear()  # it is released
