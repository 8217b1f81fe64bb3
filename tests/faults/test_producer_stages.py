"""Faults at each stage of a send, and changes of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import RocketMQError, RouteNotFoundError, SendUnknownError
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.faults.test_producer import BRIEF, sending
from tests.history import Outcome
from tests.unit.remoting.until import until

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
BODIES: Final = [b"0", b"1", b"2"]
Sending = Callable[[Producer], Awaitable[object]]


async def alone(producer: Producer) -> None:
    await asyncio.gather(*(producer.send(Message("orders", body)) for body in BODIES))


async def batch(producer: Producer) -> None:
    await producer.send_batch([Message("orders", body) for body in BODIES])


async def keyed(producer: Producer) -> None:
    for body in BODIES:
        await producer.send(Message("orders", body, sharding_key="k"))


WAYS: Final = [
    pytest.param(alone, None, SEND, id="send"),
    pytest.param(keyed, None, SEND, id="keyed"),
    pytest.param(batch, None, BATCH, id="batch"),
    pytest.param(alone, AutoBatch(linger_seconds=0.02), BATCH, id="auto-batch"),
]


@pytest.mark.parametrize(("send", "auto_batch", "code"), WAYS)
@pytest.mark.parametrize("stage", ["request", "answer"])
async def test_a_broker_that_fails_at_any_stage_gets_the_message(
    send: Sending, auto_batch: AutoBatch | None, code: RequestCode, stage: str
) -> None:
    async with (
        FakeCluster(topics={"orders": 1}) as cluster,
        FaultProxy(cluster.broker.address) as proxy,
        Producer(
            "shop",
            client=ClientConfig(namesrv=cluster.namesrv, address_mapper=proxy.map_address),
            config=ProducerConfig(auto_batch=auto_batch),
        ) as producer,
    ):
        await producer.send(Message("orders", b"first"))
        held = (proxy.up if stage == "request" else proxy.down).hold(code=code)
        under_way = asyncio.ensure_future(send(producer))
        await held.wait(1)
        await cluster.broker.restart()
        proxy.up.off()
        proxy.down.off()
        await under_way

        stored = [each for each in cluster.broker.messages("orders") if each.body != b"first"]
        first_copies = list(dict.fromkeys(each.body for each in stored))
        assert sorted(first_copies) == BODIES
        if send is not alone:
            assert first_copies == BODIES
        assert len({each.properties["UNIQ_KEY"] for each in stored}) == len(BODIES)
        if stage == "request":
            assert len(stored) == len(BODIES)  # a request that never arrived is stored once


async def test_a_lost_response_without_retries_is_unknown_and_makes_no_copy() -> None:
    config = ProducerConfig(retries=0)
    async with sending(producer=config, max_seconds=BRIEF) as run:
        run.cluster.faults.drop("send", times=5)
        await until(lambda: run.count(Outcome.UNKNOWN) >= 5, "the losses to be noticed")
        await run.until_ok(50)

        assert run.count(Outcome.UNKNOWN) == 5
        bodies = [each.body for each in run.cluster.broker.messages("orders")]
        assert len(bodies) == len(set(bodies))


async def test_a_lost_response_with_retries_is_retried_or_unknown() -> None:
    async with (
        FakeCluster(topics={"orders": 1}) as cluster,
        Producer(
            "shop", namesrv=cluster.namesrv, config=ProducerConfig(send_timeout_seconds=2.0)
        ) as producer,
    ):
        cluster.faults.drop("send")
        with pytest.raises(SendUnknownError):
            await producer.send(Message("orders", b"x"))

        stored = cluster.broker.messages("orders")
        assert 1 <= len(stored) <= 3
        assert len({each.properties["UNIQ_KEY"] for each in stored}) == 1


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    ],
)
async def test_a_weaker_status_is_stored_once_and_returned(code: ResponseCode) -> None:
    async with sending(brokers=2) as run:
        before = run.count(Outcome.OK)
        for broker in run.cluster.brokers:
            broker.faults.refuse("send", code, executed=True, broker=broker.name, times=20)
        await run.until_ok(100)

        assert run.count(Outcome.OK) == len(run.ended()) > before
        bodies = [each.body for b in run.cluster.brokers for each in b.messages("orders")]
        assert len(bodies) == len(set(bodies))


async def test_a_read_only_broker_fails_no_send() -> None:
    """The other brokers take its messages until the route excludes it."""
    async with sending(brokers=2) as run:
        closed = run.cluster.brokers[1]
        forbidden = ResponseCode.NO_PERMISSION, "the broker sending message is forbidden"
        run.cluster.faults.refuse("send", *forbidden, broker=closed.name, times=None)
        await run.until_ok(100)
        closed.topics["orders"].perm = 4
        await run.producer.client.routes.fetch("orders")
        asked = len(closed.requests_of(SEND))
        await run.until_ok(100)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0
        assert len(closed.requests_of(SEND)) <= asked + 8  # sends in flight


async def test_a_deleted_topic_raises_until_it_is_created_again() -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        cluster.broker.state.auto_create_topics = False
        del cluster.broker.topics["TBW102"]
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("orders", b"before"))
            del cluster.broker.topics["orders"]
            for _ in range(2):  # a route missing once may return
                with pytest.raises(RocketMQError, match="orders"):
                    await producer.send(Message("orders", b"lost"), timeout_seconds=1)
                with pytest.raises(RouteNotFoundError):
                    await producer.client.routes.fetch("orders")
            cluster.broker.create_topic("orders", 2)
            await producer.client.routes.fetch("orders")
            await producer.send(Message("orders", b"after"))

        assert [each.body for each in cluster.broker.messages("orders")] == [b"after"]
