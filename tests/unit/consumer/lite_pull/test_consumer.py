"""LitePullConsumer on a scripted cluster: arguments and life cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.errors import ClosedError, ConfigError, NotRunningError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageSelector
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, bodies, consumer_of, consuming, put
from tests.unit.consumer.parts import queue
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import settle


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"group": ""}, "group"),
        ({"group": "a b"}, "group"),
        ({"namesrv": "nowhere"}, "namesrv"),
        ({"namesrv": "127.0.0.1:9876", "client": ClientConfig()}, "namesrv"),
        ({"client": "127.0.0.1:9876"}, "client"),
        ({"namesrv": "127.0.0.1:9876", "config": ProducerConfig()}, "config"),
        ({"namesrv": "127.0.0.1:9876", "config": {"auto_commit": False}}, "config"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LitePullConsumer(**{"group": GROUP, **arguments})

    assert caught.value.setting == setting


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean auto_commit"):
        LitePullConfig(autocommit=False)  # type: ignore[call-arg]


@pytest.mark.parametrize("topic", ["", "a b", "t" * 128, None, 7])
async def test_a_wrong_topic_is_refused_before_and_after_the_start(
    cluster: FakeCluster,
    topic: Any,  # noqa: ANN401
) -> None:
    consumer = consumer_of(cluster)
    with pytest.raises(ConfigError) as caught:
        await consumer.subscribe(topic)
    assert (caught.value.setting, caught.value.value) == ("topic", topic)
    async with consumer:
        with pytest.raises(ConfigError):
            await consumer.subscribe(topic)
        with pytest.raises(ConfigError):
            await consumer.message_queues(topic)


@pytest.mark.parametrize(
    "selector",
    ["||", " || ", 7, ["a"], MessageSelector("a", "XPATH")],  # type: ignore[arg-type]
)
async def test_a_wrong_selector_is_refused(
    cluster: FakeCluster,
    selector: Any,  # noqa: ANN401
) -> None:
    consumer = consumer_of(cluster)
    with pytest.raises(ConfigError) as caught:
        await consumer.subscribe(TOPIC, selector)
    assert caught.value.setting == "selector"
    with pytest.raises(ConfigError):
        await consumer.assign([queue()], selector)


@pytest.mark.parametrize("queues", [[], None, 5, "orders", ["orders"], [queue(), None]])
async def test_invalid_queues_are_refused(
    cluster: FakeCluster,
    queues: Any,  # noqa: ANN401
) -> None:
    consumer = consumer_of(cluster)
    with pytest.raises(ConfigError) as caught:
        await consumer.assign(queues)

    assert (caught.value.setting, caught.value.value) == ("queues", queues)


def uses() -> dict[str, Callable[[LitePullConsumer], Any]]:
    """Every call that needs a running consumer."""
    return {
        "poll": lambda c: c.poll(0),
        "anext": lambda c: c.__anext__(),
        "commit": lambda c: c.commit(),
        "committed": lambda c: c.committed(queue()),
        "position": lambda c: c.position(queue()),
        "lag": lambda c: c.lag(),
        "seek": lambda c: c.seek(queue(), 0),
        "seek_to_begin": lambda c: c.seek_to_begin(queue()),
        "seek_to_end": lambda c: c.seek_to_end(queue()),
        "message_queues": lambda c: c.message_queues(TOPIC),
        "ready": lambda c: c.ready(0.1),
    }


async def use(consumer: LitePullConsumer, name: str) -> object:
    return await uses()[name](consumer)


@pytest.mark.parametrize("name", uses())
async def test_before_the_start_it_cannot_be_used(cluster: FakeCluster, name: str) -> None:
    with pytest.raises(NotRunningError, match="not started"):
        await use(consumer_of(cluster), name)


@pytest.mark.parametrize("name", sorted(set(uses()) - {"anext"}))
async def test_after_the_close_it_cannot_be_used(cluster: FakeCluster, name: str) -> None:
    async with consuming(cluster) as consumer:
        pass
    with pytest.raises(ClosedError):
        await use(consumer, name)


async def test_after_the_close_nothing_can_be_prepared(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        pass
    with pytest.raises(ClosedError):
        await consumer.subscribe(TOPIC)
    with pytest.raises(ClosedError):
        await consumer.unsubscribe(TOPIC)
    with pytest.raises(ClosedError):
        await consumer.assign([queue()])
    with pytest.raises(ClosedError):
        consumer.pause([queue()])
    assert consumer.assignment() == []


async def test_it_belongs_to_one_event_loop(cluster: FakeCluster) -> None:
    async def use_elsewhere() -> None:
        for name in uses():
            with pytest.raises(NotRunningError, match="another event loop"):
                await use(consumer, name)
        with pytest.raises(NotRunningError, match="another event loop"):
            await consumer.subscribe("invoices")

    async with consuming(cluster) as consumer:
        await asyncio.to_thread(asyncio.run, use_elsewhere())


async def test_it_may_be_started_and_closed_in_different_tasks(cluster: FakeCluster) -> None:
    async with nothing_left():
        consumer = consumer_of(cluster)
        await consumer.subscribe(TOPIC)
        put(cluster, "a")
        await asyncio.create_task(consumer.start())

        assert bodies(await asyncio.create_task(consumer.poll(5))) == ["a"]
        await asyncio.create_task(consumer.close())


async def test_two_groups_share_one_client(cluster: FakeCluster) -> None:
    put(cluster, "a")
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        async with (
            consuming(cluster, client=client, group="billing") as one,
            consuming(cluster, client=client, group="shipping") as other,
        ):
            assert bodies(await one.poll(5)) == bodies(await other.poll(5)) == ["a"]
            assert len(cluster.broker.connections) == 1
        client.check_running()


async def test_a_group_is_in_a_client_once(cluster: FakeCluster) -> None:
    async with (
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        consuming(cluster, client=client),
    ):
        second = consumer_of(cluster, client=client)
        with pytest.raises(ConfigError) as caught:
            await second.start()
        assert (caught.value.setting, caught.value.value) == ("group", GROUP)


async def test_a_timeout_of_ready_names_what_is_missing(cluster: FakeCluster) -> None:
    assigned = asyncio.Event()
    async with LitePullConsumer(
        GROUP, namesrv=cluster.namesrv, on_assigned=lambda _: assigned.set()
    ) as consumer:
        with pytest.raises(TimeoutError, match=r"'> is not ready after 0.05 s: it has no subscrip"):
            await consumer.ready(0.05)
        await consumer.subscribe("bills")  # no name server knows it
        await consumer.subscribe(TOPIC)
        await assigned.wait()

        with pytest.raises(TimeoutError, match=r"no complete assignment yet of bills$"):
            await consumer.ready(0.05)


@pytest.mark.parametrize("is_assigned", [False, True])
async def test_ready_raises_when_the_consumer_closes(
    cluster: FakeCluster, *, is_assigned: bool
) -> None:
    cluster.faults.hold("query_offset", times=None)
    async with LitePullConsumer(GROUP, namesrv=cluster.namesrv) as consumer:
        if is_assigned:
            await consumer.assign([queue()])
        waiting = asyncio.create_task(consumer.ready())
        await settle()
        await consumer.close()

        with pytest.raises(ClosedError):
            await asyncio.wait_for(waiting, 15)


async def test_a_timeout_of_ready_names_a_queue_without_a_start(cluster: FakeCluster) -> None:
    cluster.faults.drop("query_offset", times=None)
    async with LitePullConsumer(GROUP, namesrv=cluster.namesrv) as consumer:
        await consumer.assign([queue()])

        with pytest.raises(TimeoutError, match=f"the start offset of {queue()} is not known"):
            await consumer.ready(0.05)
