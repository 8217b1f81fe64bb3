"""Compression: bodies are inflated completely or rejected, within the limit."""

import sys
import zlib
from collections.abc import Callable, Iterator

import lz4.frame
import pytest
import zstandard
from hypothesis import given, strategies as st
from zlib_ng import zlib_ng

from rocketmq_aio.errors import CodecError, ConfigError
from rocketmq_aio.protocol.codes import COMPRESSION_BITS
from rocketmq_aio.protocol.compression import compress, fastest_zlib, inflate
from tests.unit.costs import MIB, cpu_seconds, peak_bytes

KINDS = sorted(COMPRESSION_BITS)
BODY = b"a body that repeats itself, " * 200
Compress = Callable[[bytes], bytes]


def without_size(body: bytes) -> bytes:
    """Return a zstd frame as Java's stream writes it: it does not say how long its content is."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


def lying_about_its_size(body: bytes) -> bytes:
    """Return a zstd frame that says that its content is one byte long."""
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=False).compress(body))
    size = zstandard.get_frame_parameters(bytes(frame)).content_size
    at = frame.index((size - 256).to_bytes(2, "little"))
    frame[at : at + 2] = (1).to_bytes(2, "little")
    return bytes(frame)


WRITERS: dict[str, tuple[int, Compress]] = {
    "zlib": (0x300, zlib.compress),
    "zlib-unsaid": (0, zlib.compress),
    "lz4": (0x100, lz4.frame.compress),
    "zstd": (0x200, zstandard.ZstdCompressor().compress),
    "zstd-stream": (0x200, without_size),
}

every_writer = pytest.mark.parametrize(("bits", "write"), WRITERS.values(), ids=WRITERS.keys())


@given(st.binary(max_size=2000), st.sampled_from(KINDS), st.integers(1, 9))
def test_compressed_bodies_round_trip(body: bytes, kind: str, level: int) -> None:
    assert inflate(compress(body, kind, level), COMPRESSION_BITS[kind]) == body


@every_writer
def test_bodies_compressed_by_other_libraries_are_inflated(bits: int, write: Compress) -> None:
    assert inflate(write(BODY), 1 | bits) == BODY
    assert inflate(write(b""), 1 | bits) == b""


@every_writer
def test_a_body_may_be_as_large_as_the_limit(bits: int, write: Compress) -> None:
    assert inflate(write(BODY), bits, limit=len(BODY)) == BODY


@every_writer
@pytest.mark.parametrize("limit", [0, 1, 100, len(BODY) - 1])
def test_a_body_above_the_limit_is_rejected(bits: int, write: Compress, limit: int) -> None:
    with pytest.raises(CodecError, match="body at byte 0") as caught:
        inflate(write(BODY), bits, limit=limit)

    assert caught.value.reason == f"it inflates to more than {limit} bytes"


@every_writer
def test_a_truncated_body_is_rejected(bits: int, write: Compress) -> None:
    data = write(BODY)
    for cut in range(len(data)):
        with pytest.raises(CodecError, match="body at byte 0"):
            inflate(data[:cut], bits)


@every_writer
def test_bytes_behind_the_end_are_ignored_as_java_ignores_them(bits: int, write: Compress) -> None:
    assert inflate(write(BODY) + b"behind", bits) == BODY


@every_writer
@pytest.mark.parametrize("data", [b"\x00" * 50, b"\xff" * 50, BODY], ids=["zeros", "ones", "text"])
def test_uncompressed_data_is_rejected(bits: int, write: Compress, data: bytes) -> None:
    with pytest.raises(CodecError, match="body at byte 0"):
        inflate(data, bits)


@given(st.sampled_from(list(WRITERS.values())), st.data())
def test_a_flipped_byte_ends_in_bytes_or_a_codec_error(
    writer: tuple[int, Compress], data: st.DataObject
) -> None:
    bits, write = writer
    flipped = bytearray(write(BODY))
    flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= data.draw(st.integers(1, 255))

    assert len(inflated_or_nothing(bytes(flipped), bits)) <= 2 * len(BODY)


def inflated_or_nothing(data: bytes, bits: int) -> bytes:
    try:
        return inflate(data, bits, limit=2 * len(BODY))
    except CodecError:
        return b""


@pytest.mark.parametrize("bits", [0x400, 0x500, 0x600, 0x700])
def test_an_unknown_compression_type_is_rejected(bits: int) -> None:
    with pytest.raises(CodecError, match=f"unknown compression type {bits >> 8}"):
        inflate(zlib.compress(BODY), bits)


def test_a_zstd_frame_with_a_false_size_is_rejected() -> None:
    with pytest.raises(CodecError, match="zstd"):
        inflate(lying_about_its_size(BODY), 0x200)


# --- bombs --------------------------------------------------------------------------------------

BOMB_BYTES = 256 * MIB
LIMIT = 8 * MIB


def bomb(kind: str) -> bytes:
    """Return *BOMB_BYTES* zeros, compressed a piece at a time."""
    piece, pieces = bytes(MIB), BOMB_BYTES // MIB
    if kind == "zlib":
        deflater = zlib.compressobj(1)
        parts = [deflater.compress(piece) for _ in range(pieces)]
        return b"".join([*parts, deflater.flush()])
    if kind == "lz4":
        with lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB) as writer:
            parts = [writer.begin(), *[writer.compress(piece) for _ in range(pieces)]]
            return b"".join([*parts, writer.flush()])
    size = BOMB_BYTES if kind == "zstd" else -1
    stream = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    parts = [stream.compress(piece) for _ in range(pieces)]
    return b"".join([*parts, stream.flush()])


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd", "zstd-stream"])
def test_a_decompression_bomb_is_bounded_by_the_limit(kind: str) -> None:
    bits, data = WRITERS[kind][0], bomb(kind)

    def explode() -> None:
        with pytest.raises(CodecError, match="inflates to more than"):
            inflate(data, bits, limit=LIMIT)

    assert peak_bytes(explode) < LIMIT + 32 * MIB
    assert cpu_seconds(explode) < 1


def test_a_zstd_window_above_the_limit_is_rejected() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    data = stream.compress(BODY) + stream.flush()

    with pytest.raises(CodecError, match="zstd"):
        inflate(data, 0x200)


# --- optional libraries -------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_missing_library_names_the_extra(
    kind: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = compress(BODY, kind, 5)
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigError, match=r"its extra \[compression\]"):
        compress(BODY, kind, 5)
    with pytest.raises(CodecError, match=r"its extra \[compression\]"):
        inflate(data, COMPRESSION_BITS[kind])


def test_zlib_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lz4", "lz4.frame", "zstandard", "zlib_ng"):
        monkeypatch.setitem(sys.modules, module, None)

    assert inflate(compress(BODY, "zlib", 5), COMPRESSION_BITS["zlib"]) == BODY


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing but the standard library is installed."""
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    fastest_zlib.cache_clear()
    yield
    fastest_zlib.cache_clear()


def test_zlib_ng_is_used_if_installed() -> None:
    assert fastest_zlib() is zlib_ng
    assert zlib.decompress(compress(BODY, "zlib", 5)) == BODY


@pytest.mark.usefixtures("plain")
def test_zlib_works_without_zlib_ng() -> None:
    assert fastest_zlib() is zlib
    assert compress(BODY, "zlib", 5) == zlib.compress(BODY, 5)
    assert inflate(zlib_ng.compress(BODY), 0) == BODY
    with pytest.raises(CodecError, match="zlib"):
        inflate(BODY, 0)


@pytest.mark.parametrize("size", [1, 4096, 65_537, 1_000_000])
def test_lz4_blocks_are_independent(size: int) -> None:
    packed = compress(bytes(size), "lz4", 5)

    assert lz4.frame.get_frame_info(packed)["block_linked"] is False
