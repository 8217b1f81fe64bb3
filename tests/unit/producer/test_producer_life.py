"""Producer life cycle, and oneway sends."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    BatchError,
    BusyError,
    ClosedError,
    NotConnectedError,
    NotRunningError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.instance.client_base import State
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import parse_properties
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.explicit_batch import MAX_CONCURRENT
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.retry import RetryState
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from tests.fakes.cluster import FakeCluster
from tests.unit.instance.client_env import nothing_left
from tests.unit.producer.producer_env import (
    ORDER,
    ROUTE,
    SEND,
    SEND_BATCH,
    ProducerEnv,
    open_producer,
)
from tests.unit.remoting.until import until


async def test_a_oneway_send_does_not_wait_for_a_response(env: ProducerEnv) -> None:
    await env.producer.send_oneway(ORDER)
    (request,) = await env.broker.wait_for(SEND)

    assert request.is_oneway
    assert parse_properties(request.ext_fields()["i"].encode())["UNIQ_KEY"]
    assert env.bodies() == [b"hello"]


async def test_close_does_not_lose_oneway_sends() -> None:
    async with FakeCluster(topics={"orders": 4}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for _ in range(100):
                await producer.send_oneway(ORDER)

        assert len(cluster.broker.messages("orders")) == 100


async def test_a_oneway_send_to_a_dead_broker_raises(env: ProducerEnv) -> None:
    await env.producer.publish_queues("orders")
    await env.broker.stop()

    with pytest.raises(NotConnectedError):
        await env.producer.send_oneway(ORDER)


async def test_a_oneway_send_that_cannot_connect_excludes_the_broker(
    two_brokers: ProducerEnv,
) -> None:
    await two_brokers.producer.publish_queues("orders")
    await two_brokers.brokers[0].stop()
    failed = 0
    for _ in range(8):
        try:
            await two_brokers.producer.send_oneway(ORDER)
        except NotConnectedError:
            failed += 1

    assert failed == 1


async def test_a_oneway_send_ends_at_its_deadline_while_it_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    config = ProducerConfig(send_timeout_seconds=0.2)
    client = ClientConfig(request_timeout_seconds=60, connect_timeout_seconds=60)
    async with open_producer(config=config, client=client) as env:
        await env.producer.publish_queues("orders")
        monkeypatch.setattr(env.producer.client.remoting._dialer, "dial", never)

        with pytest.raises(NotConnectedError, match="not connected within"):
            await asyncio.wait_for(env.producer.send_oneway(ORDER), 15)


async def test_a_oneway_send_uses_the_chosen_queue(env: ProducerEnv) -> None:
    await env.producer.send_oneway(ORDER, queue=env.queue(3))
    await env.producer.send_oneway(ORDER, selector=lambda queues, _: queues[2])
    await env.broker.wait_for(SEND, 2)

    assert [len(env.broker.messages("orders", n)) for n in range(4)] == [0, 0, 1, 1]


async def test_calls_of_a_producer_that_does_not_run_raise() -> None:
    async with FakeCluster(topics={"orders": 4}) as cluster:
        producer = Producer("shop", namesrv=cluster.namesrv)
        with pytest.raises(NotRunningError, match="not started"):
            await producer.send(ORDER)
        async with producer:
            await producer.send(ORDER)
        for use in (producer.send(ORDER), producer.send_oneway(ORDER), producer.send_batch([])):
            with pytest.raises(ClosedError):
                await use
        with pytest.raises(ClosedError):
            await producer.publish_queues("orders")


async def test_send_nowait_in_a_thread_without_a_loop_names_the_producer() -> None:
    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
    ):
        with pytest.raises(NotRunningError, match=r"'shop'.* belongs to another event loop"):
            await asyncio.to_thread(producer.send_nowait, ORDER)


async def test_a_producer_belongs_to_one_event_loop(env: ProducerEnv) -> None:
    async def use_elsewhere() -> None:
        for send in (env.producer.send, env.producer.send_oneway):
            with pytest.raises(NotRunningError, match="another event loop"):
                await send(ORDER)

    await env.producer.send(ORDER)
    await asyncio.to_thread(asyncio.run, use_elsewhere())


async def test_two_producers_share_one_instance_and_its_connections() -> None:
    async with (
        FakeCluster(topics={"orders": 4}) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        Producer("one", client=client) as one,
        Producer("two", client=client) as two,
    ):
        await one.send(ORDER)
        await two.send(ORDER)

        assert len(cluster.broker.connects) == 1
        assert len(cluster.name_server.connects) == 1


async def test_the_producer_registers_and_unregisters_with_brokers(env: ProducerEnv) -> None:
    await env.producer.send(ORDER)
    await until(lambda: env.broker.members.producers.get("shop"))
    await env.producer.close()

    assert "shop" not in env.broker.members.producers


async def test_message_ids_of_two_producers_are_distinct() -> None:
    async with open_producer() as env, Producer("other", namesrv=env.cluster.namesrv) as other:
        for _ in range(50):
            await asyncio.gather(env.producer.send(ORDER), other.send(ORDER))

        assert len(env.ids()) == 100
        assert {each[8:12] for each in env.ids()} == {f"{os.getpid() & 0xFFFF:04X}"}


@asynccontextmanager
async def closed_during_first_route(
    config: ProducerConfig, send: Callable[[Producer, MessageQueue], Coroutine[Any, Any, object]]
) -> AsyncIterator[FakeCluster]:
    """Close a producer, not its client, while *send* waits for the first route of its topic."""
    async with FakeCluster(topics={"orders": 4}) as cluster:
        at = ClientConfig(namesrv=cluster.namesrv)
        async with MQClientInstance(at) as client:
            producer = Producer("shop", client=client, config=config)
            await producer.start()
            name_server = cluster.name_server
            asked, held = (
                len(name_server.requests_of(ROUTE)),
                name_server.faults.hold("route", times=None),
            )
            queue = MessageQueue("orders", "broker-a", 1)
            sending = asyncio.create_task(send(producer, queue))
            await name_server.wait_for(ROUTE, asked + 1)
            await producer.close()
            held.release()
            with pytest.raises(ClosedError):
                await sending
            # What left before this has arrived before it.
            await client.remoting.request(
                cluster.broker.address, GetMaxOffset(topic="orders", queue_id=0)
            )
            yield cluster


@pytest.mark.parametrize(
    "send",
    [
        lambda producer, queue: producer.send(ORDER, queue=queue),
        lambda producer, _: producer.send(ORDER, sharding_key="k"),
        lambda producer, _: producer.send(ORDER, selector=lambda queues, _: queues[0]),
    ],
    ids=["queue", "sharding_key", "selector"],
)
async def test_no_batch_is_sent_after_close_returned(
    send: Callable[[Producer, MessageQueue], Coroutine[Any, Any, object]],
) -> None:
    config = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0))
    async with closed_during_first_route(config, send) as cluster:
        assert not cluster.broker.requests_of(SEND)


async def test_no_oneway_message_is_sent_after_close_returned() -> None:
    def send(producer: Producer, _: MessageQueue) -> Coroutine[Any, Any, object]:
        return producer.send_oneway(Message("orders", b"large" * 10_000))

    async with closed_during_first_route(ProducerConfig(), send) as cluster:
        assert not cluster.broker.requests_of(SEND)


async def test_no_request_of_send_batch_is_sent_after_close_returned() -> None:
    config = ProducerConfig(max_message_bytes=300)
    async with open_producer(config=config) as env:
        held = env.broker.faults.hold(SEND_BATCH, times=None)
        messages = [Message("orders", bytes(150)) for _ in range(2 * MAX_CONCURRENT)]
        sending = asyncio.create_task(env.producer.send_batch(messages))
        await held.wait(MAX_CONCURRENT)
        closing = asyncio.create_task(env.producer.close())
        await until(lambda: env.producer._state is State.CLOSED)
        await asyncio.sleep(0)
        held.release()
        await closing
        with pytest.raises(BatchError) as caught:
            await sending

        kinds = [type(each) for each in caught.value.outcomes]
        assert kinds == [SendResult] * MAX_CONCURRENT + [ClosedError] * MAX_CONCURRENT
        assert len(env.bodies()) == MAX_CONCURRENT


async def test_a_close_that_runs_out_of_time_releases_the_producer() -> None:
    config = ProducerConfig(send_timeout_seconds=60)
    async with FakeCluster(topics={"orders": 4}) as cluster:
        at = ClientConfig(namesrv=cluster.namesrv)
        async with MQClientInstance(at) as client:
            producer = Producer("shop", client=client, config=config)
            await producer.start()
            await producer.send(Message("orders", b"large" * 10_000))
            cluster.faults.drop(SEND, executed=False, times=None)  # no answer
            sending = asyncio.create_task(producer.send(ORDER))
            await cluster.broker.wait_for(SEND, 2)
            producer._close_seconds = 0.05
            await producer.close()
            for connection in list(cluster.broker.connections.values()):
                connection.reset()
            with pytest.raises(SendUnknownError):
                await sending

            assert len(cluster.broker.requests_of(SEND)) == 2  # it was not tried again
            assert producer._sender.faults.excluded == set()  # nothing probes the broker
            assert not compressing()
            async with Producer("shop", client=client):  # the group is free
                pass


async def test_a_send_whose_pause_outlasts_close_is_not_tried_again(
    env: ProducerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_during_pause(_: RetryState) -> float:
        env.producer._attempts.close()  # as a `close` that runs out of time
        return 0.0

    monkeypatch.setattr(RetryState, "pause", close_during_pause)
    env.broker.faults.handle(SEND, Response(2, remark="system busy"), times=1)
    with pytest.raises(SendError) as caught:
        await env.producer.send(ORDER)

    assert [type(each.cause) for each in caught.value.attempts] == [BusyError]
    assert len(env.sends()) == 1


def compressing() -> list[threading.Thread]:
    """Return the threads that compress and do not end."""
    named = [each for each in threading.enumerate() if each.name.startswith("rocketmq-compress")]
    for thread in named:
        thread.join(10)
    return [each for each in named if each.is_alive()]


async def test_a_cancelled_task_group_closes_its_producer() -> None:
    sent = asyncio.Event()

    async def produce(namesrv: str) -> None:
        async with Producer("shop", namesrv=namesrv) as producer:
            while True:
                await producer.send(ORDER)
                sent.set()

    async def fail() -> None:
        await sent.wait()
        raise LookupError("a sibling failed")

    async def both(namesrv: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce(namesrv))
            tasks.create_task(fail())

    async with nothing_left(), FakeCluster(topics={"orders": 4}) as cluster:
        with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
            await both(cluster.namesrv)

        assert caught.group_contains(LookupError)
        await until(lambda: "shop" not in cluster.broker.members.producers)


def test_an_interrupted_program_ends_without_output(caplog: pytest.LogCaptureFixture) -> None:
    async def interrupted() -> None:
        async with (
            FakeCluster(topics={"orders": 4}) as cluster,
            Producer("shop", namesrv=cluster.namesrv) as producer,
        ):
            sending = [asyncio.create_task(producer.send(ORDER)) for _ in range(50)]
            await sending[0]
            raise KeyboardInterrupt

    with caplog.at_level(logging.ERROR), pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())

    assert caplog.text == ""
