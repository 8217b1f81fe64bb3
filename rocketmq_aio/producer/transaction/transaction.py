"""Transaction: a half message, a local transaction, a decision."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio
import msgspec

from rocketmq_aio.errors import ConfigError, NotRunningError, RocketMQError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import SendResult, TransactionState
from rocketmq_aio.producer.transaction.half_message import HalfMessage
from rocketmq_aio.producer.transaction.half_sender import HalfMessageSender, HalfSend


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

    def __init__(self, half_sender: HalfMessageSender, half_send: HalfSend) -> None:
        self._half_sender = half_sender
        self._half_send = half_send
        self._half: HalfMessage | None = None
        self._sent: SendResult | None = None
        self._left_open = False
        self._result: TransactionResult | None = None

    @property
    def message(self) -> Message:
        """The message."""
        return self._half_send.message

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
        if state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            await self._end(TransactionState(state))
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
        self._half, self._sent = await self._half_sender.send(self._half_send)
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
        half = self._entered()
        if self._left_open:
            raise self._conflict(state)
        if self._result is None:
            # Set before the request: if this call is cancelled, the decision stands.
            self._result = TransactionResult(state, False, self.sent)
            error = await self._half_sender.end(half, state)
            self._result = TransactionResult(state, error is None, self.sent, error)
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
