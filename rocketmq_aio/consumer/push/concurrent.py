"""Concurrent consumption: messages of all queues in turn; failed ones go back to the broker."""

from __future__ import annotations

from typing import Final

import anyio

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.consumer.common.events import dead_lettered
from rocketmq_aio.consumer.common.redelivery import DEAD_LETTER, check_delay_level
from rocketmq_aio.consumer.push.consume_service import (
    TURN,
    ConsumeService,
    log_failure,
    max_reconsume_times,
    reason_of,
)
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.handlers import BatchContext, RetryLater, UndecodableError
from rocketmq_aio.errors import ReceiptError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt

logger = get_logger(__name__)

LOCAL_RETRY_SECONDS: Final = 5.0  # after a message could not be sent back


class ConcurrentService(ConsumeService):
    """Offers each queue to all workers at once; every queue has a turn of `TURN` calls."""

    def add(self, assigned: DispatchQueue) -> None:
        if assigned.waiting and not assigned.is_ready:
            assigned.is_ready = True
            self._ready.append(assigned)
        self.idle.wake_one()

    def next_queue(self) -> DispatchQueue | None:
        ready = self._ready
        while ready and not self.suspended:
            assigned = ready[0]
            if assigned.waiting:
                return assigned
            ready.popleft().is_ready = False
            assigned.turn = 0
        return None

    def end_turn(self, assigned: DispatchQueue) -> None:
        """Move *assigned* behind the other queues once its turn is used up."""
        if assigned.turn < TURN:
            return
        assigned.turn = 0
        if self._ready and self._ready[0] is assigned:
            self._ready.rotate(-1)

    async def finish(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        context: BatchContext | None,
        error: BaseException | None,
    ) -> tuple[int, int]:
        done = level = 0
        try:
            if isinstance(error, RetryLater):
                check_delay_level(error.delay_level)
                level = error.delay_level
            elif context is not None:
                done, level = context.done(len(messages)), context.delay_level
        except APPLICATION_ERRORS as misused:  # its values are invalid, or cannot be read
            error = misused
        failed = len(messages) - done
        try:
            for message in messages[:done]:
                assigned.mark_done(message)
            if isinstance(error, UndecodableError):
                messages = self._return_decodable(assigned, messages, error)
                failed = len(messages)
                await self._finish_undecodable(assigned, error)
            else:
                for message in messages[done:]:
                    await self._retry(assigned, message, level, error)
        finally:
            assigned.finish(messages)
        return done, failed

    def _return_decodable(
        self, assigned: DispatchQueue, messages: list[MessageExt], error: UndecodableError
    ) -> list[MessageExt]:
        """Put back the messages that can be decoded; return the others."""
        bad = {id(message) for message, _ in error.messages}
        good = [message for message in messages if id(message) not in bad]
        assigned.put_back(good)
        assigned.finish(good)  # the next handler may get them before this call returns
        self.add(assigned)
        return [message for message in messages if id(message) in bad]

    async def _finish_undecodable(self, assigned: DispatchQueue, error: UndecodableError) -> None:
        policy = self._config.undecodable
        for message, reason in error.messages:
            if message.done:
                continue  # a reset dropped it, or the next owner of the queue gets it
            self._note_undecodable(message, reason)
            if policy == "skip":
                assigned.mark_done(message)
            else:
                level = DEAD_LETTER if policy == "dead_letter" else 0
                await self._retry(assigned, message, level, reason)

    async def _retry(
        self, assigned: DispatchQueue, message: MessageExt, level: int, error: BaseException | None
    ) -> None:
        if message.done:
            return  # a reset dropped it, or the next owner of the queue gets it
        reason = reason_of(error)
        log_failure(message, error, reason)
        if self._send_back is None:
            self._drop(assigned, message, reason)
            return
        try:
            await self._send_back.send_back(message, level)
        except ReceiptError as lost:  # popped: the broker redelivers it in any case
            logger.info("pop_not_returned", queue=str(message.queue), reason=str(lost))
            return
        except RocketMQError as failure:
            logger.warning("send_back_failed", queue=str(message.queue), reason=str(failure))
            self._tasks.spawn(self._retry_locally, assigned, message, name="local-retry")
            return
        limit = max_reconsume_times(self._config)
        if level == DEAD_LETTER or message.reconsume_times >= limit:
            self._publish(dead_lettered(message, reason))
        assigned.mark_done(message)

    async def _retry_locally(self, assigned: DispatchQueue, message: MessageExt) -> None:
        """Offer *message* again after a pause; until then its offset is not committed."""
        await anyio.sleep(LOCAL_RETRY_SECONDS)
        message.local_retries += 1
        assigned.put_back([message])
        assigned.end([message])
        self.add(assigned)
