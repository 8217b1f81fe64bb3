"""Queue locks of restarted brokers and new masters, which do not know the owners."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.consumer.push import locks as locks_module
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lock_members import GROUP, OFTEN, give_away, joined
from tests.unit.remoting.until import succeeds, until, until_done

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "CHECKS_PER_INTERVAL", OFTEN)


async def test_restarted_broker_gets_lock_requests_at_once() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, joined(cluster) as member:
        await member.locks.acquire([QUEUE])
        async with member.renewing():
            await cluster.broker.restart()
            await until(lambda: cluster.broker.locks.any_in(GROUP), "the lock")

            assert cluster.broker.locks.owner(GROUP, QUEUE) == member.client_id
            assert member.locks.holds(QUEUE)
            assert member.lost == []


async def test_restarted_broker_gets_lock_requests_when_others_have_connected_again() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, joined(cluster) as member:
        await member.locks.acquire([QUEUE])
        await cluster.broker.restart()
        await until_done(lambda: succeeds(member.connect(cluster.broker.address)), "a connection")
        async with member.renewing():
            await until(lambda: cluster.broker.locks.any_in(GROUP), "the lock")

            assert cluster.broker.locks.owner(GROUP, QUEUE) == member.client_id


async def test_owners_request_locks_first_when_a_broker_returns() -> None:
    async with (
        FakeCluster(topics={"orders": 1}) as cluster,
        joined(cluster) as member,
        joined(cluster) as other,
    ):
        broker = cluster.broker
        await member.locks.acquire([QUEUE])
        await other.locks.acquire([QUEUE])
        await broker.restart()
        await other.locks.acquire([QUEUE])
        await until_done(lambda: succeeds(other.connect(broker.address)), "a connection")
        await other.locks.acquire([QUEUE])
        early = broker.locks.owner(GROUP, QUEUE)
        async with member.renewing():
            await until(lambda: broker.locks.any_in(GROUP), "the lock")
        other.clock.now += locks_module.RETURN_SECONDS
        refused = await other.locks.acquire([QUEUE])
        await member.locks.release([QUEUE])

        assert (early, refused) == (None, frozenset())
        assert await other.locks.acquire([QUEUE]) == {QUEUE}


async def test_a_member_that_starts_while_a_broker_is_away_lets_owners_come_first() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, joined(cluster) as other:
        broker = cluster.broker
        await broker.stop()
        away = await other.locks.acquire([QUEUE])
        await broker.restart()
        await until_done(lambda: succeeds(other.connect(broker.address)), "a connection")
        early = await other.locks.acquire([QUEUE])
        other.clock.now += locks_module.RETURN_SECONDS

        assert (away, early) == (frozenset(), frozenset())
        assert await other.locks.acquire([QUEUE]) == {QUEUE}


@pytest.mark.parametrize("has_route", [True, False])
async def test_a_member_without_queues_during_an_outage_lets_owners_come_first(
    has_route: bool,
) -> None:
    """Without a broker it does not know the other members, so it requests no locks."""
    async with FakeCluster(topics={"orders": 1}) as cluster, joined(cluster) as other:
        broker = cluster.broker
        await broker.stop()
        if not has_route:  # a name server forgets a broker whose connection is lost
            other.routes._drop("orders")
        async with other.renewing():
            await until(lambda: other.locks._connections_noted, "the first look")
            await broker.restart()
            await other.routes.get("orders")
            await until_done(lambda: succeeds(other.connect(broker.address)), "a connection")
            early = await other.locks.acquire([QUEUE])
            other.clock.now += locks_module.RETURN_SECONDS

            assert early == frozenset()
            assert await other.locks.acquire([QUEUE]) == {QUEUE}


@pytest.mark.parametrize(("seconds", "comes_first"), [(59.0, True), (60.0, False)])
async def test_a_member_whose_lease_has_expired_comes_first_as_long_as_brokers_keep_locks(
    seconds: float, comes_first: bool
) -> None:
    """Later another member may have got the lock, and comes first itself."""
    async with FakeCluster(topics={"orders": 1}) as cluster, joined(cluster) as member:
        member.losses.assigned.add(QUEUE)
        await member.locks.acquire([QUEUE])
        await cluster.broker.stop()
        member.clock.now += seconds
        await cluster.broker.start()
        await until_done(lambda: succeeds(member.connect(cluster.broker.address)), "a connection")
        async with member.renewing():
            await until(lambda: bool(member.lost), "the loss")
            if not comes_first:
                await asyncio.sleep(0.05)  # ten looks
                assert not cluster.broker.locks.any_in(GROUP)
                member.clock.now += locks_module.RETURN_SECONDS
            await until(lambda: bool(member.losses.resumed), "the lock")

        assert member.locks.holds(QUEUE)


async def test_second_member_after_a_restart_loses_its_lock_at_once() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, joined(cluster) as member:
        await member.locks.acquire([QUEUE])
        await cluster.broker.restart()
        give_away(cluster, QUEUE)
        async with member.renewing():
            await until(lambda: member.lost, "the loss")

            assert member.lost == [QUEUE]
            assert not member.locks.holds(QUEUE)


async def test_new_master_gets_lock_requests_at_once() -> None:
    cluster = FakeCluster(replicas=1, topics={"orders": 1})
    async with cluster, joined(cluster) as member:
        (replica,) = cluster.broker.replicas
        await member.locks.acquire([QUEUE])
        await member.connect(replica.address)
        async with member.renewing():
            replica.promote()
            await member.routes.refresh(["orders"])
            await until(lambda: replica.locks.any_in(GROUP), "the lock")

            assert replica.locks.owner(GROUP, QUEUE) == member.client_id
            assert member.locks.holds(QUEUE)
            assert member.lost == []


async def test_requests_to_an_unreachable_broker_end_with_the_lease() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster, joined(cluster) as member:
        await member.locks.acquire([QUEUE])
        async with member.renewing():
            await cluster.broker.stop()
            held = member.locks.holds(QUEUE)
            member.clock.now += locks_module.LEASE_SECONDS
            await until(lambda: member.lost, "the loss")

            assert held
            assert member.lost == [QUEUE]
            assert cluster.broker.requests_of(RequestCode.UNLOCK_BATCH_MQ) == []
