"""Receipts: text form, receipts of a response, batch acks; compared with the Java classes."""

from __future__ import annotations

from base64 import b64decode
from struct import Struct
from typing import Any, Final

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.receipt import (
    PopInfo,
    Receipt,
    batch_acks,
    bit_set,
    fits_batch,
    order_count,
    parse_receipt,
    read_info,
    receipts,
    retry_topics,
    with_receipts,
)
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.pop import ChangeInvisibleTimeResponse, PopMessageResponse
from tests.unit.protocol.wire_files import RECORDED, load
from tests.unit.stored import MAGIC_V1, MAGIC_V2, Stored

GOLDEN: Final = load("frames/golden/texts.json")["receipts"]
TOPIC: Final = "TopicTest"
POPPED_AT: Final = 1_700_000_000_000
_QUEUE_AND_OFFSET: Final = Struct(">12xi4xq")


def receipt(**changes: Any) -> Receipt:  # noqa: ANN401 - the fields of a receipt
    fields = {
        "start_offset": 100,
        "pop_time": POPPED_AT,
        "invisible_time": 60_000,
        "revive_queue_id": 3,
        "marker": "0",
        "broker_name": "broker-a",
        "queue_id": 2,
        "offset": 105,
    }
    return Receipt(**{**fields, **changes})


def answer(starts: str | None, offsets: str | None, counts: str | None = None) -> Any:  # noqa: ANN401
    return PopMessageResponse(
        pop_time=POPPED_AT,
        invisible_time=60_000,
        revive_queue_id=3,
        rest_num=0,
        start_offset_info=starts,
        msg_offset_info=offsets,
        order_count_info=counts,
    )


def message(queue_id: int, offset: int, written: str = "") -> MessageExt:
    properties = f"TAGS\x01a\x02POP_CK\x01{written}\x02" if written else "TAGS\x01a\x02"
    queue = MessageQueue(TOPIC, "broker-a", queue_id)
    return MessageExt(TOPIC, b"x", queue, offset, b"", properties.encode())


# --- the text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "marker"), [("eight_fields", "1"), ("retry_v2", "2")])
def test_a_receipt_reads_and_writes_as_java_does(name: str, marker: str) -> None:
    read = parse_receipt(GOLDEN[name])

    assert read == receipt(marker=marker)
    assert str(read) == GOLDEN[name]


@pytest.mark.parametrize("text", [GOLDEN["seven_fields"], "", "a 1 1 1 0 b 0 0", "1 " * 9])
def test_an_invalid_receipt_is_rejected(text: str) -> None:
    with pytest.raises(CodecError, match="receipt"):
        parse_receipt(text)


@pytest.mark.parametrize(
    ("marker", "topic"),
    [("0", TOPIC), ("1", GOLDEN["real_topic_1"]), ("2", GOLDEN["real_topic_2"])],
)
def test_the_marker_contains_the_queue_of_a_message(marker: str, topic: str) -> None:
    assert receipt(marker=marker).stored_topic("cg", TOPIC) == topic


def test_a_changed_receipt_starts_at_its_own_offset() -> None:
    said = ChangeInvisibleTimeResponse(pop_time=5, invisible_time=6, revive_queue_id=7)

    changed = receipt(marker="1").changed(said)

    assert str(changed) == "105 5 6 7 1 broker-a 2 105"


# --- the receipts of an answer -------------------------------------------------------------------


def test_the_tables_of_an_answer_read_as_java_reads_them() -> None:
    info = read_info(answer("0 1 100;1 0 7", "0 1 100,101,103;1 0 7", "0 1 2;0 qo1%100 3"))

    def by_java(table: Any) -> dict[str, Any]:  # noqa: ANN401 - any of the three
        return {f"{marker}@{queue}": value for (marker, queue), value in table.items()}

    assert by_java(info.starts) == GOLDEN["parse_start"]
    assert by_java(info.offsets) == GOLDEN["parse_msg"]
    assert by_java(info.counts) == GOLDEN["parse_order"]


