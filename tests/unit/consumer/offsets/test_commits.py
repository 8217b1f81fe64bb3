"""Commits: automatic, manual and failed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.events import CommitFailed, ConsumerEvent
from rocketmq_aio.consumer.lite_pull.manual_commit import ManualCommits
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.commit_fence import CommitFence
from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN
from rocketmq_aio.errors import CommitError, ConfigError, NotConnectedError, RequestTimeoutError
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.offset_brokers import Brokers
from tests.unit.consumer.parts import assigned_queue, queue
from tests.unit.consumer.stores import AppStore, StoreError
from tests.unit.remoting.until import until

DOWN = NotConnectedError("127.0.0.1:10911", "connection refused")


@pytest.fixture
def store() -> AppStore:
    return AppStore()


@pytest.fixture
def table() -> dict[MessageQueue, PolledQueue]:
    """Two queues of ten messages, five delivered, three of them processed."""
    table = {}
    for number in range(2):
        assigned = table[queue(number)] = assigned_queue(number, cached=10)
        assigned.take(3)
        assigned.mark_processed()
        assigned.take(2)
    return table


@pytest.fixture
def events() -> list[ConsumerEvent]:
    return []


@pytest.fixture
def commits(
    store: AppStore, table: dict[MessageQueue, PolledQueue], events: list[ConsumerEvent]
) -> ManualCommits:
    return ManualCommits(store, table, automatic=True, on_event=events.append)


async def test_only_processed_messages_are_committed_automatically(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    await commits.commit_progress(table.values())

    assert store.kept == {queue(0): 3, queue(1): 3}


async def test_queues_without_progress_are_not_committed_again(
    table: dict[MessageQueue, PolledQueue], events: list[ConsumerEvent]
) -> None:
    brokers, updated = Brokers(), list[MessageQueue]()

    class Store(RemoteOffsetStore):
        async def update(self, queue: MessageQueue, offset: int) -> None:
            updated.append(queue)
            await super().update(queue, offset)

    commits = ManualCommits(
        Store(brokers, "billing"), table, automatic=True, on_event=events.append
    )
    for _ in range(3):
        await commits.commit_progress(table.values())
    table[queue(0)].mark_processed()
    for _ in range(3):
        await commits.commit_progress(table.values())
    commits.invalidate(table[queue(1)])
    for _ in range(3):
        await commits.commit_progress(table.values())

    assert updated == [queue(0), queue(1), queue(0), queue(1)]
    assert brokers.kept == {queue(0): 5, queue(1): 3}


async def test_a_queue_that_is_not_started_has_nothing_to_commit(
    commits: ManualCommits, store: AppStore
) -> None:
    await commits.commit_progress([PolledQueue(queue(2), Cache())])

    assert store.kept == {}


async def test_a_queue_without_a_position_is_not_compared_with_other_members(
    events: list[ConsumerEvent],
) -> None:
    """Its broker may not respond: revoking the queue would wait for it, and report a failure."""
    brokers, assigned = Brokers(), PolledQueue(queue(0), Cache())
    store, table = RemoteOffsetStore(brokers, "billing"), {queue(0): assigned}
    commits = ManualCommits(
        store, table, automatic=True, fence=CommitFence(store, table), on_event=events.append
    )
    assigned.invalidate_commits()
    await commits.commit_progress([assigned])

    assert (brokers.queries, events) == ([], [])


async def test_a_failed_commit_of_a_queue_that_is_revoked_meanwhile_is_not_an_event(
    table: dict[MessageQueue, PolledQueue], events: list[ConsumerEvent]
) -> None:
    """The revocation commits it, and reports a failure."""

    class Store(AppStore):
        async def persist(self, queues: Collection[MessageQueue]) -> None:
            table[queue(0)].drop()
            raise CommitError(dict.fromkeys(queues, DOWN))

    commits = ManualCommits(Store(), table, automatic=True, on_event=events.append)
    await commits.commit_progress(table.values())
    await commits.commit_progress([table[queue(0)]])

    assert [each.queues for each in events if isinstance(each, CommitFailed)] == [
        (queue(1),),
        (queue(0),),
    ]


async def test_without_auto_commit_nothing_is_committed_automatically(
    store: AppStore, table: dict[MessageQueue, PolledQueue], events: list[ConsumerEvent]
) -> None:
    commits = ManualCommits(store, table, automatic=False, on_event=events.append)
    await commits.commit_progress(table.values())

    assert store.calls == []


async def test_queues_that_are_being_revoked_are_not_committed_regularly(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    table[queue(0)].drop()
    committing = asyncio.create_task(commits.keep_committing(0.001))
    await until(lambda: len(store.called("persist")) > 1)
    committing.cancel()
    await asyncio.wait([committing])

    assert store.kept == {queue(1): 3}


async def test_automatic_commits_go_on_after_errors(
    commits: ManualCommits, store: AppStore
) -> None:
    store.fail["persist"] = StoreError("down")
    committing = asyncio.create_task(commits.keep_committing(0.001))
    await until(lambda: len(store.called("persist")) >= 3)
    del store.fail["persist"]
    await until(lambda: store.kept)
    committing.cancel()

    assert store.kept == {queue(0): 3, queue(1): 3}


@pytest.mark.parametrize(
    ("method", "error", "lost"),
    [
        ("persist", CommitError({queue(1): DOWN}), (queue(1),)),
        ("persist", StoreError("down"), (queue(0), queue(1))),
        ("update", StoreError("down"), (queue(0), queue(1))),
    ],
)
async def test_a_failed_automatic_commit_is_an_event(
    commits: ManualCommits,
    store: AppStore,
    table: dict[MessageQueue, PolledQueue],
    events: list[ConsumerEvent],
    method: str,
    error: Exception,
    lost: tuple[MessageQueue, ...],
) -> None:
    store.fail[method] = error
    await commits.commit_progress(table.values())

    [event] = events
    assert isinstance(event, CommitFailed)
    assert event.queues == lost
    assert "refused" in event.reason or "down" in event.reason


async def test_an_unexpected_error_of_a_store_is_not_a_failed_commit(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    store.fail["persist"] = LookupError("a bug")

    with pytest.raises(LookupError):
        await commits.commit_progress(table.values())


async def test_all_delivered_messages_can_be_committed(
    commits: ManualCommits, store: AppStore
) -> None:
    await commits.commit(None)

    assert store.kept == {queue(0): 5, queue(1): 5}


async def test_delivered_messages_of_some_queues_can_be_committed(
    commits: ManualCommits, store: AppStore
) -> None:
    await commits.commit([queue(1)])

    assert store.kept == {queue(1): 5}


@pytest.mark.parametrize("offset", [0, 2, 4, 100])
async def test_any_offset_can_be_committed(
    commits: ManualCommits, store: AppStore, offset: int
) -> None:
    await commits.commit({queue(1): offset})

    assert store.kept == {queue(1): offset}


async def test_committed_messages_are_marked_as_processed(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    await commits.commit({queue(0): 4})
    await commits.commit_progress(table.values())

    assert store.kept == {queue(0): 4, queue(1): 3}


async def test_a_commit_returns_when_it_is_durable(commits: ManualCommits, store: AppStore) -> None:
    store.may_persist = asyncio.Event()
    committing = asyncio.create_task(commits.commit(None))
    await wait_all_tasks_blocked()
    assert not committing.done()
    store.may_persist.set()
    await committing

    assert store.kept == {queue(0): 5, queue(1): 5}


async def test_an_unassigned_queue_is_an_error_and_the_others_are_committed(
    commits: ManualCommits, store: AppStore
) -> None:
    with pytest.raises(CommitError) as caught:
        await commits.commit({queue(7): 1, queue(0): 5})

    assert list(caught.value.lost) == [queue(7)]
    assert isinstance(caught.value.lost[queue(7)], ConfigError)
    assert store.kept == {queue(0): 5}


async def test_a_queue_that_is_being_revoked_can_be_committed(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    table[queue(0)].drop()
    await commits.commit([queue(0)])

    assert store.kept == {queue(0): 5}


@pytest.mark.parametrize(
    ("error", "lost"),
    [(CommitError({queue(1): DOWN}), {queue(1)}), (StoreError("down"), {queue(0), queue(1)})],
)
async def test_failed_commits_are_raised(
    commits: ManualCommits, store: AppStore, error: Exception, lost: set[MessageQueue]
) -> None:
    store.fail["persist"] = error

    with pytest.raises(CommitError) as caught:
        await commits.commit(None)
    assert set(caught.value.lost) == lost


async def test_a_queue_that_is_not_started_is_skipped(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    table[queue(2)] = PolledQueue(queue(2), Cache())
    await commits.commit(None)

    assert set(store.kept) == {queue(0), queue(1)}
    assert table[queue(2)].furthest == UNKNOWN  # its position was not set


@pytest.mark.parametrize("offset", [-1, 1.5, "7", True, 2**63])
async def test_an_invalid_offset_is_refused_before_any_commit(
    commits: ManualCommits, store: AppStore, offset: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        await commits.commit({queue(0): 5, queue(1): offset})

    assert (caught.value.setting, caught.value.value) == ("offset", offset)
    assert store.calls == []


@pytest.mark.parametrize("offsets", [5, "orders", queue(0), object()])
async def test_invalid_queues_are_refused(commits: ManualCommits, offsets: object) -> None:
    with pytest.raises(ConfigError) as caught:
        await commits.commit(offsets)  # type: ignore[arg-type]

    assert caught.value.setting == "offsets"


@pytest.mark.parametrize("given", [["orders"], {"orders": 5}, [None]])
async def test_an_invalid_queue_is_refused(commits: ManualCommits, given: object) -> None:
    with pytest.raises(ConfigError) as caught:
        await commits.commit(given)  # type: ignore[arg-type]

    assert caught.value.setting == "queue"


async def test_a_failed_remove_does_not_stop_the_revocation(
    commits: ManualCommits, store: AppStore
) -> None:
    store.fail["remove"] = StoreError("down")
    await commits.forget([queue(0), queue(1)])

    assert store.called("remove") == [queue(0), queue(1)]


async def test_a_slow_store_is_given_the_position_after_a_seek(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    store.hold_update = asyncio.Event()
    committing = asyncio.create_task(commits.commit_progress(list(table.values())))
    await until(lambda: store.called("update") == [(queue(0), 3)])
    table[queue(1)].seek(1)
    store.hold_update.set()
    await committing

    assert store.kept == {queue(0): 3, queue(1): 1}


async def test_a_slow_store_gets_no_update_of_a_released_queue(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    store.hold_update = asyncio.Event()
    committing = asyncio.create_task(commits.commit_progress(list(table.values())))
    await until(lambda: store.called("update"))
    table.pop(queue(1)).released = True
    store.hold_update.set()
    await committing

    assert store.kept == {queue(0): 3}


async def test_an_update_of_a_queue_waits_for_the_one_before(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    store.hold_update = asyncio.Event()
    first = asyncio.create_task(commits.commit_progress([table[queue(0)]]))
    await until(lambda: store.called("update"))
    table[queue(0)].mark_processed()
    second = asyncio.create_task(commits.commit_progress([table[queue(0)]]))
    await wait_all_tasks_blocked()
    assert store.called("update") == [(queue(0), 3)]
    store.hold_update.set()
    await asyncio.gather(first, second)

    assert store.called("update") == [(queue(0), 3), (queue(0), 5)]
    assert store.kept == {queue(0): 5}


async def test_a_manual_commit_of_a_queue_released_meanwhile_is_an_error(
    commits: ManualCommits, store: AppStore, table: dict[MessageQueue, PolledQueue]
) -> None:
    store.hold_update = asyncio.Event()
    committing = asyncio.create_task(commits.commit(None))
    await until(lambda: store.called("update"))
    table.pop(queue(1)).released = True
    store.hold_update.set()

    with pytest.raises(CommitError) as caught:
        await committing
    assert isinstance(caught.value.lost[queue(1)], ConfigError)
    assert store.kept == {queue(0): 5}


async def test_a_failed_update_does_not_stop_commits_of_other_queues(
    commits: ManualCommits,
    store: AppStore,
    table: dict[MessageQueue, PolledQueue],
    events: list[ConsumerEvent],
) -> None:
    store.fail_queues[queue(0)] = StoreError("no such row")
    await commits.commit_progress(table.values())

    assert store.kept == {queue(1): 3}
    [event] = events
    assert isinstance(event, CommitFailed)
    assert event.queues == (queue(0),)


async def test_a_position_that_is_due_is_tried_until_it_is_stored_and_then_left_alone(
    store: AppStore, events: list[ConsumerEvent]
) -> None:
    assigned = PolledQueue(queue(0), Cache(), auto_commit=False)
    commits = ManualCommits(store, {queue(0): assigned}, automatic=False, on_event=events.append)
    assigned.begin(7)
    assigned.commit_due = True
    store.fail["persist"] = StoreError("down")
    await commits.commit_progress([assigned])
    assert store.kept == {}
    del store.fail["persist"]
    await commits.commit_progress([assigned])
    await commits.commit_progress([assigned])

    assert store.kept == {queue(0): 7}
    assert store.called("persist") == [(queue(0),), (queue(0),)]


async def test_a_reset_while_a_position_is_stored_stays_due(
    store: AppStore, events: list[ConsumerEvent]
) -> None:
    assigned = PolledQueue(queue(0), Cache(), auto_commit=False)
    commits = ManualCommits(store, {queue(0): assigned}, automatic=False, on_event=events.append)
    assigned.begin(7)
    assigned.commit_due = True
    store.may_persist = asyncio.Event()
    committing = asyncio.create_task(commits.commit_progress([assigned]))
    await until(lambda: store.called("persist"))
    assigned.move(2)
    store.may_persist.set()
    await committing
    assert assigned.commit_due

    await commits.commit_progress([assigned])
    assert store.kept == {queue(0): 2}


async def test_a_seek_back_during_a_commit_is_still_committed_if_others_may_have_the_queue(
    store: AppStore, table: dict[MessageQueue, PolledQueue], events: list[ConsumerEvent]
) -> None:
    fence = CommitFence(store, table)
    commits = ManualCommits(store, table, automatic=True, fence=fence, on_event=events.append)
    store.may_persist = asyncio.Event()
    committing = asyncio.create_task(commits.commit_progress([table[queue(0)]]))
    await until(lambda: store.called("persist"))
    table[queue(0)].seek(1)
    store.may_persist.set()
    await committing
    store.kept[queue(0)] = 9  # by another member
    fence.invalidate()
    await commits.commit_progress([table[queue(0)]])

    assert store.kept == {queue(0): 1}


@pytest.mark.parametrize("automatic", [False, True])
async def test_a_commit_that_an_earlier_one_may_undo_is_repeated(
    automatic: bool, table: dict[MessageQueue, PolledQueue], events: list[ConsumerEvent]
) -> None:
    brokers = Brokers()
    commits = ManualCommits(
        RemoteOffsetStore(brokers, "billing"), table, automatic=automatic, on_event=events.append
    )
    brokers.errors = {queue(0): [RequestTimeoutError("127.0.0.1:10911", 15, 3.0)]}
    with pytest.raises(CommitError):
        await commits.commit({queue(0): 5})
    await commits.commit({queue(0): 3})
    brokers.kept[queue(0)] = 5  # executed late
    await commits.commit_progress(table.values())

    assert brokers.kept[queue(0)] == 3
