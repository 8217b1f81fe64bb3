"""Sends while brokers restart, move or are added."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import NotConnectedError, RouteNotFoundError, SendError
from rocketmq_aio.instance import routes as routes_module
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer import topic_publish_info as table_module
from tests.patience import PATIENCE_SECONDS
from tests.unit.producer.producer_env import (
    ORDER,
    SEND,
    ProducerEnv,
    connected,
    open_producer,
    stopped,
)
from tests.unit.remoting.until import succeeds, until, until_done

pytestmark = pytest.mark.usefixtures("short_pauses")

BUSY = Response(2, remark="system busy")
ONCE = ProducerConfig(retries=0, send_timeout_seconds=PATIENCE_SECONDS)


def without_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch no route again because it is in doubt: a lost connection puts it there."""
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 60.0)


async def test_a_restarted_broker_is_used_within_seconds() -> None:
    async with open_producer(config=ONCE) as env:
        await connected(env)
        await env.broker.stop()
        for _ in range(3):
            with pytest.raises(SendError):
                await env.producer.send(ORDER)
        await env.broker.start()

        await until_done(lambda: succeeds(env.producer.send(ORDER)))


async def test_a_restart_between_sends_fails_none(env: ProducerEnv) -> None:
    await connected(env)
    await stopped(env, env.broker)
    await env.broker.start()

    assert (await env.producer.send(ORDER)).ok


async def test_new_brokers_are_tried_when_all_known_ones_fail(two_brokers: ProducerEnv) -> None:
    known, late = two_brokers.brokers
    two_brokers.cluster.name_server.unregister(late)
    await two_brokers.producer.send(ORDER)
    two_brokers.cluster.name_server.register(late)
    await stopped(two_brokers, known)
    results = [await two_brokers.producer.send(ORDER) for _ in range(20)]

    assert {each.queue.broker_name for each in results} == {late.name}


async def test_a_chosen_queue_is_followed_to_the_new_address_of_its_broker(
    env: ProducerEnv,
) -> None:
    queue = env.queue(1)
    await env.producer.send(ORDER, queue=queue)
    await stopped(env, env.broker)
    env.broker.port = 0  # it comes back elsewhere
    await env.broker.start()

    assert (await env.producer.send(ORDER, queue=queue)).queue == queue


