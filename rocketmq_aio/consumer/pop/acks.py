"""Acknowledging in the background: what is done while a request is under way shares the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rocketmq_aio.consumer.common.events import AckFailed
from rocketmq_aio.consumer.pop.ack_service import AckService
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.errors import ReceiptError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

MAX_UNCONFIRMED: Final = 256  # of one broker; more would be handled twice after a crash
CLOSED: Final = "the consumer was closed before the broker confirmed the acknowledgement"


class _BrokerAcks:
    """Acknowledgements for one broker: those of the current request, and those of the next."""

    __slots__ = ("confirming", "waiting")

    def __init__(self) -> None:
        self.confirming: list[PoppedMessage] = []
        self.waiting: list[PoppedMessage] = []


class PopAcks:
    """Acknowledges messages in the background, one request per broker at a time.

    :param on_lost: called with messages that are, or may be, delivered again all the same
    :param on_confirmed: called with a broker's name when it has confirmed acknowledgements
    """

    def __init__(
        self,
        leases: AckService,
        host: BackgroundTasks,
        *,
        on_lost: Callable[[PoppedMessage, RocketMQError], None],
        on_confirmed: Callable[[str], None] = lambda broker_name: None,
    ) -> None:
        self._leases = leases
        self._host = host
        self._on_lost = on_lost
        self._on_confirmed = on_confirmed
        self._brokers: dict[str, _BrokerAcks] = {}  # those with unconfirmed acknowledgements
        self._changed = asyncio.Event()

    def add(self, message: PoppedMessage) -> None:
        """Acknowledge *message* soon."""
        if message.fate is not AckState.HELD:
            return
        message.fate = AckState.ACKED
        broker_name = message.receipt.broker_name
        acks = self._brokers.get(broker_name)
        if acks is None:
            acks = self._brokers[broker_name] = _BrokerAcks()
            self._host.spawn(self._serve, broker_name, acks, name=f"acks-{broker_name}")
        acks.waiting.append(message)

    def has_room(self, broker_name: str) -> bool:
        """Return False while too many acknowledgements of a broker are unconfirmed."""
        acks = self._brokers.get(broker_name)
        return acks is None or len(acks.waiting) + len(acks.confirming) <= MAX_UNCONFIRMED

    async def wait_for_room(self, broker_name: str) -> None:
        """Return when `has_room` is true."""
        while not self.has_room(broker_name):
            await self._change()

    async def flush(self) -> None:
        """Return when no acknowledgement is unconfirmed."""
        while self._brokers:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _serve(self, broker_name: str, acks: _BrokerAcks) -> None:
        try:
            while acks.waiting:
                acks.confirming, acks.waiting = acks.waiting, []
                lost = await self._leases.confirm(acks.confirming)
                acks.confirming = []
                self._changed.set()
                self._on_confirmed(broker_name)
                for message, error in lost.items():
                    self._on_lost(message, error)
        finally:  # cancelled, there are some left: nobody waits for them any more
            del self._brokers[broker_name]
            self._changed.set()
            for message in (*acks.confirming, *acks.waiting):
                self._on_lost(message, ReceiptError(message.message_id, CLOSED))


def ack_failed(message: PoppedMessage, error: RocketMQError) -> AckFailed:
    """Return the event that tells of *message*, and log it: the group gets it again."""
    logger.warning("ack_failed", queue=str(message.queue), reason=str(error))
    return AckFailed(
        queue=message.queue,
        offset=message.queue_offset,
        message_id=message.message_id,
        reason=str(error),
    )
