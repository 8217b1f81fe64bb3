"""Concurrent consumption: any message of any queue next; what fails goes back to the broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import anyio

from rocketmq_aio.consumer.common.events import (
    ConsumerEvent,
    MessageDeadLettered,
    MessageDropped,
    MessageUndecodable,
)
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.handlers import (
    DEAD_LETTER,
    NOT_ACKNOWLEDGED,
    BatchContext,
    RetryLater,
    UndecodableError,
    described,
    log_failure,
)
from rocketmq_aio.errors import PayloadError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

TURN: Final = 32  # calls for one queue in a row before the next queue has its turn
LOCAL_RETRY_SECONDS: Final = 5.0  # after a message could not be sent back


class SendsBack(Protocol):
    """Takes messages that failed."""

    async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
        """Let the broker deliver *message* again later, or make it a dead letter."""


class ConcurrentService:
    """Gives messages of all queues in turn to the workers, and deals with failures.

    :param send_back: None in broadcasting, where a failure is reported and that is all
    :param max_reconsume_times: tries after the first before a message becomes a dead letter
    :param undecodable: what becomes of messages that the codec cannot read
    :param wake: tells the workers that there is something to do
    """

    def __init__(
        self,
        host: BackgroundTasks,
        send_back: SendsBack | None,
        *,
        batch_size: int,
        max_reconsume_times: int,
        undecodable: str,
        wake: Callable[[], None],
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self._host = host
        self._send_back = send_back
        self._batch_size = batch_size
        self._max_reconsume_times = max_reconsume_times
        self._undecodable = undecodable
        self._wake = wake
        self._on_event = on_event
        self._line: deque[DispatchQueue] = deque()
        self.suspended = False

    def add(self, assigned: DispatchQueue) -> None:
        """A queue has messages."""
        if assigned.waiting and not assigned.in_line:
            assigned.in_line = True
            self._line.append(assigned)
        self._wake()

    def take(self) -> tuple[DispatchQueue, list[MessageExt]] | None:
        """Return messages of one queue for a handler, None when there are none now."""
        assigned = self.next_queue()
        if assigned is None:
            return None
        assigned.turn += 1
        if assigned.turn >= TURN:
            self.end_turn(assigned)
        return assigned, assigned.take(self._batch_size)

    def next_queue(self) -> DispatchQueue | None:
        """Return the queue whose turn it is, which has messages that wait."""
        line = self._line
        while line and not self.suspended:
            assigned = line[0]
            if assigned.waiting:
                return assigned
            line.popleft().in_line = False
            assigned.turn = 0
        return None

    def end_turn(self, assigned: DispatchQueue) -> None:
        """It is the next queue's turn."""
        assigned.turn = 0
        if self._line and self._line[0] is assigned:
            self._line.rotate(-1)

    def succeed(self, assigned: DispatchQueue, messages: list[MessageExt]) -> None:
        """All of *messages* are done."""
        assigned.complete(messages)

    async def finish(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        said: BatchContext | None,
        error: BaseException | None,
    ) -> int:
        """Settle what is done, and see to the rest; returns how many are done."""
        done = 0
        level = error.delay_level if isinstance(error, RetryLater) else 0
        try:
            if said is not None and error is None:
                done, level = said.done(len(messages)), said.delay_level
        except RocketMQError as misused:  # the handler has said nonsense
            error = misused
        try:
            for message in messages[:done]:
                assigned.settle(message)
            if isinstance(error, UndecodableError):
                messages = self._return_decodable(assigned, messages, error)
                await self._sort_out(assigned, error)
            else:
                for message in messages[done:]:
                    await self._retry(assigned, message, level, error)
        finally:
            assigned.finish(messages)
        return done

    def _return_decodable(
        self, assigned: DispatchQueue, messages: list[MessageExt], error: UndecodableError
    ) -> list[MessageExt]:
        """Put back the messages that can be decoded; return the others."""
        bad = {id(message) for message, _ in error.messages}
        good = [message for message in messages if id(message) not in bad]
        assigned.put_back(good)
        assigned.finish(good)  # the next handler may have them before this call returns
        self.add(assigned)
        return [message for message in messages if id(message) in bad]

    async def _sort_out(self, assigned: DispatchQueue, error: UndecodableError) -> None:
        """Deal with those that cannot be decoded."""
        for message, reason in error.messages:
            if message.done or assigned.released:
                continue  # a reset forgot it, or the next owner of the queue gets it
            self._on_event(undecodable(message, reason, self._undecodable))
            if self._undecodable == "skip":
                assigned.settle(message)
            else:
                level = DEAD_LETTER if self._undecodable == "dead_letter" else 0
                await self._retry(assigned, message, level, reason)

    async def _retry(
        self, assigned: DispatchQueue, message: MessageExt, level: int, error: BaseException | None
    ) -> None:
        if message.done or assigned.released:
            return  # a reset forgot it, or the next owner of the queue gets it
        reason = described(error) if error is not None else NOT_ACKNOWLEDGED
        log_failure(message, error, reason)
        if self._send_back is None:
            self._on_event(dropped(message, reason))
            assigned.settle(message)
            return
        try:
            await self._send_back.send_back(message, level)
        except RocketMQError as failure:
            logger.warning("send_back_failed", queue=str(message.queue), reason=str(failure))
            self._host.spawn(self._again, assigned, message, name="local-retry")
            return
        if level == DEAD_LETTER or message.reconsume_times >= self._max_reconsume_times:
            self._on_event(dead_lettered(message, reason))
        assigned.settle(message)

    async def _again(self, assigned: DispatchQueue, message: MessageExt) -> None:
        """No broker takes it back now: try it here once more, and hold the offset meanwhile."""
        await anyio.sleep(LOCAL_RETRY_SECONDS)
        message.local_retries += 1
        assigned.put_back([message])
        assigned.end([message])
        self.add(assigned)


def dropped(message: MessageExt, reason: str) -> MessageDropped:
    """Return the event that tells of *message*, and log it: nobody has it any more."""
    logger.warning("message_dropped", queue=str(message.queue), reason=reason)
    return MessageDropped(
        queue=message.queue,
        offset=message.queue_offset,
        message_id=message.message_id,
        reason=reason,
    )


def dead_lettered(message: MessageExt, reason: str) -> MessageDeadLettered:
    """Return the event that tells of *message*."""
    return MessageDeadLettered(
        queue=message.queue,
        offset=message.queue_offset,
        message_id=message.message_id,
        reconsume_times=message.reconsume_times,
        reason=reason,
    )


def undecodable(message: MessageExt, reason: PayloadError, policy: str) -> MessageUndecodable:
    """Return the event that tells of *message*."""
    return MessageUndecodable(
        queue=message.queue,
        offset=message.queue_offset,
        message_id=message.message_id,
        reason=str(reason),
        policy=policy,
    )
