"""LitePullConsumer groups on a real broker: joins, departures and deaths of processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic

import psutil  # type: ignore[import-untyped]  # it has no stubs
import pytest
import pytest_asyncio

from rocketmq_aio.admin.client import AdminClient
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.errors import ClosedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import bodies, consumer_of, consuming, numbers, polled, send
from tests.broker.workers import worker
from tests.unit.remoting.until import until, until_done

QUEUES = 16
SETTLE_SECONDS = 10.0  # usually 0.5; a member without a change notice rebalances after 20
Recorder = Callable[[str, object], None]
BATCH = 10  # batch size: the possible duplicates when a member leaves
MIB = 1024 * 1024


@pytest.fixture
def namesrv(rocketmq_namesrv: str) -> str:
    return rocketmq_namesrv


@pytest.fixture
def group(rocketmq_group: str) -> str:
    return rocketmq_group


@pytest.fixture
def topic(rocketmq_cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"{rocketmq_group[:100]}-16"
    rocketmq_cluster.create_topic(name, queues=QUEUES)
    yield name
    rocketmq_cluster.delete_topic(name)


@pytest.mark.parametrize("short", [False, True])
async def test_a_group_that_joins_leaves_the_other_groups_of_its_client_registered(
    namesrv: str, group: str, topic: str, *, short: bool
) -> None:
    config = ClientConfig(namesrv=namesrv, heartbeat_v2=short)
    later = f"{group}-later"
    async with (
        MQClientInstance(config) as client,
        AdminClient(client=client) as admin,
        LitePullConsumer(group, client=client) as first,
        LitePullConsumer(later, client=client) as second,
    ):
        await first.subscribe(topic, "paid")
        await second.subscribe(topic, "sent")
        joined = {each: await admin.groups.connections(each) for each in (group, later)}
        await second.unsubscribe(topic)
        await client.heartbeats.send_all()  # as the regular one
        seen = await admin.groups.connections(group)
        await second.close()
        left = {each: await admin.groups.connections(each) for each in (group, later)}

    for connections in (joined[group], joined[later], seen, left[group]):
        assert [each.client_id for each in connections.members] == [client.client_id]
    assert not left[later].online
    expressions = [
        {each.topic: each.expression for each in connections.subscriptions}.get(topic)
        for connections in (joined[group], joined[later], seen, left[group])
    ]
    assert expressions == ["paid", "sent", "paid", "paid"]


@dataclass
class Member:
    """A member in this process that polls continuously."""

    consumer: LitePullConsumer
    taken: list[MessageExt] = field(default_factory=list)

    async def work(self) -> None:
        try:
            while True:
                self.taken += await self.consumer.poll(60, BATCH)
        except ClosedError:
            return


class Members:
    """The members of a group in this process."""

    def __init__(self, namesrv: str, group: str, topic: str) -> None:
        self.present: list[Member] = []
        self.gone: list[Member] = []
        self._to = (namesrv, group, topic)
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        namesrv, group, topic = self._to
        member = Member(consumer_of(namesrv, group, commit_interval_seconds=0.1))
        await member.consumer.subscribe(topic)
        await member.consumer.start()
        self.present.append(member)
        self._tasks.append(asyncio.create_task(member.work()))

    async def leave(self) -> None:
        member = self.present.pop(0)
        self.gone.append(member)
        await member.consumer.close()

    async def settle(self, queues: int = QUEUES) -> float:
        """Return the time until each of *queues* has one owner."""
        began = monotonic()
        await until(lambda: self._shared(queues), "one owner a queue", 10 * SETTLE_SECONDS)
        return monotonic() - began

    def _shared(self, queues: int) -> bool:
        held = [each.consumer.assignment() for each in self.present]
        every = Counter(queue for queues in held for queue in queues)
        sizes = sorted(map(len, held))
        return len(every) == queues == every.total() and sizes[-1] - sizes[0] <= 1

    def copies(self) -> Counter[tuple[int, int]]:
        members = self.present + self.gone
        return Counter((m.queue.queue_id, m.queue_offset) for each in members for m in each.taken)

    async def close(self) -> None:
        while self.present:
            await self.leave()
        await asyncio.gather(*self._tasks)


@pytest_asyncio.fixture
async def members(namesrv: str, group: str, topic: str) -> AsyncIterator[Members]:
    members = Members(namesrv, group, topic)
    yield members
    await members.close()


class Sending:
    """Sends numbered messages during its block; *where* has the place of each."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.where: list[tuple[int, int]] = []
        self._producer = Producer("feeding", namesrv=namesrv)
        self._topic = topic
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Sending:
        await self._producer.start()
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._producer.close()

    async def _send(self) -> None:
        while True:
            body = b"%d" % len(self.where)
            result = await self._producer.send(Message(self._topic, body))
            self.where.append((result.queue.queue_id, result.queue_offset))
            await asyncio.sleep(0.001)


