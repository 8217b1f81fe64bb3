"""Event loop in a thread of its own, for callers without one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
CALL_SECONDS: Final = 60.0  # without a turn of the event loop: the thread hangs


class LoopThread:
    """Runs functions and coroutines in an event loop of another thread, once it is started.

    Not started, functions run where they are called: then the caller's event loop is the one.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event
        self._pid = 0
        self._error: BaseException | None = None  # that ended the thread

    @property
    def elsewhere(self) -> bool:
        """Whether the event loop runs in another thread than the caller."""
        return self._thread is not None and self._thread.ident != threading.get_ident()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that started the thread."""
        return self._pid != os.getpid()

    def start(self) -> None:
        """Start the thread; return when its event loop runs.

        :raises OSError: the event loop cannot be made, for example without a free descriptor
        """
        if self._thread is not None:
            raise RuntimeError("the cluster runs already")
        started: Future[None] = Future()
        self._pid, self._error = os.getpid(), None

        def run() -> None:
            main = self._until_end(started)
            try:
                asyncio.run(main)
            except BaseException as error:  # noqa: BLE001 - raised by the next call
                main.close()
                self._error = error
                if not started.done():
                    started.set_exception(error)

        self._thread = threading.Thread(target=run, name="rocketmq-embedded", daemon=True)
        try:
            self._thread.start()
            started.result(CALL_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the loop and the thread; without effect in a forked child.

        :raises TimeoutError: the thread hangs
        """
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and not self.forked:
            with suppress(RuntimeError):  # an exception has ended the loop
                self._loop.call_soon_threadsafe(self._end.set)
            self._loop = None
            thread.join(CALL_SECONDS)
            if thread.is_alive():
                raise TimeoutError(f"the cluster's thread has not ended after {CALL_SECONDS:g} s")

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the event loop and return its result."""
        if not self.elsewhere:
            return function(*args, **kwargs)

        async def run() -> T:
            return function(*args, **kwargs)

        return self.run(run())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the thread and return its result."""
        call = self._started(coroutine)
        try:
            while not wait([call], CALL_SECONDS).done:
                self._check_responsive()
            return call.result()
        except BaseException:  # e.g. an interrupt: the coroutine must not run on alone
            call.cancel()
            raise

    async def awaited(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the thread; the caller's loop runs meanwhile."""
        return await asyncio.wrap_future(self._started(coroutine))

    def _started(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop is None or self.forked:
            coroutine.close()
            raise RuntimeError("the cluster does not run in this process")
        if self._error is not None:
            coroutine.close()
            raise self._ended()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _ended(self) -> RuntimeError:
        ended = RuntimeError("an exception has ended the cluster's thread")
        ended.__cause__ = self._error
        return ended

    def _check_responsive(self) -> None:
        """Raise TimeoutError if the thread hangs; a call may take as long as it needs."""
        if self._error is not None:
            raise self._ended()
        turned = threading.Event()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(turned.set)
        if not turned.wait(CALL_SECONDS):
            raise TimeoutError(f"the cluster's thread does not respond for {CALL_SECONDS:g} s")

    async def _until_end(self, started: Future[None]) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        if self._thread is not None:  # not stopped meanwhile
            started.set_result(None)
            await self._end.wait()


class Threaded(Protocol):
    """An object whose event loop may run in a thread."""

    @property
    def thread(self) -> LoopThread: ...


S = TypeVar("S", bound=Threaded)


def from_any_thread(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method callable from any thread: it runs in the event loop of its object."""

    @wraps(method)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.thread.call(method, self, *args, **kwargs)

    return wrapper


def awaited_or_blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Awaitable[T]]:
    """Make a coroutine method block when the event loop runs in another thread."""

    @wraps(method)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        coroutine = method(self, *args, **kwargs)
        return Done(self.thread.run(coroutine)) if self.thread.elsewhere else coroutine

    return wrapper


def waits_for_clients(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Awaitable[T]]:
    """Make a coroutine method, also of a cluster in a thread; it blocks where no event loop runs.

    Blocking a loop would stop the clients in it, whose requests the method waits for.
    """

    @wraps(method)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        coroutine = method(self, *args, **kwargs)
        if not self.thread.elsewhere:
            return coroutine
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return Done(self.thread.run(coroutine))
        return self.thread.awaited(coroutine)

    return wrapper


class Done(Generic[T]):
    """Awaitable that has its value already."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        return self.value
        yield
