"""Ack service: acknowledges popped messages, changes their invisible time, sends them to the DLQ.

Requests for one message never overlap: a change replaces its receipt, and brokers accept an
outdated one without an error.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.redelivery import FIRST_LEVEL, LEVEL_SECONDS
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import PASSING, PopClient
from rocketmq_aio.errors import (
    AckError,
    BrokerError,
    NotConnectedError,
    ReceiptError,
    RocketMQError,
)
from rocketmq_aio.log import get_logger
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

ACK_SECONDS: Final = 10.0  # for retries of an acknowledgement
WITHOUT_EFFECT: Final = (BrokerError, NotConnectedError)
# Seconds until redelivery, by the number of deliveries before (as in the Java client).
RETRY_SECONDS: Final = LEVEL_SECONDS[FIRST_LEVEL - 1 :]
GIVE_BACK_SECONDS: Final = 1.0  # until redelivery of messages that nobody processed here
GIVEN_BACK_AT_ONCE: Final = 32  # to one broker
MAX_UNCONFIRMED: Final = 256  # of one broker; more would be delivered twice after a crash
EXPIRED: Final = "its invisible time was over"
LOST_RESPONSE: Final = "the response to a change of its invisible time was lost"
CLOSED: Final = "the consumer was closed before the broker confirmed the acknowledgement"


class AckService:
    """Acknowledges messages; raises the errors of the requests, `AckError` and `ReceiptError`."""

    def __init__(self, client: PopClient, *, max_reconsume_times: int) -> None:
        self._client = client
        self._max_reconsume_times = max_reconsume_times

    async def ack(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge; messages that are acknowledged already are skipped.

        :raises AckError: some messages will, or may, be redelivered
        """
        given = dict.fromkeys(messages)
        lost: dict[PoppedMessage, RocketMQError] = dict(_ended(given))
        lost |= await self.confirm(each for each in given if each.ack_state is AckState.HELD)
        if lost:
            raise AckError(lost.items())

    async def confirm(
        self, messages: Iterable[PoppedMessage]
    ) -> dict[PoppedMessage, RocketMQError]:
        """Acknowledge; return the errors.

        Requests to several brokers are concurrent.  A message that has to wait for another
        request about it does not delay the others.
        """
        groups: dict[tuple[str, object], list[PoppedMessage]] = defaultdict(list)
        for message in messages:
            groups[message.receipt.broker_name, message.pending].append(message)
        lost: dict[PoppedMessage, RocketMQError] = {}
        if len(groups) == 1:  # nearly always, and cheaper
            (several,) = groups.values()
            await self._confirm(several, lost)
        else:
            (await gather_limited(lambda key: self._confirm(groups[key], lost), groups)).complete()
        return lost

    async def _confirm(
        self, messages: list[PoppedMessage], lost: dict[PoppedMessage, RocketMQError]
    ) -> None:
        """Acknowledge messages of one broker; add the errors to *lost*."""
        async with _Reserved(messages):
            # The request before may have been a retry, whose message must not be acknowledged.
            failed: dict[PoppedMessage, RocketMQError] = dict(_ended(messages))
            if held := [each for each in messages if each not in failed]:
                failed |= await self._ack_with_retries(held)
        lost.update(failed)
        now = boottime()
        for message in messages:
            if message in failed:
                continue
            if reason := _invalid_reason(message, now):  # it stays held: later calls raise, too
                lost[message] = ReceiptError(message.message_id, reason)
            else:
                message.ack_state = AckState.ACKED

    async def _ack_with_retries(
        self, messages: Sequence[PoppedMessage]
    ) -> dict[PoppedMessage, RocketMQError]:
        end = boottime() + ACK_SECONDS
        backoff = Backoff()
        lost: dict[PoppedMessage, RocketMQError] = {}
        while failed := await self._client.ack(messages):
            pause = backoff.next_pause()
            again_at = boottime() + pause
            messages = []
            for message, error in failed.items():
                if isinstance(error, PASSING) and again_at <= min(end, message.expires_at):
                    messages.append(message)
                else:
                    lost[message] = error
            if not messages:
                break
            await anyio.sleep(pause)
        return lost

    async def change(
        self, message: PoppedMessage, seconds: float, *, suspend: bool = False
    ) -> None:
        """Make *message* invisible for *seconds* from now on, under a new receipt.

        :param suspend: its redelivery does not count as a retry; older brokers count it
        :raises ReceiptError: the message is not held, or its receipt may be invalid
        """
        async with _Reserved([message]):
            requested_at = boottime()
            _check_held(message, requested_at)
            message.invalid_reason = LOST_RESPONSE  # until the response arrives, also if cancelled
            try:
                response = await self._client.change(message, seconds, suspend=suspend)
            except WITHOUT_EFFECT:
                message.invalid_reason = ""
                raise
            message.invalid_reason = ""
            if response.pop_time:  # zero: the broker has it as acknowledged
                message.receipt = message.receipt.changed(response)
            message.expires_at, message.invisible_seconds = requested_at + seconds, seconds

    async def retry(
        self,
        message: PoppedMessage,
        delay_seconds: float | None = None,
        on_dead_letter: Callable[[PoppedMessage], object] | None = None,
        *,
        suspend: bool = False,
    ) -> None:
        """Have *message* redelivered after *delay_seconds*, or send it to the DLQ.

        :param on_dead_letter: called when its retries are used up and it is in the DLQ
        :param suspend: not a retry, see `change`
        """
        times = message.reconsume_times
        if times >= self._max_reconsume_times and not suspend:
            await self.send_to_dlq(message, on_dead_letter)
            return
        if delay_seconds is None:
            delay_seconds = RETRY_SECONDS[min(times, len(RETRY_SECONDS) - 1)]
        await self.change(message, delay_seconds, suspend=suspend)
        message.ack_state = AckState.RETURNED

    async def give_back(self, messages: Iterable[PoppedMessage]) -> None:
        """Have *messages* redelivered soon, without counting it as a retry.

        After an error they are redelivered after their invisible time, and it counts.
        """
        brokers: defaultdict[str, list[PoppedMessage]] = defaultdict(list)
        for message in messages:
            brokers[message.receipt.broker_name].append(message)

        async def change(message: PoppedMessage) -> None:
            # In order a queue waits for all its messages, but brokers wake a waiting pop when the
            # first one is visible: those behind must be visible by then.
            seconds = 0.0 if message.receipt.is_ordered else GIVE_BACK_SECONDS
            await self.change(message, seconds, suspend=True)

        async def give_back_to(broker: str) -> None:
            failed = (await gather_limited(change, brokers[broker], GIVEN_BACK_AT_ONCE)).failures
            for message, error in failed.items():
                logger.info("pop_not_returned", queue=str(message.queue), reason=str(error))

        await gather_limited(give_back_to, brokers)

    async def send_to_dlq(
        self,
        message: PoppedMessage,
        on_dead_letter: Callable[[PoppedMessage], object] | None = None,
    ) -> None:
        """Send *message* to the dead-letter queue, and only then acknowledge it.

        :raises ReceiptError: as `change`; the redelivered message would be another dead letter
        :raises AckError: it is in the dead-letter queue, and will be redelivered all the same
        """
        async with _Reserved([message]):
            _check_held(message, boottime())
            await self._client.send_to_dlq(message)
        lost = await self.confirm([message])
        message.ack_state = AckState.DEAD
        if on_dead_letter is not None:
            on_dead_letter(message)
        if lost:
            raise AckError(lost.items())


