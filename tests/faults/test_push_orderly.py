"""Orderly PushConsumer: refused and lost locks, rebalances while handlers run."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.events import LeaseLost, LeaseRegained, QueuesRevoked
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.consumer.push.locks import LEASE_SECONDS
from rocketmq_aio.embedded import responses
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.faults.proxied import QUICK, proxied_config, shorten_timeout
from tests.faults.pushing import Group, QuickLocks, group_of, let_time_pass
from tests.faults.test_push import REFUSALS, once
from tests.history import Outcome
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


@pytest_asyncio.fixture
async def group(cluster: FakeCluster) -> AsyncIterator[Group]:
    async with group_of(cluster, orderly=True) as group:
        yield group


@pytest.fixture
def quick_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.push.push_engine.QueueLocks", QuickLocks)


class Gate:
    """A handler that blocks at one message until released."""

    def __init__(self, body: str = "3") -> None:
        self.body = body.encode()
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        if message.body == self.body and not self.open.is_set():
            self.reached.set()
            await self.open.wait()


def owner(cluster: FakeCluster, queue_id: int = 0) -> str | None:
    return cluster.broker.locks.owner(GROUP, queue(queue_id))


# --- handlers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, TimeoutError])
async def test_orderly_message_is_retried_in_place(
    cluster: FakeCluster, group: Group, error: type[BaseException]
) -> None:
    put(cluster, *numbers(20))
    await group.join(once(error, "3", "7"))
    await group.drained()

    assert group.handled() == numbers(20)


async def test_stuck_orderly_handler_is_cancelled_and_retried_before_the_next(
    cluster: FakeCluster, group: Group
) -> None:
    tries = count()

    async def behave(message: MessageExt) -> None:
        if message.body == b"3" and next(tries) < 2:
            await asyncio.Event().wait()

    put(cluster, *numbers(10))
    await group.join(behave, consume_timeout_seconds=0.1)
    await group.drained()

    assert group.handled() == numbers(10)
    assert group.handled(Outcome.UNKNOWN) == ["3", "3"]


@pytest.mark.parametrize("target", [2, 8], ids=["back", "on"])
async def test_a_reset_waits_for_the_running_handler(
    cluster: FakeCluster, group: Group, target: int
) -> None:
    gate = Gate("5")
    put(cluster, *numbers(10))
    consumer = await group.join(gate)
    await gate.reached.wait()
    # A commit on its way would be recorded after the reset.
    await committed(cluster, {0: 5})
    group.recorder.reset(GROUP, queue(), target)
    await consumer._engine.reset_offsets(TOPIC, {queue(): target})
    put(cluster, "b", queue_id=1)
    await group.have("b")
    assert len(group.handled()) == 6, "another handler of the queue began"
    gate.open.set()
    await group.drained()

    assert [each for each in group.handled() if each != "b"] == [
        *numbers(6),
        *numbers(10 - target, target),
    ]


# --- refused locks -------------------------------------------------------------------------------


async def test_queue_locked_by_another_member_is_awaited(
    cluster: FakeCluster, group: Group
) -> None:
    locks = cluster.broker.locks
    locks.owners[GROUP][queue(0)] = ("somebody-else", asyncio.get_running_loop().time())
    put(cluster, "a")
    put(cluster, "b", queue_id=1)
    consumer = await group.join()
    await group.have("b")
    await cluster.broker.wait_for(LOCK, 3)
    assert queue(0) not in consumer.assignment()
    del locks.owners[GROUP][queue(0)]

    await group.drained()
    assert group.handled() == ["b", "a"]


@pytest.mark.parametrize("code", REFUSALS)
async def test_lock_request_is_repeated_after_any_failure(
    cluster: FakeCluster, group: Group, code: int
) -> None:
    cluster.faults.refuse("lock", code, times=2)
    put(cluster, *numbers(5))
    await group.join()
    await group.drained()

    assert group.handled() == numbers(5)


@pytest.mark.parametrize("code", REFUSALS)
async def test_dead_letter_that_cannot_be_stored_holds_the_queue(
    cluster: FakeCluster, group: Group, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.push.orderly.DEAD_LETTER_PAUSE_SECONDS", 0.02)

    async def behave(message: MessageExt) -> None:
        if message.body == b"3":
            raise ValueError("poison")

    cluster.faults.refuse("send_back", code)
    cluster.faults.refuse("send", code, times=2)
    put(cluster, *numbers(6))
    await group.join(behave, max_reconsume_times=1)
    await group.drained()

    assert group.handled() == ["0", "1", "2", "4", "5"]
    assert [stored.body for stored in cluster.broker.messages(f"%DLQ%{GROUP}")] == [b"3"]


# --- locks granted too late ----------------------------------------------------------------------


def impatient(cluster: FakeCluster) -> ClientConfig:
    return ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=QUICK)


async def test_a_member_that_closes_keeps_no_lock_that_a_frozen_broker_grants(
    cluster: FakeCluster, group: Group
) -> None:
    broker, frozen = cluster.broker, asyncio.Event()

    async def freeze(command: Command, connection: ServerConnection) -> responses.Outcome:
        broker.freeze()
        frozen.set()
        return await broker.execute(command, connection)

    put(cluster, "a")
    cluster.faults.handle("lock", freeze)
    consumer = await group.join(client=impatient(cluster))
    await frozen.wait()
    await consumer.close()
    kept = owner(cluster)
    broker.resume()

    assert kept == consumer.client.client_id
    await until(lambda: owner(cluster) is None, "the unlock")
    await group.join()
    await group.drained()


async def test_a_lock_that_was_granted_too_late_is_unlocked_after_unsubscribe(
    cluster: FakeCluster, group: Group
) -> None:
    put(cluster, "a")
    with cluster.faults.drop("lock", times=None):
        consumer = await group.join(client=impatient(cluster))
        await cluster.broker.wait_for(LOCK, 1)
        await consumer.unsubscribe(TOPIC)
    await until(lambda: owner(cluster) is None, "the unlock")
    await consumer.subscribe(TOPIC)
    await group.drained()


# --- lost locks ----------------------------------------------------------------------------------


EXPIRY = LEASE_SECONDS + 1  # the broker still has the lock


def give_to_another(cluster: FakeCluster, queue_id: int = 0) -> Callable[[], None]:
    """Assign a queue to another member; return a function that takes it back."""
    owners = cluster.broker.locks.owners[GROUP]
    owners[queue(queue_id)] = ("somebody-else", asyncio.get_running_loop().time())
    return lambda: owners.pop(queue(queue_id), None) and None


def refuse_renewals(cluster: FakeCluster) -> Callable[[], None]:
    return cluster.faults.refuse("lock", ResponseCode.SYSTEM_BUSY, times=None).remove


def drop_renewals(cluster: FakeCluster) -> Callable[[], None]:
    return cluster.faults.drop("lock", executed=False, times=None).remove


def reset_on_renewals(cluster: FakeCluster) -> Callable[[], None]:
    return cluster.faults.reset("lock", executed=False, times=None).remove


async def handling(
    cluster: FakeCluster,
    group: Group,
    **settings: Any,  # noqa: ANN401 - those of PushConfig
) -> tuple[PushConsumer, Gate]:
    """Return a member that handles message 3 of 10 in queue 0, until its gate is opened."""
    gate = Gate()
    put(cluster, *numbers(10))
    consumer = await group.join(gate, **settings)
    await gate.reached.wait()
    return consumer, gate


async def expire(group: Group, consumer: PushConsumer) -> None:
    """Let the leases of *consumer* expire, and wait until it notices."""
    let_time_pass(consumer, EXPIRY)
    await until(
        lambda: queue(0) in {each.queue for each in group.events_of(LeaseLost)}, "the event"
    )


@pytest.mark.usefixtures("quick_locks")
@pytest.mark.parametrize(
    "lose", [give_to_another, refuse_renewals, drop_renewals, reset_on_renewals]
)
async def test_a_lost_lock_stops_delivery_and_commits_immediately(
    cluster: FakeCluster,
    proxy: FaultProxy,
    group: Group,
    lose: Callable[[FakeCluster], Callable[[], None]],
) -> None:
    client = proxied_config(proxy, cluster)
    consumer, gate = await handling(cluster, group, client=client, commit_interval_seconds=60.0)
    shorten_timeout(consumer.client)
    asked = len(cluster.broker.requests_of(LOCK))
    find = lose(cluster)
    await cluster.broker.wait_for(LOCK, asked + 1)
    await expire(group, consumer)
    gate.open.set()
    await group.have("3")
    assert group.handled() == numbers(4)
    assert cluster.broker.committed(GROUP, TOPIC, 0) is None, "nothing of it was committed"

    find()
    await group.have(*numbers(10))
    await consumer.close()
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 10


@pytest.mark.usefixtures("quick_locks")
@pytest.mark.parametrize("lose", [refuse_renewals, drop_renewals, reset_on_renewals])
async def test_a_queue_goes_on_where_it_stopped_when_its_expired_lock_is_granted_again(
    cluster: FakeCluster,
    proxy: FaultProxy,
    group: Group,
    lose: Callable[[FakeCluster], Callable[[], None]],
) -> None:
    client = proxied_config(proxy, cluster)
    consumer, gate = await handling(cluster, group, client=client, commit_interval_seconds=60.0)
    shorten_timeout(consumer.client)
    find = lose(cluster)
    await expire(group, consumer)
    gate.open.set()
    await group.have("3")
    find()
    await group.have(*numbers(10))

    assert group.handled() == numbers(10), "nothing is repeated"
    assert revoked(group) == set()
    assert queue(0) in {each.queue for each in group.events_of(LeaseRegained)}
    await consumer.close()
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 10


@pytest.mark.usefixtures("quick_locks")
async def test_a_queue_starts_anew_if_another_member_has_committed_more_meanwhile(
    cluster: FakeCluster, group: Group
) -> None:
    consumer, gate = await handling(cluster, group)
    find = refuse_renewals(cluster)
    await expire(group, consumer)
    cluster.broker.state.commit(GROUP, TOPIC, 0, 7)
    find()
    await until(lambda: queue(0) in revoked(group), "the revocation")
    gate.open.set()
    await group.have("7", "8", "9")

    assert [each for each in group.handled() if each in "456"] == []
    await group.drained()
    group.unchecked |= {"I9", "I10"}  # the other member's handlers are not recorded


@pytest.mark.usefixtures("quick_locks")
async def test_a_queue_waits_until_its_committed_offset_is_known(
    cluster: FakeCluster, group: Group
) -> None:
    consumer, gate = await handling(cluster, group)
    find = refuse_renewals(cluster)
    await expire(group, consumer)
    unknown = cluster.faults.refuse(
        RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_BUSY, times=None
    )
    find()
    await cluster.broker.wait_for(RequestCode.QUERY_CONSUMER_OFFSET, 6)
    gate.open.set()
    await group.have("3")
    paused = group.handled()
    unknown.remove()
    await group.have(*numbers(10))

    assert paused == numbers(4)
    assert group.handled() == numbers(10)
    await group.drained()


@pytest.mark.usefixtures("quick_locks")
async def test_a_queue_whose_lock_has_expired_can_be_unsubscribed_and_subscribed_again(
    cluster: FakeCluster, group: Group
) -> None:
    consumer, gate = await handling(cluster, group)
    find = refuse_renewals(cluster)
    await expire(group, consumer)
    await consumer.unsubscribe(TOPIC)
    await consumer.subscribe(TOPIC)
    find()
    gate.open.set()
    await group.have(*numbers(10))
    await group.drained()


@pytest.mark.usefixtures("quick_locks")
async def test_a_member_that_comes_back_after_another_took_its_queue_gives_it_up(
    cluster: FakeCluster, group: Group
) -> None:
    # Closing waits for handlers; a queue without its lock does not.
    consumer, gate = await handling(cluster, group, close_timeout_seconds=100.0)
    find = give_to_another(cluster)
    let_time_pass(consumer)
    await until(lambda: queue(0) in revoked(group), "the revocation")
    find()
    gate.open.set()
    await group.have(*numbers(10))

    assert len([each for each in group.events_of(LeaseLost) if each.queue == queue(0)]) == 1
    await group.drained()


@pytest.mark.usefixtures("quick_locks")
async def test_locks_are_renewed_while_a_handler_runs(cluster: FakeCluster, group: Group) -> None:
    consumer, gate = await handling(cluster, group)
    for _ in range(10):  # a third of a lease each
        asked = len(cluster.broker.requests_of(LOCK))
        await cluster.broker.wait_for(LOCK, asked + 3)  # the first one has its response by then
        let_time_pass(consumer, LEASE_SECONDS / 3)
    gate.open.set()
    await group.drained()

    assert group.events_of(LeaseLost) == []
    assert group.handled() == numbers(10)


@pytest.mark.usefixtures("quick_locks")
async def test_queues_whose_locks_another_member_has_are_revoked_together(
    cluster: FakeCluster, group: Group
) -> None:
    """Revoked one by one, each would wait for the response of the broker, and so would the rest."""
    put(cluster, "0")
    consumer = await group.join()
    await group.have("0")
    await group.at_rest()
    held = consumer.assignment()
    find = [give_to_another(cluster, each.queue_id) for each in held]
    let_time_pass(consumer)
    [request, *_] = await cluster.broker.wait_for(UNLOCK, 1)

    assert len(json.loads(request.body)["mqSet"]) == len(held) > 1
    for each in find:
        each()
    await group.drained()


# --- rebalances while handlers run ---------------------------------------------------------------


def revoked(group: Group) -> set[MessageQueue]:
    return {each for event in group.events_of(QueuesRevoked) for each in event.queues}


async def test_a_queue_is_unlocked_only_after_its_handler_has_ended(
    cluster: FakeCluster, group: Group
) -> None:
    gates = [Gate("3"), Gate("b3")]
    put(cluster, *numbers(10))
    put(cluster, *(f"b{number}" for number in range(10)), queue_id=1)

    async def behave(message: MessageExt) -> None:
        for gate in gates:
            await gate(message)

    first = await group.join(behave, close_timeout_seconds=0.1)
    for gate in gates:
        await gate.reached.wait()
    second = await group.join()
    await until(lambda: revoked(group) & {queue(0), queue(1)}, "a queue to be given up")
    (moved,) = revoked(group) & {queue(0), queue(1)}
    await cluster.broker.wait_for(LOCK, len(cluster.broker.requests_of(LOCK)) + 3)
    assert cluster.broker.locks.owner(GROUP, moved) == first.client.client_id
    assert moved not in second.assignment()

    for gate in gates:
        gate.open.set()
    await until(lambda: moved in second.assignment(), "the queue to be taken on")
    await group.at_rest()
    await group.drained()


async def test_reassigned_queue_waits_for_the_handler_of_its_last_assignment(
    cluster: FakeCluster, group: Group
) -> None:
    gate = Gate()
    put(cluster, *numbers(10))
    first = await group.join(gate, close_timeout_seconds=0.05)
    await gate.reached.wait()
    await first.unsubscribe(TOPIC)
    await first.subscribe(TOPIC)
    await until(lambda: len(first.assignment()) >= 2, "the queues to be back")
    put(cluster, "b", queue_id=1)
    await group.have("b")
    assert "4" not in group.handled()
    gate.open.set()
    await group.drained()

    assert owner(cluster) == first.client.client_id


async def test_unlock_waits_for_handlers_of_earlier_assignments(
    cluster: FakeCluster, group: Group
) -> None:
    gate = Gate()
    put(cluster, *numbers(10))
    consumer = await group.join(gate, close_timeout_seconds=0.05)
    await gate.reached.wait()
    for _ in range(2):
        await consumer.unsubscribe(TOPIC)
        assert owner(cluster) == consumer.client.client_id
        await consumer.subscribe(TOPIC)
        await until(lambda: len(consumer.assignment()) >= 2, "the queues to be back")
    await consumer.unsubscribe(TOPIC)
    assert owner(cluster) == consumer.client.client_id
    assert owner(cluster, 1) is None

    gate.open.set()
    await until(lambda: owner(cluster) is None, "the lock to be given back")


async def test_a_handler_that_ends_on_revocation_releases_the_lock(
    cluster: FakeCluster, group: Group
) -> None:
    """The handler ends between the release of its queue and the first step of the waiting task."""
    gate = Gate()

    def open_gate(event: object) -> None:
        if isinstance(event, QueuesRevoked):
            gate.open.set()

    put(cluster, *numbers(10))
    consumer = await group.join(gate, close_timeout_seconds=0.05, on_event=open_gate)
    await gate.reached.wait()
    await consumer.unsubscribe(TOPIC)

    await until(lambda: owner(cluster) is None, "the lock to be given back")


CLOSERS: dict[str, Callable[[PushConsumer], Coroutine[Any, Any, None]]] = {
    "close": lambda consumer: consumer.close(),
    "unsubscribe": lambda consumer: consumer.unsubscribe(TOPIC),
}


@pytest.mark.parametrize("how", CLOSERS)
async def test_close_unlocks_after_the_handler_has_ended(
    cluster: FakeCluster, group: Group, how: str
) -> None:
    consumer, gate = await handling(cluster, group)
    leaving = asyncio.create_task(CLOSERS[how](consumer))
    await until(lambda: queue() not in consumer.assignment(), "the queue to be left")
    assert owner(cluster) == consumer.client.client_id
    gate.open.set()
    await leaving

    assert group.handled() == numbers(4)
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 4
    await until(lambda: owner(cluster) is None, "the lock to be given back")


async def test_a_handler_over_the_drain_timeout_is_cancelled_before_unlock(
    cluster: FakeCluster, group: Group
) -> None:
    gate = Gate()
    put(cluster, *numbers(10))
    consumer = await group.join(gate, close_timeout_seconds=0.1)
    await gate.reached.wait()
    await consumer.close()

    assert group.handled(Outcome.UNKNOWN) == ["3"]
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 3
    assert owner(cluster) is None


async def test_a_handler_thread_that_outlives_its_consumer_keeps_the_lock(
    cluster: FakeCluster,
) -> None:
    reached, let_go = threading.Event(), threading.Event()

    def behave(_message: MessageExt) -> None:
        reached.set()
        let_go.wait(10)

    put(cluster, *numbers(3))
    consumer = PushConsumer(
        GROUP,
        on_message=behave,
        orderly=True,
        client=ClientConfig(namesrv=cluster.namesrv),
        config=PushConfig(start_from="earliest", close_timeout_seconds=0.1),
    )
    await consumer.subscribe(TOPIC)
    await consumer.start()
    await until(reached.is_set, "the handler to begin")
    await consumer.close()
    kept = owner(cluster), owner(cluster, 1)
    let_go.set()

    assert kept == (consumer.client.client_id, None)
    assert cluster.broker.committed(GROUP, TOPIC, 0) in (None, 0)
    await until(lambda: not [t for t in threading.enumerate() if GROUP in t.name], "the thread")


@pytest.mark.usefixtures("quick_locks")
async def test_lease_that_expires_during_its_renewal_is_lost(
    cluster: FakeCluster, group: Group
) -> None:
    """Otherwise no task would wait for its queue, which was skipped meanwhile."""
    gate = Gate()
    put(cluster, *numbers(10))
    consumer = await group.join(gate, pull_threshold_per_queue=5)
    await gate.reached.wait()
    held = cluster.faults.hold("lock", times=None)
    await held.wait(1)
    locks = consumer._engine.locks
    assert locks is not None
    let_time_pass(consumer)
    assert not locks.holds(queue())
    gate.open.set()
    while "3" not in group.handled():  # noqa: ASYNC110 - likewise
        await asyncio.sleep(0)
    held.remove()
    held.release()

    await group.have(*numbers(10))
    await group.drained()
