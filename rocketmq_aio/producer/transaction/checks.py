"""Checks: a broker asks how a transaction ended, and the producer or the application answers."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final, TypeAlias

import anyio
import msgspec

from rocketmq_aio.config.functions import is_async
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.end_transaction import EndTransactionSender
from rocketmq_aio.producer.transaction.transaction_log import (
    HalfMessage,
    HalfMessageLocation,
    TransactionLog,
)
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.remoting.background_tasks import call_isolated
from rocketmq_aio.remoting.threads import run_in_thread

logger = get_logger(__name__)

MAX_WAITING: Final = 2000  # what is dropped beyond it is asked again
CHECK_SECONDS: Final = 60.0  # longer than that for a check counts as "unknown"
ANSWER_SECONDS: Final = 3.0

CheckFunction: TypeAlias = Callable[[MessageExt[V]], Awaitable[TransactionState] | TransactionState]
"""`check`: takes a half message, returns how its transaction ended; plain or async."""


class Asked(msgspec.Struct, gc=False, eq=False):
    """The newest check about a message."""

    message: MessageExt
    place: HalfMessageLocation
    transaction_id: str


class TransactionChecks:
    """Answers the checks of brokers; *concurrency* of them at once, the others wait in line.

    What was decided here is answered without the application.  A check that fails, takes too long
    or gives anything but a `TransactionState` means "unknown": the broker asks again.  A plain
    check that hangs keeps its thread: there are *concurrency* of them, and no more.
    """

    def __init__(
        self,
        check: CheckFunction,
        instance: MQClientInstance,
        decisions: TransactionLog,
        endings: EndTransactionSender,
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
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    def receive(self, address: str, header: CheckTransactionState, message: MessageExt) -> None:
        """Take a check of the broker at *address*; never blocks."""
        if self._closed:
            return
        message_id = message.message_id
        place = HalfMessageLocation(
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

    def close(self) -> None:
        """Drop the checks that wait, and take no more: brokers ask other members of the group."""
        self._closed = True
        for message_id in self._waiting:
            del self._newest[message_id]
        self._waiting.clear()
        if self._threads is not None:  # a thread ends when its check has ended
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._answer(self._waiting.popleft())
        finally:
            self._workers -= 1

    async def _answer(self, message_id: str) -> None:
        is_copy = False
        try:
            half = self._decisions.find(message_id)
            if half is None:
                state = await self._ask_application(self._newest[message_id].message)
                # Another check may have come meanwhile, and moved the message once more.
                half = self._decided(message_id, state)
            elif (state := half.answer()) is TransactionState.COMMIT:
                is_copy = await self._is_copy(half)
        finally:
            asked = self._newest.pop(message_id)
        if is_copy:
            # Another commit would be stored as a second message.
            await self._endings.discard(half, asked.place)
        else:
            await self._tell(half, asked, state)

    async def _is_copy(self, half: HalfMessage) -> bool:
        """Return whether the check is about a copy of a message that the broker has committed.

        A broker stores a message anew before it checks it, also one that is just being committed.
        """
        place = self._newest[half.message_id].place
        has_commit = await self._endings.has_commit(half, place)
        return has_commit and self._newest[half.message_id].place.address == place.address

    def _decided(self, message_id: str, state: TransactionState) -> HalfMessage:
        asked = self._newest[message_id]
        half = HalfMessage(message_id, asked.message.topic, asked.transaction_id, asked.place)
        if state is not TransactionState.UNKNOWN:
            self._decisions.make(half, state)
        return half

    async def _tell(self, half: HalfMessage, asked: Asked, state: TransactionState) -> None:
        if state is TransactionState.UNKNOWN:
            await self._endings.leave_open(half, asked.place, asked.message)
            return
        deadline = monotonic() + ANSWER_SECONDS
        cause = await self._endings.tell(half, deadline, asked=asked.place, message=asked.message)
        if cause is not None:
            logger.info(
                "transaction_check_not_answered", message_id=half.message_id, reason=str(cause)
            )

    async def _ask_application(self, message: MessageExt) -> TransactionState:
        answer: object = None
        try:
            with anyio.move_on_after(CHECK_SECONDS) as scope:
                answer = await call_isolated(self._call, message)
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
                name = "transaction-check"
                self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix=name)
            answer = await run_in_thread(self._threads, self._check, message)
        return await answer if inspect.isawaitable(answer) else answer
