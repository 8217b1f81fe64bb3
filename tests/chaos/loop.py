"""Event loop in virtual time: when nothing is ready, time jumps to the next timer.

Callbacks run in the order of their times, and of their calls where the times are equal.  Every
callback belongs to the simulated process of its context.  A process can be frozen, as by SIGSTOP:
its callbacks wait; or killed, as by SIGKILL: they never run, so no ``finally`` block does.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

START_SECONDS: Final = 1000.0
START_WALL_NS: Final = 1_700_000_000_000_000_000
MOST_BUSY_TURNS: Final = 100_000
TURN_SECONDS: Final = 1e-6
THREAD_SECONDS: Final = 0.005  # until a call in a thread has returned, at most


class StuckError(Exception):
    """The simulation cannot go on: nothing is ready, or time does not pass."""


class Process:
    """A simulated process: the callbacks whose context contains it.

    :ivar wall_ahead_ns: of the true time
    :ivar frozen_seconds: in total, until the end of the last freeze
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.frozen_at = 0.0
        self.frozen_seconds = 0.0
        self.dead = False
        self.wall_ahead_ns = 0
        self.held: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def context(self) -> Context:
        """Return a context in which everything belongs to this process."""
        context = copy_context()
        context.run(current_process.set, self)
        return context

    def __repr__(self) -> str:
        return self.name


WORLD: Final = Process("world")
current_process: ContextVar[Process] = ContextVar("process", default=WORLD)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Event loop and `VirtualClock` of one run."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.reports: list[str] = []  # calls of the exception handler
        self.processes: list[Process] = [WORLD]
        self._now = START_SECONDS
        self._stopped_some = False  # a process is frozen or dead
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._ready: deque[asyncio.Handle] = deque()
        self.network: Any = None
        self._turns = 0
        self.set_task_factory(_remember)  # type: ignore[arg-type]
        self.set_exception_handler(_report)

    # --- clock ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def wall_ns(self) -> int:
        passed = int((self._now - START_SECONDS) * 1e9)
        return START_WALL_NS + passed + current_process.get().wall_ahead_ns

    # --- processes ------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """Return a new process."""
        process = Process(name)
        self.processes.append(process)
        return process

    def freeze(self, process: Process) -> None:
        if not process.frozen:
            process.frozen = self._stopped_some = True
            process.frozen_at = self._now

    def unfreeze(self, process: Process) -> None:
        if not process.frozen:
            return
        process.frozen = False
        process.frozen_seconds += self._now - process.frozen_at
        held, process.held = process.held, []
        if not process.dead:
            self._ready.extend(held)

    def kill(self, process: Process) -> None:
        process.dead = self._stopped_some = True

    # --- running --------------------------------------------------------------------------------

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # stays in the heap until its time; a run is short

    def _run_once(self) -> None:
        if not self._ready:
            self._jump()
        self._turns += 1
        self._now += TURN_SECONDS  # as on a real machine, a loop that waits does not stop time
        if self._turns > MOST_BUSY_TURNS:
            raise StuckError(f"the event loop never becomes idle: {list(self._ready)[:3]!r}")
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled() and not self._holds(handle):
                handle._run()

    def _jump(self) -> None:
        """Go to the time of the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise StuckError("nothing is ready, and no timer is set")
        if timers[0][0] > self._now:
            self._now = timers[0][0]
            self._turns = 0

    def _holds(self, handle: asyncio.Handle) -> bool:
        """Keep *handle* if its process does not run."""
        if not self._stopped_some:
            return False
        process: Process = handle._context.get(current_process, WORLD)  # type: ignore[attr-defined]
        if process.dead or process.frozen:
            process.held.append(handle)
            return True
        return False

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, _events: Any) -> None:
        pass

    def run_forever(self) -> None:
        self._check_closed()  # type: ignore[attr-defined]
        self._stopping = False
        previous = events._get_running_loop()
        events._set_running_loop(self)
        self._thread_id: int | None = 1
        try:
            while not self._stopping:
                self._run_once()
        finally:
            self._stopping = False
            self._thread_id = None
            events._set_running_loop(previous)

    # --- threads --------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.wrap_future(SimulatedThreads().submit(func, *args), loop=self)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    # --- network --------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: str, port: int, **_options: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: str, port: int, **_options: Any
    ) -> Any:
        return self.network.listen(protocol_factory, host, port)

    def remove_reader(self, fd: Any) -> bool:
        return False  # a listening socket of the network has none


class SimulatedThreads(Executor):
    """Executor whose calls run in the event loop, at a time soon."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        called: Future[Any] = Future()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)

        def call() -> None:
            if not called.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                called.set_exception(error)
            else:
                called.set_result(result)

        loop.call_later(loop.random.uniform(0, THREAD_SECONDS), call)
        return called

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def _remember(loop: SimulatedLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task that is kept, so that garbage collection does not end those of dead processes."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    context: Context | None = options.get("context")
    process = current_process.get() if context is None else context.get(current_process, WORLD)
    process.tasks.append(task)
    return task


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimulatedLoop)
    text = str(context.get("message"))
    for key in ("exception", "task", "future", "handle"):
        if key in context:
            text += f"; {key}: {context[key]!r}"
    loop.reports.append(text)
