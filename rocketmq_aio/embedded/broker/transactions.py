"""TransactionProcessor: half messages and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from rocketmq_aio.embedded.broker.delay_levels import hidden, number, real_message
from rocketmq_aio.embedded.broker.delay_queue import DelayQueue
from rocketmq_aio.embedded.broker.state import ILLEGAL_OPERATION, BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import NewMessage, StoredMessage
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.handlers import handles
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.properties import PRODUCER_GROUP, UNIQ_KEY
from rocketmq_aio.protocol.codes import (
    ONEWAY_FLAG,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    RequestCode,
)
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.protocol.requests.send import EndTransaction

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_CHECK_SECONDS: Final = 6.0
CHECK_INTERVAL_SECONDS: Final = 30.0
MAX_CHECKS: Final = 15
TRANSACTION_ID: Final = "__transactionId__"


class TransactionProcessor:
    """Stores half messages, and checks the open ones on the clock.

    Like real brokers, it stores a half message again before each check and keeps no decisions.

    :param send_check: sends a check to a producer of a group
    :ivar checks: log offsets of half messages to check
    """

    def __init__(self, state: BrokerState, send_check: Callable[[str, Command], object]) -> None:
        self.first_check_seconds = FIRST_CHECK_SECONDS
        self.check_interval_seconds = CHECK_INTERVAL_SECONDS
        self.max_checks = MAX_CHECKS
        self._state = state
        self._send_check = send_check
        self._open: dict[int, None] = {}  # log offsets
        self.checks = DelayQueue[int](state.clock, self._check, self._is_open)

    def restore(self, checks: Iterable[tuple[int, int]]) -> None:
        """Restore open half messages: time of the next check, log offset."""
        for due_ms, log_offset in checks:
            self._open[log_offset] = None
            self.checks.add(due_ms, log_offset)

    @property
    def open(self) -> list[StoredMessage]:
        """Undecided half messages at their current positions."""
        found = [self._state.store.find(log_offset) for log_offset in self._open]
        return [half for half in found if half is not None]

    def store(self, message: NewMessage) -> StoredMessage:
        times = number(message.properties, CHECK_TIMES)
        delay = self.check_interval_seconds if times else self.first_check_seconds
        if not times:
            delay = max(delay, number(message.properties, IMMUNITY))
        self._state.store.ensure_topic(HALF_TOPIC, 1)
        sys_flag = message.sys_flag & ~TRANSACTION_MASK
        half = self._state.store.append(hidden(message, HALF_TOPIC, 0, sys_flag=sys_flag))
        self._open[half.log_offset] = None
        self.checks.add(half.store_ms + int(delay * 1000), half.log_offset)
        return half

    @handles(RequestCode.END_TRANSACTION)
    def end(self, command: Command, _connection: ServerConnection) -> Response | None:
        header = read_header(command, EndTransaction)
        if not header.commit_or_rollback:
            return None
        half = self._find(header)
        if self._is_late(half) and not header.from_transaction_check:
            remark = "the check immunity time is over: the decision has to follow a check"
            raise ErrorResponse(remark, ILLEGAL_OPERATION)
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            self._commit(half)
        self._open.pop(half.log_offset, None)
        return Response()

    def store_check(self, half: StoredMessage) -> tuple[str, Command]:
        """Store *half* again; return its group and the check request."""
        message = real_message(half)
        times = number(half.properties, CHECK_TIMES) + 1
        checked = message.properties | {CHECK_TIMES: str(times)}
        moved = self.store(replace(message, properties=checked))
        self._open.pop(half.log_offset, None)
        key = half.properties.get(UNIQ_KEY)
        is_5 = self._state.version.is_5
        header = CheckTransactionState(
            topic=HALF_TOPIC if is_5 else None,
            tran_state_table_offset=moved.offset,
            commit_log_offset=moved.log_offset,
            msg_id=key,
            transaction_id=key,
            offset_msg_id=moved.message_id,
            broker_name=self._state.name if is_5 else None,
        )
        restored = replace(message, properties=half.properties)
        body = self._state.store.record_of(restored, moved)
        check = Command(header.code, 0, ONEWAY_FLAG, ext=to_ext_fields(header), body=body)
        return half.properties.get(PRODUCER_GROUP, ""), check

    def _is_open(self, log_offset: int) -> bool:
        if log_offset < self._state.store.log_start:
            self._open.pop(log_offset, None)
        return log_offset in self._open

    def _check(self, log_offset: int) -> None:
        half = self._state.store.find(log_offset)
        if half is None:
            return
        if number(half.properties, CHECK_TIMES) < self.max_checks:
            self._send_check(*self.store_check(half))
        else:
            del self._open[log_offset]
            self._state.store.ensure_topic(DISCARDED_TOPIC, 1)
            self._state.store.append(half.to_new(DISCARDED_TOPIC, 0))

    def _commit(self, half: StoredMessage) -> None:
        message = real_message(half)
        if self._state.store.queue(message.topic, message.queue_id) is None:
            raise ErrorResponse(f"topic[{message.topic}] not exist")
        sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
        properties = half.properties  # also the hidden topic and queue
        if self._state.version.is_5:
            properties = message.properties | {TRANSACTION_ID: properties[UNIQ_KEY]}
        visible = replace(
            message, sys_flag=sys_flag, prepared_offset=half.offset, properties=properties
        )
        self._state.store.append(visible)

    def _is_late(self, half: StoredMessage) -> bool:
        """Whether the immunity time that the producer asked for is over (5.x).

        Real brokers count from the producer's time, which does not follow a moved clock.
        """
        seconds = number(half.properties, IMMUNITY)
        age_ms = self._state.clock.now_ms() - half.store_ms
        return self._state.version.is_5 and 0 < seconds * 1000 < age_ms

    def _find(self, header: EndTransaction) -> StoredMessage:
        half = self._state.store.find(header.commit_log_offset)
        if half is None or half.topic != HALF_TOPIC:
            raise ErrorResponse("Find prepared transaction message failed")
        if half.properties.get(PRODUCER_GROUP) != header.producer_group:
            raise ErrorResponse("The producer group wrong")
        if half.offset != header.tran_state_table_offset:
            raise ErrorResponse("The transaction state table offset wrong")
        return half
