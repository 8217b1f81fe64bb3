"""Static topics on two real brokers: queues move between them while messages flow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from rocketmq_aio import (
    AdminClient,
    AllocateAveragely,
    BrokerError,
    ClientConfig,
    ConfigError,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    MQClientInstance,
    NotSupportedError,
    PopConfig,
    PopConsumer,
    Producer,
    PullConsumer,
    RouteNotFoundError,
    SendResult,
)
from rocketmq_aio.admin.metadata import Metadata
from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.consumer.rebalance.broker_assignment import BrokerAssignment
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.requests.groups import AssignmentRequest, MessageQueueAssignment
from rocketmq_aio.testing import Cluster, probe
from tests.fakes.conformance.case_env import eventually

QUEUES = 6
LOGICAL_BROKER = "__syslo__global__"
SETTINGS = LitePullConfig(start_from="earliest")


@asynccontextmanager
async def client_of(cluster: Cluster) -> AsyncIterator[MQClientInstance]:
    config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=5.0)
    async with MQClientInstance(config) as client:
        yield client


def knows_static_topics(cluster: Cluster) -> bool:
    """Whether the brokers support static topics; check that those before 5.0 do not."""
    if cluster.version.startswith("5."):
        return True
    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
    assert probe.request(cluster.brokers[0].address, code).code == 3
    return False


async def owners(client: MQClientInstance, topic: str) -> dict[int, str]:
    route = await client.routes.fetch(topic)
    return {queue.queue_id: broker for queue, broker in route.owners.items()}


async def create(cluster: Cluster, client: MQClientInstance, topic: str) -> None:
    """Create a static topic with half of its queues on each broker."""
    async with AdminClient(client=client) as admin:
        queues = await admin.static_topics.create(topic, QUEUES)
    counts = Counter(each.broker_name for each in queues)
    assert counts == {broker.name: QUEUES // 2 for broker in cluster.brokers}
    assert await owners(client, topic) == {each.queue_id: each.broker_name for each in queues}


async def move_all(client: MQClientInstance, topic: str, broker: str) -> None:
    async with AdminClient(client=client) as admin:
        moved = await admin.static_topics.remap(topic, brokers=[broker])
    assert {each.broker_name for each in moved} == {broker}
    assert all(each.first_offset >= 0 for each in moved)


async def polled(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await consumer.poll(5)
    return found


async def asked_from_the_broker(
    client: MQClientInstance, group: str, topic: str
) -> list[MessageQueueAssignment]:
    request = AssignmentRequest(
        topic=topic,
        consumer_group=group,
        client_id=client.client_id,
        strategy_name="AVG",
        message_model="CLUSTERING",
    )
    return await client.broker.query_assignment(request) or []


def place(sent: SendResult | MessageExt) -> tuple[MessageQueue, int]:
    return sent.queue, sent.queue_offset


async def test_a_static_topic_is_sent_to_and_read_by_logical_queues(
    two_broker_cluster: Cluster, rocketmq_group: str
) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    topic = "static-plain"
    async with client_of(two_broker_cluster) as client:
        await create(two_broker_cluster, client, topic)
        async with (
            Producer("shop", client=client) as producer,
            LitePullConsumer(rocketmq_group, client=client, config=SETTINGS) as consumer,
        ):
            await consumer.subscribe(topic)
            queues = await producer.publish_queues(topic)
            sent = [
                await producer.send(Message(topic, b"%d" % number), queue=queue)
                for number in range(4)
                for queue in queues
            ]
            batch = await producer.send_batch([Message(topic, b"batch")] * 3, queue=queues[0])
            found = await polled(consumer, len(sent) + len(batch))
            await consumer.commit()
            with pytest.raises(NotSupportedError):
                await BrokerAssignment(client, rocketmq_group).of(topic, AllocateAveragely())
            physical = await asked_from_the_broker(client, rocketmq_group, topic)
            committed = [await consumer.committed(queue) for queue in queues]
            lag = await consumer.lag()

    assert queues == [MessageQueue(topic, LOGICAL_BROKER, number) for number in range(QUEUES)]
    assert sorted(map(place, found)) == sorted(map(place, [*sent, *batch]))
    assert committed == [7, 4, 4, 4, 4, 4]
    assert set(lag.values()) == {0}
    # Broker assignment is not used for static topics: it returns physical queues.
    assert {each.message_queue.broker_name for each in physical} == {"broker-a", "broker-b"}


async def test_moving_logical_queues_loses_no_message(
    two_broker_cluster: Cluster, rocketmq_group: str
) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    topic, moved = "static-moved", asyncio.Event()
    sent: list[SendResult] = []

    async with client_of(two_broker_cluster) as client, client_of(two_broker_cluster) as other:
        await create(two_broker_cluster, client, topic)
        async with (
            Producer("shop", client=client) as producer,
            LitePullConsumer(rocketmq_group, client=other, config=SETTINGS) as consumer,
        ):
            await consumer.subscribe(topic)
            queues = await producer.publish_queues(topic)

            async def send_round() -> None:
                sent.extend([await producer.send(Message(topic, b"x"), queue=q) for q in queues])

            async def send_on() -> None:
                while not moved.is_set():
                    await send_round()
                    await asyncio.sleep(0.02)
                for _ in range(20):
                    await send_round()

            sending = asyncio.create_task(send_on())
            first = await polled(consumer, 5 * QUEUES)
            await move_all(other, topic, "broker-b")
            moved.set()
            await sending
            found = first + await polled(consumer, len(sent) - len(first))
            await consumer.commit()
        async with LitePullConsumer(rocketmq_group, client=other, config=SETTINGS) as successor:
            await successor.subscribe(topic)
            async with Producer("shop", client=client) as producer:
                late = [await producer.send(Message(topic, b"late"), queue=q) for q in queues]
            after = await polled(successor, len(late))

        async def have_moved() -> bool:
            return set((await owners(client, topic)).values()) == {"broker-b"}

        assert await eventually(have_moved, 30)  # brokers tell the name server every 10 s
    # While a queue moves, its broker returns offset -1 for sends: it is not known yet.
    assert sorted(each.message_id for each in found) == sorted(each.message_id for each in sent)
    assert {place(each) for each in sent if each.queue_offset >= 0} <= set(map(place, found))
    assert len(set(map(place, found))) == len(found)
    assert sorted(map(place, after)) == sorted(map(place, late))


async def test_messages_of_a_static_topic_are_popped_from_all_its_brokers(
    two_broker_cluster: Cluster, rocketmq_group: str
) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    topic, retried = "static-popped", False
    sent: list[str] = []
    acknowledged: list[str] = []

    async with client_of(two_broker_cluster) as client:
        await create(two_broker_cluster, client, topic)
        settings = PopConfig(start_from="earliest")
        async with (
            Producer("shop", client=client) as producer,
            PopConsumer(rocketmq_group, client=client, config=settings) as consumer,
        ):
            queues = await producer.publish_queues(topic)

            async def send_round() -> None:
                results = [await producer.send(Message(topic, b"x"), queue=q) for q in queues]
                sent.extend(each.message_id for each in results)

            await send_round()
            await move_all(client, topic, "broker-b")
            await send_round()
            await consumer.subscribe(topic)
            async with asyncio.timeout(60):
                while len(acknowledged) < len(sent):
                    for message in await consumer.receive(wait_seconds=5):
                        if not retried:
                            retried = True
                            await consumer.retry(message, 1)
                        else:
                            await consumer.ack(message)
                            acknowledged.append(message.message_id)

    assert sorted(acknowledged) == sorted(sent)


async def move(client: MQClientInstance, reader: PullConsumer, topic: str, broker: str) -> None:
    """Move the only queue of *topic*; return when brokers and clients know its owner."""
    await move_all(client, topic, broker)
    (queue,) = await reader.message_queues(topic)

    async def is_routed() -> bool:
        return await owners(client, topic) == {0: broker}

    async def is_reachable() -> bool:
        """The owner learns the addresses of other brokers with delay."""
        with suppress(BrokerError):
            return await reader.committed(queue) is not None
        return False

    assert await eventually(is_routed, 30)
    assert await eventually(is_reachable, 60)


async def read_up_to(reader: PullConsumer, queue: MessageQueue, last: int) -> list[MessageExt]:
    """Read from the beginning; the broker may not have indexed *last*, its last message, yet."""
    found: list[MessageExt] = []
    offset = 0
    async with asyncio.timeout(60):
        while offset <= last:
            result = await reader.pull(queue, offset)
            found, offset = [*found, *result.messages], result.next_offset
    return found


async def test_offsets_and_commits_of_a_moved_queue_are_logical(
    two_broker_cluster: Cluster, rocketmq_group: str
) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    topic = "static-parts"
    async with (
        client_of(two_broker_cluster) as client,
        AdminClient(client=client) as admin,
        Producer("shop", client=client) as producer,
        PullConsumer(rocketmq_group, client=client) as reader,
    ):
        await admin.static_topics.create(topic, 1, brokers=["broker-a"])
        await admin.create_group(rocketmq_group)
        (queue,) = await producer.publish_queues(topic)

        async def sent() -> list[int]:
            return [(await producer.send(Message(topic, b"x"))).queue_offset for _ in range(2)]

        before = await sent()
        await reader.commit(queue, 1)
        await move(client, reader, topic, "broker-b")
        early = await reader.committed(queue)
        after = await sent()
        await reader.commit(queue, after[1])
        late = await reader.committed(queue)
        await move(client, reader, topic, "broker-a")
        back = await sent()
        found = await read_up_to(reader, queue, back[1])
        times = [await reader.offset_for_time(queue, each.store_time) for each in found]
        ends = await reader.min_offset(queue), await reader.max_offset(queue)
        gaps = [await reader.pull(queue, at) for at in (2, 5_000, 10_002)]
        settings = await RawPulls(client, rocketmq_group).topic_settings(queue)

    assert (before, after, back) == ([0, 1], [10_000, 10_001], [20_000, 20_001])
    assert [each.queue_offset for each in found] == [*before, *after, *back]
    assert (early, late) == (1, 10_001)
    assert ends == (0, 20_002)
    assert {each.status for each in gaps} == {PullStatus.NO_MATCH}
    assert [each.next_offset for each in gaps] == [10_000, 10_000, 20_000]
    assert settings.part_starts == {0, 10_000, 20_000}
    assert times[2:] == [2] * 4  # the end of the first part: a broker searches its own ones first


async def test_offsets_are_reset_and_cloned_in_a_static_topic(
    two_broker_cluster: Cluster, rocketmq_group: str
) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    topic, clone = "static-reset", f"{rocketmq_group}-clone"
    async with client_of(two_broker_cluster) as client, AdminClient(client=client) as admin:
        await create(two_broker_cluster, client, topic)
        for group in (rocketmq_group, clone):
            await admin.create_group(group)
        async with (
            Producer("shop", client=client) as producer,
            PullConsumer(rocketmq_group, client=client) as reader,
            PullConsumer(clone, client=client) as cloned,
        ):
            queues = await producer.publish_queues(topic)
            for queue in queues * 3:
                await producer.send(Message(topic, b"x"), queue=queue)
            latest = await admin.reset_offsets(rocketmq_group, topic, "latest")
            at_end = [await reader.committed(queue) for queue in queues]
            by_queue = await admin.reset_offsets(rocketmq_group, topic, {queues[4]: 1})
            await admin.clone_offsets(rocketmq_group, clone, topic)
            copied = [await cloned.committed(queue) for queue in queues]
        async with LitePullConsumer(rocketmq_group, client=client) as member:
            await member.subscribe(topic)
            await member.ready()
            with pytest.raises(NotSupportedError, match="stop its members"):
                await admin.reset_offsets(rocketmq_group, topic, "earliest")

    assert [each.queue for each in latest] == queues
    assert at_end == [3] * QUEUES
    assert [(each.queue, each.offset, each.how) for each in by_queue] == [
        (queues[4], 1, "committed")
    ]
    assert copied == [3, 3, 3, 3, 1, 3]


@pytest.mark.mqadmin("updateStaticTopic remappingStaticTopic")
async def test_the_official_tool_and_the_client_change_a_static_topic_in_turn(
    two_broker_cluster: Cluster,
) -> None:
    """Both grow and move the same topic; each describes what the other has stored."""
    if not knows_static_topics(two_broker_cluster):
        return
    topic = "static-in-turn"

    async def tool(command: str, *options: str) -> str:
        arguments = ("-t", topic, *options)
        return await asyncio.to_thread(two_broker_cluster.mqadmin, command, *arguments)

    async with client_of(two_broker_cluster) as client, AdminClient(client=client) as admin:
        await tool("updateStaticTopic", "-qn", "2", "-b", "broker-a,broker-b")
        by_tool = await admin.static_topics.queues(topic)
        grown = await admin.static_topics.create(topic, 4, brokers=["broker-a"])
        with pytest.raises(ConfigError, match="cannot be removed"):
            await admin.static_topics.create(topic, 3)
        again = await admin.static_topics.create(topic, 4)
        await tool("remappingStaticTopic", "-b", "broker-b")
        moved = await admin.static_topics.queues(topic)
        back = await admin.static_topics.remap(topic)
        await tool("updateStaticTopic", "-qn", "6", "-b", "broker-a,broker-b")
        last = await admin.static_topics.queues(topic)
        assert {each.broker_name for each in moved} == {"broker-b"}
        assert Counter(each.broker_name for each in back) == {"broker-a": 2, "broker-b": 2}
        assert last[:4] == back
        assert Counter(each.broker_name for each in last) == {"broker-a": 3, "broker-b": 3}

    assert Counter(each.broker_name for each in by_tool) == {"broker-a": 1, "broker-b": 1}
    assert grown[:2] == by_tool
    assert [each.broker_name for each in grown[2:]] == ["broker-a"] * 2
    assert again == grown


async def test_an_ordinary_topic_is_no_static_topic(two_broker_cluster: Cluster) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    async with client_of(two_broker_cluster) as client, AdminClient(client=client) as admin:
        await admin.topics.create("static-ordinary", brokers=["broker-a"])
        with pytest.raises(ConfigError, match="broker-a has it as an ordinary topic"):
            await admin.static_topics.create("static-ordinary", 4)
        with pytest.raises(RouteNotFoundError):
            await admin.static_topics.remap("static-missing")


async def test_the_queues_of_a_static_topic_change_only_by_its_own_commands(
    two_broker_cluster: Cluster,
) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    topic = "static-kept"
    async with client_of(two_broker_cluster) as client, AdminClient(client=client) as admin:
        await create(two_broker_cluster, client, topic)
        made = await admin.static_topics.queues(topic)
        with pytest.raises(ConfigError, match=r"static_topics\.create\(\) adds queues"):
            await admin.topics.update(topic, queues=16)
        with pytest.raises(ConfigError, match="exists as a static topic"):
            await admin.topics.create(topic)
        changed = await admin.topics.update(topic, attributes={"message.type": "FIFO"})
        async with Producer("shop", client=client) as producer:
            sent = await producer.send(Message(topic, b"x"))
        assert await admin.static_topics.queues(topic) == made

    assert sent.queue.broker_name == LOGICAL_BROKER
    assert {each.attributes["message.type"] for each in changed} == {"FIFO"}


async def test_a_static_topic_is_exported_and_restored(two_broker_cluster: Cluster) -> None:
    if not knows_static_topics(two_broker_cluster):
        return
    topic = "static-saved"
    async with client_of(two_broker_cluster) as client, AdminClient(client=client) as admin:
        await create(two_broker_cluster, client, topic)
        made = await admin.static_topics.queues(topic)
        saved = await admin.metadata.export()
        unchanged = await admin.metadata.difference(saved)
        await admin.metadata.restore(saved)
        kept = await admin.static_topics.queues(topic)
        await admin.topics.delete(topic)
        wanted = Metadata(topics=(), groups=(), static={topic: QUEUES})
        missing = await admin.metadata.difference(wanted)
        await admin.metadata.restore(wanted)
        again = await admin.static_topics.queues(topic)

    assert saved.static[topic] == QUEUES
    assert topic not in {each.topic for each in saved.topics}
    assert unchanged == Metadata(topics=(), groups=())
    assert (missing, kept) == (wanted, made)
    assert [(q.queue_id, q.broker_name) for q in again] == [
        (q.queue_id, q.broker_name) for q in made
    ]