@dataclass(eq=False)
class _BrokerAcks:
    """Acknowledgements for one broker."""

    confirming: list[PoppedMessage] = field(default_factory=list)  # by the current request
    waiting: list[PoppedMessage] = field(default_factory=list)
    ended: int = 0  # how many are confirmed or lost

    @property
    def unconfirmed(self) -> int:
        return len(self.confirming) + len(self.waiting)


class BackgroundAcks:
    """Acknowledges messages in the background, with one request per broker at a time.

    Messages added during a request share the next one.
    """

    def __init__(
        self,
        service: AckService,
        tasks: BackgroundTasks,
        *,
        on_lost: Callable[[PoppedMessage, RocketMQError], None],
        on_confirmed: Callable[[str], None] | None = None,
    ) -> None:
        self._service = service
        self._tasks = tasks
        self._on_lost = on_lost
        self._on_confirmed = on_confirmed
        self._brokers: dict[str, _BrokerAcks] = {}  # those with unconfirmed acknowledgements
        self._changed = asyncio.Event()

    def add(self, message: PoppedMessage) -> None:
        if message.ack_state is not AckState.HELD:
            return
        message.ack_state = AckState.ACKED
        broker_name = message.receipt.broker_name
        acks = self._brokers.get(broker_name)
        if acks is None:
            acks = self._brokers[broker_name] = _BrokerAcks()
            self._tasks.spawn(self._serve, broker_name, acks, name=f"acks-{broker_name}")
        acks.waiting.append(message)

    def has_room(self, broker_name: str) -> bool:
        """Return False while too many acknowledgements of a broker are unconfirmed."""
        acks = self._brokers.get(broker_name)
        return acks is None or acks.unconfirmed <= MAX_UNCONFIRMED

    async def wait_for_room(self, broker_name: str) -> None:
        while not self.has_room(broker_name):
            await self._change()

    async def flush(self) -> None:
        """Return when all acknowledgements added before are confirmed or lost."""
        until = [(acks, acks.ended + acks.unconfirmed) for acks in self._brokers.values()]
        while any(acks.ended < count for acks, count in until):
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _serve(self, broker_name: str, acks: _BrokerAcks) -> None:
        try:
            while acks.waiting:
                acks.confirming, acks.waiting = acks.waiting, []
                lost = await self._service.confirm(acks.confirming)
                acks.ended += len(acks.confirming)
                acks.confirming = []
                self._changed.set()
                if self._on_confirmed is not None:
                    self._on_confirmed(broker_name)
                for message, error in lost.items():
                    self._on_lost(message, error)
        finally:  # after a cancellation some are left
            del self._brokers[broker_name]
            acks.ended += acks.unconfirmed
            self._changed.set()
            for message in (*acks.confirming, *acks.waiting):
                self._on_lost(message, ReceiptError(message.message_id, CLOSED))


