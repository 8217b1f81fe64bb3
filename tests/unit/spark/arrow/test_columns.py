"""Columns of stored messages, compared with `MessageExt` of the same bytes."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.spark.arrow import Column, columns
from rocketmq_aio.spark.arrow.columns import (
    COLUMNS,
    SCHEMA,
    ColumnBuilder,
    arrow_schema,
    check_schema,
)
from rocketmq_aio.spark.arrow.properties import MAX_BITS
from tests.unit.spark.rows import row_of
from tests.unit.stored import BORN_IPV6, STORE_IPV6, Stored

QUEUE: Final = MessageQueue("orders", "broker-a", 3)
SYSTEM: Final = b"TAGS\x01paid\x02KEYS\x01a b\x02UNIQ_KEY\x01ID1\x02WAIT\x01true"
WHOLE: Final = arrow_schema(SCHEMA)


def decoded(*stored: Stored) -> list[MessageExt]:
    messages, fault = decode_messages(b"".join([each.to_bytes() for each in stored]), QUEUE)
    assert fault is None
    return messages


def built(messages: list[MessageExt], schema: pa.Schema = WHOLE) -> Column:
    builder = ColumnBuilder(schema)
    builder.add(messages)
    [batch] = builder.take()
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    return batch


def rows_of(messages: list[MessageExt]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = built(messages).to_pylist(maps_as_pydicts="strict")
    return rows


INT: Final = st.integers(-(2**31), 2**31 - 1)
LONG: Final = st.integers(-(2**63), 2**63 - 1)
TEXT: Final = st.sampled_from(
    [b"", b"\x01", b"\x02", b"A", b"TAGS", b"UNIQ_KEY", b"\xff", b"\xc3", b"\x00", "é€".encode()]
)
PROPERTIES: Final = st.one_of(
    st.sampled_from([b"", SYSTEM, SYSTEM + b"\x02", SYSTEM + b"\x02WAIT\x01false\x02"]),
    st.lists(TEXT, max_size=12).map(b"".join),
)
MESSAGES: Final = st.builds(
    Stored,
    body=st.binary(max_size=8),
    properties=PROPERTIES,
    queue_offset=st.integers(0, 2**63 - 1),
    flag=INT,
    sys_flag=st.sampled_from([0, BORN_IPV6, STORE_IPV6, BORN_IPV6 | STORE_IPV6, 8]),
    born_ms=st.one_of(LONG, st.integers(-(10**14), 3 * 10**14)),
    store_ms=LONG,
    commit_log_offset=st.integers(0, 2**63 - 1),
    reconsume_times=INT,
)


@given(st.lists(MESSAGES, min_size=1, max_size=12))
def test_columns_equal_message_attributes(stored: list[Stored]) -> None:
    messages = decoded(*stored)
    assert rows_of(messages) == [row_of(each) for each in messages]


@given(st.lists(st.permutations([*COLUMNS]), min_size=1, max_size=3), st.integers(1, len(COLUMNS)))
def test_columns_are_built_in_the_order_of_the_schema(orders: list[list[str]], count: int) -> None:
    messages = decoded(Stored(), Stored(properties=b"", queue_offset=8))
    for names in orders:
        chosen = StructType([SCHEMA[name] for name in names[:count]])
        check_schema(chosen)
        batch = built(messages, arrow_schema(chosen))
        assert batch.schema.names == names[:count]
        whole = rows_of(messages)
        got = batch.to_pylist(maps_as_pydicts="strict")
        assert got == [{name: row[name] for name in names[:count]} for row in whole]


def test_invalid_utf8_is_replaced_in_text_and_kept_in_bodies() -> None:
    [row] = rows_of(decoded(Stored(body=b"\xff\x00", properties=b"TAGS\x01p\xffid\x02")))
    assert (row["tags"], row["properties"]) == ("p\ufffdid", {"TAGS": "p\ufffdid"})
    assert row["body"] == b"\xff\x00"


@pytest.mark.parametrize("last", [b"", b"KEYS\x01k\x02TAGS\x01t\x02", b"TAGS\x01t\x02KEYS\x01"])
def test_one_row_may_have_other_property_names(last: bytes) -> None:
    alike = [b"TAGS\x01t%d\x02KEYS\x01k%d\x02" % (10**each, each) for each in range(5)]
    for properties in (alike, [*alike, last]):
        messages = decoded(*[Stored(properties=each) for each in properties])
        assert rows_of(messages) == [row_of(each) for each in messages]


def test_the_last_of_duplicate_properties_wins() -> None:
    [row] = rows_of(decoded(Stored(properties=b"A\x01one\x02TAGS\x01x\x02A\x01two\x02")))
    assert row["properties"] == {"A": "two", "TAGS": "x"}


def test_duplicate_properties_are_found_in_rows_of_different_lengths() -> None:
    properties = [b"A\x01one\x02", b"", b"A\x01two\x02A\x01three\x02"]
    messages = decoded(*[Stored(properties=each) for each in properties])

    assert [row["properties"] for row in rows_of(messages)] == [{"A": "one"}, {}, {"A": "three"}]


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"2147483647", 2**31 - 1),
        (b"2147483648", None),
        (b"00000000001", None),
        (b"-1", None),
        (b"1\n", None),
        ("\u0661".encode(), None),
    ],
)
def test_a_priority_is_a_number_as_brokers_read_it(text: bytes, priority: int | None) -> None:
    stored = Stored(properties=b"_SYS_MSG_PRIORITY_\x01" + text + b"\x02")
    messages = decoded(Stored(), stored)
    found = rows_of(messages)
    assert [row["priority"] for row in found] == [None, priority]
    assert found == [row_of(each) for each in messages]


def test_a_message_without_a_producer_id_has_the_broker_id() -> None:
    messages = decoded(
        Stored(), Stored(properties=b"TAGS\x01x\x02", sys_flag=STORE_IPV6), Stored(properties=b"")
    )
    assert [row["msgId"] for row in rows_of(messages)] == [
        "ID1",
        messages[1].offset_message_id,
        messages[2].offset_message_id,
    ]


@pytest.mark.parametrize("extra", [b"", b"name0\x01again\x02"])
def test_more_property_names_than_bits_are_supported(extra: bytes) -> None:
    many = b"".join([b"name%d\x01v\x02" % each for each in range(MAX_BITS + 5)])
    messages = decoded(Stored(properties=many), Stored(properties=many + extra), Stored())
    assert rows_of(messages) == [row_of(each) for each in messages]


def test_a_batch_holds_messages_of_several_queues() -> None:
    builder = ColumnBuilder(WHOLE)
    builder.add(decoded(Stored(), Stored(queue_offset=8)))
    other = MessageQueue("orders", "broker-b", 0)
    messages, _ = decode_messages(Stored(queue_offset=1).to_bytes(), other)
    builder.add(messages)
    builder.add([])
    [batch] = builder.take()
    assert batch["brokerName"].to_pylist() == ["broker-a", "broker-a", "broker-b"]
    assert batch["queueId"].to_pylist() == [3, 3, 0]
    assert batch["queueOffset"].to_pylist() == [7, 8, 1]
    assert list(builder.take()) == []


def test_batches_respect_the_row_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_ROWS", 4)
    builder = ColumnBuilder(WHOLE)
    builder.add(decoded(*[Stored(queue_offset=each) for each in range(10)]))
    assert len(builder) == 10
    batches = list(builder.take())
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [o for batch in batches for o in batch["queueOffset"].to_pylist()] == [*range(10)]


def test_size_counts_selected_columns_only() -> None:
    numbers = ColumnBuilder(arrow_schema(StructType([SCHEMA["queueOffset"]])))
    bodies = ColumnBuilder(arrow_schema(StructType([SCHEMA["queueOffset"], SCHEMA["body"]])))
    for builder in (numbers, bodies):
        builder.add(decoded(Stored(body=bytes(1000))))
    assert numbers.size < 100 < 1000 < bodies.size


@pytest.mark.parametrize(
    ("names", "bodies", "properties"),
    [
        (["queueOffset"], False, False),
        (["body"], True, False),
        (["queueOffset", "tags"], False, True),
        (["keys"], False, True),
        (["msgId"], False, True),
        (["priority"], False, True),
        (["properties", "body"], True, True),
    ],
)
def test_bytes_of_unselected_columns_are_released(
    names: list[str], bodies: bool, properties: bool
) -> None:
    builder = ColumnBuilder(arrow_schema(StructType([SCHEMA[name] for name in names])))
    messages = decoded(Stored(body=bytes(1000), properties=SYSTEM + b"\x02a\x01" + bytes(500)))
    [message] = messages

    builder.add(messages)

    assert len(message.body) == 1000 * bodies
    assert bool(message.raw_properties) == properties
    kept = len(message.body) + len(message.raw_properties)
    assert kept <= builder.size < kept + 200


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("queue_id", IntegerType()), "unknown column"),
        (StructField("queueOffset", IntegerType()), "its type is bigint"),
        (StructField("properties", MapType(StringType(), IntegerType())), "its type is map<string"),
        (StructField("tags", StringType(), nullable=False), "columns are nullable"),
        (StructField("topic", StringType()), "duplicate column"),
    ],
)
def test_an_invalid_schema_is_rejected(field: StructField, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        check_schema(StructType([SCHEMA["topic"], field]))
    assert "queueOffset bigint, bornTimestamp timestamp" in str(refused.value)


def test_a_schema_names_at_least_one_column() -> None:
    with pytest.raises(ConfigError, match="names no column"):
        check_schema(StructType([]))
