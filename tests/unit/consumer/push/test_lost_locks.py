"""LostLocks: which queues go on after their locks were lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

import pytest
import pytest_asyncio

from rocketmq_aio.consumer.common.events import ConsumerEvent, LeaseLost, LeaseRegained
from rocketmq_aio.consumer.push import lost_locks as lost_locks_module
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.lost_locks import LostLocks
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

A, B, C = (MessageQueue("orders", "broker-a", number) for number in range(3))


class Store:
    """Has the offsets in *committed*; *before_read* is called before each read."""

    def __init__(self) -> None:
        self.committed: dict[MessageQueue, int] = {}
        self.before_read: Callable[[MessageQueue], Awaitable[None]] | None = None

    async def load(self) -> None:
        raise AssertionError

    async def read(self, queue: MessageQueue) -> int | None:
        if self.before_read is not None:
            await self.before_read(queue)
        return self.committed.get(queue)

    async def update(self, queue: MessageQueue, offset: int) -> None:
        raise AssertionError

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        raise AssertionError

    async def remove(self, queue: MessageQueue) -> None:
        """Nothing is kept in memory."""


class Owner:
    """LostLocks with three assigned queues at offset 5, whose locks are lost."""

    def __init__(self, tasks: BackgroundTasks) -> None:
        self.table = {queue: DispatchQueue(queue) for queue in (A, B, C)}
        for assigned in self.table.values():
            assigned.begin(5)
        self.store = Store()
        self.events: list[ConsumerEvent] = []
        self.revoked: list[list[MessageQueue]] = []
        self.resumed: list[MessageQueue] = []
        self.lost = LostLocks(
            self.table,
            self.store,
            tasks,
            publish=self.events.append,
            revoke=self.revoke,
            on_resumed=lambda assigned: self.resumed.append(assigned.queue),
        )
        for queue in self.table:
            assert self.lost.on_lost(queue)

    async def revoke(self, leaving: Collection[DispatchQueue]) -> None:
        self.revoked.append([each.queue for each in leaving])


@pytest_asyncio.fixture
async def owner() -> AsyncIterator[Owner]:
    failures: list[BaseException] = []
    tasks = BackgroundTasks("test", on_failure=failures.append)
    await tasks.start()
    yield Owner(tasks)
    await tasks.close()
    assert failures == []


async def test_losses_of_assigned_queues_are_reported(owner: Owner) -> None:
    assert owner.events == [LeaseLost(queue=queue) for queue in (A, B, C)]
    assert not owner.lost.on_lost(MessageQueue("orders", "broker-a", 9))
    assert len(owner.events) == 3


async def test_a_queue_goes_on_unless_more_is_committed(owner: Owner) -> None:
    owner.store.committed = {A: 5, B: 6}

    assert await owner.lost.unchanged([A, B, C]) == [A, C]
    await asyncio.sleep(0)
    assert owner.revoked == [[B]]


async def test_a_queue_that_goes_on_is_offered_to_the_workers(owner: Owner) -> None:
    owner.lost.on_resumed(A)

    assert owner.resumed == [A]
    assert owner.events[-1] == LeaseRegained(queue=A)


async def test_queues_that_others_have_are_revoked_together(owner: Owner) -> None:
    for queue in (A, B):
        owner.lost.on_taken(queue)
    await asyncio.sleep(0)

    assert owner.revoked == [[A, B]]


async def test_a_queue_whose_offset_cannot_be_read_waits(owner: Owner) -> None:
    async def fail(queue: MessageQueue) -> None:
        if queue == B:
            raise NotConnectedError("127.0.0.1:1", "refused")

    owner.store.before_read = fail

    assert await owner.lost.unchanged([A, B]) == [A]
    await asyncio.sleep(0)  # revocations run in a task
    owner.store.before_read = None
    assert await owner.lost.unchanged([B]) == [B]
    assert owner.revoked == []


async def test_a_store_that_hangs_does_not_hold_up_renewals(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the comparison, and the locks of other queues would expire."""
    monkeypatch.setattr(lost_locks_module, "COMPARE_SECONDS", 0.01)

    async def hang(queue: MessageQueue) -> None:
        if queue == B:
            await asyncio.Event().wait()

    owner.store.before_read = hang

    assert await asyncio.wait_for(owner.lost.unchanged([A, B]), 5) == [A]


async def test_a_queue_that_is_assigned_anew_during_the_comparison_is_left_alone(
    owner: Owner,
) -> None:
    async def reassign(queue: MessageQueue) -> None:
        owner.table[queue] = DispatchQueue(queue)

    owner.store.before_read = reassign
    owner.store.committed = {A: 6}

    assert await owner.lost.unchanged([A]) == []
    await asyncio.sleep(0)
    assert owner.revoked == []


async def test_a_queue_that_is_no_longer_assigned_is_not_compared(owner: Owner) -> None:
    """It is revoked, and its lock will be released."""
    del owner.table[A]

    assert await owner.lost.unchanged([A, B]) == [B]


async def test_a_queue_that_is_lost_again_during_the_comparison_is_compared_again(
    owner: Owner,
) -> None:
    async def lose(queue: MessageQueue) -> None:
        owner.lost.on_lost(queue)

    owner.store.before_read = lose

    assert await owner.lost.unchanged([A]) == []
