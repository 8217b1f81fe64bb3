"""RemoteOffsetStore with scripted brokers that respond, fail or delay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from anyio import create_task_group, fail_after, wait_all_tasks_blocked
from anyio.abc import TaskGroup
from hypothesis import given, settings, strategies as st

from rocketmq_aio.consumer.offsets import remote_store as remote_store_module
from rocketmq_aio.consumer.offsets.remote_store import (
    MAX_OFFSET,
    SENDS_PER_BROKER,
    RemoteOffsetStore,
    check_offset,
)
from rocketmq_aio.errors import (
    BrokerError,
    CommitError,
    ConfigError,
    NotConnectedError,
    RequestTimeoutError,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.remoting_client import LATE_SECONDS
from tests.unit.consumer.offset_brokers import Brokers
from tests.unit.consumer.parts import commit, queue

TIMEOUT = RequestTimeoutError("127.0.0.1:10911", 15, 3.0)
REFUSED = NotConnectedError("127.0.0.1:10911", "connection refused")


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def store(brokers: Brokers) -> RemoteOffsetStore:
    return RemoteOffsetStore(brokers, "billing")


@asynccontextmanager
async def commit_under_way(
    brokers: Brokers, store: RemoteOffsetStore, offset: int
) -> AsyncIterator[TaskGroup]:
    """A commit of the first queue that its broker responds to when the body is done."""
    await store.update(queue(0), offset)
    brokers.hold()
    async with create_task_group() as tasks:
        tasks.start_soon(store.persist, [queue(0)])
        await wait_all_tasks_blocked()
        yield tasks
        brokers.let_go()


async def test_every_read_queries_the_broker(brokers: Brokers, store: RemoteOffsetStore) -> None:
    await store.load()
    brokers.kept[queue(0)] = 7
    first = await store.read(queue(0))
    brokers.kept[queue(0)] = 9

    assert (first, await store.read(queue(0))) == (7, 9)


async def test_read_returns_none_without_an_offset(store: RemoteOffsetStore) -> None:
    assert await store.read(queue(0)) is None


async def test_read_raises_the_error_of_the_query(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.errors[queue(0)] = [TIMEOUT, BrokerError(1, "busy")]

    with pytest.raises(RequestTimeoutError):
        await store.read(queue(0))
    with pytest.raises(BrokerError):
        await store.read(queue(0))


async def test_an_update_that_is_not_persisted_wins_over_the_broker(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.kept[queue(0)] = 7
    await store.update(queue(0), 12)

    assert await store.read(queue(0)) == 12
    assert brokers.queries == []


async def test_an_update_in_flight_wins_over_the_broker(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    async with commit_under_way(brokers, store, 12):
        assert await store.read(queue(0)) == 12


async def test_after_persist_read_queries_the_broker(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, {queue(0): 12})

    assert await store.read(queue(0)) == 12
    assert brokers.queries == [queue(0)]


async def test_only_changes_of_the_named_queues_are_sent(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, {queue(0): 5, queue(1): 6})
    brokers.updates.clear()
    await store.update(queue(0), 5)
    await store.update(queue(1), 8)
    await store.update(queue(2), 9)

    await store.persist([queue(0), queue(1), queue(3)])

    assert brokers.updates == [(queue(1), 8)]


async def test_the_offset_zero_is_sent_too(brokers: Brokers, store: RemoteOffsetStore) -> None:
    await commit(store, {queue(0): 0})

    assert brokers.updates == [(queue(0), 0)]


async def test_an_offset_may_go_backwards(brokers: Brokers, store: RemoteOffsetStore) -> None:
    await commit(store, {queue(0): 1024})
    await commit(store, {queue(0): 1023})

    assert brokers.kept == {queue(0): 1023}


async def test_a_queue_that_fails_does_not_fail_the_others(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.errors = {queue(1): [TIMEOUT], queue(3): [REFUSED]}

    with pytest.raises(CommitError) as caught:
        await commit(store, {queue(n): 10 + n for n in range(5)})

    assert caught.value.lost == {queue(1): TIMEOUT, queue(3): REFUSED}
    assert brokers.kept == {queue(0): 10, queue(2): 12, queue(4): 14}


async def test_only_failed_commits_are_sent_again(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.errors = {queue(1): [TIMEOUT]}
    with pytest.raises(CommitError):
        await commit(store, {queue(0): 10, queue(1): 11})
    brokers.updates.clear()

    await store.persist([queue(0), queue(1)])

    assert brokers.updates == [(queue(1), 11)]


async def test_going_back_after_an_unanswered_commit_is_sent(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, {queue(0): 10})
    brokers.errors = {queue(0): [TIMEOUT]}
    with pytest.raises(CommitError):
        await commit(store, {queue(0): 20})
    brokers.kept[queue(0)] = 20  # it had arrived, only the response was lost

    await commit(store, {queue(0): 10})

    assert brokers.kept == {queue(0): 10}


async def test_a_commit_is_repeated_while_the_broker_may_execute_an_earlier_one(
    brokers: Brokers, store: RemoteOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers execute requests in any order, also after their timeout."""
    now = 1000.0
    monkeypatch.setattr(remote_store_module, "monotonic", lambda: now)
    brokers.errors = {queue(0): [TIMEOUT]}
    with pytest.raises(CommitError):
        await commit(store, {queue(0): 20})
    await commit(store, {queue(0): 10})
    brokers.kept[queue(0)] = 20  # executed late
    await store.persist([queue(0)])

    assert brokers.kept == {queue(0): 10}
    assert store.may_be_undone(queue(0))
    now += LATE_SECONDS
    await store.persist([queue(0)])
    assert not store.may_be_undone(queue(0))
    brokers.updates.clear()
    await store.persist([queue(0)])
    assert brokers.updates == []


