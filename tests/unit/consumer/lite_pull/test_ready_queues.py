"""ReadyQueues: turns, order and wake-ups."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.lite_pull.ready_queues import TURN, ReadyQueues
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.errors import BrokerError, OffsetIllegalError, PermissionDeniedError
from rocketmq_aio.model.message import MessageExt
from tests.unit.consumer.parts import assigned_queue, offsets, pull, queue

ILLEGAL = OffsetIllegalError(21, "OFFSET_TOO_SMALL")


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def line(cache: Cache) -> ReadyQueues:
    return ReadyQueues(cache)


@pytest.fixture
def queues(cache: Cache, line: ReadyQueues) -> list[PolledQueue]:
    """Three queues of a hundred messages each."""
    queues = [assigned_queue(number, cached=100, cache=cache) for number in range(3)]
    for each in queues:
        line.add(each)
    return queues


def take_all_singly(line: ReadyQueues) -> list[MessageExt]:
    taken = []
    while (message := line.take_one()) is not None:
        taken.append(message)
    return taken


def by_queue(taken: list[MessageExt]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for message in taken:
        found.setdefault(message.queue.queue_id, []).append(message.queue_offset)
    return found


def test_without_ready_queues_take_returns_nothing(line: ReadyQueues) -> None:
    assert line.take(10) == []
    assert line.take_one() is None


def test_take_returns_up_to_the_limit(line: ReadyQueues, queues: list[PolledQueue]) -> None:
    assert len(line.take(7)) == 7
    assert queues[0].process_queue.count == 93


def test_all_queues_fit_in_one_large_poll(line: ReadyQueues, queues: list[PolledQueue]) -> None:
    assert by_queue(line.take(1000)) == {number: list(range(100)) for number in range(3)}
    assert line.take(1000) == []


def test_queues_take_turns_with_small_polls(line: ReadyQueues, queues: list[PolledQueue]) -> None:
    taken = [message for _ in range(30) for message in line.take(5)]

    counts = Counter(message.queue.queue_id for message in taken)
    assert counts == {0: 50, 1: 50, 2: 50}
    assert all(found == sorted(found) for found in by_queue(taken).values())


def test_a_turn_of_single_messages_has_a_limit(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    taken = take_all_singly(line)

    assert {message.queue.queue_id for message in taken[:TURN]} == {0}
    assert {message.queue.queue_id for message in taken[TURN : 2 * TURN]} == {1}
    assert by_queue(taken) == {number: list(range(100)) for number in range(3)}


def test_a_queue_that_is_withheld_within_its_turn_delivers_nothing_more(cache: Cache) -> None:
    assigned = assigned_queue(cached=5, cache=cache)

    def look() -> None:
        if assigned.taken_in_turn == 2:
            assigned.withheld = [assigned]

    line = ReadyQueues(cache, look)
    line.add(assigned)

    assert offsets(take_all_singly(line)) == [0, 1]


def test_a_busy_queue_does_not_starve_the_others(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    seen = set()
    for _ in range(3 * TURN):
        message = line.take_one()
        assert message is not None
        seen.add(message.queue.queue_id)
        pull(queues[0], queues[0].next_offset)
        line.add(queues[0])

    assert seen == {0, 1, 2}


def test_a_queue_has_one_turn_however_often_it_is_pulled(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    turns: list[int] = []
    for _ in range(6):
        for _ in range(2):
            pull(queues[0], queues[0].next_offset)
            line.add(queues[0])
        turns += [message.queue.queue_id for message in line.take(1)]

    assert turns == [0, 1, 2, 0, 1, 2]


def test_polls_and_single_messages_can_be_mixed(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    first = [line.take_one() for _ in range(5)]
    rest = line.take(150)
    last = take_all_singly(line)

    taken = [message for message in first if message is not None] + rest + last
    assert by_queue(taken) == {number: list(range(100)) for number in range(3)}


def test_a_paused_queue_keeps_its_messages_until_resume(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    queues[1].paused = True
    assert set(by_queue(line.take(1000))) == {0, 2}
    pull(queues[1], 100)
    line.add(queues[1])
    assert line.take_one() is None
    queues[1].paused = False
    line.add(queues[1])

    assert by_queue(take_all_singly(line)) == {1: list(range(101))}


def test_a_revoked_queue_delivers_nothing(line: ReadyQueues, queues: list[PolledQueue]) -> None:
    queues[0].drop()
    queues[1].drop()

    assert set(by_queue(line.take(50) + take_all_singly(line))) == {2}


def test_nothing_from_before_a_seek_is_delivered(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    queues[0].move(500)
    pull(queues[0], 500, 501)
    line.add(queues[0])

    assert by_queue(line.take(1000))[0] == [500, 501]


def test_polling_again_marks_the_last_batch_as_processed(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    line.take(150)
    assert [each.committable for each in queues] == [0, 0, 0]
    line.mark_processed()

    assert [each.committable for each in queues] == [100, 50, 0]


def test_single_messages_are_marked_as_processed_by_the_next(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    line.take_one()
    line.mark_processed()
    line.take_one()

    assert (queues[0].committable, queues[0].delivered) == (1, 2)


@pytest.mark.parametrize("how", ["poll", "single"])
async def test_taking_wakes_the_pull_loops_that_wait_for_room(
    line: ReadyQueues, queues: list[PolledQueue], cache: Cache, how: str
) -> None:
    queues[2].wake = asyncio.get_running_loop().create_future()
    cache.blocked.add(queues[2])
    line.take(1) if how == "poll" else [line.take_one() for _ in range(TURN)]

    assert queues[2].wake.done()


def test_a_failure_is_raised_until_a_seek(line: ReadyQueues, queues: list[PolledQueue]) -> None:
    queues[1].failure = ILLEGAL
    line.add(queues[1])
    line.add(queues[1])

    assert line.failure() is ILLEGAL
    assert line.failure() is ILLEGAL
    queues[1].move(0)
    assert line.failure() is None


def test_the_failure_of_a_revoked_queue_is_not_raised(
    line: ReadyQueues, queues: list[PolledQueue]
) -> None:
    queues[1].failure = ILLEGAL
    line.add(queues[1])
    queues[1].drop()

    assert line.failure() is None


@pytest.mark.parametrize("error", [PermissionDeniedError(16, "no Sub"), ILLEGAL])
def test_only_a_refusal_is_raised_in_place_of_a_start(
    line: ReadyQueues, error: BrokerError
) -> None:
    assigned = PolledQueue(queue(), Cache())
    assigned.start_error = error
    line.add(assigned)  # as `resume` does

    refused = isinstance(error, PermissionDeniedError)
    assert [line.start_error(), line.start_error()] == [error if refused else None, None]


def test_the_start_error_of_a_queue_that_has_started_is_not_raised(line: ReadyQueues) -> None:
    assigned = PolledQueue(queue(), Cache())
    assigned.start_error = PermissionDeniedError(16, "no Sub")
    line.add(assigned)
    assigned.begin(0)

    assert line.start_error() is None


async def test_a_waiting_caller_is_woken_by_a_message(line: ReadyQueues) -> None:
    waiting = asyncio.create_task(line.wait(60))
    await wait_all_tasks_blocked()
    line.add(assigned_queue(cached=1))

    await asyncio.wait_for(waiting, 15)


async def test_a_waiting_caller_is_woken_by_a_failure(line: ReadyQueues) -> None:
    waiting = asyncio.create_task(line.wait(None))
    await wait_all_tasks_blocked()
    failed = assigned_queue()
    failed.failure = ILLEGAL
    line.add(failed)

    await asyncio.wait_for(waiting, 15)


async def test_waiting_ends_with_its_time(line: ReadyQueues) -> None:
    await asyncio.wait_for(line.wait(0.001), 15)


async def test_close_wakes_all_callers_and_ends_waits(line: ReadyQueues) -> None:
    waiting = [asyncio.create_task(line.wait(seconds)) for seconds in (None, 60, None)]
    await wait_all_tasks_blocked()
    line.close()

    await asyncio.wait_for(asyncio.gather(*waiting), 15)
    await asyncio.wait_for(line.wait(None), 15)


async def test_two_callers_share_the_messages_of_one_pull(line: ReadyQueues, cache: Cache) -> None:
    async def take_some() -> list[MessageExt]:
        while not (taken := line.take(3)):
            await line.wait(None)
        return taken

    callers = [asyncio.create_task(take_some()) for _ in range(2)]
    await wait_all_tasks_blocked()
    line.add(assigned_queue(cached=5, cache=cache))
    taken = await asyncio.wait_for(asyncio.gather(*callers), 15)

    assert sorted(offsets(taken[0] + taken[1])) == [0, 1, 2, 3, 4]


async def test_a_caller_cancelled_as_it_is_woken_wakes_the_next(line: ReadyQueues) -> None:
    first = asyncio.create_task(line.wait(None))
    await wait_all_tasks_blocked()
    second = asyncio.create_task(line.wait(None))
    await wait_all_tasks_blocked()
    line.add(assigned_queue(cached=1))
    first.cancel()

    await asyncio.wait_for(second, 15)
    assert first.cancelled()


async def test_a_cancelled_caller_is_not_woken_in_place_of_another(line: ReadyQueues) -> None:
    first = asyncio.create_task(line.wait(None))
    await wait_all_tasks_blocked()
    second = asyncio.create_task(line.wait(None))
    await wait_all_tasks_blocked()
    first.cancel()
    line.add(assigned_queue(cached=1))

    await asyncio.wait_for(second, 15)
    assert first.cancelled()
