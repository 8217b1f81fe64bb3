"""PolledQueue: no message skipped or repeated, and committable offsets."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.pull_loop import queue_state
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.consumer.pull_loop.queue_state import (
    TRUSTED,
    UNKNOWN,
    UNVERIFIED,
    WRITTEN_SECONDS,
)
from rocketmq_aio.errors import OffsetIllegalError
from tests.unit.consumer.parts import assigned_queue, message, offsets, pull, queue

LOG_END = 200
UNWANTED = 5  # every fifth message is filtered out


class QueueModel(RuleBasedStateMachine):
    """A queue beside a list of what should come out of it next."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.assigned = PolledQueue(queue(), self.cache)
        self.assigned.begin(0)
        self.next = 0  # everything below was handed out or is not wanted
        self.done = 0  # everything below was settled

    @rule(most=st.integers(1, 40))
    def pulled(self, most: int) -> None:
        begin = self.assigned.next_offset
        end = min(begin + most, LOG_END)
        pull(
            self.assigned,
            *[offset for offset in range(begin, end) if offset % UNWANTED],
            next_offset=end,
        )

    @rule(limit=st.integers(1, 50))
    def take(self, limit: int) -> None:
        if self.assigned.process_queue.count:
            for taken in self.assigned.take(limit):
                self.expect(taken.queue_offset)

    @rule()
    def take_one(self) -> None:
        if self.assigned.process_queue.count:
            self.expect(self.assigned.take_one().queue_offset)

    def expect(self, offset: int) -> None:
        assert offset == next(o for o in range(self.next, LOG_END) if o % UNWANTED)
        self.next = offset + 1

    @rule()
    def mark_done(self) -> None:
        self.assigned.mark_processed()
        self.done = self.next

    @rule(to=st.integers(0, LOG_END))
    def seek(self, to: int) -> None:
        self.assigned.move(to)
        self.next = self.done = to

    @rule()
    def other_expression(self) -> None:
        self.assigned.refetch()

    @rule(to=st.integers(0, LOG_END))
    def broker_lost_its_tail(self, to: int) -> None:
        if to < self.assigned.next_offset:
            self.assigned.step_back(to)
            self.next = min(self.next, to)
            self.done = min(self.done, self.next)

    @invariant()
    def offsets_ascend(self) -> None:
        assigned = self.assigned
        assert assigned.committable <= assigned.delivered <= assigned.next_offset

    @invariant()
    def nothing_wanted_lies_below_what_may_be_committed(self) -> None:
        settled = self.assigned.committable
        assert not [o for o in range(self.done, settled) if o % UNWANTED]

    @invariant()
    def committable_covers_processed_messages(self) -> None:
        assert self.assigned.committable >= self.done

    @invariant()
    def the_cache_knows_what_is_held(self) -> None:
        held = self.assigned.process_queue
        assert (self.cache.count, self.cache.size_bytes) == (held.count, held.size_bytes)


def test_an_assignment_delivers_every_matching_message_once() -> None:
    async def in_a_loop() -> None:
        run_state_machine_as_test(QueueModel, settings=settings(stateful_step_count=40))

    asyncio.run(in_a_loop())


def test_a_new_queue_has_no_start_offset() -> None:
    assigned = PolledQueue(queue(), Cache())

    assert assigned.delivered == assigned.committable == UNKNOWN
    assert not assigned.has_in_flight


def test_messages_in_flight_are_not_committable() -> None:
    assigned = assigned_queue(cached=3)
    assigned.take(2)

    assert (assigned.delivered, assigned.committable, assigned.has_in_flight) == (2, 0, True)


def test_polling_again_marks_only_delivered_messages_as_processed() -> None:
    assigned = assigned_queue(cached=3)
    assigned.take(2)
    assigned.mark_processed()

    assert (assigned.committable, assigned.has_in_flight) == (2, False)


def test_a_queue_without_matching_messages_advances() -> None:
    assigned = assigned_queue()
    pull(assigned, next_offset=32)

    assert (assigned.delivered, assigned.committable) == (32, 32)


def test_filtered_messages_behind_those_in_flight_are_committable_with_them() -> None:
    assigned = assigned_queue(cached=3)
    assigned.take(3)
    pull(assigned, next_offset=10)

    assert (assigned.delivered, assigned.committable) == (10, 0)
    assigned.mark_processed()
    assert assigned.committable == 10


def test_filtered_messages_behind_cached_ones_wait_for_them() -> None:
    assigned = assigned_queue()
    pull(assigned, 0, 1, next_offset=10)
    assigned.take_one()

    assert (assigned.delivered, assigned.next_offset) == (1, 10)


def test_the_application_may_set_the_processed_offset() -> None:
    assigned = assigned_queue(cached=10)
    assigned.take(10)
    assigned.mark_processed_at(4)

    assert (assigned.committable, assigned.has_in_flight) == (4, True)


