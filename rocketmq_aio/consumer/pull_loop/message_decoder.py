"""Message decoder: bounds the time that one response takes on the event loop."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rocketmq_aio.errors import CodecError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.compression import InflationLimitError
from rocketmq_aio.protocol.decoding import Decoded
from rocketmq_aio.remoting.threads import run_in_thread

LOOP_BYTES: Final = 512 * 1024  # of inflated data; zlib takes 4 ms for them
MOST_THREADS: Final = 4


class MessageDecoder:
    """Decodes responses on the event loop up to a limit, and the rest of a large one in a thread.

    The threads belong to one consumer and start with its first large response: the default threads
    of the event loop may all be busy with calls of the application.
    """

    def __init__(self, instance: MQClientInstance) -> None:
        self._decode = instance.remoting.decode
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    async def decode(self, body: bytes, queue: MessageQueue) -> Decoded:
        """Return the result of `decode_messages`.

        Does not suspend unless the response inflates to more than `LOOP_BYTES`.  A cancelled caller
        returns at once; its thread ends by itself.
        """
        messages, fault = self._decode(body, queue, limit=LOOP_BYTES)
        if not isinstance(fault, InflationLimitError):
            return messages, fault
        start = fault.position
        rest, fault = await self._decode_in_thread(body[start:], queue)
        if fault is not None:
            fault = CodecError(fault.field, start + fault.position, fault.reason)
        return messages + rest, fault

    def close(self) -> None:
        """Let the threads end after their current work."""
        self._closed = True
        self._release_threads()

    async def _decode_in_thread(self, body: bytes, queue: MessageQueue) -> Decoded:
        if self._closed:
            return self._decode(body, queue)
        if self._threads is None:
            size = min(MOST_THREADS, os.cpu_count() or 1)
            self._threads = ThreadPoolExecutor(size, thread_name_prefix="rocketmq-decode")
        try:
            return await run_in_thread(self._threads, self._decode, body, queue)
        except RuntimeError:  # no thread can be started now
            self._release_threads()
            return self._decode(body, queue)

    def _release_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
