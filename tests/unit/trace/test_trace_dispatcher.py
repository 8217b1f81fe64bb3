"""Trace dispatcher: messages of records, buffers, close."""

from __future__ import annotations

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import parse_properties
from rocketmq_aio.producer.batching.pre_encoded import Encoded
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.trace.message_trace import MessageTrace
from rocketmq_aio.trace.records import TraceBatch
from rocketmq_aio.trace.trace_dispatcher import MAX_KEYS, MAX_TEXT, MOST_KEYS, messages_of
from tests.fakes.cluster import FakeCluster

IDS = MessageIdGenerator(b"\x7f\x00\x00\x01", 1, 1)


def made(records: list[str], keys: list[str]) -> list[tuple[Encoded, int]]:
    ids = [f"id-{number}" for number in range(len(records))]
    return list(messages_of(TraceBatch("traces", records, ids, keys), IDS))


def keys_of(message: Encoded) -> list[str]:
    return parse_properties(message.properties)["KEYS"].split(" ")


def test_records_are_split_into_messages_that_readers_accept() -> None:
    records = [str(number) * (MAX_TEXT // 3) for number in range(8)]
    messages = made(records, [""] * 8)

    assert [number for _, number in messages] == [2] * 4
    assert all(len(message.body) <= MAX_TEXT for message, _ in messages)
    assert b"".join(message.body for message, _ in messages).decode() == "".join(records)
    assert [key for message, _ in messages for key in keys_of(message)] == [
        f"id-{number}" for number in range(8)
    ]


def test_records_with_many_keys_are_split() -> None:
    keys = [str(number) * (MAX_KEYS // 3) for number in range(8)]
    messages = made(["x"] * 8, keys)

    assert sum(number for _, number in messages) == 8
    assert all(len(" ".join(keys_of(message))) <= MAX_KEYS for message, _ in messages)
    assert {key for message, _ in messages for key in keys_of(message)} >= set(keys)


def test_a_record_above_the_limit_has_a_message_of_its_own() -> None:
    ((message, number),) = made(["x" * (MAX_TEXT + 1)], ["é" * (MOST_KEYS // 2)])

    assert (len(message.body), number) == (MAX_TEXT + 1, 1)
    assert keys_of(message) == ["id-0"]  # with the others the properties would be too long


async def test_the_producer_of_a_trace_leaves_a_shared_client_with_its_owner() -> None:
    trace = MessageTrace(flush_seconds=3600)
    async with (
        FakeCluster(topics={"orders": 4, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
    ):
        async with Producer("shop", client=client, hooks=[trace]) as producer:
            await producer.send(Message("orders", b"hello"))
            assert len(client._producers) == 2

        assert trace.sent == 1
        assert not client._producers
