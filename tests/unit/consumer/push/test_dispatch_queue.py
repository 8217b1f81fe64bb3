"""DispatchQueue: committable offset, refetch, restart."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.consumer.common.redelivery import RetryTopics
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN
from rocketmq_aio.consumer.push.dispatch_queue import WAKE_AFTER, DispatchQueue, RetryQueue
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import RETRY_TOPIC, encode_properties
from tests.unit.consumer.parts import messages, offsets, pull, queue


@pytest.fixture
def worked() -> DispatchQueue:
    worked = DispatchQueue(queue())
    worked.begin(0)
    return worked


def test_nothing_is_committable_before_the_start_offset_is_known() -> None:
    assert DispatchQueue(queue()).committable == UNKNOWN


def test_filtered_offsets_are_committable_when_the_cache_is_empty(worked: DispatchQueue) -> None:
    worked.advance(7)

    assert worked.committable == 7


def test_first_unsettled_message_limits_the_committable_offset(worked: DispatchQueue) -> None:
    pull(worked, *range(4))
    first, *others = worked.take(4)

    for message in others:
        worked.mark_done(message)
    assert worked.committable == 0

    worked.mark_done(first)
    assert worked.committable == 4


def test_taken_messages_are_in_flight_until_they_are_finished(worked: DispatchQueue) -> None:
    pull(worked, 0, 1)

    taken = worked.take(2)
    assert worked.has_in_flight

    worked.end_flight(len(taken))
    assert not worked.has_in_flight
    assert worked.committable == 0


def test_messages_put_back_are_delivered_first_in_order(worked: DispatchQueue) -> None:
    pull(worked, *range(4))
    taken = worked.take(2)
    worked.put_back(taken)

    assert offsets(worked.take(4)) == [0, 1, 2, 3]


def test_changes_of_a_handler_do_not_last_until_the_next_delivery(worked: DispatchQueue) -> None:
    message = MessageExt("orders", b"[1]", queue(), 0, bytes(88), b"", codec=JSONCodec(list[int]))
    worked.put([message])
    [taken] = worked.take(1)
    taken.value.append(2)
    taken.properties["state"] = "half done"
    worked.put_back([taken])

    [again] = worked.take(1)
    assert again.value == [1]
    assert again.properties == {}


def test_a_settled_message_is_not_put_back(worked: DispatchQueue) -> None:
    pull(worked, 0, 1)
    taken = worked.take(2)
    worked.mark_done(taken[0])
    worked.put_back(taken)

    assert offsets(worked.take(4)) == [1]


def test_repeated_pull_adds_only_new_messages(worked: DispatchQueue) -> None:
    pull(worked, 0, 1, 2)
    worked.put(messages(1, 2, 3, 4))

    assert offsets(worked.take(9)) == [0, 1, 2, 3, 4]


def test_late_results_do_not_count_after_a_restart(worked: DispatchQueue) -> None:
    pull(worked, 0, 1)
    taken = worked.take(2)

    assert worked.restart(10) == 0
    for message in taken:
        worked.mark_done(message)

    assert worked.committable == 10


@pytest.mark.parametrize("how", ["restart", "step_back", "refetch", "drop"])
def test_responses_to_pulls_before_a_move_are_ignored(worked: DispatchQueue, how: str) -> None:
    pull(worked, 0, 1)
    before = worked.generation
    if how in ("restart", "step_back"):
        getattr(worked, how)(1)
    else:
        getattr(worked, how)()

    assert worked.generation > before


def test_a_released_queue_is_marked_so(worked: DispatchQueue) -> None:
    """Its cache is empty: the position behind it must not be committed."""
    pull(worked, 0, 1)
    worked.take(1)
    worked.drop()
    worked.release()

    assert worked.committable == 2
    assert worked.released


def test_a_restart_drops_what_waits(worked: DispatchQueue) -> None:
    pull(worked, 0, 1, 2)

    assert worked.restart(1) == 3
    assert not worked.waiting
    assert worked.committable == 1


def test_truncated_queue_is_read_from_the_first_unsettled_message(worked: DispatchQueue) -> None:
    pull(worked, *range(10))
    worked.take(2)
    worked.step_back(8)

    assert (worked.next_offset, worked.committable) == (0, 0)


def test_refetch_keeps_messages_in_flight_and_local_retries(worked: DispatchQueue) -> None:
    pull(worked, *range(6))
    kept, failed = worked.take(2)
    failed.local_retries = 1
    worked.put_back([failed])
    worked.refetch()

    assert worked.next_offset == 2
    assert offsets(worked.waiting) == [1]
    worked.put(messages(2, 3))
    assert offsets(worked.waiting) == [1, 2, 3]
    worked.mark_done(kept)
    worked.mark_done(failed)
    assert worked.committable == 2


def test_refetch_keeps_messages_before_one_in_flight(worked: DispatchQueue) -> None:
    pull(worked, *range(6))
    first, second = worked.take(1), worked.take(1)
    worked.put_back(first)
    worked.refetch()

    assert (worked.next_offset, offsets(worked.waiting)) == (2, [0])
    worked.put(messages(2, 3))
    assert worked.process_queue.count == 4
    worked.mark_done(second[0])
    assert (worked.committable, worked.process_queue.count) == (0, 3)


def test_refetch_before_the_start_changes_nothing() -> None:
    worked = DispatchQueue(queue())
    worked.refetch()

    assert worked.next_offset == UNKNOWN


def test_dropped_queue_delivers_nothing_but_counts_finished_messages(worked: DispatchQueue) -> None:
    pull(worked, *range(4))
    (message,) = worked.take(1)
    worked.drop()
    worked.mark_done(message)

    assert not worked.waiting
    assert worked.committable == 1
    worked.put_back([message])
    assert not worked.waiting


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "together"])
async def test_a_blocked_puller_is_woken_when_there_is_room_for_a_pull(
    worked: DispatchQueue, *, batch: bool
) -> None:
    pull(worked, *range(1001))
    worked.wake = asyncio.get_running_loop().create_future()
    worked.block()
    *taken, last = worked.take(WAKE_AFTER)
    if batch:
        worked.mark_all_done(taken)
    else:
        for message in taken:
            worked.mark_done(message)
    assert not worked.wake.done()

    if batch:
        worked.mark_all_done([last])
    else:
        worked.mark_done(last)
    assert worked.wake.done()


def test_retried_messages_have_their_original_topic() -> None:
    retries = RetryQueue(queue(topic="%RETRY%billing"), RetryTopics("billing", None))
    retries.begin(0)
    raw = encode_properties({RETRY_TOPIC: "orders"}).encode()
    retries.put([MessageExt("%RETRY%billing", b"x", retries.queue, 0, b"", raw)])

    (message,) = retries.take(1)
    assert (message.topic, message.queue.topic) == ("orders", "%RETRY%billing")