def test_the_receipts_of_recorded_messages_are_those_java_sent_back() -> None:
    exchanges = RECORDED["200050-pop-message"]["exchanges"]
    popped = [each["response"]["says"] for each in exchanges if "response" in each]
    acked = [
        each["request"]["says"]["ext"]["extraInfo"]
        for name in ("200051-ack-message", "200053-change-message-invisibletime")
        for each in RECORDED[name]["exchanges"]
    ]
    made = []
    for says in (each for each in popped if each.get("body_messages")):
        ext = says["ext"]
        fields = answer(ext["startOffsetInfo"], ext["msgOffsetInfo"])
        messages = [message(m["queueId"], m["queueOffset"]) for m in says["body_messages"]]
        times = (int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]))
        made += [
            str(receipt(
                start_offset=each.start_offset,
                pop_time=times[0],
                invisible_time=times[1],
                revive_queue_id=times[2],
                queue_id=each.queue_id,
                offset=each.offset,
            ))
            for each in receipts(messages, fields, "broker-a")
        ]  # fmt: skip

    assert made
    assert set(acked) & set(made)


def test_receipts_are_built_by_queue_in_the_order_of_the_answer() -> None:
    messages = [message(1, 100), message(0, 7), message(1, 103)]

    made = receipts(messages, answer("0 1 98;0 0 7", "0 1 100,103;0 0 7"), "b")

    assert [(r.start_offset, r.queue_id, r.offset) for r in made] == [
        (98, 1, 100), (7, 0, 7), (98, 1, 103),
    ]  # fmt: skip
    assert {(r.pop_time, r.invisible_time, r.revive_queue_id, r.marker) for r in made} == {
        (POPPED_AT, 60_000, 3, "0")
    }


def test_a_receipt_set_by_the_broker_is_used() -> None:
    written = "7 1 2 3 1 broker-a 0 9"

    made = receipts([message(0, 9, written), message(0, 5)], answer("0 0 5;1 0 7", "0 0 5"), "b")

    assert [str(made[0]), made[1].offset] == [written, 5]


def test_without_tables_receipts_begin_at_the_first_message_of_each_queue() -> None:
    messages = [message(1, 100), message(0, 7), message(1, 103)]

    made = receipts(messages, answer(None, None), "b")

    assert [(r.start_offset, r.offset) for r in made] == [(100, 100), (7, 7), (100, 103)]


def test_the_offset_table_overrides_the_queue_offset() -> None:
    [one, two] = receipts([message(0, 5), message(0, 6)], answer("0 0 50", "0 0 50,51"), "b")

    assert (one.offset, two.offset) == (50, 51)


@pytest.mark.parametrize(
    ("starts", "offsets"), [("0 1 5", "0 1 5"), ("x", "0 0 5"), ("0 0 5", "0 0 a"), ("0 0 5", "")]
)
def test_a_response_without_data_of_a_message_is_rejected(starts: str, offsets: str) -> None:
    with pytest.raises(CodecError):
        receipts([message(0, 5)], answer(starts, offsets), "b")


def test_the_count_of_a_message_overrides_that_of_its_queue() -> None:
    info = PopInfo({}, {}, {("0", "2"): 4, ("0", "qo2%105"): 1, ("0", "qo2%106"): 0})

    assert [order_count(info, receipt(offset=n)) for n in (104, 105, 106)] == [4, 1, 0]
    assert order_count(info, receipt(queue_id=1)) == 0


# --- batch acks ----------------------------------------------------------------------------------


def test_a_bit_set_is_written_as_java_writes_it() -> None:
    assert bit_set([100, 102, 109], 100) == "BQI="
    assert bit_set([0, 1, 2], 0) == "Bw=="


