"""Orderly consumption: one handler per queue at a time; failed messages are retried in place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import anyio

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.config.validation import checked_seconds
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import dead_lettered
from rocketmq_aio.consumer.common.redelivery import DEAD_LETTER, SendBack
from rocketmq_aio.consumer.push.consume_service import ConsumeService, log_failure, reason_of
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight
from rocketmq_aio.consumer.push.handlers import (
    BatchContext,
    RetryLater,
    RetryRequest,
    SuspendQueue,
    UndecodableError,
)
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue

logger = get_logger(__name__)

DEAD_LETTER_PAUSE_SECONDS: Final = 5.0  # after a dead letter could not be stored

DeadLetter: TypeAlias = tuple[MessageExt, str]  # a message that is not retried, and the reason


class OrderlyService(ConsumeService):
    """Gives each queue to one worker at a time.

    A queue whose handler failed is suspended and then retried in place: the messages behind the
    failed one wait.
    """

    def __init__(
        self,
        context: ConsumerContext[PushConfig],
        send_back: SendBack | None,
        *,
        holds: Callable[[MessageQueue], bool],
    ) -> None:
        super().__init__(context, send_back)
        self._holds = holds
        self.may_take = self._may_take

    def _may_take(self, assigned: DispatchQueue) -> bool:
        return not assigned.in_flight.suspended and self._holds(assigned.queue)

    def add(self, assigned: DispatchQueue) -> None:
        if assigned.waiting and not assigned.is_ready and not assigned.in_flight.busy:
            assigned.is_ready = True
            self._ready.append(assigned)
            self.idle.wake_one()

    def next_queue(self) -> DispatchQueue | None:
        ready = self._ready
        while ready and not self.suspended:
            assigned = ready.popleft()
            assigned.is_ready = False
            # Without the lock it is about to be revoked.
            if assigned.waiting and self._holds(assigned.queue):
                assigned.in_flight.busy = True
                return assigned
        return None

    def end_turn(self, assigned: DispatchQueue) -> None:
        """Free the queue, unless it is suspended."""
        assigned.turn = 0
        if not assigned.in_flight.suspended:
            self._free(assigned.in_flight)

    async def finish(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        context: BatchContext | None,
        error: BaseException | None,
    ) -> tuple[int, int]:
        """Mark what is done, suspend the queue for the rest; return how many are done and failed.

        Dead letters are stored in a task of their own, and the queue waits for it: brokers that do
        not respond must not take workers from other queues.
        """
        failed, pause = messages, self._config.suspend_seconds
        dead: list[DeadLetter] = []
        rolled_back = at_once = False
        try:
            if isinstance(error, RetryRequest):
                pause, at_once = self._requested(error)
            elif context is not None:
                if error is None:
                    failed, rolled_back = self._apply_context(assigned, messages, context)
                at_once = context.delay_level == DEAD_LETTER
        except APPLICATION_ERRORS as misused:  # its values are invalid, or cannot be read
            error = misused
        if isinstance(error, UndecodableError):
            dead, pause, tried = self._finish_undecodable(assigned, messages, error)
            counts = 0, tried
        else:
            if not rolled_back:
                dead = self._count_retries(assigned, failed, error, at_once=at_once)
            done = max(0, len(messages) - sum(not message.done for message in failed))
            counts = done, len(messages) - done
        if dead:
            assigned.in_flight.suspended = True
            name = f"dead-letter-{assigned.queue}"
            args = (assigned, messages, failed, dead, pause)
            self._tasks.spawn(self._store_dead_letters, *args, name=name)
        else:
            self._end_batch(assigned, messages, failed, pause)
        return counts

    def _requested(self, request: RetryRequest) -> tuple[float, bool]:
        """Return the pause before the next try, and whether there is none."""
        seconds = request.seconds if isinstance(request, SuspendQueue) else None
        if seconds is None:
            seconds = self._config.suspend_seconds
        at_once = isinstance(request, RetryLater) and request.delay_level == DEAD_LETTER
        return checked_seconds("seconds", seconds, least=0), at_once

    def _end_batch(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        failed: list[MessageExt],
        pause: float,
    ) -> None:
        """Retry those of *failed* that are not done after *pause* seconds."""
        again = not assigned.dropped and any(not message.done for message in failed)
        assigned.put_back(failed)
        assigned.finish(messages)
        in_flight = assigned.in_flight
        in_flight.suspended = again and pause > 0
        if in_flight.suspended:
            assigned.resumed = asyncio.Event()
            args = (in_flight, pause, assigned.resumed)
            self._tasks.spawn(self._resume, *args, name=f"suspended-{assigned.queue}")

    def _apply_context(
        self, assigned: DispatchQueue, messages: list[MessageExt], context: BatchContext
    ) -> tuple[list[MessageExt], bool]:
        """Commit or roll back as the handler requested.

        Returns the messages to retry, and whether these are rolled back.
        """
        done, commits = context.done(len(messages)), bool(context.auto_commit or context.committed)
        if context.rolled_back:
            again = [*assigned.uncommitted, *messages]
            assigned.uncommitted.clear()
            return again, True
        assigned.uncommitted += messages[:done]
        if commits:
            assigned.mark_uncommitted_done()
        return messages[done:], False

    async def _resume(self, in_flight: InFlight, seconds: float, resumed: asyncio.Event) -> None:
        with anyio.move_on_after(seconds):
            await resumed.wait()
        in_flight.suspended = False
        self._free(in_flight)

    def _free(self, in_flight: InFlight) -> None:
        """Let the queue have its next handler."""
        in_flight.busy = False
        # The handler may have run for an earlier assignment of the queue.
        if in_flight.current is not None:
            self.add(in_flight.current)

    def _count_retries(
        self,
        assigned: DispatchQueue,
        failed: list[MessageExt],
        error: BaseException | None,
        *,
        at_once: bool = False,
    ) -> list[DeadLetter]:
        """Count one more try of each message; return those without tries left.

        :param at_once: none of them has tries left
        """
        reason, limit = reason_of(error), self._config.max_reconsume_times
        dead: list[DeadLetter] = []
        for message in failed:
            if message.done:
                continue  # a reset dropped it, or the next owner of the queue gets it
            log_failure(message, error, reason)
            if at_once or (limit is not None and message.reconsume_times >= limit):
                dead += self._end_retries(assigned, message, reason)
            else:
                message.local_retries += 1
        return dead

    def _end_retries(
        self, assigned: DispatchQueue, message: MessageExt, reason: str
    ) -> list[DeadLetter]:
        """Return the dead letter to store; broadcasting consumers drop the message."""
        if self._send_back is not None:
            return [(message, reason)]
        self._drop(assigned, message, reason)
        return []

    async def _store_dead_letters(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        failed: list[MessageExt],
        dead: list[DeadLetter],
        pause: float,
    ) -> None:
        """Store dead letters, then resume the queue; those not stored are retried."""
        assert self._send_back is not None
        try:
            for message, reason in dead:
                if message.done:
                    continue  # a reset dropped it, or the next owner of the queue gets it
                try:
                    await self._send_back.dead_letter(message, reason)
                except RocketMQError as failure:
                    queue = str(message.queue)
                    logger.warning("dead_letter_failed", queue=queue, reason=str(failure))
                    pause = DEAD_LETTER_PAUSE_SECONDS
                else:
                    self._publish(dead_lettered(message, reason))
                    assigned.mark_done(message)
        finally:
            self._end_batch(assigned, messages, failed, pause)
            self.end_turn(assigned)

    def _finish_undecodable(
        self, assigned: DispatchQueue, messages: list[MessageExt], error: UndecodableError
    ) -> tuple[list[DeadLetter], float, int]:
        """Apply the ``undecodable`` setting.

        Returns dead letters, the pause before the rest, and how many messages failed.
        """
        failed = len(error.messages)
        policy = self._config.undecodable
        if policy == "retry":
            bad = {id(message) for message, _ in error.messages}
            before = next((at for at, each in enumerate(messages) if id(each) in bad), 0)
            if before:  # only the messages behind it have to wait
                assigned.next_batch = before
                return [], 0.0, 0
        dead: list[DeadLetter] = []
        for message, fault in error.messages:
            if message.done:
                continue  # a reset dropped it, or the next owner of the queue gets it
            self._note_undecodable(message, fault)
            if policy == "retry":  # in place
                dead += self._count_retries(assigned, [message], fault)
            elif policy == "skip":
                assigned.mark_done(message)
            else:
                dead += self._end_retries(assigned, message, reason_of(fault))
        return dead, self._config.suspend_seconds if policy == "retry" else 0.0, failed
