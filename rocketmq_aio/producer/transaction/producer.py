"""TransactionProducer: a producer with transactional messages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import Final

import anyio
from msgspec.structs import replace

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.config.validation import (
    check_function,
    checked_count,
    checked_seconds,
    checked_several,
    is_async,
    name_of,
)
from rocketmq_aio.errors import ConfigError, NameServerUnavailableError, RouteNotFoundError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.hook_runner import AnySendHook
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.errors import repr_of
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue, TransactionState
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.queue_selection import NO_CHOICE, QueueChoice
from rocketmq_aio.producer.topic_publish_info import QueueSelector
from rocketmq_aio.producer.transaction.checks import CheckFunction, TransactionChecks
from rocketmq_aio.producer.transaction.end_transaction import EndTransactionSender
from rocketmq_aio.producer.transaction.half_message import check_transactional
from rocketmq_aio.producer.transaction.transaction import (
    HalfMessageSender,
    Transaction,
    TransactionResult,
)
from rocketmq_aio.producer.transaction.transaction_log import TransactionLog
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.remoting.threads import run_in_thread

logger = get_logger(__name__)

CLOSE_SECONDS: Final = 5.0  # the longest that `close` waits for transactions in progress
MAX_CONCURRENCY: Final = 1000

Execute = Callable[[Transaction], Awaitable[object] | object]


class TransactionProducer(Producer[V]):
    """A producer with transactional messages.

    ::

        async with producer.transaction(Message("orders", b"42 is paid", keys="42")) as tx:
            await database.mark_paid(42, tx.message_id)

    Every member of the group must be able to check all transactions of the group: a broker
    without a decision sends the check to any connected member.

    :param check: returns the state of a transaction, from what the application has stored; an
        ``async def`` or a plain function (run in a thread).  It is called for transactions that
        were not decided here: after `Transaction.unknown`, and for those of other members
    :param check_concurrency: concurrent calls of *check*
    :param topics: topics whose transactions are checked from the start, before it sends to them
    :param hooks: `SendHook`, `CheckForbiddenHook` and `EndTransactionHook` objects
    :raises ConfigError: an argument is invalid
    """

    def __init__(
        self,
        group: str,
        *,
        check: CheckFunction[V],
        namesrv: str | None = None,
        client: MQClientInstance | ClientConfig | None = None,
        config: ProducerConfig[V] | None = None,
        check_concurrency: int = 16,
        topics: Iterable[str] = (),
        hooks: Iterable[AnySendHook] = (),
    ) -> None:
        check_function("check", check, "message")
        checked_count("check_concurrency", check_concurrency, most=MAX_CONCURRENCY)
        topics = checked_several("topics", topics)
        super().__init__(group, namesrv=namesrv, client=client, config=config, hooks=hooks)
        group = self._group
        self._log = TransactionLog()
        end_transaction = EndTransactionSender(self._instance, group, self._log, self._hooks)
        self._half_sender = HalfMessageSender(
            self._sender, group, self._hooks, self._log, end_transaction
        )
        self._own_topics = {check_topic(topic, setting="topics") for topic in topics}
        self._checks = TransactionChecks(
            check, self._instance, self._log, end_transaction, check_concurrency
        )

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> Transaction:
        """Return the transaction of *message*, to be used with ``async with``.

        Entering it sends the half message and raises the errors of `send`; the block does not run
        then.  Leaving it sends the decision and raises no errors of its own: the broker checks a
        decision that it did not get (see `Transaction.result`).

        :param timeout_seconds: for the half message, default ``send_timeout_seconds``
        :raises InvalidMessageError: the message cannot be part of a transaction
        """
        seconds = self._config.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = checked_seconds("timeout_seconds", timeout_seconds)
        is_given = queue is not None or selector is not None
        choice = QueueChoice(queue, selector) if is_given else NO_CHOICE
        return Transaction(self._half_sender, check_transactional(message), choice, seconds)

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> TransactionResult:
        """Run *execute*, the local transaction, and commit *message* if it returns COMMIT.

        *execute* takes the `Transaction`; it is an ``async def`` or a plain function (run in a
        thread; what it returns is awaited, if possible).  If it raises, the message is rolled back
        and the error raised here.  A cancellation cannot stop a plain function:
        if one is running, the decision is left to the check.  So it is if *execute* returns
        anything but a `TransactionState`, such as None: a warning is logged and the result has an
        ``error``.

        :raises ConfigError: *execute* does not take one argument; nothing was sent
        :raises RocketMQError: as entering `transaction`; *execute* was not called
        """
        check_function("execute", execute, "transaction")
        transaction = self.transaction(
            message, queue=queue, selector=selector, timeout_seconds=timeout_seconds
        )
        async with transaction:
            state = await _execute(execute, transaction)
            error = None if transaction.is_decided else _state_error(execute, state)
            await transaction.decide(state)
        assert transaction.result is not None
        return transaction.result if error is None else replace(transaction.result, error=error)

    # --- for the instance -----------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Also topics of transactions, because their brokers may check at any later time."""
        return {*super().topics(), *self._own_topics, *self._half_sender.topics}

    def on_transaction_check(
        self, address: str, header: CheckTransactionState, message: MessageExt
    ) -> None:
        """Reply to the check of *message* by the broker at *address*."""
        message.codec = self._config.codec
        self._checks.receive(address, header, message)

    async def _open(self) -> None:
        await super()._open()
        for topic in self._own_topics:
            with suppress(RouteNotFoundError, NameServerUnavailableError):  # requested again later
                await self._instance.routes.get(topic)
        # At once, because a broker may be waiting for a member of this group to check.
        await self._instance.heartbeats.send_all(self.group)

    async def _shut(self) -> None:
        try:
            with anyio.move_on_after(CLOSE_SECONDS):
                await self._log.wait_until_idle()
        finally:  # also when that takes longer than a close may
            self._checks.close()
            await super()._shut()


def _state_error(execute: Execute, state: object) -> ConfigError | None:
    """Log and return the error for a *state* that is not a `TransactionState`."""
    if isinstance(state, TransactionState):
        return None
    name = name_of(execute)
    logger.warning("local_transaction_without_state", function=name, answer=type(state).__name__)
    reason = f"it returned {repr_of(state)}, expected a TransactionState: it is left to the check"
    return ConfigError("execute", name, reason)


async def _execute(execute: Execute, transaction: Transaction) -> object:
    if is_async(execute):
        return await execute(transaction)  # type: ignore[misc]  # it is async
    turn = Lock()  # of the thread, or of a cancellation before its start

    def run(transaction: Transaction) -> object:
        return execute(transaction) if turn.acquire(blocking=False) else None

    try:
        state = await run_in_thread(None, run, transaction)
    except asyncio.CancelledError:
        if not turn.acquire(blocking=False) and transaction.result is None:
            transaction.unknown()  # the thread goes on, and its result is lost
        raise
    return await state if inspect.isawaitable(state) else state  # of a lambda, for example
