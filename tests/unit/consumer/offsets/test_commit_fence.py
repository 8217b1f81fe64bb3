"""CommitFence: commits after a stall."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketmq_aio.consumer.common import clock
from rocketmq_aio.consumer.common.events import CommitFailed, ConsumerEvent
from rocketmq_aio.consumer.lite_pull.manual_commit import ManualCommits
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.commit_fence import (
    SHORT_STALL_SECONDS,
    STALL_SECONDS,
    CommitFence,
)
from rocketmq_aio.consumer.offsets.remote_store import SENDS_PER_BROKER, RemoteOffsetStore
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, UNVERIFIED, WRITTEN_SECONDS
from rocketmq_aio.errors import CommitError
from rocketmq_aio.model.values import MessageQueue
from tests.fakes.cluster import FakeCluster
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
from tests.unit.consumer.offset_brokers import Brokers
from tests.unit.consumer.parts import assigned_queue, break_down, queue
from tests.unit.consumer.pushing import Notes, pushing
from tests.unit.consumer.stores import AppStore, StoreError
from tests.unit.remoting.until import until

HERE, THERE = 3, 8
LOST = StoreError("down")


class FenceEnv:
    """A queue of ten messages: five delivered, three of them processed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.connection = 1
        self.store = AppStore()
        self.events: list[ConsumerEvent] = []
        self.queue = queue(0)
        self.assigned = assigned_queue(0, cached=10)
        self.assigned.take(HERE)
        self.assigned.mark_processed()
        self.assigned.take(2)
        self.table: dict[MessageQueue, PolledQueue] = {self.queue: self.assigned}
        self.fence = CommitFence(
            self.store, self.table, connection=lambda _: self.connection, clock=lambda: self.now
        )
        self.fence.note_connection(self.assigned)
        self.commits = ManualCommits(
            self.store, self.table, automatic=True, fence=self.fence, on_event=self.events.append
        )

    def stall(self, others: int | None = None) -> None:
        """Stall, during which another member commits *others*."""
        self.now += STALL_SECONDS + 1
        if others is not None:
            self.store.kept[self.queue] = others

    async def commit_progress(self) -> int | None:
        """Commit progress; return the stored offset."""
        await self.commits.commit_progress(self.table.values())
        return self.store.kept.get(self.queue)

    def add_queue(self, committable: int) -> MessageQueue:
        other = self.table[queue(1)] = assigned_queue(1, begin=committable)
        self.fence.note_connection(other)
        return other.queue


@pytest.fixture
def env() -> FenceEnv:
    return FenceEnv()


async def test_without_a_stall_the_store_is_not_read(env: FenceEnv) -> None:
    env.now += SHORT_STALL_SECONDS

    assert await env.commit_progress() == HERE
    assert env.store.called("read") == []


