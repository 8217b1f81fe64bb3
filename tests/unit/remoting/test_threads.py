"""run_in_thread: results, errors, context, executors without threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from rocketmq_aio.remoting.threads import run_in_thread


def refuse_threads(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Let starts of threads fail, after *meanwhile*."""

    def start(_: threading.Thread) -> None:
        meanwhile()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


async def in_executor(used: ThreadPoolExecutor, given: ThreadPoolExecutor | None) -> None:
    """Make *used* the executor of the loop when none is *given*."""
    if given is None:
        asyncio.get_running_loop().set_default_executor(used)


@pytest.mark.parametrize("of_loop", [False, True])
async def test_a_call_that_found_no_thread_is_not_made_later(
    monkeypatch: pytest.MonkeyPatch, *, of_loop: bool
) -> None:
    called: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        threads = None if of_loop else pool
        await in_executor(pool, threads)
        with monkeypatch.context() as patched:
            refuse_threads(patched, lambda: None)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await run_in_thread(threads, called.append, "early")

        await run_in_thread(threads, called.append, "late")

    assert called == ["late"]


async def test_a_call_that_an_idle_thread_took_returns_although_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, released, begun = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        busy.set()
        released.wait(15)

    def second() -> str:
        begun.set()
        return "done"

    def take_the_call() -> None:
        released.set()
        assert begun.wait(15)

    with ThreadPoolExecutor(2) as pool:
        earlier = asyncio.create_task(run_in_thread(pool, first))
        await asyncio.to_thread(busy.wait, 15)
        with monkeypatch.context() as patched:
            refuse_threads(patched, take_the_call)
            said = await run_in_thread(pool, second)
        await earlier

    assert said == "done"


async def test_a_call_that_an_executor_drops_raises() -> None:
    released = threading.Event()
    pool = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    begun = asyncio.create_task(run_in_thread(None, released.wait, 15))
    dropped = asyncio.create_task(run_in_thread(None, threading.get_ident))
    await asyncio.sleep(0)
    pool.shutdown(wait=False, cancel_futures=True)
    released.set()

    with pytest.raises(RuntimeError, match="shut down"):
        await asyncio.wait_for(dropped, 15)
    assert await begun


@pytest.mark.parametrize(
    "kind", [StopIteration, GeneratorExit, asyncio.CancelledError, CancelledError]
)
async def test_what_ends_coroutines_fails_the_call(kind: type[BaseException]) -> None:
    def run() -> None:
        raise kind

    async with asyncio.timeout(15):
        with pytest.raises(RuntimeError) as caught:
            await run_in_thread(None, run)
        with pytest.raises(LookupError):  # any other is raised as it is
            await run_in_thread(None, {}.__getitem__, kind)

    assert isinstance(caught.value.__cause__, kind)


async def test_a_cancelled_call_that_waits_for_a_thread_is_not_made() -> None:
    called: list[str] = []
    busy, released = threading.Event(), threading.Event()

    def first() -> None:
        busy.set()
        released.wait(15)

    with ThreadPoolExecutor(1) as pool:
        earlier = asyncio.create_task(run_in_thread(pool, first))
        await asyncio.to_thread(busy.wait, 15)
        waiting = asyncio.create_task(run_in_thread(pool, called.append, "cancelled"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        released.set()
        await earlier
        await run_in_thread(pool, called.append, "later")

    assert called == ["later"]
