"""Telling brokers how transactions ended."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from msgspec.structs import replace

from rocketmq_aio.errors import (
    BrokerError,
    BusyError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.hooks import EndTransactionContext
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.transaction.transaction_log import HalfMessage, HalfMessageLocation
from rocketmq_aio.protocol.codes import (
    MASTER_ID,
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    ResponseCode,
)
from rocketmq_aio.protocol.requests.transactions import EndTransaction
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)

FLAGS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}
LEAST_SECONDS: Final = 0.001
NEVER_LEFT: Final = (NotConnectedError, BusyError)
MAY_HAVE_ARRIVED: Final = (ConnectionLostError, RequestTimeoutError)
PROBE_SECONDS: Final = 3.0
NO_SUCH_OFFSET: Final = 2**62  # beyond the end of every commit log
NO_SUCH_ID: Final = "0" * 32
# How brokers refuse to end a transaction that they do not have: code 1, on 4.9.7 and 5.5.0.
NOT_FOUND: Final = "Find prepared transaction message failed"


class EndTransactionSender:
    """Sends decisions of a producer *group* and waits for the brokers' yes; *hooks* hear of it."""

    def __init__(self, instance: MQClientInstance, group: str, hooks: SendHooks) -> None:
        self._instance = instance
        self._group = group
        self._hooks = hooks
        self.are_heard = hooks.hear_endings
        # Whether the peer refuses what it does not know: (number of the connection, verdict)
        self._examined: dict[str, tuple[int, bool]] = {}

    async def tell(
        self,
        half: HalfMessage,
        deadline: float,
        *,
        asked: HalfMessageLocation | None = None,
        message: Message | MessageExt | None = None,
    ) -> RocketMQError | None:
        """Tell the broker what *half*'s state is; return why that is not confirmed, if it is not.

        Tried again until *deadline* while the broker surely did not act.  A commit that may have
        arrived is not sent twice: a broker stores the message again with each one, and asks by
        itself when it did not get it.

        :param asked: where it is, if this answers a check
        :param message: what it is about, for hooks
        """
        started = monotonic()
        cause: BaseException | None = None
        try:
            cause = refused = await self._tell(half, deadline, asked)
        except BaseException as error:
            cause = error
            raise
        finally:
            self._ended(half, message, asked, half.state, error=cause, started=started)
        return refused

    async def _tell(
        self, half: HalfMessage, deadline: float, asked: HalfMessageLocation | None
    ) -> RocketMQError | None:
        assert half.state is not None
        backoff = Backoff()
        half.ending = True
        try:
            while True:
                place = asked or half.place
                assert place is not None
                # A check is answered where it came from; else the broker may have moved.
                address = place.address if asked is not None else self._address(half, place)
                header = self._header(half, place, half.state, checked=asked is not None)
                number = self._instance.connection_number(address)  # of the connection it leaves by
                cause = await self._ask(address, header, deadline - monotonic())
                if cause is None:
                    half.confirmed = address, number
                    return None
                pause = max(backoff.next_pause(), self._instance.remoting.pause_left(address))
                if not _may_repeat(cause, half.state) or monotonic() + pause >= deadline:
                    return cause
                await asyncio.sleep(pause)
        finally:
            half.ending = False

    def leave(self, half: HalfMessage) -> None:
        """The application leaves *half* to the check; nothing is told."""
        self._ended(half, half.message, None, TransactionState.UNKNOWN)

    async def leave_open(
        self, half: HalfMessage, place: HalfMessageLocation, message: MessageExt
    ) -> None:
        """Tell the broker that this is not known yet; it asks again, also if it does not hear."""
        header = self._header(half, place, TransactionState.UNKNOWN, checked=True)
        try:
            await self._instance.remoting.oneway(place.address, header)
        except RocketMQError as error:
            logger.debug("transaction_check_not_answered", reason=str(error))
        self._ended(half, message, place, TransactionState.UNKNOWN)

    async def has_commit(self, half: HalfMessage, place: HalfMessageLocation) -> bool:
        """Return whether the broker that checks *half* at *place* surely has its commit.

        The same broker has confirmed the commit over the connection that still stands, and is no
        proxy: a proxy of 5.x confirms before the broker has done it, and also when it drops the
        request, whereas a broker refuses to end a transaction that it never had.
        """
        if not self._is_confirmed(half, place.address):
            return False
        number = self._instance.connection_number(place.address)  # which has confirmed
        known = self._examined.get(place.address)
        if known is None or known[0] != number:
            known = number, await self._refuses_unknown(half, place)
            number_of = self._instance.connection_number
            current = {a: v for a, v in self._examined.items() if number_of(a) == v[0]}
            self._examined = current | {place.address: known}
        return known[1] and self._is_confirmed(half, place.address)

    async def discard(self, half: HalfMessage, place: HalfMessageLocation) -> None:
        """Roll back the copy at *place* that the broker made of *half* before it was committed."""
        header = self._header(half, place, TransactionState.ROLLBACK, checked=True)
        if (cause := await self._ask(place.address, header, PROBE_SECONDS)) is not None:
            logger.info(
                "transaction_check_not_answered", message_id=half.message_id, reason=str(cause)
            )

    def _is_confirmed(self, half: HalfMessage, address: str) -> bool:
        current = address, self._instance.connection_number(address)
        return half.confirmed == current and self._instance.remoting.is_connected(address)

    async def _refuses_unknown(self, half: HalfMessage, place: HalfMessageLocation) -> bool:
        """Ask the peer to roll back a transaction that no broker has."""
        nowhere = HalfMessage(NO_SUCH_ID, half.topic, NO_SUCH_ID)
        away = replace(place, table_offset=NO_SUCH_OFFSET, log_offset=NO_SUCH_OFFSET)
        header = self._header(nowhere, away, TransactionState.ROLLBACK, checked=False)
        cause = await self._ask(place.address, header, PROBE_SECONDS)
        if not isinstance(cause, BrokerError) or cause.code != ResponseCode.SYSTEM_ERROR:
            return False
        return (cause.remark or "").startswith(NOT_FOUND)

    def _ended(
        self,
        half: HalfMessage,
        message: Message | MessageExt | None,
        asked: HalfMessageLocation | None,
        state: TransactionState | None,
        *,
        error: BaseException | None = None,
        started: float | None = None,
    ) -> None:
        if message is None or not self.are_heard:
            return
        place = asked or half.place
        context = EndTransactionContext(
            group=self._group,
            message=message,
            message_id=half.message_id,
            transaction_id=half.transaction_id,
            state=state or TransactionState.UNKNOWN,
            address="-" if place is None else place.address,
            from_check=asked is not None,
            error=error,
            seconds=0.0 if started is None else monotonic() - started,
        )
        self._hooks.transaction_ended(context)

    async def _ask(
        self, address: str, header: EndTransaction, seconds: float
    ) -> RocketMQError | None:
        try:
            command = await self._instance.remoting.request(
                address, header, timeout=max(LEAST_SECONDS, seconds)
            )
        except RocketMQError as cause:
            return cause
        return None if command.code == ResponseCode.SUCCESS else broker_error(command, address)

    def _address(self, half: HalfMessage, place: HalfMessageLocation) -> str:
        """Return where the broker is by now."""
        route = self._instance.routes.known(half.topic)
        if route is None or place.broker_name is None:
            return place.address
        return route.brokers.get(place.broker_name, {}).get(MASTER_ID, place.address)

    def _header(
        self,
        half: HalfMessage,
        place: HalfMessageLocation,
        state: TransactionState,
        *,
        checked: bool,
    ) -> EndTransaction:
        return EndTransaction(
            topic=half.topic,
            producer_group=self._group,
            tran_state_table_offset=place.table_offset,
            commit_log_offset=place.log_offset,
            commit_or_rollback=FLAGS[state],
            from_transaction_check=checked,
            msg_id=half.message_id,
            transaction_id=half.transaction_id,
            broker_name=place.broker_name,
        )


def _may_repeat(cause: RocketMQError, state: TransactionState) -> bool:
    if state is TransactionState.ROLLBACK and isinstance(cause, MAY_HAVE_ARRIVED):
        return True
    return isinstance(cause, NEVER_LEFT)
