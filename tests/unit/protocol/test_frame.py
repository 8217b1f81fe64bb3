"""Frame decoder: complete frames from any chunks, errors for invalid ones."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.core import core
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.frame import LARGE_BYTES, FrameDecoder
from tests.unit.cores import using
from tests.unit.costs import MIB, cpu_seconds, held_bytes, peak_bytes

pytestmark = pytest.mark.usefixtures("each_core")

MAX = 256
Frame = tuple[int, bytes, bytes]
Ending = tuple[str, int, str] | None


def frame(header: bytes, body: bytes = b"", encoding: int = 0) -> bytes:
    """Return the bytes of a frame, written as the byte table says."""
    length = 4 + len(header) + len(body)
    return (
        length.to_bytes(4, "big")
        + bytes([encoding])
        + len(header).to_bytes(3, "big")
        + header
        + body
    )


def split(*chunks: bytes, max_frame_bytes: int = MAX) -> tuple[list[Frame], Ending]:
    """Feed *chunks*; return the frames, and what ended the stream if something did."""
    frames: list[Frame] = []
    splitter = FrameDecoder(
        lambda encoding, header, body: frames.append((encoding, header, body)),
        max_frame_bytes=max_frame_bytes,
    )
    try:
        for chunk in chunks:
            splitter.feed(chunk)
    except CodecError as fault:
        return frames, (fault.field, fault.position, fault.reason)
    return frames, None


def dripped(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize(
    ("header", "body", "encoding"),
    [(b"head", b"body", 0), (b"head", b"", 1), (b"", b"body", 0), (b"", b"", 7)],
    ids=["whole", "no-body", "no-header", "nothing"],
)
def test_a_frame_is_delivered_in_its_parts(header: bytes, body: bytes, encoding: int) -> None:
    assert split(frame(header, body, encoding)) == ([(encoding, header, body)], None)


def test_several_frames_may_arrive_in_one_chunk() -> None:
    frames, ending = split(frame(b"1", b"a") + frame(b"2") + frame(b"3", b"c"))

    assert frames == [(0, b"1", b"a"), (0, b"2", b""), (0, b"3", b"c")]
    assert ending is None


def test_frames_may_arrive_byte_by_byte() -> None:
    stream = frame(b"head", b"body") * 3

    assert split(*dripped(stream)) == split(stream)


@pytest.mark.parametrize("cut", range(25))
def test_a_stream_may_be_split_anywhere(cut: int) -> None:
    stream = frame(b"one", b"1") + frame(b"two", b"2")

    assert split(stream[:cut], stream[cut:]) == split(stream)


def test_empty_chunks_change_nothing() -> None:
    stream = frame(b"head", b"body")

    assert split(b"", stream[:5], b"", stream[5:], b"") == split(stream)


def test_the_start_of_a_frame_delivers_nothing() -> None:
    assert split(frame(b"head", b"body")[:-1]) == ([], None)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=5),
    st.binary(max_size=300),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_chunk_sizes_do_not_change_the_frames(
    parts: list[tuple[bytes, bytes]], tail: bytes, cuts: list[int]
) -> None:
    stream = b"".join(frame(header, body) for header, body in parts) + tail
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(bounds)]

    assert split(*chunks) == split(stream) == split(*dripped(stream))


def test_a_buffer_may_be_used_again() -> None:
    stream = frame(b"head", b"body") * 3
    frames: list[Frame] = []
    splitter = FrameDecoder(lambda *parts: frames.append(parts), max_frame_bytes=MAX)
    buffer = bytearray(5)
    for at in range(0, len(stream), 5):
        chunk = stream[at : at + 5]
        buffer[: len(chunk)] = chunk
        splitter.feed(memoryview(buffer)[: len(chunk)])
        buffer[:] = bytes(5)

    assert frames == [(0, b"head", b"body")] * 3
    assert all(type(part) is bytes for _, *parts in frames for part in parts)


# --- lengths ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length",
    [0, 1, 3, MAX - 3, MAX, 2**24, 2**31 - 1, 2**31, 2**32 - 1],
    ids=["0", "1", "3", "one-too-many", "max", "16-MiB", "2-GiB", "negative", "minus-1"],
)
def test_an_invalid_length_is_rejected_at_once(length: int) -> None:
    _, ending = split(length.to_bytes(4, "big"))

    assert ending is not None
    assert ending[:2] == ("frame length", 0)
    assert str(length) in ending[2]


def test_the_longest_frame_that_is_allowed_is_delivered() -> None:
    body = bytes(MAX - 8)

    assert split(frame(b"", body)) == ([(0, b"", body)], None)


def test_a_complete_frame_above_the_limit_is_rejected() -> None:
    frames, ending = split(frame(b"fits") + frame(b"", bytes(MAX - 7)))

    assert frames == [(0, b"fits", b"")]
    assert ending is not None
    assert ending[:2] == ("frame length", 12)


@pytest.mark.parametrize("chunks", [1, 2, 8], ids=["at-once", "word-by-word", "byte-by-byte"])
def test_a_header_longer_than_its_frame_is_rejected(chunks: int) -> None:
    lie = (10).to_bytes(4, "big") + (7).to_bytes(4, "big")
    step = len(lie) // chunks
    _, ending = split(*[lie[at : at + step] for at in range(0, len(lie), step)])

    assert ending == ("header length", 4, "7 in a frame of 10 bytes")


def test_a_position_counts_from_the_start_of_the_stream() -> None:
    good = frame(b"head", b"body")
    _, ending = split(*dripped(good * 3 + b"\0\0\0\x03"))

    assert ending is not None
    assert ending[1] == 3 * len(good)


def test_frames_before_an_invalid_one_are_delivered() -> None:
    frames, ending = split(frame(b"good") + b"\xff\xff\xff\xff")

    assert frames == [(0, b"good", b"")]
    assert ending is not None


@pytest.mark.parametrize(
    "text",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01\x02\x00\x01"],
    ids=["http", "http2", "tls"],
)
def test_other_protocols_are_rejected(text: bytes) -> None:
    frames, ending = split(text, max_frame_bytes=16 * MIB)

    assert frames == []
    assert ending is not None
    assert ending[0] == "frame length"


def test_feed_raises_exceptions_of_deliver() -> None:
    def refuse(encoding: int, header: bytes, body: bytes) -> None:
        raise CodecError("header encoding", 4, str(encoding))

    splitter = FrameDecoder(refuse, max_frame_bytes=MAX)

    with pytest.raises(CodecError, match="header encoding at byte 4"):
        splitter.feed(frame(b"head"))


# --- memory and time ----------------------------------------------------------------------------


def test_a_length_of_two_gib_allocates_no_memory() -> None:
    assert peak_bytes(lambda: split(b"\x7f\xff\xff\xff" + bytes(4))) < 10_000


def test_only_received_bytes_take_memory() -> None:
    splitter = FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB)
    start = frame(b"head", bytes(8 * MIB))[:20_000]

    def drip() -> None:
        for at in range(0, len(start), 5):
            splitter.feed(start[at : at + 5])

    assert peak_bytes(drip) < 5 * len(start)


def test_slowly_received_frames_take_linear_time() -> None:
    def drip(size: int) -> float:
        chunks = dripped(frame(b"head", bytes(size)))
        return cpu_seconds(lambda: split(*chunks, max_frame_bytes=MIB))

    # 16 times as long where it grows with the bytes, 256 times where with their square.
    assert drip(64_000) < 64 * drip(4_000)


def test_a_body_does_not_keep_its_chunk_alive() -> None:
    bodies: list[bytes] = []
    splitter = FrameDecoder(lambda _, __, body: bodies.append(body), max_frame_bytes=MIB)

    def feed() -> None:
        splitter.feed(frame(b"", bytes(MIB // 2)) + frame(b"", b"small"))
        del bodies[0]

    assert held_bytes(feed) < 10_000
    assert bodies == [b"small"]


def test_finishing_a_frame_copies_only_its_own_bytes() -> None:
    splitter = FrameDecoder(lambda *_: None, max_frame_bytes=4 * MIB)
    first, large = frame(b"head", b"body"), frame(b"head", bytes(2 * MIB))
    splitter.feed(first[:10])
    data = first[10:] + large

    assert peak_bytes(lambda: splitter.feed(data)) < 2.5 * MIB


def test_a_large_frame_is_joined_once() -> None:
    bodies: list[bytes] = []
    splitter = FrameDecoder(lambda _, __, body: bodies.append(body), max_frame_bytes=4 * MIB)
    large = frame(b"head", bytes(2 * MIB))
    splitter.feed(large[: MIB // 2])
    splitter.feed(large[MIB // 2 : -1])

    assert peak_bytes(lambda: splitter.feed(large[-1:])) < 2.5 * MIB
    assert bodies == [bytes(2 * MIB)]


# --- large bodies -------------------------------------------------------------------------------


LARGE = [LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES + 5, 20 * LARGE_BYTES]
READ = 64 * 1024


def read_by_read(splitter: FrameDecoder, stream: bytes) -> None:
    """Feed *stream* from a buffer that is used again, as a connection does."""
    buffer = bytearray(READ)
    for at in range(0, len(stream), READ):
        chunk = stream[at : at + READ]
        buffer[: len(chunk)] = chunk
        splitter.feed(memoryview(buffer)[: len(chunk)])


def large_frames() -> list[Frame]:
    return [
        (number % 2, b"h" * number, bytes([number + at]) * (size + at))
        for number, size in enumerate(LARGE)
        for at in (0, 0, 1)
    ]


@pytest.mark.parametrize("recycle", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
def test_large_bodies_are_delivered_unchanged(recycle: bool, keeps: bool) -> None:
    delivered: list[Frame] = []
    expected = large_frames()

    def deliver(*parts: Any) -> None:  # noqa: ANN401
        assert parts == expected[len(delivered)]
        delivered.append(parts if keeps else (*parts[:2], b""))

    splitter = FrameDecoder(deliver, max_frame_bytes=16 * MIB, recycle=recycle)
    read_by_read(splitter, b"".join(frame(h, body, e) for e, h, body in expected))

    assert len(delivered) == len(expected)
    assert not keeps or delivered == expected
    assert not splitter.has_unfinished


@pytest.mark.skipif(core is None, reason="the Python version makes each body anew")
def test_memory_of_a_large_body_is_used_for_the_next() -> None:
    addresses: list[int] = []
    others: list[bytes] = []  # would get the memory if it were free

    def deliver(_: int, __: bytes, body: bytes) -> None:
        addresses.append(id(body))

    splitter = FrameDecoder(deliver, max_frame_bytes=16 * MIB, recycle=True)
    with using(core):
        for _ in range(3):
            read_by_read(splitter, frame(b"head", bytes(2 * MIB)))
            others.append(bytes(bytearray(2 * MIB)))

    assert len(set(addresses)) == 1


def test_kept_memory_is_released_when_it_is_not_used() -> None:
    splitter = FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB, recycle=True)

    def receive(trims: list[bool]) -> None:
        read_by_read(splitter, frame(b"head", bytes(2 * MIB)))
        for idle in trims:
            splitter.trim(idle=idle)

    assert held_bytes(lambda: receive([False, False])) < 10_000
    assert held_bytes(lambda: receive([True])) < 10_000


def test_too_large_bodies_are_not_kept() -> None:
    splitter = FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB, recycle=True)
    stream = frame(b"head", bytes(5 * MIB))

    assert held_bytes(lambda: read_by_read(splitter, stream)) < 10_000


def test_a_length_allocates_no_memory_before_a_part_is_received() -> None:
    splitter = FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB, recycle=True)
    start = frame(b"head", bytes(15 * MIB))[:READ]

    assert peak_bytes(lambda: splitter.feed(start)) < 3 * READ


def test_an_unfinished_large_frame_shows_what_was_received() -> None:
    splitter = FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB)
    body = bytes(range(256)) * 4096
    stream = frame(b"head", body, 1)
    read_by_read(splitter, stream[: 10 * READ])

    assert splitter.unfinished_header() == (1, b"head")
    assert splitter.unfinished_body() == body[: 10 * READ - 12]
