"""What a consumer does with messages it popped: acknowledge, keep longer, give back, bury.

Two requests about one message never overlap: a change replaces its receipt, and brokers do not
refuse a dead one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import anyio

from rocketmq_aio.consumer.common.events import MessageDeadLettered
from rocketmq_aio.consumer.pop.client import PASSING, PopClient
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.errors import (
    AckError,
    BrokerError,
    NotConnectedError,
    ReceiptError,
    RocketMQError,
)
from rocketmq_aio.log import get_logger
from rocketmq_aio.remoting.backoff import Backoff

logger = get_logger(__name__)

ACK_SECONDS: Final = 10.0  # for which an acknowledgement is tried again
WITHOUT_EFFECT: Final = (BrokerError, NotConnectedError)
# Seconds until the next try, by the number of tries before (as the Java client has them).
RETRY_SECONDS: Final = (
    *(10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
GIVE_BACK_SECONDS: Final = 1.0  # until others get what nobody began with here
GIVEN_BACK_AT_ONCE: Final = 32  # to one broker
TRIED_TOO_OFTEN: Final = "it was tried too often"
EXPIRED: Final = "its invisible time was over"
LOST_ANSWER: Final = "the answer to a change of its invisible time was lost"


class AckService:
    """Settles messages; all errors are those of the calls, `AckError` and `ReceiptError`."""

    def __init__(
        self,
        calls: PopClient,
        *,
        max_reconsume_times: int,
        on_buried: Callable[[PoppedMessage], None],
    ) -> None:
        self._calls = calls
        self._on_buried = on_buried
        self._max_reconsume_times = max_reconsume_times

    # --- done -----------------------------------------------------------------------------------

    async def ack(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge; a message that is acknowledged already is left out.

        :raises AckError: of some messages the group will, or may, get another copy
        """
        lost: dict[PoppedMessage, RocketMQError] = {}
        open_ones: list[PoppedMessage] = []
        for message in dict.fromkeys(messages):
            if message.fate in (AckState.RETURNED, AckState.DEAD):
                lost[message] = ReceiptError(message.message_id, f"it was {message.fate.value}")
            elif message.fate is AckState.HELD:
                open_ones.append(message)
        lost.update(await self.confirm(open_ones))
        if lost:
            raise AckError(lost.items())

    async def confirm(
        self, messages: Iterable[PoppedMessage]
    ) -> dict[PoppedMessage, RocketMQError]:
        """Acknowledge; return what failed, and why.

        Brokers are asked concurrently, and a message with another request under way, which has to
        wait for that, does not delay the others.
        """
        groups: dict[tuple[str, object], list[PoppedMessage]] = defaultdict(list)
        for message in messages:
            groups[message.receipt.broker_name, message.changing].append(message)
        lost: dict[PoppedMessage, RocketMQError] = {}
        if len(groups) == 1:  # as nearly always: no need for tasks
            for several in groups.values():
                await self._confirm(several, lost)
            return lost
        async with anyio.create_task_group() as tasks:
            for several in groups.values():
                tasks.start_soon(self._confirm, several, lost)
        return lost

    async def _confirm(
        self, messages: list[PoppedMessage], lost: dict[PoppedMessage, RocketMQError]
    ) -> None:
        """Acknowledge messages of one broker, and add those that failed to *lost*."""
        await _begin(messages)
        try:
            failed = await self._ack_patiently(messages)
        finally:
            _end(messages)
        lost.update(failed)
        now = asyncio.get_running_loop().time()
        for message in messages:
            if message in failed:
                continue
            message.fate = AckState.ACKED
            if reason := EXPIRED if message.is_expired(now) else message.doubt:
                lost[message] = ReceiptError(message.message_id, reason)

    async def _ack_patiently(
        self, messages: Sequence[PoppedMessage]
    ) -> dict[PoppedMessage, RocketMQError]:
        """Acknowledge, repeatedly while that may help; each message has its own deadline."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + ACK_SECONDS
        backoff = Backoff()
        lost: dict[PoppedMessage, RocketMQError] = {}
        while failed := await self._calls.ack(messages):
            pause = backoff.next_pause()
            again_at = loop.time() + pause
            messages = []
            for message, error in failed.items():
                if isinstance(error, PASSING) and again_at <= min(patience, message.deadline):
                    messages.append(message)
                else:
                    lost[message] = error
            if not messages:
                break
            await anyio.sleep(pause)
        return lost

    # --- longer, or again -----------------------------------------------------------------------

    async def change(self, message: PoppedMessage, seconds: float) -> None:
        """Keep *message* from others for *seconds* from now on, under a new receipt.

        :raises ReceiptError: there is no receipt any more that a broker would honour
        """
        await _begin([message])
        try:
            await self._change(message, seconds)
        finally:
            _end([message])

    async def _change(self, message: PoppedMessage, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if message.fate is not AckState.HELD:
            raise ReceiptError(message.message_id, f"it was {message.fate.value}")
        if reason := EXPIRED if message.is_expired(loop.time()) else message.doubt:
            raise ReceiptError(message.message_id, reason)
        asked_at = loop.time()
        message.doubt = LOST_ANSWER  # until the answer is here, whatever comes in between
        try:
            answer = await self._calls.change(message, seconds)
        except RocketMQError as error:
            if isinstance(error, WITHOUT_EFFECT):
                message.doubt = ""
            raise
        message.doubt = ""
        if answer.pop_time:  # zeros: the broker has it as acknowledged
            message.receipt = message.receipt.changed(answer)
        message.deadline, message.invisible_seconds = asked_at + seconds, seconds

    async def retry(self, message: PoppedMessage, delay_seconds: float | None = None) -> None:
        """Give *message* back, for the group to get it again after *delay_seconds*.

        None takes the delay from `RETRY_SECONDS`.  One that was tried often enough becomes a dead
        letter instead.
        """
        tried = message.reconsume_times
        if tried >= self._max_reconsume_times:
            await self.bury(message)
            return
        if delay_seconds is None:
            delay_seconds = RETRY_SECONDS[min(tried, len(RETRY_SECONDS) - 1)]
        await self.change(message, delay_seconds)
        message.fate = AckState.RETURNED

    async def give_back(self, messages: Iterable[PoppedMessage]) -> None:
        """Let others have *messages* soon; what fails comes after its invisible time."""
        limits: dict[str, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(GIVEN_BACK_AT_ONCE)
        )

        async def give(message: PoppedMessage) -> None:
            async with limits[message.receipt.broker_name]:
                try:
                    await self.change(message, GIVE_BACK_SECONDS)
                except RocketMQError as error:
                    logger.info("not_given_back", queue=str(message.queue), reason=str(error))

        async with anyio.create_task_group() as tasks:
            for message in messages:
                tasks.start_soon(give, message)

    def is_overdue(self, message: PoppedMessage) -> bool:
        """It was tried more often than it may be, and nobody said that it failed."""
        return message.reconsume_times > self._max_reconsume_times

    async def bury(self, message: PoppedMessage) -> None:
        """Make *message* a dead letter, and only then acknowledge it.

        :raises AckError: it is among the dead letters and will come again all the same
        """
        await _begin([message])
        try:
            if message.fate is not AckState.HELD:
                raise ReceiptError(message.message_id, f"it was {message.fate.value}")
            await self._calls.bury(message)
        finally:
            _end([message])
        lost = await self.confirm([message])
        message.fate = AckState.DEAD
        self._on_buried(message)
        if lost:
            raise AckError(lost.items())


def dead_lettered(message: PoppedMessage) -> MessageDeadLettered:
    """Return the event for a message that used up its deliveries."""
    return MessageDeadLettered(
        queue=message.queue,
        offset=message.queue_offset,
        message_id=message.message_id,
        reconsume_times=message.reconsume_times,
        reason=TRIED_TOO_OFTEN,
    )


async def _begin(messages: Sequence[PoppedMessage]) -> None:
    """Wait until no request about any of *messages* is under way, and reserve them."""
    while busy := next((m.changing for m in messages if m.changing is not None), None):
        await asyncio.shield(busy)
    mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for message in messages:
        message.changing = mine


def _end(messages: Sequence[PoppedMessage]) -> None:
    for message in messages:
        if message.changing is not None and not message.changing.done():
            message.changing.set_result(None)
        message.changing = None
