"""QueryProcessor: messages by key, unique key and position."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import StoredMessage
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.properties import KEYS, TAGS, UNIQ_KEY
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.requests.admin import QueryMessage, ViewMessage

MAX_BY_ID: Final = 32  # instead of the requested number
MAX_MESSAGES: Final = 64
NOT_FOUND: Final = "can not find message, maybe time range not correct"


class QueryProcessor:
    """Finds messages without an index: it scans the log, the newest messages first."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @reads(ViewMessage)
    def view(self, header: ViewMessage) -> object:
        stored = self._state.store.find(header.offset)
        if stored is None:
            raise ErrorResponse(f"can not find message by the offset, {header.offset}")
        return Response(body=stored.record)

    @reads(QueryMessage)
    def query(self, header: QueryMessage) -> object:
        """Return the newest messages of a key, in the order of their storage.

        Keys and unique keys share an index; a key that a message has twice is found twice.  The
        times of the index are whole seconds since its first message.
        """
        by_tag = self._state.version.is_5 and header.index_type == "T"
        most = MAX_BY_ID if header.by_id else min(header.max_num, MAX_MESSAGES)
        found: list[StoredMessage] = []
        store, wanted = self._state.store, header.key.encode()
        begin, end = header.begin_timestamp, header.end_timestamp
        first_ms = store.log[0].store_ms if store.log else 0
        for stored in store.stored_between(begin, end + 999):
            if len(found) >= most:
                break
            if not begin <= stored.store_ms - (stored.store_ms - first_ms) % 1000 <= end:
                continue
            if stored.topic == header.topic and wanted in stored.record:
                found += [stored] * _occurrences(stored, header.key, by_tag=by_tag)
        found = found[: max(most, 0)]
        newest = store.log[-1] if found else None
        ext = {
            "indexLastUpdateTimestamp": str(newest.store_ms if newest else 0),
            "indexLastUpdatePhyoffset": str(newest.log_offset if newest else 0),
        }
        if not found:
            return Response(ResponseCode.QUERY_NOT_FOUND, ext, remark=NOT_FOUND)
        return Response(ext=ext, body=b"".join([stored.record for stored in reversed(found)]))


def _occurrences(stored: StoredMessage, key: str, *, by_tag: bool) -> int:
    properties = stored.properties
    if by_tag:
        return properties.get(TAGS) == key
    keys = properties.get(KEYS, "").split(" ") if key else []
    return keys.count(key) + (properties.get(UNIQ_KEY) == key)