async def test_a_short_stall_in_which_a_broker_can_restart_is_no_reason_to_revoke(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled: list[list[PolledQueue]] = []
    monkeypatch.setattr(env.fence, "_on_stall", stalled.append)
    env.now += SHORT_STALL_SECONDS + 1
    env.store.kept[env.queue] = THERE

    assert await env.commit_progress() == THERE
    assert stalled == []
    env.stall()
    await env.commit_progress()
    assert stalled == [[env.assigned]]


async def test_an_offset_below_the_commit_of_another_member_is_not_committed(env: FenceEnv) -> None:
    env.stall(THERE)

    assert await env.commit_progress() == THERE
    env.assigned.take(5)
    env.assigned.mark_processed()
    assert await env.commit_progress() == 10


@pytest.mark.parametrize("others", [None, 0, HERE])
async def test_progress_is_committed_if_no_other_member_committed_more(
    env: FenceEnv, others: int | None
) -> None:
    env.stall(others)

    assert await env.commit_progress() == HERE


async def test_the_store_is_read_once_per_stall(env: FenceEnv) -> None:
    for stalls in (1, 2):
        env.stall(THERE)
        await env.commit_progress()
        await env.commit_progress()

        assert len(env.store.called("read")) == stalls


async def test_nothing_is_committed_while_the_store_cannot_be_read(env: FenceEnv) -> None:
    env.store.fail["read"] = LOST
    env.stall()

    assert await env.commit_progress() is None
    with pytest.raises(CommitError) as caught:
        await env.commits.commit(None)
    assert caught.value.lost == {env.queue: LOST}
    del env.store.fail["read"]
    assert await env.commit_progress() == 5  # `commit` marked them as processed


@pytest.mark.parametrize("collection", [False, True])
async def test_a_manual_commit_of_delivered_messages_keeps_what_others_committed(
    env: FenceEnv, collection: bool
) -> None:
    env.stall(THERE)
    await env.commits.commit([env.queue] if collection else None)

    assert env.store.kept == {env.queue: THERE}


async def test_a_manual_commit_of_an_offset_replaces_what_others_committed(env: FenceEnv) -> None:
    env.stall(THERE)
    await env.commits.commit({env.queue: 1})

    assert env.store.kept == {env.queue: 1}
    assert await env.commit_progress() == 1


async def test_a_queue_that_was_cut_off_commits_no_less_than_others(env: FenceEnv) -> None:
    other = env.add_queue(5)
    env.assigned.invalidate_commits()
    env.store.kept[env.queue] = THERE

    assert await env.commit_progress() == THERE
    assert env.store.kept[other] == 5
    assert env.store.called("read") == [env.queue]


async def test_the_store_is_read_once_per_new_connection(env: FenceEnv) -> None:
    env.connection = 2
    env.store.kept[env.queue] = THERE

    assert await env.commit_progress() == THERE
    assert await env.commit_progress() == THERE
    env.assigned.mark_processed_at(9)
    assert await env.commit_progress() == 9
    assert env.store.called("read") == [env.queue]


async def test_without_a_connection_the_read_opens_it(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = env.store.read

    async def connect_and_read(each: MessageQueue) -> int | None:
        env.connection = 2
        return await read(each)

    env.connection = 0
    env.store.kept[env.queue] = THERE
    monkeypatch.setattr(env.store, "read", connect_and_read)
    await env.commits.commit([env.queue])

    assert env.store.kept == {env.queue: THERE}
    assert env.assigned.min_commit_offset == THERE


async def test_an_offset_that_was_read_over_a_lost_connection_does_not_count(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = env.store.read

    async def read_and_lose(each: MessageQueue) -> int | None:
        response = await read(each)
        env.connection += 1
        env.store.kept[each] = THERE
        return response

    env.connection = 2
    with monkeypatch.context() as patched:
        patched.setattr(env.store, "read", read_and_lose)
        assert await env.commit_progress() == THERE
    assert await env.commit_progress() == THERE
    assert env.assigned.min_commit_offset == THERE


async def test_a_seek_is_committed_over_another_connection(env: FenceEnv) -> None:
    env.connection = 2
    env.store.kept[env.queue] = THERE
    env.assigned.seek(1)

    assert await env.commit_progress() == 1


async def test_other_queues_are_committed_before_the_offset_of_one_is_read(env: FenceEnv) -> None:
    other = env.add_queue(5)
    env.assigned.invalidate_commits()
    env.store.fail["read"] = LOST
    await env.commit_progress()

    assert env.store.kept == {other: 5}
    assert [each for each, _ in env.store.calls].index("persist") < len(env.store.calls) - 1
    [failed] = env.events
    assert isinstance(failed, CommitFailed)
    assert failed.queues == (env.queue,)


@pytest.mark.parametrize("by_stall", [False, True])
async def test_a_seek_is_committed_though_others_may_have_had_the_queue_since(
    env: FenceEnv, by_stall: bool
) -> None:
    env.assigned.move(1)
    if by_stall:
        env.stall(THERE)
    else:
        env.assigned.invalidate_commits()
        env.store.kept[env.queue] = THERE
    assert await env.commit_progress() == 1
    env.stall(THERE)

    assert await env.commit_progress() == THERE


async def test_a_seek_is_committed_below_what_others_committed(env: FenceEnv) -> None:
    env.stall(THERE)
    await env.commit_progress()
    env.assigned.move(0)

    assert await env.commit_progress() == 0


async def test_a_seek_while_the_offsets_of_others_are_read_is_committed(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = env.store.read

    async def read_slowly(each: MessageQueue) -> int | None:
        response = await read(each)
        env.assigned.move(1)
        return response

    env.stall(THERE)
    monkeypatch.setattr(env.store, "read", read_slowly)

    assert await env.commit_progress() == 1


async def test_a_changed_filter_keeps_the_minimum_commit_offset(env: FenceEnv) -> None:
    env.stall(THERE)
    await env.commit_progress()
    env.assigned.refetch()

    assert await env.commit_progress() == THERE


async def test_a_queue_that_is_read_again_from_an_earlier_offset_is_committed_there(
    env: FenceEnv,
) -> None:
    assert await env.commit_progress() == HERE
    env.assigned.rescan(1)
    env.assigned.invalidate_commits()

    assert await env.commit_progress() == 1


async def test_a_queue_that_was_doubted_before_it_is_read_again_is_committed_there(
    env: FenceEnv,
) -> None:
    env.store.kept[env.queue] = HERE
    env.assigned.invalidate_commits()
    await env.fence.refresh([env.assigned])
    env.assigned.rescan(1)

    assert await env.commit_progress() == 1


async def test_a_queue_that_is_read_again_keeps_what_another_member_committed(
    env: FenceEnv,
) -> None:
    env.assigned.rescan(1)
    env.assigned.invalidate_commits()
    env.store.kept[env.queue] = THERE
    assert await env.commit_progress() == THERE

    env.assigned.rescan(0)
    assert await env.commit_progress() == THERE


@pytest.mark.parametrize("set_back", ["rescan", "move", "step_back"])
async def test_a_broker_that_lost_the_commit_of_an_earlier_position_gets_it_again(
    env: FenceEnv, set_back: str
) -> None:
    assert await env.commit_progress() == HERE
    getattr(env.assigned, set_back)(1)
    assert await env.commit_progress() == 1
    env.assigned.invalidate_commits()
    env.store.kept[env.queue] = HERE

    assert await env.commit_progress() == 1


def stall_again(env: FenceEnv) -> None:
    env.stall(THERE)
    env.fence.check_stall()


def give_to_another(env: FenceEnv) -> None:
    """Do as a revocation whose handlers have ended: the next owner may have committed."""
    env.store.kept[env.queue] = THERE
    env.assigned.invalidate_commits()


@pytest.mark.parametrize("happen", [stall_again, give_to_another])
async def test_an_answer_from_before_others_could_commit_is_ignored(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch, happen: Callable[[FenceEnv], None]
) -> None:
    read = env.store.read

    async def read_slowly(each: MessageQueue) -> int | None:
        response = await read(each)
        happen(env)
        return response

    env.stall()
    with monkeypatch.context() as patched:
        patched.setattr(env.store, "read", read_slowly)
        assert await env.commit_progress() == THERE
    assert env.assigned.min_commit_offset == UNVERIFIED
    assert await env.commit_progress() == THERE
    assert env.assigned.min_commit_offset == THERE


async def test_a_manual_commit_fails_if_the_offsets_of_others_were_read_too_early(
    env: FenceEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = env.store.read

    async def read_meanwhile(each: MessageQueue) -> int | None:
        response = await read(each)
        env.fence.invalidate()  # the group has its members again
        return response

    env.stall(THERE)
    with monkeypatch.context() as patched:
        patched.setattr(env.store, "read", read_meanwhile)
        with pytest.raises(CommitError, match="commit again"):
            await env.commits.commit(None)
    assert env.store.kept == {env.queue: THERE}

    await env.commits.commit(None)


@pytest.mark.parametrize("manual", [False, True])
async def test_commits_that_wait_during_a_stall_are_not_sent_after_it(manual: bool) -> None:
    brokers, now = Brokers(), 0.0
    events: list[ConsumerEvent] = []
    store = RemoteOffsetStore(brokers, "billing")
    table = {queue(n): assigned_queue(n, begin=HERE) for n in range(2)}
    fence = CommitFence(store, table, clock=lambda: now)
    commits = ManualCommits(store, table, automatic=True, fence=fence, on_event=events.append)
    brokers.hold()
    commit = commits.commit(None) if manual else commits.commit_progress(table.values())
    task = asyncio.create_task(commit)
    await until(lambda: brokers.updates, "the first commit of the topic, which is sent alone")
    now += SHORT_STALL_SECONDS + 1
    brokers.kept[queue(1)] = THERE
    brokers.let_go()
    if manual:
        with pytest.raises(CommitError) as caught:
            await task
        assert list(caught.value.lost) == [queue(1)]
    else:
        await task

    assert brokers.kept == {queue(0): HERE, queue(1): THERE}
    assert events == []


@pytest.mark.parametrize("set_back", ["rescan", "move", "step_back"])
async def test_an_earlier_position_that_a_broker_has_written_is_not_committed_below_others(
    env: FenceEnv, set_back: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "_read", lambda: now)  # goes on while the machine is suspended
    assert await env.commit_progress() == HERE
    getattr(env.assigned, set_back)(1)
    assert await env.commit_progress() == 1
    now += WRITTEN_SECONDS
    env.assigned.invalidate_commits()
    env.store.kept[env.queue] = HERE  # by another member

    assert await env.commit_progress() == HERE


@pytest.mark.parametrize("others", [1, THERE])
async def test_a_manual_commit_of_a_queue_refreshed_while_it_waits_fails_unless_others_have_more(
    others: int,
) -> None:
    brokers = Brokers()
    store = RemoteOffsetStore(brokers, "billing")
    table = {queue(n): assigned_queue(n, begin=HERE) for n in range(SENDS_PER_BROKER + 1)}
    last = table[queue(SENDS_PER_BROKER)]
    fence = CommitFence(store, table)
    events: list[ConsumerEvent] = []
    commits = ManualCommits(store, table, automatic=False, fence=fence, on_event=events.append)
    await commits.commit(dict.fromkeys(table, 1))
    brokers.kept[last.queue] = others
    brokers.hold()
    committing = asyncio.create_task(commits.commit(None))
    await until(lambda: brokers.running["broker-a"] == SENDS_PER_BROKER, "the first commits")
    last.invalidate_commits()
    refreshing = asyncio.create_task(fence.refresh([last]))
    await until(lambda: brokers.queries, "the query")
    brokers.let_go()

    if others == THERE:
        await committing
    else:
        with pytest.raises(CommitError, match="commit again") as caught:
            await committing
        assert list(caught.value.lost) == [last.queue]
    assert await refreshing == {}
    assert brokers.kept == dict.fromkeys(table, HERE) | {last.queue: others}
    await commits.commit(None)
    assert brokers.kept[last.queue] == max(others, HERE)


def test_without_a_stall_every_offset_may_be_committed(env: FenceEnv) -> None:
    env.assigned.mark_processed_at(0)

    assert env.assigned.min_commit_offset == UNKNOWN
    assert env.fence.may_commit(env.assigned)


async def test_a_consumer_reads_what_others_committed_before_it_commits() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consumer_of(cluster, commit_interval_seconds=0.01) as consumer:
            await consumer.assign([queue(0)])  # what others commit does not move the position
            fence = consumer._engine.fence
            assert fence is not None
            await polled(consumer, 2, max_messages=2)
            await polled(consumer, 2, max_messages=2)
            await committed(cluster, {0: 2})
            cluster.broker.commit(GROUP, TOPIC, 0, THERE)
            fence._seen -= STALL_SECONDS + 1

            seen = []
            for _ in range(3):
                await polled(consumer, 2, max_messages=2)
                await consumer.commit()
                seen.append(cluster.broker.committed(GROUP, TOPIC, 0))
            assert seen == [THERE, THERE, 10]
            await committed(cluster, {0: 10})


@pytest.mark.parametrize("manual", [False, True])
async def test_after_a_lost_connection_a_consumer_commits_no_less_than_others(manual: bool) -> None:
    """A broker drops a member whose connection ends, and others get its queues at once."""
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        interval = 3600.0 if manual else 0.01
        async with consumer_of(cluster, commit_interval_seconds=interval) as consumer:
            await consumer.assign([queue(0)])  # what others commit does not move the position
            await polled(consumer, 2, max_messages=2)
            await polled(consumer, 2, max_messages=2)
            await consumer.commit()
            cluster.broker.commit(GROUP, TOPIC, 0, THERE)
            instance, address = consumer.client, cluster.broker.address
            former = instance.connection_number(address)
            for connection in list(cluster.broker.connections.values()):
                connection.abort()
            await until(lambda: instance.current_connection(address) > former)

            seen = []
            for _ in range(3):
                await polled(consumer, 2, max_messages=2)
                if manual:
                    await consumer.commit()
                seen.append(cluster.broker.committed(GROUP, TOPIC, 0))
            assert seen[0] == THERE
            await consumer.commit()
            assert cluster.broker.committed(GROUP, TOPIC, 0) == 10


async def test_a_consumer_has_not_stalled_before_its_start(cluster: FakeCluster) -> None:
    async def on_assigned(_: object) -> None:
        await committed(cluster, {0: 0})  # the start position

    consumer = consumer_of(cluster, start_from="latest", listeners={"on_assigned": on_assigned})
    fence = consumer._engine.fence
    assert fence is not None
    fence._seen -= STALL_SECONDS + 1  # when it was made
    await consumer.assign([queue(0)])
    async with consumer:
        assigned = consumer._engine.table[queue(0)]
        assert (assigned.withheld, assigned.invalidations) == (None, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_timer_of_stalls_ends_with_the_consumer(
    cluster: FakeCluster, fails: bool
) -> None:
    async with consumer_of(cluster) as consumer:
        fence = consumer._engine.fence
        assert fence is not None
        timer = fence._timer
        assert timer is not None
        assert not timer.cancelled()
        if fails:
            consumer.on_failed(ZeroDivisionError("a bug"))
            assert timer.cancelled()

    assert timer.cancelled()


@pytest.mark.parametrize("others", [0, 3])
async def test_close_of_a_failed_consumer_does_not_set_back_what_others_committed(
    cluster: FakeCluster, others: int
) -> None:
    put(cluster, *numbers(3))
    async with consuming(cluster, commit_interval_seconds=3600.0) as failed:
        await polled(failed, 3)
        await failed.poll(0)  # marks them as processed
        break_down(failed)
        await until(lambda: GROUP not in cluster.broker.members.groups, "the group to be left")
        if others:
            put(cluster, *numbers(others))
            async with consuming(cluster) as other:
                await polled(other, 3 + others)

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 3 + others


async def test_a_position_before_the_committed_one_is_committed_when_the_log_ends_there(
    cluster: FakeCluster,
) -> None:
    """A new master can lack messages, and have their committed offset."""
    put(cluster, *numbers(10))
    notes = Notes()
    async with pushing(cluster, notes, commit_interval_seconds=3600.0) as consumer:
        await notes.have(10)
        assigned = consumer._engine.table[queue(0)]
        cluster.broker.commit(GROUP, TOPIC, 0, 20)
        assigned.invalidate_commits()  # after 10 s without a response
        assigned.step_back(5)
        await consumer._engine.on_corrected(assigned)

        assert cluster.broker.committed(GROUP, TOPIC, 0) == 5
