"""Worker pool: calls the application's handler, with bounded concurrency and a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from types import coroutine
from typing import Any, Final

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import HandlerStuck, message_event
from rocketmq_aio.consumer.push.consume_service import TURN, ConsumeService
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.handlers import (
    BatchContext,
    ConsumeTimeoutError,
    Handler,
    is_retry_request,
)
from rocketmq_aio.core import core
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt

logger = get_logger(__name__)

STATISTICS_SECONDS: Final = 1.0  # a turn ends after this time, so that statistics are current
# All other exceptions of a handler concern its message only.
PROGRAM_ENDS: Final = (KeyboardInterrupt, SystemExit)
LONGEST_WATCH_SECONDS: Final = 1.0


# Outcomes of `run_handlers`: a value that is not None (or a cancelled task), a coroutine that has
# yielded *value*, an exception, and something other than a coroutine.
RETURNED, WAITS, RAISED, AWAITABLE = range(4)


@dataclass(slots=True, eq=False)
class Worker:
    """One worker and its current handler call."""

    number: int
    task: asyncio.Task[None] | None = None
    cancelling: Callable[[], int] = field(init=False)  # `asyncio.Task.cancelling` of the task
    since: float = 0.0  # start of the handler call; 0 while none runs
    expired: bool = False  # the handler took too long: its result does not count
    reported: bool = False  # as stuck
    assigned: DispatchQueue | None = None  # in whose turn it is
    messages: list[MessageExt] = field(default_factory=list)

    def start(self) -> None:
        self.task = asyncio.current_task()
        assert self.task is not None
        self.cancelling = self.task.cancelling

    @property
    def is_running(self) -> bool:
        """Whether the event loop runs the worker's task now."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:  # no event loop runs
            return False

    def uncancel(self) -> None:
        """Take back every cancellation of the task."""
        while self.task is not None and self.task.cancelling():
            self.task.uncancel()