def test_the_next_poll_does_not_undo_a_commit() -> None:
    assigned = assigned_queue(cached=10)
    assigned.take(2)
    assigned.mark_processed_at(8)
    assigned.mark_processed()
    pull(assigned, next_offset=10)

    assert (assigned.committable, assigned.has_in_flight) == (8, False)


@pytest.mark.parametrize("how", ["mark_processed", "mark_processed_at"])
async def test_marking_the_last_batch_wakes_wait_until_drained(how: str) -> None:
    assigned = assigned_queue(cached=3)
    assigned.take(3)
    assigned.drained = anyio.Event()
    assigned.mark_processed_at(2)
    assert not assigned.drained.is_set()

    assigned.mark_processed() if how == "mark_processed" else assigned.mark_processed_at(3)

    assert assigned.drained.is_set()


def test_a_seek_forgets_cache_failure_and_older_pulls() -> None:
    assigned = assigned_queue(cached=5)
    generation = assigned.generation
    assigned.move(3)

    assert assigned.process_queue.count == 0
    assert assigned.next_offset == assigned.delivered == assigned.committable == 3
    assert assigned.generation != generation


def test_messages_are_delivered_again_after_a_seek_back() -> None:
    assigned = assigned_queue(cached=5)
    assigned.take(5)
    assigned.move(2)
    pull(assigned, 2, 3)

    assert offsets(assigned.take(10)) == [2, 3]


def test_a_seek_before_the_start_is_known_decides_where_to_begin() -> None:
    assigned = PolledQueue(queue(), Cache())
    assigned.move(7)

    assert assigned.started.is_set()
    assert assigned.next_offset == 7


def test_a_commit_before_the_start_is_known_is_kept() -> None:
    assigned = PolledQueue(queue(), Cache())
    assigned.mark_processed_at(50)
    assigned.begin(7)

    assert (assigned.delivered, assigned.committable) == (7, 50)


def test_stepping_back_keeps_undelivered_messages() -> None:
    assigned = assigned_queue(begin=50, cached=50)
    assigned.take(5)

    assert assigned.step_back(80) == 45
    assert assigned.next_offset == assigned.delivered == 55
    assert assigned.committable == 50


@pytest.mark.parametrize(("end", "committable"), [(80, 50), (45, 45)])
def test_without_auto_commit_stepping_back_commits_no_delivered_messages(
    end: int, committable: int
) -> None:
    assigned = assigned_queue(begin=50, cached=50, auto_commit=False)
    assigned.take(5)
    assigned.step_back(end)

    assert assigned.committable == committable


@pytest.mark.parametrize("how", ["take", "take_one"])
def test_filtered_messages_behind_the_last_one_are_processed_with_it(how: str) -> None:
    assigned = assigned_queue()
    pull(assigned, 0, 1, next_offset=10)
    assigned.take(2) if how == "take" else [assigned.take_one() for _ in range(2)]
    assigned.mark_processed()

    assert assigned.committable == 10


def test_filtered_messages_do_not_undo_a_commit_behind_them() -> None:
    assigned = assigned_queue()
    assigned.mark_processed_at(50)
    assigned.advance(10)

    assert assigned.committable == 50


def test_without_auto_commit_filtered_messages_that_are_pulled_again_are_not_committed() -> None:
    assigned = assigned_queue(auto_commit=False)
    assigned.advance(20)
    assigned.rescan(9)

    assert assigned.committable == 0


def test_refetch_forgets_what_the_former_expression_excluded_but_not_the_log() -> None:
    assigned = assigned_queue(begin=2)
    assigned.last_message, assigned.filtered_from = (1, b"head"), 2
    assigned.refetch()

    assert not assigned.was_filtered(2)
    assert assigned.last_message == (1, b"head")


def test_pulling_filtered_messages_again_skips_no_others() -> None:
    assigned = assigned_queue(begin=2)
    assigned.rescan(9)
    assert assigned.next_offset == 2

    assigned.advance(9)
    assigned.rescan(5)
    assert assigned.next_offset == 5


def test_filtered_offsets_that_are_pulled_again_are_not_committed() -> None:
    assigned = assigned_queue(begin=2)
    assigned.advance(9)
    assigned.rescan(5)
    assigned.mark_processed()

    assert (assigned.delivered, assigned.committable, assigned.has_in_flight) == (5, 5, False)


def test_pulling_filtered_messages_again_marks_no_cached_ones_as_processed() -> None:
    assigned = assigned_queue(cached=5)
    assigned.take(2)
    assigned.advance(20)
    assigned.rescan(9)

    assert (assigned.delivered, assigned.committable, assigned.next_offset) == (2, 0, 9)
    assert offsets(assigned.take(10)) == [2, 3, 4]


def test_a_commit_of_filtered_offsets_is_taken_back_if_they_are_pulled_again() -> None:
    assigned = assigned_queue(auto_commit=False)
    assigned.advance(20)
    assigned.mark_processed_at(20)
    assigned.rescan(9)

    assert assigned.committable == 9


