"""After a standstill the progress of others is not set back, and one's own goes through."""

from __future__ import annotations

import pytest

from rocketmq_aio.consumer.group.stall_detector import STALL_SECONDS
from rocketmq_aio.consumer.lite_pull.manual_commit import RequestedCommits
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.commit_fence import CommitFence, may_commit
from rocketmq_aio.consumer.pulling.queue_state import UNKNOWN
from rocketmq_aio.errors import CommitError
from rocketmq_aio.model.values import MessageQueue
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.consuming import GROUP, TOPIC, committed, consuming, numbers, polled, put
from tests.unit.consumer.parts import assigned_queue, queue
from tests.unit.consumer.stores import AppStore, StoreError

HERE, THERE = 3, 8
LOST = StoreError("down")


class Bench:
    """A member that has settled three of ten messages, of which five were handed out."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = AppStore()
        self.queue = queue(0)
        self.assigned = assigned_queue(0, cached=10)
        self.assigned.take(HERE)
        self.assigned.settle()
        self.assigned.take(2)
        self.table: dict[MessageQueue, PolledQueue] = {self.queue: self.assigned}
        self.floors = CommitFence(self.store, self.table, clock=lambda: self.now)
        self.commits = RequestedCommits(
            self.store, self.table, automatic=True, floors=self.floors, on_event=lambda _: None
        )

    def stand_still(self, others: int | None = None) -> None:
        """Not run for a while; in the meantime *others* have come as far."""
        self.now += STALL_SECONDS + 1
        if others is not None:
            self.store.kept[self.queue] = others

    async def commit_progress(self) -> int | None:
        """Return what is kept after a commit of what is settled."""
        await self.commits.commit_progress(self.table.values())
        return self.store.kept.get(self.queue)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_without_a_standstill_nobody_is_asked(bench: Bench) -> None:
    bench.now += STALL_SECONDS

    assert await bench.commit_progress() == HERE
    assert bench.store.called("read") == []


async def test_what_others_have_done_is_not_set_back(bench: Bench) -> None:
    bench.stand_still(THERE)

    assert await bench.commit_progress() == THERE
    bench.assigned.take(5)
    bench.assigned.settle()
    assert await bench.commit_progress() == 10


@pytest.mark.parametrize("others", [None, 0, HERE])
async def test_own_progress_goes_through_where_nobody_was_further(
    bench: Bench, others: int | None
) -> None:
    bench.stand_still(others)

    assert await bench.commit_progress() == HERE


async def test_it_is_asked_once_per_standstill(bench: Bench) -> None:
    for standstills in (1, 2):
        bench.stand_still(THERE)
        await bench.commit_progress()
        await bench.commit_progress()

        assert len(bench.store.called("read")) == standstills


async def test_while_it_cannot_be_known_nothing_is_committed(bench: Bench) -> None:
    bench.store.fail["read"] = LOST
    bench.stand_still()

    assert await bench.commit_progress() is None
    with pytest.raises(CommitError) as caught:
        await bench.commits.commit(None)
    assert caught.value.lost == {bench.queue: LOST}
    del bench.store.fail["read"]
    assert await bench.commit_progress() == 5  # which `commit` has declared done


@pytest.mark.parametrize("collection", [False, True])
async def test_a_commit_of_what_was_returned_sets_nobody_back(
    bench: Bench, collection: bool
) -> None:
    bench.stand_still(THERE)
    await bench.commits.commit([bench.queue] if collection else None)

    assert bench.store.kept == {bench.queue: THERE}


async def test_an_offset_that_the_application_names_is_committed(bench: Bench) -> None:
    bench.stand_still(THERE)
    await bench.commits.commit({bench.queue: 1})

    assert bench.store.kept == {bench.queue: 1}
    assert await bench.commit_progress() == 1


async def test_a_seek_may_go_back_behind_others(bench: Bench) -> None:
    bench.stand_still(THERE)
    await bench.commit_progress()
    bench.assigned.move(0)

    assert await bench.commit_progress() == 0


async def test_another_filter_is_no_reason_to_go_back(bench: Bench) -> None:
    bench.stand_still(THERE)
    await bench.commit_progress()
    bench.assigned.refetch()

    assert await bench.commit_progress() == THERE


async def test_an_answer_from_before_another_standstill_says_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bench.store.read

    async def read_slowly(each: MessageQueue) -> int | None:
        answer = await read(each)
        bench.stand_still(THERE)
        bench.floors.look()
        return answer

    bench.stand_still()
    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "read", read_slowly)
        assert await bench.commit_progress() == THERE
    assert bench.assigned.doubted
    assert await bench.commit_progress() == THERE
    assert (bench.assigned.floor, bench.assigned.doubted) == (THERE, False)


def test_a_queue_without_doubt_may_be_committed_anywhere(bench: Bench) -> None:
    assert bench.assigned.floor == UNKNOWN
    assert may_commit(bench.assigned, 0)


# --- in a consumer --------------------------------------------------------------------------------


async def test_a_consumer_that_stood_still_catches_up_before_it_commits() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consuming(cluster, commit_interval_seconds=0.01) as consumer:
            floors = consumer._engine._floors
            assert floors is not None
            await polled(consumer, 2, max_messages=2)
            await polled(consumer, 2, max_messages=2)
            await committed(cluster, {0: 2})
            cluster.broker.commit(GROUP, TOPIC, 0, THERE)
            floors._seen -= STALL_SECONDS + 1

            seen = []
            for _ in range(3):
                await polled(consumer, 2, max_messages=2)
                await consumer.commit()
                seen.append(cluster.broker.committed(GROUP, TOPIC, 0))
            assert seen == [THERE, THERE, 10]
            await committed(cluster, {0: 10})
