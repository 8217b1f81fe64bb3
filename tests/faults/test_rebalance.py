"""Rebalances with joining, leaving and dying members: one owner per queue, few duplicates."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import msgspec
import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.group import group_engine
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.rebalance import rebalancer as rebalance_module
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import ClosedError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumerList
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.requests.from_broker import NotifyConsumerIdsChanged
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.fakes.stopwatch import Stopwatch
from tests.faults.load import Sender
from tests.faults.proxied import proxied_config
from tests.unit.consumer.lite_pull_env import (
    GROUP,
    TOPIC,
    committed,
    consumer_of,
    consuming,
    numbers,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

QUEUES: Final = 16
SETTLE_SECONDS: Final = 2.0
MEMBERS_OF_GROUP: Final = RequestCode.GET_CONSUMER_LIST_BY_GROUP
BATCH: Final = 5


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={TOPIC: QUEUES}) as cluster:
        yield cluster


@pytest.fixture
def late_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine delays the commits of the former owner, too."""
    monkeypatch.setattr(group_engine, "TAKEOVER_DELAY_SECONDS", 3.0)


@dataclass
class Worker:
    """A member that polls continuously and records the messages."""

    consumer: LitePullConsumer
    taken: list[MessageExt] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def work(self) -> None:
        while True:
            try:
                self.taken += await self.consumer.poll(60, max_messages=BATCH)
            except ClosedError:
                return

    async def start(self) -> None:
        await self.consumer.subscribe(TOPIC)
        await self.consumer.start()
        self.task = asyncio.create_task(self.work())

    async def leave(self) -> None:
        await self.consumer.close()
        if self.task is not None:
            await self.task


