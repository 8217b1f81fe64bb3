"""Producer on a real broker: stored messages equal the sent ones."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.producer import Compression, ProducerConfig
from rocketmq_aio.errors import BrokerError, InvalidMessageError, RouteNotFoundError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import MAX_PROPERTIES
from rocketmq_aio.model.values import MessageQueue, SendStatus
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.queue_selectors import select_by_hash
from rocketmq_aio.producer.send_request import PROPERTIES_SPARE
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Cluster, probe
from tests.broker.reading import read_topic, wait_for_messages
from tests.unit.remoting.until import until_done

MIB = 1024 * 1024
GET_PRODUCER_CONNECTION_LIST = 204
OWN = {"color": "röt", "訂": "單", "blank": " "}
FULL = {"tags": "new", "keys": ["42", "43"], "properties": OWN, "flag": 7}
EXPECTED = {"TAGS": "new", "KEYS": "42 43", **OWN}
CLIENTS: dict[str, dict[str, object]] = {
    "binary": {},
    "json": {"header_encoding": "json"},
    "signed": {"credentials": Credentials(access_key="admin", secret_key="adminsecret")},
}


def config_of(cluster: Cluster, **settings: object) -> ClientConfig:
    return ClientConfig(namesrv=cluster.namesrv, **settings)  # type: ignore[arg-type]


# --- every kind of send --------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_message_is_stored_as_it_was_sent(
    client: str, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = config_of(rocketmq_cluster, **CLIENTS[client])
    body = "訂單 \x00\x01\x02".encode()
    async with Producer(rocketmq_group, client=config) as producer:
        result = await producer.send(Message(rocketmq_topic, body, **FULL))  # type: ignore[arg-type]
    (stored,) = wait_for_messages(rocketmq_cluster, rocketmq_topic, 1)

    assert stored.body == body
    assert stored.flag == 7
    assert stored.properties.items() >= EXPECTED.items()
    assert (result.status, result.ok) == (SendStatus.SEND_OK, True)
    assert result.message_id == stored.message_id
    assert result.queue == MessageQueue(rocketmq_topic, stored.broker_name, stored.queue_id)
    assert result.queue_offset == stored.offset == 0
    assert int(result.offset_message_id[-16:], 16) == stored.log_offset


async def test_round_robin_uses_every_queue(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        results = [await producer.send(Message(rocketmq_topic, b"%d" % n)) for n in range(40)]
    stored = {
        (s.queue_id, s.offset): s for s in wait_for_messages(rocketmq_cluster, rocketmq_topic, 40)
    }

    assert Counter(result.queue.queue_id for result in results) == dict.fromkeys(range(4), 10)
    for number, result in enumerate(results):
        found = stored[result.queue.queue_id, result.queue_offset]
        assert (found.body, found.message_id) == (b"%d" % number, result.message_id)


async def test_thousands_of_concurrent_sends_all_arrive_once(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    bodies = {b"%d" % number for number in range(3000)}
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        sends = (
            producer.send(Message(rocketmq_topic, body), timeout_seconds=60) for body in bodies
        )
        results = await asyncio.gather(*sends)
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, 3000)

    assert Counter(each.body for each in stored) == dict.fromkeys(bodies, 1)
    assert {each.message_id for each in stored} == {each.message_id for each in results}


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_a_compressed_body_is_stored_compressed(
    kind: Compression, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    body = b"orders and payments " * 10_000
    config = ProducerConfig(compression=kind)
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        await producer.send(Message(rocketmq_topic, body))
    (stored,) = wait_for_messages(rocketmq_cluster, rocketmq_topic, 1)

    assert stored.body == body
    assert stored.raw_bytes < len(body) / 10
    assert stored.sys_flag & 0x700 == {"zlib": 0x300, "lz4": 0x100, "zstd": 0x200}[kind]


async def test_max_message_bytes_is_inclusive(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    body = os.urandom(4 * MIB)
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        result = await producer.send(Message(rocketmq_topic, body), timeout_seconds=30)
        with pytest.raises(InvalidMessageError, match="max_message_bytes"):
            await producer.send(Message(rocketmq_topic, body + b"x"))
    (stored,) = wait_for_messages(rocketmq_cluster, rocketmq_topic, 1)

    assert result.ok
    assert stored.body == body


async def test_a_body_too_large_for_the_broker_raises_without_retry(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = ProducerConfig(max_message_bytes=8 * MIB, compression=None)
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send(Message(rocketmq_topic, bytes(5 * MIB)), timeout_seconds=30)

    assert caught.value.code == 13
    assert caught.value.remark
    assert read_topic(rocketmq_cluster, rocketmq_topic) == []


async def test_properties_up_to_the_limit_are_stored(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    # The name, separators, WAIT and the message id are added to the value.
    room = MAX_PROPERTIES - PROPERTIES_SPARE - len("p##" + "WAIT#true#" + "UNIQ_KEY##") - 32
    message = Message(rocketmq_topic, b"x", properties={"p": "v" * room})
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        await producer.send(message)
        await producer.send_batch([message, message])
        with pytest.raises(InvalidMessageError):
            await producer.send(Message(rocketmq_topic, b"x", properties={"p": "v" * (room + 1)}))
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, 3)

    assert [each.properties["p"] for each in stored] == ["v" * room] * 3


async def test_queue_and_selector_choose_the_queue(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        queues = await producer.publish_queues(rocketmq_topic)
        for queue in queues:
            await producer.send(Message(rocketmq_topic, b"chosen"), queue=queue)
        by_key = [
            await producer.send(Message(rocketmq_topic, b"keyed"), selector=select_by_hash("k"))
            for _ in range(3)
        ]
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, 7)

    assert len(queues) == 4
    assert [each.queue_id for each in stored if each.body == b"chosen"] == [0, 1, 2, 3]
    keyed = {each.queue_id for each in stored if each.body == b"keyed"}
    assert keyed == {result.queue.queue_id for result in by_key}
    assert len(keyed) == 1


async def test_an_unknown_queue_is_rejected(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = ProducerConfig(retries=0)
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        queue = MessageQueue(rocketmq_topic, "broker-a", 99)
        with pytest.raises(Exception, match="queueId") as caught:
            await producer.send(Message(rocketmq_topic, b"x"), queue=queue)

    assert "99" in str(caught.value)
    assert read_topic(rocketmq_cluster, rocketmq_topic) == []


async def test_oneway_sends_arrive(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    bodies = {b"%d" % number for number in range(200)}
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        for body in bodies:
            await producer.send_oneway(Message(rocketmq_topic, body, **FULL))  # type: ignore[arg-type]
    stored = await asyncio.to_thread(wait_for_messages, rocketmq_cluster, rocketmq_topic, 200)

    assert {each.body for each in stored} == bodies
    assert all(each.properties.items() >= EXPECTED.items() for each in stored)


async def test_a_delayed_message_is_delivered_later(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        result = await producer.send(Message(rocketmq_topic, b"later", delay_level=1, keys="k"))
    before = read_topic(rocketmq_cluster, rocketmq_topic)
    (stored,) = await asyncio.to_thread(wait_for_messages, rocketmq_cluster, rocketmq_topic, 1)

    assert result.ok
    assert before == []
    assert (stored.body, stored.message_id) == (b"later", result.message_id)
    assert stored.properties["KEYS"] == "k"


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_batch_is_read_back_message_by_message(
    client: str, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = config_of(rocketmq_cluster, **CLIENTS[client])
    messages = [
        Message(rocketmq_topic, "單".encode() + b"%d" % n, tags=f"t{n}", keys=f"k{n}", flag=n)
        for n in range(100)
    ]
    async with Producer(rocketmq_group, client=config) as producer:
        results = await producer.send_batch(messages)
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, 100)

    assert [each.body for each in stored] == [each.body for each in messages]
    assert [each.flag for each in stored] == list(range(100))
    assert [(s.properties["TAGS"], s.properties["KEYS"]) for s in stored] == [
        (f"t{n}", f"k{n}") for n in range(100)
    ]
    assert [each.message_id for each in stored] == [each.message_id for each in results]
    assert [each.offset for each in stored] == [each.queue_offset for each in results]
    assert {each.queue_id for each in stored} == {each.queue.queue_id for each in results}
    assert [each.log_offset for each in stored] == [
        int(each.offset_message_id[-16:], 16) for each in results
    ]


@pytest.mark.parametrize(("count", "size"), [(2500, 10), (1100, 4000), (12, 900_000)])
async def test_a_large_batch_is_split(
    count: int, size: int, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    filler = os.urandom(size)
    messages = [Message(rocketmq_topic, b"%08d" % number + filler) for number in range(count)]
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        results = await producer.send_batch(messages, timeout_seconds=30)
    stored = {
        (each.queue_id, each.offset): each
        for each in wait_for_messages(rocketmq_cluster, rocketmq_topic, count)
    }

    assert len(results) == len(stored) == count
    for message, result in zip(messages, results, strict=True):
        found = stored[result.queue.queue_id, result.queue_offset]
        assert (found.body, found.message_id) == (message.body, result.message_id)


async def test_a_batch_over_several_topics_reaches_each(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    other = f"{rocketmq_topic}-2"
    rocketmq_cluster.create_topic(other, queues=4)
    messages = [Message(topic, b"x") for topic in (rocketmq_topic, other) * 5]
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        results = await producer.send_batch(messages)
    counts = [len(wait_for_messages(rocketmq_cluster, t, 5)) for t in (rocketmq_topic, other)]
    rocketmq_cluster.delete_topic(other)

    assert [each.queue.topic for each in results] == [each.topic for each in messages]
    assert counts == [5, 5]


# --- topics --------------------------------------------------------------------------------------


async def test_a_topic_is_created_by_its_first_send(
    rocketmq_cluster: Cluster, rocketmq_group: str
) -> None:
    topic = f"created-{rocketmq_group[-12:]}"
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        first = await producer.send(Message(topic, b"first"))
        await until_done(lambda: knows(producer, topic), "its own route", seconds=60)
        second = await producer.send(Message(topic, b"second"))
    bodies = {each.body for each in wait_for_messages(rocketmq_cluster, topic, 2)}
    rocketmq_cluster.delete_topic(topic)

    assert first.ok
    assert second.ok
    assert bodies == {b"first", b"second"}


async def knows(producer: Producer, topic: str) -> bool:
    return producer.client.routes.known(topic) is not None


async def test_a_read_only_topic_raises(rocketmq_cluster: Cluster, rocketmq_group: str) -> None:
    topic = f"archive-{rocketmq_group[-12:]}"
    rocketmq_cluster.create_topic(topic, queues=2)
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    for broker in rocketmq_cluster.brokers:
        probe.ask(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        await until_done(lambda: is_read_only(producer, topic), "the permission", seconds=60)
        with pytest.raises(RouteNotFoundError, match="read-only"):
            await producer.send(Message(topic, b"x"))
    rocketmq_cluster.delete_topic(topic)


async def is_read_only(producer: Producer, topic: str) -> bool:
    return not (await producer.client.routes.fetch(topic)).publish_queues


# --- life ----------------------------------------------------------------------------------------


async def test_the_producer_is_registered_while_it_runs(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    def is_known() -> bool:
        fields = {"producerGroup": rocketmq_group}
        address = rocketmq_cluster.brokers[0].address
        reply = probe.request(address, GET_PRODUCER_CONNECTION_LIST, fields)
        return reply.code == 0 and producer.client.client_id.encode() in reply.body

    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        await producer.send(Message(rocketmq_topic, b"x"))
        await until_done(lambda: asyncio.to_thread(is_known), "the producer to be known")

    assert not is_known()
