"""A process that stood still: nothing stale is handed out or committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

import pytest
import pytest_asyncio

from rocketmq_aio.consumer.group import stall_detector as stalls_module
from rocketmq_aio.consumer.group.stall_detector import STALL_SECONDS, StallDetector
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from tests.unit.remoting.until import until

AHEAD, LEVEL, BEHIND, NONE, AWAY = (MessageQueue("t", "broker-a", n) for n in range(5))
HERE = 10


class Store:
    """Offsets as others have left them at the broker."""

    def __init__(self) -> None:
        self.offsets = {AHEAD: HERE - 1, LEVEL: HERE, BEHIND: HERE + 1, NONE: None}
        self.forgotten: set[MessageQueue] = set()

    async def load(self) -> None: ...

    async def update(self, queue: MessageQueue, offset: int) -> None: ...

    async def persist(self, queues: Collection[MessageQueue]) -> None: ...

    async def remove(self, queue: MessageQueue) -> None:
        self.forgotten.add(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        assert queue in self.forgotten, "it might remember what it has sent itself"
        if queue == AWAY:
            raise NotConnectedError("broker-a", "it is away")
        return self.offsets[queue]


class Bench:
    """A member with five queues, and a clock that a test moves."""

    def __init__(self, host: BackgroundTasks) -> None:
        self.now = 0.0
        self.table = {queue: DispatchQueue(queue) for queue in (AHEAD, LEVEL, BEHIND, NONE, AWAY)}
        self.left: dict[MessageQueue, bool] = {}
        for assigned in self.table.values():
            assigned.begin(HERE)
        self.store = Store()
        self.stalls = StallDetector(
            host, self.table, self.store, revoke=self._revoke, clock=lambda: self.now
        )

    def committable(self) -> dict[MessageQueue, bool]:
        return {queue: self.stalls.may_commit(each) for queue, each in self.table.items()}

    async def _revoke(self, held: Collection[DispatchQueue]) -> None:
        assert list(held) == list(self.table.values())
        self.left = self.committable()


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    failures: list[BaseException] = []
    host = BackgroundTasks("stalls", on_failure=failures.append)
    await host.start()
    yield Bench(host)
    await host.close()
    assert failures == []


async def test_looks_that_come_in_time_change_nothing(bench: Bench) -> None:
    for _ in range(3):
        bench.now += STALL_SECONDS
        bench.stalls.look()

    assert all(bench.committable().values())
    assert not any(each.dropped for each in bench.table.values())


async def test_after_a_stall_nothing_is_handed_out_or_committed(bench: Bench) -> None:
    bench.now += STALL_SECONDS + 1
    bench.stalls.look()

    assert all(each.dropped for each in bench.table.values())
    assert not any(bench.committable().values())


async def test_only_what_is_not_behind_others_is_committed_on_leaving(bench: Bench) -> None:
    bench.now += STALL_SECONDS + 1
    bench.stalls.look()
    await until(lambda: bench.left, "the queues to be given up")

    assert bench.left == {AHEAD: True, LEVEL: True, BEHIND: False, NONE: True, AWAY: False}
    await until(lambda: all(bench.committable().values()), "no doubt of tenures that are over")


async def test_a_store_that_hangs_after_a_stall_does_not_keep_the_queues(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped queues that stayed assigned would never be read again."""
    monkeypatch.setattr(stalls_module, "COMPARE_SECONDS", 0.01)
    monkeypatch.setattr(bench.store, "read", lambda queue: asyncio.Event().wait())
    bench.now += STALL_SECONDS + 1
    bench.stalls.look()
    await until(lambda: bench.left, "the queues to be given up")

    assert not any(bench.left.values())


async def test_without_queues_there_is_nothing_to_doubt(bench: Bench) -> None:
    bench.table.clear()
    bench.now += STALL_SECONDS + 1
    bench.stalls.look()

    assert bench.left == {}


async def test_it_looks_by_itself_before_tasks_that_waited_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls_module, "LOOK_SECONDS", 0.001)
    bench.now = 1.0
    watching = asyncio.create_task(bench.stalls.watch())
    await until(lambda: bench.stalls._seen == bench.now, "the watch to begin")
    bench.now += STALL_SECONDS + 1
    await until(lambda: bench.left, "the stall to be noticed")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    assert all(each.dropped for each in bench.table.values())
