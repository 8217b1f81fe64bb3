"""Checks: a broker asks how a transaction ended, and the producer or the application answers."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import anyio
import msgspec

from rocketmq_aio.functions import is_async
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.message import MessageExt
from rocketmq_aio.producer.decisions import Decisions, Half, Place, TransactionState
from rocketmq_aio.producer.endings import Endings
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState

logger = get_logger(__name__)

MAX_WAITING: Final = 2000  # what is dropped beyond it is asked again
CHECK_SECONDS: Final = 60.0  # longer than that for a check counts as "unknown"
ANSWER_SECONDS: Final = 3.0

CheckFunction = Callable[[MessageExt], Awaitable[TransactionState] | TransactionState]


class Asked(msgspec.Struct, gc=False, eq=False):
    """The newest check about a message."""

    message: MessageExt
    place: Place
    transaction_id: str


class TransactionChecks:
    """Answers the checks of brokers; *concurrency* of them at once, the others wait in line.

    What was decided here is answered without the application.  A check that fails, takes too long
    or gives anything but a `TransactionState` means "unknown": the broker asks again.
    """

    def __init__(
        self,
        check: CheckFunction,
        instance: MQClientInstance,
        decisions: Decisions,
        endings: Endings,
        concurrency: int,
    ) -> None:
        self.dropped = 0
        self._check = check
        self._is_async = is_async(check)
        self._instance = instance
        self._decisions = decisions
        self._endings = endings
        self._concurrency = concurrency
        self._newest: dict[str, Asked] = {}  # all that wait or are being answered
        self._waiting: deque[str] = deque()
        self._workers = 0
        self._threads: anyio.CapacityLimiter | None = None

    def receive(self, address: str, header: CheckTransactionState, message: MessageExt) -> None:
        """Take a check of the broker at *address*; never blocks."""
        message_id = message.message_id
        place = Place(
            address, header.broker_name, header.tran_state_table_offset, header.commit_log_offset
        )
        if (half := self._decisions.find(message_id)) is not None:
            half.asked_from(place)
        known = message_id in self._newest
        if not known and len(self._newest) >= MAX_WAITING:
            self.dropped += 1
            return
        self._newest[message_id] = Asked(message, place, header.transaction_id or message_id)
        if known:
            return  # the broker asks again; the answer that is being found goes to the new place
        self._waiting.append(message_id)
        if self._workers < self._concurrency:
            self._workers += 1
            self._instance.host.spawn(self._work, name="transaction-checks")

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._answer(self._waiting.popleft())
        finally:
            self._workers -= 1

    async def _answer(self, message_id: str) -> None:
        try:
            half = self._decisions.find(message_id)
            if half is None:
                state = await self._ask_application(self._newest[message_id].message)
                # Another check may have come meanwhile, and moved the message once more.
                half = self._decided(message_id, state)
            else:
                state = half.answer(self._instance.connects)
            asked = self._newest[message_id]
            if self._endings.are_heard:
                half.message = asked.message
        finally:
            del self._newest[message_id]
        await self._tell(half, asked.place, state)

    def _decided(self, message_id: str, state: TransactionState) -> Half:
        asked = self._newest[message_id]
        half = Half(message_id, asked.message.topic, asked.transaction_id, asked.place)
        if state is not TransactionState.UNKNOWN:
            self._decisions.make(half, state)
        return half

    async def _tell(self, half: Half, place: Place, state: TransactionState) -> None:
        if state is TransactionState.UNKNOWN:
            await self._endings.leave_open(half, place)
            return
        deadline = monotonic() + ANSWER_SECONDS
        if (cause := await self._endings.tell(half, deadline, asked=place)) is not None:
            logger.info(
                "transaction_check_not_answered", message_id=half.message_id, reason=str(cause)
            )

    async def _ask_application(self, message: MessageExt) -> TransactionState:
        answer: object = None
        try:
            with anyio.move_on_after(CHECK_SECONDS) as scope:
                answer = await self._call(message)
            if scope.cancelled_caught:
                logger.warning("transaction_check_too_slow", message_id=message.message_id)
        except Exception:  # the application's code: it is asked again
            logger.exception("transaction_check_failed", message_id=message.message_id)
        else:
            if not isinstance(answer, TransactionState) and not scope.cancelled_caught:
                logger.error("transaction_check_gave_no_state", answer=type(answer).__name__)
        return answer if isinstance(answer, TransactionState) else TransactionState.UNKNOWN

    async def _call(self, message: MessageExt) -> object:
        if self._is_async:
            answer: object = self._check(message)
        else:
            if self._threads is None:
                self._threads = anyio.CapacityLimiter(self._concurrency)
            answer = await anyio.to_thread.run_sync(
                self._check, message, abandon_on_cancel=True, limiter=self._threads
            )
        return await answer if inspect.isawaitable(answer) else answer
