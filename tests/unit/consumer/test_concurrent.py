"""Workers, and what concurrent consumption does with results."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rocketmq_aio.consumer import concurrent
from rocketmq_aio.consumer.events import HandlerStuck, MessageDeadLettered, MessageDropped
from rocketmq_aio.consumer.handling import BatchContext, RetryLater
from rocketmq_aio.message import MessageExt
from tests.unit.consumer.parts import offsets
from tests.unit.consumer.working import Shop, forever
from tests.unit.remoting.until import until


async def test_what_a_handler_returns_from_is_settled() -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)

    async with Shop(handle) as shop:
        shop.pull(*range(100))
        await shop.settled(100)

    assert sorted(seen) == list(range(100))
    assert shop.back.sent == []
    assert shop.statistics.snapshot("orders").consumed_per_second > 0


async def test_a_backlog_of_one_queue_does_not_keep_the_statistics_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.workers.TALLY_SECONDS", 0.0)
    reached, go = asyncio.Event(), asyncio.Event()

    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 5:
            reached.set()
            await go.wait()

    async with Shop(handle, size=1) as shop:
        shop.pull(*range(10))
        await reached.wait()
        so_far = shop.statistics.snapshot("orders")
        touched = shop.queue().last_consume
        go.set()
        await shop.settled(10)

    assert so_far.consumed_per_second == 5
    assert touched > 0


async def test_so_many_handlers_run_at_once_as_there_are_workers() -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def handle(_: MessageExt) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    async with Shop(handle, size=3) as shop:
        shop.pull(*range(10))
        await until(lambda: running == 3, "three handlers")
        go.set()
        await shop.settled(10)

    assert most == 3


async def test_more_and_fewer_workers_at_run_time() -> None:
    running, go = 0, asyncio.Event()

    async def handle(_: MessageExt) -> None:
        nonlocal running
        running += 1
        await go.wait()
        running -= 1

    async with Shop(handle, size=1) as shop:
        shop.pull(*range(20))
        await until(lambda: running == 1, "one handler")
        shop.workers.resize(5)
        await until(lambda: running == 5, "five handlers")
        shop.workers.resize(2)
        go.set()
        await shop.settled(20)
        await until(lambda: len(shop.workers._workers) == 2, "two workers")


async def test_plain_functions_run_in_threads() -> None:
    names: set[str] = set()

    def handle(_: MessageExt) -> None:
        names.add(threading.current_thread().name)

    async with Shop(handle) as shop:
        shop.pull(*range(5))
        await shop.settled(5)

    assert all(name.startswith("shop") for name in names)


async def test_a_plain_function_may_return_a_coroutine() -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)

    async with Shop(lambda message: handle(message)) as shop:
        shop.pull(0)
        await shop.settled(1)

    assert seen == [0]


@pytest.mark.parametrize(
    ("error", "level"),
    [(ValueError("bad"), 0), (RetryLater(), 0), (RetryLater(5), 5), (RetryLater(-1), -1)],
    ids=repr,
)
async def test_a_message_that_failed_is_sent_back_and_settled(error: Exception, level: int) -> None:
    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 1:
            raise error

    async with Shop(handle) as shop:
        shop.pull(0, 1, 2)
        await shop.settled(3)

    assert shop.back.sent == [(1, level)]
    dead = [each for each in shop.events if isinstance(each, MessageDeadLettered)]
    assert len(dead) == (level == -1)


async def test_the_last_try_is_told() -> None:
    async def handle(_: MessageExt) -> None:
        raise ValueError("bad")

    async with Shop(handle, max_reconsume_times=0) as shop:
        shop.pull(0)
        await shop.settled(1)

    (event,) = shop.events
    assert isinstance(event, MessageDeadLettered)
    assert "bad" in event.reason


async def test_a_message_that_cannot_be_sent_back_holds_the_offset_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent, "LOCAL_RETRY_SECONDS", 0.001)
    tries: list[int] = []

    async def handle(message: MessageExt) -> None:
        tries.append(message.local_retries)
        if len(tries) < 3:
            raise ValueError("bad")

    async with Shop(handle) as shop:
        shop.back.down = 2
        shop.pull(0)
        await shop.settled(1)

    assert tries == [0, 1, 2]
    assert shop.back.sent == []


async def test_in_broadcasting_a_failure_is_reported_and_that_is_all() -> None:
    async def handle(_: MessageExt) -> None:
        raise ValueError("bad")

    async with Shop(handle, broadcasting=True) as shop:
        shop.pull(0)
        await shop.settled(1)

    (event,) = shop.events
    assert isinstance(event, MessageDropped)


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_retried() -> None:
    async with Shop(forever, timeout_seconds=0.02) as shop:
        shop.pull(0)
        await shop.settled(1)
        assert shop.back.sent == [(0, 0)]
        shop.pull(1)  # and the worker goes on
        await shop.settled(2)


async def test_a_late_result_does_not_count() -> None:
    async def handle(_: MessageExt) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            return  # as if all was well

    async with Shop(handle, timeout_seconds=0.02) as shop:
        shop.pull(0)
        await shop.settled(1)

    assert shop.back.sent == [(0, 0)]


async def test_a_thread_that_takes_too_long_is_waited_for_and_its_result_does_not_count() -> None:
    go, begun = threading.Event(), threading.Event()

    def handle(_: MessageExt) -> None:
        begun.set()
        go.wait()

    async with Shop(handle, timeout_seconds=0.02) as shop:
        assigned = shop.pull(0)
        await until(lambda: any(each.expired for each in shop.workers.busy), "the time is over")
        assert assigned.settled == 0  # never twice at once: not while it still runs
        go.set()
        await shop.settled(1)

    assert shop.back.sent == [(0, 0)]


async def test_a_stuck_handler_is_told_once_with_queue_and_offset() -> None:
    async with Shop(forever, stuck_seconds=0.01) as shop:
        assigned = shop.pull(7)
        await until(lambda: bool(shop.events), "an event")
        worker = shop.workers.busy[0]
        shop.workers._look(worker, 100)

    (event,) = shop.events
    assert isinstance(event, HandlerStuck)
    assert (event.queue, event.offset) == (assigned.queue, 7)


async def test_a_stuck_message_does_not_stop_the_others() -> None:
    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 0:
            await forever()

    async with Shop(handle) as shop:
        assigned = shop.pull(*range(100))
        await until(lambda: assigned.process_queue.count == 1, "all but one")

        assert assigned.settled == 0


async def test_a_handler_that_cancels_itself_settles_nothing() -> None:
    async def handle(_: MessageExt) -> None:
        raise asyncio.CancelledError

    async with Shop(handle) as shop:
        shop.pull(0)
        await shop.settled(1)

    assert shop.back.sent == [(0, 0)]


async def test_closing_cancels_handlers_and_settles_nothing() -> None:
    async with Shop(forever) as shop:
        assigned = shop.pull(0, 1)
        await until(lambda: assigned.active == 2, "two handlers")

    assert assigned.settled == 0
    assert shop.back.sent == []


async def test_nothing_is_handled_while_suspended() -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)

    async with Shop(handle) as shop:
        shop.service.suspended = True
        shop.pull(0, 1)
        await asyncio.sleep(0)
        assert seen == []

        shop.service.suspended = False
        shop.workers.wake_all()
        await shop.settled(2)


async def test_busy_queues_take_turns() -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue.queue_id)

    async with Shop(handle, size=1) as shop:
        shop.pull(*range(100), queue_id=0)
        shop.pull(*range(100), queue_id=1)
        await shop.settled(100, 0)
        await shop.settled(100, 1)

    assert seen.index(1) == concurrent.TURN


@pytest.mark.parametrize(
    ("ack_index", "back"),
    [(None, []), (2, [3, 4]), (-1, [0, 1, 2, 3, 4]), (4, []), (99, []), (-7, [0, 1, 2, 3, 4])],
)
async def test_a_batch_handler_says_how_far_it_came(ack_index: int | None, back: list[int]) -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        batches.append(offsets(messages))
        context.ack_index = ack_index
        context.delay_level = 3

    async with Shop(on_batch=handle, batch_size=5) as shop:
        shop.pull(*range(5))
        await shop.settled(5)

    assert batches == [[0, 1, 2, 3, 4]]
    assert sorted(shop.back.sent) == [(offset, 3) for offset in back]


@pytest.mark.parametrize("nonsense", ["2", 1.5, True])
async def test_a_nonsense_ack_index_settles_nothing(nonsense: Any) -> None:  # noqa: ANN401
    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.ack_index = nonsense

    async with Shop(on_batch=handle, batch_size=2) as shop:
        shop.pull(0, 1)
        await shop.settled(2)

    assert sorted(shop.back.sent) == [(0, 0), (1, 0)]


async def test_a_batch_holds_messages_of_one_queue_only() -> None:
    batches: list[set[int]] = []

    async def handle(messages: list[MessageExt], _: BatchContext) -> None:
        batches.append({each.queue.queue_id for each in messages})

    async with Shop(on_batch=handle, batch_size=10) as shop:
        shop.pull(0, 1, queue_id=0)
        shop.pull(0, 1, queue_id=1)
        await shop.settled(2, 0)
        await shop.settled(2, 1)

    assert all(len(queues) == 1 for queues in batches)


async def test_a_message_that_a_reset_forgot_is_not_sent_back() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(_: MessageExt) -> None:
        begun.set()
        await go.wait()
        raise ValueError("bad")

    async with Shop(handle) as shop:
        assigned = shop.pull(0)
        await begun.wait()
        assigned.restart(10)
        go.set()
        await until(lambda: not assigned.in_hands, "the handler's end")

    assert shop.back.sent == []
    assert assigned.settled == 10
