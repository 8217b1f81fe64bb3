"""Taking queues on and giving them up: drain, commit, release, whatever interrupts it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.events import ConsumerEvent, QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.group import assignments as tenures_module
from rocketmq_aio.consumer.group.assignments import Assignments
from rocketmq_aio.consumer.lite_pull.manual_commit import ManualCommits
from rocketmq_aio.consumer.lite_pull.polled_queue import Cache, PolledQueue
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.parts import pull, queue
from tests.unit.consumer.stores import AppStore, StoreError


class Table:
    """The parts around `Assignments`; *steps* tells what happened, in order."""

    def __init__(self) -> None:
        self.queues: dict[MessageQueue, PolledQueue] = {}
        self.store = AppStore()
        self.steps: list[str] = []
        self.unlocked: list[int] = []
        self.on_assigned: Callable[[], Awaitable[object]] | None = None
        self.on_revoked: Callable[[], Awaitable[object]] | None = None
        self.commits = ManualCommits(self.store, self.queues, automatic=True, on_event=self.event)
        cache = Cache()
        self.tenures = Assignments(
            self.queues,
            self.commits,
            make=lambda queue: PolledQueue(queue, cache),
            begin=self.begin,
            on_released=self.released,
            on_event=self.event,
            on_assigned=self.assigned,
            on_revoked=self.revoked,
        )

    def begin(self, assigned: PolledQueue) -> None:
        assigned.begin(0)
        pull(assigned, *range(10))

    def event(self, event: ConsumerEvent) -> None:
        if isinstance(event, QueuesAssigned | QueuesRevoked):
            self.steps.append(f"{type(event).__name__} {_numbers(event.queues)}")

    async def released(self, queues: list[PolledQueue]) -> None:
        self.unlocked += [each.queue.queue_id for each in queues]

    async def assigned(self, queues: tuple[MessageQueue, ...]) -> None:
        self.steps.append(f"on_assigned {_numbers(queues)}")
        if self.on_assigned is not None:
            await self.on_assigned()

    async def revoked(self, queues: tuple[MessageQueue, ...]) -> None:
        self.steps.append(f"on_revoked {_numbers(queues)}")
        if self.on_revoked is not None:
            await self.on_revoked()

    async def hold(self, *numbers: int, drain_seconds: float = 0.0) -> None:
        """Make these the queues of this member."""
        wanted = [queue(number) for number in numbers]
        await self.tenures.change(None, lambda: wanted, drain_seconds=drain_seconds)

    def held(self) -> list[int]:
        return sorted(each.queue_id for each in self.queues)


def _numbers(queues: tuple[MessageQueue, ...]) -> str:
    return " ".join(str(each.queue_id) for each in queues)


@pytest.fixture
def table() -> Table:
    return Table()


async def test_queues_come_and_go(table: Table) -> None:
    await table.hold(0, 1)
    await table.hold(1, 2)

    assert table.held() == [1, 2]
    assert table.steps == [
        "QueuesAssigned 0 1",
        "on_assigned 0 1",
        "QueuesAssigned 2",
        "on_assigned 2",
        "on_revoked 0",
        "QueuesRevoked 0",
    ]


async def test_a_queue_that_stays_is_not_touched(table: Table) -> None:
    await table.hold(0, 1)
    before = table.queues[queue(1)]
    await table.hold(1)

    assert table.queues[queue(1)] is before


async def test_a_queue_that_comes_back_is_a_new_tenure(table: Table) -> None:
    await table.hold(0)
    before = table.queues[queue(0)]
    await table.hold()
    await table.hold(0)

    assert table.queues[queue(0)] is not before
    assert before.dropped


async def test_only_the_topics_in_question_change(table: Table) -> None:
    other = queue(5, topic="invoices")
    await table.tenures.change(None, lambda: [queue(0), other])
    await table.tenures.change({"orders"}, lambda: [queue(1)])

    assert set(table.queues) == {queue(1), other}


async def test_what_is_settled_is_committed_before_the_queue_is_released(table: Table) -> None:
    await table.hold(0)
    table.queues[queue(0)].take(4)
    table.queues[queue(0)].mark_processed()
    await table.hold()

    assert table.store.kept == {queue(0): 4}
    assert table.store.called("remove") == [queue(0)]
    assert table.store.calls[-1] == ("remove", queue(0))


async def test_it_waits_for_the_last_batch_and_commits_it(table: Table) -> None:
    await table.hold(0)
    assigned = table.queues[queue(0)]
    assigned.take(4)
    leaving = asyncio.create_task(table.hold(drain_seconds=60))
    await wait_all_tasks_blocked()
    assert (leaving.done(), table.held()) == (False, [0])
    assigned.mark_processed()
    await asyncio.wait_for(leaving, 15)

    assert table.store.kept == {queue(0): 4}


async def test_what_is_done_already_is_committed_before_it_waits(table: Table) -> None:
    await table.hold(0)
    assigned = table.queues[queue(0)]
    assigned.take(4)
    assigned.mark_processed()
    assigned.take(4)
    leaving = asyncio.create_task(table.hold(drain_seconds=60))
    await wait_all_tasks_blocked()

    assert table.store.kept == {queue(0): 4}
    leaving.cancel()
    await asyncio.wait([leaving])


async def test_a_slow_application_does_not_hold_it_up_for_long(table: Table) -> None:
    await table.hold(0)
    table.queues[queue(0)].take(4)
    await asyncio.wait_for(table.hold(drain_seconds=0.01), 15)

    assert table.held() == []
    assert table.store.kept == {queue(0): 0}


async def test_nothing_is_handed_out_of_a_queue_that_is_being_given_up(table: Table) -> None:
    await table.hold(0)
    assigned = table.queues[queue(0)]
    assigned.take(4)
    leaving = asyncio.create_task(table.hold(drain_seconds=60))
    await wait_all_tasks_blocked()

    assert (assigned.dropped, assigned.process_queue.count) == (True, 0)
    leaving.cancel()
    await asyncio.wait([leaving])


async def test_a_listener_may_commit_what_it_knows_to_be_done(table: Table) -> None:
    await table.hold(0, 1)
    table.queues[queue(0)].take(4)

    async def on_revoked() -> None:
        await table.commits.commit({queue(0): 3})

    table.on_revoked = on_revoked
    await table.hold()

    assert table.store.kept == {queue(0): 3, queue(1): 0}


async def test_a_commit_ends_the_wait_for_the_last_batch(table: Table) -> None:
    await table.hold(0)
    table.queues[queue(0)].take(4)
    leaving = asyncio.create_task(table.hold(drain_seconds=60))
    await wait_all_tasks_blocked()
    await table.commits.commit(None)

    await asyncio.wait_for(leaving, 15)
    assert table.store.kept == {queue(0): 4}


# --- what goes wrong -----------------------------------------------------------------------------


async def test_a_release_cancelled_at_any_step_ends_whole(table: Table) -> None:
    async def on_revoked() -> None:
        await anyio.lowlevel.checkpoint()

    table.on_revoked = on_revoked
    steps, finished = 0, False
    while not finished:
        await table.hold(0, 1)
        table.queues[queue(0)].take(4)
        leaving = asyncio.create_task(table.hold(1, drain_seconds=0.001))
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert table.held() in ([1], [0, 1])
        assert not any(each.dropped for each in table.queues.values())
        await table.hold()
        finished = not leaving.cancelled()
        steps += 1

    revoked = [step for step in table.steps if step.startswith("QueuesRevoked 0")]
    assert len(revoked) == steps > 5


async def test_a_release_cancelled_during_its_commit_still_runs_what_follows_releases(
    table: Table,
) -> None:
    """Otherwise the lock of the queue would be renewed as long as the process lives."""
    await table.hold(0)
    table.store.may_persist = asyncio.Event()
    leaving = asyncio.create_task(table.hold())
    await wait_all_tasks_blocked()
    leaving.cancel()
    await asyncio.wait([leaving])

    assert leaving.cancelled()
    assert (table.held(), table.unlocked) == ([], [0])


async def test_a_late_revocation_does_not_end_the_next_assignment(table: Table) -> None:
    await table.hold(0)
    before = table.queues[queue(0)]
    await table.hold()
    await table.hold(0)
    await table.tenures.revoke([before])
    assert table.held() == [0]
    assert not table.queues[queue(0)].dropped

    await table.tenures.revoke([table.queues[queue(0)]])
    assert table.held() == []


async def test_nothing_is_assigned_while_somebody_acts_exclusively(table: Table) -> None:
    acting, done = asyncio.Event(), asyncio.Event()

    async def act() -> None:
        acting.set()
        await done.wait()

    exclusive = asyncio.create_task(table.tenures.exclusively(act))
    await acting.wait()
    changing = asyncio.create_task(table.hold(0))
    await wait_all_tasks_blocked()
    assert table.held() == []
    done.set()
    await asyncio.gather(exclusive, changing)

    assert table.held() == [0]


async def test_cancelled_while_it_tells_of_new_queues_it_still_gives_up_the_old(
    table: Table,
) -> None:
    await table.hold(0)
    table.on_assigned = anyio.sleep_forever
    changing = asyncio.create_task(table.hold(1))
    await wait_all_tasks_blocked()
    changing.cancel()
    await asyncio.wait([changing])

    assert table.held() == [1]


async def test_a_store_that_fails_does_not_keep_a_queue_from_leaving(table: Table) -> None:
    await table.hold(0)
    table.store.fail |= {"persist": StoreError("down"), "remove": StoreError("down")}
    await table.hold()

    assert table.held() == []


async def test_a_store_that_hangs_does_not_keep_a_queue_from_leaving(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenures_module, "LAST_COMMIT_SECONDS", 0.01)
    await table.hold(0)
    table.store.may_persist = asyncio.Event()
    await asyncio.wait_for(table.hold(), 15)

    assert table.held() == []


async def test_a_listener_that_raises_changes_nothing(table: Table) -> None:
    async def broken() -> None:
        raise LookupError("a bug")

    table.on_assigned = table.on_revoked = broken
    await table.hold(0)
    await table.hold(1)

    assert table.held() == [1]


async def test_one_change_at_a_time(table: Table) -> None:
    told = asyncio.Event()
    table.on_assigned = lambda: told.wait()
    first = asyncio.create_task(table.hold(0, 1))
    await wait_all_tasks_blocked()
    second = asyncio.create_task(table.hold(1, 2))
    await wait_all_tasks_blocked()
    assert table.held() == [0, 1]
    told.set()
    await asyncio.gather(first, second)

    assert table.held() == [1, 2]


async def test_leaving_gives_up_everything_without_waiting(table: Table) -> None:
    await table.hold(0, 1)
    table.queues[queue(0)].take(4)
    leaving = asyncio.create_task(table.tenures.revoke_all())
    await wait_all_tasks_blocked()
    assert leaving.done()
    await table.tenures.revoke_all()

    assert table.held() == []
    assert table.steps.count("QueuesRevoked 0 1") == 1
