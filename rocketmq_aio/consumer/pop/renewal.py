"""Renewal: keeps messages invisible while they are processed or wait in the buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

import anyio

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.pop.ack_service import AckService
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger

logger = get_logger(__name__)

RENEWALS_AT_ONCE: Final = 16  # at one broker
CHECKS: Final = 8  # within the invisible time
LONGEST_PAUSE_SECONDS: Final = 1.0


class Renewal:
    """Renews messages once half of their invisible time is over, as long as they are in use.

    One task does it for all messages.  Messages that are no longer renewed are redelivered.

    :param in_use: returns the messages to keep invisible
    """

    def __init__(
        self,
        service: AckService,
        in_use: Callable[[], Iterable[PoppedMessage]],
        *,
        invisible_seconds: float,
    ) -> None:
        self._service = service
        self._in_use = in_use
        self._pause_seconds = min(LONGEST_PAUSE_SECONDS, invisible_seconds / CHECKS)
        self._renewing: set[PoppedMessage] = set()
        self._limits: dict[str, anyio.CapacityLimiter] = defaultdict(  # by broker name
            lambda: anyio.CapacityLimiter(RENEWALS_AT_ONCE)
        )

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                for message in self._due(boottime()):
                    self._renewing.add(message)
                    tasks.start_soon(self._renew, message)
                await anyio.sleep(self._pause_seconds)

    def _due(self, now: float) -> list[PoppedMessage]:
        """Return the messages to renew now, those with the least time left first."""
        due = [
            each
            for each in self._in_use()
            if each.is_due(now) and each not in self._renewing and self._is_renewable(each, now)
        ]
        return sorted(due, key=attrgetter("expires_at"))

    def _is_renewable(self, message: PoppedMessage, now: float) -> bool:
        return (
            message.ack_state is AckState.HELD
            and message.pending is None
            and not message.invalid_reason
            and not message.is_expired(now)
        )

    async def _renew(self, message: PoppedMessage) -> None:
        try:
            async with self._limits[message.receipt.broker_name]:
                if self._is_renewable(message, boottime()):
                    await self._service.change(message, message.invisible_seconds)
        except RocketMQError as error:
            logger.warning("renewal_failed", queue=str(message.queue), reason=str(error))
        finally:
            self._renewing.discard(message)
            if not self._renewing:
                self._limits.clear()
