"""Pops ahead: several pops in flight where ``async for`` would wait for one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Final

from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.pop_client import PopRequest
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue

MOST_AHEAD: Final = 3  # further pops of one loop
FIRST_SECONDS: Final = 1.0  # per message, before any was processed
LEAST_SECONDS: Final = 1e-6
WEIGHT: Final = 8  # of a message in the average: one of so many


class PopAhead:
    """Pops more from a broker whose pops are full, as much as is processed within a round trip.

    So popped messages wait here about as long as the next pop would take: where messages are
    processed slowly, or pops are fast, there are no pops ahead.

    :param workers: the ``async for`` loops that process messages
    """

    def __init__(
        self,
        instance: MQClientInstance,
        loops: Mapping[MessageQueue, PopLoop],
        buffer: PopBuffer,
        workers: Sized,
    ) -> None:
        self._instance = instance
        self._loops = loops
        self._buffer = buffer
        self._workers = workers
        self._seconds = FIRST_SECONDS  # average time to process a message

    def note_processed(self, seconds: float) -> None:
        """Note that a worker has processed a message in *seconds*."""
        self._seconds += (seconds - self._seconds) / WEIGHT

    def on_full(self, loop: PopLoop, request: PopRequest, seconds: float) -> None:
        """Pop again after a pop that took *seconds* and returned all it was to."""
        processed = seconds * len(self._workers) / max(self._seconds, LEAST_SECONDS)
        pops = sum(each.ahead for each in self._loops.values())
        missing = processed - len(self._buffer.messages) - pops * request.most
        while missing >= 1 and loop.ahead < MOST_AHEAD:
            # A task of the instance, as that of the loop.
            name = f"pop-{loop.source}"
            if not self._instance.tasks.spawn(loop.pop_ahead, request, name=name):
                return
            loop.ahead += 1
            missing -= request.most