def test_without_auto_commit_a_seek_back_takes_commits_back_and_commits_no_progress() -> None:
    assigned = assigned_queue(auto_commit=False, cached=10)
    assigned.mark_processed_at(8)
    assigned.seek(3)
    assert assigned.committable == 3
    assigned.seek(9)
    assert assigned.committable == 3


def test_without_auto_commit_a_seek_before_the_start_is_where_the_group_begins() -> None:
    assigned = PolledQueue(queue(), Cache(), auto_commit=False)
    assigned.seek(5)

    assert assigned.committable == 5


@pytest.mark.parametrize("others", [UNVERIFIED, 4])
def test_a_position_is_not_set_to_an_unknown_or_lower_offset_of_others(others: int) -> None:
    assigned = assigned_queue(cached=5)
    assigned.take(5)
    assigned.min_commit_offset = others

    assert not assigned.catch_up()
    assert assigned.delivered == 5


def test_a_queue_that_waits_for_a_seek_is_not_moved_to_the_offset_of_others() -> None:
    assigned = assigned_queue()
    assigned.failure = OffsetIllegalError(21, "OFFSET_TOO_SMALL")
    assigned.min_commit_offset = 9

    assert not assigned.catch_up()
    assert assigned.failure is not None


def test_a_queue_without_a_start_is_not_moved_to_the_offset_of_others() -> None:
    assigned = PolledQueue(queue(), Cache())
    assigned.min_commit_offset = 9

    assert not assigned.catch_up()
    assert not assigned.started.is_set()


def test_a_position_that_was_set_counts_also_after_filtered_messages_are_pulled_again() -> None:
    assigned = assigned_queue()
    assigned.seek(5)
    assigned.advance(20)
    assigned.rescan(9)
    assigned.invalidate_commits()

    assert assigned.min_commit_offset == TRUSTED


def test_a_broker_may_return_a_former_commit_until_it_has_written_the_one_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(queue_state, "boottime", lambda: now)
    assigned = assigned_queue(begin=8)
    assigned.seek(1)
    assigned.note_committed()
    now = WRITTEN_SECONDS - 1
    assigned.note_committed()  # a later one
    now = WRITTEN_SECONDS
    assigned.invalidate_commits()
    assigned.require(8)

    assert assigned.min_commit_offset == 8


def test_a_refused_start_does_not_undo_a_seek() -> None:
    assigned = PolledQueue(queue(), Cache())
    assigned.seek(7)
    assigned.fail_start()

    assert assigned.started.is_set()


def test_no_log_is_compared_with_messages_from_before_a_seek() -> None:
    """Those that the seek skips are not missed when the log changes."""
    assigned = assigned_queue(begin=2)
    assigned.last_message = assigned.before_hold = 1, b"head"
    assigned.seek(9)

    assert not assigned.last_message
    assert not assigned.before_hold


def test_a_commit_that_was_under_way_does_not_end_a_doubt() -> None:
    assigned = assigned_queue(begin=2)
    assigned.invalidate_commits()
    assigned.note_committed()

    assert assigned.min_commit_offset == UNVERIFIED


def test_a_wiped_broker_is_read_from_its_beginning() -> None:
    assigned = assigned_queue(begin=50, cached=50)
    assigned.take(5)
    assigned.step_back(0)

    assert assigned.next_offset == assigned.delivered == assigned.committable == 0


def test_refetch_keeps_messages_in_flight() -> None:
    assigned = assigned_queue(cached=5)
    assigned.take(2)
    assigned.refetch()

    assert (assigned.next_offset, assigned.delivered, assigned.committable) == (2, 2, 0)


def test_refetch_before_the_start_changes_nothing() -> None:
    assigned = PolledQueue(queue(), Cache())
    assigned.refetch()

    assert assigned.next_offset == UNKNOWN
    assert not assigned.started.is_set()


async def test_drop_wakes_all_callers() -> None:
    assigned = PolledQueue(queue(), Cache())
    with anyio.CancelScope() as assigned.scope:
        assigned.drop()
        await anyio.sleep_forever()

    assert assigned.started.is_set()


async def test_room_in_the_cache_wakes_the_pull_loops_that_wait_for_it() -> None:
    cache = Cache()
    full, blocked = assigned_queue(0, cached=9, cache=cache), assigned_queue(1, cache=cache)
    blocked.wake = asyncio.get_running_loop().create_future()
    cache.blocked.add(blocked)
    full.drop()

    assert blocked.wake.done()


def test_sizes_are_those_of_the_bodies() -> None:
    cache = Cache()
    assigned = assigned_queue(cache=cache)
    assigned.put([message(0, size=10), message(1, size=20), message(2, size=30)])
    assert (cache.count, cache.size_bytes) == (3, 60)

    assigned.take_one()
    assert (cache.count, cache.size_bytes) == (2, 50)
    assigned.take(1)
    assert (cache.count, cache.size_bytes) == (1, 30)
