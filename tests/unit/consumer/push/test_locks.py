"""QueueLocks: leases, renewals per broker, lost locks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from rocketmq_aio.consumer.push import locks as locks_module
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.faults import HeldResponses
from rocketmq_aio.embedded.responses import Close, Outcome, Response
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.remoting.remoting_client import LATE_SECONDS
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lock_members import GROUP, INTERVAL, OFTEN, Member, give_away, joined
from tests.unit.remoting.until import until

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
A0, A1 = (MessageQueue("orders", "broker-a", number) for number in range(2))
B0 = MessageQueue("orders", "broker-b", 0)
NOWHERE = MessageQueue("orders", "broker-z", 0)
LEASE = 30.0


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "CHECKS_PER_INTERVAL", OFTEN)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2, topics={"orders": 4}) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def member(cluster: FakeCluster) -> AsyncIterator[Member]:
    async with joined(cluster) as member:
        yield member


async def test_granted_queues_are_held(cluster: FakeCluster, member: Member) -> None:
    give_away(cluster, A1)

    assert await member.locks.acquire([A0, A1, B0]) == {A0, B0}
    assert [member.locks.holds(queue) for queue in (A0, A1, B0)] == [True, False, True]
    assert member.lost == []


async def test_each_broker_gets_one_request_for_all_its_queues(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0, A1, B0])

    bodies = [json.loads(b.requests_of(LOCK)[0].body) for b in cluster.brokers]
    assert [len(b.requests_of(LOCK)) for b in cluster.brokers] == [1, 1]
    assert [len(body["mqSet"]) for body in bodies] == [2, 1]
    assert {body["clientId"] for body in bodies} == {member.client_id}
    assert {body["consumerGroup"] for body in bodies} == {GROUP}


async def test_no_queues_send_no_request(cluster: FakeCluster, member: Member) -> None:
    assert await member.locks.acquire([]) == frozenset()
    assert cluster.broker.requests_of(LOCK) == []


async def test_logical_queues_are_locked_at_their_brokers(
    cluster: FakeCluster, member: Member
) -> None:
    logical = [MessageQueue("orders", "__syslo__global__", number) for number in range(2)]
    owners = zip(logical, cluster.brokers, strict=True)
    (await member.routes.get("orders")).owners.update({q: broker.name for q, broker in owners})

    assert await member.locks.acquire(logical) == frozenset(logical)
    assert [b.locks.owner(GROUP, logical[0]) for b in cluster.brokers] == [member.client_id, None]
    assert [b.locks.owner(GROUP, logical[1]) for b in cluster.brokers] == [None, member.client_id]


async def test_a_queue_has_one_owner_until_it_is_released(
    cluster: FakeCluster, member: Member
) -> None:
    async with joined(cluster) as other:
        await member.locks.acquire([A0])
        refused = await other.locks.acquire([A0])
        await member.locks.release([A0])

        assert refused == frozenset()
        assert not member.locks.holds(A0)
        assert await other.locks.acquire([A0]) == {A0}


async def test_lease_counts_from_the_request(cluster: FakeCluster, member: Member) -> None:
    held = cluster.faults.hold("lock", times=None, broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A0]))
    await held.wait(1)
    member.clock.now += LEASE - 1
    held.release()

    assert await acquiring == {A0}
    member.clock.now += 1
    assert not member.locks.holds(A0)


async def test_grant_after_the_end_of_its_lease_is_ignored(
    cluster: FakeCluster, member: Member
) -> None:
    held = cluster.faults.hold("lock", times=None, broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A0]))
    await held.wait(1)
    member.clock.now += LEASE
    held.release()

    assert await acquiring == frozenset()


async def test_stall_is_detected_at_the_next_check(member: Member) -> None:
    await member.locks.acquire([A0])
    member.clock.now += LEASE

    assert not member.locks.holds(A0)


@pytest.mark.parametrize(
    "response",
    [Response(ResponseCode.SYSTEM_ERROR), Response(body=b"[no json"), Close()],
    ids=["refused", "garbled", "cut"],
)
async def test_a_broker_that_fails_grants_nothing_and_the_others_do(
    cluster: FakeCluster, member: Member, response: Response | Close
) -> None:
    cluster.faults.handle("lock", response, broker="broker-a")

    assert await member.locks.acquire([A0, B0, NOWHERE]) == {B0}
    assert member.lost == []


async def test_failed_request_keeps_the_lease(cluster: FakeCluster, member: Member) -> None:
    await member.locks.acquire([A0])
    cluster.faults.refuse("lock", broker="broker-a")

    assert await member.locks.acquire([A0]) == {A0}


async def test_refused_renewal_loses_the_queue(cluster: FakeCluster, member: Member) -> None:
    await member.locks.acquire([A0])
    give_away(cluster, A0)

    assert await member.locks.acquire([A0]) == frozenset()
    assert member.lost == [A0]


async def test_leases_are_renewed_when_the_interval_is_over(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0, A1])
    async with member.renewing():
        member.clock.now += INTERVAL - 1
        await member.locks.acquire([B0])  # a round trip: the loop had its chance
        early = len(cluster.broker.requests_of(LOCK))
        member.clock.now += 1
        renewal = (await cluster.broker.wait_for(LOCK, 2))[1]
        await until(lambda: not member.locks._renewing, "the renewal")
        member.clock.now += LEASE - 1

        assert early == 1
        assert len(json.loads(renewal.body)["mqSet"]) == 2
        assert member.locks.holds(A0)
        assert member.locks.holds(A1)


async def test_queue_missing_in_a_renewal_is_lost_once(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0, A1])
    give_away(cluster, A0)
    async with member.renewing():
        member.clock.now += INTERVAL
        await until(lambda: bool(member.lost), "the loss")
        member.clock.now += INTERVAL
        await cluster.broker.wait_for(LOCK, 3)

        assert member.lost == [A0]
        assert not member.locks.holds(A0)
        assert member.locks.holds(A1)


async def test_failed_renewals_are_repeated_and_lose_nothing_before_the_lease_ends(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0])
    cluster.faults.refuse("lock", times=None, broker="broker-a")
    async with member.renewing():
        member.clock.now += INTERVAL
        await cluster.broker.wait_for(LOCK, 4)
        kept, lost = member.locks.holds(A0), list(member.lost)
        member.clock.now += LEASE - INTERVAL
        await until(lambda: bool(member.lost), "the loss")

        assert (kept, lost) == (True, [])
        assert member.lost == [A0]
        assert not member.locks.holds(A0)


async def test_a_renewal_that_succeeds_at_last_keeps_the_queue(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0])
    cluster.faults.close("lock", executed=False, times=2, broker="broker-a")
    async with member.renewing():
        member.clock.now += LEASE - 1
        await cluster.broker.wait_for(LOCK, 4)
        await until(lambda: not member.locks._renewing, "the renewal")
        member.clock.now += LEASE - 1

        assert member.locks.holds(A0)
        assert member.lost == []


async def test_a_broker_that_hangs_does_not_hold_up_the_others(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0, B0])
    cluster.faults.drop("lock", executed=False, times=None, broker="broker-a")
    async with member.renewing():
        for _ in range(2):
            member.clock.now += INTERVAL
            await until(lambda: member.locks._due(INTERVAL) <= {"broker-a"}, "broker-b")

        assert member.locks.holds(B0)
        assert member.lost == [A0]


@asynccontextmanager
async def held_renewal(cluster: FakeCluster, member: Member) -> AsyncIterator[HeldResponses]:
    """Renew the lock of A0; the broker holds the response until it is released."""
    await member.locks.acquire([A0])
    held = cluster.faults.hold("lock", broker="broker-a")
    async with member.renewing():
        member.clock.now += INTERVAL
        await held.wait(1)
        yield held


async def test_a_broker_gets_one_request_until_it_responds(
    cluster: FakeCluster, member: Member
) -> None:
    async with held_renewal(cluster, member) as held:
        for _ in range(50):  # the loop looks many times meanwhile
            await member.locks.acquire([B0])
        held.release()
        await until(lambda: not member.locks._renewing, "the renewal")
        await member.locks.release([A0])

        assert len(cluster.broker.requests_of(LOCK)) == 2


async def test_a_lease_that_ended_before_the_answer_came_stays_lost(
    cluster: FakeCluster, member: Member
) -> None:
    async with held_renewal(cluster, member) as held:
        member.clock.now += LEASE - INTERVAL
        await until(lambda: bool(member.lost), "the loss")
        held.release()
        await until(lambda: not member.locks._renewing, "the renewal")

        assert not member.locks.holds(A0)
        assert member.lost == [A0]


async def test_a_lease_that_ends_during_its_renewal_pauses_its_queue_before_the_next_look(
    cluster: FakeCluster, member: Member
) -> None:
    """Meanwhile workers may have found that the queue was not held."""
    member.losses.assigned.add(A0)
    await member.locks.acquire([A0])
    member.clock.now += INTERVAL
    held = cluster.faults.hold("lock", broker="broker-a")
    renewal = asyncio.create_task(member.locks.acquire([A0]))
    await held.wait(1)
    member.clock.now += LEASE - INTERVAL
    held.release()
    await renewal

    assert not member.locks.holds(A0)
    assert member.lost == [A0]


async def test_a_broker_that_was_connected_at_the_first_look_gets_requests_at_once(
    cluster: FakeCluster, member: Member
) -> None:
    await member.connect(cluster.broker.address)
    async with member.renewing():
        await until(lambda: member.locks._connections_noted, "the first look")

        assert await member.locks.acquire([A0]) == {A0}


async def test_a_broker_that_was_not_connected_at_the_first_look_gets_no_requests_yet(
    cluster: FakeCluster, member: Member
) -> None:
    """It may have been away, and owners come first."""
    async with member.renewing():
        await until(lambda: member.locks._connections_noted, "the first look")

        assert await member.locks.acquire([A0]) == frozenset()
        assert cluster.broker.requests_of(LOCK) == []


async def test_a_renewal_under_way_does_not_outlast_a_release(
    cluster: FakeCluster, member: Member
) -> None:
    async with held_renewal(cluster, member) as held:
        releasing = asyncio.create_task(member.locks.release([A0]))
        await until(lambda: not member.locks.holds(A0), "the release to begin")
        early = cluster.broker.requests_of(UNLOCK)
        held.release()
        await releasing

        assert early == []
        assert cluster.broker.locks.owner(GROUP, A0) is None
        assert not member.locks.holds(A0)
        assert member.lost == []


async def test_locks_of_a_cancelled_acquire_can_be_released(
    cluster: FakeCluster, member: Member
) -> None:
    held = cluster.faults.hold("lock", broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A0]))
    await held.wait(1)
    acquiring.cancel()
    await asyncio.gather(acquiring, return_exceptions=True)
    owner = cluster.broker.locks.owner(GROUP, A0)
    await member.locks.release([A0])

    assert owner == member.client_id
    assert cluster.broker.locks.owner(GROUP, A0) is None


async def test_all_locks_of_a_cancelled_acquire_are_released_at_last(
    cluster: FakeCluster, member: Member
) -> None:
    held = cluster.faults.hold("lock", broker="broker-b")
    acquiring = asyncio.create_task(member.locks.acquire([A0, A1, B0]))
    await held.wait(1)
    await until(lambda: member.locks.holds(A0), "the lock of the other broker")
    await cancelled(acquiring)
    await member.locks.release_rest({A1}, ended=False)

    assert [each.locks.owner(GROUP, A0) for each in cluster.brokers] == [None, None]
    assert cluster.broker.locks.owner(GROUP, A1) == member.client_id
    assert cluster.brokers[1].locks.owner(GROUP, B0) is None


async def test_a_release_while_the_grant_is_awaited_wins(
    cluster: FakeCluster, member: Member
) -> None:
    held = cluster.faults.hold("lock", broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A0]))
    await held.wait(1)
    releasing = asyncio.create_task(member.locks.release([A0]))
    held.release()
    await releasing
    await acquiring

    assert not member.locks.holds(A0)
    assert cluster.broker.locks.owner(GROUP, A0) is None


async def test_a_release_that_fails_is_no_error(cluster: FakeCluster, member: Member) -> None:
    await member.locks.acquire([A0, B0])
    cluster.faults.close("unlock", executed=False, broker="broker-a")
    await member.locks.release([A0, B0, NOWHERE])

    assert not member.locks.holds(A0)
    assert cluster.brokers[1].locks.owner(GROUP, B0) is None


async def test_an_unlock_that_fails_is_repeated(cluster: FakeCluster, member: Member) -> None:
    await member.locks.acquire([A0, A1])
    cluster.faults.refuse("unlock", times=2, broker="broker-a")
    async with member.renewing():
        await member.locks.release([A0])
        await until(lambda: cluster.broker.locks.owner(GROUP, A0) is None, "the unlock")

        assert member.locks.holds(A1)
        assert member.lost == []


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def unanswered_unlock(cluster: FakeCluster, member: Member) -> HeldResponses:
    """Release A0; the broker has not executed the unlock yet, and the member does not wait."""
    await member.locks.acquire([A0])
    held = cluster.faults.hold("unlock", executed=False, broker="broker-a")
    releasing = asyncio.create_task(member.locks.release([A0]))
    await held.wait(1)
    await cancelled(releasing)
    return held


@asynccontextmanager
async def acquiring_across_an_unlock(
    cluster: FakeCluster, member: Member
) -> AsyncIterator[asyncio.Task[frozenset[MessageQueue]]]:
    """Acquire A0; its broker executes the lock, then an unlock before it, and responds last."""
    held_unlock = await unanswered_unlock(cluster, member)
    held_lock = cluster.faults.hold("lock", broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A0]))
    await held_lock.wait(1)
    held_unlock.release()
    await until(lambda: cluster.broker.locks.owner(GROUP, A0) is None, "the unlock")
    yield acquiring
    held_lock.release()


async def test_an_unlock_that_is_cancelled_is_repeated(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0])
    cluster.faults.drop("unlock", executed=False, broker="broker-a")
    releasing = asyncio.create_task(member.locks.release([A0]))
    await cluster.broker.wait_for(UNLOCK, 1)
    releasing.cancel()
    await asyncio.gather(releasing, return_exceptions=True)
    async with member.renewing():
        await until(lambda: cluster.broker.locks.owner(GROUP, A0) is None, "the unlock")


async def test_a_queue_that_is_locked_again_is_not_unlocked_later(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0, B0])
    cluster.faults.refuse("unlock", broker="broker-a")
    cluster.faults.refuse("unlock", broker="broker-b")
    await member.locks.release([A0, B0])
    await member.locks.acquire([A0])
    async with member.renewing():
        await until(lambda: cluster.brokers[1].locks.owner(GROUP, B0) is None, "an unlock")

        assert len(cluster.broker.requests_of(UNLOCK)) == 1
        assert member.locks.holds(A0)


async def test_an_unlock_that_is_cancelled_before_it_is_sent_is_repeated(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0])
    held = cluster.faults.hold("lock", broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A1]))
    await held.wait(1)
    releasing = asyncio.create_task(member.locks.release([A0]))
    await until(lambda: not member.locks.holds(A0), "the release to begin")
    await cancelled(releasing)
    held.release()
    await acquiring
    async with member.renewing():
        await until(lambda: cluster.broker.locks.owner(GROUP, A0) is None, "the unlock")

        assert member.locks.holds(A1)


async def test_a_lock_is_requested_again_after_an_unlock_that_is_executed_late(
    cluster: FakeCluster, member: Member
) -> None:
    held = await unanswered_unlock(cluster, member)
    await member.locks.acquire([A0])
    held.release()
    await until(lambda: cluster.broker.locks.owner(GROUP, A0) is None, "the unlock")
    async with member.renewing():
        await until(lambda: cluster.broker.locks.owner(GROUP, A0) is not None, "the lock")
        requests = len(cluster.broker.requests_of(LOCK))
        await cluster.broker.wait_for(LOCK, requests + 1)
        member.clock.now += LATE_SECONDS - INTERVAL
        await member.locks.acquire([A0])
        member.clock.now += INTERVAL
        await until(lambda: not member.locks._late_unlocks, "the last time for the unlock")

    assert cluster.broker.locks.owner(GROUP, A0) == member.client_id
    assert member.lost == []


async def test_unlocks_are_repeated_while_locks_are_renewed_often(
    cluster: FakeCluster, member: Member
) -> None:
    """A late unlock of one queue has its lock renewed all the time."""
    held = await unanswered_unlock(cluster, member)
    await member.locks.acquire([A0, A1])
    cluster.faults.refuse("unlock", broker="broker-a")
    await member.locks.release([A1])
    async with member.renewing():
        await until(lambda: cluster.broker.locks.owner(GROUP, A1) is None, "the unlock")
    held.release()

    assert member.locks.holds(A0)


async def test_an_acquired_lock_is_not_undone_by_an_unlock_before_it(
    cluster: FakeCluster, member: Member
) -> None:
    async with acquiring_across_an_unlock(cluster, member) as acquiring:
        pass

    assert await acquiring == {A0}
    assert cluster.broker.locks.owner(GROUP, A0) == member.client_id


async def test_a_queue_that_others_locked_after_a_late_unlock_is_not_acquired(
    cluster: FakeCluster, member: Member
) -> None:
    async with acquiring_across_an_unlock(cluster, member) as acquiring:
        give_away(cluster, A0)

    assert await acquiring == frozenset()


async def test_a_lock_that_is_executed_after_its_unlock_is_unlocked_again(
    cluster: FakeCluster, member: Member
) -> None:
    held = cluster.faults.hold("lock", executed=False, broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A0]))
    await held.wait(1)
    await cancelled(acquiring)
    await member.locks.release([A0])
    held.release()
    await until(lambda: cluster.broker.locks.owner(GROUP, A0) is not None, "the lock")
    async with member.renewing():
        await until(lambda: cluster.broker.locks.owner(GROUP, A0) is None, "the unlock")
        member.clock.now += LATE_SECONDS
        await until(lambda: not member.locks._not_unlocked, "the end")


async def test_a_lock_that_is_executed_after_the_unlock_of_a_close_is_unlocked_again(
    cluster: FakeCluster, member: Member
) -> None:
    broker = cluster.broker
    held = cluster.faults.hold("lock", executed=False, broker="broker-a")
    acquiring = asyncio.create_task(member.locks.acquire([A0]))
    await held.wait(1)
    await cancelled(acquiring)
    owners: list[str | None] = []

    async def respond_after_the_lock(command: Command, connection: ServerConnection) -> Outcome:
        outcome = await broker.execute(command, connection)
        held.release()
        await until(lambda: broker.locks.owner(GROUP, A0) is not None, "the lock")
        owners.append(broker.locks.owner(GROUP, A0))
        return outcome

    cluster.faults.handle("unlock", respond_after_the_lock, broker="broker-a")
    await member.locks.release_rest(set(), ended=True)

    assert owners == [member.client_id]
    assert broker.locks.owner(GROUP, A0) is None


async def test_the_last_unlock_waits_until_a_broker_may_be_connected_again(
    cluster: FakeCluster, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    await member.locks.acquire([A0])
    refused = cluster.faults.refuse("unlock", times=None, broker="broker-a")

    def backoff_left(_: str) -> float:
        asyncio.get_running_loop().call_later(0.001, refused.remove)
        return 0.02

    monkeypatch.setattr(member.locks._instance.remoting, "backoff_left", backoff_left)
    await member.locks.release_rest(set(), ended=True)

    assert cluster.broker.locks.owner(GROUP, A0) is None


async def test_an_unlock_is_repeated_until_the_broker_has_expired_the_lock(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0])
    cluster.faults.refuse("unlock", times=None, broker="broker-a")
    async with member.renewing():
        await member.locks.release([A0])
        await cluster.broker.wait_for(UNLOCK, 3)
        member.clock.now += locks_module.BROKER_LOCK_SECONDS
        await until(lambda: not member.locks._not_unlocked, "the end")


async def test_a_lock_that_nobody_renews_is_free_for_others(
    cluster: FakeCluster, member: Member
) -> None:
    await member.locks.acquire([A0])
    cluster.broker.locks.kept_seconds = 0.0
    async with joined(cluster) as other:
        assert await other.locks.acquire([A0]) == {A0}


# --- expired leases of assigned queues -----------------------------------------------------------


@asynccontextmanager
async def paused(cluster: FakeCluster, member: Member) -> AsyncIterator[None]:
    """Renew locks; the lease of A0 has expired, and the broker refuses requests until the body."""
    member.losses.assigned.add(A0)
    await member.locks.acquire([A0])
    refused = cluster.faults.refuse("lock", times=None, broker="broker-a")
    async with member.renewing():
        member.clock.now += LEASE
        await until(lambda: bool(member.lost), "the loss")
        refused.remove()
        yield


async def test_an_assigned_queue_is_held_again_when_the_broker_grants_its_expired_lock(
    cluster: FakeCluster, member: Member
) -> None:
    async with paused(cluster, member):
        await until(lambda: bool(member.losses.resumed), "the lock")

        assert member.locks.holds(A0)
        assert (member.lost, member.losses.resumed, member.losses.taken) == ([A0], [A0], [])


async def test_a_queue_with_progress_by_others_is_not_held_again(
    cluster: FakeCluster, member: Member
) -> None:
    member.losses.changed.add(A0)
    async with paused(cluster, member):
        await until(lambda: member.losses.compared > 2, "comparisons")

        assert not member.locks.holds(A0)
        assert cluster.broker.locks.owner(GROUP, A0) == member.client_id, "until it is revoked"
        await member.locks.release([A0])
        assert cluster.broker.locks.owner(GROUP, A0) is None
        assert await member.locks.acquire([A0]) == {A0}


async def test_a_queue_that_another_member_got_during_the_pause_is_lost_once(
    cluster: FakeCluster, member: Member
) -> None:
    member.losses.changed.add(A0)
    async with paused(cluster, member):
        give_away(cluster, A0)
        await until(lambda: bool(member.losses.taken), "the loss")

        assert (member.lost, member.losses.taken) == ([A0], [A0])
        assert not member.locks.holds(A0)


async def test_a_paused_queue_does_not_pause_other_queues_of_its_broker(
    cluster: FakeCluster, member: Member
) -> None:
    member.losses.changed.add(A0)
    async with paused(cluster, member):
        await until(lambda: member.losses.compared > 0, "a comparison")

        assert await member.locks.acquire([A1]) == {A1}
        assert not member.locks.holds(A0)


async def test_a_new_assignment_of_a_paused_queue_needs_no_comparison(
    cluster: FakeCluster, member: Member
) -> None:
    member.losses.changed.add(A0)
    async with paused(cluster, member):
        member.losses.assigned.clear()

        assert await member.locks.acquire([A0]) == {A0}
        assert member.locks.holds(A0)


async def test_a_paused_queue_that_is_released_during_the_comparison_is_not_held_again(
    cluster: FakeCluster, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparing, go_on = asyncio.Event(), asyncio.Event()

    async def unchanged(queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        comparing.set()
        await go_on.wait()
        return queues

    monkeypatch.setattr(member.losses, "unchanged", unchanged)
    async with paused(cluster, member):
        await comparing.wait()
        await member.locks.release([A0])
        go_on.set()
        await until(lambda: not member.locks._renewing, "the end of the comparison")

        assert not member.locks.holds(A0)
        assert member.losses.resumed == []


async def test_failing_requests_are_logged_once_until_one_succeeds(
    cluster: FakeCluster, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    def count() -> int:
        return sum("queues_not_locked" in each.getMessage() for each in caplog.records)

    for logged in (1, 2):
        await member.locks.acquire([A0])
        cluster.faults.refuse("lock", times=3, broker="broker-a")
        for _ in range(3):
            await member.locks.acquire([A0])
        assert count() == logged


async def test_release_does_not_report_a_loss(cluster: FakeCluster, member: Member) -> None:
    await member.locks.acquire([A0])
    await member.locks.release([A0])
    give_away(cluster, A0)
    async with member.renewing():
        member.clock.now += LEASE
        await member.locks.acquire([B0])

        assert member.lost == []


def test_brokers_keep_a_lock_longer_than_its_lease() -> None:
    assert locks_module.RENEW_SECONDS < locks_module.LEASE_SECONDS < 60
