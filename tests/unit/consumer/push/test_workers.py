"""Workers: concurrency, timeouts, cancellations by handlers.

Most hold for both ways of calling a handler: with single messages, and with lists of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from itertools import pairwise
from time import monotonic
from traceback import extract_tb
from typing import Any, cast

import pytest

from rocketmq_aio.config.validation import is_async
from rocketmq_aio.consumer.common.events import HandlerStuck
from rocketmq_aio.consumer.push import workers as workers_module
from rocketmq_aio.consumer.push.consume_service import TURN
from rocketmq_aio.consumer.push.handlers import BatchContext, RetryLater, SuspendQueue
from rocketmq_aio.consumer.push.workers import Worker
from rocketmq_aio.model.message import MessageExt
from tests.unit.consumer.parts import message
from tests.unit.consumer.worker_env import Broken, FakeSendBack, Gate, WorkerEnv, forever
from tests.unit.remoting.foreign_cancellation import (
    await_cancelled_task,
    cancel_own_task,
    cancel_own_task_and_wait,
    raise_generator_exit,
)
from tests.unit.remoting.until import settle, until

pytestmark = pytest.mark.usefixtures("each_core")

MakeWorkerEnv = Callable[..., WorkerEnv]


@pytest.fixture(params=["single", "list"])
def worker_env(request: pytest.FixtureRequest) -> MakeWorkerEnv:
    """Makes environments of a handler of single messages, called as it is or with lists of one."""

    def make(handler: Callable[[MessageExt], object], **settings: object) -> WorkerEnv:
        if request.param == "single":
            return WorkerEnv(handler, **settings)  # type: ignore[arg-type]  # as the class takes them
        return WorkerEnv(on_batch=_with_lists(handler), **settings)  # type: ignore[arg-type]

    return make


def _with_lists(handler: Callable[[MessageExt], object]) -> Callable[..., object]:
    assert is_async(handler)

    async def handle(messages: list[MessageExt], _: BatchContext) -> object:
        (message,) = messages
        return await handler(message)  # type: ignore[misc]  # it is async

    return handle


async def test_statistics_are_current_during_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.push.workers.STATISTICS_SECONDS", 0.0)
    gate = Gate(5)
    async with WorkerEnv(gate, concurrency=1) as env:
        env.pull(*range(10))
        await gate.reached.wait()
        so_far = env.statistics.snapshot("orders")
        touched = env.queue().last_consume
        gate.open.set()
        await env.until_committable(10)

    assert so_far.consumed_per_second == 5
    assert touched > 0


async def test_concurrency_is_capped_by_workers(worker_env: MakeWorkerEnv) -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def handle(_: MessageExt) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    async with worker_env(handle, concurrency=3) as env:
        env.pull(*range(10))
        await until(lambda: running == 3, "three handlers")
        go.set()
        await env.until_committable(10)

    assert most == 3


async def test_workers_are_started_when_all_others_are_busy(worker_env: MakeWorkerEnv) -> None:
    gate = Gate()

    async def handle(message: MessageExt) -> None:
        await gate(message)

    async with worker_env(handle, concurrency=20) as env:
        idle = len(env.workers._workers)
        env.pull(0, 1, 2)
        await until(lambda: len(gate.seen) == 3, "three handlers")
        await until(lambda: len(env.service.idle) == 1, "another worker to find nothing")
        busy = len(env.workers._workers)
        gate.open.set()
        await env.until_committable(3)

    assert (idle, busy) == (1, 4)


async def test_a_new_worker_has_no_context_variables_of_handlers() -> None:
    user: ContextVar[str] = ContextVar("user", default="unset")
    seen: list[str] = []
    go = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        seen.append(user.get())
        user.set("somebody")
        if message.queue_offset:
            await go.wait()

    made = WorkerEnv(handle, concurrency=3)
    user.set("nobody")  # before the start
    async with made as env:
        env.pull(0)
        await env.until_committable(1)
        env.pull(1, 2, 3)
        await until(lambda: len(seen) == 4, "three handlers")
        go.set()
        await env.until_committable(4)

    assert sorted(seen) == ["nobody", "nobody", "nobody", "somebody"]


async def test_workers_can_be_resized_at_run_time(worker_env: MakeWorkerEnv) -> None:
    running, go = 0, asyncio.Event()

    async def handle(_: MessageExt) -> None:
        nonlocal running
        running += 1
        await go.wait()
        running -= 1

    async with worker_env(handle, concurrency=1) as env:
        env.pull(*range(20))
        await until(lambda: running == 1, "one handler")
        env.workers.resize(5)
        await until(lambda: running == 5, "five handlers")
        env.workers.resize(2)
        go.set()
        await env.until_committable(20)
        await until(lambda: len(env.workers._workers) == 2, "two workers")


async def test_plain_functions_run_in_threads() -> None:
    names: set[str] = set()

    def handle(_: MessageExt) -> None:
        names.add(threading.current_thread().name)

    async with WorkerEnv(handle) as env:
        env.pull(*range(5))
        await env.until_committable(5)

    assert all(name.startswith("workers") for name in names)


async def test_a_plain_function_may_return_a_coroutine() -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)

    async with WorkerEnv(lambda message: handle(message)) as env:
        env.pull(0)
        await env.until_committable(1)

    assert seen == [0]


async def test_expired_handler_is_cancelled_and_its_message_retried(
    worker_env: MakeWorkerEnv,
) -> None:
    async with worker_env(forever, consume_timeout_seconds=0.02) as env:
        env.pull(0)
        await env.until_committable(1)
        assert env.send_back.sent == [(0, 0)]
        env.pull(1)  # and the worker goes on
        await env.until_committable(2)


async def test_result_after_the_timeout_is_ignored(worker_env: MakeWorkerEnv) -> None:
    async def handle(_: MessageExt) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            return  # as if all was well

    async with worker_env(handle, consume_timeout_seconds=0.02) as env:
        env.pull(0)
        await env.until_committable(1)

    assert env.send_back.sent == [(0, 0)]


async def test_expired_thread_is_awaited_and_its_result_ignored() -> None:
    go, started = threading.Event(), threading.Event()

    def handle(_: MessageExt) -> None:
        started.set()
        go.wait()

    async with WorkerEnv(handle, consume_timeout_seconds=0.02) as env:
        assigned = env.pull(0)
        await until(lambda: any(each.expired for each in env.workers.busy), "the time is over")
        assert assigned.committable == 0  # never twice at once: not while it still runs
        go.set()
        await env.until_committable(1)

    assert env.send_back.sent == [(0, 0)]


async def test_stuck_handler_is_reported_once_with_queue_and_offset(
    worker_env: MakeWorkerEnv,
) -> None:
    async with worker_env(forever, stuck_seconds=0.01) as env:
        assigned = env.pull(7)
        await until(lambda: bool(env.events), "an event")
        worker = env.workers.busy[0]
        env.workers._check_time(worker, 100)

    (event,) = env.events
    assert isinstance(event, HandlerStuck)
    assert (event.queue, event.offset) == (assigned.queue, 7)


async def test_each_stuck_handler_of_a_worker_is_reported_once() -> None:
    env = WorkerEnv(forever, stuck_seconds=10, consume_timeout_seconds=60)
    worker = Worker(0, messages=[message(7)])
    reported = []
    for seconds in (9, 11, 12, 13, 1, 11, 12):  # of two handlers
        env.workers._check_time(worker, seconds)
        reported.append(len(env.events))

    assert reported == [0, 1, 1, 1, 1, 2, 2]


async def test_a_handler_that_takes_too_long_is_cancelled_once() -> None:
    env = WorkerEnv(forever, consume_timeout_seconds=10)
    handling = asyncio.create_task(forever())
    worker = Worker(0, task=handling, messages=[message(7)])
    for seconds in (9, 11, 12):
        env.workers._check_time(worker, seconds)

    assert (worker.expired, handling.cancelling()) == (True, 1)
    await asyncio.wait([handling])


async def test_surplus_workers_whose_handlers_take_too_long_prevent_no_start() -> None:
    env = WorkerEnv(forever, concurrency=1)
    env.workers._workers = {0: Worker(0), 1: Worker(1, expired=True)}
    assert env.workers.can_start
    env.workers.resize(2)
    env.workers._workers[0].expired = True
    assert not env.workers.can_start


async def test_all_workers_share_one_timer(worker_env: MakeWorkerEnv) -> None:
    gate = Gate()
    async with worker_env(gate.__call__) as env:
        env.pull(0)
        await gate.reached.wait()
        timer = env.workers._timer
        env.pull(1, queue_id=1)
        await until(lambda: len(gate.seen) == 2, "the second handler")

        assert env.workers._timer is timer is not None


async def test_times_are_checked_while_a_handler_runs_and_not_afterwards(
    worker_env: MakeWorkerEnv,
) -> None:
    release = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        await release.wait()

    async with worker_env(handle, stuck_seconds=0.01) as env:
        assert env.workers._timer is None
        for offset in range(2):  # and again
            env.pull(offset)
            await until(lambda: bool(env.events), "the stuck handler to be reported")
            env.events.clear()
            assert env.workers._timer is not None
            release.set()
            await until(lambda: env.workers._timer is None, "the last look")
            release.clear()


async def test_stuck_message_does_not_block_others(worker_env: MakeWorkerEnv) -> None:
    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 0:
            await forever()

    async with worker_env(handle) as env:
        assigned = env.pull(*range(100))
        await until(lambda: assigned.process_queue.count == 1, "all but one")

        assert assigned.committable == 0


async def test_a_consumer_without_messages_does_not_watch_handlers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted() -> float:
        nonlocal looks
        looks += 1
        return monotonic()

    async def handle(_: MessageExt) -> None: ...

    monkeypatch.setattr(workers_module, "LONGEST_WATCH_SECONDS", 0.001)
    monkeypatch.setattr(workers_module, "monotonic", counted)
    async with WorkerEnv(handle) as env:
        env.pull(0)
        await env.until_committable(1)
        seen = []
        for _ in range(3):
            for _ in range(10):
                await asyncio.sleep(0.001)
            seen.append(looks)

    assert seen[1] == seen[2] > 0


async def test_a_handler_that_cancels_itself_settles_nothing(worker_env: MakeWorkerEnv) -> None:
    async def handle(_: MessageExt) -> None:
        raise asyncio.CancelledError

    async with worker_env(handle) as env:
        env.pull(0)
        await env.until_committable(1)

    assert env.send_back.sent == [(0, 0)]


async def test_closing_cancels_handlers_and_settles_nothing(worker_env: MakeWorkerEnv) -> None:
    async with worker_env(forever) as env:
        assigned = env.pull(0, 1)
        await until(lambda: assigned.active == 2, "two handlers")

    assert assigned.committable == 0
    assert env.send_back.sent == []
    assert env.workers.busy == []


async def test_a_handler_that_raises_when_the_consumer_closes_is_no_failure_of_the_consumer(
    worker_env: MakeWorkerEnv,
) -> None:
    async def handle(_: MessageExt) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise LookupError("a bug") from None

    async with worker_env(handle) as env:
        assigned = env.pull(0)
        await until(lambda: assigned.active == 1, "the handler")

    assert env.failures == []


@pytest.mark.parametrize("orderly", [False, True])
async def test_statistics_count_handled_and_failed_messages_and_the_time_of_handlers_only(
    worker_env: MakeWorkerEnv, monkeypatch: pytest.MonkeyPatch, *, orderly: bool
) -> None:
    now, ok, bad, time = 0.0, 0, 0, 0.0

    class Slow(FakeSendBack):
        async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
            nonlocal now
            now += 100
            await super().send_back(message, delay_level)

    async def handle(message: MessageExt) -> None:
        nonlocal now
        now += 1
        if message.queue_offset == 1 and not message.reconsume_times:
            raise LookupError

    def note(_: str, done: int, failed: int, seconds: float, *, calls: int) -> None:
        nonlocal ok, bad, time
        ok, bad, time = ok + done, bad + failed, time + seconds

    monkeypatch.setattr(workers_module, "monotonic", lambda: now)
    async with worker_env(handle, orderly=orderly, send_back=Slow(), concurrency=1) as env:
        monkeypatch.setattr(env.statistics, "note_consumed", note)
        env.pull(0, 1, 2)
        await env.until_committable(3)
        await until(lambda: ok + bad == 3 + orderly, "the end of the turn")

    assert (bad, time) == (1, 3 + orderly)


async def test_the_coroutine_of_a_handler_is_closed_with_that_of_its_worker() -> None:
    closed = []

    async def handle() -> None:
        try:
            await forever()
        finally:
            closed.append(True)

    running = handle()
    value = running.send(None)
    rest: Any = workers_module._rest_of(workers_module.WAITS, running, value)
    rest.send(None)
    rest.close()

    assert closed == [True]


async def test_surplus_workers_leave_no_message_unhandled(worker_env: MakeWorkerEnv) -> None:
    running, go = 0, asyncio.Event()

    async def handle(_: MessageExt) -> None:
        nonlocal running
        running += 1
        await go.wait()

    async with worker_env(handle, concurrency=4) as env:
        env.pull(*range(4))
        await until(lambda: running == 4, "four handlers")
        env.workers.resize(1)
        env.workers.resize(2)  # before the others have noticed
        env.pull(*range(4, 40))
        go.set()
        await env.until_committable(40)
        await until(lambda: len(env.workers._workers) == 2, "two workers")
        env.pull(40)
        await env.until_committable(41)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_queues_take_turns_of_limited_length(
    worker_env: MakeWorkerEnv, *, orderly: bool
) -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue.queue_id)

    async with worker_env(handle, concurrency=1, orderly=orderly) as env:
        env.pull(*range(2 * TURN), queue_id=0)
        env.pull(*range(2 * TURN), queue_id=1)
        await env.until_committable(2 * TURN, 0)
        await env.until_committable(2 * TURN, 1)

    assert seen == [*[0] * TURN, *[1] * TURN] * 2


async def test_idle_surplus_workers_are_not_woken_for_messages(worker_env: MakeWorkerEnv) -> None:
    gate = Gate()
    async with worker_env(gate, concurrency=4) as env:
        env.pull(*range(4))
        await until(lambda: len(gate.seen) == 4, "four handlers")
        gate.open.set()
        await until(lambda: len(env.service.idle) == 4, "idle workers")
        env.workers.resize(1)
        for offset in range(4, 8):
            env.pull(offset)
            await env.until_committable(offset + 1)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_suspension_stops_a_running_turn(worker_env: MakeWorkerEnv, *, orderly: bool) -> None:
    gate = Gate()
    async with worker_env(gate, concurrency=1, orderly=orderly) as env:
        env.pull(0, 1)
        await gate.reached.wait()
        env.service.suspended = True
        gate.open.set()
        await env.until_committable(1)
        await until(lambda: env.service.idle, "the worker to rest")
        assert gate.seen == [0]

        env.service.suspended = False
        env.service.idle.wake_all()
        await env.until_committable(2)


async def test_a_handler_that_suspends_its_consumer_is_not_called_again(
    worker_env: MakeWorkerEnv,
) -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)
        env.service.suspended = message.queue_offset == 1

    async with worker_env(handle, concurrency=1) as env:
        env.pull(*range(5))
        await env.until_committable(2)
        assert seen == [0, 1]

        env.service.suspended = False
        env.service.idle.wake_all()
        await env.until_committable(5)


async def test_a_handler_that_loses_the_lock_of_its_queue_is_not_called_again(
    worker_env: MakeWorkerEnv,
) -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            env.lost.add(message.queue)

    async with worker_env(handle, orderly=True) as env:
        env.pull(*range(5))
        await env.until_committable(2)

    assert seen == [0, 1]


async def test_a_surplus_worker_ends_after_the_handler_that_resizes(
    worker_env: MakeWorkerEnv,
) -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 2:
            env.workers.resize(0)

    async with worker_env(handle, concurrency=1) as env:
        env.pull(*range(5))
        await until(lambda: not env.workers._workers, "no workers")
        assert (seen, env.queue().committable) == ([0, 1, 2], 3)

        env.workers.resize(1)
        await env.until_committable(5)


async def test_messages_before_one_that_waits_are_committable(worker_env: MakeWorkerEnv) -> None:
    gate = Gate(3)
    async with worker_env(gate, concurrency=1) as env:
        assigned = env.pull(*range(5))
        await gate.reached.wait()

        assert assigned.committable == 3
        assert assigned.has_in_flight  # a hand-over waits for it
        assert [each.queue_offset for each in env.workers.messages_in_flight()] == [3]

        gate.open.set()
        await env.until_committable(5)


async def test_a_handler_may_wait_several_times(worker_env: MakeWorkerEnv) -> None:
    async def handle(message: MessageExt) -> None:
        await settle(turns=message.queue_offset)
        await asyncio.wait_for(asyncio.sleep(0), 60)

    async with worker_env(handle, concurrency=1) as env:
        env.pull(*range(5))
        await env.until_committable(5)

    assert env.send_back.sent == []


async def test_a_handler_may_limit_the_time_of_its_own_waits(worker_env: MakeWorkerEnv) -> None:
    late: list[int] = []

    async def handle(message: MessageExt) -> None:
        try:
            async with asyncio.timeout(0):
                await forever()
        except TimeoutError:
            late.append(message.queue_offset)
        await asyncio.sleep(0)

    async with worker_env(handle, concurrency=1) as env:
        env.pull(0, 1)
        await env.until_committable(2)

    assert (late, env.send_back.sent) == ([0, 1], [])


@pytest.mark.parametrize("waits", [True, False])
async def test_an_exception_of_a_handler_has_its_own_traceback_and_context(
    worker_env: MakeWorkerEnv, waits: bool
) -> None:
    async def handle(message: MessageExt) -> None:
        if waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await forever()
        if message.queue_offset == 1:
            raise LookupError("bad")

    failures: list[BaseException] = []
    async with worker_env(handle, concurrency=1) as env:
        env.workers._failure_of = note_failures(env.workers._failure_of, failures)  # type: ignore[method-assign]
        env.pull(*range(3))
        await env.until_committable(3)

    assert env.send_back.sent == [(1, 0)]
    assert [repr(each) for each in failures] == ["LookupError('bad')"]
    assert failures[0].__context__ is None
    assert "handle" in [frame.name for frame in extract_tb(failures[0].__traceback__)]


def note_failures(
    judge: Callable[..., BaseException], failures: list[BaseException]
) -> Callable[..., BaseException]:
    def noting(worker: object, raised: BaseException) -> BaseException:
        failures.append(raised)
        return judge(worker, raised)

    return noting


async def test_a_handler_may_return_any_awaitable() -> None:
    class Handler:
        """Async by its declaration; its result is a future."""

        def __init__(self) -> None:
            self.futures: list[asyncio.Future[None]] = []

        async def declared(self, _: MessageExt) -> None: ...

    handler = Handler()
    async with WorkerEnv(handler.declared, concurrency=1) as env:

        def give_future(_: MessageExt) -> asyncio.Future[None]:
            handler.futures.append(asyncio.get_running_loop().create_future())
            return handler.futures[-1]

        env.workers._one = give_future
        assigned = env.pull(0, 1)
        await until(lambda: len(handler.futures) == 1, "the first call")
        assert assigned.committable == 0
        handler.futures[0].set_result(None)
        await until(lambda: len(handler.futures) == 2, "the second call")
        assert assigned.committable == 1
        handler.futures[1].set_exception(LookupError("bad"))
        await env.until_committable(2)

    assert env.send_back.sent == [(1, 0)]


async def test_handlers_that_never_wait_yield_to_the_event_loop(worker_env: MakeWorkerEnv) -> None:
    count, counts = 0, [0]

    async def handle(_: MessageExt) -> None:
        nonlocal count
        count += 1

    async with worker_env(handle, concurrency=1) as env:
        env.pull(*range(1000))
        while count < 1000:
            await asyncio.sleep(0)
            counts.append(count)
        await env.until_committable(1000)

    assert max(after - before for before, after in pairwise(counts)) <= TURN


async def test_refetched_messages_are_handled_once(worker_env: MakeWorkerEnv) -> None:
    """Another expression: what waits is forgotten while a handler is at work."""
    gate = Gate()
    async with worker_env(gate, concurrency=1) as env:
        assigned = env.pull(*range(6))
        await gate.reached.wait()
        assigned.refetch()
        env.pull(*range(1, 8))
        gate.open.set()
        await env.until_committable(8)

    assert gate.seen == list(range(8))
    assert assigned.process_queue.count == 0


async def test_revoked_queue_counts_its_running_handler(worker_env: MakeWorkerEnv) -> None:
    gate = Gate()
    async with worker_env(gate, concurrency=1) as env:
        assigned = env.pull(0, 1, 2)
        await gate.reached.wait()
        assigned.drop()
        assert assigned.has_in_flight
        gate.open.set()
        await until(lambda: not assigned.has_in_flight, "the handler's end")

    assert gate.seen == [0]
    assert assigned.committable == 1


async def test_handler_that_ignores_cancellation_is_awaited(worker_env: MakeWorkerEnv) -> None:
    """Its message is tried again only when it has ended: never twice at once."""
    cancelled, go = asyncio.Event(), asyncio.Event()

    async def handle(_: MessageExt) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.set()
            await go.wait()

    async with worker_env(handle, consume_timeout_seconds=0.02) as env:
        assigned = env.pull(0)
        await cancelled.wait()
        assert (assigned.committable, env.send_back.sent) == (0, [])
        go.set()
        await env.until_committable(1)

    assert env.send_back.sent == [(0, 0)]


async def cancel_own_task_and_raise() -> None:
    cancel_own_task()
    raise LookupError("bad")


@pytest.mark.parametrize(
    "leak",
    [
        raise_generator_exit,
        cancel_own_task_and_wait,
        await_cancelled_task,
        cancel_own_task_and_raise,
    ],
)
async def test_foreign_cancellation_fails_its_message_only(
    worker_env: MakeWorkerEnv, leak: Callable[[], Awaitable[None]]
) -> None:
    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 1:
            await leak()
        await asyncio.sleep(0)

    async with worker_env(handle, concurrency=1) as env:
        env.pull(*range(5))
        await env.until_committable(5)
        env.pull(5)  # the worker has waited for messages in between
        await env.until_committable(6)

    assert env.send_back.sent == [(1, 0)]


async def test_message_is_done_when_its_handler_returns_with_a_cancellation_pending(
    worker_env: MakeWorkerEnv,
) -> None:
    cancelling: list[int] = []

    async def handle(message: MessageExt) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelling.append(task.cancelling())
        if message.queue_offset == 0:
            task.cancel()
        else:
            await asyncio.sleep(0)

    async with worker_env(handle, concurrency=1) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert env.send_back.sent == []
    assert cancelling == [0, 0, 0]


async def test_worker_that_is_cancelled_between_messages_fails_the_consumer() -> None:
    tasks: list[asyncio.Task[object] | None] = []

    async def handle(_: MessageExt) -> None:
        tasks.append(asyncio.current_task())

    env = WorkerEnv(handle, concurrency=1)
    async with env:
        env.pull(0)
        await env.until_committable(1)
        await until(lambda: bool(len(env.service.idle)), "the worker to rest")
        assert tasks[0] is not None
        tasks[0].cancel()
        await until(lambda: bool(env.failures), "the failure")
        assert "worker-0" in str(env.failures.pop())


class SlowSendBack(FakeSendBack):
    """Takes a message back when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go = asyncio.Event(), asyncio.Event()

    async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
        self.started.set()
        await self.go.wait()
        await super().send_back(message, delay_level)


