"""PopConsumer through faults: nothing is lost, acknowledged messages are not redelivered."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Final

import msgspec
import pytest

from rocketmq_aio.consumer.common.events import MessageUnreadable
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.errors import AckError, ConnectionLostError
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.faults.proxied import shorten_timeout
from tests.unit.consumer.lite_pull_env import TOPIC, numbers, put
from tests.unit.consumer.pop_env import RETRY_TOPIC, bodies, invisible, popping
from tests.unit.remoting.short_timeout import shorten_next_timeout

POP: Final = RequestCode.POP_MESSAGE
ACK: Final = RequestCode.ACK_MESSAGE


async def all_done(consumer: PopConsumer, count: int) -> Counter[str]:
    """Acknowledge messages until *count* different ones are; return the deliveries of each."""
    seen: Counter[str] = Counter()
    async with asyncio.timeout(15):
        while len(seen) < count:
            taken = await consumer.receive(wait_seconds=5)
            with contextlib.suppress(AckError):
                await consumer.ack(taken)
            seen.update(message.body.decode() for message in taken)
    return seen


async def test_messages_of_a_lost_pop_response_are_redelivered(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    cluster.faults.drop("pop")
    async with popping(cluster, invisible_seconds=0.5) as consumer:
        shorten_next_timeout(consumer.client, POP)
        seen = await all_done(consumer, 5)

    assert seen == Counter(numbers(5))
    assert invisible(cluster) == 0
    assert RETRY_TOPIC in cluster.broker.topics


async def test_a_cut_inside_a_pop_response_loses_nothing(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    cluster.faults.reset("pop", executed=False, times=2)
    async with popping(cluster, invisible_seconds=0.5) as consumer:
        seen = await all_done(consumer, 5)

    assert seen == Counter(numbers(5))


async def test_a_repeated_pop_response_is_delivered_once(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    cluster.faults.duplicate("pop")
    async with popping(cluster) as consumer:
        taken = await consumer.receive()
        assert await consumer.receive(wait_seconds=0) == []

    assert bodies(taken) == numbers(5)


async def test_an_ack_without_a_response_is_retried(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        shorten_timeout(consumer.client)
        cluster.faults.drop("ack")
        await consumer.ack(message)

    assert len(cluster.broker.requests_of(ACK)) == 2
    assert invisible(cluster) == 0


async def test_an_ack_that_never_arrives_raises(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive(invisible_seconds=0.5)
        reset = cluster.faults.reset("ack", executed=False, times=None)
        with reset, pytest.raises(AckError) as caught:
            await consumer.ack(message)

    assert isinstance(caught.value.lost[message], ConnectionLostError)


async def test_popping_continues_after_a_broker_restart(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with popping(cluster) as consumer:
        await consumer.ack(await consumer.receive())
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=10))
        await cluster.broker.wait_for(POP, 3)
        await cluster.broker.restart()
        put(cluster, "after")

        assert bodies(await waiting) == ["after"]


async def test_the_message_of_a_cancelled_change_can_be_acknowledged(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        held = cluster.faults.hold("change_invisible")
        changing = asyncio.ensure_future(consumer.change_invisible(message, 0.3))
        await held.wait(1)
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing
        held.release()
        with pytest.raises(AckError):
            await consumer.ack(message)

        [again] = await consumer.receive()
        assert (again.body, again.reconsume_times) == (b"1", 1)
        await consumer.ack(again)

    assert invisible(cluster) == 0


async def test_an_undecodable_message_blocks_only_those_behind_it(cluster: FakeCluster) -> None:
    put(cluster, "good", "bad", "behind")
    log = cluster.broker.topics[TOPIC].queues[0]
    spoilt = log.messages[1]
    record = spoilt.record[:4] + b"\0\0\0\0" + spoilt.record[8:]
    log.messages[1] = msgspec.structs.replace(spoilt, record=record)
    async with popping(cluster) as consumer:
        events = consumer.events()
        [good] = await consumer.receive(invisible_seconds=1.5)
        await consumer.ack(good)
        event = await anext(events)
        rest = await all_done(consumer, 2)

    assert isinstance(event, MessageUnreadable)
    assert good.body == b"good"
    assert set(rest) == {"bad", "behind"}


async def test_cancelled_and_restarted_workers_process_every_message(cluster: FakeCluster) -> None:
    put(cluster, *numbers(60))
    done: Counter[str] = Counter()

    async def work(consumer: PopConsumer) -> None:
        async for message in consumer:
            await asyncio.sleep(0.002)
            done[message.body.decode()] += 1

    async with popping(cluster, invisible_seconds=0.5) as consumer, asyncio.timeout(15):
        while len(done) < 60:
            tasks = [asyncio.ensure_future(work(consumer)) for _ in range(3)]
            await asyncio.wait(tasks, timeout=0.03)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    assert set(done) == set(numbers(60))
