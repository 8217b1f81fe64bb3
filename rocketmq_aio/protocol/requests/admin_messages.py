"""Message queries: by commit log offset, by key and by id."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import Header, RequestHeader

BY_ID = "_UNIQUE_KEY_QUERY"


class ViewMessage(RequestHeader, frozen=True, kw_only=True):
    """Get the message at *offset* of the commit log."""

    code: ClassVar[int] = RequestCode.VIEW_MESSAGE_BY_ID

    topic: str | None = None
    offset: int


class QueryMessage(RequestHeader, frozen=True, kw_only=True):
    """Find messages by the hash of *key*, stored between two times (milliseconds).

    With credentials, declare an old client version: releases differ on whether *by_id* is signed,
    but none sign it for old clients.
    """

    code: ClassVar[int] = RequestCode.QUERY_MESSAGE
    unsigned: ClassVar[tuple[str, ...]] = (BY_ID,)

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    index_type: str | None = None
    by_id: bool | None = msgspec.field(name=BY_ID, default=None)


class QueryMessageResponse(Header, frozen=True, kw_only=True):
    """How far the index is complete."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int
