"""A fixed set of workers that call the application's handler."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from rocketmq_aio.consumer.common.events import ConsumerEvent, HandlerStuck
from rocketmq_aio.consumer.common.statistics import ConsumeStatistics
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.handlers import Answer, BatchContext, Call, ConsumeTimeoutError, One
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.remoting.background_tasks import BackgroundTasks

logger = get_logger(__name__)

# Handlers that never wait would starve pulls and heartbeats: after so many everybody has a turn.
STREAK: Final = 32
TALLY_SECONDS: Final = 1.0
# Whatever else a handler raises is about its message: the consumer outlives it.
THE_PROGRAM_ENDS: Final = (KeyboardInterrupt, SystemExit)
LONGEST_WATCH_SECONDS: Final = 1.0


class Service(Protocol):
    """Decides which messages come next, and what becomes of them."""

    def take(self) -> tuple[DispatchQueue, list[MessageExt]] | None:
        """Return messages of one queue for a handler, None when there are none now."""

    def succeed(self, assigned: DispatchQueue, messages: list[MessageExt]) -> None:
        """All of *messages* are done."""

    async def finish(
        self,
        assigned: DispatchQueue,
        messages: list[MessageExt],
        said: BatchContext | None,
        error: BaseException | None,
    ) -> int:
        """The handler said something else than that all are done; returns how many are."""
        ...


class QueueService(Service, Protocol):
    """A service whose messages need not be taken one by one from it."""

    suspended: bool

    def next_queue(self) -> DispatchQueue | None:
        """Return the queue whose turn it is, which has messages that wait."""

    def end_turn(self, assigned: DispatchQueue) -> None:
        """It is the next queue's turn."""


class Worker:
    """One worker and what it is at."""

    __slots__ = (
        *("assigned", "cancelling", "expired", "messages", "number", "reported", "since", "task"),
    )

    cancelling: Callable[[], int]  # of the task: how many cancellations are not taken back

    def __init__(self, number: int) -> None:
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.since = 0.0  # when its handler began; 0 while none runs
        self.expired = False  # the handler took too long: its result does not count
        self.reported = False
        self.assigned: DispatchQueue | None = None
        self.messages: list[MessageExt] = []

    def start(self) -> None:
        """The current task is the worker's."""
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


class CallStats:
    """What one worker did for one queue since it last told the statistics."""

    __slots__ = ("_statistics", "assigned", "calls", "due", "failed", "ok", "seconds")

    def __init__(self, statistics: ConsumeStatistics) -> None:
        self._statistics = statistics
        self.assigned: DispatchQueue | None = None
        self.due = 0.0  # a backlog of one queue must not keep the statistics waiting
        self.calls = self.ok = self.failed = 0
        self.seconds = 0.0

    def begin(self, assigned: DispatchQueue, now: float) -> None:
        """The next calls are for this queue."""
        self.end()
        self.assigned = assigned
        self.due = now + TALLY_SECONDS
        assigned.last_consume = now

    def end(self) -> None:
        """Tell the statistics."""
        if self.assigned is not None and self.calls:
            topic = self.assigned.queue.topic
            self._statistics.note_consumed(
                topic, self.ok, self.failed, self.seconds, calls=self.calls
            )
        self.calls = self.ok = self.failed = 0
        self.seconds = 0.0