@given(st.sets(st.integers(0, 500), min_size=1), st.integers(0, 2**62))
def test_a_bit_set_holds_exactly_its_offsets(bits: set[int], start: int) -> None:
    data = b64decode(bit_set([start + bit for bit in bits], start))

    assert {n for n in range(len(data) * 8) if data[n // 8] >> n % 8 & 1} == bits
    assert data[-1] != 0


def test_receipts_of_one_pop_and_queue_share_an_entry() -> None:
    done = [receipt(offset=n) for n in (100, 102, 109)]
    retried = receipt(marker="1", offset=100)

    together, apart = batch_acks("cg", [(TOPIC, each) for each in (*done, retried)])

    assert (together.bits, together.start_offset, together.marker) == ("BQI=", 100, "0")
    assert (apart.bits, apart.topic, apart.marker) == ("AQ==", TOPIC, "1")


@pytest.mark.parametrize(("offset", "fits"), [(100, True), (99, False), (100 + 4096, False)])
def test_only_near_offsets_fit_a_bit_set(offset: int, *, fits: bool) -> None:
    assert fits_batch(receipt(offset=offset)) is fits


# --- brokers that send retried messages as they are stored ----------------------------------------

RETRIES: Final = "%RETRY%billing_TopicTest"
RETRY_TOPICS: Final = retry_topics("billing", TOPIC)


def popped(*records: Stored, starts: str, offsets: str) -> tuple[list[MessageExt], list[Receipt]]:
    """Return the messages of a pop by group ``billing``, and their receipts."""
    response = answer(starts, offsets)
    data = b"".join(record.to_bytes() for record in records)
    body = with_receipts(data, response, TOPIC, RETRY_TOPICS, "broker-a")
    messages, fault = decode_messages(body, MessageQueue(TOPIC, "broker-a", 3))
    assert fault is None
    return messages, receipts(messages, response, "broker-a")


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("properties", [b"", b"TAGS\x01paid", b"TAGS\x01paid\x02"])
def test_a_stored_retry_gets_its_topic_and_receipt(magic: int, properties: bytes) -> None:
    stored = Stored(topic=RETRIES.encode(), magic=magic, properties=properties, queue_offset=9)
    [message], [own] = popped(stored, starts="1 3 8", offsets="1 3 8,9")

    assert (message.topic, message.body) == (TOPIC, b"hello")
    assert message.properties.get("TAGS", "") == ("paid" if properties else "")
    assert own == receipt(start_offset=8, queue_id=3, offset=9, marker="1")
    assert own.stored_topic("billing", TOPIC) == RETRIES


def test_stored_retries_of_both_versions_may_come_with_other_messages() -> None:
    records = [Stored(topic=RETRIES.encode(), queue_offset=number) for number in (4, 6)]
    records.insert(1, Stored(topic=TOPIC.encode(), queue_offset=20))
    records.append(Stored(topic=b"%RETRY%billing+TopicTest", queue_offset=9))
    messages, own = popped(*records, starts="0 3 20;1 3 4;2 3 8", offsets="0 3 20;1 3 4,6;2 3 8,9")

    assert {message.topic for message in messages} == {TOPIC}
    assert [(each.marker, each.start_offset, each.offset) for each in own] == [
        ("1", 4, 4),
        ("0", 20, 20),
        ("1", 4, 6),
        ("2", 8, 9),
    ]


def test_a_response_without_retries_is_not_changed() -> None:
    data = Stored(topic=TOPIC.encode()).to_bytes()

    assert with_receipts(data, answer(None, None), TOPIC, RETRY_TOPICS, "broker-a") is data


@pytest.mark.parametrize("cut", [1, 60, 100])
def test_a_stored_retry_that_is_cut_is_a_codec_error(cut: int) -> None:
    data = Stored(topic=RETRIES.encode()).to_bytes() * 2
    body = with_receipts(data[:-cut], answer("1 3 7", "1 3 7,7"), TOPIC, RETRY_TOPICS, "broker-a")
    messages, fault = decode_messages(body, MessageQueue(TOPIC, "broker-a", 3))

    assert len(messages) == 1
    assert isinstance(fault, CodecError)


def test_a_stored_retry_without_room_for_its_receipt_is_a_codec_error() -> None:
    data = Stored(topic=RETRIES.encode(), properties=b"x" * 65_535).to_bytes()

    with pytest.raises(CodecError, match="room"):
        with_receipts(data, answer("1 3 7", "1 3 7"), TOPIC, RETRY_TOPICS, "broker-a")
