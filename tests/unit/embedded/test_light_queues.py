"""Light message queues of the embedded broker; what real brokers do is in the conformance cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketmq_aio import AdminClient, Message, MessageQueue, Producer, PullConsumer
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.snapshot import SnapshotError, load_snapshot, save_snapshot
from rocketmq_aio.protocol.codes import ResponseCode
from tests.fakes.conformance.case_env import CaseEnv, pull_header, send_header
from tests.fakes.conformance.pulling import NOT_HELD
from tests.fakes.raw_client import RawClient

KIB = 1024
ALICE, BOB = "%LMQ%alice", "%LMQ%bob"
ENV = CaseEnv("", "", "5.5.0", "chat", "readers")
SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}


def put(broker: EmbeddedBroker, body: bytes, *names: str, topic: str = "chat") -> None:
    broker.put(topic, body, properties=f"INNER_MULTI_DISPATCH\x01{','.join(names)}\x02")


async def read(namesrv: str, name: str, offset: int = 0) -> list[tuple[int, bytes]]:
    """Return offsets and bodies from *offset* of a light message queue."""
    async with PullConsumer("readers", namesrv=namesrv) as consumer:
        pulled = await consumer.pull(MessageQueue(name, "broker-a", 0), offset)
    return [(message.queue_offset, message.body) for message in pulled.messages]


async def test_messages_of_a_light_queue_are_read_with_the_broker() -> None:
    async with EmbeddedCluster(topics={"chat": 1}, light_queues=True) as cluster:
        names = {"INNER_MULTI_DISPATCH": f"{ALICE},{BOB}"}
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("chat", b"hello", tags="t", properties=names))
        (message,) = cluster.broker.messages(BOB)

    assert (message.topic, message.queue_id, message.offset) == (BOB, 0, 0)
    assert (message.body, message.tag) == (b"hello", "t")
    assert "%LMQ%" not in "".join(cluster.broker.topics)


async def test_nothing_is_sent_to_a_light_queue_itself() -> None:
    async with (
        EmbeddedCluster(light_queues=True) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        answer = await client.ask(send_header(ENV, topic=ALICE), b"x")

    assert answer.code == ResponseCode.NO_PERMISSION
    assert not cluster.broker.state.store.log


async def test_an_administrator_enables_light_queues() -> None:
    async with (
        EmbeddedCluster(topics={"chat": 1}) as cluster,
        AdminClient(namesrv=cluster.namesrv) as admin,
        RawClient(cluster.broker.address) as client,
    ):
        codes, ends = [], []
        for name in (None, *SETTINGS):
            if name is not None:
                await admin.brokers.update_config({name: SETTINGS[name]})
            put(cluster.broker, b"x", ALICE)
            answer = await client.ask(pull_header(ENV, 0, topic=ALICE, sys_flag=NOT_HELD))
            codes.append(answer.code)
            ends.append(answer.ext_fields().get("maxOffset"))

    # With `enableLmq` alone all light message queues are empty.
    assert (codes, ends) == ([17, 19, 0], [None, "0", "1"])


async def test_retention_deletes_messages_of_light_queues_with_those_of_topics() -> None:
    async with EmbeddedCluster(
        topics={"chat": 1}, light_queues=True, max_bytes=64 * KIB
    ) as cluster:
        put(cluster.broker, b"old", BOB)
        for number in range(200):
            put(cluster.broker, bytes(KIB) + b"%d" % number, ALICE)
        store = cluster.broker.state.store
        alice, bob = store.light_queues[ALICE], store.light_queues[BOB]
        async with PullConsumer("readers", namesrv=cluster.namesrv) as consumer:
            (queue,) = await consumer.message_queues(ALICE)
            begin = await consumer.min_offset(queue)
        messages = await read(cluster.namesrv, ALICE, begin)

    assert (bob.min_offset, bob.messages) == (1, [])
    assert 100 < begin == alice.min_offset < alice.max_offset == 200
    assert [each.log_offset for each in alice.messages] == [each.log_offset for each in store.log]
    assert messages[0] == (begin, bytes(KIB) + b"%d" % begin)


async def test_messages_of_many_light_queues_count_as_much_memory() -> None:
    cluster = EmbeddedCluster(topics={"chat": 1}, light_queues=True, max_bytes=640 * KIB)
    names = [f"%LMQ%{number}" for number in range(100)]
    for _ in range(100):
        put(cluster.broker, b"x", *names)
    store = cluster.broker.state.store
    kept = len(store.log)
    cluster.delete_topic("chat")
    cluster.create_topic("chat", 1)
    put(cluster.broker, bytes(500 * KIB))
    put(cluster.broker, b"too much")
    left = [len(queue.messages) for queue in store.light_queues.values()]
    for name in names:
        cluster.delete_topic(name)
    for _ in range(100):
        put(cluster.broker, b"x")

    assert 10 < kept < 30
    assert left == [0] * 100
    assert len(store.log) == 101


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_light_queues_survive_restarts(tmp_path: Path, version: str) -> None:
    file = tmp_path / "data"
    async with EmbeddedCluster(version=version, topics={"chat": 1}, light_queues=True) as cluster:
        for number in range(3):
            put(cluster.broker, b"%d" % number, ALICE, BOB)
        cluster.broker.kill()
        await cluster.broker.start()
        assert len(await read(cluster.namesrv, ALICE)) == 3
    cluster.broker.state.store.light_queues[BOB].drop_before(2)
    save_snapshot(cluster.brokers, file)

    # The settings are saved, too.
    async with EmbeddedCluster(version=version) as cluster:
        assert load_snapshot(cluster.brokers, file)
        put(cluster.broker, b"3", ALICE, BOB)
        alice = await read(cluster.namesrv, ALICE)
        bob = await read(cluster.namesrv, BOB, 2)

    assert alice == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]
    assert bob == [(2, b"2"), (3, b"3")]


async def test_a_snapshot_lacks_messages_of_deleted_topics(tmp_path: Path) -> None:
    file = tmp_path / "data"
    topics = {"chat": 1, "news": 1}
    cluster = EmbeddedCluster(topics=topics, light_queues=True)
    for number, topic in enumerate(["chat", "news", "chat"]):
        put(cluster.broker, b"%d" % number, ALICE, topic=topic)
    cluster.delete_topic("news")
    save_snapshot(cluster.brokers, file)
    before = [each.body for each in cluster.broker.messages(ALICE)]

    async with EmbeddedCluster() as cluster:
        assert load_snapshot(cluster.brokers, file)
        after = await read(cluster.namesrv, ALICE, 2)

    assert before == [b"0", b"1", b"2"]
    assert after == [(2, b"2")]
    assert cluster.broker.state.store.light_queues[ALICE].min_offset == 2


def test_a_snapshot_with_impossible_offsets_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "data"
    cluster = EmbeddedCluster(topics={"chat": 1}, light_queues=True)
    put(cluster.broker, b"x", ALICE)
    cluster.broker.state.store.light_queues[ALICE].min_offset = -1
    save_snapshot(cluster.brokers, file)

    with pytest.raises(SnapshotError, match="a light message queue begins before 0"):
        load_snapshot(EmbeddedCluster().brokers, file)
