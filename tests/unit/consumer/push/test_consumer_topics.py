"""PushConsumer: subscriptions, the retry topic, heartbeats."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.events import QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.errors import ConfigError, SubscriptionError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageModel, MessageQueue, MessageSelector
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.consumer.pushing import (
    RETRIES,
    Events,
    Notes,
    last_heartbeat,
    push_consumer,
    pushing,
    topics_of,
)
from tests.unit.consumer.worker_env import Gate
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.short_timeout import shorten_next_timeout
from tests.unit.remoting.until import until

SOON: dict[str, Any] = {"commit_interval_seconds": 0.01}


@pytest.mark.parametrize("orderly", [False, True])
async def test_heartbeats_announce_a_passive_member_and_the_retry_topic(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with pushing(cluster, Notes(), selector="a || b", arguments={"orderly": orderly}):
        data = last_heartbeat(cluster.broker)

    assert (data.consume_type, data.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert topics_of(data) == {TOPIC: "a || b", RETRIES: "*"}


async def test_broadcasting_reads_all_queues_and_no_retry_topic(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.create_topic(RETRIES, 1)
    put(cluster, "retry", topic=RETRIES)
    put(cluster, *numbers(3))
    handled = Notes()
    async with pushing(
        cluster,
        handled,
        message_model=MessageModel.BROADCASTING,
        offset_store=LocalFileOffsetStore(tmp_path),
    ) as consumer:
        await handled.have(3)
        data = last_heartbeat(cluster.broker)
        assert {each.topic for each in consumer.assignment()} == {TOPIC}

    assert data.message_model == "BROADCASTING"
    assert topics_of(data) == {TOPIC: "*"}
    assert sorted(handled.bodies()) == numbers(3)


def place_file(folder: Path, topic: str, offset: int) -> None:
    """Write an offset file with one queue, as a Java client does."""
    queue_key = f'{{"brokerName":"broker-a","queueId":0,"topic":"{topic}"}}'
    folder.mkdir(parents=True)
    (folder / "offsets.json").write_text(f'{{"offsetTable":{{{queue_key}:{offset}}}}}')


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"namespace": "shop"}, "shop"),
        ({"namespace": "shop", "namespace_version": 2}, ""),
        ({"namesrv": "http://MQ_INST_123_abc.localhost"}, "MQ_INST_123_abc"),
    ],
    ids=["version-1", "version-2", "implied"],
)
async def test_broadcasting_reads_the_offset_file_of_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], name: str
) -> None:
    """Java clients write the names of topics with the namespace of version 1."""
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _host, *given, **more: look_up("127.0.0.1", *given, **more)
    )
    topic = f"{name}%{TOPIC}" if name else TOPIC
    async with FakeCluster(topics={topic: 1}) as cluster:
        put(cluster, *numbers(3), topic=topic)
        place_file(tmp_path / "DEFAULT" / f"{name or 'shop'}%25{GROUP}", topic, 2)
        place_file(tmp_path / "DEFAULT" / GROUP, TOPIC, 0)
        if "namesrv" in settings:
            settings = {"namesrv": f"{settings['namesrv']}:{cluster.namesrv.rpartition(':')[2]}"}
        handled = Notes()
        async with pushing(
            cluster,
            handled,
            client=ClientConfig(**{"namesrv": cluster.namesrv, **settings}),
            message_model=MessageModel.BROADCASTING,
            offset_store=LocalFileOffsetStore(tmp_path),
        ):
            await handled.have(1)

    assert handled.bodies() == ["2"]


async def test_retry_topic_is_read_once_the_broker_has_created_it(cluster: FakeCluster) -> None:
    handled = Notes()
    async with pushing(cluster, handled) as consumer:
        await until(lambda: queue(topic=RETRIES) in consumer.assignment(), "the retry queue", 10)
        put(cluster, "again", topic=RETRIES)
        await handled.have(1)


async def test_topics_can_be_subscribed_and_unsubscribed_at_run_time(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 2)
    put(cluster, "order")
    put(cluster, "invoice", topic="invoices")
    handled = Notes()
    async with pushing(cluster, handled, **SOON) as consumer:
        await handled.have(1)
        await consumer.subscribe("invoices")
        await handled.have(2)
        assert topics_of(last_heartbeat(cluster.broker)) == {
            TOPIC: "*",
            "invoices": "*",
            RETRIES: "*",
        }

        await consumer.unsubscribe(TOPIC)
        assert {each.topic for each in consumer.assignment()} <= {"invoices", RETRIES}
        assert topics_of(last_heartbeat(cluster.broker)) == {"invoices": "*", RETRIES: "*"}
        assert cluster.broker.committed(GROUP, TOPIC, 0) == 1
        put(cluster, "unread")
        put(cluster, "read", topic="invoices")
        await handled.have(3)

    assert handled.bodies() == ["order", "invoice", "read"]


async def test_unsubscribe_waits_for_running_handlers(cluster: FakeCluster) -> None:
    put(cluster, *numbers(2))
    gate = Gate()
    async with pushing(cluster, gate, concurrency=1, close_timeout_seconds=60.0) as consumer:
        await gate.reached.wait()
        leaving = asyncio.ensure_future(consumer.unsubscribe(TOPIC))
        held = consumer._engine.table[queue()]
        await until(lambda: held.drained is not None, "the wait for the handler")
        gate.open.set()
        await leaving

        assert cluster.broker.committed(GROUP, TOPIC, 0) == 1


async def test_a_handler_can_unsubscribe_without_waiting_for_itself(cluster: FakeCluster) -> None:
    put(cluster, *numbers(2))
    left = asyncio.Event()

    async def handle(_: MessageExt) -> None:
        await consumer.unsubscribe(TOPIC)
        left.set()

    async with pushing(cluster, handle, concurrency=1, close_timeout_seconds=60.0) as consumer:
        async with asyncio.timeout(15):
            await left.wait()


async def test_a_plain_handler_can_unsubscribe_without_waiting_for_itself(
    cluster: FakeCluster,
) -> None:
    loop = asyncio.get_running_loop()

    def handle(_: MessageExt) -> None:
        asyncio.run_coroutine_threadsafe(consumer.unsubscribe(TOPIC), loop).result(15)

    async with pushing(cluster, handle, concurrency=1, close_timeout_seconds=60.0) as consumer:
        put(cluster, *numbers(2))
        await until(lambda: cluster.broker.committed(GROUP, TOPIC, 0) == 1, "the commit")

        assert queue() not in consumer.assignment()


async def test_queues_assigned_just_after_a_handler_unsubscribed_are_revoked(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitting, admitted, events = asyncio.Event(), asyncio.Event(), Events()
    consumer = push_consumer(cluster, Notes(), arguments={"on_event": events})

    async def admit(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        admitting.set()
        await admitted.wait()
        return queues

    engine = consumer._engine
    monkeypatch.setattr(engine, "admit", admit)
    await consumer.subscribe(TOPIC)
    async with consumer:
        await admitting.wait()
        engine._tasks.spawn(consumer.unsubscribe, TOPIC, name="handler")
        await until(lambda: TOPIC not in engine._subscriptions, "the call")
        admitted.set()
        [assigned] = await events.have(QueuesAssigned)
        [revoked] = await events.have(QueuesRevoked)

    assert assigned.queues == revoked.queues


async def test_new_expression_applies_to_messages_not_in_flight(cluster: FakeCluster) -> None:
    for number in range(10):
        put(cluster, str(number), tag="even" if number % 2 == 0 else "odd")
    started, go = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body.decode())
        if message.body == b"2":
            started.set()
            await go.wait()

    async with pushing(cluster, handle, selector="even", concurrency=1, **SOON) as consumer:
        await started.wait()
        await consumer.subscribe(TOPIC, "odd")
        go.set()
        await committed(cluster, {0: 10})

    assert seen == ["0", "2", "5", "7", "9"]


async def test_retried_messages_are_kept_when_the_expression_changes(cluster: FakeCluster) -> None:
    put(cluster, "0", tag="old")
    put(cluster, "1", "2", tag="old")
    put(cluster, "3", tag="new")
    seen: list[str] = []
    may_pass = False

    async def handle(message: MessageExt) -> None:
        seen.append(message.body.decode())
        if not may_pass:
            raise ValueError("not yet")

    async with pushing(
        cluster, handle, selector="old", arguments={"orderly": True}, suspend_seconds=0.001, **SOON
    ) as consumer:
        await until(lambda: len(seen) >= 2, "a second try")
        await consumer.subscribe(TOPIC, "new")
        may_pass = True
        await committed(cluster, {0: 4})

    assert [*dict.fromkeys(seen)] == ["0", "3"]


async def test_invalid_sql_is_rejected(cluster: FakeCluster) -> None:
    bad = MessageSelector.by_sql("a >")
    async with pushing(cluster, Notes(), selector="a") as consumer:
        with pytest.raises(SubscriptionError):
            await consumer.subscribe(TOPIC, bad)
        assert topics_of(last_heartbeat(cluster.broker))[TOPIC] == "a"

    async with nothing_left():
        prepared = push_consumer(cluster, Notes())
        await prepared.subscribe(TOPIC, bad)
        with pytest.raises(SubscriptionError):
            await prepared.start()


async def test_two_groups_share_one_instance(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    first, second = Notes(), Notes()
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        async with pushing(cluster, first, client=client):
            async with pushing(cluster, second, client=client, group="shipping"):
                await first.have(5)
                await second.have(5)
            put(cluster, "more")
            await first.have(6)

        assert len(cluster.broker.connections) == 1
    assert len(second.seen) == 5


async def test_one_instance_has_a_group_once(cluster: FakeCluster) -> None:
    put(cluster, "a")
    handled = Notes()
    async with (
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        pushing(cluster, handled, client=client),
    ):
        twin = push_consumer(cluster, Notes(), client=client)
        with pytest.raises(ConfigError) as caught:
            await twin.start()
        await handled.have(1)
        put(cluster, "b")
        await handled.have(2)

    assert (caught.value.setting, caught.value.value) == ("group", GROUP)


async def test_members_share_the_queues(cluster: FakeCluster) -> None:
    first, second, events = Notes(), Notes(), Events()
    async with pushing(cluster, first, arguments={"on_event": events}) as one:
        async with pushing(cluster, second) as other:
            await until(lambda: len(_of_topic(one)) == len(_of_topic(other)) == 2, "two each")
            assert {*_of_topic(one)} | {*_of_topic(other)} == {queue(n) for n in range(4)}
            for number in range(4):
                put(cluster, *numbers(5), queue_id=number)
            await until(lambda: len(first.seen) + len(second.seen) == 20, "all messages")
            assert len(first.seen) == len(second.seen) == 10
        await until(lambda: len(_of_topic(one)) == 4, "all queues")

    assert len(cluster.broker.requests_of(RequestCode.UNREGISTER_CLIENT)) == 2


def _of_topic(consumer: PushConsumer) -> list[MessageQueue]:
    return [each for each in consumer.assignment() if each.topic == TOPIC]


async def test_a_lock_that_was_granted_too_late_is_released_when_others_get_the_queue(
    cluster: FakeCluster,
) -> None:
    mine = {queue(0)}

    def allocate(_: str, queues: list[MessageQueue], *__: object) -> list[MessageQueue]:
        return [each for each in queues if each in mine]

    async with pushing(
        cluster, Notes(), arguments={"orderly": True}, allocate={TOPIC: allocate}
    ) as consumer:
        held = cluster.faults.hold("lock")  # executed, without a response
        shorten_next_timeout(consumer.client, RequestCode.LOCK_BATCH_MQ)
        mine.add(queue(1))
        consumer._engine.rebalancer.wake()
        await held.wait(1)
        mine.discard(queue(1))
        assert cluster.broker.locks.owner(GROUP, queue(1)) == consumer.client.client_id

        await until(lambda: not cluster.broker.locks.owner(GROUP, queue(1)), "the unlock")
        assert cluster.broker.locks.owner(GROUP, queue(0)) == consumer.client.client_id
