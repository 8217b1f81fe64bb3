"""End of transactions: 37 END_TRANSACTION."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class EndTransaction(RequestHeader, code=RequestCode.END_TRANSACTION, frozen=True):
    """Commit or roll back a half message; no response for "unknown"."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)
