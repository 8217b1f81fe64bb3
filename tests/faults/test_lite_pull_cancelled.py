"""LitePullConsumer: every call cancelled at every step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import ClosedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from tests.fakes.cluster import FakeCluster
from tests.faults.cancelling import (
    STEPS,
    Call,
    cancelled_after,
    close_at_every_step_of_start,
    sweep,
)
from tests.unit.consumer.lite_pull_env import (
    GROUP,
    TOPIC,
    bodies,
    consumer_of,
    consuming,
    numbers,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={TOPIC: 4}) as cluster:
        yield cluster


# --- start and close -----------------------------------------------------------------------------


@pytest.mark.parametrize("by_hand", [False, True], ids=["subscribed", "assigned"])
async def test_a_cancelled_start_leaves_nothing(cluster: FakeCluster, by_hand: bool) -> None:
    async with nothing_left():
        steps = 0
        for steps in range(STEPS):
            consumer = consumer_of(cluster, start_from="latest")
            if by_hand:
                await consumer.assign([queue(0), queue(1)])
            else:
                await consumer.subscribe(TOPIC)
            ended = await cancelled_after(steps, consumer.start())
            await consumer.close()
            assert cluster.broker.members.groups == {}
            with pytest.raises(ClosedError):
                await consumer.poll(0)
            if ended:
                break

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


async def test_a_cancelled_close_completes_and_commits(cluster: FakeCluster) -> None:
    put(cluster, *numbers(1000))
    done = 0

    async def use_and_close(steps: int) -> bool:
        nonlocal done
        consumer = consumer_of(cluster)
        await consumer.subscribe(TOPIC)
        await consumer.start()
        taken = await polled(consumer, 1, max_messages=1)
        taken += await polled(consumer, 1, max_messages=1)
        assert bodies(taken) == [str(done), str(done + 1)]
        ended = await cancelled_after(steps, consumer.close())
        await consumer.close()
        done += 1
        assert cluster.broker.committed(GROUP, TOPIC, 0) == done
        assert cluster.broker.members.groups == {}
        return ended

    async with nothing_left():
        steps = 0
        for steps in range(STEPS):
            if await use_and_close(steps):
                assert steps > 5
                return
    raise AssertionError("the sweep did not reach the end")


@pytest.mark.parametrize("shared", [False, True], ids=["own client", "shared client"])
async def test_close_at_any_step_of_start_ends_it(cluster: FakeCluster, shared: bool) -> None:
    async with nothing_left(), MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        await close_at_every_step_of_start(
            client, lambda: consumer_of(cluster, client=client if shared else None)
        )


async def test_a_task_cancelled_anywhere_in_its_block_leaves_nothing_behind(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(40))

    async def work(group: str) -> None:
        async with consuming(cluster, group=group) as consumer:
            async for message in consumer:
                if message.queue_offset == 20:
                    await consumer.commit()
                if message.queue_offset == 30:
                    return

    async with nothing_left():
        steps = 0
        for steps in range(STEPS):
            ended = await cancelled_after(steps, work(f"group-{steps}"))
            stored = cluster.broker.committed(f"group-{steps}", TOPIC, 0)
            assert stored == 31 if ended else stored in (None, 0, 20, 21, 30, 31)
            if ended:
                break
        assert 20 < steps < STEPS - 1, "the sweep did not reach the end"
        assert cluster.broker.members.groups == {}


# --- calls of a running consumer -----------------------------------------------------------------


async def test_polls_lose_nothing_while_other_calls_are_cancelled(cluster: FakeCluster) -> None:
    put(cluster, *numbers(2000))
    taken: list[MessageExt] = []
    async with consuming(cluster, pull_batch_size=8) as consumer:

        async def poll() -> None:
            taken.extend(await consumer.poll(5, max_messages=2))

        calls: dict[str, Call] = {
            "poll": poll,
            "commit": consumer.commit,
            "committed": lambda: consumer.committed(queue()),
            "position": lambda: consumer.position(queue()),
            "lag": consumer.lag,
            "ready": consumer.ready,
            "message_queues": lambda: consumer.message_queues(TOPIC),
        }
        for call in calls.values():
            await sweep(call, poll)
        await consumer.commit()

        assert cluster.broker.committed(GROUP, TOPIC, 0) == len(taken)
    assert bodies(taken) == numbers(len(taken))


async def test_a_cancelled_commit_can_be_repeated(cluster: FakeCluster) -> None:
    put(cluster, *numbers(100))
    async with consuming(cluster, auto_commit=False) as consumer:
        await polled(consumer, 100)
        offset = 0

        async def commit() -> None:
            nonlocal offset
            offset += 1
            await consumer.commit({queue(): offset})

        async def repeat() -> None:
            await consumer.commit({queue(): offset})
            assert cluster.broker.committed(GROUP, TOPIC, 0) == offset

        assert await sweep(commit, repeat) > 1


@pytest.mark.parametrize("how", ["seek", "seek_to_begin", "seek_to_end"])
async def test_a_cancelled_seek_is_atomic(cluster: FakeCluster, how: str) -> None:
    put(cluster, *numbers(100))
    targets = {"seek": 40, "seek_to_begin": 0, "seek_to_end": 100}
    seek: dict[str, Call] = {
        "seek": lambda: consumer.seek(queue(), 40),
        "seek_to_begin": lambda: consumer.seek_to_begin(queue()),
        "seek_to_end": lambda: consumer.seek_to_end(queue()),
    }
    async with consuming(cluster) as consumer:
        await consumer.seek(queue(), 70)

        async def look() -> None:
            assert await consumer.position(queue()) in (70, targets[how])
            await consumer.seek(queue(), 70)
            assert bodies(await polled(consumer, 1, max_messages=1)) == ["70"]
            await consumer.seek(queue(), 70)

        assert await sweep(seek[how], look) > 1


async def test_a_cancelled_subscription_can_be_repeated(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 2)
    put(cluster, *numbers(STEPS), topic="invoices")
    async with consumer_of(cluster, start_from="latest") as consumer:
        cluster.broker.commit(GROUP, "invoices", 0, 0)
        cluster.broker.commit(GROUP, "invoices", 1, 0)

        async def settle() -> None:
            await consumer.subscribe("invoices")
            await consumer.ready(5)
            assert bodies(await polled(consumer, 1, max_messages=1)) == ["0"]
            await consumer.unsubscribe("invoices")
            assert consumer.assignment() == []

        assert await sweep(lambda: consumer.subscribe("invoices"), settle) > 1


async def test_a_cancelled_unsubscription_can_be_repeated(cluster: FakeCluster) -> None:
    put(cluster, *numbers(100))

    async def leave() -> None:
        await consumer.unsubscribe(TOPIC)

    async def come_back() -> None:
        await leave()
        await until(lambda: consumer.assignment() == [])
        await consumer.subscribe(TOPIC)
        await consumer.ready(5)
        await consumer.seek_to_begin(queue())
        assert bodies(await polled(consumer, 1, max_messages=1)) == ["0"]

    async with consuming(cluster) as consumer:
        await polled(consumer, 1, max_messages=1)
        assert await sweep(leave, come_back) > 1


async def test_a_cancelled_assignment_can_be_repeated(cluster: FakeCluster) -> None:
    for number in range(4):
        put(cluster, f"in {number}", queue_id=number)
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue(0), queue(1)])

        async def back() -> None:
            held = consumer.assignment()
            assert held in ([queue(0), queue(1)], [queue(1), queue(2)])
            await consumer.assign([queue(0), queue(1)])
            assert consumer.assignment() == [queue(0), queue(1)]

        assert await sweep(lambda: consumer.assign([queue(1), queue(2)]), back) > 1
        await consumer.assign([queue(3)])
        assert bodies(await polled(consumer, 1)) == ["in 3"]


async def test_a_cancelled_assignment_without_queues_allows_a_subscription(
    cluster: FakeCluster,
) -> None:
    steps = 0
    for steps in range(STEPS):
        put(cluster, str(steps))
        async with consumer_of(cluster) as consumer:
            ended = await cancelled_after(steps, consumer.assign([queue()]))
            if not consumer.assignment():
                await consumer.subscribe(TOPIC)

            assert bodies(await polled(consumer, 1)) == [str(steps)]
        if ended:
            break
    assert 1 < steps < STEPS - 1, "the sweep did not reach the end"


async def test_concurrent_closes_are_one_close(cluster: FakeCluster) -> None:
    put(cluster, "a")
    async with nothing_left():
        consumer = consumer_of(cluster)
        await consumer.subscribe(TOPIC)
        await consumer.start()
        polling = asyncio.create_task(consumer.poll(60))
        await asyncio.gather(consumer.close(), consumer.close(), consumer.close())
        await consumer.close()
        ended = await asyncio.gather(polling, return_exceptions=True)

    assert isinstance(ended[0], ClosedError) or bodies(ended[0]) == ["a"]  # type: ignore[arg-type]
