"""Lines of files and of standard input, read without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from rocketmq_aio.errors import ConfigError

CHUNK_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_CHUNKS: Final = 16


async def read_lines(files: Sequence[Path]) -> AsyncIterator[bytes]:
    """Yield the lines of *files*, or of standard input if there are none, without line ends.

    :raises ConfigError: a file cannot be read, or a line is longer than 16 MiB
    """
    for file in files:
        try:
            number = os.open(file, os.O_RDONLY)
        except OSError as error:
            raise ConfigError("FILES", str(file), f"cannot be read: {error.strerror}") from None
        try:
            async for line in _lines(number):
                yield line
        finally:
            os.close(number)
    if not files:
        async for line in _lines(sys.stdin.fileno()):
            yield line


async def _lines(number: int) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in _chunks(number):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise ConfigError("FILES", None, f"a line is longer than {MAX_LINE_BYTES} bytes")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _chunks(number: int) -> AsyncIterator[bytes]:
    """Yield what a thread reads; the thread of a terminal may stay in its read at the end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(MAX_CHUNKS)

    def read() -> None:
        with suppress(RuntimeError, OSError):  # the loop or the file is closed
            while True:
                # Not `sys.stdin`: a thread that holds its lock would break the end of Python.
                chunk = os.read(number, CHUNK_BYTES)
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
                if not chunk:
                    return

    Thread(target=read, daemon=True).start()
    while chunk := await chunks.get():
        yield chunk
