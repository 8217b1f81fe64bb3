"""PushConsumer: every call cancelled at every step loses and leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import ClosedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.faults.cancelling import STEPS, cancelled_after, close_at_every_step_of_start, sweep
from tests.faults.pushing import Group, group_of, in_both_ways
from tests.history import check
from tests.history.recording import stored_log
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.consumer.pushing import push_consumer
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        yield cluster


async def briefly(_message: MessageExt) -> None:
    await asyncio.sleep(0)


def clean(cluster: FakeCluster) -> bool:
    """Whether the broker has no member and no lock."""
    return not cluster.broker.members.groups and not cluster.broker.locks.any_in(GROUP)


# --- start, run and close ------------------------------------------------------------------------


@in_both_ways
async def test_cancelled_start_leaves_nothing(cluster: FakeCluster, orderly: bool) -> None:
    group = Group(cluster, orderly=orderly)
    steps = 0
    async with nothing_left():
        for steps in range(STEPS):
            consumer = group.member(start_from="latest")
            await consumer.subscribe(TOPIC)
            ended = await cancelled_after(steps, consumer.start())
            await consumer.close()
            assert clean(cluster)
            with pytest.raises(ClosedError):
                await consumer.ready()
            if ended:
                break
    assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


@in_both_ways
async def test_run_cancelled_at_any_step_loses_nothing(cluster: FakeCluster, orderly: bool) -> None:
    put(cluster, *numbers(1000))
    group = Group(cluster, orderly=orderly)
    worked = 0
    async with nothing_left():
        for steps in range(0, STEPS, 3):
            consumer = group.member(briefly, concurrency=2)
            await consumer.subscribe(TOPIC)
            await cancelled_after(steps, consumer.run())
            assert clean(cluster)
            worked += any(
                run.consumer == consumer.client.client_id for run in group.history.handled
            )
        assert worked > 10, "the sweep did not reach the work"
        await group.join()
        await group.drained()
        await group.members[-1].close()
    group.judge()
    assert sorted(set(group.handled())) == sorted(numbers(1000))


@in_both_ways
async def test_cancelled_close_still_closes_and_commits(
    cluster: FakeCluster, orderly: bool
) -> None:
    group = Group(cluster, orderly=orderly)
    steps = 0
    async with nothing_left():
        for steps in range(STEPS):
            put(cluster, *numbers(20, first=20 * steps))
            consumer = group.member(briefly, concurrency=2, commit_interval_seconds=60.0)
            await consumer.subscribe(TOPIC)
            await consumer.start()
            before = len(group.history.handled)
            await until(lambda before=before: len(group.history.handled) > before)  # type: ignore[misc]
            ended = await cancelled_after(steps, consumer.close())
            await consumer.close()
            assert clean(cluster)
            assert cluster.broker.committed(GROUP, TOPIC, 0) == len(set(group.handled()))
            if ended:
                break
    assert 5 < steps < STEPS - 1, "the sweep did not reach the end"
    group.judge()
    assert len(group.handled()) == len(set(group.handled())), "something came twice"


@in_both_ways
@pytest.mark.parametrize("shared", [False, True], ids=["own client", "shared client"])
async def test_close_at_any_step_of_start_ends_it(
    cluster: FakeCluster, orderly: bool, shared: bool
) -> None:
    put(cluster, *numbers(10))
    group = Group(cluster, orderly=orderly)
    async with nothing_left(), MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        await close_at_every_step_of_start(
            client, lambda: group.member(client=client if shared else None)
        )
    assert check(group.history) == []


async def test_a_cancelled_start_on_a_shared_client_leaves_the_group(cluster: FakeCluster) -> None:
    """Also if the broker executes the heartbeat of the start late."""
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        consumer = push_consumer(cluster, briefly, client=client)
        await consumer.subscribe(TOPIC)
        late = cluster.faults.hold("heartbeat", executed=False)
        starting = asyncio.create_task(consumer.start())
        await late.wait()
        starting.cancel()
        with suppress(TimeoutError):
            await cluster.broker.wait_for(RequestCode.UNREGISTER_CLIENT, 1, 0.2)
        late.release()
        await asyncio.wait([starting])

        assert await client.broker.consumer_ids_at(GROUP, cluster.broker.address) == []


# --- calls of a running consumer -----------------------------------------------------------------


@in_both_ways
async def test_a_cancelled_subscription_can_be_repeated(
    cluster: FakeCluster, orderly: bool
) -> None:
    cluster.create_topic("invoices", 2)
    async with group_of(cluster, orderly=orderly) as group:
        consumer = await group.join(briefly)
        seen = 0

        async def settle() -> None:
            nonlocal seen
            await consumer.subscribe("invoices")
            await consumer.ready(5)
            put(cluster, f"invoice {seen}", topic="invoices")
            await group.have(f"invoice {seen}")
            seen += 1
            await consumer.unsubscribe("invoices")
            assert {each.topic for each in consumer.assignment()} <= {TOPIC, f"%RETRY%{GROUP}"}

        assert await sweep(lambda: consumer.subscribe("invoices"), settle) > 1
        await consumer.close()
        assert cluster.broker.committed(GROUP, "invoices", 0) == seen
        assert group.handled() == [f"invoice {number}" for number in range(seen)]
        group.history.log += stored_log("invoices", cluster.broker)


@in_both_ways
async def test_a_cancelled_unsubscription_can_be_repeated(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with group_of(cluster, orderly=orderly) as group:
        consumer = await group.join(briefly)
        sent = 0

        async def send_and_leave() -> None:
            nonlocal sent
            put(cluster, *numbers(5, first=sent))
            sent += 5
            await consumer.unsubscribe(TOPIC)

        async def come_back() -> None:
            await consumer.unsubscribe(TOPIC)
            await until(lambda: queue() not in consumer.assignment())
            await consumer.subscribe(TOPIC)
            await consumer.ready(5)
            await group.have(*numbers(sent))

        assert await sweep(send_and_leave, come_back) > 1
        await group.drained()
        assert len(group.handled()) == sent, "something came twice"


@in_both_ways
async def test_suspend_and_resume_at_any_step_lose_nothing(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with group_of(cluster, orderly=orderly) as group:
        consumer = await group.join(briefly, concurrency=2)
        for steps in range(60):
            put(cluster, *numbers(4, first=4 * steps), queue_id=steps % 2)
            for _ in range(steps):
                await asyncio.sleep(0)
            consumer.suspend()
            running = [run for run in group.history.handled if run.ended is None]
            begun = len(group.history.handled)
            for _ in range(steps):
                await asyncio.sleep(0)
            assert len(group.history.handled) == begun, f"begun after {running}"
            consumer.resume()
        await group.drained()
        assert len(group.handled()) == 240


@in_both_ways
async def test_concurrency_can_be_changed_at_any_step(cluster: FakeCluster, orderly: bool) -> None:
    most = 0

    async with group_of(cluster, orderly=orderly) as group:

        async def behave(message: MessageExt) -> None:
            nonlocal most
            running = sum(run.ended is None for run in group.history.handled)
            most = max(most, running)
            await asyncio.sleep(0)

        consumer = await group.join(behave, concurrency=1)
        for steps in range(60):
            put(cluster, *numbers(4, first=4 * steps), queue_id=steps % 2)
            consumer.set_concurrency(1 + steps % 5)
            for _ in range(steps):
                await asyncio.sleep(0)
        await group.drained()
        assert len(group.handled()) == 240
        assert most <= 5


async def test_cancelled_ready_affects_nothing_else(cluster: FakeCluster) -> None:
    async with group_of(cluster) as group:
        consumer = group.member()
        await consumer.subscribe(TOPIC)
        await consumer.start()
        assert await sweep(consumer.ready) >= 0
        with pytest.raises(TimeoutError):
            await _never_ready(cluster, group)
        put(cluster, "a")
        await group.drained()


async def _never_ready(cluster: FakeCluster, group: Group) -> None:
    """A topic that does not exist is never ready."""
    consumer = group.members[0]
    await consumer.subscribe("no-such-topic")
    try:
        await consumer.ready(0.05)
    finally:
        await consumer.unsubscribe("no-such-topic")
