"""Compresses large bodies in threads: the event loop would stand still for milliseconds."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rocketmq_aio.producer.outgoing import Outgoing

MOST_THREADS: Final = 4


class Packer:
    """The threads of one producer, made with its first large body.

    They are its own: those of the event loop may all be waiting for something of the application.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def pack(self, sent: Outgoing) -> None:
        """Compress the body of *sent* as it says."""
        if self._threads is None:
            count = min(MOST_THREADS, os.cpu_count() or 1)
            self._threads = ThreadPoolExecutor(count, "rocketmq-compress")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, sent.compress)

    def close(self) -> None:
        """Let the threads end after what they are at."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
