"""DeliveryFence: messages after a stall, during which other members had the queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.group.group_engine import EXPIRED_SECONDS
from rocketmq_aio.consumer.lite_pull import delivery_fence
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.lite_pull.delivery_fence import DeliveryFence
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.lite_pull.ready_queues import ReadyQueues
from rocketmq_aio.consumer.offsets.commit_fence import STALL_SECONDS
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from tests.fakes.cluster import FakeCluster
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
from tests.unit.consumer.parts import assigned_queue, offsets, pull, queue
from tests.unit.consumer.stores import AppStore, StoreError
from tests.unit.remoting.until import until

DELIVERED, THERE = 3, 8


def stall(consumer: LitePullConsumer) -> None:
    """Let the next look find that the event loop has not run for long."""
    fence = consumer._engine.fence
    assert fence is not None
    fence._seen -= STALL_SECONDS + 1


class FenceEnv:
    """A queue of ten cached messages, three of them delivered."""

    def __init__(self, tasks: BackgroundTasks) -> None:
        self.now = 0.0
        self.store = AppStore()
        self.cache = Cache()
        self.assigned = assigned_queue(0, cached=10, cache=self.cache)
        self.table: dict[MessageQueue, PolledQueue] = {queue(0): self.assigned}
        self.committed_by_others: int | None = THERE
        self.is_shared = True
        self.joined = asyncio.Event()
        self.rejoins = 0
        self.fence = DeliveryFence(
            self.store,
            self.table,
            tasks,
            rejoin=self._rejoin,
            on_messages=lambda each: self.ready.add(each),
            clock=lambda: self.now,
        )
        self.ready = ReadyQueues(self.cache, self.fence.check_stall)
        self.ready.add(self.assigned)
        self.ready.take(DELIVERED)

    async def _rejoin(self) -> bool:
        self.rejoins += 1
        await self.joined.wait()
        if self.committed_by_others is not None:
            self.store.kept[queue(0)] = self.committed_by_others
        return self.is_shared

    def stall(self) -> None:
        self.now += STALL_SECONDS + 1
        assert self.ready.take(10) == []

    async def recover(self) -> int:
        """Return the position after the recovery."""
        self.joined.set()
        await until(lambda: not self.assigned.withheld, "the recovery")
        return self.assigned.delivered


@pytest_asyncio.fixture
async def env() -> AsyncIterator[FenceEnv]:
    failures: list[BaseException] = []
    tasks = BackgroundTasks("stalls", on_failure=failures.append)
    await tasks.start()
    yield FenceEnv(tasks)
    await tasks.close()
    assert failures == []


async def test_the_position_moves_up_to_what_other_members_committed(env: FenceEnv) -> None:
    env.stall()
    assert await env.recover() == THERE
    assert env.ready.take(10) == []
    assert env.cache.count == 0
    pull(env.assigned, THERE, THERE + 1)
    env.ready.add(env.assigned)

    assert offsets(env.ready.take(10)) == [THERE, THERE + 1]


@pytest.mark.parametrize("others", [None, 0, DELIVERED])
async def test_the_position_stays_if_no_member_committed_more(
    env: FenceEnv, others: int | None
) -> None:
    env.committed_by_others = others
    env.stall()

    assert await env.recover() == DELIVERED
    assert offsets(env.ready.take(10)) == [3, 4, 5, 6, 7, 8, 9]


async def test_one_message_at_a_time_is_withheld_as_well(env: FenceEnv) -> None:
    env.now += STALL_SECONDS + 1

    assert env.ready.take_one() is None


async def test_an_offset_committed_here_before_a_seek_skips_nothing(env: FenceEnv) -> None:
    env.assigned.mark_processed_at(THERE)
    env.assigned.seek(2)
    env.assigned.seek(1)
    env.assigned.note_committed()
    env.stall()

    assert await env.recover() == 1


async def test_an_offset_committed_here_before_a_lower_one_skips_nothing(env: FenceEnv) -> None:
    for offset in (THERE, 1):
        env.assigned.mark_processed_at(offset)
        env.assigned.trust()
        env.assigned.note_committed()
    env.stall()

    assert await env.recover() == DELIVERED


async def test_an_offset_that_a_commit_read_before_the_others_left_is_read_again(
    env: FenceEnv,
) -> None:
    env.stall()
    await env.fence.refresh([env.assigned])

    assert await env.recover() == THERE


async def test_a_position_stays_if_the_offset_of_others_cannot_be_read_in_time(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_fence, "COMPARE_SECONDS", 0.05)
    env.store.fail["read"] = StoreError("down")
    env.stall()

    assert await env.recover() == DELIVERED
    assert offsets(env.ready.take(10)) == [3, 4, 5, 6, 7, 8, 9]


async def test_a_revoked_queue_does_not_withhold_messages_of_others(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = env.store.read

    async def read_assigned(each: MessageQueue) -> int | None:
        if each == queue(1):
            env.table.pop(queue(1)).drop()
            raise StoreError("down")
        return await read(each)

    monkeypatch.setattr(env.store, "read", read_assigned)
    monkeypatch.setattr(delivery_fence, "RETRY_SECONDS", 0.001)
    env.table[queue(1)] = assigned_queue(1, cache=env.cache)
    env.stall()

    assert await env.recover() == THERE


async def test_a_position_set_before_the_committed_offset_was_read_stays(env: FenceEnv) -> None:
    env.assigned.drop()
    env.table[queue(0)] = env.assigned = PolledQueue(queue(0), env.cache)
    env.assigned.seek(1)
    env.assigned.note_committed()
    env.stall()

    assert await env.recover() == 1


async def test_a_commit_that_is_repeated_does_not_keep_the_position(env: FenceEnv) -> None:
    env.assigned.commit_due = True  # the broker was unreachable
    env.stall()

    assert await env.recover() == THERE


async def test_a_position_that_has_yet_to_be_committed_stays(env: FenceEnv) -> None:
    env.assigned.move(1)  # an administrator has reset it
    env.stall()

    assert await env.recover() == 1


async def test_queues_assigned_by_the_application_keep_their_position(env: FenceEnv) -> None:
    env.is_shared = False
    env.stall()

    assert await env.recover() == DELIVERED


async def test_messages_are_withheld_while_the_store_cannot_be_read(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_fence, "RETRY_SECONDS", 0.001)
    env.store.fail["read"] = StoreError("down")
    env.stall()
    env.joined.set()
    await until(lambda: len(env.store.called("read")) > 2, "reads")
    assert env.ready.take(10) == []
    del env.store.fail["read"]

    assert await env.recover() == THERE


async def test_messages_are_not_withheld_longer_than_the_limit(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_fence, "COMPARE_SECONDS", 0.01)
    env.stall()
    await until(lambda: not env.assigned.withheld, "the limit")

    assert offsets(env.ready.take(10)) == [3, 4, 5, 6, 7, 8, 9]


async def test_a_second_stall_withholds_until_its_own_recovery(env: FenceEnv) -> None:
    env.committed_by_others = DELIVERED + 1
    env.stall()
    env.stall()
    assert await env.recover() == DELIVERED + 1
    env.committed_by_others = THERE
    env.stall()

    assert await env.recover() == THERE


async def test_the_recovery_of_a_stall_does_not_end_a_later_one(env: FenceEnv) -> None:
    env.stall()
    await until(lambda: env.rejoins == 1, "the first recovery")
    first, env.joined = env.joined, asyncio.Event()
    env.stall()
    await until(lambda: env.rejoins == 2, "the second recovery")
    first.set()
    await wait_all_tasks_blocked()

    assert env.assigned.withheld
    assert await env.recover() == THERE


def expire(env: FenceEnv) -> None:
    """Note that the pulls of the queue failed for long."""
    env.assigned.invalidate_commits()
    env.assigned.pull_expired = True


async def test_after_a_long_outage_the_position_moves_up_to_what_others_committed(
    env: FenceEnv,
) -> None:
    expire(env)
    assert offsets(env.ready.take(1)) == [DELIVERED]
    env.fence.on_recovered(env.assigned)
    env.fence.on_recovered(env.assigned)  # the first pull succeeds
    assert env.ready.take(10) == []

    assert await env.recover() == THERE
    assert env.rejoins == 1
    env.fence.on_recovered(env.assigned)
    assert not env.assigned.withheld


async def test_after_a_short_outage_nothing_is_withheld(env: FenceEnv) -> None:
    env.assigned.invalidate_commits()
    env.fence.on_recovered(env.assigned)

    assert offsets(env.ready.take(1)) == [DELIVERED]


async def test_after_a_long_outage_all_queues_of_the_broker_are_withheld(env: FenceEnv) -> None:
    same, another = [PolledQueue(queue(1, name), env.cache) for name in ("broker-a", "broker-b")]
    env.table |= {each.queue: each for each in (same, another)}
    expire(env)
    env.fence.on_recovered(env.assigned)

    assert [bool(each.withheld) for each in (env.assigned, same, another)] == [True, True, False]
    await env.recover()
    assert not same.withheld


async def test_an_outage_counts_until_the_offsets_of_others_were_read(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire(env)
    with monkeypatch.context() as patched:
        patched.setattr(delivery_fence, "COMPARE_SECONDS", 0.01)
        env.fence.on_recovered(env.assigned)
        await until(lambda: not env.assigned.withheld, "the limit")
    assert env.assigned.delivered == DELIVERED
    env.fence.on_recovered(env.assigned)

    assert await env.recover() == THERE


async def test_an_offset_read_before_another_outage_ended_is_read_again(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = env.store.read
    reads = 0

    async def read_meanwhile(each: MessageQueue) -> int | None:
        nonlocal reads
        reads += 1
        if reads == 1:
            env.fence.invalidate()  # for queues of another broker
            return 0
        return await read(each)

    monkeypatch.setattr(env.store, "read", read_meanwhile)
    expire(env)
    env.fence.on_recovered(env.assigned)

    assert await env.recover() == THERE


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_consumer_does_not_return_what_others_processed_during_a_stall(
    auto_commit: bool,
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consuming(cluster, auto_commit=auto_commit) as consumer:
            await polled(consumer, DELIVERED, max_messages=DELIVERED)
            cluster.broker.commit(GROUP, TOPIC, 0, THERE)
            cluster.broker.members.groups.pop(GROUP)  # as after two minutes of silence
            stall(consumer)

            assert bodies(await polled(consumer, 2)) == ["8", "9"]
            heartbeats = cluster.broker.requests_of(RequestCode.HEART_BEAT)
            assert len(heartbeats) > 1


async def test_a_consumer_of_assigned_queues_returns_all_messages_at_once_after_a_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_fence, "COMPARE_SECONDS", 3600.0)
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consumer_of(cluster) as consumer:
            await consumer.assign([queue(0)])
            await polled(consumer, DELIVERED, max_messages=DELIVERED)
            cluster.broker.commit(GROUP, TOPIC, 0, THERE)
            stall(consumer)

            assert bodies(await polled(consumer, 7)) == numbers(7, 3)


async def test_a_consumer_does_not_return_what_others_processed_during_an_outage() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consuming(cluster) as consumer:
            await polled(consumer, DELIVERED, max_messages=DELIVERED)
            engine = consumer._engine
            assigned = engine.table[queue(0)]
            assigned.failing_since = asyncio.get_running_loop().time() - EXPIRED_SECONDS - 1
            engine.on_cut_off(assigned)
            cluster.broker.commit(GROUP, TOPIC, 0, THERE)
            cluster.broker.members.groups.pop(GROUP)  # as after two minutes of silence
            engine.on_recovered(assigned)

            assert bodies(await polled(consumer, 2)) == ["8", "9"]


async def test_a_broker_that_is_not_connected_is_not_recovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        assigned = consumer._engine.table[queue(0)]
        assigned.pull_expired = True
        with monkeypatch.context() as patched:
            patched.setattr(consumer._instance.remoting, "is_connected", lambda _: False)
            consumer._engine.on_recovered(assigned)

        assert not assigned.withheld


@pytest.mark.parametrize(("seconds", "expired"), [(EXPIRED_SECONDS / 2, False), (61.0, True)])
async def test_pulls_expire_after_a_minute(seconds: float, expired: bool) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        assigned = consumer._engine.table[queue(0)]
        assigned.failing_since = asyncio.get_running_loop().time() - seconds
        consumer._engine.on_cut_off(assigned)

        assert assigned.pull_expired == expired