class Workers:
    """Runs *call* on what *service* gives, so many at once as *size* says.

    An idle worker is woken when there is something to do, and wakes the next one before it calls
    the handler: so a handler that waits has company, and one that does not costs no wake-ups.

    :param queues: the service, if it lets workers take single messages from its queues, with *one*
        instead of *call* to call for them: the short way
    :param can_cancel: whether a call that takes too long can be cancelled; a thread cannot
    :param timeout_seconds: the longest a call may take
    :param stuck_seconds: calls that take longer are reported
    """

    def __init__(
        self,
        host: BackgroundTasks,
        service: Service,
        call: Call,
        statistics: ConsumeStatistics,
        *,
        queues: QueueService | None = None,
        one: One | None = None,
        size: int,
        can_cancel: bool,
        timeout_seconds: float,
        stuck_seconds: float,
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self._host = host
        self._service = service
        self._call = call
        self._statistics = statistics
        self._short_way = None if queues is None or one is None else (queues, one)
        self.size = size
        self._can_cancel = can_cancel
        self._timeout = timeout_seconds
        self._stuck = stuck_seconds
        self._on_event = on_event
        self._workers: dict[int, Worker] = {}
        self._idle: deque[asyncio.Future[None]] = deque()

    def start(self) -> None:
        """Begin to work."""
        self.resize(self.size)
        self._host.spawn(self._watch, name="watch-handlers")

    def resize(self, size: int) -> None:
        """Let *size* workers work; those that are too many end after what they are at."""
        self.size = size
        for number in range(size):
            if number not in self._workers:
                worker = self._workers[number] = Worker(number)
                self._host.spawn(self._work, worker, name=f"worker-{number}")
        self.wake_all()

    def wake(self) -> None:
        """There may be something to do."""
        idle = self._idle
        while idle:
            waiter = idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Something changed for all workers."""
        while self._idle:
            self.wake()

    @property
    def busy(self) -> list[Worker]:
        """The workers whose handler runs now."""
        return [worker for worker in self._workers.values() if worker.since]

    # --- the work -------------------------------------------------------------------------------

    async def _work(self, worker: Worker) -> None:
        worker.start()
        try:
            while worker.number < self.size:
                if self._short_way is not None:
                    await self._serve_queues(worker, *self._short_way)
                else:
                    await self._serve(worker)
                if worker.number < self.size:
                    await self._wait()
        finally:
            del self._workers[worker.number]

    async def _serve(self, worker: Worker) -> None:
        """Work until there is nothing to do."""
        take, succeed, call = self._service.take, self._service.succeed, self._call
        cancelling = worker.cancelling
        streak, now, company = 0, monotonic(), False
        tally = CallStats(self._statistics)
        while worker.number < self.size and (taken := take()) is not None:
            if not company:
                # One is enough: it runs as soon as the handler here waits, and wakes the next.
                company = True
                self.wake()
            assigned, messages = worker.assigned, worker.messages = taken
            worker.since = now
            said: object = None
            error: BaseException | None = None
            try:
                said = await call(messages)
            except BaseException as raised:  # noqa: BLE001 - judged, and raised again if it is ours
                error = self._judge(worker, raised)
            began, worker.since, now = now, 0.0, monotonic()
            seconds = now - began
            if worker.expired or cancelling() or isinstance(said, Answer):
                error = await self._conclude(worker, said, error)
            done = size = len(messages)
            if error is None and type(said) is not BatchContext:
                succeed(assigned, messages)
            else:
                context = said if error is None and isinstance(said, BatchContext) else None
                done = await self._service.finish(assigned, messages, context, error)
                now = monotonic()  # the next handler is not charged for this
            if assigned is not tally.assigned or now >= tally.due:
                tally.begin(assigned, now)
            tally.calls += 1
            tally.ok += done
            tally.failed += size - done
            tally.seconds += seconds
            streak += 1
            if streak >= STREAK:
                streak = 0
                await asyncio.sleep(0)
                now = monotonic()
        tally.end()

    async def _serve_queues(self, worker: Worker, queues: QueueService, one: One) -> None:
        """Work until there is nothing to do, the short way."""
        company = False
        while worker.number < self.size and (assigned := queues.next_queue()) is not None:
            if not company:
                company = True
                self.wake()
            assigned.active += 1  # so that nobody believes all to be done in between
            began, calls, failed = monotonic(), 0, 0
            try:
                calls, failed = await self._work_through(worker, assigned, queues, one)
            finally:
                assigned.hand_back(1)
            now = assigned.last_consume = monotonic()
            topic, done = assigned.queue.topic, calls - failed
            self._statistics.note_consumed(topic, done, failed, now - began, calls=calls)
            await asyncio.sleep(0)

    async def _work_through(
        self, worker: Worker, assigned: DispatchQueue, queues: QueueService, one: One
    ) -> tuple[int, int]:
        """Handle messages of a queue while it is its turn; return how many, and how many failed."""
        waiting, settle, cancelling = assigned.waiting, assigned.settle, worker.cancelling
        worker.assigned = assigned
        calls = failed = 0
        due = monotonic() + TALLY_SECONDS
        while waiting and not queues.suspended:
            message = waiting.popleft()
            worker.messages = [message]
            worker.since = now = monotonic()
            said: object = None
            error: BaseException | None = None
            try:
                said = await one(message)
            except BaseException as raised:  # noqa: BLE001 - judged, and raised again if it is ours
                error = self._judge(worker, raised)
            worker.since = 0.0
            calls += 1
            if worker.expired or cancelling() or isinstance(said, Answer):
                error = await self._conclude(worker, said, error)
            if error is None:
                settle(message)
            else:
                failed += 1
                assigned.active += 1
                await queues.finish(assigned, [message], None, error)
            assigned.turn += 1
            if assigned.turn >= STREAK:
                queues.end_turn(assigned)
                break
            if now >= due or worker.number >= self.size:
                break
        return calls, failed

    def _judge(self, worker: Worker, raised: BaseException) -> BaseException:
        """Return what the handler failed with; raise what is meant for the worker itself."""
        if isinstance(raised, THE_PROGRAM_ENDS):
            raise raised
        if isinstance(raised, asyncio.CancelledError) and self._host.is_ending:
            raise raised
        if isinstance(raised, GeneratorExit) and not worker.is_running:
            raise raised  # this coroutine is closed: nobody will run it any more
        return raised

    async def _conclude(
        self, worker: Worker, said: object, error: BaseException | None
    ) -> BaseException | None:
        """Return what the handler failed with, if it did, after what it *said* or raised.

        The next handler must not see what cancelled this one: its timeout, or the handler itself.
        """
        expired, worker.expired = worker.expired, False
        if worker.cancelling() and not self._host.is_ending:
            worker.uncancel()
            try:
                # Before Python 3.13 a cancellation that was taken back is delivered all the same.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._host.is_ending:
                    raise
        if expired:
            return ConsumeTimeoutError(f"the handler took longer than {self._timeout:g} s")
        return said if isinstance(said, Answer) else error  # returned instead of raised

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.wake()  # the call was for somebody
            raise

    # --- handlers that take too long ------------------------------------------------------------

    async def _watch(self) -> None:
        tick = min(LONGEST_WATCH_SECONDS, self._timeout / 4, self._stuck / 4)
        while True:
            await asyncio.sleep(tick)
            now = monotonic()
            for worker in self.busy:
                self._look(worker, now - worker.since)

    def _look(self, worker: Worker, seconds: float) -> None:
        if seconds > self._stuck and not worker.reported:
            self._report(worker, seconds)
        elif seconds <= self._stuck:
            worker.reported = False
        if seconds > self._timeout and not worker.expired:
            worker.expired = True
            # What a thread runs cannot be stopped: its result will not count when it comes.
            if self._can_cancel and worker.task is not None:
                worker.task.cancel()

    def _report(self, worker: Worker, seconds: float) -> None:
        worker.reported = True
        if worker.assigned is None or not worker.messages:
            return
        first = worker.messages[0]
        event = HandlerStuck(
            queue=worker.assigned.queue,
            offset=first.queue_offset,
            message_id=first.message_id,
            seconds=seconds,
        )
        logger.warning(
            "handler_stuck", queue=str(event.queue), offset=event.offset, seconds=round(seconds)
        )
        self._on_event(event)
