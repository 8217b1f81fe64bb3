"""A queue whose messages are settled one by one."""

from __future__ import annotations

import pytest

from rocketmq_aio.consumer.pulling.queue_state import UNKNOWN
from rocketmq_aio.consumer.push.dispatch_queue import WAKE_AFTER, DispatchQueue, RetryQueue
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import RETRY_TOPIC, encode_properties
from tests.unit.consumer.parts import messages, offsets, pull, queue


@pytest.fixture
def worked() -> DispatchQueue:
    worked = DispatchQueue(queue())
    worked.begin(0)
    return worked


def test_nothing_may_be_committed_before_the_beginning_is_known() -> None:
    assert DispatchQueue(queue()).committable == UNKNOWN


def test_what_was_filtered_out_is_settled_when_nothing_is_held(worked: DispatchQueue) -> None:
    worked.advance(7)

    assert worked.committable == 7


def test_the_first_message_that_is_not_settled_holds_the_offset(worked: DispatchQueue) -> None:
    pull(worked, *range(4))
    first, *others = worked.take(4)

    for message in others:
        worked.settle(message)
    assert worked.committable == 0

    worked.settle(first)
    assert worked.committable == 4


def test_taken_messages_are_in_hands_until_they_are_handed_back(worked: DispatchQueue) -> None:
    pull(worked, 0, 1)

    taken = worked.take(2)
    assert worked.has_in_flight

    worked.end_flight(len(taken))
    assert not worked.has_in_flight
    assert worked.committable == 0


def test_what_is_put_back_comes_first_again_in_order(worked: DispatchQueue) -> None:
    pull(worked, *range(4))
    taken = worked.take(2)
    worked.put_back(taken)

    assert offsets(worked.take(4)) == [0, 1, 2, 3]


def test_a_settled_message_is_not_put_back(worked: DispatchQueue) -> None:
    pull(worked, 0, 1)
    taken = worked.take(2)
    worked.settle(taken[0])
    worked.put_back(taken)

    assert offsets(worked.take(4)) == [1]


def test_a_repeated_pull_brings_only_what_is_new(worked: DispatchQueue) -> None:
    pull(worked, 0, 1, 2)
    worked.put(messages(1, 2, 3, 4))

    assert offsets(worked.take(9)) == [0, 1, 2, 3, 4]


def test_late_results_do_not_count_after_a_restart(worked: DispatchQueue) -> None:
    pull(worked, 0, 1)
    taken = worked.take(2)

    assert worked.restart(10) == 0
    for message in taken:
        worked.settle(message)

    assert worked.committable == 10


def test_a_restart_drops_what_waits(worked: DispatchQueue) -> None:
    pull(worked, 0, 1, 2)

    assert worked.restart(1) == 3
    assert not worked.waiting
    assert worked.committable == 1


def test_a_queue_that_became_shorter_is_read_again_from_what_is_not_settled(
    worked: DispatchQueue,
) -> None:
    pull(worked, *range(10))
    worked.take(2)
    worked.step_back(8)

    assert (worked.next_offset, worked.committable) == (0, 0)


def test_a_refetch_keeps_what_handlers_have_and_what_failed_before(worked: DispatchQueue) -> None:
    pull(worked, *range(6))
    failed, kept = worked.take(2)
    failed.local_retries = 1
    worked.put_back([failed])
    worked.refetch()

    assert worked.next_offset == 2
    assert offsets(worked.waiting) == [0]
    worked.put(messages(2, 3))
    assert offsets(worked.waiting) == [0, 2, 3]
    worked.settle(kept)
    worked.settle(failed)
    assert worked.committable == 2


def test_a_refetch_keeps_what_lies_before_a_message_in_hands(worked: DispatchQueue) -> None:
    pull(worked, *range(6))
    first, second = worked.take(1), worked.take(1)
    worked.put_back(first)
    worked.refetch()

    assert (worked.next_offset, offsets(worked.waiting)) == (2, [0])
    worked.put(messages(2, 3))
    assert worked.process_queue.count == 4
    worked.settle(second[0])
    assert (worked.committable, worked.process_queue.count) == (0, 3)


def test_a_refetch_before_the_beginning_changes_nothing() -> None:
    worked = DispatchQueue(queue())
    worked.refetch()

    assert worked.next_offset == UNKNOWN


def test_a_dropped_queue_hands_out_nothing_but_still_counts_what_ends(
    worked: DispatchQueue,
) -> None:
    pull(worked, *range(4))
    (message,) = worked.take(1)
    worked.drop()
    worked.settle(message)

    assert not worked.waiting
    assert worked.committable == 1
    worked.put_back([message])
    assert not worked.waiting


async def test_a_blocked_puller_is_woken_when_there_is_room_for_a_pull(
    worked: DispatchQueue,
) -> None:
    import asyncio

    pull(worked, *range(1001))
    worked.wake = asyncio.get_running_loop().create_future()
    worked.block()
    taken = worked.take(WAKE_AFTER)
    for message in taken[:-1]:
        worked.settle(message)
    assert not worked.wake.done()

    worked.settle(taken[-1])
    assert worked.wake.done()


def test_messages_that_were_sent_back_have_their_topic_again() -> None:
    retries = RetryQueue(queue(topic="%RETRY%billing"))
    retries.begin(0)
    raw = encode_properties({RETRY_TOPIC: "orders"}).encode()
    retries.put([MessageExt("%RETRY%billing", b"x", retries.queue, 0, b"", raw)])

    (message,) = retries.take(1)
    assert (message.topic, message.queue.topic) == ("orders", "%RETRY%billing")
