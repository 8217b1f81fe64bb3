"""Sends while brokers come back, move, or are joined by others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from rocketmq_aio.config import ProducerConfig
from rocketmq_aio.errors import (
    SendError,
)
from rocketmq_aio.producer import attempts as attempts_module
from rocketmq_aio.producer import sender as sender_module
from rocketmq_aio.remoting.backoff import Backoff
from tests.fakes.script import Reply
from tests.unit.producer.shops import ORDER, ROUTE, SEND, connected, open_shop, stopped
from tests.unit.remoting.until import succeeds, until_done

BUSY = Reply(2, remark="system busy")
ONCE = ProducerConfig(retries=0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is tried once more gets 2 ms instead of 200."""
    monkeypatch.setattr(attempts_module, "Backoff", partial(Backoff, first=0.001))


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
    monkeypatch.setattr(sender_module, "RENEW_SECONDS", 60.0)
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
            remoting._closed_until[shop.broker.address] = late, "it was down"
            sending = shop.producer.send(ORDER, timeout_seconds=0.4)
            assert not await asyncio.wait_for(succeeds(sending), 14)
