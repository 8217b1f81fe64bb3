"""Telling brokers how transactions ended."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from rocketmq_aio.errors import (
    BusyError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.hooks import EndTransactionContext
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.producer.decisions import Half, Place, TransactionState
from rocketmq_aio.producer.hook_calls import SendHooks
from rocketmq_aio.protocol.codes import (
    MASTER_ID,
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    ResponseCode,
)
from rocketmq_aio.protocol.requests.transactions import EndTransaction
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.remoting.refusals import refusal

logger = get_logger(__name__)

FLAGS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}
LEAST_SECONDS: Final = 0.001
NEVER_LEFT: Final = (NotConnectedError, BusyError)
MAY_HAVE_ARRIVED: Final = (ConnectionLostError, RequestTimeoutError)


class Endings:
    """Sends decisions of a producer *group* and waits for the brokers' yes; *hooks* hear of it."""

    def __init__(self, instance: MQClientInstance, group: str, hooks: SendHooks) -> None:
        self._instance = instance
        self._group = group
        self._hooks = hooks
        self.are_heard = hooks.hear_endings

    async def tell(
        self, half: Half, deadline: float, *, asked: Place | None = None
    ) -> RocketMQError | None:
        """Tell the broker what *half*'s state is; return why that is not confirmed, if it is not.

        Tried again until *deadline* while the broker surely did not act.  A commit that may have
        arrived is not sent twice: a broker stores the message again with each one, and asks by
        itself when it did not get it.

        :param asked: where it is, if this answers a check
        """
        started = monotonic()
        try:
            cause = await self._tell(half, deadline, asked)
        except BaseException as error:
            self._ended(half, asked, error, started)
            raise
        self._ended(half, asked, cause, started)
        return cause

    async def _tell(self, half: Half, deadline: float, asked: Place | None) -> RocketMQError | None:
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
                cause = await self._ask(address, header, deadline - monotonic())
                if cause is None:
                    half.confirmed = address, self._instance.connects[address]
                    return None
                pause = max(backoff.next_pause(), self._instance.remoting.pause_left(address))
                if not _may_repeat(cause, half.state) or monotonic() + pause >= deadline:
                    return cause
                await asyncio.sleep(pause)
        finally:
            half.ending = False

    def leave(self, half: Half) -> None:
        """The application leaves *half* to the check; nothing is told."""
        self._ended(half, None, None, monotonic(), TransactionState.UNKNOWN)

    async def leave_open(self, half: Half, place: Place) -> None:
        """Tell the broker that this is not known yet; it asks again, also if it does not hear."""
        header = self._header(half, place, TransactionState.UNKNOWN, checked=True)
        try:
            await self._instance.remoting.oneway(place.address, header)
        except RocketMQError as error:
            logger.debug("transaction_check_not_answered", reason=str(error))
        self._ended(half, place, None, monotonic(), TransactionState.UNKNOWN)

    def _ended(
        self,
        half: Half,
        asked: Place | None,
        error: BaseException | None,
        started: float,
        state: TransactionState | None = None,
    ) -> None:
        if half.message is None:  # nobody wants to know
            return
        place = asked or half.place
        context = EndTransactionContext(
            group=self._group,
            message=half.message,
            message_id=half.message_id,
            transaction_id=half.transaction_id,
            state=state or half.state or TransactionState.UNKNOWN,
            address="-" if place is None else place.address,
            from_check=asked is not None,
            error=error,
            seconds=monotonic() - started,
        )
        half.message = None
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
        return None if command.code == ResponseCode.SUCCESS else refusal(command, address)

    def _address(self, half: Half, place: Place) -> str:
        """Return where the broker is by now."""
        route = self._instance.routes.known(half.topic)
        if route is None or place.broker_name is None:
            return place.address
        return route.brokers.get(place.broker_name, {}).get(MASTER_ID, place.address)

    def _header(
        self, half: Half, place: Place, state: TransactionState, *, checked: bool
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
