"""Lines of files and of standard input, read without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

from rocketmq_aio.errors import ConfigError

CHUNK_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_CHUNKS: Final = 16
STDIN: Final = "standard input"


class InputError(Exception):
    """A line or a file is unusable; the command may have done something before."""


class Line(NamedTuple):
    """A line of the input, without its end, or all of a file.

    :ivar place: file and number, for errors
    """

    place: str
    body: bytes


def check_files(files: Sequence[Path]) -> None:
    """Raise `ConfigError` for a file that cannot be read, before anything is sent."""
    for file in files:
        try:
            os.close(_open(file))
        except OSError as error:
            reason = f"cannot be read: {error.strerror} (bodies come from files or standard input)"
            raise ConfigError("FILES", str(file), reason) from None


def _open(file: Path) -> int:
    number = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        os.read(number, 0)  # fails for a folder
    except OSError:
        os.close(number)
        raise
    return number


async def read_lines(files: Sequence[Path]) -> AsyncIterator[Line]:
    """Yield the lines of *files*, or of standard input if there are none.

    :raises InputError: a file cannot be read, or a line is longer than 16 MiB
    """
    for name, chunks in _sources(files):
        number, rest = 0, b""
        async with aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    reason = f"is longer than {MAX_LINE_BYTES} bytes"
                    raise InputError(f"{name}: line {number + len(lines) + 1} {reason}")
                for line in lines:
                    number += 1
                    yield Line(f"{name}: line {number}", line.removesuffix(b"\r"))
        if rest:
            yield Line(f"{name}: line {number + 1}", rest)


async def read_whole(files: Sequence[Path]) -> AsyncIterator[Line]:
    """Yield all bytes of each of *files*, or of standard input if there are none.

    :raises InputError: a file cannot be read, or is longer than 16 MiB
    """
    for name, chunks in _sources(files):
        body = bytearray()
        async with aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_LINE_BYTES:
                    raise InputError(f"{name} is longer than {MAX_LINE_BYTES} bytes")
        yield Line(name, bytes(body))


def _sources(files: Sequence[Path]) -> list[tuple[str, AsyncIterator[bytes]]]:
    return [(str(file), _chunks(file)) for file in files] or [(STDIN, _chunks(None))]


async def _chunks(file: Path | None) -> AsyncIterator[bytes]:
    """Yield what a thread reads."""
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(MAX_CHUNKS)
    reader = _Reader(file, chunks, asyncio.get_running_loop())
    Thread(target=reader.run, daemon=True).start()
    try:
        while chunk := await chunks.get():
            if isinstance(chunk, OSError):
                raise InputError(f"{file or STDIN} cannot be read: {chunk.strerror}")
            yield chunk
    finally:
        reader.has_ended = True


class _Reader:
    """Reads a file, or standard input, in a thread; that of a terminal may stay in its read."""

    def __init__(
        self,
        file: Path | None,
        chunks: asyncio.Queue[bytes | OSError],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._file, self._chunks, self._loop = file, chunks, loop
        self.has_ended = False

    def run(self) -> None:
        try:
            # Not `sys.stdin`: a thread that holds its lock would break the end of Python.
            number = sys.stdin.fileno() if self._file is None else _open(self._file)
            try:
                while self._put(os.read(number, CHUNK_BYTES)):
                    pass
            finally:
                if self._file is not None:  # only here: a closed descriptor may be reused
                    os.close(number)
        except OSError as error:
            self._put(error)

    def _put(self, chunk: bytes | OSError) -> bool:
        """Return whether more is wanted."""
        putting = self._chunks.put(chunk)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except (RuntimeError, CancelledError):  # the loop is closed, or about to be
            putting.close()
            return False
        return bool(chunk) and not self.has_ended
