"""Half message sender: sends half messages and the decisions about them."""

from __future__ import annotations

from collections.abc import Coroutine
from time import monotonic
from typing import Any

import msgspec

from rocketmq_aio.errors import HalfMessageError, RocketMQError, SendUnknownError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendResult, TransactionState
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.queue_selection import QueueChoice
from rocketmq_aio.producer.send_request import SendRequest
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import QueueSelector, TopicPublishInfo
from rocketmq_aio.producer.transaction.end_transaction import EndTransactionSender
from rocketmq_aio.producer.transaction.half_message import HalfMessage, location_of, make_half
from rocketmq_aio.producer.transaction.transaction_log import TransactionLog

logger = get_logger(__name__)


class HalfSend(msgspec.Struct, frozen=True, gc=False):
    """The arguments of a transaction: the message, its queue, and the timeout of its send."""

    message: Message
    queue: MessageQueue | None
    selector: QueueSelector | None
    seconds: float


class HalfMessageSender:
    """Sends the half messages of *group*; for `Transaction`.

    :ivar topics: topics that half messages were sent to, or may be by other members
    """

    def __init__(
        self,
        sender: Sender,
        group: str,
        hooks: SendHooks,
        log: TransactionLog,
        end_transaction: EndTransactionSender,
    ) -> None:
        self.topics: set[str] = set()
        self._sender = sender
        self._group = group
        self._hooks = hooks
        self._log = log
        self._end_transaction = end_transaction

    async def send(self, half_send: HalfSend) -> tuple[HalfMessage, SendResult]:
        """Send a half message; if this raises, the local transaction must not run."""
        self._sender.check_running()
        deadline = monotonic() + half_send.seconds
        made: list[HalfMessage] = []

        def send(message: Message) -> Coroutine[Any, Any, SendResult]:
            return self._sender.with_route(
                message.topic,
                message,
                deadline,
                lambda publish: self._send(half_send, message, publish, deadline, made),
            )

        result = await self._hooks.around_message(
            "transaction", half_send.message, half_send.queue, send
        )
        return made[0], result

    async def end(self, half: HalfMessage, state: TransactionState) -> RocketMQError | None:
        """Send the decision; return why the broker has not confirmed it, if it has not."""
        self._log.decide(half, state)
        try:
            deadline = monotonic() + self._sender.config.send_timeout_seconds
            error = await self._end_transaction.send(half, deadline, message=half.message)
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
        """Leave the decision to the check."""
        self._end_transaction.leave(half)
        self._log.end(half)

    # --- inside ---------------------------------------------------------------------------------

    async def _send(
        self,
        half_send: HalfSend,
        message: Message,
        publish: TopicPublishInfo,
        deadline: float,
        made: list[HalfMessage],
    ) -> SendResult:
        self.topics.add(message.topic)
        choice = QueueChoice(half_send.queue, half_send.selector)
        routing = self._sender.selection.routing(message, choice)
        target = routing.select_target(publish)
        request = self._sender.request_to(target, message, routing)
        make_half(request, self._group)
        await self._sender.registration.ensure_registered(target.master, deadline)
        half = HalfMessage(request.message_id, request.topic)
        if self._end_transaction.has_hooks:
            half.message = message
        made.append(half)
        return await self._run(half, request, publish, deadline)

    async def _run(
        self, half: HalfMessage, request: SendRequest, publish: TopicPublishInfo, deadline: float
    ) -> SendResult:
        self._log.begin(half)
        try:
            result = await self._sender.attempts.run(request, publish, deadline)
            transaction_id = result.transaction_id or request.message_id
            half.on_stored(location_of(request, result), transaction_id)
        except BaseException as error:
            # The local transaction never runs: if a broker has the message, roll it back.
            if isinstance(error, SendUnknownError) or not isinstance(error, RocketMQError):
                self._log.decide(half, TransactionState.ROLLBACK)
            self._log.end(half)
            raise
        if not result.ok:
            await self.end(half, TransactionState.ROLLBACK)
            raise HalfMessageError(result)
        return result