class Crowd:
    """The members of one group and all messages they received."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.present: list[Worker] = []
        self.gone: list[Worker] = []
        self.tenures: Counter[MessageQueue] = Counter()

    async def join(self) -> Worker:
        worker = Worker(
            consumer_of(
                self.cluster,
                listeners={"on_assigned": self.tenures.update},
                commit_interval_seconds=0.05,
            )
        )
        await worker.start()
        self.present.append(worker)
        return worker

    async def leave(self, worker: Worker) -> None:
        self.present.remove(worker)
        self.gone.append(worker)
        await worker.leave()

    def owners(self) -> dict[MessageQueue, int]:
        return Counter(q for each in self.present for q in each.consumer.assignment())

    def settled(self) -> bool:
        sizes = sorted(len(each.consumer.assignment()) for each in self.present)
        owners = self.owners()
        every = {queue(number): 1 for number in range(QUEUES)}
        return owners == every and sizes[-1] - sizes[0] <= 1

    async def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        await until(self.settled, f"one owner a queue, now {self.owners()}", seconds)

    def copies(self) -> Counter[tuple[int, int]]:
        workers = self.present + self.gone
        return Counter((m.queue.queue_id, m.queue_offset) for w in workers for m in w.taken)

    async def got_everything(self, sent: int) -> None:
        await until(lambda: len(self.copies()) == sent, f"all {sent} messages")

    async def close(self) -> None:
        for worker in list(self.present):
            await self.leave(worker)


@pytest_asyncio.fixture
async def crowd(cluster: FakeCluster) -> AsyncIterator[Crowd]:
    crowd = Crowd(cluster)
    yield crowd
    await crowd.close()


# --- join, leave, die ----------------------------------------------------------------------------


async def test_joins_and_departures_lose_nothing_and_rebalance_soon(
    cluster: FakeCluster, crowd: Crowd
) -> None:
    sender = Sender(cluster, QUEUES)
    sending = asyncio.create_task(sender.keep_sending())
    for _ in range(3):
        await crowd.join()
        await crowd.settle()
    for _ in range(2):
        await crowd.leave(crowd.present[0])
        await crowd.settle()
    sending.cancel()
    await crowd.got_everything(sender.sent)

    again = sum(count - 1 for count in crowd.copies().values())
    changes, members = 5, 3
    assert again <= changes * members * BATCH, "more came twice than was in flight"


async def test_queues_of_a_dead_member_are_reassigned_soon_without_loss(
    cluster: FakeCluster, crowd: Crowd
) -> None:
    async with FaultProxy(cluster.broker.address) as proxy:
        client = ClientConfig(namesrv=cluster.namesrv, address_mapper=proxy.map_address)
        victim = Worker(consumer_of(cluster, client=client))
        await crowd.join()
        await victim.start()
        crowd.present.append(victim)
        await crowd.settle()
        sender = Sender(cluster, QUEUES)
        sender.send(10 * QUEUES)
        await until(lambda: len(victim.taken) >= QUEUES)
        crowd.present.remove(victim)
        crowd.gone.append(victim)
        proxy.refuse()
        proxy.cut(reset=True)
        sender.send(10 * QUEUES)
        await crowd.settle()
        await crowd.got_everything(sender.sent)
        await victim.leave()


async def test_constant_joins_and_leaves_lose_nothing(cluster: FakeCluster, crowd: Crowd) -> None:
    choose = random.Random(5)
    sender = Sender(cluster, QUEUES)
    sending = asyncio.create_task(sender.keep_sending())
    for _ in range(3):
        await crowd.join()
    for _ in range(12):
        if len(crowd.present) < 2 or (len(crowd.present) < 5 and choose.random() < 0.5):
            await crowd.join()
        else:
            await crowd.leave(choose.choice(crowd.present))
        await asyncio.sleep(choose.random() * 0.1)
    sending.cancel()
    await crowd.settle(2 * SETTLE_SECONDS)
    await crowd.got_everything(sender.sent)

    copies = crowd.copies()
    assert max(copies.values()) <= max(crowd.tenures.values())


async def test_members_that_start_together_agree(cluster: FakeCluster, crowd: Crowd) -> None:
    with Stopwatch() as passed:
        await asyncio.gather(*(crowd.join() for _ in range(5)))
        await crowd.settle()

    assert passed.seconds < SETTLE_SECONDS + 1


async def test_group_with_more_members_than_queues_reaches_an_assignment() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster, AsyncExitStack() as stack:
        members = []
        for _ in range(4):
            members.append(consumer_of(cluster))
            await stack.enter_async_context(members[-1])
            await members[-1].subscribe(TOPIC)

        def held() -> list[int]:
            return sorted(len(each.assignment()) for each in members)

        await until(lambda: held() == [0, 0, 1, 1])
        owners = [each for each in members if each.assignment()]
        await asyncio.gather(*(each.close() for each in owners))
        await until(lambda: held() == [0, 0, 1, 1])


# --- revocation ----------------------------------------------------------------------------------


async def test_committed_messages_are_not_redelivered_to_the_next_owner(
    cluster: FakeCluster, crowd: Crowd, late_takeover: None
) -> None:
    sender = Sender(cluster, QUEUES)
    sender.send(20 * QUEUES)
    await crowd.join()
    await crowd.got_everything(sender.sent)
    await crowd.join()
    await crowd.settle()
    sender.send(QUEUES)
    await crowd.got_everything(sender.sent)

    assert max(crowd.copies().values()) == 1


async def test_slow_member_causes_duplicates_only_of_messages_in_flight(
    cluster: FakeCluster, late_takeover: None
) -> None:
    for number in range(QUEUES):
        put(cluster, *numbers(10), queue_id=number)
    async with consuming(cluster, commit_interval_seconds=60) as slow:
        done = Counter(message.queue for message in await polled(slow, 100, max_messages=10))
        await slow.poll(5, max_messages=7)
        async with consuming(cluster) as other:
            await until(lambda: len(other.assignment()) == QUEUES // 2)
            begins = {each: await other.position(each) for each in other.assignment()}

    assert begins == {each: done[each] for each in begins}


async def test_progress_is_committed_at_the_notification_that_members_changed(
    cluster: FakeCluster,
) -> None:
    """Members of other clients read the offsets of their new queues without a wait."""
    put(cluster, *numbers(11))
    async with consuming(cluster, commit_interval_seconds=3600) as consumer:
        await polled(consumer, 10, max_messages=10)
        await polled(consumer, 1)
        with cluster.faults.hold("members", times=None) as shares_are_unknown:
            cluster.broker._notify_members(GROUP, list(cluster.broker.connections))
            await committed(cluster, {0: 10})
            await shares_are_unknown.wait()
            shares_are_unknown.release()


# --- incomplete member lists ---------------------------------------------------------------------


def members(*client_ids: str) -> Response:
    return Response(body=msgspec.json.encode(ConsumerList(consumer_id_list=list(client_ids))))


@pytest.mark.parametrize(
    "answer",
    [members(), members("somebody-else"), Response(ResponseCode.SYSTEM_ERROR, remark="down")],
    ids=["empty", "without us", "error"],
)
async def test_queues_are_kept_while_the_broker_does_not_list_the_member(
    cluster: FakeCluster, answer: Response
) -> None:
    async with consuming(cluster) as consumer:
        before = dict(consumer._engine.table)
        cluster.faults.handle("members", answer, times=None)
        asked = len(cluster.broker.requests_of(MEMBERS_OF_GROUP))
        consumer._engine.on_members_changed()
        await cluster.broker.wait_for(MEMBERS_OF_GROUP, asked + 2)
        put(cluster, "a")

        assert len(await polled(consumer, 1)) == 1
        assert consumer._engine.table == before


async def _assigned(consumer: LitePullConsumer, count: int) -> None:
    await until(lambda: len(consumer.assignment()) == count, f"{count} queues")


async def test_unstable_member_list_does_not_move_other_queues(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        kept = {queue(number): consumer._engine.table[queue(number)] for number in range(8)}
        us = consumer.client.client_id
        for number in range(6):
            others = ["zzz"] if number % 2 == 0 else []
            cluster.faults.handle("members", members(us, *others))
            asked = len(cluster.broker.requests_of(MEMBERS_OF_GROUP))
            consumer._engine.on_members_changed()
            await cluster.broker.wait_for(MEMBERS_OF_GROUP, asked + 1)
            await _assigned(consumer, 8 if others else QUEUES)

        assert {each: consumer._engine.table[each] for each in kept} == kept


async def test_many_notifications_cause_few_rounds(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        asked = len(cluster.broker.requests_of(MEMBERS_OF_GROUP))
        began = monotonic()
        notice = NotifyConsumerIdsChanged(consumer_group=GROUP)
        for _ in range(1000):
            cluster.broker._notify_members(notice.consumer_group, list(cluster.broker.connections))
        put(cluster, "a")
        assert len(await polled(consumer, 1)) == 1
        await cluster.broker.wait_for(MEMBERS_OF_GROUP, asked + 1)
        rounds = len(cluster.broker.requests_of(MEMBERS_OF_GROUP)) - asked

        assert rounds <= 2 + (monotonic() - began) * 10


async def test_members_register_again_with_a_restarted_broker_and_keep_queues(
    cluster: FakeCluster, crowd: Crowd
) -> None:
    for _ in range(2):
        await crowd.join()
    await crowd.settle()
    await cluster.broker.restart()
    groups = cluster.broker.members.groups
    await until(lambda: GROUP in groups and len(groups[GROUP].members) == 2)
    await crowd.settle()
    sender = Sender(cluster, QUEUES)
    sender.send(5 * QUEUES)

    await crowd.got_everything(sender.sent)


async def test_the_first_member_to_reconnect_does_not_take_the_queues_of_the_others(
    cluster: FakeCluster, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "RECONNECTION_SECONDS", 3600.0)
    slow = proxied_config(proxy, cluster)
    async with consuming(cluster) as consumer, consuming(cluster, client=slow) as other:
        await _assigned(consumer, QUEUES // 2)
        await _assigned(other, QUEUES // 2)
        kept = consumer.assignment()
        proxy.refuse()
        proxy.cut()
        await cluster.broker.restart()
        groups = cluster.broker.members.groups
        asked = len(cluster.broker.requests_of(MEMBERS_OF_GROUP))
        await until(lambda: GROUP in groups, "the heartbeat")
        await cluster.broker.wait_for(MEMBERS_OF_GROUP, asked + 3)
        assert len(groups[GROUP].members) == 1
        assert consumer.assignment() == kept

        await proxy.accept()
        await until(lambda: len(groups[GROUP].members) == 2, "both members")
        put(cluster, "a")
        put(cluster, "b", queue_id=QUEUES - 1)
        taken = [*await polled(consumer, 1), *await polled(other, 1)]
        assert sorted(each.body for each in taken) == [b"a", b"b"]
