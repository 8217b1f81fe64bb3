"""Namespaces on a real broker: every client uses names without the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from rocketmq_aio import (
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    LocalFileOffsetStore,
    Message,
    MessageDeadLettered,
    MessageExt,
    MessageModel,
    MessageQueue,
    NotSupportedError,
    PopConfig,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RetryLater,
    RouteNotFoundError,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading import wait_for_messages
from tests.broker.reading_groups import in_thread
from tests.unit.remoting.until import until, until_done

TOPIC: Final = "orders"  # in both namespaces
SECONDS: Final = 40.0


@pytest.fixture
def names(cluster: Cluster, group: str) -> Iterator[tuple[str, str]]:
    """Two namespaces that no other test uses."""
    both = (f"shop-{group[-12:]}", f"market-{group[-12:]}")
    for name in both:
        cluster.create_topic(f"{name}%{TOPIC}", queues=2)
        cluster.create_group(f"{name}%{group}")
    yield both
    for name in both:
        cluster.delete_topic(f"{name}%{TOPIC}")


@pytest.fixture
def cluster(rocketmq_cluster: Cluster) -> Cluster:
    return rocketmq_cluster


@pytest.fixture
def configs(cluster: Cluster, names: tuple[str, str]) -> tuple[ClientConfig, ClientConfig]:
    """The client configuration of each namespace."""
    shop, market = (ClientConfig(namesrv=cluster.namesrv, namespace=name) for name in names)
    return shop, market


async def sent(config: ClientConfig, *bodies: str) -> list[MessageQueue]:
    """Send *bodies* and return their queues."""
    async with Producer("till", client=config) as producer:
        results = [
            await producer.send(Message(TOPIC, body.encode(), tags="new")) for body in bodies
        ]
    return [result.queue for result in results]


async def polled(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    """Poll until *count* messages are received."""
    found: list[MessageExt] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            found += await consumer.poll(1)
    return found


def bodies(messages: list[MessageExt]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


async def test_namespaces_are_isolated(
    configs: tuple[ClientConfig, ClientConfig], group: str
) -> None:
    lite = LitePullConfig(start_from="earliest")
    for config, mark in zip(configs, "ab", strict=True):
        queues = await sent(config, *(f"{mark}{number}" for number in range(5)))
        assert {queue.topic for queue in queues} == {TOPIC}

    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(LitePullConsumer(group, client=each, config=lite))
            for each in configs
        ]
        for consumer, mark in zip(consumers, "ab", strict=True):
            await consumer.subscribe(TOPIC, "new")
            messages = await polled(consumer, 5)

            assert bodies(messages) == [f"{mark}{number}" for number in range(5)]
            assert {message.topic for message in messages} == {TOPIC}
            assert {message.queue.topic for message in messages} == {TOPIC}
            assert len(await consumer.message_queues(TOPIC)) == 2
            # Each is the only member of its group and owns all queues.
            assert len(consumer.assignment()) == 2
            await consumer.commit()
            for queue in consumer.assignment():
                assert queue.topic == TOPIC
                assert await consumer.committed(queue) == await consumer.position(queue)
        assert await consumers[0].poll(1) == await consumers[1].poll(1) == []


async def test_committed_offsets_are_separate_per_namespace(
    configs: tuple[ClientConfig, ClientConfig], group: str
) -> None:
    lite = LitePullConfig(start_from="earliest")
    shop, market = configs
    await sent(shop, "1", "2", "3")
    async with LitePullConsumer(group, client=shop, config=lite) as consumer:
        await consumer.subscribe(TOPIC)
        await polled(consumer, 3)
    await sent(shop, "4")
    await sent(market, "other")

    for config, expected in ((shop, "4"), (market, "other")):
        async with LitePullConsumer(group, client=config, config=lite) as consumer:
            await consumer.subscribe(TOPIC)

            assert bodies(await polled(consumer, 1)) == [expected]


async def test_members_of_a_namespace_share_its_queues(
    configs: tuple[ClientConfig, ClientConfig], group: str
) -> None:
    async with (
        LitePullConsumer(group, client=configs[0]) as first,
        LitePullConsumer(group, client=configs[0]) as second,
        LitePullConsumer(group, client=configs[1]) as other,
    ):
        for consumer in (first, second, other):
            await consumer.subscribe(TOPIC)

        def shared() -> bool:
            return [len(each.assignment()) for each in (first, second, other)] == [1, 1, 2]

        await until(shared, "the queues are shared out", SECONDS)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_handlers_get_names_without_namespace_in_retries_and_dead_letters(
    cluster: Cluster,
    configs: tuple[ClientConfig, ClientConfig],
    names: tuple[str, str],
    group: str,
    orderly: bool,
) -> None:
    seen: list[tuple[str, str, int]] = []

    async def handle(message: MessageExt) -> None:
        body = message.body.decode()
        seen.append((body, message.topic, message.reconsume_times))
        if body == "later" and not message.reconsume_times:
            raise RetryLater(delay_level=1)
        if body == "never":
            raise ValueError("never")

    config = PushConfig(start_from="earliest", max_reconsume_times=1, suspend_seconds=0.1)
    await sent(configs[0], "fine", "later", "never")
    async with PushConsumer(
        group, on_message=handle, client=configs[0], config=config, orderly=orderly
    ) as consumer:
        await consumer.subscribe(TOPIC)
        events = consumer.events()
        async with asyncio.timeout(SECONDS):
            while not isinstance(event := await anext(events), MessageDeadLettered):
                pass
    topic = f"%DLQ%{names[0]}%{group}"
    dead = await in_thread(lambda: wait_for_messages(cluster, topic, 1, queues=1))

    assert [each.body for each in dead] == [b"never"]
    assert {topic for _, topic, _ in seen} == {TOPIC}
    assert sorted(body for body, _, _ in seen) == ["fine", "later", "later", "never", "never"]
    assert max(times for body, _, times in seen if body == "later") == 1
    assert names[0] not in repr(event)


async def test_dead_letters_are_read_by_the_name_without_namespace(
    cluster: Cluster, configs: tuple[ClientConfig, ClientConfig], group: str
) -> None:
    async with Producer("till", client=configs[0]) as producer:
        await producer.send(Message(TOPIC, b"broken"))
    async with PullConsumer(group, client=configs[0]) as puller:
        for queue in await puller.message_queues(TOPIC):
            for message in (await puller.pull(queue, 0)).messages:
                assert message.topic == TOPIC
                await puller.send_back(message, delay_level=-1)

        found: list[MessageExt] = []

        async def dead() -> bool:
            with suppress(RouteNotFoundError):
                for queue in await puller.message_queues(f"%DLQ%{group}"):
                    found.extend((await puller.pull(queue, 0)).messages)
            return bool(found)

        await until_done(dead, "the dead letter", SECONDS)

    assert [message.body for message in found] == [b"broken"]
    assert found[0].queue.topic == f"%DLQ%{group}"
    assert found[0].property("RETRY_TOPIC") in (TOPIC, None)


async def test_offset_queries_take_names_without_namespace(
    configs: tuple[ClientConfig, ClientConfig], group: str
) -> None:
    [queue] = await sent(configs[0], "one")
    async with PullConsumer(group, client=configs[0]) as puller:
        await puller.commit(queue, 1)

        async def is_indexed() -> bool:  # brokers index messages a moment after the send
            return await puller.max_offset(queue) == 1

        await until_done(is_indexed, "the message")
        assert await puller.min_offset(queue) == 0
        assert await puller.committed(queue) == 1
    async with PullConsumer(group, client=configs[1]) as puller:
        assert await puller.max_offset(queue) == 0


async def test_popped_messages_have_names_without_namespace_when_redelivered(
    cluster: Cluster, configs: tuple[ClientConfig, ClientConfig], group: str
) -> None:
    if cluster.version.startswith("4."):
        async with PopConsumer(group, client=configs[0]) as consumer:
            with pytest.raises(NotSupportedError):
                await consumer.subscribe(TOPIC)
        return
    await sent(configs[0], "1", "2", "3")
    config = PopConfig(start_from="earliest", invisible_seconds=5)
    async with PopConsumer(group, client=configs[0], config=config) as consumer:
        await consumer.subscribe(TOPIC)
        first = [await popped(consumer) for _ in range(3)]
        assert {message.topic for message in first} == {TOPIC}
        await consumer.ack(first[0])
        await consumer.ack(first[1:2])
        again = await popped(consumer)

        assert again.body == first[2].body
        assert (again.topic, again.queue.topic) == (TOPIC, TOPIC)
        assert again.reconsume_times == 1
        await consumer.ack(again)
        assert await consumer.receive(wait_seconds=8) == []


async def popped(consumer: PopConsumer) -> Any:  # noqa: ANN401 - a PoppedMessage
    async with asyncio.timeout(SECONDS):
        while True:
            if found := await consumer.receive(1):
                return found[0]


async def test_local_offsets_are_stored_in_one_file_per_namespace(
    configs: tuple[ClientConfig, ClientConfig], group: str, tmp_path: Path
) -> None:
    for config in configs:
        store = LocalFileOffsetStore(tmp_path)
        settings = LitePullConfig(
            start_from="earliest", message_model=MessageModel.BROADCASTING, offset_store=store
        )
        await sent(config, "1")
        async with LitePullConsumer(group, client=config, config=settings) as consumer:
            await consumer.subscribe(TOPIC)

            assert bodies(await polled(consumer, 1)) == ["1"]
    assert len(list(tmp_path.rglob("offsets.json"))) == 2


@pytest.mark.usefixtures("mqadmin_folder")
async def test_admin_client_returns_names_with_namespace(
    cluster: Cluster, configs: tuple[ClientConfig, ClientConfig], names: tuple[str, str], group: str
) -> None:
    lite = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, client=configs[0], config=lite) as consumer:
        await consumer.subscribe(TOPIC)
        await sent(configs[0], "1")
        await polled(consumer, 1)
        whole = f"{names[0]}%{group}"
        asked = ("consumerStatus", "-g", whole, "-i", consumer.client.client_id)
        status = await in_thread(cluster.mqadmin, *asked)

    assert f"{names[0]}%{TOPIC}" in status


async def test_namespace_v2_keeps_names_and_sets_request_fields(
    cluster: Cluster, topic: str, group: str
) -> None:
    config = ClientConfig(namesrv=cluster.namesrv, namespace="shop", namespace_version=2)
    async with Producer("till", client=config) as producer:
        assert (await producer.send(Message(topic, b"1"))).queue.topic == topic
    lite = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, client=config, config=lite) as consumer:
        await consumer.subscribe(topic)

        assert bodies(await polled(consumer, 1)) == ["1"]