async def test_a_topic_to_be_created_follows_its_broker_to_a_new_address(
    env: ProducerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queues are those of the template topic, until a broker has created it."""
    without_refreshes(monkeypatch)
    await connected(env)
    await stopped(env, env.broker)
    created = Message("created", b"x")
    assert not await succeeds(env.producer.send(created, timeout_seconds=0.3))
    env.broker.port = 0  # it comes back elsewhere
    await env.broker.start()

    assert (await env.producer.send(created)).ok


async def test_a_new_route_of_the_template_is_used_for_topics_to_be_created(
    env: ProducerEnv,
) -> None:
    await connected(env)
    await stopped(env, env.broker)
    created, template = Message("created", b"x"), ProducerConfig().template_topic
    assert not await succeeds(env.producer.send(created, timeout_seconds=0.3))
    env.broker.port = 0
    await env.broker.start()
    await env.producer.client.routes.fetch(template)
    backed_off = len(env.cluster.name_server.requests)

    assert (await env.producer.send(created)).ok
    # One lookup: the topic, the template, and the topic again.
    assert len(env.cluster.name_server.requests) - backed_off <= 3


async def test_the_route_to_a_broker_that_cannot_store_is_fetched_again(
    two_brokers: ProducerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connected(two_brokers)
    invalid: list[str] = []
    monkeypatch.setattr(two_brokers.producer.client.routes, "invalidate", invalid.append)
    two_brokers.broker.faults.refuse(SEND, 14, "the broker's role is slave")
    await two_brokers.producer.send(ORDER)

    assert invalid == ["orders"]


async def test_a_busy_broker_does_not_have_the_route_fetched_again(
    two_brokers: ProducerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    invalid: list[str] = []
    monkeypatch.setattr(two_brokers.producer.client.routes, "invalidate", invalid.append)
    two_brokers.cluster.faults.handle(SEND, BUSY)
    await two_brokers.producer.send(ORDER)

    assert invalid == []


async def test_many_failing_sends_share_route_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "RENEW_SECONDS", 60.0)
    without_refreshes(monkeypatch)
    async with open_producer() as env:
        await connected(env)
        await stopped(env, env.broker)
        asked = len(env.cluster.name_server.requests)
        sends = (succeeds(env.producer.send(ORDER, timeout_seconds=1)) for _ in range(500))
        assert not any(await asyncio.gather(*sends))

        assert len(env.cluster.name_server.requests) - asked <= 1


async def test_a_hanging_name_server_leaves_time_for_a_retry(env: ProducerEnv) -> None:
    await connected(env)
    env.cluster.faults.drop("route", executed=False, times=None)
    env.broker.faults.handle(SEND, BUSY)

    assert (await env.producer.send(ORDER, timeout_seconds=3.0)).ok


async def test_a_retry_waits_for_the_broker_that_was_not_tried(two_brokers: ProducerEnv) -> None:
    """Brokers restart one after the other: the first is back, but still left alone."""
    await connected(two_brokers)
    back, gone = two_brokers.brokers
    await stopped(two_brokers, *two_brokers.brokers)
    remoting = two_brokers.producer.client.remoting
    for _ in range(3):  # so that its backoff is almost a second
        remoting._count_failure(back.address, "it was down")
    await back.start()

    assert (await two_brokers.producer.send(ORDER)).queue.broker_name == back.name
    assert gone.requests == [] or not remoting.is_connected(gone.address)


async def test_sends_wait_for_the_broker_that_is_ready_first(two_brokers: ProducerEnv) -> None:
    await connected(two_brokers)
    back, gone = two_brokers.brokers
    await stopped(two_brokers, back, gone)
    remoting, now = two_brokers.producer.client.remoting, asyncio.get_running_loop().time()
    remoting._count_failure(back.address, "it was down")
    remoting._retry_at[gone.address] = now + PATIENCE_SECONDS, "it is down for long"
    await back.start()
    results = await asyncio.gather(*(two_brokers.producer.send(ORDER) for _ in range(8)))

    assert {each.queue.broker_name for each in results} == {back.name}


async def test_an_attempt_without_a_request_is_not_counted() -> None:
    async with open_producer(config=ONCE) as env:
        await connected(env)
        await stopped(env, env.broker)
        assert not await succeeds(env.producer.send(ORDER))
        await env.broker.start()

        assert (await env.producer.send(ORDER)).ok  # although the broker is in backoff at first


async def test_a_send_to_a_dead_broker_ends_at_its_deadline(env: ProducerEnv) -> None:
    await connected(env)
    await stopped(env, env.broker)
    remoting = env.producer.client.remoting
    for _ in range(2):
        late = asyncio.get_running_loop().time() + 60
        remoting._retry_at[env.broker.address] = late, "it was down"
        sending = env.producer.send(ORDER, timeout_seconds=0.4)
        assert not await asyncio.wait_for(succeeds(sending), 14)


# --- failovers ------------------------------------------------------------------------------------


async def fail_over(env: ProducerEnv) -> None:
    """Leave the broker with a replica only, as name servers show it during a failover."""
    env.cluster.name_server.headless = {env.broker.name}
    await stopped(env, env.broker)


async def new_master(env: ProducerEnv) -> None:
    """Have the broker back at another address, and name servers know it."""
    env.broker.port = 0
    await env.broker.start()
    env.cluster.name_server.headless = set()


@pytest.mark.parametrize("chosen", [False, True], ids=["any queue", "one queue"])
async def test_a_send_waits_for_a_master_within_its_deadline(
    chosen: bool, env: ProducerEnv
) -> None:
    await connected(env)
    await fail_over(env)
    asked = len(env.cluster.name_server.requests)
    queue = env.queue(1) if chosen else None
    sending = asyncio.create_task(env.producer.send(ORDER, queue=queue))
    await until(lambda: len(env.cluster.name_server.requests) > asked + 1)
    await new_master(env)

    assert (await sending).ok


async def test_a_pinned_route_does_not_delay_sends(env: ProducerEnv) -> None:
    """A consumer of the topic keeps its route known, also without a master."""
    await connected(env)
    client = env.producer.client
    async with LitePullConsumer("billing", client=client) as consumer:
        await consumer.subscribe("orders")
        await fail_over(env)
        await client.routes.fetch("orders")
        with pytest.raises(RouteNotFoundError, match=r"\(broker-a\) have no master now"):
            await env.producer.send(ORDER, timeout_seconds=0.3)
        sending = asyncio.create_task(env.producer.send(ORDER))
        await new_master(env)

        assert (await sending).ok


async def test_a_master_that_comes_at_the_deadline_is_no_failure_of_name_servers(
    env: ProducerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "NEWER_SECONDS", 60.0)
    await connected(env)
    await fail_over(env)
    client = env.producer.client
    await client.routes.fetch("orders")
    sending = asyncio.create_task(env.producer.send(ORDER, timeout_seconds=1.0))
    await asyncio.sleep(0)
    await new_master(env)
    await client.routes.fetch("orders")  # by another client of the instance

    with pytest.raises(RouteNotFoundError, match="its route to a master came after the deadline"):
        await sending


async def test_a_new_producer_waits_for_the_master_of_a_chosen_queue(
    two_brokers: ProducerEnv,
) -> None:
    two_brokers.cluster.name_server.headless = {"broker-b"}
    queue = two_brokers.queue(1, "broker-b")
    with pytest.raises(SendError, match="broker-b: no route names a master"):
        await two_brokers.producer.send(ORDER, queue=queue, timeout_seconds=0.4)
    with pytest.raises(NotConnectedError, match="no route names a master"):
        await two_brokers.producer.send_oneway(ORDER, queue=queue)
    sending = asyncio.create_task(two_brokers.producer.send(ORDER, queue=queue))
    two_brokers.cluster.name_server.headless = set()

    assert (await sending).queue == queue


async def test_many_sends_without_a_master_share_route_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "NEWER_SECONDS", 60.0)
    without_refreshes(monkeypatch)
    async with open_producer() as env:
        await connected(env)
        await fail_over(env)
        await env.producer.client.routes.fetch("orders")
        asked = len(env.cluster.name_server.requests)
        sends = (succeeds(env.producer.send(ORDER, timeout_seconds=0.3)) for _ in range(500))
        assert not any(await asyncio.gather(*sends))

        assert len(env.cluster.name_server.requests) - asked <= 1


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
async def test_sends_to_queues_that_a_topic_no_longer_has_go_to_others(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    without_refreshes(monkeypatch)
    async with open_producer(queues=8, version=version) as env:
        await connected(env)
        env.broker.delete_topic("orders")
        env.broker.create_topic("orders", 2)

        results = [await env.producer.send(ORDER) for _ in range(8)]

        assert {result.queue.queue_id for result in results} == {0, 1}


async def test_a_rejected_queue_of_a_key_has_the_route_requested_again() -> None:
    async with open_producer(queues=8) as env:
        await connected(env)
        env.broker.delete_topic("orders")
        env.broker.create_topic("orders", 1)
        keyed = [Message("orders", b"-", sharding_key=str(number)) for number in range(8)]

        async def send_all() -> None:
            for each in keyed:
                await env.producer.send(each)

        await until_done(lambda: succeeds(send_all()))
