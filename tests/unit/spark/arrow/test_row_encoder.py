"""Row encoder: columns to batch entries, and rejected rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import LMQ_NAMES, parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.record import decode_batch
from rocketmq_aio.spark.arrow.batch_entries import id_pieces, read_entry
from rocketmq_aio.spark.arrow.row_encoder import EncodedRows, encode, slices
from rocketmq_aio.spark.write.write_requests import RequestLimits, WriteRequest, write_requests

PREFIX = "0123456789ABCDEF0123"
STRING = pa.string()
TEXT_MAP = pa.map_(STRING, STRING)
ROOMY = RequestLimits(bytes=1 << 20, records=256)
WAITS = {"WAIT": "true"}


def rows(topic: str | None = "orders", /, first_row: int = 0, **columns: Any) -> EncodedRows:  # noqa: ANN401
    columns.setdefault("body", pa.array([b"x"] * len(next(iter(columns.values())))))
    batch = pa.RecordBatch.from_pydict(columns)
    return encode(batch, topic=topic, id_prefix=PREFIX, first_row=first_row, most_bytes=4096)


def properties(encoded: EncodedRows) -> list[dict[str, str]]:
    """The properties of each row without its id."""
    found = [parse_properties(read_entry(raw).properties) for raw in encoded.entries.to_pylist()]
    for each in found:
        del each["UNIQ_KEY"]
    return found


def sent(
    encoded: EncodedRows, limits: RequestLimits = ROOMY, keyed: Mapping[str, int] = {}
) -> list[WriteRequest]:
    def queues_of_keys(topic: str, keys: list[str]) -> list[MessageQueue]:
        return [MessageQueue(topic, "broker-a", keyed[key]) for key in keys]

    return list(write_requests(encoded, limits, queues_of_keys))


def bodies(request: WriteRequest) -> list[bytes]:
    if not request.encoded.batch:
        return [request.encoded.body]
    return [body for _, body, _ in decode_batch(request.encoded.body)]


# --- columns --------------------------------------------------------------------------------------


def test_text_columns_become_properties_unless_null_or_empty() -> None:
    texts = pa.array(["a", None, ""])
    encoded = rows(tags=texts, keys=texts, shardingKey=texts)

    first = {"TAGS": "a", "KEYS": "a", "__SHARDINGKEY": "a"}
    assert properties(encoded) == [WAITS | first, WAITS, WAITS]


def test_keys_may_be_an_array() -> None:
    keys = pa.array([["a", "b"], None, [], ["c"]], pa.list_(STRING))

    assert [each.get("KEYS") for each in properties(rows(keys=keys))] == ["a b", None, None, "c"]


def test_user_properties_are_sent_without_empty_values() -> None:
    maps = pa.array(
        [[("a", "1"), ("b", None), ("ü", "ö")], None, [], [("c", ""), (LMQ_NAMES, "")]], TEXT_MAP
    )

    assert properties(rows(properties=maps)) == [WAITS | {"a": "1", "ü": "ö"}, WAITS, WAITS, WAITS]


def test_a_slice_of_a_record_batch_encodes_its_own_rows() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"0", b"1", b"2", b"3"]),
            "flag": pa.array([0, 1, 2, 3], pa.int32()),
            "keys": pa.array([["0"], ["1"], None, ["3"]], pa.list_(STRING)),
            "properties": pa.array([[("n", str(n))] for n in range(4)], TEXT_MAP),
            "tags": pa.array(["0", "1", None, "3"]),
        }
    ).slice(1, 3)
    encoded = encode(batch, topic="orders", id_prefix=PREFIX, first_row=0, most_bytes=99)

    entries = [read_entry(raw) for raw in encoded.entries.to_pylist()]
    assert [(each.flag, each.body) for each in entries] == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert properties(encoded) == [
        WAITS | {"n": "1", "TAGS": "1", "KEYS": "1"},
        WAITS | {"n": "2"},
        WAITS | {"n": "3", "TAGS": "3", "KEYS": "3"},
    ]


@pytest.mark.parametrize(
    ("column", "kind", "plain"),
    [
        ("body", pa.large_string(), ["a", "b"]),
        ("body", pa.large_binary(), [b"a", b"b"]),
        ("body", STRING, ["a", "b"]),
        ("keys", pa.large_list(pa.large_string()), [["a"], ["b", "c"]]),
        ("tags", pa.large_string(), ["a", "b"]),
        ("properties", pa.map_(pa.large_string(), pa.large_string()), [[("a", "b")], []]),
    ],
)
def test_large_arrow_types_encode_the_same(
    column: str, kind: pa.DataType, plain: list[Any]
) -> None:
    usual = {"body": pa.binary(), "keys": pa.list_(STRING), "tags": STRING, "properties": TEXT_MAP}
    values = [
        each.encode() if column == "body" and isinstance(each, str) else each for each in plain
    ]

    large = rows(**{column: pa.array(plain, kind)})
    assert large.entries.equals(rows(**{column: pa.array(values, usual[column])}).entries)


def test_delayed_rows_are_single_messages_with_properties() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
    encoded = rows(
        delayLevel=pa.array([0, 3, None, None], pa.int64()),
        deliverTimestamp=pa.array([None, None, when, None], pa.timestamp("us", "UTC")),
    )

    millis = str(int(when.timestamp() * 1000))
    assert properties(encoded) == [
        WAITS,
        WAITS | {"DELAY": "3"},
        WAITS | {"TIMER_DELIVER_MS": millis},
        WAITS,
    ]
    singles = [each.encoded for each in sent(encoded) if not each.encoded.batch]
    assert [each.timed for each in singles] == [False, True]
    assert [each.message_id[-1] for each in singles] == ["1", "2"]


def test_rows_with_a_priority_are_single_messages() -> None:
    priorities = pa.array([None, 0, 7, 2**31 - 1])
    encoded = rows(priority=priorities, body=pa.array([b"0", b"1", b"2", b"3"]))

    names = [each.get("_SYS_MSG_PRIORITY_") for each in properties(encoded)]
    assert names == [None, "0", "7", "2147483647"]
    single = {bool(each.encoded.batch): bodies(each) for each in sent(encoded)}
    assert single[True] == [b"0"]
    assert [bodies(each) for each in sent(encoded)][:3] == [[b"1"], [b"2"], [b"3"]]


@pytest.mark.parametrize("name", ["INNER_MULTI_DISPATCH", "__LITE_TOPIC"])
def test_rows_for_light_message_queues_are_single_messages(name: str) -> None:
    maps = pa.array([None, [("a", "1"), (name, "%LMQ%b")], []], pa.map_(STRING, STRING))
    encoded = rows(properties=maps, body=pa.array([b"0", b"1", b"2"]))

    assert [bodies(each) for each in sent(encoded)] == [[b"1"], [b"0", b"2"]]


def test_rows_without_a_priority_are_sent_in_batches() -> None:
    [request] = sent(rows(priority=pa.array([None, None], pa.int32())))

    assert request.rows == 2


@pytest.mark.parametrize("empty", [pa.array(["", ""]), pa.array([None, None], STRING)])
def test_an_empty_broker_name_selects_no_queue(empty: pa.Array) -> None:
    found = sent(rows(brokerName=empty, queueId=pa.array([None, None], pa.int32())))

    assert [each.destination.queue for each in found] == [None]


def test_a_delivery_time_may_be_a_number() -> None:
    (only,) = properties(rows(deliverTimestamp=pa.array([1_900_000_000_000])))

    assert only["TIMER_DELIVER_MS"] == "1900000000000"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=50),
            st.none()
            | st.text(
                st.characters(codec="utf-8", exclude_characters="|\x01\x02"), min_size=1
            ).filter(str.strip),
            st.none()
            | st.dictionaries(st.sampled_from(["a", "b", "ü"]), st.sampled_from(["1", "zwölf"])),
            st.integers(-(2**31), 2**31 - 1),
        ),
        min_size=1,
    )
)
def test_an_entry_equals_a_message_encoded_by_the_client(
    given_rows: list[tuple[bytes, str | None, dict[str, str] | None, int]],
) -> None:
    body, tags, maps, flags = zip(*given_rows, strict=True)
    encoded = rows(
        body=pa.array(body),
        tags=pa.array(tags, STRING),
        properties=pa.array([each and list(each.items()) for each in maps], TEXT_MAP),
        flag=pa.array(flags),
    )
    messages = [
        Message("orders", body, tags=tags, properties=maps, flag=flag)
        for body, tags, maps, flag in given_rows
    ]

    entries = [read_entry(raw) for raw in encoded.entries.to_pylist()]
    assert [(each.flag, each.body) for each in entries] == [(m.flag, m.body) for m in messages]
    assert properties(encoded) == [each.properties for each in messages]
    assert [body for request in sent(encoded) for body in bodies(request)] == list(body)


# --- ids ------------------------------------------------------------------------------------------


def test_ids_count_rows_beyond_the_last_counter() -> None:
    ids = [
        read_entry(raw).message_id
        for raw in rows(first_row=0x1FFFE, body=pa.array([b"x"] * 4)).entries.to_pylist()
    ]

    assert ids == [PREFIX + f"{number:012X}" for number in range(0x1FFFE, 0x20002)]
    assert len(id_pieces(PREFIX, 0, 0)) == 0


# --- destinations ---------------------------------------------------------------------------------


def test_the_topic_option_overrides_the_topic_column() -> None:
    columns = {"topic": pa.array(["b", "a", "b"]), "body": pa.array([b"0", b"1", b"2"])}

    found = {each.encoded.topic: bodies(each) for each in sent(rows(None, **columns))}
    assert found == {"b": [b"0", b"2"], "a": [b"1"]}
    assert [each.encoded.topic for each in sent(rows("c", **columns))] == ["c"]


def test_keys_of_one_queue_keep_their_order() -> None:
    keys = pa.array(["k", "l", "m", None, "k", "l"])
    found = sent(
        rows(shardingKey=keys, body=pa.array([b"%d" % n for n in range(6)])),
        keyed={"k": 1, "l": 2, "m": 1},
    )

    destinations = {
        each.destination and each.destination.queue and each.destination.queue.queue_id: bodies(
            each
        )
        for each in found
    }
    assert destinations == {None: [b"3"], 1: [b"0", b"2", b"4"], 2: [b"1", b"5"]}


def test_an_explicit_queue_takes_precedence_over_a_key() -> None:
    found = sent(
        rows(
            brokerName=pa.array(["broker-b", None]),
            queueId=pa.array([7, None]),
            shardingKey=pa.array(["k", "k"]),
        ),
        keyed={"k": 1},
    )

    assert [each.destination.queue for each in found if each.destination] == [
        MessageQueue("orders", "broker-b", 7),
        MessageQueue("orders", "broker-a", 1),
    ]


@pytest.mark.parametrize("delayed", [False, True])
def test_rows_for_a_retry_topic_are_single_messages(delayed: bool) -> None:
    topics = pa.array(["%RETRY%group", "%RETRY%group"])
    more = {"delayLevel": pa.array([1, 0])} if delayed else {}
    found = sent(rows(None, topic=topics, **more))

    assert [each.encoded.batch for each in found] == [False, False]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    most=st.integers(60, 700),
    records=st.integers(1, 10),
)
def test_batches_respect_limits_and_keep_all_rows(
    sizes: list[int], most: int, records: int
) -> None:
    given_bodies = [bytes([n % 250]) * size for n, size in enumerate(sizes)]
    found = sent(rows(body=pa.array(given_bodies)), RequestLimits(most, records))

    assert [body for request in found for body in bodies(request)] == given_bodies
    for request in found:
        assert len(bodies(request)) == request.rows <= records
        assert len(request.encoded.body) <= most or not request.encoded.batch
        assert request.encoded.message_id.startswith(PREFIX)


def test_a_large_record_batch_is_encoded_in_slices() -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array([bytes(1000)] * 10)})
    parts = list(slices(batch, most_bytes=3000))

    assert sum(each.num_rows for each in parts) == 10
    assert max(each.num_rows for each in parts) <= 3
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))


# --- rejected rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": pa.array([b"x", None])}, "row 11 of the task: its body is null"),
        ({"body": pa.array([b"x", b""])}, "its body is empty"),
        (
            {"body": pa.array([b"x", bytes(4097)])},
            "row 11 .* body has 4097 bytes, the maximum is 4096",
        ),
        ({"tags": pa.array(["a", "b|c"])}, "one tag, without a bar"),
        ({"tags": pa.array(["a", "b\x01"])}, r"tags may not hold U\+0001"),
        ({"keys": pa.array(["a", "b\x02"])}, "keys may not hold"),
        ({"keys": pa.array([["a"], ["b", None]])}, "row 11 .* keys: one of them is null"),
        ({"keys": pa.array([["a"], ["b", ""]])}, "is null, empty or"),
        ({"keys": pa.array([["a"], ["b c"]])}, "holds a space"),
        ({"shardingKey": pa.array(["a", " "])}, "row 11 .* its shardingKey is blank"),
        ({"shardingKey": pa.array(["a", "b\x01"])}, "shardingKey may not hold"),
        ({"properties": pa.array([[], [("a", "\x02")]], TEXT_MAP)}, "row 11 .* properties may not"),
        ({"properties": pa.array([[], [("\x01", "a")]], TEXT_MAP)}, "row 11 .* properties may not"),
        ({"properties": pa.array([[], [("KEYS", "a")]], TEXT_MAP)}, "row 11 .*'KEYS' is reserved"),
        ({"properties": pa.array([None, [(" ", "a")]], TEXT_MAP)}, "row 11 .* a blank name"),
        *(
            (
                {"properties": pa.array([[("a", names)], [(LMQ_NAMES, names)]], TEXT_MAP)},
                "row 11 .* light message queues .* no slash",
            )
            for names in ("%LMQ%b/c", "a,%LMQ%b", "%LMQ%b,")
        ),
        ({"properties": pa.array([[], [("a", "x" * 33_000)]], TEXT_MAP)}, "properties take 33"),
        (
            {
                "properties": pa.array([[("a", "x" * 32_400)]] * 2, TEXT_MAP),
                "deliverTimestamp": pa.array([None, 10**12]),
            },
            "row 11 .* with a deliverTimestamp 32337 fit",
        ),
        ({"flag": pa.array([0, 2**31])}, "flag=2147483648"),
        ({"delayLevel": pa.array([0, 2**31])}, "delayLevel=2147483648: expected 0 to 2147483647"),
        ({"delayLevel": pa.array([0, -1])}, "delayLevel=-1"),
        (
            {"delayLevel": pa.array([1, 1]), "deliverTimestamp": pa.array([None, 5])},
            "row 11 .* a delayLevel and a deliverTimestamp",
        ),
        (
            {"deliverTimestamp": pa.array([0, 1769842800])},
            "row 11 .* deliverTimestamp=1769842800: expected milliseconds since 1970",
        ),
        ({"priority": pa.array([0, -1])}, "row 11 .* priority=-1: expected 0 to 2147483647"),
        ({"priority": pa.array([0, 2**31])}, "row 11 .* priority=2147483648"),
        (
            {"priority": pa.array([1, 0]), "delayLevel": pa.array([0, 1])},
            "row 11 .* a priority and a delayLevel: set one of them",
        ),
        (
            {"priority": pa.array([1, 0]), "deliverTimestamp": pa.array([None, 10**12])},
            "row 11 .* a priority and a deliverTimestamp",
        ),
        (
            {"priority": pa.array([1, 0]), "shardingKey": pa.array(["", "k"])},
            "row 11 .* a priority and a shardingKey",
        ),
        (
            {
                "priority": pa.array([1, 0]),
                "brokerName": pa.array([None, "b"]),
                "queueId": pa.array([None, 0]),
            },
            "row 11 .* a priority and a brokerName",
        ),
        (
            {"brokerName": pa.array(["b", ""]), "queueId": pa.array([1, 2])},
            "row 11 .* set both or none",
        ),
        (
            {"brokerName": pa.array(["b", "b\x01c"]), "queueId": pa.array([1, 2])},
            r"row 11 .* brokerName may not hold U\+0001",
        ),
        (
            {"brokerName": pa.array(["b", None]), "queueId": pa.array([1, 2])},
            "row 11 .* set both or none",
        ),
        (
            {"brokerName": pa.array(["b", "b"]), "queueId": pa.array([1, -2])},
            "row 11 .* queueId=-2",
        ),
        ({"tags": pa.array([b"a", b"\xff"]).view(pa.string())}, "tags: Invalid UTF8"),
    ],
)
def test_an_invalid_row_is_named(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidMessageError, match=words) as refused:
        rows(first_row=10, **columns)

    assert refused.value.topic == "orders"


def test_tags_of_copies_are_sent_unchanged() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"x"], "tags": ["a", "b|c"]})

    encoded = encode(
        batch, topic="orders", id_prefix=PREFIX, first_row=0, most_bytes=9, check_tags=False
    )

    assert [each["TAGS"] for each in properties(encoded)] == ["a", "b|c"]


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        (None, "its topic is null"),
        ("no topic", "only letters"),
        ("", "not blank"),
        ("SCHEDULE_TOPIC_XXXX", "reserved by the broker"),
        ("%LMQ%alice", "send to a topic"),
        ("x" * 128, "128"),
    ],
)
def test_an_invalid_topic_is_rejected_with_its_row(topic: str | None, words: str) -> None:
    with pytest.raises(InvalidMessageError, match=f"row 1 of the task: .*{words}"):
        rows(None, topic=pa.array(["orders", topic]))
