"""Compression of message bodies: zlib in core, lz4 and zstd with ``rocketmq-aio[compression]``.

The extra also installs zlib-ng: the same format in about half the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Final

from rocketmq_aio.errors import CodecError, ConfigError, missing_extra
from rocketmq_aio.protocol.codes import COMPRESSION_BITS, COMPRESSION_MASK

MAX_INFLATED: Final = 32 * 1024 * 1024  # per message: protects against decompression bombs
MIN_WINDOW: Final = 8 * 1024 * 1024  # minimum window of decoders, by the zstd format
FIRST_ROOM: Final = 16 * 1024
FIRST_GROWTH: Final = 1  # of a body in the first step; each further step has twice the size
TRUSTED_GROWTH: Final = 64  # up to which a declared size is allocated
COMPRESSION_KINDS: Final = {0: "zlib"} | {bits: kind for kind, bits in COMPRESSION_BITS.items()}
EXTRA: Final = missing_extra("compression")


class InflationLimitError(CodecError):
    """The inflated data would exceed the limit."""


def compress(body: bytes, kind: str, level: int) -> bytes:
    """Return *body* in the format of Java clients; ConfigError if the library is missing."""
    if kind == "zlib":
        packed: bytes = fastest_zlib().compress(body, level)
        return packed
    try:
        if kind == "lz4":
            import lz4.frame

            # Java clients cannot decode linked blocks.
            return bytes(lz4.frame.compress(body, block_linked=False))
        import zstandard

        return zstandard.ZstdCompressor(level=level).compress(body)
    except ImportError as error:
        raise ConfigError("compression", kind, EXTRA) from error


def inflate(data: bytes, sys_flag: int, *, limit: int = MAX_INFLATED) -> bytes:
    """Return *data* inflated by the compression type in *sys_flag*; 0 means zlib.

    :raises CodecError: the data is damaged or truncated, or would exceed *limit*
    """
    bits = sys_flag & COMPRESSION_MASK
    kind = COMPRESSION_KINDS.get(bits)
    if kind is None:
        raise CodecError("body", 0, f"unknown compression type {bits >> 8}")
    try:
        whole, inflated = INFLATERS[kind](data, limit)
    except ImportError as error:
        raise CodecError("body", 0, f"it is compressed with {kind}; {EXTRA}") from error
    if len(inflated) > limit:
        raise InflationLimitError("body", 0, f"it inflates to more than {limit} bytes")
    if not whole:
        raise CodecError("body", 0, "the compressed data is cut short")
    return inflated


@cache  # imported with the first body: it takes milliseconds
def fastest_zlib() -> ModuleType:
    """Return zlib-ng if installed, else the standard library's zlib."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib
    return zlib_ng


def _inflate_zlib(data: bytes, limit: int) -> tuple[bool, bytes]:
    library = fastest_zlib()
    inflater = library.decompressobj()
    try:
        inflated = inflater.decompress(data, limit + 1)
    except library.error as error:
        raise CodecError("body", 0, f"zlib: {error}") from error
    return inflater.eof, inflated


def _rooms(data: bytes, limit: int) -> Iterator[int]:
    """Yield how much to inflate at once: a buffer of *limit* bytes for each small body is slow."""
    room, size = limit + 1, FIRST_ROOM + FIRST_GROWTH * len(data)
    while room > 0:
        yield min(size, room)
        room -= size
        size *= 2


def _inflate_lz4(data: bytes, limit: int) -> tuple[bool, bytes]:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    parts: list[bytes] = []
    try:
        for size in _rooms(data, limit):
            parts.append(inflater.decompress(b"" if parts else data, size))
            if inflater.eof or len(parts[-1]) < size:
                break
    except RuntimeError as error:
        raise CodecError("body", 0, f"lz4: {error}") from error
    return bool(inflater.eof), b"".join(parts)


def _inflate_zstd(data: bytes, limit: int) -> tuple[bool, bytes]:
    import zstandard

    inflater = zstandard.ZstdDecompressor(max_window_size=max(limit, MIN_WINDOW))
    parts: list[bytes] = []
    try:
        size = zstandard.frame_content_size(data)
        if 0 <= size <= min(limit, FIRST_ROOM + TRUSTED_GROWTH * len(data)):
            return True, inflater.decompress(data)
        # Java omits the content size, which decompress() requires; a false one is not allocated.
        with inflater.stream_reader(data, read_across_frames=False) as reader:
            for room in _rooms(data, limit):
                parts.append(reader.read(room))
                if len(parts[-1]) < room:
                    break
        inflated = b"".join(parts)
        parts.clear()
        check = inflater.decompressobj()
        whole = len(inflated) > limit or (check.decompress(data) is not None and check.eof)
    except zstandard.ZstdError as error:
        raise CodecError("body", 0, f"zstd: {error}") from error
    return whole, inflated


INFLATERS: Final = {"zlib": _inflate_zlib, "lz4": _inflate_lz4, "zstd": _inflate_zstd}