async def test_a_cancelled_commit_is_sent_again(brokers: Brokers, store: RemoteOffsetStore) -> None:
    brokers.hold()
    committing = asyncio.create_task(commit(store, {queue(0): 10}))
    await wait_all_tasks_blocked()
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    brokers.let_go()
    brokers.updates.clear()

    await store.persist([queue(0)])

    assert brokers.updates == [(queue(0), 10)]


async def test_an_update_during_a_commit_is_not_lost(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    async with commit_under_way(brokers, store, 10):
        await store.update(queue(0), 20)

    assert brokers.kept == {queue(0): 10}
    await store.persist([queue(0)])
    assert brokers.kept == {queue(0): 20}


async def test_commits_of_one_queue_are_never_concurrent(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    async with commit_under_way(brokers, store, 10) as tasks:
        await store.update(queue(0), 20)
        tasks.start_soon(store.persist, [queue(0)])
        tasks.start_soon(store.persist, [queue(0)])
        await wait_all_tasks_blocked()

    assert brokers.most_of_a_queue[queue(0)] == 1
    assert brokers.updates == [(queue(0), 10), (queue(0), 20)]


async def test_persist_waits_for_the_commit_of_another_call(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    async with commit_under_way(brokers, store, 10):
        second = asyncio.create_task(store.persist([queue(0)]))
        await wait_all_tasks_blocked()

        assert not second.done()
    await second
    assert brokers.updates == [(queue(0), 10)]


async def test_concurrent_commits_to_a_broker_are_limited(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, {queue(0): 1})
    await commit(store, {queue(n): n for n in range(3 * SENDS_PER_BROKER)})

    assert brokers.most_running["broker-a"] == SENDS_PER_BROKER
    assert len(brokers.kept) == 3 * SENDS_PER_BROKER


async def test_a_broker_that_times_out_is_sent_no_further_commits_in_the_same_call(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    offsets = {queue(n, broker): n for n in range(40) for broker in ("broker-a", "broker-b")}
    await commit(store, {queue(0, broker): 7 for broker in ("broker-a", "broker-b")})
    brokers.updates.clear()
    brokers.errors = {queue(n): [TIMEOUT] for n in range(40)}

    with pytest.raises(CommitError) as caught:
        await commit(store, offsets)

    assert caught.value.lost == {queue(n): TIMEOUT for n in range(40)}
    sent = [each for each, _ in brokers.updates if each.broker_name == "broker-a"]
    assert len(sent) == SENDS_PER_BROKER
    brokers.errors.clear()
    await store.persist(list(offsets))
    assert brokers.kept == offsets


async def test_a_broker_that_does_not_answer_does_not_delay_others(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    offsets = {queue(n, broker): n for n in range(40) for broker in ("broker-a", "broker-b")}
    brokers.hold("broker-a")
    async with create_task_group() as tasks:
        tasks.start_soon(commit, store, offsets)
        await wait_all_tasks_blocked()

        assert brokers.kept == {queue(n, "broker-b"): n for n in range(40)}
        brokers.let_go("broker-a")
    assert len(brokers.kept) == 80


async def test_a_broker_of_logical_queues_that_does_not_answer_does_not_delay_others(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    logical = [queue(number, "__syslo__global__") for number in range(40)]
    await commit(store, dict.fromkeys(logical, 1))
    brokers.owners = {each: f"broker-{'ab'[each.queue_id // 20]}" for each in logical}
    brokers.hold("broker-a")
    async with create_task_group() as tasks:
        tasks.start_soon(commit, store, dict.fromkeys(logical, 2))
        await wait_all_tasks_blocked()

        assert [each.queue_id for each in logical if brokers.kept[each] == 2] == [*range(20, 40)]
        brokers.let_go("broker-a")
    assert set(brokers.kept.values()) == {2}


async def test_a_removed_queue_is_forgotten_here_and_kept_at_the_broker(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, {queue(0): 10})
    await store.update(queue(0), 11)

    await store.remove(queue(0))
    await store.persist([queue(0)])

    assert brokers.kept == {queue(0): 10}
    assert await store.read(queue(0)) == 10


async def test_a_queue_removed_during_its_commit_stays_removed(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    async with commit_under_way(brokers, store, 10):
        await store.remove(queue(0))
    brokers.updates.clear()

    await commit(store, {queue(0): 10})

    assert brokers.updates == [(queue(0), 10)]


async def test_a_commit_invalidated_before_its_response_is_sent_again(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    async with commit_under_way(brokers, store, 10):
        assert store.invalidate(queue(0))

    assert brokers.updates == [(queue(0), 10), (queue(0), 10)]


async def test_an_offset_changed_by_another_client_can_be_set_back(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, {queue(0): 100})
    brokers.kept[queue(0)] = 50
    assert await store.read(queue(0)) == 50

    await store.persist([queue(0)])
    assert brokers.kept == {queue(0): 50}
    await commit(store, {queue(0): 100})
    assert brokers.kept == {queue(0): 100}


async def test_an_update_during_a_read_is_not_forgotten(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, {queue(0): 100})
    brokers.kept[queue(0)] = 50
    brokers.hold()
    async with create_task_group() as tasks:
        tasks.start_soon(store.read, queue(0))
        await wait_all_tasks_blocked()
        await store.update(queue(0), 120)
        brokers.let_go()

    assert await store.read(queue(0)) == 120


async def test_topics_whose_queues_are_removed_are_forgotten(store: RemoteOffsetStore) -> None:
    for number in range(10):
        other = MessageQueue(f"topic-{number}", "broker-a", 0)
        await commit(store, {other: number})
        await store.remove(other)

    assert len(store._known) <= 1


async def test_an_unexpected_error_is_not_a_failed_commit(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.errors = {queue(0): [ZeroDivisionError()]}

    with pytest.raises(ZeroDivisionError):
        await commit(store, {queue(0): 10})


@pytest.mark.parametrize("offset", [-1, MAX_OFFSET + 1, True, 1.0, "1", None])
def test_an_invalid_offset_is_refused(offset: object) -> None:
    with pytest.raises(ConfigError, match="offset="):
        check_offset(offset)


async def test_a_refused_offset_leaves_the_last_one(store: RemoteOffsetStore) -> None:
    await store.update(queue(0), 3)
    with pytest.raises(ConfigError):
        await store.update(queue(0), -3)

    assert await store.read(queue(0)) == 3


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("persist"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("vanish"), st.integers(0, 2), st.just(0)),
    ),
    max_size=30,
)


async def run(steps: list[tuple[str, int, int]]) -> None:
    brokers = Brokers()
    store = RemoteOffsetStore(brokers, "billing")
    wanted: dict[MessageQueue, int] = {}
    for kind, queue_id, offset in steps:
        each = queue(queue_id)
        if kind == "update":
            wanted[each] = offset
            await store.update(each, offset)
        elif kind == "persist":
            await persist_or_lose(store, each)
        elif each in wanted:
            brokers.errors.setdefault(each, []).append(TIMEOUT)
            if kind == "vanish":
                await persist_or_lose(store, each)
                brokers.kept[each] = wanted[each]
    brokers.errors.clear()
    with fail_after(15):
        await store.persist(list(wanted))

    assert brokers.kept == wanted


async def persist_or_lose(store: RemoteOffsetStore, each: MessageQueue) -> None:
    with suppress(CommitError):
        await store.persist([each])


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_the_last_updates_reach_the_broker_after_any_failures(
    steps: list[tuple[str, int, int]],
) -> None:
    asyncio.run(run(steps))
