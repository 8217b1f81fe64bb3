"""One transaction: a half message, a local part, a decision."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

import anyio
import msgspec

from rocketmq_aio.errors import ConfigError, NotRunningError, RocketMQError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendResult, TransactionState
from rocketmq_aio.producer.topic_publish_info import QueueSelector
from rocketmq_aio.producer.transaction.transaction_log import HalfMessage


class TransactionResult(msgspec.Struct, frozen=True, gc=False):
    """How a transaction ended, and whether its broker knows already.

    A decision that is not *confirmed* is not lost: the broker asks, and this producer, or the check
    of another member of the group, answers with the same decision.
    """

    state: TransactionState
    confirmed: bool  # the broker has done it, or a proxy accepted it; never of UNKNOWN
    sent: SendResult  # of the half message
    error: RocketMQError | None = None  # why it is not confirmed, or was left to the check

    @property
    def message_id(self) -> str:
        """The id of the message, which consumers see too."""
        return self.sent.message_id


class HalfSend(msgspec.Struct, frozen=True, gc=False):
    """A message that is to be sent as a half message, where to, and how long that may take."""

    message: Message
    queue: MessageQueue | None
    selector: QueueSelector | None
    seconds: float


class Halves(Protocol):
    """What a transaction needs of its producer."""

    async def send_half(self, send: HalfSend) -> tuple[HalfMessage, SendResult]:
        """Send the half message; whatever it raises, the local part may not run."""
        ...

    async def end_half(self, half: HalfMessage, state: TransactionState) -> RocketMQError | None:
        """Tell the broker; return why it has not confirmed, if it has not."""
        ...

    def leave_half(self, half: HalfMessage) -> None:
        """Leave it to the check."""
        ...


class Transaction:
    """A transaction from its half message to its end; made by `TransactionProducer.transaction`.

    Entering the block sends the half message, which consumers do not see.  The block is the local
    part.  Its normal end commits, an exception rolls back and goes on, unless `commit`, `rollback`
    or `unknown` was called before.
    """

    def __init__(self, halves: Halves, send: HalfSend) -> None:
        self._halves = halves
        self._send = send
        self._half: HalfMessage | None = None
        self._sent: SendResult | None = None
        self._left_open = False
        self._result: TransactionResult | None = None

    @property
    def message(self) -> Message:
        """What it is about."""
        return self._send.message

    @property
    def message_id(self) -> str:
        """The id of the message, which the check and consumers see too."""
        return self.sent.message_id

    @property
    def transaction_id(self) -> str:
        """The id that the broker gave the transaction; the message id where it gave none."""
        return self._begun().transaction_id

    @property
    def sent(self) -> SendResult:
        """What the broker answered to the half message.

        :raises NotRunningError: it has not been sent yet
        """
        self._begun()
        assert self._sent is not None
        return self._sent

    @property
    def result(self) -> TransactionResult | None:
        """How it ended; None while it is not decided."""
        return self._result

    @property
    def is_decided(self) -> bool:
        """Whether `commit`, `rollback` or `unknown` was called."""
        return self._result is not None or self._left_open

    async def commit(self) -> TransactionResult:
        """Let consumers have the message; what follows in the block cannot change that.

        :raises ConfigError: it is decided otherwise already
        """
        return await self._end(TransactionState.COMMIT)

    async def rollback(self) -> TransactionResult:
        """Take the message back; errors as `commit`."""
        return await self._end(TransactionState.ROLLBACK)

    async def decide(self, state: object) -> None:
        """End it as *state* says, unless it is ended: what is no state leaves it to the check."""
        if self.is_decided:
            return
        if state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            await self._end(TransactionState(state))
        else:
            self.unknown()

    def unknown(self) -> None:
        """Leave the decision to the check, which the broker asks for later.

        :raises ConfigError: it is decided already
        """
        self._begun()
        if self._result is not None:
            raise self._decided(TransactionState.UNKNOWN)
        self._left_open = True

    async def __aenter__(self) -> Self:
        if self._half is not None:
            raise NotRunningError("a transaction is entered once; make a new one")
        self._half, self._sent = await self._halves.send_half(self._send)
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
            self._leave_open()
        elif kind is None:
            await self._end(TransactionState.COMMIT)
        else:
            # Also when it is a cancellation: this is bounded by the deadline of the decision.
            with anyio.CancelScope(shield=True):
                await self._end(TransactionState.ROLLBACK)

    async def _end(self, state: TransactionState) -> TransactionResult:
        half = self._begun()
        if self._left_open:
            raise self._decided(state)
        if self._result is None:
            # Said before it is told: whoever is cancelled here has decided all the same.
            self._result = TransactionResult(state, False, self.sent)
            error = await self._halves.end_half(half, state)
            self._result = TransactionResult(state, error is None, self.sent, error)
        if self._result.state is not state:
            raise self._decided(state)
        return self._result

    def _leave_open(self) -> None:
        self._halves.leave_half(self._begun())
        self._result = TransactionResult(TransactionState.UNKNOWN, False, self.sent)

    def _begun(self) -> HalfMessage:
        if self._half is None:
            raise NotRunningError("the half message is sent with `async with`")
        return self._half

    def _decided(self, state: TransactionState) -> ConfigError:
        so_far = TransactionState.UNKNOWN if self._result is None else self._result.state
        return ConfigError("transaction", state.name, f"it is decided already: {so_far.name}")
