"""Who is asked for messages when somebody wants some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from rocketmq_aio.config.consumer import MAX_POP
from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.client import PopRequest
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.values import MessageQueue

SWEEP_SECONDS: Final = 0.2  # for which one broker may keep the others from being asked


class PopScheduler:
    """Asks one loop after another as long as some have messages, and all to wait when none has.

    So no more is taken from the group than somebody is about to work on.  What comes late, or for
    a caller who was cancelled, stays in *stock* for the next one.

    :param slack_seconds: to wait for the answer to a question that asked nobody to wait
    """

    def __init__(
        self, loops: Mapping[MessageQueue, PopLoop], stock: PopBuffer, *, slack_seconds: float
    ) -> None:
        self._loops = loops
        self._stock = stock
        self._slack_seconds = slack_seconds
        self._wishes: dict[PopLoop, PopRequest] = {}
        self._wanted = 0  # messages that callers wait for now
        self._turn = 0

    def next_wish(self, loop: PopLoop) -> PopRequest | None:
        """Return what *loop* is to ask for, once."""
        return self._wishes.pop(loop, None)

    def forget(self, loop: PopLoop) -> None:
        """Nobody will ask *loop* any more."""
        self._wishes.pop(loop, None)

    async def receive(
        self, most: int, wish: PopRequest, check_running: Callable[[], object]
    ) -> list[PoppedMessage]:
        """Return up to *most* messages, waiting for the first one as long as *wish* says.

        :param check_running: raises when the caller is not to wait any longer
        :raises BrokerError: all brokers refuse to give messages
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        asked: dict[PopLoop, RocketMQError | None] = {}  # and how it had failed before
        self._wanted += most
        try:
            while not (taken := self._stock.take(most, clock())):
                self._raise_refusal(asked)
                seconds = self._next_step(wish, asked, clock() - started)
                if seconds <= 0:
                    await asyncio.sleep(0)  # asking without a wait must not starve the loops
                    break
                await self._stock.wait(seconds)
                check_running()
            return taken
        finally:
            self._wanted -= most

    def _next_step(
        self, wish: PopRequest, asked: dict[PopLoop, RocketMQError | None], passed: float
    ) -> float:
        """Ask whom it makes sense to ask; return how long to wait for something to happen."""
        idle = [each for each in self._loops.values() if self._is_idle(each)]
        if fresh := [loop for loop in idle if loop not in asked]:
            self._turn += 1
            chosen = fresh[self._turn % len(fresh)]
            asked[chosen] = chosen.failure
            self._ask(chosen, wish._replace(wait_seconds=0.0))
            return SWEEP_SECONDS
        left = wish.wait_seconds - passed
        if left > 0:
            for loop in idle:
                asked.setdefault(loop, loop.failure)
                self._ask(loop, wish._replace(wait_seconds=left))
            return left
        unanswered = any(not self._is_idle(loop) for loop in asked)
        return self._slack_seconds - passed if unanswered and not wish.wait_seconds else 0.0

    def _is_idle(self, loop: PopLoop) -> bool:
        return not loop.is_busy and loop not in self._wishes

    def _ask(self, loop: PopLoop, wish: PopRequest) -> None:
        most = min(MAX_POP, max(wish.most, self._wanted))
        self._wishes[loop] = wish._replace(most=most)
        loop.wake()

    def _raise_refusal(self, asked: Mapping[PopLoop, RocketMQError | None]) -> None:
        loops = self._loops.values()
        if loops and all(
            loop.is_refused and loop in asked and loop.failure is not asked[loop] for loop in loops
        ):
            raise next(loop.failure for loop in loops if loop.failure is not None)
