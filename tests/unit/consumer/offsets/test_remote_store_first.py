"""RemoteOffsetStore: first commits of a topic, and commits that a broker lost."""

from __future__ import annotations

import asyncio

import pytest
from anyio import create_task_group, wait_all_tasks_blocked

from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.errors import CommitError, RequestTimeoutError
from tests.unit.consumer.offset_brokers import Brokers
from tests.unit.consumer.parts import queue

TIMEOUT = RequestTimeoutError("127.0.0.1:10911", 15, 3.0)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def store(brokers: Brokers) -> RemoteOffsetStore:
    return RemoteOffsetStore(brokers, "billing")


async def commit(store: RemoteOffsetStore, *numbers: int) -> None:
    for number in numbers:
        await store.update(queue(number), number)
    await store.persist([queue(number) for number in numbers])


async def test_the_first_commit_of_a_topic_is_sent_alone(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.hold()
    async with create_task_group() as tasks:
        tasks.start_soon(commit, store, 0, 1, 2, 3)
        tasks.start_soon(commit, store, 4, 5, 6, 7)
        await wait_all_tasks_blocked()
        assert len(brokers.updates) == 1
        brokers.let_go()

    assert brokers.kept == {queue(number): number for number in range(8)}


async def test_every_broker_and_topic_has_its_own_first(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    firsts = [queue(0), queue(1), queue(0, "broker-b"), queue(0, topic="invoices")]
    brokers.hold()
    brokers.hold("broker-b")
    for each in firsts:
        await store.update(each, 7)
    persisting = asyncio.create_task(store.persist(firsts))
    await wait_all_tasks_blocked()

    assert {each for each, _ in brokers.updates} == set(firsts) - {queue(1)}
    brokers.let_go()
    brokers.let_go("broker-b")
    await persisting


async def test_every_broker_of_a_static_topic_has_its_own_first(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    """Its queues have the name of a logical broker."""
    brokers.owners = {queue(number): f"broker-{number % 2}" for number in range(4)}
    for broker in ("broker-0", "broker-1"):
        brokers.hold(broker)
    committing = asyncio.create_task(commit(store, 0, 1, 2, 3))
    await wait_all_tasks_blocked()

    assert [each for each, _ in brokers.updates] == [queue(0), queue(1)]
    for broker in ("broker-0", "broker-1"):
        brokers.let_go(broker)
    await committing


async def test_later_commits_are_concurrent(brokers: Brokers, store: RemoteOffsetStore) -> None:
    await commit(store, 0)
    brokers.hold()
    committing = asyncio.create_task(commit(store, 1, 2, 3))
    await wait_all_tasks_blocked()

    assert len(brokers.updates) == 4
    brokers.let_go()
    await committing


async def test_after_a_failed_first_commit_the_next_is_sent_alone(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.errors[queue(0)] = [TIMEOUT]
    with pytest.raises(CommitError) as caught:
        await commit(store, 0, 1, 2)

    assert set(caught.value.lost) == {queue(0)}
    assert set(brokers.kept) == {queue(1), queue(2)}


async def test_after_an_unanswered_first_commit_the_others_are_concurrent(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.errors[queue(0)] = [TIMEOUT]
    for number in range(8):
        await store.update(queue(number), 7)
    brokers.hold()
    persisting = asyncio.create_task(store.persist([queue(number) for number in range(8)]))
    await wait_all_tasks_blocked()
    brokers.let_go()
    brokers.hold()
    await wait_all_tasks_blocked()
    sent = len(brokers.updates)
    brokers.let_go()
    with pytest.raises(CommitError) as caught:
        await persisting

    assert sent == 8
    assert set(caught.value.lost) == {queue(0)}


async def test_after_a_broker_failure_the_first_commit_is_sent_alone_again(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, 0)
    brokers.errors[queue(1)] = [TIMEOUT]
    with pytest.raises(CommitError):
        await commit(store, 1)
    brokers.hold()
    committing = asyncio.create_task(commit(store, 1, 2, 3))
    await wait_all_tasks_blocked()

    assert len(brokers.updates) == 3
    brokers.let_go()
    await committing


async def test_invalidated_commits_are_sent_again(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    await commit(store, 0, 1)
    store.invalidate(queue(1))
    await store.persist([queue(0), queue(1)])

    assert brokers.updates == [(queue(0), 0), (queue(1), 1), (queue(1), 1)]


async def test_without_a_commit_nothing_is_invalidated(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    store.invalidate(queue(0))
    await store.persist([queue(0)])

    assert brokers.updates == []


async def test_a_waiting_commit_of_a_lost_queue_is_not_sent(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    ours = {queue(0), queue(1), queue(2)}
    store.may_send = ours.__contains__
    brokers.hold()
    committing = asyncio.create_task(commit(store, 0, 1, 2))
    await wait_all_tasks_blocked()
    ours.remove(queue(1))  # the process stalled, and others have it now
    brokers.let_go()

    with pytest.raises(CommitError) as caught:
        await committing
    assert list(caught.value.lost) == [queue(1)]
    assert "may be assigned to another member" in str(caught.value)
    assert brokers.kept == {queue(0): 0, queue(2): 2}


async def test_a_waiting_commit_of_a_removed_queue_is_not_sent(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.hold()
    committing = asyncio.create_task(commit(store, 0, 1, 2))
    await wait_all_tasks_blocked()
    await store.remove(queue(1))
    brokers.kept[queue(1)] = 20  # by the member that has it now
    brokers.let_go()

    with pytest.raises(CommitError) as caught:
        await committing
    assert list(caught.value.lost) == [queue(1)]
    assert brokers.kept == {queue(0): 0, queue(1): 20, queue(2): 2}


async def test_a_waiting_commit_sends_the_last_update(
    brokers: Brokers, store: RemoteOffsetStore
) -> None:
    brokers.hold()
    committing = asyncio.create_task(commit(store, 0, 1))
    await wait_all_tasks_blocked()
    await store.remove(queue(1))
    await store.update(queue(1), 20)  # it was assigned again
    brokers.let_go()
    await committing

    assert brokers.kept == {queue(0): 0, queue(1): 20}
