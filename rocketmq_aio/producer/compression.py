"""Compresses large bodies in threads: the event loop would stand still meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Final

from rocketmq_aio.errors import ClosedError
from rocketmq_aio.log import get_logger
from rocketmq_aio.producer.send_request import SendRequest

logger = get_logger(__name__)

MOST_THREADS: Final = 4

Job = tuple[SendRequest, "asyncio.Future[None]"]


class CompressionPool:
    """The threads of one producer, made with its first large body.

    They are its own: those of the event loop may all be waiting for something of the application.
    An executor would make a condition, two futures and a wake-up of the loop for each body: a sixth
    of the time that 16 KiB take.  Here the loop is woken once for all that is done by then.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[None], Exception | None]] = deque()
        self._threads = 0
        self._woken = False
        self._closed = False
        self._without_threads = False  # that none can be started was logged

    def pack(self, sent: SendRequest) -> asyncio.Future[None]:
        """Compress the body of *sent* as it says; the future tells when that is done.

        While no thread can be started the body stays as it is: its size was checked before.

        :raises ClosedError: `close` was called
        """
        if self._closed:
            raise ClosedError("the producer is closed")
        loop = asyncio.get_running_loop()
        packed = loop.create_future()
        if self._threads or self._start(loop):
            self._jobs.put((sent, packed))
        else:
            sent.packing = None
            packed.set_result(None)
        return packed

    def close(self) -> None:
        """Let the threads end after what they are at; nobody waits for what is left."""
        self._closed = True
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _start(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start as many threads as the system allows; return whether there are any."""
        try:
            for number in range(min(MOST_THREADS, os.cpu_count() or 1)):
                # A daemon: a producer that is never closed does not keep the process alive.
                name = f"rocketmq-compress_{number}"
                Thread(target=self._work, args=(loop,), name=name, daemon=True).start()
                self._threads += 1
        except RuntimeError as error:  # "can't start new thread"
            if not self._threads and not self._without_threads:
                logger.warning("compression_without_threads", reason=str(error))
        self._without_threads = not self._threads
        return self._threads > 0

    # --- in the threads -------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            while (job := self._jobs.get()) is not None:
                self._compress(*job)
                if not self._woken:
                    self._woken = True
                    loop.call_soon_threadsafe(self._settle)

    def _compress(self, sent: SendRequest, packed: asyncio.Future[None]) -> None:
        error = None
        try:
            if not packed.done():  # its sender may have gone away
                sent.compress()
        except Exception as raised:  # noqa: BLE001 - it is for the sender, not for this thread
            error = raised
        self._done.append((packed, error))

    # --- in the loop ----------------------------------------------------------------------------

    def _settle(self) -> None:
        self._woken = False  # first: what is done from now on wakes the loop again
        while self._done:
            packed, error = self._done.popleft()
            if packed.done():
                continue
            if error is None:
                packed.set_result(None)
            else:
                packed.set_exception(error)
