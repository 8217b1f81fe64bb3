"""Sending to logical queues, which move between brokers."""

from __future__ import annotations

from typing import Final

import pytest

from rocketmq_aio.errors import RouteNotFoundError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from tests.fakes.static_topics import give_up, share_out
from tests.unit.producer.producer_env import ORDER, SEND, Shop, open_shop
from tests.unit.remoting.until import until_done

HALVES: Final = ["broker-a", "broker-a", "broker-b", "broker-b"]


def logical(number: int) -> MessageQueue:
    return MessageQueue("orders", "__syslo__global__", number)


def where(shop: Shop) -> list[tuple[str, int, str]]:
    """The broker, the queue and the broker named in the header of every send that arrived."""
    return [
        (broker.name, int(fields["e"]), fields["n"])
        for broker in shop.brokers
        for each in broker.requests
        if each.command.code == SEND
        for fields in [each.command.ext_fields()]
    ]


async def test_a_message_goes_to_the_broker_that_owns_its_logical_queue() -> None:
    async with open_shop(brokers=2) as shop:
        share_out(shop.cluster, "orders", HALVES)
        queues = await shop.producer.publish_queues("orders")
        results = [await shop.producer.send(ORDER, queue=queue) for queue in queues]

        assert [result.queue for result in results] == queues == [logical(n) for n in range(4)]
        assert where(shop) == [(owner, n, owner) for n, owner in enumerate(HALVES)]


async def test_sends_that_are_not_prepared_name_the_real_broker_too() -> None:
    async with open_shop(brokers=2) as shop:
        share_out(shop.cluster, "orders", HALVES)
        await shop.producer.send_oneway(ORDER, queue=logical(3))

        async def arrived() -> bool:
            return where(shop) == [("broker-b", 3, "broker-b")]

        await until_done(arrived)


async def test_a_broker_that_fails_is_avoided_although_all_queues_have_one_name() -> None:
    async with open_shop(brokers=2) as shop:
        share_out(shop.cluster, "orders", HALVES)
        await shop.brokers[0].stop()
        results = [await shop.producer.send(ORDER) for _ in range(8)]

        assert {result.queue.queue_id for result in results} <= {2, 3}


@pytest.mark.parametrize("fixed", [True, False])
async def test_a_queue_that_has_moved_is_followed(fixed: bool) -> None:
    async with open_shop(brokers=2) as shop:
        share_out(shop.cluster, "orders", ["broker-a"])
        await shop.producer.send(ORDER)
        share_out(shop.cluster, "orders", ["broker-b"], epoch=2)
        give_up(shop.brokers[0], SEND, 0, field="e")
        result = await shop.producer.send(ORDER, queue=logical(0) if fixed else None)

        assert result.queue == logical(0)
        assert where(shop)[-1] == ("broker-b", 0, "broker-b")


async def test_a_queue_without_an_owner_cannot_be_sent_to() -> None:
    async with open_shop(brokers=2) as shop:
        share_out(shop.cluster, "orders", ["broker-a", "nobody"])

        assert await shop.producer.publish_queues("orders") == [logical(0)]
        with pytest.raises(RouteNotFoundError, match="__syslo__none__"):
            await shop.producer.send(Message("orders", b"x"), queue=logical(1))