async def test_joining_and_leaving_members_rebalance_soon_without_loss(
    namesrv: str, topic: str, members: Members, record_property: Recorder
) -> None:
    took = []
    async with Sending(namesrv, topic) as sending:
        for _ in range(3):
            await members.join()
            took.append(await members.settle())
        for _ in range(2):
            await members.leave()
            took.append(await members.settle())
        await until(lambda: len(sending.where) > 300, "some load", 60)
    await until(lambda: set(members.copies()) >= set(sending.where), "all messages", 60)

    record_property("settled_seconds", [round(each, 2) for each in took])
    assert max(took) < SETTLE_SECONDS
    again = members.copies().total() - len(members.copies())
    assert again <= len(took) * 3 * BATCH


async def test_messages_processed_before_a_revocation_are_not_redelivered(
    namesrv: str, topic: str, members: Members
) -> None:
    await members.join()
    await send(namesrv, topic, numbers(200))
    await until(lambda: members.copies().total() == 200, "all messages", 60)
    await members.join()
    await members.settle()
    await send(namesrv, topic, numbers(50))
    await until(lambda: len(members.copies()) == 250, "all messages", 60)

    assert max(members.copies().values()) == 1


async def test_queues_of_a_killed_member_are_reassigned_soon_without_loss(
    namesrv: str, topic: str, group: str, members: Members, record_property: Recorder
) -> None:
    await members.join()
    async with worker(namesrv, group, topic, BATCH) as victim:
        await members.settle(QUEUES // 2)
        async with Sending(namesrv, topic) as sending:
            await until(lambda: len(victim.got) > 100, "work for the victim", 60)
            await victim.kill()
            took = await members.settle()
    by_victim = {(number, offset) for number, offset, _ in victim.got}
    await until(lambda: set(members.copies()) | by_victim >= set(sending.where), "all messages", 60)

    record_property("settled_seconds", round(took, 2))
    assert took < SETTLE_SECONDS
    assert max(members.copies().values()) == 1


async def test_uncommitted_messages_of_a_killed_consumer_are_redelivered(
    namesrv: str, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    await send(namesrv, topic, numbers(100), queue=queue)
    async with (
        consumer_of(namesrv, f"{group}-observer") as observer,
        worker(namesrv, group, topic, 10, 45) as victim,
    ):
        await until(lambda: len(victim.got) >= 45, "half of the messages", 60)
        settled = len(victim.got) - len(victim.batches[-1])
        store = RemoteOffsetStore(observer.client.broker, group)
        await observer.message_queues(topic)
        await until_done(lambda: is_committed(store, queue, settled), "the commit", 60)
        await victim.kill()
    async with consuming(namesrv, group, topic) as consumer:
        taken = bodies(await polled(consumer, 100 - settled))

    assert [body for _, _, body in victim.got] == numbers(len(victim.got))
    assert taken == numbers(100 - settled, first=settled)


async def is_committed(store: RemoteOffsetStore, queue: MessageQueue, offset: int) -> bool:
    return await store.read(queue) == offset


async def test_an_idle_consumer_uses_almost_no_cpu(
    namesrv: str, topic: str, group: str, record_property: Recorder
) -> None:
    async with worker(namesrv, group, topic) as idle:
        assert idle.queues == QUEUES
        process = psutil.Process(idle.process.pid)
        before, began = process.cpu_times(), monotonic()
        await until(lambda: monotonic() - began >= 4, "a while", 60)
        after, seconds = process.cpu_times(), monotonic() - began
        resident = process.memory_info().rss / MIB
    share = (after.user + after.system - before.user - before.system) / seconds
    record_property("idle_cpu_share", round(share, 4))
    record_property("idle_rss_mib", round(resident, 1))

    assert share < 0.03
    assert resident < 90
