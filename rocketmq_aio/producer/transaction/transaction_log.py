"""How transactions ended, as far as this producer knows: what checks of brokers are answered."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState

MOST: Final = 20_000  # decisions kept; older ones the application's check has to know


class HalfMessageLocation(msgspec.Struct, frozen=True, gc=False):
    """Where a half message lies; a broker stores it anew, elsewhere, before it asks about it."""

    address: str
    broker_name: str | None
    table_offset: int
    log_offset: int


class HalfMessage(msgspec.Struct, gc=False, eq=False):
    """A half message and what is known of it.

    :ivar state: None while the local part runs
    :ivar place: where it is, as the send or a later check told; None before either did
    :ivar confirmed: the address that last confirmed the decision, and the number of the connection
    :ivar ending: the decision is on its way
    :ivar asked: where the broker that asked last has it
    :ivar message: what it is about, for hooks; None once nothing more is done for it here
    """

    message_id: str
    topic: str
    transaction_id: str = ""
    place: HalfMessageLocation | None = None
    state: TransactionState | None = None
    confirmed: tuple[str, int] | None = None
    ending: bool = False
    asked: HalfMessageLocation | None = None
    message: Message | MessageExt | None = None

    def stored(self, place: HalfMessageLocation, transaction_id: str) -> None:
        """The send was answered; a check that came before knows a newer place."""
        self.transaction_id = transaction_id
        if self.asked is not None and self.asked.address == place.address:
            place = self.asked
        self.place = place

    def asked_from(self, place: HalfMessageLocation) -> None:
        """A broker asks: the message has moved.

        A broker that is not the one that accepted it has a copy from an attempt that was repeated
        elsewhere, which is settled by itself.
        """
        self.asked = place
        if self.place is not None and self.place.address == place.address:
            self.place = place

    def answer(self) -> TransactionState:
        """Return the decision, UNKNOWN while there is none or its request is under way."""
        return TransactionState.UNKNOWN if self.state is None or self.ending else self.state


class TransactionLog:
    """The transactions that are under way here, and those that were decided here lately."""

    def __init__(self, most: int = MOST) -> None:
        self._under_way: dict[str, HalfMessage] = {}
        self._made: dict[str, HalfMessage] = {}
        self._most = most
        self._idle: asyncio.Future[None] | None = None

    def begin(self, half: HalfMessage) -> None:
        """The half message is about to be sent."""
        self._under_way[half.message_id] = half

    def make(self, half: HalfMessage, state: TransactionState) -> None:
        """The transaction is decided, which the broker is about to hear."""
        half.state = state
        self._made[half.message_id] = half
        if len(self._made) > self._most:
            del self._made[next(iter(self._made))]

    def done(self, half: HalfMessage) -> None:
        """Nothing more is done for it here, unless a broker asks."""
        self._under_way.pop(half.message_id, None)
        half.message = None  # thousands of decisions are kept, and bodies may be large
        if self._idle is not None and not self._under_way and not self._idle.done():
            self._idle.set_result(None)

    def find(self, message_id: str) -> HalfMessage | None:
        """Return what is known here, if anything."""
        return self._under_way.get(message_id) or self._made.get(message_id)

    async def wait_until_idle(self) -> None:
        """Return when no transaction is under way."""
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
