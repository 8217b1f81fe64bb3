"""Transaction: a half message, a local transaction, a decision."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Coroutine
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

import anyio
import msgspec

from rocketmq_aio.errors import (
    CodecError,
    ConfigError,
    HalfMessageError,
    NotRunningError,
    RocketMQError,
    SendUnknownError,
)
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import SendResult, TransactionState
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.queue_selection import QueueChoice, Routing
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo
from rocketmq_aio.producer.transaction.end_transaction import EndTransactionSender
from rocketmq_aio.producer.transaction.half_message import (
    HalfMessage,
    check_transactional,
    half_properties,
    location_of,
    make_half,
)
from rocketmq_aio.producer.transaction.transaction_log import TransactionLog

logger = get_logger(__name__)

MAX_TOPICS: Final = 10_000  # of transactions, whose brokers may check at any later time


class TransactionResult(msgspec.Struct, frozen=True, gc=False):
    """The decision of a transaction, and whether its broker has confirmed it.

    A decision that is not *confirmed* is not lost: the broker checks, and this producer, or the
    ``check`` of another member of the group, replies with the same decision.
    """

    state: TransactionState
    confirmed: bool  # executed by the broker, or accepted by a proxy; False for UNKNOWN
    sent: SendResult  # of the half message
    error: RocketMQError | None = None  # why it is not confirmed or was left to the check

    @property
    def message_id(self) -> str:
        """The id of the message, as consumers see it."""
        return self.sent.message_id


class Transaction:
    """A transaction; made by `TransactionProducer.transaction`.

    Entering the block sends the half message, which consumers do not see.  The block is the local
    transaction.  Its end commits and an exception rolls back, unless `commit`, `rollback` or
    `unknown` was called before.
    """

    def __init__(
        self, half_sender: HalfMessageSender, message: Message, choice: QueueChoice, seconds: float
    ) -> None:
        self.message = message
        self._half_sender = half_sender
        self._choice = choice
        self._seconds = seconds
        self._half: HalfMessage | None = None
        self._sent: SendResult | None = None
        self._left_open = False
        self._result: TransactionResult | None = None

    @property
    def message_id(self) -> str:
        """The id of the message, as the check and consumers see it."""
        return self.sent.message_id

    @property
    def transaction_id(self) -> str:
        """The transaction id from the broker; the message id if it gave none."""
        return self._entered().transaction_id

    @property
    def sent(self) -> SendResult:
        """The result of the half message.

        :raises NotRunningError: it has not been sent yet
        """
        self._entered()
        assert self._sent is not None
        return self._sent

    @property
    def result(self) -> TransactionResult | None:
        """The result; None while the transaction is not decided."""
        return self._result

    @property
    def is_decided(self) -> bool:
        """Whether `commit`, `rollback` or `unknown` was called."""
        return self._result is not None or self._left_open

    async def commit(self) -> TransactionResult:
        """Commit the message; an exception later in the block does not change that.

        :raises ConfigError: another decision was made before
        """
        return await self._end(TransactionState.COMMIT)

    async def rollback(self) -> TransactionResult:
        """Roll the message back; errors as `commit`."""
        return await self._end(TransactionState.ROLLBACK)

    async def decide(self, state: object) -> None:
        """Decide *state* unless decided; anything but COMMIT or ROLLBACK leaves it to the check."""
        if self.is_decided:
            return
        if isinstance(state, TransactionState) and state is not TransactionState.UNKNOWN:
            await self._end(state)
        else:
            self.unknown()

    def unknown(self) -> None:
        """Leave the decision to the check, which the broker runs later.

        :raises ConfigError: another decision was made before
        """
        self._entered()
        if self._result is not None:
            raise self._conflict(TransactionState.UNKNOWN)
        self._left_open = True

    async def __aenter__(self) -> Self:
        if self._half is not None:
            raise NotRunningError("a transaction is entered once; make a new one")
        sending = self._half_sender.send(self.message, self._choice, self._seconds)
        self._half, self._sent = await sending
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._result is not None:
            return
        if self._left_open:
            self._half_sender.leave(self._entered())
            self._result = TransactionResult(TransactionState.UNKNOWN, False, self.sent)
        elif kind is None:
            await self._end(TransactionState.COMMIT)
        else:
            # Shielded, because the error may be a cancellation; `end` has a deadline of its own.
            with anyio.CancelScope(shield=True):
                await self._end(TransactionState.ROLLBACK)

    async def _end(self, state: TransactionState) -> TransactionResult:
        half, sent = self._entered(), self._sent
        if self._left_open:
            raise self._conflict(state)
        if self._result is None:
            assert sent is not None
            # Set before the request: if this call is cancelled, the decision stands.
            self._result = TransactionResult(state, False, sent)
            error = await self._half_sender.end(half, state)
            self._result = TransactionResult(state, error is None, sent, error)
        if self._result.state is not state:
            raise self._conflict(state)
        return self._result

    def _entered(self) -> HalfMessage:
        if self._half is None:
            raise NotRunningError("the half message is sent with `async with`")
        return self._half

    def _conflict(self, state: TransactionState) -> ConfigError:
        so_far = TransactionState.UNKNOWN if self._result is None else self._result.state
        return ConfigError("transaction", state.name, f"it is decided already: {so_far.name}")


class HalfMessageSender:
    """Sends the half messages of *group*, and the decisions about them.

    :ivar topics: those of half messages, at most `MAX_TOPICS`
    """

    def __init__(
        self,
        sender: Sender,
        group: str,
        hooks: SendHooks,
        log: TransactionLog,
        end_transaction: EndTransactionSender,
    ) -> None:
        self.topics: OrderedDict[str, None] = OrderedDict()
        self._sender = sender
        self._properties = half_properties(group)
        self._hooks = hooks
        self._log = log
        self._end_transaction = end_transaction

    async def send(
        self, message: Message, choice: QueueChoice, seconds: float
    ) -> tuple[HalfMessage, SendResult]:
        """Send a half message; if this raises, the local transaction must not run."""
        self._sender.check_running()
        deadline = monotonic() + seconds
        half = HalfMessage("", message.topic)

        def send(message: Message) -> Coroutine[Any, Any, SendResult]:
            # Again: hooks may have added the names of light message queues.
            routing = self._sender.selection.routing(check_transactional(message), choice)
            return self._sender.with_target(
                message.topic,
                message,
                routing.select_target,
                deadline,
                lambda publish, target: self._send(
                    half, message, routing, publish, target, deadline
                ),
            )

        return half, await self._hooks.around_message("transaction", message, choice.queue, send)

    async def end(self, half: HalfMessage, state: TransactionState) -> RocketMQError | None:
        """Send the decision; return why the broker has not confirmed it, if it has not."""
        self._log.decide(half, state)
        try:
            deadline = monotonic() + self._sender.config.send_timeout_seconds
            error = await self._end_transaction.send(half, deadline)
        finally:
            self._log.end(half)
        if error is not None:
            logger.warning(
                "transaction_not_confirmed",
                message_id=half.message_id,
                state=state.value,
                reason=str(error),
            )
        return error

    def leave(self, half: HalfMessage) -> None:
        self._end_transaction.leave(half)
        self._log.end(half)

    async def _send(
        self,
        half: HalfMessage,
        message: Message,
        routing: Routing,
        publish: TopicPublishInfo,
        target: SendTarget,
        deadline: float,
    ) -> SendResult:
        self.topics[message.topic] = None
        self.topics.move_to_end(message.topic)  # the last one sent to is the last
        if len(self.topics) > MAX_TOPICS:
            self.topics.popitem(last=False)
        request = self._sender.request_to(target, message, routing)
        make_half(request, self._properties)
        registration = self._sender.registration
        if not registration.is_registered(target.master):
            await registration.register(target.master, deadline)
        half.message_id = request.message_id
        if self._end_transaction.has_hooks:
            half.message = message
        self._log.begin(half)
        try:
            result = await self._sender.attempts.run(request, publish, deadline)
            half.on_stored(location_of(request, result), result.transaction_id or half.message_id)
        except BaseException as error:
            # The local transaction never runs: if a broker has the message, roll it back.
            may_be_stored = isinstance(error, SendUnknownError | CodecError)
            if may_be_stored or not isinstance(error, RocketMQError):
                self._log.decide(half, TransactionState.ROLLBACK)
            self._log.end(half)
            raise
        if not result.ok:
            await self.end(half, TransactionState.ROLLBACK)
            raise HalfMessageError(result)
        return result
