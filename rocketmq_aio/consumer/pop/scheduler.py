"""Pop scheduler: chooses which broker to pop from, and how many pops are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sized
from typing import Final

from rocketmq_aio.config.consumer import MAX_POP
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import PopRequest
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue

SWEEP_SECONDS: Final = 0.2  # to wait for one broker before the next is popped from
EARLY_SECONDS: Final = 0.1  # brokers end a wait 50 ms early, by a clock that is not known exactly
MOST_AHEAD: Final = 3  # further pops of one loop
FIRST_SECONDS: Final = 1.0  # per message, before any was processed
LEAST_SECONDS: Final = 1e-6
WEIGHT: Final = 8  # of a message in the average: one of so many


class PopScheduler:
    """Pops from one loop after another while they have messages, else waits on all of them.

    So the consumer pops no more messages than callers wait for.  Messages that arrive late, or
    for a cancelled caller, stay in *buffer* for the next one.

    :param slack_seconds: how long to wait for the response to a pop without a wait
    """

    def __init__(
        self, loops: Mapping[MessageQueue, PopLoop], buffer: PopBuffer, *, slack_seconds: float
    ) -> None:
        self._loops = loops
        self._buffer = buffer
        self._slack_seconds = slack_seconds
        self._requests: dict[PopLoop, PopRequest] = {}
        self._wanted = 0  # messages that callers wait for now
        self._turn = 0

    def next_request(self, loop: PopLoop) -> PopRequest | None:
        """Return the next request of *loop*, once."""
        return self._requests.pop(loop, None)

    def forget(self, loop: PopLoop) -> None:
        self._requests.pop(loop, None)

    async def receive(
        self, most: int, request: PopRequest, check_running: Callable[[], object]
    ) -> list[PoppedMessage]:
        """Return up to *most* messages; wait for the first one as long as *request* says.

        :param check_running: raises when the caller must not wait any longer
        :raises BrokerError: all brokers return errors
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        requested: dict[PopLoop, RocketMQError | None] = {}  # with the failure before
        self._wanted += most
        try:
            while not (taken := self._buffer.take(most, boottime())):
                self._raise_rejection(requested)
                seconds = self._next_step(request, requested, clock() - started)
                if seconds <= 0:
                    await asyncio.sleep(0)  # pops without a wait must not starve the loops
                    break
                await self._buffer.wait(seconds)
                check_running()
            return taken
        finally:
            self._wanted -= most

    def _next_step(
        self, request: PopRequest, requested: dict[PopLoop, RocketMQError | None], passed: float
    ) -> float:
        """Request messages from idle loops; return how long to wait for a change."""
        idle = [each for each in self._loops.values() if self._is_idle(each)]
        if fresh := [loop for loop in idle if loop not in requested]:
            chosen = self._choose(fresh)
            requested[chosen] = chosen.failure
            self._request(chosen, request._replace(wait_seconds=0.0))
            return SWEEP_SECONDS
        left = request.wait_seconds - passed
        if left > EARLY_SECONDS:  # a shorter one would end at once, and be followed by others
            for loop in idle:
                requested.setdefault(loop, loop.failure)
                self._request(loop, request._replace(wait_seconds=left))
        if left > 0:
            return left
        waiting = any(not self._is_idle(loop) for loop in requested)
        return self._slack_seconds - passed if waiting and not request.wait_seconds else 0.0

    def _choose(self, fresh: list[PopLoop]) -> PopLoop:
        """Return one of *fresh*, every other time of those that had messages last.

        A topic with many messages need not wait for all brokers of topics without any.
        """
        turn, prefers = divmod(self._turn, 2)
        self._turn += 1
        filled = [loop for loop in fresh if loop.had_messages] if prefers else []
        among = filled or fresh
        return among[turn % len(among)]

    def _is_idle(self, loop: PopLoop) -> bool:
        return not loop.is_busy and loop not in self._requests

    def _request(self, loop: PopLoop, request: PopRequest) -> None:
        most = min(MAX_POP, max(request.most, self._wanted))
        self._requests[loop] = request._replace(most=most)
        loop.wake()

    def _raise_rejection(self, requested: Mapping[PopLoop, RocketMQError | None]) -> None:
        loops = self._loops.values()
        if loops and all(
            loop.is_rejected and loop in requested and loop.failure is not requested[loop]
            for loop in loops
        ):
            raise next(loop.failure for loop in loops if loop.failure is not None)


class PopAhead:
    """Has several pops in flight where ``async for`` would wait for one after another.

    Pops more from a broker whose pops are full, as much as is processed within a round trip.
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
