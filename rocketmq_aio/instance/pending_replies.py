"""Pending replies of request-reply: futures by correlation id."""

from __future__ import annotations

import asyncio
from copy import copy
from time import monotonic
from typing import Final

from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt

logger = get_logger(__name__)

SWEEP_SECONDS: Final = 0.05  # the delay of timeouts


class PendingReplies:
    """Futures by correlation id, with one timer for all deadlines."""

    def __init__(self) -> None:
        self.dropped = 0  # late, duplicate and unknown replies
        self._pending: dict[str, tuple[asyncio.Future[MessageExt | None], float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def expect(self, correlation_id: str, deadline: float) -> asyncio.Future[MessageExt | None]:
        """Return the future of a reply, or of None at *deadline*; the caller must `forget` it."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[MessageExt | None] = loop.create_future()
        self._pending[correlation_id] = reply, deadline
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_SECONDS, self._sweep, loop)
        return reply

    def forget(self, correlation_id: str) -> None:
        """Remove the future of an ended request."""
        self._pending.pop(correlation_id, None)

    def take(self, correlation_id: str) -> asyncio.Future[MessageExt | None] | None:
        """Remove and return the future of the request that waits for a reply.

        None: the reply is late, a duplicate or unknown, and counts as dropped.
        """
        reply, _ = self._pending.pop(correlation_id, (None, 0))
        if reply is not None and not reply.done():
            return reply
        self.dropped += 1
        logger.debug("reply_dropped", correlation_id=correlation_id)
        return None

    def close(self, error: Exception) -> None:
        """Make the requests of all replies raise *error*."""
        for reply, _ in self._pending.values():
            if not reply.done():
                reply.set_exception(copy(error))  # a copy: raising changes an error

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        self._timer = None
        for reply, deadline in self._pending.values():
            if deadline <= now and not reply.done():
                reply.set_result(None)
        if self._pending:
            self._timer = loop.call_later(SWEEP_SECONDS, self._sweep, loop)
