"""Compression pool: compresses large bodies in threads, to keep the event loop free."""

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

MAX_THREADS: Final = 4

Job = tuple[SendRequest, "asyncio.Future[None]"]


class CompressionPool:
    """The threads of one producer, started with its first large body.

    The pool has its own threads: the default executor may be blocked by the application.  An
    executor would cost a condition, two futures and a loop wake-up per body, a sixth of the time
    for 16 KiB.  Here one wake-up of the loop serves all bodies that are done by then.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[None], Exception | None]] = deque()
        self._threads = 0
        self._woken = False
        self._closed = False
        self._no_threads_logged = False

    def compress(self, request: SendRequest) -> asyncio.Future[None]:
        """Compress the body of *request*; return a future that is done afterwards.

        While no thread can be started the body is not compressed: its size was checked before.

        :raises ClosedError: `close` was called
        """
        if self._closed:
            raise ClosedError("the producer is closed")
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        if self._threads or self._start(loop):
            self._jobs.put((request, done))
        else:
            request.compression = None
            done.set_result(None)
        return done

    def close(self) -> None:
        """Stop the threads after their current body; the results of others are not awaited."""
        self._closed = True
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _start(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start the threads that the system allows; return whether there are any."""
        try:
            for number in range(min(MAX_THREADS, os.cpu_count() or 1)):
                # A daemon thread: an unclosed producer does not keep the process alive.
                name = f"rocketmq-compress_{number}"
                Thread(target=self._run_thread, args=(loop,), name=name, daemon=True).start()
                self._threads += 1
        except RuntimeError as error:  # "can't start new thread"
            if not self._threads and not self._no_threads_logged:
                logger.warning("compression_without_threads", reason=str(error))
        self._no_threads_logged = not self._threads
        return self._threads > 0

    def _run_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while (job := self._jobs.get()) is not None:
                self._compress(*job)
                if not self._woken:
                    self._woken = True
                    loop.call_soon_threadsafe(self._set_results)

    def _compress(self, request: SendRequest, done: asyncio.Future[None]) -> None:
        error = None
        try:
            if not done.done():  # the sender may be cancelled
                request.compress()
        except Exception as raised:  # noqa: BLE001 - raised in the sender's task
            error = raised
        self._done.append((done, error))

    def _set_results(self) -> None:
        self._woken = False  # first: results from now on wake the loop again
        while self._done:
            done, error = self._done.popleft()
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
