"""Sends to static topics, whose logical queues move between brokers."""

from __future__ import annotations

from typing import Final

import pytest

from rocketmq_aio.errors import RouteNotFoundError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from tests.fakes.static_topics import give_up, share_out
from tests.unit.producer.producer_env import ORDER, SEND, ProducerEnv
from tests.unit.remoting.until import until_done

HALVES: Final = ["broker-a", "broker-a", "broker-b", "broker-b"]


def logical(number: int) -> MessageQueue:
    return MessageQueue("orders", "__syslo__global__", number)


def where(env: ProducerEnv) -> list[tuple[str, int, str]]:
    """The broker, the queue and the broker named in the header of every send that arrived."""
    return [
        (broker.name, int(fields["e"]), fields["n"])
        for broker in env.brokers
        for each in broker.requests
        if each.command.code == SEND
        for fields in [each.command.ext_fields()]
    ]


async def test_a_message_is_sent_to_the_owner_of_its_logical_queue(
    two_brokers: ProducerEnv,
) -> None:
    share_out(two_brokers.cluster, "orders", HALVES)
    queues = await two_brokers.producer.publish_queues("orders")
    results = [await two_brokers.producer.send(ORDER, queue=queue) for queue in queues]

    assert [result.queue for result in results] == queues == [logical(n) for n in range(4)]
    assert where(two_brokers) == [(owner, n, owner) for n, owner in enumerate(HALVES)]


async def test_typed_headers_name_the_owner_too(two_brokers: ProducerEnv) -> None:
    share_out(two_brokers.cluster, "orders", HALVES)
    await two_brokers.producer.send_oneway(ORDER, queue=logical(3))

    async def arrived() -> bool:
        return where(two_brokers) == [("broker-b", 3, "broker-b")]

    await until_done(arrived)


async def test_a_failed_owner_is_avoided_by_retries(two_brokers: ProducerEnv) -> None:
    share_out(two_brokers.cluster, "orders", HALVES)
    await two_brokers.brokers[0].stop()
    results = [await two_brokers.producer.send(ORDER) for _ in range(8)]

    assert {result.queue.queue_id for result in results} <= {2, 3}


@pytest.mark.parametrize("fixed", [True, False])
async def test_a_moved_logical_queue_is_followed(fixed: bool, two_brokers: ProducerEnv) -> None:
    share_out(two_brokers.cluster, "orders", ["broker-a"])
    await two_brokers.producer.send(ORDER)
    share_out(two_brokers.cluster, "orders", ["broker-b"], epoch=2)
    give_up(two_brokers.brokers[0], SEND, 0, field="e")
    result = await two_brokers.producer.send(ORDER, queue=logical(0) if fixed else None)

    assert result.queue == logical(0)
    assert where(two_brokers)[-1] == ("broker-b", 0, "broker-b")


async def test_a_logical_queue_without_an_owner_raises(two_brokers: ProducerEnv) -> None:
    share_out(two_brokers.cluster, "orders", ["broker-a", "nobody"])

    assert await two_brokers.producer.publish_queues("orders") == [logical(0)]
    with pytest.raises(RouteNotFoundError, match="__syslo__none__"):
        await two_brokers.producer.send(Message("orders", b"x"), queue=logical(1))
