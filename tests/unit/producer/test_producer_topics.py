"""Topic publish table: unknown, created, changed and unused topics."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from time import time_ns
from typing import Final

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import ConfigError, NameServerUnavailableError, RouteNotFoundError
from rocketmq_aio.instance import routes as routes_module
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.topic_publish_info import UNUSED_SECONDS
from rocketmq_aio.protocol.codes import ResponseCode
from tests.unit.producer.producer_env import ORDER, ROUTE, ProducerEnv, open_producer
from tests.unit.remoting.until import until

PRODUCER: Final = "rocketmq_aio.producer."


async def test_a_topic_that_does_not_exist_is_created_by_the_first_send(env: ProducerEnv) -> None:
    result = await env.producer.send(Message("later", b"x"))

    assert result.queue.topic == "later"
    assert len(env.broker.topics["later"].queues) == 4
    assert env.bodies("later") == [b"x"]


async def test_once_the_created_topic_is_known_its_own_route_is_used(
    two_brokers: ProducerEnv,
) -> None:
    await two_brokers.producer.send(Message("later", b"x"))
    (holder,) = [each for each in two_brokers.brokers if "later" in each.topics]
    topics = two_brokers.producer._infos
    assert topics["later"].brokers == {"broker-a", "broker-b"}
    await two_brokers.producer.client.routes.refresh(["later"])  # as happens every second

    assert (
        await two_brokers.producer.send(Message("later", b"y"))
    ).queue.broker_name == holder.name
    assert topics["later"].brokers == {holder.name}


async def test_a_name_server_that_just_started_hides_no_existing_topic() -> None:
    """Brokers register between the requests for the topic and for the template."""
    async with open_producer(brokers=2, queues=1) as env:
        unknown = Response(ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        env.cluster.faults.handle("route", unknown)
        for number in range(8):
            await env.producer.send(Message("orders", b"x", sharding_key=str(number)))

        assert {(each.queue_id, each.topic) for each in env.sends()} == {(0, "orders")}
        assert len(env.sends()) == 8


async def test_a_topic_that_no_broker_creates_is_not_found(env: ProducerEnv) -> None:
    env.producer.client.routes._routes.clear()
    del env.broker.topics["TBW102"]
    for send in (env.producer.send, env.producer.send_oneway):
        with pytest.raises(RouteNotFoundError, match="later"):
            await send(Message("later", b"x"))


async def test_a_read_only_topic_raises_at_once(env: ProducerEnv) -> None:
    env.cluster.create_topic("archive", 4, perm=4)

    with pytest.raises(RouteNotFoundError, match="read-only"):
        await env.producer.send(Message("archive", b"x"))


async def test_first_sends_to_a_topic_share_one_route_request() -> None:
    async with open_producer(client=ClientConfig(route_refresh_interval_seconds=9e8)) as env:
        await asyncio.gather(*(env.producer.send(ORDER) for _ in range(200)))
    topics = [
        command.ext_fields()["topic"] for command in env.cluster.name_server.requests_of(ROUTE)
    ]

    assert topics.count("orders") == 1


async def test_a_hanging_name_server_fails_the_first_send_at_its_deadline() -> None:
    async with open_producer(client=ClientConfig(request_timeout_seconds=60)) as env:
        env.cluster.faults.drop("route", executed=False, times=None)
        with pytest.raises(NameServerUnavailableError, match="deadline"):
            await asyncio.wait_for(env.producer.send(ORDER, timeout_seconds=0.1), 15)


async def test_a_first_send_waits_for_a_name_server_within_its_deadline(env: ProducerEnv) -> None:
    """All name servers are in backoff: requests to them fail at once."""
    await env.cluster.name_server.stop()
    remoting = env.producer.client.remoting
    await until(lambda: not remoting.is_connected(env.cluster.namesrv))
    for _ in range(2):
        with pytest.raises(NameServerUnavailableError):
            await env.producer.client.routes.fetch("orders")
    sending = asyncio.create_task(env.producer.send(ORDER))
    await until(lambda: env.producer._in_flight.count == 1)
    await env.cluster.name_server.start()

    assert (await sending).ok


async def test_a_first_send_without_a_name_server_ends_with_its_causes(env: ProducerEnv) -> None:
    await env.cluster.name_server.stop()
    with pytest.raises(NameServerUnavailableError) as raised:
        await asyncio.wait_for(env.producer.send(ORDER, timeout_seconds=0.3), 15)

    assert set(raised.value.addresses) == {env.cluster.namesrv}


async def test_known_routes_survive_without_a_name_server(env: ProducerEnv) -> None:
    await env.producer.send(ORDER)
    await env.cluster.name_server.stop()

    assert (await env.producer.send(ORDER)).ok


async def test_a_changed_route_survives_without_a_name_server(
    env: ProducerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.02)
    await env.producer.send(ORDER)
    env.cluster.create_topic("orders", 8)
    await env.producer.client.routes.refresh(["orders"])
    looked = asyncio.Event()
    for _ in range(3):  # rounds of the refresh, which drops unused routes at the second
        looked.clear()
        monkeypatch.setattr(env.producer, "topics", noting(env.producer, looked))
        await asyncio.wait_for(looked.wait(), 15)
    await env.cluster.name_server.stop()

    assert (await env.producer.send(ORDER, queue=env.queue(7))).ok


def noting(producer: Producer, looked: asyncio.Event) -> Callable[[], Iterable[str]]:
    """Return `Producer.topics`, which sets *looked* when it is called."""

    def topics() -> Iterable[str]:
        looked.set()
        return Producer.topics(producer)

    return topics


async def test_queues_added_to_a_topic_are_used_without_a_failed_send() -> None:
    client = ClientConfig(route_refresh_interval_seconds=0.02)
    async with open_producer(queues=1, client=client) as env:
        used: set[int] = set()

        async def keep_sending() -> None:
            while len(used) < 8:
                used.add((await env.producer.send(ORDER)).queue.queue_id)

        sending = asyncio.create_task(keep_sending())
        await until(lambda: used)
        env.cluster.create_topic("orders", 8)
        await asyncio.wait_for(sending, 15)

        assert used == set(range(8))


async def test_a_topic_that_moves_to_another_broker_is_followed() -> None:
    client = ClientConfig(route_refresh_interval_seconds=0.02)
    async with open_producer(brokers=2, client=client) as env:
        await env.producer.send(ORDER)
        leaving, staying = env.brokers
        env.cluster.name_server.unregister(leaving)
        await until(lambda: leaving.name not in route_of(env))

        results = [await env.producer.send(ORDER) for _ in range(8)]
        assert {each.queue.broker_name for each in results} == {staying.name}


def route_of(env: ProducerEnv) -> set[str]:
    route = env.producer.client.routes.known("orders")
    return set() if route is None else {queue.broker_name for queue in route.publish_queues}


@pytest.mark.parametrize(
    "batching", [None, AutoBatch(linger_seconds=0.01)], ids=["alone", "batched"]
)
async def test_a_queue_whose_broker_has_returned_is_found_before_the_next_refresh(
    batching: AutoBatch | None,
) -> None:
    config = ProducerConfig(auto_batch=batching)
    async with open_producer(brokers=2, config=config) as env:
        server, producer = env.cluster.name_server, env.producer
        wanted = env.queue(0, "broker-b")
        sends: list[Callable[[], Awaitable[object]]] = [
            lambda: producer.send(ORDER, queue=wanted),
            lambda: producer.send_nowait(ORDER, queue=wanted),
            lambda: producer.send_oneway(ORDER, queue=wanted),
            lambda: producer.send_batch([ORDER], queue=wanted),
        ]
        for send in sends:
            server.unregister(env.brokers[1])
            await producer.client.routes.refresh(["orders"])
            await producer.send(ORDER)
            server.register(env.brokers[1])
            await send()

        await until(lambda: len(env.brokers[1].messages("orders", 0)) == len(sends))


async def test_a_queue_whose_broker_is_gone_raises(two_brokers: ProducerEnv) -> None:
    env = two_brokers
    env.cluster.name_server.unregister(env.brokers[1])
    for send in (env.producer.send, env.producer.send_oneway):
        with pytest.raises(RouteNotFoundError, match="broker-b"):
            await send(ORDER, queue=env.queue(0, "broker-b"))


async def test_unused_topics_are_dropped(env: ProducerEnv) -> None:
    await env.producer.send(ORDER)
    assert set(env.producer.topics()) == {"TBW102", "orders"}
    env.producer._infos["orders"].used_at -= UNUSED_SECONDS + 1

    assert set(env.producer.topics()) == {"TBW102"}
    assert (await env.producer.send(ORDER)).ok


async def test_topics_found_later_leave_excluded_brokers_out(two_brokers: ProducerEnv) -> None:
    excluded, other = two_brokers.brokers
    two_brokers.cluster.create_topic("payments", 4)
    two_brokers.producer._sender.table.exclude(frozenset({excluded.address}))
    results = [await two_brokers.producer.send(Message("payments", b"1")) for _ in range(8)]

    assert {each.queue.broker_name for each in results} == {other.name}


async def test_a_topic_that_is_gone_is_in_use_with_the_next_send_only(env: ProducerEnv) -> None:
    await env.producer.send(ORDER)
    env.cluster.name_server.unregister(env.broker)
    for _ in range(2):
        await env.producer.client.routes.refresh(["orders"])
    in_use = set(env.producer.topics())
    env.cluster.name_server.register(env.broker)
    await env.producer.send(ORDER)

    assert in_use == {"TBW102"}
    assert set(env.producer.topics()) == {"TBW102", "orders"}


async def test_queues_of_keys_are_dropped_with_unused_topics(env: ProducerEnv) -> None:
    await env.producer.send(ORDER, sharding_key="order-42")
    publish = env.producer._infos["orders"]
    env.cluster.create_topic("orders", 8)
    await env.producer.client.routes.fetch("orders")
    env.producer.topics()
    assert "orders" in env.producer._selection.sharded  # its keys may be sent to again
    publish.used_at -= UNUSED_SECONDS + 1
    env.producer.topics()

    assert not env.producer._selection.sharded


@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_step_of_the_wall_clock_moves_no_key(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    async with open_producer(queues=4) as env:
        keys = [f"order-{number}" for number in range(20)]
        before = [await env.producer.send(ORDER, sharding_key=key) for key in keys]
        env.cluster.create_topic("orders", 7)
        for module in [each for name, each in sys.modules.items() if name.startswith(PRODUCER)]:
            if hasattr(module, "time_ns"):
                stepped = time_ns() + seconds * 10**9
                monkeypatch.setattr(module, "time_ns", lambda now=stepped: now)
        env.producer.topics()  # as with every refresh of routes
        await env.producer.client.routes.fetch("orders")
        after = [await env.producer.send(ORDER, sharding_key=key) for key in keys]

        assert len(await env.producer.publish_queues("orders")) == 7
        assert [each.queue for each in after] == [each.queue for each in before]


async def test_publish_queues_returns_the_writable_queues() -> None:
    async with open_producer(brokers=2, queues=2) as env:
        queues = await env.producer.publish_queues("orders")

        assert queues == [
            MessageQueue("orders", broker, number)
            for broker in ("broker-a", "broker-b")
            for number in range(2)
        ]
        with pytest.raises(RouteNotFoundError):
            await env.producer.publish_queues("nowhere")
        with pytest.raises(ConfigError):
            await env.producer.publish_queues("no topic")
