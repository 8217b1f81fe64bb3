"""Orderly consumption: one handler per queue at a time, the next message after the last is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import anyio

from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.push.concurrent import dead_lettered, dropped, undecodable
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight
from rocketmq_aio.consumer.push.handlers import (
    DEAD_LETTER,
    NOT_ACKNOWLEDGED,
    BatchContext,
    RetryLater,
    SuspendQueue,
    UndecodableError,
    described,
    log_failure,
)
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

DEAD_LETTER_PAUSE_SECONDS: Final = 5.0  # after a message could not be made a dead letter


Dead: TypeAlias = tuple[MessageExt, str]  # a message that is not tried again, and why


class DeadLetters(Protocol):
    """Takes messages that will not be tried again."""

    async def dead_letter(self, message: MessageExt, reason: str) -> None:
        """Store *message* among the group's dead letters."""


class OrderlyService:
    """Gives each queue's messages, one batch at a time, to the workers.

    A queue whose handler failed is suspended and then tried again in place: the messages behind
    the failed one wait.

    :param holds: whether the queue is this consumer's to work on, asked before each batch
    :param dead_letters: None in broadcasting: what would be a dead letter is dropped and reported
    :param max_reconsume_times: None is no limit
    :param undecodable: what becomes of messages that the codec cannot read
    """

    def __init__(
        self,
        host: BackgroundTasks,
        dead_letters: DeadLetters | None,
        *,
        batch_size: int,
        max_reconsume_times: int | None,
        suspend_seconds: float,
        undecodable: str,
        holds: Callable[[MessageQueue], bool],
        wake: Callable[[], None],
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self._host = host
        self._dead_letters = dead_letters
        self._batch_size = batch_size
        self._max_reconsume_times = max_reconsume_times
        self._suspend_seconds = suspend_seconds
        self._undecodable = undecodable
        self._holds = holds
        self._wake = wake
        self._on_event = on_event
        self._line: deque[DispatchQueue] = deque()
        self.suspended = False

    def add(self, assigned: DispatchQueue) -> None:
        """A queue has messages."""
        if assigned.waiting and not assigned.in_line and not assigned.in_flight.busy:
            assigned.in_line = True
            self._line.append(assigned)
            self._wake()

    def take(self) -> tuple[DispatchQueue, list[MessageExt]] | None:
        """Return the next messages of a queue that nobody works on, None when there are none."""
        line = self._line
        while line and not self.suspended:
            assigned = line.popleft()
            assigned.in_line = False
            # Without the lock it is about to be given up.
            if assigned.waiting and self._holds(assigned.queue):
                assigned.in_flight.busy = True
                return assigned, assigned.take(self._batch_size)
        return None

    def succeed(self, assigned: DispatchQueue, messages: list[MessageExt]) -> None:
        """All of *messages* are done, and so are those of earlier batches that waited for it."""
        if assigned.uncommitted:
            self._commit(assigned)
        assigned.complete(messages)
        self._free(assigned.in_flight)

    async def finish(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        said: BatchContext | None,
        error: BaseException | None,
    ) -> int:
        """Settle what is done, suspend the queue for the rest; returns how many are done.

        Dead letters are stored in a task of their own, for which the queue waits: brokers that do
        not answer must not take the workers from other queues.
        """
        failed, pause = messages, self._suspend_seconds
        dead: list[Dead] = []
        if isinstance(error, SuspendQueue) and error.seconds is not None:
            pause = error.seconds
        if said is not None and error is None:
            failed, error = self._follow(assigned, messages, said)
        if isinstance(error, UndecodableError):
            dead, pause = self._sort_out(assigned, messages, error)
        elif said is None or not said.rolled_back:
            dead = self._count(assigned, failed, error)
        done = max(0, len(messages) - sum(not message.done for message in failed))
        if dead:
            name = f"dead-letter-{assigned.queue}"
            self._host.spawn(self._bury, assigned, messages, failed, dead, pause, name=name)
        else:
            self._end(assigned, messages, failed, pause)
        return done

    def _end(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        failed: list[MessageExt],
        pause: float,
    ) -> None:
        """Let *failed* of *messages* come again after *pause* seconds, but for those settled."""
        again = not assigned.released and any(not message.done for message in failed)
        assigned.put_back(failed)
        assigned.finish(messages)
        self._free_after(assigned, pause if again else 0.0)

    def _follow(
        self, assigned: DispatchQueue, messages: list[MessageExt], said: BatchContext
    ) -> tuple[list[MessageExt], RocketMQError | None]:
        """Commit what the handler says, and return what is to come again."""
        try:
            done = said.done(len(messages))
        except RocketMQError as misused:  # the handler has said nonsense
            return messages, misused
        if said.rolled_back:
            again = [*assigned.uncommitted, *messages]
            assigned.uncommitted.clear()
            return again, None
        assigned.uncommitted += messages[:done]
        if said.auto_commit or said.committed:
            self._commit(assigned)
        return messages[done:], None

    def _commit(self, assigned: DispatchQueue) -> None:
        for message in assigned.uncommitted:
            assigned.settle(message)
        assigned.uncommitted.clear()

    # --- whose turn it is -----------------------------------------------------------------------

    def _free_after(self, assigned: DispatchQueue, seconds: float) -> None:
        if seconds:
            name = f"suspended-{assigned.queue}"
            self._host.spawn(self._resume, assigned.in_flight, seconds, name=name)
        else:
            self._free(assigned.in_flight)

    async def _resume(self, in_flight: InFlight, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._free(in_flight)

    def _free(self, in_flight: InFlight) -> None:
        """The queue may have its next handler."""
        in_flight.busy = False
        # A handler may end for an assignment that another one of the same queue has followed.
        if in_flight.current is not None:
            self.add(in_flight.current)

    # --- messages that failed -------------------------------------------------------------------

    def _count(
        self, assigned: DispatchQueue, failed: list[MessageExt], error: BaseException | None
    ) -> list[Dead]:
        """Count one more try for each, and return those that get none."""
        at_once = isinstance(error, RetryLater) and error.delay_level == DEAD_LETTER
        reason = described(error) if error is not None else NOT_ACKNOWLEDGED
        dead: list[Dead] = []
        for message in failed:
            if message.done or assigned.released:
                continue  # a reset forgot it, or the next owner of the queue gets it
            log_failure(message, error, reason)
            if at_once or self._had_enough(message):
                dead += self._given_up(assigned, message, reason)
            else:
                message.local_retries += 1
        return dead

    def _had_enough(self, message: MessageExt) -> bool:
        limit = self._max_reconsume_times
        return limit is not None and message.reconsume_times >= limit

    def _given_up(self, assigned: DispatchQueue, message: MessageExt, reason: str) -> list[Dead]:
        """Return the dead letter to store; where there are none, the message is dropped."""
        if self._dead_letters is not None:
            return [(message, reason)]
        self._on_event(dropped(message, reason))
        assigned.settle(message)
        return []

    async def _bury(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        failed: list[MessageExt],
        dead: list[Dead],
        pause: float,
    ) -> None:
        """Store dead letters, then let the queue go on; those that no broker takes come again."""
        try:
            for message, reason in dead:
                if message.done or assigned.released:
                    continue  # a reset forgot it, or the next owner of the queue gets it
                if await self._is_stored(message, reason):
                    assigned.settle(message)
                else:
                    pause = DEAD_LETTER_PAUSE_SECONDS
        finally:
            self._end(assigned, messages, failed, pause)

    async def _is_stored(self, message: MessageExt, reason: str) -> bool:
        assert self._dead_letters is not None
        try:
            await self._dead_letters.dead_letter(message, reason)
        except RocketMQError as failure:
            logger.warning("dead_letter_failed", queue=str(message.queue), reason=str(failure))
            return False
        self._on_event(dead_lettered(message, reason))
        return True

    def _sort_out(
        self, assigned: DispatchQueue, messages: list[MessageExt], error: UndecodableError
    ) -> tuple[list[Dead], float]:
        """Deal with those that cannot be decoded; return dead letters, and when the rest comes."""
        if assigned.released:
            return [], 0.0  # the next owner of the queue gets them
        for message, fault in error.messages:
            self._on_event(undecodable(message, fault, self._undecodable))
        if self._undecodable == "retry":
            # In place: what lies behind the first bad one waits with it.
            return self._count(assigned, messages, error), self._suspend_seconds
        dead: list[Dead] = []
        for message, fault in error.messages:
            if self._undecodable == "skip":
                assigned.settle(message)
            else:
                dead += self._given_up(assigned, message, described(fault))
        return dead, 0.0
