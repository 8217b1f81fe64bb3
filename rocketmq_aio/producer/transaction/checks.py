"""Transaction checks: replies to brokers with the state of transactions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final, TypeAlias, cast

import anyio

from rocketmq_aio.config.validation import is_async
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.end_transaction import EndTransactionSender
from rocketmq_aio.producer.transaction.half_message import (
    HalfMessage,
    HalfMessageLocation,
    PendingCheck,
)
from rocketmq_aio.producer.transaction.transaction_log import TransactionLog
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.remoting.background_tasks import call_isolated
from rocketmq_aio.remoting.threads import call_in_thread

logger = get_logger(__name__)

MAX_RUNNING: Final = 256  # checks; most of them wait for brokers to confirm the reply
# Checks beyond it are dropped.  The broker repeats them, but discards a transaction after 15: a
# slow check function needs as many as it can work off until they are repeated.
MAX_WAITING: Final = 10_000
MAX_HELD_BYTES: Final = 64 * 1024 * 1024  # of their bodies; the same
CHECK_SECONDS: Final = 60.0  # a longer check results in UNKNOWN
REPLY_SECONDS: Final = 3.0

CheckFunction: TypeAlias = Callable[[MessageExt[V]], Awaitable[TransactionState] | TransactionState]
"""`check`: takes a half message, returns the state of its transaction; plain or async."""


class TransactionChecks:
    """Replies to checks, with up to *concurrency* concurrent calls of the application.

    The application is not called for transactions that were decided here.  A check function that
    fails, times out or returns anything but a `TransactionState` results in UNKNOWN: the broker
    checks again.  A plain function that hangs keeps its thread, of which there are *concurrency*.
    """

    def __init__(
        self,
        check: CheckFunction,
        instance: MQClientInstance,
        log: TransactionLog,
        end_transaction: EndTransactionSender,
        concurrency: int,
    ) -> None:
        self.dropped = 0
        self._check = check
        self._is_async = is_async(check)
        self._instance = instance
        self._log = log
        self._end_transaction = end_transaction
        self._concurrency = concurrency
        self._calls = asyncio.Semaphore(concurrency)
        self._latest: dict[str, PendingCheck] = {}  # by message id: waiting and running ones
        self._held_bytes = 0
        self._waiting: deque[str] = deque()
        self._workers = 0
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    def receive(self, address: str, header: CheckTransactionState, message: MessageExt) -> None:
        """Queue a check by the broker at *address*."""
        if self._closed:
            return
        message_id = message.message_id
        location = HalfMessageLocation(
            address, header.broker_name, header.tran_state_table_offset, header.commit_log_offset
        )
        if (half := self._log.find(message_id)) is not None:
            half.on_check(location)
        known = message_id in self._latest
        held = len(self._latest[message_id].message.body) if known else 0
        held_bytes = self._held_bytes - held + len(message.body)
        if (not known and len(self._latest) >= MAX_WAITING) or held_bytes > MAX_HELD_BYTES:
            self.dropped += 1
            return
        self._held_bytes = held_bytes
        self._latest[message_id] = PendingCheck(
            message, location, header.transaction_id or message_id, monotonic()
        )
        if known:
            return  # repeated by the broker: the reply goes to the new location
        self._waiting.append(message_id)
        if self._workers < MAX_RUNNING:
            self._workers += 1
            self._instance.tasks.spawn(self._work, name="transaction-checks")

    def close(self) -> None:
        """Drop all checks, waiting and later ones: brokers repeat them at other members."""
        self._closed = True
        for message_id in self._waiting:
            self._remove(message_id)
        self._waiting.clear()
        if self._threads is not None:  # a running check is not interrupted
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _remove(self, message_id: str) -> PendingCheck:
        check = self._latest.pop(message_id)
        self._held_bytes -= len(check.message.body)
        return check

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._check_one(self._waiting.popleft())
        finally:
            self._workers -= 1

    async def _check_one(self, message_id: str) -> None:
        is_copy = False
        try:
            half = self._log.find(message_id)
            if half is None:
                async with self._calls:
                    if self._closed:
                        return
                    state = await self._call_check(self._latest[message_id].message)
                check = self._latest[message_id]  # maybe a repeated one, with a new location
                topic = check.message.topic
                half = HalfMessage(message_id, topic, check.transaction_id, check.location)
            elif (state := half.decision()) is TransactionState.COMMIT:
                is_copy = await self._is_copy(half)
                if self._end_transaction.may_be_committed(half, self._latest[message_id]):
                    state = TransactionState.UNKNOWN
        finally:
            check = self._remove(message_id)
        if is_copy:
            # Another commit would store the message a second time.
            await self._end_transaction.discard(half, check.location)
        elif state is TransactionState.UNKNOWN:
            await self._end_transaction.send_unknown(half, check)
        else:
            self._log.decide(half, state)
            cause = await self._end_transaction.send(half, monotonic() + REPLY_SECONDS, check)
            if cause is not None:
                logger.info(
                    "transaction_check_response_not_sent", message_id=message_id, reason=str(cause)
                )

    async def _is_copy(self, half: HalfMessage) -> bool:
        """Whether the check is about a copy of a half message that the broker has committed.

        A broker stores a half message again before each check, possibly during its commit.
        """
        while True:
            location = self._latest[half.message_id].location
            has_commit = await self._end_transaction.has_commit(half, location)
            if self._latest[half.message_id].location.address == location.address:
                return has_commit
            # Another broker has checked meanwhile, and gets the reply.

    async def _call_check(self, message: MessageExt) -> TransactionState:
        state: object = None
        try:
            with anyio.move_on_after(CHECK_SECONDS) as scope:
                state = await call_isolated(self._run_function, message)
            if scope.cancelled_caught:
                logger.warning("transaction_check_too_slow", message_id=message.message_id)
        except Exception:  # the application's code: the broker checks again
            logger.exception("transaction_check_failed", message_id=message.message_id)
        else:
            if not isinstance(state, TransactionState) and not scope.cancelled_caught:
                logger.error("transaction_check_without_state", answer=type(state).__name__)
        return state if isinstance(state, TransactionState) else TransactionState.UNKNOWN

    async def _run_function(self, message: MessageExt) -> object:
        if self._is_async:
            return await cast("Awaitable[object]", self._check(message))
        if self._threads is None:
            name = "transaction-check"
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix=name)
        return await call_in_thread(self._threads, self._check, message)
