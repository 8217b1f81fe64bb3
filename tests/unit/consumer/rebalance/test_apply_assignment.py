"""Assignments: drain, commit and release, also when interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given, settings, strategies as st

from rocketmq_aio.consumer.common.events import ConsumerEvent, QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.common.listeners import AssignmentListeners
from rocketmq_aio.consumer.lite_pull.manual_commit import ManualCommits
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.commit_fence import CommitFence
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.consumer.rebalance import apply_assignment
from rocketmq_aio.consumer.rebalance.apply_assignment import Assignments
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import call_isolated
from tests.unit.consumer.parts import pull, queue
from tests.unit.consumer.stores import AppStore, StoreError
from tests.unit.remoting.until import settle


class AssignmentEnv:
    """The owner of an `Assignments`; *steps* lists events and listener calls in order."""

    def __init__(self, *, fenced: bool = False) -> None:
        self.table: dict[MessageQueue, PolledQueue] = {}
        self.store = AppStore()
        self.steps: list[str] = []
        self.kept: dict[int, int] = {}
        self.unlocked: list[int] = []
        self.on_assigned: Callable[[], Awaitable[object]] | None = None
        self.on_revoked: Callable[[], Awaitable[object]] | None = None
        fence = CommitFence(self.store, self.table) if fenced else None
        self.commits = ManualCommits(
            self.store, self.table, automatic=True, fence=fence, on_event=self.publish
        )
        self.cache = Cache()
        listeners = AssignmentListeners(self.assigned, self.revoked)
        self.assignments = Assignments(self, self.commits, listeners)

    def make_queue(self, queue: MessageQueue) -> PolledQueue:
        return PolledQueue(queue, self.cache)

    def begin_pulling(self, assigned: PolledQueue) -> None:
        assigned.begin(0)
        pull(assigned, *range(10))

    async def admit(self, queues: tuple[MessageQueue, ...]) -> Collection[MessageQueue]:
        return queues

    def keep_progress(self, assigned: PolledQueue) -> None:
        self.kept[assigned.queue.queue_id] = assigned.committable

    async def on_released(self, released: list[PolledQueue]) -> None:
        self.unlocked += [each.queue.queue_id for each in released]

    def publish(self, event: ConsumerEvent) -> None:
        if isinstance(event, QueuesAssigned | QueuesRevoked):
            self.steps.append(f"{type(event).__name__} {_numbers(event.queues)}")

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
        await self.assignments.change(None, lambda: wanted, drain_seconds=drain_seconds)

    def held(self) -> list[int]:
        return sorted(each.queue_id for each in self.table)


class Unsearchable(tuple[MessageQueue, ...]):
    """Queues each search of which would take as long as there are many."""

    __slots__ = ()

    def __contains__(self, queue: object) -> bool:
        raise AssertionError("searched")


def _numbers(queues: tuple[MessageQueue, ...]) -> str:
    return " ".join(str(each.queue_id) for each in queues)


@pytest.fixture
def env() -> AssignmentEnv:
    return AssignmentEnv()


async def test_change_assigns_and_revokes_queues(env: AssignmentEnv) -> None:
    await env.hold(0, 1)
    await env.hold(1, 2)

    assert env.held() == [1, 2]
    assert env.steps == [
        "QueuesAssigned 0 1",
        "on_assigned 0 1",
        "QueuesAssigned 2",
        "on_assigned 2",
        "on_revoked 0",
        "QueuesRevoked 0",
    ]


async def test_the_time_of_an_assignment_is_linear_in_its_queues(
    env: AssignmentEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(queues: tuple[MessageQueue, ...]) -> Collection[MessageQueue]:
        return Unsearchable(queues)

    monkeypatch.setattr(env, "admit", admit)
    await env.hold(0, 1)

    assert env.held() == [0, 1]


async def test_queues_are_assigned_sorted_by_topic_broker_and_number(env: AssignmentEnv) -> None:
    order = [queue(1), queue(2), queue(10), MessageQueue("orders", "broker-b", 0)]
    await env.assignments.change(None, lambda: [order[2], order[1], order[3], order[0], order[1]])

    assert env.table.keys() == set(order)
    assert env.steps[0] == "QueuesAssigned 1 2 10 0"


@settings(deadline=None)
@given(before=st.lists(st.integers(0, 4)), after=st.lists(st.integers(0, 4)))
def test_any_change_ends_with_the_wanted_queues(before: list[int], after: list[int]) -> None:
    async def change() -> None:
        env = AssignmentEnv()
        await env.hold(*before)
        env.steps.clear()
        await env.hold(*after)
        assert env.held() == sorted(set(after))
        added, removed = sorted(set(after) - set(before)), sorted(set(before) - set(after))
        assert f"QueuesAssigned {' '.join(map(str, added))}" in env.steps or not added
        assert f"QueuesRevoked {' '.join(map(str, removed))}" in env.steps or not removed
        assert bool(env.steps) == (set(before) != set(after))

    asyncio.run(change())


async def test_a_queue_that_stays_is_not_touched(env: AssignmentEnv) -> None:
    await env.hold(0, 1)
    before = env.table[queue(1)]
    await env.hold(1)

    assert env.table[queue(1)] is before


async def test_reassigned_queue_has_a_new_state(env: AssignmentEnv) -> None:
    await env.hold(0)
    before = env.table[queue(0)]
    await env.hold()
    await env.hold(0)

    assert env.table[queue(0)] is not before
    assert before.dropped


async def test_change_affects_only_its_topics(env: AssignmentEnv) -> None:
    other = queue(5, topic="invoices")
    await env.assignments.change(None, lambda: [queue(0), other])
    await env.assignments.change({"orders"}, lambda: [queue(1)])

    assert set(env.table) == {queue(1), other}


async def test_progress_is_committed_before_a_queue_is_released(env: AssignmentEnv) -> None:
    await env.hold(0)
    assigned = env.table[queue(0)]
    assigned.take(4)
    assigned.mark_processed()
    await env.hold()

    assert assigned.released
    assert env.store.kept == {queue(0): 4}
    assert env.kept == {0: 4}
    assert env.store.called("remove") == [queue(0)]
    assert env.store.calls[-1] == ("remove", queue(0))


async def test_drain_waits_for_the_last_batch_and_commits_it(env: AssignmentEnv) -> None:
    await env.hold(0)
    assigned = env.table[queue(0)]
    assigned.take(4)
    leaving = asyncio.create_task(env.hold(drain_seconds=60))
    await wait_all_tasks_blocked()
    assert (leaving.done(), env.held()) == (False, [0])
    assigned.mark_processed()
    await asyncio.wait_for(leaving, 15)

    assert env.store.kept == {queue(0): 4}


async def test_progress_is_committed_before_draining(env: AssignmentEnv) -> None:
    await env.hold(0)
    assigned = env.table[queue(0)]
    assigned.take(4)
    assigned.mark_processed()
    assigned.take(4)
    leaving = asyncio.create_task(env.hold(drain_seconds=60))
    await wait_all_tasks_blocked()

    assert env.store.kept == {queue(0): 4}
    leaving.cancel()
    await asyncio.wait([leaving])


@pytest.mark.parametrize("others", [3, 8])
async def test_a_last_commit_keeps_what_the_next_owner_committed_during_the_drain(
    others: int,
) -> None:
    env = AssignmentEnv(fenced=True)
    await env.hold(0)
    assigned = env.table[queue(0)]
    assigned.take(4)
    leaving = asyncio.create_task(env.hold(drain_seconds=60))
    await wait_all_tasks_blocked()
    env.store.kept[queue(0)] = others
    assigned.mark_processed()
    await asyncio.wait_for(leaving, 15)

    assert env.store.kept == {queue(0): max(4, others)}


async def test_a_late_revocation_keeps_what_the_next_owner_has_committed() -> None:
    env = AssignmentEnv(fenced=True)
    await env.hold(0)
    env.table[queue(0)].take(4)
    env.table[queue(0)].mark_processed()
    env.store.kept[queue(0)] = 8
    await env.hold()

    assert env.store.kept == {queue(0): 8}


async def test_committed_offsets_are_not_read_without_a_drain() -> None:
    env = AssignmentEnv(fenced=True)
    await env.hold(0)
    env.table[queue(0)].take(4)
    env.table[queue(0)].mark_processed()
    await env.assignments.revoke_all()

    assert env.store.kept == {queue(0): 4}
    assert env.store.called("read") == []


async def test_drain_is_limited_in_time(env: AssignmentEnv) -> None:
    await env.hold(0)
    env.table[queue(0)].take(4)
    await asyncio.wait_for(env.hold(drain_seconds=0.01), 15)

    assert env.held() == []
    assert env.store.kept == {queue(0): 0}


async def test_revoked_queue_delivers_nothing(env: AssignmentEnv) -> None:
    await env.hold(0)
    assigned = env.table[queue(0)]
    assigned.take(4)
    leaving = asyncio.create_task(env.hold(drain_seconds=60))
    await wait_all_tasks_blocked()

    assert (assigned.dropped, assigned.process_queue.count) == (True, 0)
    leaving.cancel()
    await asyncio.wait([leaving])


async def test_on_revoked_may_commit(env: AssignmentEnv) -> None:
    await env.hold(0, 1)
    env.table[queue(0)].take(4)

    async def on_revoked() -> None:
        await env.commits.commit({queue(0): 3})

    env.on_revoked = on_revoked
    await env.hold()

    assert env.store.kept == {queue(0): 3, queue(1): 0}


async def test_commit_ends_the_drain(env: AssignmentEnv) -> None:
    await env.hold(0)
    env.table[queue(0)].take(4)
    leaving = asyncio.create_task(env.hold(drain_seconds=60))
    await wait_all_tasks_blocked()
    await env.commits.commit(None)

    await asyncio.wait_for(leaving, 15)
    assert env.store.kept == {queue(0): 4}


async def test_a_release_cancelled_at_any_step_ends_whole(env: AssignmentEnv) -> None:
    async def on_revoked() -> None:
        await anyio.lowlevel.checkpoint()

    env.on_revoked = on_revoked
    steps, finished = 0, False
    while not finished:
        await env.hold(0, 1)
        env.table[queue(0)].take(4)
        leaving = asyncio.create_task(env.hold(1, drain_seconds=0.001))
        await settle(turns=steps)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert env.held() in ([1], [0, 1])
        assert not any(each.dropped for each in env.table.values())
        await env.hold()
        finished = not leaving.cancelled()
        steps += 1

    revoked = [step for step in env.steps if step.startswith("QueuesRevoked 0")]
    assert len(revoked) == steps > 5


async def test_a_release_cancelled_during_its_commit_still_runs_what_follows_releases(
    env: AssignmentEnv,
) -> None:
    """Otherwise the lock of the queue would be renewed as long as the process lives."""
    await env.hold(0)
    env.store.may_persist = asyncio.Event()
    leaving = asyncio.create_task(env.hold())
    await wait_all_tasks_blocked()
    leaving.cancel()
    await asyncio.wait([leaving])

    assert leaving.cancelled()
    assert (env.held(), env.unlocked) == ([], [0])


async def test_a_release_cancelled_while_it_is_forgotten_still_runs_what_follows_releases(
    env: AssignmentEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forget(_: object) -> None:
        await anyio.sleep_forever()

    await env.hold(0)
    monkeypatch.setattr(env.commits, "forget", forget)
    leaving = asyncio.create_task(env.hold())
    await wait_all_tasks_blocked()
    leaving.cancel()
    await asyncio.wait([leaving])

    assert (env.held(), env.unlocked) == ([], [0])


async def test_a_release_in_a_cancelled_scope_is_committed_and_ends_whole(
    env: AssignmentEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []

    async def follow(items: Collection[object]) -> None:
        await anyio.lowlevel.checkpoint()
        steps.append(len(items))

    async def on_revoked() -> None:
        scope.cancel()

    await env.hold(0)
    env.table[queue(0)].take(4)
    env.table[queue(0)].mark_processed()
    env.on_revoked = on_revoked
    monkeypatch.setattr(env.commits, "forget", follow)
    monkeypatch.setattr(env, "on_released", follow)
    with anyio.CancelScope() as scope:
        await env.hold()

    assert scope.cancelled_caught
    assert (env.held(), env.store.kept, steps) == ([], {queue(0): 4}, [1, 1])


async def test_only_admitted_queues_are_assigned(
    env: AssignmentEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(_: object) -> Collection[MessageQueue]:
        return [queue(1)]

    monkeypatch.setattr(env, "admit", admit)
    assert not await env.assignments.change(None, lambda: [queue(0), queue(1)])
    assert await env.assignments.change(None, lambda: [queue(1)])

    assert env.steps == ["QueuesAssigned 1", "on_assigned 1"]


async def test_no_listener_is_called_if_no_queue_is_admitted(
    env: AssignmentEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(_: object) -> Collection[MessageQueue]:
        return ()

    monkeypatch.setattr(env, "admit", admit)
    assert not await env.assignments.change(None, lambda: [queue(0)])

    assert env.steps == []


async def test_a_listener_and_its_tasks_must_not_wait_for_a_change(env: AssignmentEnv) -> None:
    seen: list[tuple[bool, bool]] = []

    async def note() -> None:
        assignments = env.assignments
        seen.append((assignments.is_changing_here(), assignments.is_in_listener()))

    async def on_assigned() -> None:
        await note()
        await asyncio.create_task(note())

    env.on_assigned = on_assigned
    await env.hold(0)

    assert seen == [(True, True), (True, False)]


async def test_a_task_that_a_listener_started_may_wait_for_later_changes(
    env: AssignmentEnv,
) -> None:
    ended = asyncio.Event()
    tasks: list[asyncio.Task[bool]] = []

    async def is_changing() -> bool:
        await ended.wait()
        return env.assignments.is_changing_here()

    async def on_assigned() -> None:
        tasks.append(asyncio.create_task(is_changing()))

    env.on_assigned = on_assigned
    await env.hold(0)
    ended.set()

    assert not await tasks[0]


async def test_a_call_that_was_cancelled_in_a_listener_may_be_followed_by_another(
    env: AssignmentEnv,
) -> None:
    env.on_assigned = anyio.sleep_forever
    with anyio.move_on_after(0.001):
        await env.hold(0)

    assert not env.assignments.is_changing_here()


async def test_a_caller_of_earlier_changes_may_wait_for_one_with_a_listener(
    env: AssignmentEnv,
) -> None:
    await env.hold(0)
    env.on_assigned = anyio.sleep_forever
    changing = asyncio.create_task(env.hold(0, 1))
    await wait_all_tasks_blocked()

    assert not env.assignments.is_changing_here()
    assert not await call_isolated(env.assignments.is_in_listener)
    changing.cancel()
    await asyncio.wait([changing])


async def test_a_late_revocation_does_not_end_the_next_assignment(env: AssignmentEnv) -> None:
    await env.hold(0)
    before = env.table[queue(0)]
    await env.hold()
    await env.hold(0)
    env.steps.clear()
    await env.assignments.revoke([before])
    assert (env.held(), env.steps) == ([0], [])
    assert not env.table[queue(0)].dropped

    await env.assignments.revoke([env.table[queue(0)]])
    assert env.held() == []


async def test_nothing_is_assigned_while_others_hold_changing(env: AssignmentEnv) -> None:
    async with env.assignments.changing:
        changing = asyncio.create_task(env.hold(0))
        await wait_all_tasks_blocked()
        assert env.held() == []
    await changing

    assert env.held() == [0]


async def test_change_cancelled_in_on_assigned_still_revokes(env: AssignmentEnv) -> None:
    await env.hold(0)
    env.on_assigned = anyio.sleep_forever
    changing = asyncio.create_task(env.hold(1))
    await wait_all_tasks_blocked()
    changing.cancel()
    await asyncio.wait([changing])

    assert env.held() == [1]


async def test_failing_store_does_not_prevent_revocation(env: AssignmentEnv) -> None:
    await env.hold(0)
    env.store.fail |= {"persist": StoreError("down"), "remove": StoreError("down")}
    await env.hold()

    assert env.held() == []


async def test_hanging_store_does_not_prevent_revocation(
    env: AssignmentEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_assignment, "LAST_COMMIT_SECONDS", 0.01)
    await env.hold(0)
    env.store.may_persist = asyncio.Event()
    await asyncio.wait_for(env.hold(), 15)

    assert env.held() == []


async def test_a_listener_that_raises_changes_nothing(env: AssignmentEnv) -> None:
    async def broken() -> None:
        raise LookupError("a bug")

    env.on_assigned = env.on_revoked = broken
    await env.hold(0)
    await env.hold(1)

    assert env.held() == [1]


async def test_changes_are_serialized(env: AssignmentEnv) -> None:
    reported = asyncio.Event()
    env.on_assigned = lambda: reported.wait()
    first = asyncio.create_task(env.hold(0, 1))
    await wait_all_tasks_blocked()
    second = asyncio.create_task(env.hold(1, 2))
    await wait_all_tasks_blocked()
    assert env.held() == [0, 1]
    reported.set()
    await asyncio.gather(first, second)

    assert env.held() == [1, 2]


async def test_revoke_all_without_drain_does_not_wait(env: AssignmentEnv) -> None:
    await env.hold(0, 1)
    env.table[queue(0)].take(4)
    leaving = asyncio.create_task(env.assignments.revoke_all())
    await wait_all_tasks_blocked()
    assert leaving.done()
    await env.assignments.revoke_all()

    assert env.held() == []
    assert env.steps[2:] == ["on_revoked 0 1", "QueuesRevoked 0 1"]
