"""ProcessQueue compared with a simple model, and single cases."""

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rocketmq_aio.consumer.pull_loop.process_queue import ProcessQueue
from rocketmq_aio.model.message import MessageExt
from tests.unit.consumer.parts import message, messages, offsets

pytestmark = pytest.mark.usefixtures("each_core")


def queue_of(*offsets: int) -> ProcessQueue:
    queue = ProcessQueue()
    queue.put(messages(*offsets))
    return queue


class Model(RuleBasedStateMachine):
    """A list of (offset, size, done), searched from the start for each result."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue()
        self.held: list[MessageExt] = []
        self.done: set[int] = set()
        self.largest: int | None = None

    @rule(pulled=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=8))
    def put(self, pulled: list[tuple[int, int]]) -> None:
        batch = [message(offset, size=size) for offset, size in pulled]
        new = []
        for each in batch:
            if self.largest is None or each.queue_offset > self.largest:
                self.largest = each.queue_offset
                new.append(each)

        assert self.queue.put(batch) == new
        self.held += new

    @rule()
    def clear(self) -> None:
        open_messages = [each for each in self.held if each.queue_offset not in self.done]

        assert self.queue.clear() == len(open_messages)
        self.held, self.done, self.largest = [], set(), None

    @invariant()
    def answers_are_the_models(self) -> None:
        offsets_held = offsets(self.held)

        assert self.queue.count == len(self.held) - len(self.done)
        assert self.queue.size_bytes == sum(len(each.body) for each in self.held)
        assert self.queue.first_offset == (offsets_held[0] if offsets_held else None)
        assert self.queue.span == (offsets_held[-1] - offsets_held[0] if offsets_held else 0)


class Taking(Model):
    @rule(limit=st.integers(0, 12))
    def take(self, limit: int) -> None:
        assert self.queue.take(limit) == self.held[:limit]
        del self.held[:limit]

    @precondition(lambda self: self.held)
    @rule()
    def take_one(self) -> None:
        assert self.queue.take_one() is self.held.pop(0)


class Settling(Model):
    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def mark_done(self, data: st.DataObject) -> None:
        settled = data.draw(st.sampled_from(self.held))
        self.queue.mark_done(settled)
        self._settle(settled)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def mark_all_done(self, data: st.DataObject) -> None:
        settled = data.draw(st.lists(st.sampled_from(self.held), max_size=6))
        self.queue.mark_all_done(settled)
        self._settle(*settled)

    def _settle(self, *settled: MessageExt) -> None:
        self.done.update(each.queue_offset for each in settled)
        while self.held and self.held[0].queue_offset in self.done:
            self.done.remove(self.held.pop(0).queue_offset)


MACHINE = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_taking_matches_the_model() -> None:
    run_state_machine_as_test(Taking, settings=MACHINE)


def test_settling_matches_the_model() -> None:
    run_state_machine_as_test(Settling, settings=MACHINE)


def test_a_new_queue_has_no_offset() -> None:
    queue = ProcessQueue()

    assert (queue.count, queue.size_bytes, queue.span) == (0, 0, 0)
    assert queue.first_offset is None


def test_repeated_messages_are_dropped_and_not_counted() -> None:
    queue = queue_of(5, 6, 7)

    assert offsets(queue.put(messages(6, 7, 8))) == [8]
    assert offsets(queue.take(10)) == [5, 6, 7, 8]


def test_a_repeated_pull_is_dropped_after_its_messages_were_taken() -> None:
    queue = queue_of(5, 6, 7)
    queue.take(10)

    assert queue.put(messages(5, 6, 7)) == []
    assert queue.count == 0


@pytest.mark.parametrize("repeated", [[7], [7, 8], [8, 8]])
def test_an_offset_is_never_there_twice(repeated: list[int]) -> None:
    queue = queue_of(7)

    queue.put(messages(*repeated))

    assert offsets(queue.take(10)) == sorted({7, *repeated})


def test_a_batch_that_repeats_itself_is_put_in_order_once() -> None:
    queue = ProcessQueue()

    assert offsets(queue.put(messages(3, 5, 4, 5, 9))) == [3, 5, 9]
    assert offsets(queue.take(10)) == [3, 5, 9]


def test_taking_ten_of_a_hundred_leaves_ninety_and_their_bytes() -> None:
    queue = ProcessQueue()
    queue.put([message(offset, size=123) for offset in range(100)])

    assert offsets(queue.take(10)) == list(range(10))
    assert (queue.count, queue.size_bytes, queue.first_offset) == (90, 90 * 123, 10)


@pytest.mark.parametrize("limit", [0, -1])
def test_taking_nothing_changes_nothing(limit: int) -> None:
    queue = queue_of(1, 2)

    assert queue.take(limit) == []
    assert (queue.count, queue.size_bytes) == (2, 2)


def test_taking_one_from_an_empty_queue_is_an_error_and_changes_nothing() -> None:
    queue = ProcessQueue()

    with pytest.raises(IndexError):
        queue.take_one()
    assert (queue.count, queue.size_bytes) == (0, 0)


def test_no_offset_past_an_unsettled_message_may_be_committed() -> None:
    queue = ProcessQueue()
    first, second, third = batch = messages(10, 11, 12)
    queue.put(batch)

    queue.mark_done(third)
    assert queue.first_offset == 10
    queue.mark_done(first)
    assert queue.first_offset == 11
    queue.mark_done(second)
    assert queue.first_offset is None


def test_settling_twice_counts_once() -> None:
    queue = ProcessQueue()
    batch = messages(1, 2)
    queue.put(batch)

    queue.mark_done(batch[1])
    queue.mark_done(batch[1])

    assert queue.count == 1


def test_settled_bodies_behind_an_unsettled_message_still_count_as_held() -> None:
    queue = ProcessQueue()
    batch = [message(offset, size=100) for offset in range(3)]
    queue.put(batch)

    queue.mark_done(batch[1])
    queue.mark_done(batch[2])
    assert (queue.count, queue.size_bytes, queue.span) == (1, 300, 2)
    queue.mark_done(batch[0])
    assert (queue.count, queue.size_bytes, queue.span) == (0, 0, 0)


def test_a_queue_can_be_read_again_from_an_earlier_offset_after_clear() -> None:
    queue = queue_of(100, 101)

    assert queue.clear() == 2
    assert queue.first_offset is None
    assert offsets(queue.put(messages(7, 8))) == [7, 8]
    assert queue.first_offset == 7


def test_settling_after_clear_changes_nothing() -> None:
    queue = ProcessQueue()
    old = messages(1, 2)
    queue.put(old)
    queue.clear()
    queue.put(messages(1, 2))

    queue.mark_done(old[0])

    assert (queue.count, queue.first_offset) == (2, 1)
