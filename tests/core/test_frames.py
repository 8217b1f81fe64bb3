"""The compiled frame decoder agrees with Python, and odd arguments."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.frame import LARGE_BYTES, FrameDecoder
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


def fed(chunks: list[bytes], *, recycle: bool) -> tuple[Any, ...]:
    seen: list[Any] = []
    decoder = FrameDecoder(
        lambda *parts: seen.append([*map(typed, parts)]), max_frame_bytes=MAX, recycle=recycle
    )
    for chunk in chunks:
        try:
            decoder.feed(memoryview(bytearray(chunk)))
        except CodecError as fault:
            return seen, fault.field, fault.position, fault.reason
        unfinished = (decoder.unfinished_header(), decoder.unfinished_body())
        seen.append((decoder.position, decoder.has_unfinished, *unfinished))
    return (seen,)


@settings(max_examples=300)
@given(
    st.lists(frames(), max_size=6),
    st.lists(st.integers(0, 500), max_size=8),
    st.sampled_from([2, 30, LARGE_BYTES]),
    st.booleans(),
)
def test_streams_are_cut_alike(
    built_core: ModuleType, stream: list[bytes], cuts: list[int], large: int, recycle: bool
) -> None:
    data = b"".join(stream)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in pairwise(bounds)]

    with using(built_core), patch("rocketmq_aio.protocol.frame.LARGE_BYTES", large):
        compiled = fed(chunks, recycle=recycle)
    with using(None):
        assert compiled == fed(chunks, recycle=recycle)


@pytest.mark.parametrize("at", [-(2**63), -1, 12, 2**63 - 1])
def test_positions_outside_of_the_data_deliver_nothing(built_core: ModuleType, at: int) -> None:
    assert built_core.cut_frames(bytes(12), at, 100, pytest.fail) == at


@pytest.mark.parametrize(
    "arguments", [(), (b"", 0, 1), ("", 0, 1, print), (b"", "0", 1, print), (b"", 0, None, print)]
)
def test_other_arguments_raise(built_core: ModuleType, arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        built_core.cut_frames(*arguments)


def test_exceptions_of_the_callback_propagate(built_core: ModuleType) -> None:
    def fail(*_: object) -> None:
        raise LookupError("bad")

    buffer = bytearray(b"\0\0\0\x04\0\0\0\0" * 3)
    with pytest.raises(LookupError):
        built_core.cut_frames(buffer, 0, 100, fail)
    buffer.clear()  # it is released


# --- large bodies -------------------------------------------------------------------------------


def body(core: ModuleType, text: bytes, kept: list[bytes]) -> bytes:
    """Return bytes with *text*, in memory of *kept* if possible."""
    made: bytes = core.take_body(kept, len(text))
    assert core.fill_body(made, 0, text[:1]) == 1
    assert core.fill_body(made, 1, memoryview(text)[1:]) == len(text)
    return made


@pytest.mark.parametrize("sizes", [(100, 100), (100, 40), (40, 100), (2, 70_000), (70_000, 2)])
def test_memory_that_nothing_refers_to_is_used_again(
    built_core: ModuleType, sizes: tuple[int, int]
) -> None:
    first, second = (bytes([letter]) * size for letter, size in zip(b"ab", sizes, strict=True))
    kept = [body(built_core, first, [])]
    assert hash(kept[0]) == hash(first)

    made = body(built_core, second, kept)

    assert kept == []
    assert (made, hash(made)) == (second, hash(second))


def test_bytes_in_use_keep_their_memory(built_core: ModuleType) -> None:
    for refer in (lambda made: made, memoryview, lambda made: {made}, lambda made: [made]):
        kept = [body(built_core, b"first", [])]
        held = refer(kept[0])

        assert body(built_core, b"other", kept) == b"other"
        assert kept == []
        assert b"first" in bytes(held) if isinstance(held, bytes | memoryview) else b"first" in held


@pytest.mark.parametrize("other", [b"", b"x", bytearray(9), "text", None, 5])
def test_other_kept_objects_are_removed(built_core: ModuleType, other: Any) -> None:  # noqa: ANN401
    kept = [other]

    assert body(built_core, b"body", kept) == b"body"
    assert kept == []


@pytest.mark.parametrize("arguments", [(), ([], "2"), ((), 2), ([], None)])
def test_taking_needs_a_list_and_a_size(
    built_core: ModuleType, arguments: tuple[object, ...]
) -> None:
    with pytest.raises(TypeError):
        built_core.take_body(*arguments)


@pytest.mark.parametrize("size", [-(2**40), -1, 0, 1, 2**70])
def test_sizes_without_memory_of_their_own_are_refused(built_core: ModuleType, size: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        built_core.take_body([], size)


@pytest.mark.parametrize(("at", "size"), [(-1, 1), (5, 1), (0, 5), (4, 1), (2, 3), (2**62, 2)])
def test_data_outside_of_a_body_is_refused(built_core: ModuleType, at: int, size: int) -> None:
    made = body(built_core, b"body", [])

    with pytest.raises(ValueError, match="does not fit"):
        built_core.fill_body(made, at, bytes(size))
    assert made == b"body"


@pytest.mark.parametrize(
    "arguments", [(), (b"ab", 0, "x"), (bytearray(2), 0, b"x"), (b"ab", "0", b"x"), ("ab", 0, b"x")]
)
def test_filling_other_objects_raises(
    built_core: ModuleType, arguments: tuple[object, ...]
) -> None:
    with pytest.raises(TypeError):
        built_core.fill_body(*arguments)
