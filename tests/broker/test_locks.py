"""Queue locks on a real broker: one owner, renewed, released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.push import locks as locks_module
from rocketmq_aio.consumer.push.locks import QueueLocks
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.testing import Cluster
from tests.unit.consumer.lock_members import Losses
from tests.unit.instance.client_env import PlainClient
from tests.unit.remoting.until import until

LEASE, INTERVAL = 30.0, 20.0


@asynccontextmanager
async def locks_of(
    namesrv: str,
    group: str,
    topic: str,
    clock: Callable[[], float] = monotonic,
    lease_seconds: float = LEASE,
) -> AsyncIterator[tuple[QueueLocks, list[MessageQueue], list[MessageQueue]]]:
    """Yield the locks of a new client id, the queues of *topic*, and the list of lost queues."""
    losses = Losses()
    async with (
        MQClientInstance(ClientConfig(namesrv=namesrv)) as instance,
        PlainClient(instance) as client,
    ):
        client.wanted = {topic}  # otherwise its route would be dropped
        queues = (await instance.routes.get(topic)).subscribe_queues
        yield (
            QueueLocks(instance, group, losses, clock=clock, lease_seconds=lease_seconds),
            list(queues),
            losses.lost,
        )


async def test_a_queue_has_one_owner_until_it_is_released(
    rocketmq_namesrv: str, rocketmq_group: str, rocketmq_topic: str
) -> None:
    names = (rocketmq_namesrv, rocketmq_group, rocketmq_topic)
    async with locks_of(*names) as (one, queues, lost), locks_of(*names) as (two, _, _):
        mine = await one.acquire(queues[:3])
        yours = await two.acquire(queues)
        await one.release(queues[:1])
        then = await two.acquire(queues)

        assert mine == frozenset(queues[:3])
        assert yours == frozenset(queues[3:])
        assert then == {queues[0], queues[3]}
        assert [one.holds(queue) for queue in queues] == [False, True, True, False]
        assert lost == []


async def test_renewed_locks_are_kept(
    rocketmq_namesrv: str, rocketmq_group: str, rocketmq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks_module, "CHECKS_PER_INTERVAL", 2000)
    now = 0.0
    names = (rocketmq_namesrv, rocketmq_group, rocketmq_topic)
    async with locks_of(*names, clock=lambda: now) as (locks, queues, lost):
        await locks.acquire(queues)
        renewing = asyncio.create_task(locks.keep_renewing(INTERVAL))
        for _ in range(3):
            now += INTERVAL
            await until(lambda: not locks._due(INTERVAL), "the renewal")
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)

        assert all(locks.holds(queue) for queue in queues)
        assert lost == []
        now += LEASE
        assert not any(locks.holds(queue) for queue in queues)


async def test_locks_of_a_dead_client_expire_later(
    rocketmq_namesrv: str, rocketmq_group: str, rocketmq_topic: str
) -> None:
    names = (rocketmq_namesrv, rocketmq_group, rocketmq_topic)
    async with locks_of(*names) as (one, queues, _):
        await one.acquire(queues)
    async with locks_of(*names) as (two, queues, _):
        assert await two.acquire(queues) == frozenset()


async def test_locks_are_requested_again_after_a_broker_restart(
    fresh_cluster: Callable[..., Cluster], rocketmq_group: str
) -> None:
    cluster = fresh_cluster()
    cluster.create_topic("orders", queues=1)
    names = (cluster.namesrv, rocketmq_group, "orders")
    lease = 4 * LEASE  # a restart may take as long as one on a busy machine
    async with (
        locks_of(*names, lease_seconds=lease) as (one, queues, lost),
        locks_of(*names) as (two, _, _),
    ):
        await one.acquire(queues)
        renewing = asyncio.create_task(one.keep_renewing(INTERVAL / 4))
        await asyncio.to_thread(cluster.brokers[0].restart)
        back = monotonic()  # a lock requested before this may be one of before the restart
        await until(lambda: one._leases[queues[0]].until > back + lease, "the lock", LEASE)
        theirs = await two.acquire(queues)
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)

        assert theirs == frozenset()
        assert (one.holds(queues[0]), lost) == (True, [])
