"""TransactionProducer: messages that appear together with a change made elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import monotonic, time_ns
from typing import Final

import anyio
from msgspec.structs import replace

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.functions import check_function, is_async, name_of
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    ConfigError,
    HalfMessageError,
    NameServerUnavailableError,
    RocketMQError,
    RouteNotFoundError,
    SendUnknownError,
)
from rocketmq_aio.instance.hook_runner import AnySendHook
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue, SendResult, TransactionState
from rocketmq_aio.producer.careful import QueueChoice
from rocketmq_aio.producer.producer import Producer, checked_timeout
from rocketmq_aio.producer.send_request import SendRequest, check_sizes, outgoing
from rocketmq_aio.producer.topic_publish_info import QueueSelector, TopicPublishInfo
from rocketmq_aio.producer.transaction.checks import CheckFunction, TransactionChecks
from rocketmq_aio.producer.transaction.end_transaction import EndTransactionSender
from rocketmq_aio.producer.transaction.half_message import check_transactional, make_half, place_of
from rocketmq_aio.producer.transaction.transaction import HalfSend, Transaction, TransactionResult
from rocketmq_aio.producer.transaction.transaction_log import HalfMessage, TransactionLog
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.remoting.threads import run_in_thread

logger = get_logger(__name__)

LAST_SECONDS: Final = 5.0  # transactions that are under way at the close may end so long
MAX_CONCURRENCY: Final = 1000

Execute = Callable[[Transaction], Awaitable[object] | object]


class TransactionProducer(Producer[V]):
    """A producer whose messages can be part of a transaction.

    ::

        async with producer.transaction(Message("orders", b"42 is paid", keys="42")) as tx:
            await database.mark_paid(42, tx.message_id)

    Every member of the group must be able to answer for all of its transactions: a broker that did
    not hear how one ended asks whichever member is there.

    :param check: tells how a transaction ended, from what the application has stored; an ``async
        def`` or a plain function (run in a thread).  It is asked for what is not known here: after
        `Transaction.unknown` and for transactions of other members, also of dead ones
    :param check_concurrency: checks that may run at once
    :param topics: topics whose transactions it answers for from the start, before it sends any
    :param hooks: `SendHook`, `CheckForbiddenHook` and `EndTransactionHook` objects
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
        if type(check_concurrency) is not int or not 1 <= check_concurrency <= MAX_CONCURRENCY:
            reason = f"expected a whole number from 1 to {MAX_CONCURRENCY}"
            raise ConfigError("check_concurrency", check_concurrency, reason)
        if isinstance(topics, str):
            raise ConfigError("topics", topics, "expected several topics, not one string")
        super().__init__(group, namesrv=namesrv, client=client, config=config, hooks=hooks)
        self._answers_for = {check_topic(topic, setting="topics") for topic in topics}
        self._decisions = TransactionLog()
        self._endings = EndTransactionSender(self._instance, self._group, self._hooks)
        self._checks = TransactionChecks(
            check, self._instance, self._decisions, self._endings, check_concurrency
        )

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> Transaction:
        """Return a transaction around *message*, to be used with ``async with``.

        Entering it sends the half message, with the errors of `send`; the block does not run then.
        Leaving it tells the broker, and raises nothing of its own: a decision that could not be
        told (see `Transaction.result`) is asked for later.

        :param timeout_seconds: for the half message, default ``send_timeout_seconds``
        :raises InvalidMessageError: the message cannot be part of a transaction
        """
        seconds = self._config.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = checked_timeout(timeout_seconds)
        return Transaction(self, HalfSend(check_transactional(message), queue, selector, seconds))

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> TransactionResult:
        """Send *message* if *execute*, the local part, says COMMIT; return how it ended.

        *execute* takes the `Transaction`; it is an ``async def`` or a plain function (run in a
        thread).  What it raises rolls back and is raised here.  Anything but a `TransactionState`,
        such as None, is left to the check: a warning and the ``error`` of the result say so.

        :raises ConfigError: *execute* cannot be called so; nothing was sent
        :raises RocketMQError: as entering `transaction`; *execute* was not called
        """
        check_function("execute", execute, "transaction")
        chosen = self.transaction(
            message, queue=queue, selector=selector, timeout_seconds=timeout_seconds
        )
        async with chosen as running:
            said = await _executed(execute, running)
            wrong = None if running.is_decided else _wrong_state(execute, said)
            await running.decide(said)
        assert chosen.result is not None
        return chosen.result if wrong is None else replace(chosen.result, error=wrong)

    # --- for the instance and the transactions --------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Also those whose brokers may have to ask, however long ago something was sent there."""
        return {*super().topics(), *self._answers_for}

    def on_transaction_check(
        self, address: str, header: CheckTransactionState, message: MessageExt
    ) -> None:
        """The broker at *address* asks how the transaction of *message* ended."""
        message.codec = self._config.codec
        self._checks.receive(address, header, message)

    async def send_half(self, send: HalfSend) -> tuple[HalfMessage, SendResult]:
        """Send a half message; see `transaction`."""
        self._check_running()
        deadline = monotonic() + send.seconds
        context = self._context("transaction", send.message, send.queue)
        made: list[HalfMessage] = []

        async def run() -> SendResult:
            changed = replace(send, message=context.message)
            half, result = await self._send_half(changed, deadline)
            made.append(half)
            return result

        result = await self._hooks.around(context, run)
        return made[0], result

    async def _send_half(self, send: HalfSend, deadline: float) -> tuple[HalfMessage, SendResult]:
        size, topic = len(send.message.body), send.message.topic
        if not self._room.try_take(size):
            await self._wait_for_room(size, deadline, topic)
        try:
            publish = self._topics.get(topic)
            if publish is None:
                check_sizes(send.message, self._config)
                publish = await self._publish(topic, deadline)
            self._answers_for.add(topic)
            sent = self._aimed(send, publish)
            await self._introductions.introduce(sent.target.master, deadline)
            half = HalfMessage(sent.message_id, sent.topic)
            if self._endings.are_heard:
                half.message = send.message
            return await self._run(half, sent, publish, deadline)
        finally:
            self._room.give(size)

    async def end_half(self, half: HalfMessage, state: TransactionState) -> RocketMQError | None:
        """Tell the broker how it ended; see `EndTransactionSender.tell`."""
        self._decisions.make(half, state)
        try:
            deadline = monotonic() + self._config.send_timeout_seconds
            error = await self._endings.tell(half, deadline, message=half.message)
        finally:
            self._decisions.done(half)
        if error is not None:
            logger.warning(
                "transaction_not_confirmed",
                message_id=half.message_id,
                state=state.value,
                reason=str(error),
            )
        return error

    def leave_half(self, half: HalfMessage) -> None:
        """Leave it to the check."""
        self._endings.leave(half)
        self._decisions.done(half)

    # --- inside ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        await super()._open()
        for topic in self._answers_for:
            with suppress(RouteNotFoundError, NameServerUnavailableError):  # asked for again later
                await self._instance.routes.get(topic)
        # Now, for a broker may have been waiting for somebody of this group to ask.
        await self._instance.heartbeats.send_all()

    async def _shut(self) -> None:
        try:
            with anyio.move_on_after(LAST_SECONDS):
                await self._decisions.wait_until_idle()
        finally:
            self._checks.close()
        await super()._shut()

    def _aimed(self, send: HalfSend, publish: TopicPublishInfo) -> SendRequest:
        way = self._way(send.message, QueueChoice(send.queue, send.selector))
        now_ms = time_ns() // 1_000_000
        message_id = self._ids.next_id(now_ms)
        sent = outgoing(send.message, way.aim(publish), message_id, now_ms, self._config)
        sent.fixed = way.fixed
        make_half(sent, self._group)
        return sent

    async def _run(
        self, half: HalfMessage, sent: SendRequest, publish: TopicPublishInfo, deadline: float
    ) -> tuple[HalfMessage, SendResult]:
        self._decisions.begin(half)
        try:
            result = await self._attempts.run(sent, publish, deadline)
            half.stored(place_of(sent, result), result.transaction_id or sent.message_id)
        except BaseException as error:
            # The local part never runs: should a broker have it all the same, it hears so.
            if isinstance(error, SendUnknownError) or not isinstance(error, RocketMQError):
                self._decisions.make(half, TransactionState.ROLLBACK)
            self._decisions.done(half)
            raise
        if not result.ok:
            await self.end_half(half, TransactionState.ROLLBACK)
            raise HalfMessageError(result)
        return half, result


def _wrong_state(execute: Execute, said: object) -> ConfigError | None:
    """Return, and log, what is wrong with what the local part *said*, if it is no state."""
    if isinstance(said, TransactionState):
        return None
    name = name_of(execute)
    logger.warning("local_part_gave_no_state", function=name, answer=type(said).__name__)
    reason = f"it returned {said!r}, expected a TransactionState: it is left to the check"
    return ConfigError("execute", name, reason)


async def _executed(execute: Execute, running: Transaction) -> object:
    """Return what the local part says."""
    if is_async(execute):
        return await execute(running)  # type: ignore[misc]  # it is async
    try:
        return await run_in_thread(None, execute, running)
    except asyncio.CancelledError:
        # The thread goes on, and nobody hears how it ends.
        if running.result is None:
            running.unknown()
        raise
