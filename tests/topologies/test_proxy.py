"""Clients whose name servers are the remoting ports of 5.x proxies in cluster mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rocketmq_aio import (
    AdminClient,
    BrokerError,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    LocalFileOffsetStore,
    Message,
    MessageDeadLettered,
    MessageExt,
    MessageModel,
    MessageSelector,
    NameServerUnavailableError,
    NotSupportedError,
    PopConsumer,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.testing import Cluster
from tests.broker.under_load import Load
from tests.unit.remoting.until import until

DELAYS = "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s"
BROKER = {
    "messageDelayLevel": DELAYS,
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "recallMessageEnable": "true",
}
PATIENT = ProducerConfig(send_timeout_seconds=30.0)
SECONDS = 90.0  # of a busy machine
EARLIEST = LitePullConfig(start_from="earliest")


@pytest.fixture(scope="module")
def cluster(rocketmq_version: str) -> Iterator[Cluster]:
    """A broker behind two proxies; each test but the last leaves all of them running."""
    with Cluster.start(
        rocketmq_version, proxies=2, backend="jvm", broker_properties=BROKER
    ) as running:
        yield running


@pytest.fixture
def namesrv(cluster: Cluster) -> str:
    return cluster.proxies[0].address


@pytest.fixture
def client(namesrv: str) -> ClientConfig:
    return ClientConfig(namesrv=namesrv, request_timeout_seconds=30.0)


@pytest.fixture
async def make_topic(
    cluster: Cluster, rocketmq_group: str
) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Creates topics for one type of message; proxies check the type."""
    async with AdminClient(namesrv=cluster.namesrv) as admin:

        async def make(kind: str) -> str:
            topic = f"{kind}-{rocketmq_group[-20:]}"
            attributes = {"message.type": kind}
            await admin.create_topic(topic, read_queues=2, write_queues=2, attributes=attributes)
            return topic

        yield make


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def text(messages: list[MessageExt]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


async def read(
    client: ClientConfig, group: str, topic: str, count: int, selector: str | MessageSelector = "*"
) -> list[MessageExt]:
    """Return the first *count* messages of *topic*."""
    taken: list[MessageExt] = []
    async with LitePullConsumer(group, client=client, config=EARLIEST) as consumer:
        await consumer.subscribe(topic, selector)
        async with asyncio.timeout(SECONDS):
            while len(taken) < count:
                taken += await consumer.poll()
    return taken


async def send(client: ClientConfig, group: str, topic: str, bodies: list[str]) -> None:
    async with Producer(group, client=client, config=PATIENT) as producer:
        await producer.send_batch([Message(topic, body.encode()) for body in bodies])


async def test_plain_batched_and_oneway_sends_are_read(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("NORMAL")
    async with Producer(rocketmq_group, client=client, config=PATIENT) as producer:
        result = await producer.send(Message(topic, b"0"))
        await producer.send_batch([Message(topic, body.encode()) for body in ("1", "2", "3")])
        await producer.send_oneway(Message(topic, b"4"))

    assert result.status is SendStatus.SEND_OK
    assert text(await read(client, rocketmq_group, topic, 5)) == numbers(5)


async def test_delayed_messages_are_delivered_and_recalled(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("DELAY")
    async with Producer(rocketmq_group, client=client, config=PATIENT) as producer:
        recalled = await producer.send(Message(topic, b"recalled", delay_seconds=20))
        await producer.recall(topic, recalled.recall_handle)
        await producer.send(Message(topic, b"later", delay_seconds=1))

    assert text(await read(client, rocketmq_group, topic, 1)) == ["later"]


async def test_messages_of_a_key_stay_in_order_in_an_orderly_consumer(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic, handled = await make_topic("FIFO"), list[str]()
    async with Producer(rocketmq_group, client=client, config=PATIENT) as producer:
        for body in numbers(20):
            await producer.send(Message(topic, body.encode(), sharding_key="a"))

    async def handle(message: MessageExt) -> None:
        handled.append(message.body.decode())

    config = PushConfig(start_from="earliest")
    consumer = PushConsumer(
        rocketmq_group, on_message=handle, orderly=True, client=client, config=config
    )
    await consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(handled) >= 20, "20 messages", SECONDS)

    assert handled == numbers(20)


async def test_a_failed_message_is_redelivered_and_a_group_goes_on_where_it_was(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic, handled = await make_topic("NORMAL"), list[tuple[str, int]]()
    await send(client, rocketmq_group, topic, numbers(10))

    async def handle(message: MessageExt) -> None:
        body = message.body.decode()
        handled.append((body, message.reconsume_times))
        if body == "3" and not message.reconsume_times:
            raise ValueError("again")

    async def consume(total: int) -> None:
        config = PushConfig(start_from="earliest")
        consumer = PushConsumer(rocketmq_group, on_message=handle, client=client, config=config)
        await consumer.subscribe(topic)
        async with consumer:
            await until(lambda: len(handled) >= total, f"{total} messages", SECONDS)

    await consume(11)
    await send(client, rocketmq_group, topic, ["next"])
    await consume(12)

    once = [(body, 0) for body in numbers(10)]
    assert sorted(handled) == sorted([*once, ("3", 1), ("next", 0)])


async def test_queues_are_pulled_searched_and_committed(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("NORMAL")
    await send(client, rocketmq_group, topic, numbers(6))
    long_ago, taken = datetime(2020, 1, 1, tzinfo=UTC), list[MessageExt]()
    async with PullConsumer(rocketmq_group, client=client) as consumer:
        for queue in await consumer.message_queues(topic):
            end = await consumer.max_offset(queue)
            assert (await consumer.min_offset(queue), await consumer.committed(queue)) == (0, None)
            assert await consumer.offset_for_time(queue, long_ago) == 0
            taken += (await consumer.pull(queue, 0)).messages
            await consumer.commit(queue, end)
            assert await consumer.committed(queue) == end

    assert text(taken) == numbers(6)


async def test_transactions_are_committed_rolled_back_and_checked(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic, checked = await make_topic("TRANSACTION"), list[str]()

    async def check(message: MessageExt) -> TransactionState:
        checked.append(message.body.decode())
        return TransactionState.COMMIT

    async with TransactionProducer(
        rocketmq_group, check=check, client=client, config=PATIENT
    ) as producer:
        async with producer.transaction(Message(topic, b"committed")):
            pass
        async with producer.transaction(Message(topic, b"rolled back")) as transaction:
            await transaction.rollback()
        async with producer.transaction(Message(topic, b"unknown")) as transaction:
            transaction.unknown()
        taken = await read(client, rocketmq_group, topic, 2)

    assert text(taken) == ["committed", "unknown"]
    assert set(checked) == {"unknown"}


async def test_tags_and_sql_expressions_select_messages(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("NORMAL")
    async with Producer(rocketmq_group, client=client, config=PATIENT) as producer:
        for number in range(10):
            tags, properties = "odd" if number % 2 else "even", {"weight": str(number)}
            message = Message(topic, b"%d" % number, tags=tags, properties=properties)
            await producer.send(message)

    for name, selector, wanted in (
        ("tags", "odd", ["1", "3", "5", "7", "9"]),
        ("sql", MessageSelector.by_sql("weight > 6"), ["7", "8", "9"]),
    ):
        group = f"{name}-{rocketmq_group[-20:]}"
        assert text(await read(client, group, topic, len(wanted), selector)) == wanted


async def test_a_message_whose_retries_are_used_up_becomes_a_dead_letter(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic, events = await make_topic("NORMAL"), list[object]()
    await send(client, rocketmq_group, topic, ["bad"])

    async def fail(_: MessageExt) -> None:
        raise ValueError("bad")

    config = PushConfig(start_from="earliest", max_reconsume_times=1)
    consumer = PushConsumer(
        rocketmq_group, on_message=fail, client=client, config=config, on_event=events.append
    )
    await consumer.subscribe(topic)
    async with consumer:
        await until(
            lambda: any(isinstance(each, MessageDeadLettered) for each in events), "event", SECONDS
        )

    dead = f"%DLQ%{rocketmq_group}"
    assert text(await read(client, f"r-{rocketmq_group[-20:]}", dead, 1)) == ["bad"]


async def test_each_member_of_a_broadcasting_group_receives_every_message(
    client: ClientConfig,
    make_topic: Callable[[str], Awaitable[str]],
    rocketmq_group: str,
    tmp_path: Path,
) -> None:
    topic, received = await make_topic("NORMAL"), [list[str](), list[str]()]
    await send(client, rocketmq_group, topic, numbers(10))
    async with AsyncExitStack() as stack:
        for number, bodies in enumerate(received):

            async def handle(message: MessageExt, bodies: list[str] = bodies) -> None:
                bodies.append(message.body.decode())

            config = PushConfig(
                start_from="earliest",
                message_model=MessageModel.BROADCASTING,
                offset_store=LocalFileOffsetStore(tmp_path),
            )
            own = replace(client, instance_name=f"member-{number}")
            member = PushConsumer(rocketmq_group, on_message=handle, client=own, config=config)
            await member.subscribe(topic)
            await stack.enter_async_context(member)
        await until(lambda: all(len(each) >= 10 for each in received), "10 messages each", SECONDS)

    assert [sorted(each) for each in received] == [numbers(10)] * 2


async def test_members_of_a_group_share_the_queues(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("NORMAL")

    def shares(*members: LitePullConsumer) -> list[int]:
        return [len(each.assignment()) for each in members]

    async with LitePullConsumer(rocketmq_group, client=client, config=EARLIEST) as stays:
        await stays.subscribe(topic)
        async with LitePullConsumer(rocketmq_group, client=client, config=EARLIEST) as leaves:
            await leaves.subscribe(topic)
            await until(lambda: shares(stays, leaves) == [1, 1], "a queue each", SECONDS)
        await until(lambda: shares(stays) == [2], "both queues", SECONDS)


async def test_a_message_of_another_type_than_its_topic_is_rejected(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("NORMAL")
    async with Producer(rocketmq_group, client=client, config=PATIENT) as producer:
        with pytest.raises(BrokerError, match="expected type is NORMAL"):
            await producer.send(Message(topic, b"0", delay_seconds=1))


async def test_calls_that_a_proxy_does_not_support_raise_with_advice(
    client: ClientConfig, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("NORMAL")
    consumer = PopConsumer(rocketmq_group, client=client)
    await consumer.subscribe(topic)
    with pytest.raises(NotSupportedError, match="use PushConsumer or LitePullConsumer"):
        await consumer.start()
    async with Producer(rocketmq_group, client=client, config=PATIENT) as producer:
        with pytest.raises(NotSupportedError, match="connect to the name servers of its brokers"):
            await producer.request(Message(topic, b"0"))
    async with AdminClient(client=client) as admin:
        assert (await admin.topic_route(topic)).brokers[0].master == client.namesrv
        for call in (admin.list_topics(), admin.topic_stats(topic), admin.list_groups()):
            with pytest.raises(NotSupportedError, match="a proxy supports no administration"):
                await call


async def test_the_grpc_port_is_named_as_such(cluster: Cluster, rocketmq_group: str) -> None:
    host, _, port = cluster.proxies[0].address.rpartition(":")
    config = ClientConfig(namesrv=f"{host}:{int(port) + 1}")
    with pytest.raises(NameServerUnavailableError, match="gRPC port of a proxy"):
        await Producer(rocketmq_group, client=config).start()


async def test_clients_survive_that_the_broker_behind_the_proxies_is_killed(
    cluster: Cluster, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    topic = await make_topic("NORMAL")
    (broker,) = cluster.brokers
    namesrv = ";".join(proxy.address for proxy in cluster.proxies)
    async with Load(namesrv, rocketmq_group, topic) as load:
        await load.until_read(50, SECONDS)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await load.until_read(50, SECONDS)
        await load.until_all_read(SECONDS)

    assert load.wrong() == []


async def test_clients_use_the_other_proxy_and_survive_that_both_are_dead(
    cluster: Cluster, make_topic: Callable[[str], Awaitable[str]], rocketmq_group: str
) -> None:
    """The last test: one proxy stays dead, because a start takes 10 seconds."""
    topic = await make_topic("NORMAL")
    proxies = {proxy.address: proxy for proxy in cluster.proxies}
    async with Load(";".join(proxies), rocketmq_group, topic) as load:
        await load.until_read(50, SECONDS)
        first = proxies.pop(load.consumer.client.name_servers.addresses[0])
        (second,) = proxies.values()
        await asyncio.to_thread(first.kill)
        await load.until_read(100, SECONDS)
        await asyncio.to_thread(second.kill)
        await asyncio.to_thread(first.start)
        await load.until_read(50, SECONDS)
        await load.until_all_read(SECONDS)

    assert load.wrong() == []