def _invalid_reason(message: PoppedMessage, now: float) -> str:
    return EXPIRED if message.is_expired(now) else message.invalid_reason


def _ended(messages: Iterable[PoppedMessage]) -> Iterator[tuple[PoppedMessage, ReceiptError]]:
    """Yield the messages that were given back or are dead letters, each with an error."""
    for message in messages:
        if message.ack_state in (AckState.RETURNED, AckState.DEAD):
            yield message, ReceiptError(message.message_id, f"it was {message.ack_state.value}")


def _check_held(message: PoppedMessage, now: float) -> None:
    if message.ack_state is not AckState.HELD:
        raise ReceiptError(message.message_id, f"it was {message.ack_state.value}")
    if reason := _invalid_reason(message, now):
        raise ReceiptError(message.message_id, reason)


class _Reserved:
    """Waits until no request for any of *messages* is pending; others wait for this one then."""

    __slots__ = ("_messages", "_pending")

    def __init__(self, messages: Sequence[PoppedMessage]) -> None:
        self._messages = messages

    async def __aenter__(self) -> None:
        while busy := next((m.pending for m in self._messages if m.pending is not None), None):
            await asyncio.shield(busy)
        self._pending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for message in self._messages:
            message.pending = self._pending

    async def __aexit__(self, *_: object) -> None:
        self._pending.set_result(None)
        for message in self._messages:
            message.pending = None
