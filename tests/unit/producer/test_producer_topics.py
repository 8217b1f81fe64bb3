"""Topics that a producer sends to: unknown, created, changing, gone."""

from __future__ import annotations

import asyncio
import sys
from time import time_ns
from typing import Final

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import (
    ConfigError,
    NameServerUnavailableError,
    RouteNotFoundError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.topic_publish_table import UNUSED_SECONDS
from tests.unit.producer.producer_env import ORDER, ROUTE, Shop, open_shop
from tests.unit.remoting.until import until

PRODUCER: Final = "rocketmq_aio.producer."


async def test_a_topic_that_does_not_exist_is_created_by_the_first_send() -> None:
    async with open_shop() as shop:
        result = await shop.producer.send(Message("later", b"x"))

        assert result.queue.topic == "later"
        assert len(shop.broker.topics["later"].queues) == 4
        assert shop.bodies("later") == [b"x"]


async def test_once_the_created_topic_is_known_its_own_route_is_used() -> None:
    async with open_shop(brokers=2) as shop:
        await shop.producer.send(Message("later", b"x"))
        (holder,) = [each for each in shop.brokers if "later" in each.topics]
        topics = shop.producer._infos
        assert topics["later"].brokers == {"broker-a", "broker-b"}
        await shop.producer.client.routes.refresh(["later"])  # as happens every second

        assert (await shop.producer.send(Message("later", b"y"))).queue.broker_name == holder.name
        assert topics["later"].brokers == {holder.name}


async def test_a_topic_that_nobody_creates_is_not_found() -> None:
    async with open_shop() as shop:
        shop.producer.client.routes._routes.clear()
        del shop.broker.topics["TBW102"]
        for send in (shop.producer.send, shop.producer.send_oneway):
            with pytest.raises(RouteNotFoundError, match="later"):
                await send(Message("later", b"x"))


async def test_a_topic_that_can_only_be_read_is_told_at_once() -> None:
    async with open_shop() as shop:
        shop.cluster.create_topic("archive", 4, perm=4)

        with pytest.raises(RouteNotFoundError, match="read-only"):
            await shop.producer.send(Message("archive", b"x"))


async def test_first_sends_to_a_topic_share_one_question() -> None:
    async with open_shop() as shop:
        await asyncio.gather(*(shop.producer.send(ORDER) for _ in range(200)))
        topics = [
            command.ext_fields()["topic"] for command in shop.cluster.name_server.requests_of(ROUTE)
        ]

        assert topics.count("orders") == 1


async def test_a_name_server_that_hangs_ends_the_first_send_at_its_deadline() -> None:
    async with open_shop(client=ClientConfig(request_timeout_seconds=60)) as shop:
        shop.cluster.name_server.on(ROUTE, None, times=None)
        with pytest.raises(NameServerUnavailableError, match="deadline"):
            await asyncio.wait_for(shop.producer.send(ORDER, timeout_seconds=0.1), 15)


async def test_a_name_server_that_is_gone_disturbs_no_known_route() -> None:
    async with open_shop() as shop:
        await shop.producer.send(ORDER)
        await shop.cluster.name_server.stop()

        assert (await shop.producer.send(ORDER)).ok


async def test_queues_added_to_a_topic_are_used_without_a_failed_send() -> None:
    client = ClientConfig(route_refresh_interval_seconds=0.02)
    async with open_shop(queues=1, client=client) as shop:
        used: set[int] = set()

        async def keep_sending() -> None:
            while len(used) < 8:
                used.add((await shop.producer.send(ORDER)).queue.queue_id)

        sending = asyncio.create_task(keep_sending())
        await until(lambda: used)
        shop.cluster.create_topic("orders", 8)
        await asyncio.wait_for(sending, 15)

        assert used == set(range(8))


async def test_a_topic_that_moves_to_another_broker_is_followed() -> None:
    client = ClientConfig(route_refresh_interval_seconds=0.02)
    async with open_shop(brokers=2, client=client) as shop:
        await shop.producer.send(ORDER)
        leaving, staying = shop.brokers
        shop.cluster.name_server.unregister(leaving)
        await until(lambda: leaving.name not in route_of(shop))

        results = [await shop.producer.send(ORDER) for _ in range(8)]
        assert {each.queue.broker_name for each in results} == {staying.name}


def route_of(shop: Shop) -> set[str]:
    route = shop.producer.client.routes.known("orders")
    return set(route.brokers) if route is not None else set()


async def test_topics_not_sent_to_for_long_are_forgotten() -> None:
    async with open_shop() as shop:
        await shop.producer.send(ORDER)
        assert set(shop.producer.topics()) == {"TBW102", "orders"}
        shop.producer._infos["orders"].used_at -= UNUSED_SECONDS + 1

        assert set(shop.producer.topics()) == {"TBW102"}
        assert (await shop.producer.send(ORDER)).ok


async def test_the_queues_of_keys_are_forgotten_with_topics_whose_route_changed() -> None:
    async with open_shop() as shop:
        await shop.producer.send(ORDER, sharding_key="order-42")
        publish = shop.producer._infos["orders"]
        shop.cluster.create_topic("orders", 8)
        await shop.producer.client.routes.fetch("orders")
        shop.producer.topics()
        assert "orders" in shop.producer._selection.sharded  # its keys may be sent to again
        publish.used_at -= UNUSED_SECONDS + 1
        shop.producer.topics()

        assert not shop.producer._selection.sharded


@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_step_of_the_wall_clock_moves_no_key(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    async with open_shop(queues=4) as shop:
        keys = [f"order-{number}" for number in range(20)]
        before = [await shop.producer.send(ORDER, sharding_key=key) for key in keys]
        shop.cluster.create_topic("orders", 7)
        for module in [each for name, each in sys.modules.items() if name.startswith(PRODUCER)]:
            if hasattr(module, "time_ns"):
                stepped = time_ns() + seconds * 10**9
                monkeypatch.setattr(module, "time_ns", lambda now=stepped: now)
        shop.producer.topics()  # as with every refresh of routes
        await shop.producer.client.routes.fetch("orders")
        after = [await shop.producer.send(ORDER, sharding_key=key) for key in keys]

        assert len(await shop.producer.publish_queues("orders")) == 7
        assert [each.queue for each in after] == [each.queue for each in before]


async def test_the_queues_of_a_topic_can_be_asked_for() -> None:
    async with open_shop(brokers=2, queues=2) as shop:
        queues = await shop.producer.publish_queues("orders")

        assert queues == [
            MessageQueue("orders", broker, number)
            for broker in ("broker-a", "broker-b")
            for number in range(2)
        ]
        with pytest.raises(RouteNotFoundError):
            await shop.producer.publish_queues("nowhere")
        with pytest.raises(ConfigError):
            await shop.producer.publish_queues("no topic")
