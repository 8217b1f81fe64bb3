"""Sends while brokers come back, move, or are joined by others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.errors import NotConnectedError, RouteNotFoundError, SendError
from rocketmq_aio.instance import routes as routes_module
from rocketmq_aio.producer import retry as retry_module
from rocketmq_aio.producer import topic_publish_table as table_module
from rocketmq_aio.remoting.backoff import Backoff
from tests.fakes.script import Reply
from tests.unit.producer.producer_env import ORDER, ROUTE, SEND, Shop, connected, open_shop, stopped
from tests.unit.remoting.until import succeeds, until, until_done

BUSY = Reply(2, remark="system busy")
ONCE = ProducerConfig(retries=0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is tried once more gets 2 ms instead of 200."""
    monkeypatch.setattr(retry_module, "Backoff", partial(Backoff, first=0.001))


def without_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch no route again because it is in doubt: a lost connection puts it there."""
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 60.0)


async def test_a_broker_that_comes_back_is_sent_to_within_seconds() -> None:
    async with open_shop(config=ONCE) as shop:
        await connected(shop)
        await shop.broker.stop()
        for _ in range(3):
            with pytest.raises(SendError):
                await shop.producer.send(ORDER)
        await shop.broker.start()

        await until_done(lambda: succeeds(shop.producer.send(ORDER)))


async def test_a_restart_between_two_sends_fails_none() -> None:
    async with open_shop() as shop:
        await connected(shop)
        await stopped(shop, shop.broker)
        await shop.broker.start()

        assert (await shop.producer.send(ORDER)).ok


async def test_when_all_known_brokers_fail_those_that_came_meanwhile_are_tried() -> None:
    async with open_shop(brokers=2) as shop:
        known, late = shop.brokers
        shop.cluster.name_server.unregister(late)
        await shop.producer.send(ORDER)
        shop.cluster.name_server.register(late)
        await stopped(shop, known)
        results = [await shop.producer.send(ORDER) for _ in range(20)]

        assert {each.queue.broker_name for each in results} == {late.name}


async def test_a_chosen_queue_is_followed_to_the_new_address_of_its_broker() -> None:
    async with open_shop() as shop:
        queue = shop.queue(1)
        await shop.producer.send(ORDER, queue=queue)
        await stopped(shop, shop.broker)
        shop.broker.port = 0  # it comes back elsewhere
        await shop.broker.start()

        assert (await shop.producer.send(ORDER, queue=queue)).queue == queue


async def test_many_sends_that_fail_are_no_storm_of_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_module, "RENEW_SECONDS", 60.0)
    without_refreshes(monkeypatch)
    async with open_shop() as shop:
        await connected(shop)
        await stopped(shop, shop.broker)
        asked = len(shop.cluster.name_server.requests)
        sends = (succeeds(shop.producer.send(ORDER)) for _ in range(500))
        assert not any(await asyncio.gather(*sends))

        assert len(shop.cluster.name_server.requests) - asked <= 1


async def test_a_name_server_that_hangs_does_not_take_the_time_of_a_retry() -> None:
    async with open_shop() as shop:
        await connected(shop)
        shop.cluster.name_server.on(ROUTE, None, times=None)
        shop.broker.on(SEND, BUSY)

        assert (await shop.producer.send(ORDER, timeout_seconds=0.6)).ok


async def test_a_broker_that_was_not_tried_yet_is_waited_for_and_not_the_one_that_failed() -> None:
    """Brokers restart one after the other: the first is back, but still left alone."""
    async with open_shop(brokers=2) as shop:
        await connected(shop)
        back, gone = shop.brokers
        await stopped(shop, *shop.brokers)
        remoting = shop.producer.client.remoting
        for _ in range(3):  # so that it is left alone for almost a second
            remoting._count_failure(back.address, "it was down")
        await back.start()

        assert (await shop.producer.send(ORDER)).queue.broker_name == back.name
        assert gone.requests == [] or not remoting.is_connected(gone.address)


async def test_what_was_not_tried_counts_as_no_attempt() -> None:
    async with open_shop(config=ONCE) as shop:
        await connected(shop)
        await stopped(shop, shop.broker)
        assert not await succeeds(shop.producer.send(ORDER))
        await shop.broker.start()

        assert (await shop.producer.send(ORDER)).ok  # although the broker is left alone at first


async def test_with_the_broker_down_a_send_ends_by_its_deadline() -> None:
    async with open_shop() as shop:
        await connected(shop)
        await stopped(shop, shop.broker)
        remoting = shop.producer.client.remoting
        for _ in range(2):
            late = asyncio.get_running_loop().time() + 60
            remoting._retry_at[shop.broker.address] = late, "it was down"
            sending = shop.producer.send(ORDER, timeout_seconds=0.4)
            assert not await asyncio.wait_for(succeeds(sending), 14)


# --- failovers ------------------------------------------------------------------------------------


async def fail_over(shop: Shop) -> None:
    """Leave the broker with a replica only, as name servers show it during a failover."""
    shop.cluster.name_server.headless = {shop.broker.name}
    await stopped(shop, shop.broker)


async def new_master(shop: Shop) -> None:
    """Have the broker back at another address, and name servers know it."""
    shop.broker.port = 0
    await shop.broker.start()
    shop.cluster.name_server.headless = set()


@pytest.mark.parametrize("chosen", [False, True], ids=["any queue", "one queue"])
async def test_a_send_waits_for_a_master_within_its_deadline(chosen: bool) -> None:
    async with open_shop() as shop:
        await connected(shop)
        await fail_over(shop)
        asked = len(shop.cluster.name_server.requests)
        queue = shop.queue(1) if chosen else None
        sending = asyncio.create_task(shop.producer.send(ORDER, queue=queue))
        await until(lambda: len(shop.cluster.name_server.requests) > asked + 1)
        await new_master(shop)

        assert (await sending).ok


async def test_a_route_kept_for_others_does_not_hold_up_sends() -> None:
    """A consumer of the topic keeps its route known, also without a master."""
    async with open_shop() as shop:
        await connected(shop)
        client = shop.producer.client
        async with LitePullConsumer("billing", client=client) as consumer:
            await consumer.subscribe("orders")
            await fail_over(shop)
            await client.routes.fetch("orders")
            with pytest.raises(RouteNotFoundError, match=r"\(broker-a\) have no master now"):
                await shop.producer.send(ORDER, timeout_seconds=0.3)
            sending = asyncio.create_task(shop.producer.send(ORDER))
            await new_master(shop)

            assert (await sending).ok


async def test_a_queue_whose_broker_has_no_master_is_waited_for_by_a_new_producer() -> None:
    async with open_shop(brokers=2) as shop:
        shop.cluster.name_server.headless = {"broker-b"}
        queue = shop.queue(1, "broker-b")
        with pytest.raises(SendError, match="broker-b: no route names a master"):
            await shop.producer.send(ORDER, queue=queue, timeout_seconds=0.4)
        with pytest.raises(NotConnectedError, match="no route names a master"):
            await shop.producer.send_oneway(ORDER, queue=queue)
        sending = asyncio.create_task(shop.producer.send(ORDER, queue=queue))
        shop.cluster.name_server.headless = set()

        assert (await sending).queue == queue


async def test_many_sends_without_a_master_are_no_storm_of_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "NEWER_SECONDS", 60.0)
    without_refreshes(monkeypatch)
    async with open_shop() as shop:
        await connected(shop)
        await fail_over(shop)
        await shop.producer.client.routes.fetch("orders")
        asked = len(shop.cluster.name_server.requests)
        sends = (succeeds(shop.producer.send(ORDER, timeout_seconds=0.3)) for _ in range(500))
        assert not any(await asyncio.gather(*sends))

        assert len(shop.cluster.name_server.requests) - asked <= 1
