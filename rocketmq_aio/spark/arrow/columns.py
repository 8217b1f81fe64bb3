"""Column builder: stored messages to record batches with the selected columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import (
    KEYS,
    MAX_PRIORITY,
    PRIORITY,
    PRIORITY_DIGITS,
    TAGS,
    UNIQ_KEY,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import BORN_IPV6, STORE_IPV6
from rocketmq_aio.protocol.record import IPV4_HEAD
from rocketmq_aio.spark.arrow import Column, pc
from rocketmq_aio.spark.arrow.properties import PropertyColumns, property_columns

MAX_ROWS: Final = 10_000  # of a record batch
ROW_BYTES: Final = 8  # estimate for a column other than body and properties
FIRST_MILLIS: Final = -62_135_596_800_000  # of the calendar: year 1
LAST_MILLIS: Final = 253_402_300_799_999  # year 9999
TEXT_MAP: Final = T.MapType(T.StringType(), T.StringType())
PROPERTY_COLUMNS: Final = frozenset({"properties", "msgId", "keys", "tags", "priority"})

# Fixed fields of a record with IPv4 hosts; IPv6 hosts are removed from other records.
FLAG_AT, SYS_FLAG_AT, BORN_AT, BORN_HOST_AT, STORED_AT, STORE_HOST_AT = 16, 36, 40, 48, 56, 64
RECONSUME_AT: Final = 72
IPV6_MORE: Final = 12  # additional bytes of an IPv6 host


def check_schema(schema: T.StructType) -> None:
    """Raise `ConfigError` if a column is unknown, duplicate or of another type."""
    names = schema.fieldNames()
    if not names:
        raise _invalid(schema.simpleString(), "it names no column")
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise _invalid(field.name, "unknown column")
        if names.count(field.name) > 1:
            raise _invalid(field.name, "duplicate column")
        kind = COLUMNS[field.name].simpleString()
        given = field.dataType.simpleString()
        if not field.nullable:
            raise _invalid(f"{field.name} {given} not null", "columns are nullable")
        if given != kind:
            raise _invalid(f"{field.name} {given}", f"its type is {kind}")


def _invalid(what: str, reason: str) -> ConfigError:
    columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
    return ConfigError("schema", what, f"{reason}; give any of {columns}")


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for *schema*."""
    return pa.schema([pa.field(f.name, _arrow_type(f.dataType), f.nullable) for f in schema])


def _arrow_type(kind: T.DataType) -> Any:  # noqa: ANN401 - pyarrow has no types
    if isinstance(kind, T.MapType):
        value = pa.field("value", pa.string(), nullable=kind.valueContainsNull)
        return pa.map_(pa.field("key", pa.string(), nullable=False), value)
    return _ARROW_TYPES[type(kind)]