class Workers:
    """Takes messages from *service* and calls *handler* with them, up to *size* concurrently.

    A worker that finds messages wakes the next idle one before it calls the handler: handlers that
    wait run concurrently, and handlers that do not wait cost no wake-ups.  If none is idle, another
    one is started: a consumer with few messages has few tasks.
    """

    def __init__(
        self, context: ConsumerContext[PushConfig], service: ConsumeService, handler: Handler
    ) -> None:
        config = context.config
        self.size = config.concurrency
        self._tasks = context.tasks
        self._publish = context.publish
        self._statistics = context.statistics
        self._service = service
        self._call = handler.call
        self._one = handler.one
        self._batch_size = config.consume_batch_size
        self._can_cancel = handler.threads is None
        self._timeout = config.consume_timeout_seconds
        self._stuck = config.stuck_seconds
        self._workers: dict[int, Worker] = {}
        self._timer: asyncio.TimerHandle | None = None  # while a worker serves a queue

    def start(self) -> None:
        self._variables = copy_context()  # of all workers: without those that handlers set
        self._start_worker()

    def resize(self, size: int) -> None:
        """Set the number of workers; surplus workers end after their current handler call."""
        self.size = size
        self._start_worker()
        self._service.idle.wake_all()

    def _start_worker(self) -> None:
        """Start another worker, unless all have been started."""
        number = next((n for n in range(self.size) if n not in self._workers), None)
        if number is not None:
            worker = self._workers[number] = Worker(number)
            name = f"worker-{number}"
            self._variables.run(partial(self._tasks.spawn, self._work, worker, name=name))

    @property
    def busy(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.since]

    @property
    def can_start(self) -> bool:
        """Whether cached messages will have a handler: not all workers exceed the time limit."""
        expired = [
            each for each in self._workers.values() if each.expired and each.number < self.size
        ]
        return len(expired) < self.size and not self._service.suspended

    def is_calling(self) -> bool:
        """Whether the current task is that of a handler."""
        return any(worker.is_running for worker in self._workers.values())

    def messages_in_flight(self) -> list[MessageExt]:
        """Return the messages that handlers work on now, within the time limit."""
        return [each for worker in self.busy if not worker.expired for each in worker.messages]

    async def _work(self, worker: Worker) -> None:
        worker.start()
        try:
            while worker.number < self.size:
                await self._serve(worker)
                if worker.number < self.size:
                    await self._service.idle.wait()
        finally:
            del self._workers[worker.number]

    async def _serve(self, worker: Worker) -> None:
        """Handle messages, one queue after another, until there are none."""
        service, woke_next = self._service, False
        counted = 0 if self._one is None else 1  # otherwise `take` counts the messages
        while worker.number < self.size and (assigned := service.next_queue()) is not None:
            if not woke_next:
                # One is enough: it runs as soon as the handler here waits, and wakes the next.
                woke_next = True
                if not service.idle.wake_one() and len(self._workers) < self.size:
                    self._start_worker()
            assigned.active += counted  # the queue is not drained between two messages
            worker.assigned = assigned
            if self._timer is None:
                self._set_timer()
            try:
                await self._serve_queue(worker, assigned)
            finally:
                worker.assigned, worker.messages = None, []  # an idle worker keeps none alive
                assigned.end_flight(counted)
            service.end_turn(assigned)
            assigned.last_consume = monotonic()
            # Handlers that never wait would starve pulls and heartbeats.
            await asyncio.sleep(0)

    async def _serve_queue(  # noqa: C901 - flat: it runs for every message
        self, worker: Worker, assigned: DispatchQueue
    ) -> None:
        """Call the handler with messages of *assigned* until its turn ends."""
        service, call, one, size = self._service, self._call, self._one, self._batch_size
        waiting, cancelling, may_take = assigned.waiting, worker.cancelling, service.may_take
        # The core calls handlers until one waits: then most of them do.
        eager = core is not None and one is not None and may_take is None
        calls = taken = failed = 0
        began, excluded = monotonic(), 0.0
        due = began + STATISTICS_SECONDS
        while waiting and not service.suspended and (may_take is None or may_take(assigned)):
            awaitable: Awaitable[object] | None = None
            if eager:
                stopped, count = self._run_handlers(worker, assigned, due)
                calls += count
                if stopped is None:
                    break
                kind, message, running, value, now = stopped
                messages = [message]
                eager = kind != WAITS
                awaitable = value if kind == AWAITABLE else _rest_of(kind, running, value)
            elif one is None:
                messages = assigned.take(size)
                taken += len(messages)
                now = monotonic()
            else:  # counted by the turn, with no call but `mark_done`
                messages = [waiting.popleft()]
                now = monotonic()
            worker.messages = messages
            worker.since = now
            result: object = None
            error: BaseException | None = None
            try:
                if awaitable is None:
                    awaitable = call(messages) if one is None else one(messages[0])
                result = await awaitable
            except BaseException as raised:  # noqa: BLE001 - judged, and raised again if it is ours
                error = self._failure_of(worker, raised)
            worker.since = 0.0
            calls += 1
            if result is None and error is None and not worker.expired and not cancelling():
                if one is None:
                    assigned.complete(messages)
                else:
                    assigned.mark_done(messages[0])
            else:
                ended = monotonic()
                lost, untried = await self._finish(worker, assigned, messages, result, error)
                failed += lost
                taken -= untried
                excluded += monotonic() - ended  # sending back is not the handler's time
            assigned.turn += 1
            if assigned.turn >= TURN or now >= due or worker.number >= self.size:
                break
        seconds = monotonic() - began - excluded
        topic, done = assigned.queue.topic, (taken if one is None else calls) - failed
        self._statistics.note_consumed(topic, done, failed, seconds, calls=calls)

    def _run_handlers(
        self, worker: Worker, assigned: DispatchQueue, due: float
    ) -> tuple[tuple[int, MessageExt, Any, Any, float] | None, int]:
        """Call the handler with messages of *assigned* as long as it returns None without waiting.

        Returns another outcome of a call, None if the turn has ended, and how many were done.
        """
        assert core is not None
        assert self._one is not None
        done: list[MessageExt] = []
        left = TURN - assigned.turn
        try:
            stopped = core.run_handlers(
                *(self._one, assigned.waiting, done, left, due, monotonic, worker.cancelling),
                *(self._service, self, worker.number),
            )
        finally:
            if done:
                assigned.mark_all_done(done)
                assigned.turn += len(done)
        return stopped, len(done)

    async def _finish(
        self,
        worker: Worker,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        result: object,
        error: BaseException | None,
    ) -> tuple[int, int]:
        """Finish *messages* after anything but a plain return.

        Returns how many failed, and how many were put back without a try.
        """
        if self._one is not None:
            assigned.active += 1  # as `take` does
        if worker.expired or worker.cancelling() or is_retry_request(result):
            error = await self._conclude(worker, result, error)
        context = result if error is None and type(result) is BatchContext else None
        if context is not None:
            error = context.error
        elif error is None:
            assigned.complete(messages)
            return 0, 0
        done, failed = await self._service.finish(assigned, messages, context, error)
        return failed, len(messages) - done - failed

    def _failure_of(self, worker: Worker, raised: BaseException) -> BaseException:
        """Return the failure of a handler; raise what is meant for the worker itself."""
        if isinstance(raised, PROGRAM_ENDS):
            raise raised
        if isinstance(raised, asyncio.CancelledError) and self._tasks.is_ending:
            raise raised
        if isinstance(raised, GeneratorExit) and not worker.is_running:
            raise raised  # this coroutine is being closed and will not run again
        return raised

    async def _conclude(
        self, worker: Worker, result: object, error: BaseException | None
    ) -> BaseException | None:
        """Return the failure of a handler call, None if it succeeded.

        The next handler must not see what cancelled this one: its timeout, or the handler itself.
        """
        expired, worker.expired = worker.expired, False
        if worker.cancelling() and not self._tasks.is_ending:
            worker.uncancel()
            try:
                # Before Python 3.13 a cancellation that was taken back is delivered all the same.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._tasks.is_ending:
                    raise
        if expired:
            return ConsumeTimeoutError(f"the handler took longer than {self._timeout:g} s")
        return result if is_retry_request(result) else error  # returned instead of raised

    def _set_timer(self) -> None:
        seconds = min(LONGEST_WATCH_SECONDS, self._timeout / 4, self._stuck / 4)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_times)

    def _check_times(self) -> None:
        self._timer = None
        if self._tasks.is_ending:
            return
        if any(worker.assigned is not None for worker in self._workers.values()):
            self._set_timer()  # an idle consumer has none
        now = monotonic()
        for worker in self.busy:
            self._check_time(worker, now - worker.since)

    def _check_time(self, worker: Worker, seconds: float) -> None:
        if seconds > self._stuck and not worker.reported:
            worker.reported = True
            first = worker.messages[0]
            fields = {"queue": str(first.queue), "offset": first.queue_offset}
            logger.warning("handler_stuck", **fields, seconds=round(seconds))
            self._publish(message_event(HandlerStuck, first, seconds=seconds))
        elif seconds <= self._stuck:
            worker.reported = False
        if seconds > self._timeout and not worker.expired:
            worker.expired = True
            # A thread cannot be cancelled: its result is ignored when it comes.
            if self._can_cancel and worker.task is not None:
                worker.task.cancel()


@coroutine
def _rest_of(
    kind: int,
    running: Any,  # noqa: ANN401 - a coroutine, which has no type that can be delegated to
    value: Any,  # noqa: ANN401
) -> Generator[Any, Any, object]:
    """Return the result of a call that `run_handlers` has begun, or raise its exception."""
    if kind == RAISED:
        raise value
    while kind == WAITS:
        error: BaseException | None = None
        try:
            yield value  # what the coroutine has yielded: a future, or None
        except GeneratorExit:
            running.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - thrown into the coroutine
            error = thrown
        if error is None:
            return (yield from running)
        try:
            value = running.throw(error)
        except StopIteration as ended:
            return ended.value
        finally:
            error = None
    return value
