"""Held responses, which a test releases in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rocketmq_aio.embedded.notifier import WAIT_SECONDS, Notifier
from rocketmq_aio.embedded.responses import Outcome, resolve
from rocketmq_aio.protocol.command import Command

if TYPE_CHECKING:
    from rocketmq_aio.embedded.connection import ServerConnection


class HeldResponses:
    """Handler that executes requests immediately and holds their responses."""

    def __init__(
        self, answer: Callable[[Command, ServerConnection], Outcome | Awaitable[Outcome]]
    ) -> None:
        self.held: list[tuple[Command, asyncio.Future[None]]] = []
        self._answer = answer
        self._changed = Notifier()

    async def __call__(self, command: Command, connection: ServerConnection) -> Outcome:
        outcome = await resolve(self._answer(command, connection))
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append((command, released))
        self._changed.notify()
        await released
        return outcome

    async def wait(self, count: int, seconds: float = WAIT_SECONDS) -> list[Command]:
        """Wait for *count* held responses; return their requests."""
        what = f"{count} held response(s)"
        await self._changed.until(lambda: len(self.held) >= count, what, seconds)
        return [command for command, _ in self.held]

    def release(self, *indexes: int) -> None:
        """Release the responses at *indexes* in this order; default: all."""
        chosen = indexes or range(len(self.held))
        leaving = [self.held[index] for index in chosen]
        self.held = [entry for entry in self.held if entry not in leaving]
        for _, released in leaving:
            if not released.done():
                released.set_result(None)
