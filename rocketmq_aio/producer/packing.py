"""Compresses large bodies in threads: the event loop would stand still meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Final

from rocketmq_aio.producer.outgoing import Outgoing

MOST_THREADS: Final = 4

Job = tuple[Outgoing, "asyncio.Future[None]"]


class Packer:
    """The threads of one producer, made with its first large body.

    They are its own: those of the event loop may all be waiting for something of the application.
    An executor would make a condition, two futures and a wake-up of the loop for each body: a sixth
    of the time that 16 KiB take.  Here the loop is woken once for all that is done by then.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[None], Exception | None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = 0
        self._woken = False

    def pack(self, sent: Outgoing) -> asyncio.Future[None]:
        """Compress the body of *sent* as it says; the future tells when that is done."""
        if self._loop is None:
            self._start(asyncio.get_running_loop())
        assert self._loop is not None
        packed = self._loop.create_future()
        self._jobs.put((sent, packed))
        return packed

    def close(self) -> None:
        """Let the threads end after what they are at; nobody waits for what is left."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads, self._loop = 0, None

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = min(MOST_THREADS, os.cpu_count() or 1)
        for number in range(self._threads):
            # A daemon: a producer that is never closed does not keep the process alive.
            name = f"rocketmq-compress_{number}"
            Thread(target=self._work, args=(loop,), name=name, daemon=True).start()

    # --- in the threads -------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            while (job := self._jobs.get()) is not None:
                self._compress(*job)
                if not self._woken:
                    self._woken = True
                    loop.call_soon_threadsafe(self._settle)

    def _compress(self, sent: Outgoing, packed: asyncio.Future[None]) -> None:
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
