"""Groups of push consumers with joining and leaving members: one owner, few duplicates."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from rocketmq_aio.consumer.common.events import QueuesRevoked
from rocketmq_aio.consumer.group.group_engine import TAKEOVER_DELAY_SECONDS
from rocketmq_aio.model.message import MessageExt
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.fakes.stopwatch import Stopwatch
from tests.faults.load import Sender
from tests.faults.proxied import proxied_config
from tests.faults.pushing import SOON, Group, group_of, in_both_ways
from tests.faults.test_push import once
from tests.history import Fault, Outcome
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

QUEUES = 8


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={TOPIC: QUEUES}) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def local_retries_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.push.concurrent.LOCAL_RETRY_SECONDS", SOON)


async def briefly(_message: MessageExt) -> None:
    await asyncio.sleep(0.001)


@asynccontextmanager
async def standing_still() -> AsyncIterator[Stopwatch]:
    with Stopwatch() as passed:
        yield passed


@in_both_ways
async def test_a_joining_and_leaving_member_loses_nothing(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with group_of(cluster, orderly=orderly) as group, standing_still() as passed:
        sender = Sender(cluster, QUEUES)
        sending = asyncio.create_task(sender.keep_sending())
        await group.join(briefly)
        await until(lambda: len(group.handled()) > QUEUES)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(4):
            await visit(group)
        group.history.fault = Fault(started=started, healed=loop.time(), observed=True)
        sender.send(QUEUES)
        sending.cancel()
        await group.have(*numbers(sender.sent))
        await group.at_rest()
        await group.drained()
        group.history.work = [run.started for run in group.history.handled]

        twice = len(group.handled()) - sender.sent
        # A member stalled for long cannot commit before another one starts.
        assert twice == 0 or passed.longest > TAKEOVER_DELAY_SECONDS / 3, (
            "all were handed over in peace"
        )


async def visit(group: Group) -> None:
    """Join, consume and leave."""
    member = await group.join(briefly)
    await until(lambda: _has_handled(group, member.client.client_id), "its share")
    await member.close()


def _has_handled(group: Group, consumer: str) -> bool:
    return any(run.consumer == consumer for run in group.history.handled)


@in_both_ways
async def test_constantly_changing_members_lose_nothing(
    cluster: FakeCluster, orderly: bool
) -> None:
    choose = random.Random(7)
    async with group_of(cluster, orderly=orderly) as group:
        sender = Sender(cluster, QUEUES)
        sending = asyncio.create_task(sender.keep_sending())
        present = [await group.join(once(ValueError, "5", "77")) for _ in range(2)]
        for _ in range(10):
            if len(present) < 2 or (len(present) < 4 and choose.random() < 0.5):
                present.append(await group.join(briefly))
            else:
                await present.pop(choose.randrange(len(present))).close()
            await asyncio.sleep(choose.random() * 0.1)
        sending.cancel()
        await group.have(*numbers(sender.sent))
        await group.at_rest()
        await group.drained()


@in_both_ways
async def test_member_that_dies_with_messages_in_flight_is_replaced(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with (
        FaultProxy(cluster.broker.address) as proxy,
        group_of(cluster, orderly=orderly) as group,
    ):
        cluster.broker.locks.kept_seconds = 1.0
        sender = Sender(cluster, QUEUES)
        victim = await group.join(briefly, client=proxied_config(proxy, cluster))
        await group.join(briefly)
        await group.at_rest()
        sender.send(10 * QUEUES)
        await until(lambda: _has_handled(group, victim.client.client_id))
        group.history.orderly.clear()  # its handlers continue after the cut, without locks
        proxy.refuse()
        proxy.cut(reset=True)
        sender.send(10 * QUEUES)
        group.history.owners = None
        await group.have(*numbers(sender.sent))
        await victim.close()
        group.members.remove(victim)
        await group.drained()


@in_both_ways
async def test_revocation_waits_for_the_running_handler(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with group_of(cluster, orderly=orderly) as group:
        let_go = asyncio.Event()

        async def behave(message: MessageExt) -> None:
            if message.body.startswith(b"slow"):
                await let_go.wait()

        for number in range(QUEUES):
            put(cluster, f"slow {number}", f"after {number}", queue_id=number)
        first = await group.join(behave, concurrency=2 * QUEUES)
        await until(lambda: len(group.history.handled) >= QUEUES)
        second = await group.join()
        await until(lambda: len(first.assignment()) < QUEUES)
        assert not group.events_of(QueuesRevoked), "they are waited for"
        let_go.set()
        await until(lambda: second.assignment(), "its share")
        await group.at_rest()
        await group.drained()

        assert len(group.handled()) == 2 * QUEUES, "something came twice"


async def test_revocation_does_not_wait_for_a_handler_longer_than_the_drain(
    cluster: FakeCluster,
) -> None:
    async with group_of(cluster) as group:
        let_go = asyncio.Event()

        async def behave(message: MessageExt) -> None:
            if message.body.startswith(b"slow"):
                await let_go.wait()

        for number in range(QUEUES):
            put(cluster, f"slow {number}", f"after {number}", queue_id=number)
        first = await group.join(behave, concurrency=2 * QUEUES, close_timeout_seconds=0.1)
        await until(lambda: len(group.history.handled) >= QUEUES)
        second = await group.join()
        await until(lambda: _has_handled(group, second.client.client_id), "its share")
        moved = {queue(number) for number in range(QUEUES)} - set(first.assignment())
        await until(lambda: all(_committed(cluster, each.queue_id) == 2 for each in moved))
        let_go.set()
        await group.at_rest()
        await group.drained()


def _committed(cluster: FakeCluster, queue_id: int) -> int | None:
    return cluster.broker.committed(GROUP, TOPIC, queue_id)


async def test_failure_after_revocation_is_left_to_the_next_owner(cluster: FakeCluster) -> None:
    async with group_of(cluster) as group:
        let_go = asyncio.Event()

        async def behave(message: MessageExt) -> None:
            await let_go.wait()
            raise ValueError

        put(cluster, "a")
        first = await group.join(behave, close_timeout_seconds=0.05)
        await until(lambda: group.history.handled)
        await first.unsubscribe(TOPIC)
        let_go.set()
        await until(lambda: group.handled(Outcome.FAIL))
        # When this response arrives, a sent back message would be at the broker, too.
        await first.client.broker.consumer_ids_at(GROUP, first.client.broker.any_broker(TOPIC))
        await first.close()
        await group.join()
        await group.have("a")
        await group.drained()

        assert [run.tries for run in group.history.handled] == [0, 0], "it was sent back, too"


@in_both_ways
async def test_unsubscribe_lets_running_handlers_finish(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with group_of(cluster, orderly=orderly) as group:
        let_go = asyncio.Event()

        async def behave(message: MessageExt) -> None:
            if message.body == b"a":
                await let_go.wait()

        put(cluster, "a", "b", "c")
        consumer = await group.join(behave, concurrency=1)
        await until(lambda: group.history.handled)
        leaving = asyncio.create_task(consumer.unsubscribe(TOPIC))
        await until(lambda: queue() not in consumer.assignment())
        let_go.set()
        await leaving

        assert group.handled() == ["a"]
        assert _committed(cluster, 0) == 1
        await consumer.subscribe(TOPIC)
        await group.drained()
        assert group.handled() == ["a", "b", "c"]


@in_both_ways
async def test_handler_can_unsubscribe_its_own_topic(cluster: FakeCluster, orderly: bool) -> None:
    kept: list[bool] = []
    async with group_of(cluster, orderly=orderly) as group:

        async def behave(message: MessageExt) -> None:
            if message.body == b"b":
                await asyncio.wait_for(consumer.unsubscribe(TOPIC), 5)
                kept.append(queue() in consumer.assignment())

        put(cluster, "a", "b", "c")
        consumer = await group.join(behave, concurrency=1, close_timeout_seconds=60.0)
        await group.have("a", "b")
        await until(lambda: queue() not in consumer._engine.table, "the revocation")

        assert group.handled() == ["a", "b"]
        assert kept == [False]
        assert _committed(cluster, 0) == 2


@in_both_ways
async def test_handler_can_unsubscribe_while_a_rebalance_waits_for_it(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with group_of(cluster, orderly=orderly) as group:
        go, left = asyncio.Event(), asyncio.Event()

        async def behave(message: MessageExt) -> None:
            await go.wait()
            await first.unsubscribe(TOPIC)
            left.set()

        put(cluster, "a")
        put(cluster, "b", queue_id=1)
        first = await group.join(behave, close_timeout_seconds=60.0)
        await until(lambda: len(group.history.handled) == 2)
        held = len(first.assignment())
        await group.join()
        await until(lambda: len(first.assignment()) < held, "the drain to begin")
        go.set()
        async with asyncio.timeout(15):
            await left.wait()
        await group.drained()

        assert sorted(group.handled()) == ["a", "b"]


@in_both_ways
async def test_handler_can_subscribe_again_what_it_unsubscribed(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with group_of(cluster, orderly=orderly) as group:

        async def behave(message: MessageExt) -> None:
            if message.body == b"a":
                await consumer.unsubscribe(TOPIC)
                await consumer.subscribe(TOPIC)

        put(cluster, "a", "b")
        consumer = await group.join(behave, concurrency=1, close_timeout_seconds=60.0)
        await group.have("a", "b")
        await group.drained()

        assert group.handled() == ["a", "b"]


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.FAIL], ids=["succeeds", "fails"])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_reassigned_queue_starts_no_second_handler_of_a_message_in_flight(
    cluster: FakeCluster, outcome: Outcome, times: int
) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def behave(message: MessageExt) -> None:
        if message.body == b"3" and not reached.is_set():
            reached.set()
            await go.wait()
            if outcome is Outcome.FAIL:
                raise ValueError("bad")

    def runs() -> int:
        return sum(run.body == b"3" for run in group.history.handled)

    async with group_of(cluster) as group:
        put(cluster, *numbers(10))
        consumer = await group.join(behave, close_timeout_seconds=0.05)
        await reached.wait()
        for number in range(times):
            await consumer.unsubscribe(TOPIC)
            await consumer.subscribe(TOPIC)
            body = f"b{number}"
            put(cluster, body)
            await group.have(body)
        assert runs() == 1
        assert cluster.broker.committed(GROUP, TOPIC, 0) == 3

        go.set()
        await group.drained()
        assert runs() == (1 if outcome is Outcome.OK else 2)
        assert "3" in group.handled()


async def test_a_message_sought_while_in_flight_is_handled_again_after_its_handler(
    cluster: FakeCluster,
) -> None:
    reached, go = asyncio.Event(), asyncio.Event()
    running = most = 0

    async def behave(message: MessageExt) -> None:
        nonlocal running, most
        if message.body == b"3":
            running += 1
            most = max(most, running)
            reached.set()
            await go.wait()
            running -= 1

    async with group_of(cluster) as group:
        put(cluster, *numbers(10))
        consumer = await group.join(behave)
        await reached.wait()
        await group.have(*(each for each in numbers(10) if each != "3"))
        # A commit on its way would be recorded after the reset.
        await committed(cluster, {0: 3})
        group.recorder.reset(GROUP, queue(), 2)
        await consumer.seek(queue(), 2)
        put(cluster, "b")
        await group.have("b")
        assert cluster.broker.committed(GROUP, TOPIC, 0) in (2, 3)

        go.set()
        await group.drained()
        assert sorted(each for each in group.handled() if each in "23") == ["2", "2", "3", "3"]
        assert most == 1
