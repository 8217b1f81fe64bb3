"""The compiled core, if there is one: C versions of the functions that cost most per message.

The Python versions are the reference and the fallback.  ``ROCKETMQ_AIO_PURE=1`` turns the core off,
``ROCKETMQ_AIO_PURE=0`` makes its absence an error.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast
from zlib import crc32

PURE: Final = "ROCKETMQ_AIO_PURE"
R = TypeVar("R")


class Core(Protocol):
    """The functions of ``_core.c``; classes of the layers above are passed to them."""

    SOURCE_CHECKSUM: int

    def decode_plain(
        self,
        make: object,
        messages: list[Any],
        data: bytes,
        at: int,
        unusual: int,
        encoded_topic: bytes,
        topic: str,
        queue: object,
        /,
    ) -> int: ...

    def cut_frames(
        self,
        data: bytes | memoryview,
        at: int,
        longest: int,
        deliver: Callable[[int, bytes, bytes], None],
        /,
    ) -> int: ...

    def take_body(self, kept: list[bytes], size: int, /) -> bytes: ...

    def fill_body(self, body: bytes, at: int, data: bytes | memoryview, /) -> int: ...

    def pack_batch(
        self,
        kind: type,
        messages: list[Any],
        stamp: str,
        number: int,
        max_bytes: int,
        max_properties: int,
        /,
    ) -> tuple[str, str, list[str], bytes] | None: ...

    def accelerate_messages(
        self, kind: type, topics: set[str], reserved: frozenset[str], /
    ) -> None: ...

    def measure_messages(self, messages: list[Any], largest: int, /) -> tuple[int, int] | None: ...

    def mark_done(self, messages: list[Any], held: deque[Any], /) -> tuple[int, int]: ...

    def run_handlers(
        self,
        handler: Callable[[Any], Awaitable[object]],
        waiting: deque[Any],
        done: list[Any],
        limit: int,
        due: float,
        monotonic: Callable[[], float],
        cancelling: Callable[[], int],
        service: object,
        workers: object,
        number: int,
        /,
    ) -> tuple[int, Any, Any, Any, float] | None: ...

    def batch_results(
        self,
        make: type[R],
        ids: list[str],
        stored_ids: list[str],
        queue_offset: int,
        status: object,
        queue: object,
        transaction_id: str | None,
        region_id: str,
        trace_on: bool,
        /,
    ) -> list[R]: ...


def _is_stale(module: Core) -> bool:
    """Whether *module* was not built from the source next to it; wheels have no source."""
    try:
        source = Path(__file__).with_name("_core.c").read_bytes()
    except OSError:
        return False
    return crc32(source) != module.SOURCE_CHECKSUM


def _load(pure: str) -> Core | None:
    if pure not in ("", "0"):
        return None
    try:
        module = cast("Core", import_module("rocketmq_aio._core"))
    except ImportError:
        if pure:
            raise
        return None
    if _is_stale(module):
        message = "the compiled core is not of this source and is not used; build it: make core"
        if pure:
            raise ImportError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    return module


core: Core | None = _load(os.environ.get(PURE, ""))
compiled: bool = core is not None
"""Whether the compiled core is used."""
