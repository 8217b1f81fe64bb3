"""Explicit batches: grouping and splitting."""

from __future__ import annotations

import pytest

from rocketmq_aio.config.producer import MAX_BATCH_MESSAGES, ProducerConfig
from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import parse_properties
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus
from rocketmq_aio.producer.batching.explicit_batch import Batch, batches
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.record import decode_batch
from tests.unit.costs import peak_bytes

pytestmark = pytest.mark.usefixtures("each_core")

QUEUE = MessageQueue("orders", "broker-a", 1)


def split(messages: list[Message], **settings: int) -> list[Batch]:
    config = ProducerConfig(**settings)  # type: ignore[arg-type]  # numbers
    return batches(messages, MessageIdGenerator(b"\x7f\0\0\1", 1, 2), 0, config)


def places(made: list[Batch]) -> list[list[int]]:
    return [batch.positions for batch in made]


def stored(**changes: object) -> SendResult:
    fields = {
        "status": SendStatus.SEND_OK,
        "message_id": "ignored",
        "offset_message_id": "X,Y,Z",
        "queue": QUEUE,
        "queue_offset": 100,
    }
    return SendResult(**(fields | changes))  # type: ignore[arg-type]


def test_messages_of_one_topic_share_a_batch_in_order() -> None:
    (batch,) = split([Message("orders", b"%d" % number, flag=number) for number in range(3)])

    assert batch.positions == [0, 1, 2]
    entries = list(decode_batch(b"".join(batch.parts)))
    assert [(flag, body) for flag, body, _ in entries] == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_each_message_has_an_id_and_its_own_properties() -> None:
    (batch,) = split([Message("orders", b"x", tags="new"), Message("orders", b"y", keys="k")])
    properties = [parse_properties(raw) for _, _, raw in decode_batch(b"".join(batch.parts))]

    assert [each["UNIQ_KEY"] for each in properties] == batch.ids
    assert len(set(batch.ids)) == 2
    assert properties[0]["TAGS"] == "new"
    assert properties[1]["KEYS"] == "k"


def test_topics_get_their_own_batches() -> None:
    made = split([Message(topic, b"x") for topic in ("a", "b", "a", "c", "b")])

    assert [(batch.topic, batch.positions) for batch in made] == [
        ("a", [0, 2]),
        ("b", [1, 4]),
        ("c", [3]),
    ]


def test_wait_store_ok_splits_batches() -> None:
    waits = [True, False, True]

    assert places(split([Message("a", b"x", wait_store_ok=each) for each in waits])) == [
        [0, 2],
        [1],
    ]


def test_a_batch_is_split_by_bytes() -> None:
    made = split([Message("orders", bytes(400)) for _ in range(5)], max_message_bytes=1024)

    assert places(made) == [[0, 1], [2, 3], [4]]
    assert all(batch.size == len(b"".join(batch.parts)) <= 1024 for batch in made)


def test_a_batch_is_split_by_count() -> None:
    made = split([Message("orders", b"x") for _ in range(MAX_BATCH_MESSAGES + 1)])

    assert [len(batch.positions) for batch in made] == [MAX_BATCH_MESSAGES, 1]


def test_no_messages_make_no_batch() -> None:
    assert split([]) == []


def test_a_message_too_large_for_a_batch_is_rejected() -> None:
    with pytest.raises(InvalidMessageError, match="max_message_bytes"):
        split([Message("orders", b"x"), Message("orders", bytes(1024))], max_message_bytes=1024)


def test_a_delayed_message_is_rejected() -> None:
    with pytest.raises(InvalidMessageError, match="delayed"):
        split([Message("orders", b"x", delay_level=3)])


def test_a_message_with_a_priority_is_rejected() -> None:
    with pytest.raises(InvalidMessageError, match="priority"):
        split([Message("orders", b"x"), Message("orders", b"x", priority=0)])


@pytest.mark.parametrize("name", ["INNER_MULTI_DISPATCH", "__LITE_TOPIC"])
def test_a_message_for_a_light_message_queue_is_rejected(name: str) -> None:
    with pytest.raises(InvalidMessageError, match="light message queue"):
        split([Message("orders", b"x"), Message("orders", b"x", properties={name: "a"})])


def test_a_retry_topic_is_rejected() -> None:
    with pytest.raises(InvalidMessageError, match="retry"):
        split([Message("%RETRY%billing", b"x")])


@pytest.mark.parametrize("other", [None, b"bytes", "text", object()])
def test_anything_but_a_message_is_rejected(other: Message) -> None:
    with pytest.raises(InvalidMessageError, match=r"expected Message\(topic, body\), got"):
        split([Message("orders", b"x"), other])


def test_each_message_gets_its_own_result() -> None:
    (batch,) = split([Message("orders", b"x") for _ in range(3)])
    results = list(batch.results(stored()))

    assert [place for place, _ in results] == [0, 1, 2]
    assert [each.message_id for _, each in results] == batch.ids
    assert [each.offset_message_id for _, each in results] == ["X", "Y", "Z"]
    assert [each.queue_offset for _, each in results] == [100, 101, 102]
    assert {each.queue for _, each in results} == {QUEUE}


def test_no_message_of_a_batch_without_an_offset_has_one() -> None:
    """A broker returns offset -1 while a logical queue moves to it."""
    (batch,) = split([Message("orders", b"x") for _ in range(3)])
    results = list(batch.results(stored(queue_offset=-1)))

    assert [each.queue_offset for _, each in results] == [-1, -1, -1]


def test_a_weaker_status_applies_to_every_message() -> None:
    (batch,) = split([Message("orders", b"x") for _ in range(2)])
    whole = stored(status=SendStatus.FLUSH_DISK_TIMEOUT)

    assert {each.status for _, each in batch.results(whole)} == {SendStatus.FLUSH_DISK_TIMEOUT}


def test_a_single_offset_id_applies_to_every_message() -> None:
    (batch,) = split([Message("orders", b"x") for _ in range(2)])

    ids = [each.offset_message_id for _, each in batch.results(stored(offset_message_id="ONE"))]
    assert ids == ["ONE", "ONE"]


def test_offset_ids_beyond_the_messages_take_little_memory() -> None:
    (batch,) = split([Message("orders", b"x") for _ in range(2)])
    whole = stored(offset_message_id="XY," * 300_000)

    assert peak_bytes(lambda: list(batch.results(whole))) < 2 * len(whole.offset_message_id)
