"""Nothing remains of a deleted topic: one of the same name begins at offset 0."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.protocol.codes import ResponseCode
from tests.fakes.conformance.case_env import (
    HOLD_MILLIS,
    CaseEnv,
    is_unanswered,
    messages_in,
    pull_header,
)
from tests.fakes.conformance.popping import bodies, pop, pop_header
from tests.fakes.raw_client import RawClient

ENV = CaseEnv("", "", "5.5.0", "orders", "billing")


@pytest.mark.parametrize("order", [False, True], ids=["any", "ordered"])
async def test_a_topic_that_exists_again_is_popped_from_its_first_message(order: bool) -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        cluster.broker.put("orders", b"before")
        cluster.broker.put("orders", b"before")
        assert len(await pop(client, ENV, order=order, queue_id=0)) == 2
        cluster.delete_topic("orders")
        cluster.create_topic("orders", queues=1)
        cluster.broker.put("orders", b"after")

        assert bodies(await pop(client, ENV, order=order, queue_id=0)) == [b"after"]


async def test_an_invisible_message_of_a_deleted_topic_does_not_come_again() -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        cluster.broker.put("orders", b"before")
        assert len(await pop(client, ENV, invisible_time=10_000)) == 1
        cluster.delete_topic("orders")
        cluster.create_topic("orders", queues=1)
        cluster.broker.put("orders", b"after")
        assert bodies(await pop(client, ENV)) == [b"after"]
        cluster.clock.advance(11)

        assert await pop(client, ENV) == []


async def test_a_held_pull_gets_the_first_message_of_a_topic_that_exists_again() -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        held = client.send(pull_header(ENV, 0))
        assert await is_unanswered(client, held)
        cluster.delete_topic("orders")
        cluster.create_topic("orders", queues=1)
        cluster.broker.put("orders", b"after")

        answer = await client.answer(held, HOLD_MILLIS / 2000)

    assert [message.body for message in messages_in(answer, ENV)] == [b"after"]


async def test_a_held_pull_of_a_deleted_topic_is_an_error() -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        held = client.send(pull_header(ENV, 0))
        assert await is_unanswered(client, held)
        cluster.delete_topic("orders")
        cluster.clock.advance(HOLD_MILLIS / 1000)

        assert (await client.answer(held)).code == 17


@pytest.mark.parametrize("queues", [0, 1], ids=["deleted", "fewer queues"])
async def test_a_held_pop_of_a_queue_that_is_gone_is_refused(queues: int) -> None:
    async with (
        EmbeddedCluster(topics={"orders": 2}, auto_create_topics=False) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        held = client.send(pop_header(ENV, queue_id=1, poll_time=HOLD_MILLIS))
        assert await is_unanswered(client, held)
        cluster.delete_topic("orders")
        if queues:
            cluster.create_topic("orders", queues)
            cluster.broker.put("orders", b"one")
        else:
            cluster.clock.advance(HOLD_MILLIS / 1000)

        gone, illegal = ResponseCode.TOPIC_NOT_EXIST, cluster.broker.state.invalid("").response.code
        assert (await client.answer(held)).code == (illegal if queues else gone)