_ARROW_TYPES: Final = {
    T.StringType: pa.string(),
    T.BinaryType: pa.binary(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.TimestampType: pa.timestamp("us", tz="UTC"),
}


class ColumnBuilder:
    """Collects messages for record batches with the columns of *schema*, from `arrow_schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._messages: list[MessageExt] = []
        self._runs: list[tuple[MessageQueue, int]] = []
        self._body = "body" in schema.names
        self._properties = not PROPERTY_COLUMNS.isdisjoint(schema.names)
        self.size = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: list[MessageExt]) -> None:
        """Append *messages* of one queue; bytes that no column needs are released."""
        if not messages:
            return
        self._messages += messages
        queue, before = messages[0].queue, 0
        if self._runs and self._runs[-1][0] == queue:
            before = self._runs.pop()[1]
        self._runs.append((queue, before + len(messages)))
        self.size += len(messages) * ROW_BYTES * len(self._schema)
        if self._body:
            self.size += sum([len(each.body) for each in messages])
        else:
            for each in messages:
                each.body = b""
        if self._properties:
            self.size += sum([len(each.raw_properties) for each in messages])
        else:
            for each in messages:
                each.raw_properties = b""

    def take(self) -> Iterator[Column]:
        """Return the collected messages in batches of up to `MAX_ROWS` and reset."""
        rows = _Rows(self._messages, self._runs)
        self._messages, self._runs, self.size = [], [], 0
        if not len(rows):
            return
        made = [_COLUMNS[field.name][1](rows, field.type) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(made, schema=self._schema)
        for first in range(0, len(batch), MAX_ROWS):
            yield batch.slice(first, MAX_ROWS)


@dataclass(eq=False)
class _Rows:
    """Messages and the parts that several columns share."""

    messages: list[MessageExt]
    runs: list[tuple[MessageQueue, int]]  # queues and numbers of consecutive messages

    def __len__(self) -> int:
        return len(self.messages)

    @cached_property
    def properties(self) -> PropertyColumns:
        return property_columns([each.raw_properties for each in self.messages])

    @cached_property
    def ipv6_rows(self) -> list[int]:
        """The numbers of the rows with an IPv6 host."""
        if len(self._heads) == IPV4_HEAD * len(self):
            return []
        return [row for row, each in enumerate(self.messages) if len(each.head) != IPV4_HEAD]

    @cached_property
    def _heads(self) -> bytes:
        return b"".join([each.head for each in self.messages])

    @cached_property
    def heads(self) -> bytes:
        """The fixed fields of all rows, `IPV4_HEAD` bytes each; IPv6 hosts are truncated."""
        if not self.ipv6_rows:
            return self._heads
        return b"".join([_ipv4_head(each) for each in self.messages])

    def numbers(self, at: int, kind: Column) -> Column:
        """Return the big-endian numbers of type *kind* at byte *at*."""
        size = kind.bit_width // 8
        buffer, heads = bytearray(size * len(self)), self.heads
        for place in range(size):  # to little-endian
            buffer[size - 1 - place :: size] = heads[at + place :: IPV4_HEAD]
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(buffer)])

    def hosts(self, at: int) -> Column:
        """Return the texts of the IPv4 hosts at byte *at*; few are distinct."""
        buffer, heads = bytearray(8 * len(self)), self.heads
        for place in range(8):
            buffer[place::8] = heads[at + place :: IPV4_HEAD]
        if buffer == buffer[:8] * len(self):
            return pa.repeat(pa.scalar(_host(bytes(buffer[:8])), pa.string()), len(self))
        raw = pa.Array.from_buffers(pa.binary(8), len(self), [None, pa.py_buffer(buffer)])
        coded = raw.dictionary_encode()
        texts = pa.array(map(_host, coded.dictionary.to_pylist()), pa.string())
        return texts.take(coded.indices)

    def repeated(self, kind: Column, value: Callable[[MessageQueue], object]) -> Column:
        """Return a column whose value is the same for all messages of a queue."""
        runs = [pa.repeat(pa.scalar(value(queue), kind), count) for queue, count in self.runs]
        return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)


def _ipv4_head(message: MessageExt) -> bytes:
    head, flags = message.head, message.sys_flag
    for bit, at in ((BORN_IPV6, BORN_HOST_AT + 4), (STORE_IPV6, STORE_HOST_AT + 4)):
        if flags & bit:
            head = head[:at] + head[at + IPV6_MORE :]
    return head


def _host(raw: bytes) -> str:
    return f"{'.'.join(map(str, raw[:4]))}:{int.from_bytes(raw[4:], 'big')}"


# --- one function for each kind of column: (rows, Arrow type) -> array ----------------------------

Builder = Callable[[_Rows, Any], Column]


def _number(at: int) -> Builder:
    return lambda rows, kind: rows.numbers(at, kind)


def _time(at: int) -> Builder:
    def make(rows: _Rows, kind: Any) -> Column:  # noqa: ANN401
        millis = _clear_out_of_calendar(rows.numbers(at, pa.int64()))
        return pc.multiply(millis, 1000).cast(kind)

    return make


def _clear_out_of_calendar(millis: Column) -> Column:
    """Return *millis*, null outside of years 1 to 9999: producers may write any number."""
    bounds = pc.min_max(millis)
    if bounds["min"].as_py() >= FIRST_MILLIS and bounds["max"].as_py() <= LAST_MILLIS:
        return millis
    good = pc.and_(pc.greater_equal(millis, FIRST_MILLIS), pc.less_equal(millis, LAST_MILLIS))
    return pc.if_else(good, millis, None)


def _text(at: int, own: Callable[[MessageExt], str]) -> Builder:
    def make(rows: _Rows, _kind: Any) -> Column:  # noqa: ANN401
        hosts = rows.hosts(at)
        return _replace(hosts, rows.ipv6_rows, [own(rows.messages[row]) for row in rows.ipv6_rows])

    return make


def _property(name: str) -> Builder:
    return lambda rows, _kind: rows.properties.pick(name)


def _priorities(rows: _Rows, kind: Any) -> Column:  # noqa: ANN401
    """Return the priorities as `read_priority` reads them; few producers set one."""
    found = rows.properties.pick(PRIORITY)
    if found.null_count == len(found):
        return pa.nulls(len(found), kind)
    numeric = pc.match_substring_regex(found, f"^[0-9]{{1,{PRIORITY_DIGITS}}}$")
    numbers = pc.if_else(numeric, found, None).cast(pa.int64())
    return pc.if_else(pc.less_equal(numbers, MAX_PRIORITY), numbers, None).cast(kind)


def _of_queue(value: Callable[[MessageQueue], object]) -> Builder:
    return lambda rows, kind: rows.repeated(kind, value)


def _message_ids(rows: _Rows, _kind: Any) -> Column:  # noqa: ANN401
    found = rows.properties.pick(UNIQ_KEY)
    without = pc.indices_nonzero(found.is_null()).to_pylist() if found.null_count else []
    return _replace(found, without, [rows.messages[row].offset_message_id for row in without])


def _replace(column: Column, rows: list[int], texts: list[str]) -> Column:
    """Return *column* with *texts* at *rows*."""
    if not rows:
        return column
    chosen = [False] * len(column)
    for row in rows:
        chosen[row] = True
    return pc.replace_with_mask(column, pa.array(chosen), pa.array(texts, pa.string()))


# By name: Spark's type, and the function that builds the Arrow array
_COLUMNS: Final[dict[str, tuple[T.DataType, Builder]]] = {
    "topic": (T.StringType(), _of_queue(lambda queue: queue.topic)),
    "flag": (T.IntegerType(), _number(FLAG_AT)),
    "body": (T.BinaryType(), lambda rows, kind: pa.array([m.body for m in rows.messages], kind)),
    "properties": (TEXT_MAP, lambda rows, kind: rows.properties.as_maps(kind)),
    "brokerName": (T.StringType(), _of_queue(lambda queue: queue.broker_name)),
    "queueId": (T.IntegerType(), _of_queue(lambda queue: queue.queue_id)),
    "queueOffset": (
        T.LongType(),
        lambda rows, kind: pa.array([m.queue_offset for m in rows.messages], kind),
    ),
    "bornTimestamp": (T.TimestampType(), _time(BORN_AT)),
    "storeTimestamp": (T.TimestampType(), _time(STORED_AT)),
    "msgId": (T.StringType(), _message_ids),
    "keys": (T.StringType(), _property(KEYS)),
    "tags": (T.StringType(), _property(TAGS)),
    "sysFlag": (T.IntegerType(), _number(SYS_FLAG_AT)),
    "reconsumeTimes": (T.IntegerType(), _number(RECONSUME_AT)),
    "bornHost": (T.StringType(), _text(BORN_HOST_AT, lambda message: message.born_host)),
    "storeHost": (T.StringType(), _text(STORE_HOST_AT, lambda message: message.store_host)),
    "priority": (T.IntegerType(), _priorities),
}
COLUMNS: Final = {name: kind for name, (kind, _) in _COLUMNS.items()}
SCHEMA: Final = T.StructType([T.StructField(name, kind) for name, kind in COLUMNS.items()])
