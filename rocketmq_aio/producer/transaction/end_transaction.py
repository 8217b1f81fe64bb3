"""End transaction sender: sends END_TRANSACTION requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rocketmq_aio.errors import (
    NO_ADDRESS,
    BrokerError,
    BusyError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.hooks import EndTransactionContext
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.transaction.half_message import (
    HalfMessage,
    HalfMessageLocation,
    PendingCheck,
)
from rocketmq_aio.producer.transaction.transaction_log import TransactionLog
from rocketmq_aio.protocol.codes import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.send import EndTransaction
from rocketmq_aio.protocol.templates import RequestTemplate
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.remoting.connection import Frame, OnLate
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)

COMMIT: Final = TransactionState.COMMIT
ROLLBACK: Final = TransactionState.ROLLBACK
UNKNOWN: Final = TransactionState.UNKNOWN
LEAST_SECONDS: Final = 0.001
NEVER_SENT: Final = (NotConnectedError, BusyError)
NOT_EXECUTED: Final = (NotConnectedError, BrokerError)
MAY_HAVE_ARRIVED: Final = (ConnectionLostError, RequestTimeoutError)
BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
# Of a former master, which is a slave now, and of one whose store does not accept writes.
READ_ONLY: Final = (ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE)
PROBE_SECONDS: Final = 3.0
RECORD_SECONDS: Final = 5.0  # 5.x brokers record an end up to 3 s late, and check until then
LATE_SECONDS: Final = 60.0  # an overloaded broker executes a commit so late, and responds
CODE: Final = int(EndTransaction.code)
SUCCESS: Final = int(ResponseCode.SUCCESS)
VARYING: Final = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
MAX_TEMPLATES: Final = 1024  # by topic, broker and decision
NO_SUCH_OFFSET: Final = 2**62  # beyond the end of any commit log
NO_SUCH_ID: Final = "0" * 32
# The remark of brokers about an unknown transaction: code 1, on 4.9.7 and 5.5.0.
NOT_FOUND: Final = "Find prepared transaction message failed"


class Peer(msgspec.Struct, gc=False, eq=False):
    """A broker or a proxy, as far as it has been probed.

    :ivar number: of the connection
    :ivar rejects_unknown: unknown transactions, as brokers do; None while it has not responded
    """

    number: int
    probed_at: float  # first, by `monotonic`
    rejects_unknown: bool | None = None


class EndTransactionSender:
    """Sends the decisions of a producer *group* until brokers confirm them; calls *hooks*."""

    def __init__(
        self, instance: MQClientInstance, group: str, log: TransactionLog, hooks: SendHooks
    ) -> None:
        self._instance = instance
        self._group = group
        self._log = log
        self._hooks = hooks
        self.has_hooks = hooks.has_end_transaction
        self._peers: dict[str, Peer] = {}  # by address
        self._templates: dict[object, RequestTemplate] = {}

    def send(
        self, half: HalfMessage, deadline: float, check: PendingCheck | None = None
    ) -> Coroutine[Any, Any, RocketMQError | None]:
        """Send the state of *half*; return the error if the broker did not confirm it.

        Retries until *deadline* while the broker cannot have executed it.  A commit that may have
        arrived is not repeated: a broker stores the message once more with each commit, and checks
        by itself if it did not get one.

        :param check: the check that this replies to
        """
        sending = self._send(half, deadline, check)
        return self._hooked(half, check, sending) if self.has_hooks else sending

    async def _hooked(
        self,
        half: HalfMessage,
        check: PendingCheck | None,
        sending: Coroutine[Any, Any, RocketMQError | None],
    ) -> RocketMQError | None:
        started = monotonic()
        cause: BaseException | None = None
        try:
            cause = failure = await sending
        except BaseException as error:
            cause = error
            raise
        finally:
            self._call_hooks(half, half.state, check, error=cause, started=started)
        return failure

    async def _send(
        self, half: HalfMessage, deadline: float, check: PendingCheck | None
    ) -> RocketMQError | None:
        half.is_ending = True
        try:
            cause = await self._attempt(half, deadline, check)
            if cause is not None:
                cause = await self._retry(half, deadline, check, cause)
            return cause
        finally:
            half.is_ending = False

    async def _retry(
        self, half: HalfMessage, deadline: float, check: PendingCheck | None, failure: RocketMQError
    ) -> RocketMQError | None:
        """Continue after *failure* as long as it may be repeated; return the last error."""
        assert half.state is not None
        backoff = Backoff()
        cause: RocketMQError | None = failure
        while cause is not None:
            left = self._instance.remoting.backoff_left(self._address(half, check))
            pause = max(backoff.next_pause(), left)
            has_moved = check is None and _is_read_only(cause)
            may_repeat = has_moved or _may_repeat(cause, half.state)
            if not may_repeat or monotonic() + pause >= deadline:
                break
            if has_moved:
                self._instance.routes.invalidate(half.topic)
            await asyncio.sleep(pause)
            cause = await self._attempt(half, deadline, check)
        return cause

    async def _attempt(
        self, half: HalfMessage, deadline: float, check: PendingCheck | None
    ) -> RocketMQError | None:
        """Send the state once, and record in *half* what is known of a commit."""
        location = half.location if check is None else check.location
        assert location is not None
        assert half.state is not None
        address, broker = self._address(half, check), self._broker_name(location)
        header = self._header(half, location, half.state, is_check=check is not None)
        before = half.unanswered_by, half.committed_at
        on_late = None
        if is_commit := half.state is COMMIT:  # also if this call is cancelled
            half.unanswered_by, half.committed_at, half.unanswered_over = broker, monotonic(), 0
            on_late = partial(self._on_late, half, address, broker)
        cause = await self._request(address, header, deadline - monotonic(), on_late)
        if cause is None:
            self._confirm(half, address, broker)
        elif isinstance(cause, NOT_EXECUTED):
            half.unanswered_by, half.committed_at = before
        elif is_commit:
            half.committed_at = monotonic()
            if isinstance(cause, RequestTimeoutError):  # a response may come later
                half.unanswered_over = self._instance.connection_number(address)
        return cause

    def _confirm(self, half: HalfMessage, address: str, broker: str | None) -> None:
        # The request may have opened the connection.
        half.confirmed = address, self._instance.connection_number(address)
        half.confirmed_by, half.unanswered_by = broker, None
        half.committed_at = monotonic()

    def _on_late(
        self, half: HalfMessage, address: str, broker: str | None, response: Command
    ) -> None:
        """Record the response to a commit that the caller no longer waits for."""
        known = self._log.find(half.message_id) or half  # it may have been packed meanwhile
        if response.code == ResponseCode.SUCCESS:
            self._confirm(known, address, broker)
        elif known.unanswered_by == broker:
            known.unanswered_by = None  # not executed: the next check gets the commit

    def leave(self, half: HalfMessage) -> None:
        """Call the hooks for a decision left to the check; sends no request."""
        self._call_hooks(half, UNKNOWN)

    async def send_unknown(self, half: HalfMessage, check: PendingCheck) -> None:
        """Send UNKNOWN, without a response: the broker checks again in any case."""
        header = self._header(half, check.location, UNKNOWN, is_check=True)
        try:
            await self._instance.remoting.oneway(check.location.address, header)
        except RocketMQError as error:
            logger.debug("transaction_check_response_not_sent", reason=str(error))
        self._call_hooks(half, UNKNOWN, check)

    async def has_commit(self, half: HalfMessage, location: HalfMessageLocation) -> bool:
        """Whether the message of *half* needs no commit by the broker that checks it at *location*.

        That is so if another broker confirmed the commit: a retry stored the half message twice.
        Otherwise the broker must have confirmed it over the current connection, and not be a proxy:
        a proxy of 5.x confirms before the broker executes it, even if it drops the request.  Unlike
        a proxy, a broker rejects a request to end an unknown transaction.
        """
        broker = self._broker_name(location)
        if broker is not None and half.confirmed_by not in (None, broker):
            return True
        address = location.address
        may_respond = half.unanswered_by == broker and self._may_respond(half, address)
        if may_respond and await self._probe(self._peer(address), half, location):
            half.unanswered_over = 0  # a broker that responds to a later request has no earlier one
        if not self._is_confirmed(half, address):
            return False
        peer = self._peer(address)
        if peer.rejects_unknown is None:
            await self._probe(peer, half, location)
        return peer.rejects_unknown is True and self._is_confirmed(half, address)

    def may_be_committed(self, half: HalfMessage, check: PendingCheck) -> bool:
        """Whether a commit may have been executed that a later check would show to be missing.

        That is so if the broker that checks got it and may not have recorded it yet, or is too busy
        to show whether it is a proxy; and if another one may have executed it and is alive, which
        checks the transaction itself if it has not.  If that one is lost, the copy at the broker
        that checks may be the only one.
        """
        address = check.location.address
        broker, other = self._broker_name(check.location), half.unanswered_by
        if broker in (other, half.confirmed_by):
            if self._is_confirmed(half, address) and self._may_be_proxy(address):
                return True
            if broker == other and self._may_respond(half, address):
                return True
            return check.received_at < half.committed_at + RECORD_SECONDS
        if other is None:
            return False
        master = self._instance.routes.master(other)
        return master is not None and self._instance.remoting.is_connected(master)

    async def discard(self, half: HalfMessage, location: HalfMessageLocation) -> None:
        """Roll back the copy at *location*, which the broker made of *half* before its commit."""
        header = self._header(half, location, ROLLBACK, is_check=True)
        if (cause := await self._request(location.address, header, PROBE_SECONDS)) is not None:
            logger.info(
                "transaction_check_response_not_sent", message_id=half.message_id, reason=str(cause)
            )

    def _may_respond(self, half: HalfMessage, address: str) -> bool:
        """Whether the response to an unanswered commit may still come, over an open connection."""
        if monotonic() >= half.committed_at + LATE_SECONDS:
            return False
        is_current = half.unanswered_over == self._instance.connection_number(address)
        return is_current and self._instance.remoting.is_connected(address)

    def _peer(self, address: str) -> Peer:
        """Return what is known of the peer behind the current connection."""
        peer, number_of = self._peers.get(address), self._instance.connection_number
        if peer is None or peer.number != number_of(address):
            self._peers = {a: p for a, p in self._peers.items() if number_of(a) == p.number}
            peer = self._peers[address] = Peer(number_of(address), monotonic())
        return peer

    def _is_confirmed(self, half: HalfMessage, address: str) -> bool:
        current = address, self._instance.connection_number(address)
        return half.confirmed == current and self._instance.remoting.is_connected(address)

    def _may_be_proxy(self, address: str) -> bool:
        """Whether the peer has not shown what it is, and has had less than a minute for it."""
        peer = self._peers.get(address)
        if peer is None or peer.rejects_unknown is not None:
            return False
        return monotonic() < peer.probed_at + LATE_SECONDS

    async def _probe(self, peer: Peer, half: HalfMessage, location: HalfMessageLocation) -> bool:
        """Find out whether *peer* rejects the rollback of a transaction that does not exist.

        Returns whether it responded in time, and was not too busy.
        """

        def on_response(response: Command) -> None:
            if response.code not in BUSY:
                is_error = response.code == ResponseCode.SYSTEM_ERROR
                remark = response.remark or ""
                peer.rejects_unknown = is_error and remark.startswith(NOT_FOUND)

        unknown = HalfMessage(NO_SUCH_ID, half.topic, NO_SUCH_ID)
        nowhere = replace(location, table_offset=NO_SUCH_OFFSET, log_offset=NO_SUCH_OFFSET)
        header = self._header(unknown, nowhere, ROLLBACK, is_check=False)
        with suppress(RocketMQError):
            response = await self._instance.remoting.request(
                location.address, header, timeout=PROBE_SECONDS, on_late=on_response
            )
            on_response(response)
            return response.code not in BUSY
        return False

    def _call_hooks(
        self,
        half: HalfMessage,
        state: TransactionState | None,
        check: PendingCheck | None = None,
        *,
        error: BaseException | None = None,
        started: float | None = None,
    ) -> None:
        message = half.message if check is None else check.message
        if message is None or not self.has_hooks:
            return
        location = half.location if check is None else check.location
        context = EndTransactionContext(
            group=self._group,
            message=message,
            message_id=half.message_id,
            transaction_id=half.transaction_id,
            state=state or UNKNOWN,
            address=NO_ADDRESS if location is None else location.address,
            from_check=check is not None,
            error=error,
            seconds=0.0 if started is None else monotonic() - started,
        )
        self._hooks.transaction_ended(context)

    async def _request(
        self, address: str, header: EndTransaction, seconds: float, on_late: OnLate | None = None
    ) -> RocketMQError | None:
        """Send *header*; return the error if there is no response of success."""
        remoting, timeout = self._instance.remoting, max(LEAST_SECONDS, seconds)
        try:
            if remoting.takes_prepared:
                frame = partial(self._frame, header)
                command = await remoting.exchange(address, CODE, frame, timeout, on_late)
            else:
                command = await remoting.request(address, header, timeout=timeout, on_late=on_late)
        except RocketMQError as cause:
            return cause
        return None if command.code == SUCCESS else broker_error(command, address)

    def _frame(self, header: EndTransaction, opaque: int) -> Frame:
        key = (
            header.topic,
            header.broker_name,
            header.commit_or_rollback,
            header.from_transaction_check,
        )
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = RequestTemplate(header, *VARYING)
        values = (
            str(header.tran_state_table_offset),
            str(header.commit_log_offset),
            header.msg_id,
            header.transaction_id or "",
        )
        return template.frame(opaque, *values), b""

    def _broker_name(self, location: HalfMessageLocation) -> str | None:
        """Return the name of the broker at *location*; checks of 4.9 brokers do not contain it."""
        return location.broker_name or self._instance.routes.broker_at(location.address)

    def _address(self, half: HalfMessage, check: PendingCheck | None) -> str:
        """Return the address for the decision about *half*.

        The reply to a check goes to its sender; otherwise the broker may have moved.
        """
        if check is not None:
            return check.location.address
        assert half.location is not None
        route, location = self._instance.routes.known(half.topic), half.location
        if route is None or location.broker_name is None:
            return location.address
        return route.write_master(location.broker_name) or location.address

    def _header(
        self,
        half: HalfMessage,
        location: HalfMessageLocation,
        state: TransactionState,
        *,
        is_check: bool,
    ) -> EndTransaction:
        return EndTransaction(
            topic=half.topic,
            producer_group=self._group,
            tran_state_table_offset=location.table_offset,
            commit_log_offset=location.log_offset,
            commit_or_rollback=_flag(state),
            from_transaction_check=is_check,
            msg_id=half.message_id,
            transaction_id=half.transaction_id,
            broker_name=location.broker_name,
        )


def _flag(state: TransactionState) -> int:
    """Return *state* as in requests; a look-up in a table would hash it, which is slow."""
    if state is COMMIT:
        return TRANSACTION_COMMIT
    return TRANSACTION_ROLLBACK if state is ROLLBACK else 0


def _is_read_only(cause: RocketMQError) -> bool:
    return isinstance(cause, BrokerError) and cause.code in READ_ONLY


def _may_repeat(cause: RocketMQError, state: TransactionState) -> bool:
    if state is ROLLBACK and isinstance(cause, MAY_HAVE_ARRIVED):
        return True
    return isinstance(cause, NEVER_SENT)
