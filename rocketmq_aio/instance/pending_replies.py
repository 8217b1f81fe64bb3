"""Requests of this client that wait for their replies."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import CORRELATION_ID

logger = get_logger(__name__)

SWEEP_SECONDS: Final = 0.05  # a request without a reply ends this much late at most


class PendingReplies:
    """Futures by correlation id; one timer for all deadlines, and none while nobody waits."""

    def __init__(self) -> None:
        self.dropped = 0  # replies that nobody waited for (any more)
        self._waiting: dict[str, tuple[asyncio.Future[MessageExt | None], float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, correlation_id: str, deadline: float) -> asyncio.Future[MessageExt | None]:
        """Return the future of a reply; it ends with None at *deadline*.

        Whoever expects one forgets it too.
        """
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[MessageExt | None] = loop.create_future()
        self._waiting[correlation_id] = reply, deadline
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_SECONDS, self._sweep, loop)
        return reply

    def forget(self, correlation_id: str) -> None:
        """A request has ended, however."""
        self._waiting.pop(correlation_id, None)

    def deliver(self, message: MessageExt) -> None:
        """Give a reply to its request; one that is late, repeated or not ours is dropped."""
        correlation_id = message.property(CORRELATION_ID) or ""
        reply, _ = self._waiting.pop(correlation_id, (None, 0))
        if reply is not None and not reply.done():
            reply.set_result(message)
            return
        self.dropped += 1
        logger.debug("reply_dropped", correlation_id=correlation_id)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        self._timer = None
        for reply, deadline in self._waiting.values():
            if deadline <= now and not reply.done():
                reply.set_result(None)
        if self._waiting:
            self._timer = loop.call_later(SWEEP_SECONDS, self._sweep, loop)