async def test_send_back_time_does_not_count_for_the_next_handler(
    worker_env: MakeWorkerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(workers_module, "monotonic", lambda: now)
    since: list[float] = []

    async def handle(message: MessageExt) -> None:
        await asyncio.sleep(0)
        since.append(env.workers.busy[0].since)
        if message.queue_offset == 0:
            raise ValueError("bad")

    send_back = SlowSendBack()
    async with worker_env(handle, concurrency=1, send_back=send_back) as env:
        env.pull(0, 1)
        await send_back.started.wait()
        now = 2000.0
        send_back.go.set()
        await env.until_committable(2)

    assert since == [1000.0, 2000.0]


@pytest.mark.parametrize("response", [RetryLater(), SuspendQueue(), None, LookupError("late")])
async def test_expired_handler_leaves_nothing_to_the_next_message(
    worker_env: MakeWorkerEnv, response: object
) -> None:
    """Whatever an overdue handler returns or raises after its cancellation."""
    seen: list[tuple[int, int]] = []

    async def handle(message: MessageExt) -> object:
        task = asyncio.current_task()
        assert task is not None
        seen.append((message.queue_offset, task.cancelling()))
        if message.queue_offset == 0:
            try:
                await forever()
            except asyncio.CancelledError:
                if isinstance(response, LookupError):
                    raise response from None
                return response
        await asyncio.sleep(0)
        return None

    async with worker_env(handle, concurrency=1) as env:
        env.pull(0, 1, 2)
        await until(lambda: bool(env.workers.busy), "the handler")
        env.workers._check_time(env.workers.busy[0], 3600)
        await env.until_committable(3)

    assert seen == [(0, 0), (1, 0), (2, 0)]
    assert env.send_back.sent == [(0, 0)]


async def test_expired_batch_is_not_done_whatever_its_context() -> None:
    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            context.ack_index = 1

    async with WorkerEnv(on_batch=handle, concurrency=1, consume_batch_size=2) as env:
        env.pull(0, 1)
        await until(lambda: bool(env.workers.busy), "the handler")
        env.workers._check_time(env.workers.busy[0], 3600)
        await env.until_committable(2)

    assert sorted(env.send_back.sent) == [(0, 0), (1, 0)]


class Unreadable:
    """A value of which nothing can be read, like a proxy of an object that is gone."""

    def __getattribute__(self, name: str) -> object:
        raise LookupError(name)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("returns", [False, True], ids=["raised", "returned"])
async def test_a_retry_request_that_cannot_be_read_fails_its_message_only(
    *, orderly: bool, returns: bool
) -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> object:
        seen.append(message.queue_offset)
        if seen == [0]:
            if returns:
                return Broken()
            raise Broken
        return None

    async with WorkerEnv(handle, orderly=orderly) as env:
        env.pull(0, 1)
        await env.until_committable(2)

    assert (seen, env.send_back.sent) == (([0, 0, 1], []) if orderly else ([0, 1], [(0, 0)]))


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_context_that_cannot_be_read_fails_its_batch_only(*, orderly: bool) -> None:
    class Flag:
        reads = 0

        def __bool__(self) -> bool:
            self.reads += 1
            if self.reads > 1:  # a worker reads it after the call
                raise LookupError
            return True

    seen: list[int] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        seen.append(messages[0].queue_offset)
        if seen == [0]:
            context.rolled_back = cast(bool, Flag())

    async with WorkerEnv(on_batch=handle, orderly=orderly) as env:
        env.pull(0)
        await env.until_committable(1)

    assert seen == ([0, 0] if orderly else [0])


async def test_an_object_that_cannot_be_read_is_a_result_like_any_other() -> None:
    async def handle(_: MessageExt) -> object:
        return Unreadable()

    async with WorkerEnv(handle) as env:
        env.pull(0)
        await env.until_committable(1)

    assert env.send_back.sent == []


async def test_idle_workers_keep_no_messages() -> None:
    async def handle(_: MessageExt) -> None:
        await asyncio.sleep(0)

    async with WorkerEnv(handle) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)
        workers = env.workers._workers.values()
        await until(lambda: not any(each.assigned for each in workers), "the end of the turns")

        assert not any(each.messages or each.assigned for each in workers)
