"""Transaction log: the transactions in progress and the latest decisions of this producer."""

from __future__ import annotations

import asyncio
from typing import Final

from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.half_message import HalfMessage

MAX_DECISIONS: Final = 20_000  # beyond it the application's check answers for older ones


class TransactionLog:
    """Finds the `HalfMessage` that a check of a broker is about."""

    def __init__(self, max_decisions: int = MAX_DECISIONS) -> None:
        self._in_progress: dict[str, HalfMessage] = {}
        self._decided: dict[str, HalfMessage] = {}
        self._max_decisions = max_decisions
        self._idle: asyncio.Future[None] | None = None

    def begin(self, half: HalfMessage) -> None:
        """Record a half message that is about to be sent."""
        self._in_progress[half.message_id] = half

    def decide(self, half: HalfMessage, state: TransactionState) -> None:
        """Record a decision that is about to be sent."""
        half.state = state
        self._decided[half.message_id] = half
        if len(self._decided) > self._max_decisions:
            del self._decided[next(iter(self._decided))]

    def end(self, half: HalfMessage) -> None:
        """Record that the transaction is over here; a broker may still check it."""
        self._in_progress.pop(half.message_id, None)
        half.message = None  # thousands of decisions are kept, and bodies can be large
        if self._idle is not None and not self._in_progress and not self._idle.done():
            self._idle.set_result(None)

    def find(self, message_id: str) -> HalfMessage | None:
        """Return the half message, if its transaction was begun or decided here."""
        return self._in_progress.get(message_id) or self._decided.get(message_id)

    async def wait_until_idle(self) -> None:
        """Return when no transaction is in progress."""
        if self._in_progress:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
