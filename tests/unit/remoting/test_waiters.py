"""WaiterQueue: order, timeouts, and every point at which a caller can be cancelled."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.remoting.waiters import WaiterQueue
from tests.unit.remoting.until import settle


class Line:
    """A queue, its cancellations, and the callers that left it in order."""

    def __init__(self) -> None:
        self.cancelled: list[tuple[int, bool]] = []
        self.queue = WaiterQueue(lambda size, woken: self.cancelled.append((size, woken)))
        self.returned: list[tuple[int, bool]] = []

    async def wait(self, size: int, seconds: float | None = None) -> None:
        self.returned.append((size, await self.queue.wait(seconds, size=size)))

    async def join(self, count: int, seconds: float | None = None) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.wait(size, seconds)) for size in range(count)]
        await settle()
        return tasks


async def test_callers_are_woken_in_order_of_arrival() -> None:
    line = Line()
    tasks = await line.join(3)
    assert len(line.queue) == 3
    assert [line.queue.wake_one() for _ in range(4)] == [True, True, True, False]
    assert line.queue.woken == 3
    await asyncio.gather(*tasks)

    assert line.returned == [(0, True), (1, True), (2, True)]
    assert (len(line.queue), line.queue.woken, line.cancelled) == (0, 0, [])


async def test_wake_one_wakes_only_one() -> None:
    line = Line()
    tasks = await line.join(2)
    line.queue.wake_one()
    await settle()

    assert line.returned == [(0, True)]
    line.queue.wake_all()
    await asyncio.gather(*tasks)


async def test_wake_all_wakes_all_waiters_but_not_later_ones() -> None:
    line = Line()
    tasks = await line.join(3)
    line.queue.wake_all()
    later = asyncio.create_task(line.wait(9))
    await asyncio.gather(*tasks)

    assert [size for size, _ in line.returned] == [0, 1, 2]
    assert not later.done()
    later.cancel()


async def test_waiting_returns_false_after_the_timeout() -> None:
    line = Line()
    await asyncio.gather(*await line.join(2, seconds=0.001))

    assert sorted(line.returned) == [(0, False), (1, False)]
    assert (len(line.queue), line.cancelled) == (0, [])


async def test_a_wake_up_leaves_no_timer() -> None:
    line = Line()
    (task,) = await line.join(1, seconds=60)
    line.queue.wake_one()
    await task
    scheduled = getattr(asyncio.get_running_loop(), "_scheduled", [])

    assert [each for each in scheduled if not each.cancelled() and "_expire" in repr(each)] == []


async def test_a_wake_up_is_not_given_to_a_caller_that_timed_out_in_this_step() -> None:
    line = Line()
    first, second = await line.join(2, seconds=60)
    next(iter(line.queue._waiting)).set_result(False)  # as its timer does
    assert line.queue.wake_one()
    await asyncio.gather(first, second)

    assert sorted(line.returned) == [(0, False), (1, True)]


async def test_a_caller_cancelled_in_line_is_reported_as_not_woken() -> None:
    line = Line()
    first, second = await line.join(2)
    first.cancel()
    await settle()

    assert line.cancelled == [(0, False)]
    assert len(line.queue) == 1
    line.queue.wake_one()
    await second
    assert line.returned == [(1, True)]


async def test_a_wake_up_skips_a_caller_cancelled_before_in_the_same_step() -> None:
    line = Line()
    first, second = await line.join(2)
    first.cancel()
    assert line.queue.first_size == 1
    assert line.queue.wake_one()
    await asyncio.wait([first, second])

    assert line.returned == [(1, True)]
    assert line.cancelled == [(0, False)]
    assert line.queue.woken == 0


async def test_a_caller_cancelled_after_its_wake_up_returns_it_to_the_owner() -> None:
    line = Line()
    first, second = await line.join(2)
    line.queue.wake_one()
    first.cancel()
    await asyncio.wait([first])

    assert first.cancelled()
    assert line.cancelled == [(0, True)]
    assert line.queue.woken == 0
    assert line.returned == []
    second.cancel()


async def test_the_owner_can_pass_the_wake_up_on_from_the_callback() -> None:
    queue = WaiterQueue(lambda _, woken: woken and queue.wake_one())
    tasks = [asyncio.create_task(queue.wait()) for _ in range(3)]
    await settle()
    queue.wake_one()
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.wait(tasks)

    assert tasks[2].result()
    assert (len(queue), queue.woken) == (0, 0)


async def test_a_coroutine_closed_while_waiting_leaves_the_line() -> None:
    line = Line()
    waiting = line.queue.wait(size=7)
    waiting.send(None)
    waiting.close()
    assert (len(line.queue), line.cancelled) == (0, [(7, False)])

    woken = line.queue.wait(size=8)
    woken.send(None)
    line.queue.wake_one()
    woken.close()
    assert (line.queue.woken, line.cancelled[1:]) == (0, [(8, True)])


async def test_fail_all_raises_an_error_of_its_own_in_each_caller() -> None:
    line = Line()
    tasks = await line.join(2)
    line.queue.fail_all(lambda: ValueError("closed"))
    await asyncio.wait(tasks)

    errors = [task.exception() for task in tasks]
    assert [str(error) for error in errors] == ["closed", "closed"]
    assert errors[0] is not errors[1]
    assert (len(line.queue), line.queue.woken, line.cancelled) == (0, 0, [])


async def test_an_error_for_a_caller_cancelled_in_the_same_step_is_not_left_unretrieved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Line()
    (task,) = await line.join(1)
    line.queue.fail_all(lambda: ValueError("closed"))
    task.cancel()
    await asyncio.wait([task])
    del task

    assert line.cancelled == [(0, False)]
    assert "never retrieved" not in caplog.text


async def test_first_size_is_that_of_the_caller_next_in_line() -> None:
    line = Line()
    assert line.queue.first_size is None
    tasks = await line.join(2)
    assert line.queue.first_size == 0
    line.queue.wake_one()
    assert line.queue.first_size == 1
    line.queue.wake_all()
    await asyncio.gather(*tasks)


async def test_many_callers_can_leave_at_once() -> None:
    line = Line()
    tasks = await line.join(5000)
    for task in reversed(tasks):
        task.cancel()
    await asyncio.wait(tasks)

    assert (len(line.queue), len(line.cancelled)) == (0, 5000)
