"""Half messages and transaction checks of the broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Handlers
from rocketmq_aio.embedded.broker.store import NewMessage, StoredMessage
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.properties import (
    PRODUCER_GROUP,
    UNIQ_KEY,
    encode_properties,
    parse_properties,
)
from rocketmq_aio.protocol.codes import (
    ONEWAY_FLAG,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    RequestCode,
    ResponseCode,
)
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.protocol.requests.send import EndTransaction

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"


class TransactionProcessor:
    """Stores half messages.  Tests start checks, real brokers run them periodically.

    Like real brokers, it moves a half message before each check and stores no decision.

    :ivar behind_proxy: END_TRANSACTION is answered as a cluster proxy of 5.x does: 0 at once, and
        passed on only for a transaction that the broker has just checked
    """

    def __init__(self, state: BrokerState) -> None:
        self.behind_proxy = False
        self._checked: dict[
            str | None, StoredMessage
        ] = {}  # messages known to the proxy, by transaction id
        self._state = state
        self._kept: dict[int, tuple[NewMessage, StoredMessage]] = {}  # by log offset
        self._open: dict[int, StoredMessage] = {}

    def handlers(self) -> Handlers:
        return {RequestCode.END_TRANSACTION: self.end}

    @property
    def open(self) -> list[StoredMessage]:
        """Undecided half messages at their current positions."""
        return list(self._open.values())

    def hold(self, incoming: NewMessage) -> StoredMessage:
        """Store a half message."""
        self._state.store.create_topic(HALF_TOPIC, 1)
        real = {"REAL_TOPIC": incoming.topic, "REAL_QID": str(incoming.queue_id)}
        properties = parse_properties(incoming.properties) | real
        hidden = replace(
            incoming,
            topic=HALF_TOPIC,
            queue_id=0,
            sys_flag=incoming.sys_flag & ~TRANSACTION_MASK,
            properties=encode_properties(properties).encode(),
        )
        stored = self._state.store.append(hidden, self._state.clock.now_ms())
        self._kept[stored.log_offset] = incoming, stored
        self._open[stored.log_offset] = stored
        return stored

    def end(self, command: Command, _connection: ServerConnection) -> Response | None:
        asked = read_header(command, EndTransaction)
        if self.behind_proxy:
            checked = self._checked.pop(asked.transaction_id, None)
            if checked is None:
                return Response()
            asked = msgspec.structs.replace(
                asked, tran_state_table_offset=checked.offset, commit_log_offset=checked.log_offset
            )
        if not asked.commit_or_rollback:
            return None
        incoming, half = self._find(asked)
        if asked.commit_or_rollback == TRANSACTION_COMMIT:
            visible = replace(
                incoming,
                sys_flag=incoming.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
                prepared_offset=half.offset,
            )
            self._state.store.append(visible, self._state.clock.now_ms())
        self._open.pop(half.log_offset, None)
        return Response()

    def reopen(self, message_id: str) -> None:
        """Drop the decision about a message, as brokers do after an early check."""
        for _, half in self._kept.values():
            if half.properties.get(UNIQ_KEY) == message_id:
                self._open[half.log_offset] = half

    def replicate(self, message_id: str, other: TransactionProcessor) -> None:
        """Copy the open half message *message_id* to *other*, the new master."""
        for incoming, half in self._kept.values():
            if half.properties.get(UNIQ_KEY) == message_id:
                other.hold(incoming)
                return

    def move(self, half: StoredMessage) -> tuple[str, Command]:
        """Store *half* again; return its group and the check request."""
        incoming, _ = self._kept[half.log_offset]
        times = int(half.properties.get(CHECK_TIMES, "0")) + 1
        properties = parse_properties(incoming.properties) | {CHECK_TIMES: str(times)}
        moved = self.hold(replace(incoming, properties=encode_properties(properties).encode()))
        del self._open[half.log_offset]
        self._checked[moved.properties.get(UNIQ_KEY)] = moved
        is_5 = self._state.version.is_5
        header = CheckTransactionState(
            topic=HALF_TOPIC if is_5 else None,
            tran_state_table_offset=moved.offset,
            commit_log_offset=moved.log_offset,
            msg_id=moved.properties.get(UNIQ_KEY),
            transaction_id=moved.properties.get(UNIQ_KEY),
            offset_msg_id=moved.message_id,
            broker_name=self._state.name if is_5 else None,
        )
        question = Command(RequestCode.CHECK_TRANSACTION_STATE, 0, ONEWAY_FLAG)
        question.ext = to_ext_fields(header)
        question.body = self._state.store.record(incoming, half.properties, moved)
        return moved.properties.get(PRODUCER_GROUP, ""), question

    def _find(self, asked: EndTransaction) -> tuple[NewMessage, StoredMessage]:
        found = self._kept.get(asked.commit_log_offset)
        if found is None:
            remark = "Find prepared transaction message failed"
            raise ErrorResponse(ResponseCode.SYSTEM_ERROR, remark)
        _, half = found
        if half.properties.get(PRODUCER_GROUP) != asked.producer_group:
            raise ErrorResponse(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.offset != asked.tran_state_table_offset:
            raise ErrorResponse(
                ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"
            )
        return found
