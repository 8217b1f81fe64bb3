"""Consume service: chooses the next queue for a worker and retries or drops failed messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import MessageDropped, MessageUndecodable, message_event
from rocketmq_aio.consumer.common.redelivery import MAX_RECONSUME_TIMES, SendBack
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.handlers import BatchContext, RetryRequest
from rocketmq_aio.errors import PayloadError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.remoting.waiters import WaiterQueue

logger = get_logger(__name__)

TURN: Final = 32  # handler calls for one queue in a row; then the event loop and other queues run

NOT_ACKNOWLEDGED: Final = "the handler did not acknowledge it"


class ConsumeService:
    """Base of the concurrent and the orderly service.

    :param send_back: None in broadcasting: failed messages are dropped and reported
    :ivar idle: workers that wait for messages
    :ivar suspended: no handler is called while this is set
    :ivar may_take: called before each handler call, False ends the turn; None: never ends it
    """

    may_take: Callable[[DispatchQueue], bool] | None = None

    def __init__(self, context: ConsumerContext[PushConfig], send_back: SendBack | None) -> None:
        self._config = context.config
        self._tasks = context.tasks
        self._publish = context.publish
        self._send_back = send_back
        self._ready: deque[DispatchQueue] = deque()
        # A worker that was woken and cancelled at once passes the wake-up on.
        self.idle = WaiterQueue(lambda _, woken: woken and self.idle.wake_one())
        self.suspended = False

    def add(self, assigned: DispatchQueue) -> None:
        """Offer the messages of *assigned* to the workers."""
        raise NotImplementedError

    def next_queue(self) -> DispatchQueue | None:
        """Return the queue that a worker takes messages from next, None if none has any."""
        raise NotImplementedError

    def end_turn(self, assigned: DispatchQueue) -> None:
        """A worker takes no more messages of *assigned* in this turn."""
        raise NotImplementedError

    async def finish(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        context: BatchContext | None,
        error: BaseException | None,
    ) -> tuple[int, int]:
        """Finish *messages* after their handler failed or used its context.

        Returns how many of them are done, and how many failed; the others were not tried.
        """
        raise NotImplementedError

    def _note_undecodable(self, message: MessageExt, reason: PayloadError) -> None:
        policy = self._config.undecodable
        self._publish(message_event(MessageUndecodable, message, reason=str(reason), policy=policy))

    def _drop(self, assigned: DispatchQueue, message: MessageExt, reason: str) -> None:
        """Drop *message* of a broadcasting consumer without another try."""
        logger.warning("message_dropped", queue=str(message.queue), reason=reason)
        self._publish(message_event(MessageDropped, message, reason=reason))
        assigned.mark_done(message)


def max_reconsume_times(config: PushConfig) -> int:
    """Return after how many retries a concurrent consumer gives a message up."""
    times = config.max_reconsume_times
    return MAX_RECONSUME_TIMES if times is None else times


def reason_of(error: BaseException | None) -> str:
    """Return the repr of what a handler raised, or its type if repr fails."""
    if error is None:
        return NOT_ACKNOWLEDGED
    try:
        return repr(error)
    except APPLICATION_ERRORS:
        return type(error).__name__


def log_failure(message: MessageExt, error: BaseException | None, reason: str) -> None:
    """Log a failed message; the first failure by an unexpected exception with its traceback."""
    intended = isinstance(error, RetryRequest) or error is None
    log = logger.info if intended else logger.warning
    times = message.reconsume_times
    named = {"offset": message.queue_offset, "message_id": message.message_id}
    traceback = {} if intended or times else {"exc_info": error}
    queue = str(message.queue)
    log("message_failed", queue=queue, **named, reconsume_times=times, reason=reason, **traceback)
