"""BackgroundTasks: start, close, failure, cancellation."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from rocketmq_aio.remoting.background_tasks import BackgroundTasks, call_isolated
from tests.unit.remoting.foreign_cancellation import (
    await_cancelled_task,
    cancel_own_task_and_wait,
    raise_generator_exit,
)
from tests.unit.remoting.until import until


class Failures(list[BaseException]):
    """Failures that `on_failure` received."""


def host_of(failures: Failures) -> BackgroundTasks:
    return BackgroundTasks("test", on_failure=failures.append)


async def forever(started: asyncio.Event | None = None) -> None:
    if started is not None:
        started.set()
    await asyncio.Event().wait()


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_close_ends_all_tasks() -> None:
    failures = Failures()
    host = host_of(failures)
    started = asyncio.Event()
    await host.start()
    host.spawn(forever, started, name="forever")
    await started.wait()
    await host.close()

    assert others() == set()
    assert failures == []


async def test_start_and_close_may_come_from_different_tasks() -> None:
    host = host_of(Failures())
    await asyncio.create_task(host.start())
    host.spawn(forever, name="forever")
    await asyncio.create_task(host.close())

    assert others() == set()


async def test_concurrent_and_repeated_closes_are_one_close() -> None:
    host = host_of(Failures())
    await host.start()
    await asyncio.gather(host.close(), host.close())
    await host.close()

    assert others() == set()


async def test_a_host_that_was_never_started_can_be_closed() -> None:
    await host_of(Failures()).close()

    assert others() == set()


async def test_spawn_after_close_does_nothing() -> None:
    host = host_of(Failures())
    await host.start()
    await host.close()
    host.spawn(forever, name="late")

    assert others() == set()


async def test_a_task_that_fails_ends_the_others_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise LookupError("a bug")

    failures = Failures()
    host = host_of(failures)
    await host.start()
    host.spawn(forever, name="forever")
    with caplog.at_level(logging.ERROR, "rocketmq_aio"):
        host.spawn(fail, name="fails")
        await until(lambda: not others())

    assert [str(each) for each in failures] == ["a bug"]
    assert "background_task_failed" in caplog.text
    await host.close()


async def test_a_start_that_is_cancelled_leaves_no_task() -> None:
    failures = Failures()
    host = host_of(failures)
    starting = asyncio.create_task(host.start())
    await asyncio.sleep(0)
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    await until(lambda: not others())

    assert failures == []
    await host.close()


async def test_a_close_that_is_cancelled_still_ends_the_tasks() -> None:
    host = host_of(Failures())
    await host.start()
    host.spawn(forever, name="forever")
    closing = asyncio.create_task(host.close())
    await asyncio.sleep(0)
    closing.cancel()
    await host.close()

    assert others() == set()


async def test_background_tasks_cancelled_by_foreign_code_fail() -> None:
    failures = Failures()
    host = host_of(failures)
    await host.start()
    for task in others():  # as asyncio.run() does at the end of a program
        task.cancel()
    await until(lambda: not others())

    assert [type(each) for each in failures] == [asyncio.CancelledError]
    await host.close()


async def test_a_task_that_is_cancelled_before_it_begins_leaves_no_coroutine(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """A handler that ends the program does so to a worker that it has just started."""
    host = host_of(Failures())
    await host.start()
    host.spawn(forever, name="forever")
    [each.cancel() for each in others()]
    await until(lambda: not others())
    await host.close()
    del host
    gc.collect()

    assert [str(each.message) for each in recwarn] == []


async def test_host_fails_when_foreign_code_cancels_a_task_before_it_begins() -> None:
    failures = Failures()
    host = host_of(failures)
    await host.start()
    before = others()
    host.spawn(forever, name="forever")
    (spawned,) = others() - before
    spawned.cancel()
    await until(lambda: not others())

    assert [str(each) for each in failures] == ["the tasks of test ended unexpectedly"]
    assert host.is_ending
    await host.close()


# --- exceptions that leak into tasks of the host


async def raise_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "leak", [raise_cancelled, raise_generator_exit, await_cancelled_task, cancel_own_task_and_wait]
)
async def test_host_fails_when_a_task_ends_with_a_foreign_exception(
    leak: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures()
    host = host_of(failures)
    await host.start()
    host.spawn(forever, name="forever")
    with caplog.at_level(logging.ERROR, "rocketmq_aio"):
        host.spawn(leak, name="leaks")
        await until(lambda: not others())

    assert len(failures) == 1
    assert not isinstance(failures[0], asyncio.CancelledError | BaseExceptionGroup)
    assert "background_task_failed" in caplog.text
    await host.close()


async def test_failure_of_a_cancelled_task_names_the_task() -> None:
    failures = Failures()
    host = host_of(failures)
    await host.start()
    host.spawn(raise_cancelled, name="pull-7")
    await until(lambda: bool(failures))

    assert "test:pull-7" in str(failures[0])
    assert isinstance(failures[0].__cause__, asyncio.CancelledError)
    await host.close()


async def test_failed_background_tasks_ignore_a_spawn_of_their_listener() -> None:
    """The listener of a failure may use the host that failed."""
    failures = Failures()

    def on_failure(cause: BaseException) -> None:
        failures.append(cause)
        host.spawn(forever, name="late")

    host = BackgroundTasks("test", on_failure=on_failure)
    await host.start()
    host.spawn(raise_cancelled, name="leaks")
    await until(lambda: bool(failures))
    await until(lambda: not others())
    await host.close()


async def test_host_is_ending_once_it_closes_or_fails() -> None:
    closed, failed = host_of(Failures()), host_of(Failures())
    for host in (closed, failed):
        assert host.is_ending
        await host.start()
        assert not host.is_ending
    await closed.close()
    failed.spawn(raise_cancelled, name="leaks")
    await until(lambda: not others())

    assert closed.is_ending
    assert failed.is_ending


# --- application code that is awaited ------------------------------------------------------------


@pytest.mark.parametrize("leak", [raise_cancelled, raise_generator_exit, await_cancelled_task])
async def test_isolated_call_raises_foreign_cancellations_as_errors(
    leak: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with pytest.raises(RuntimeError) as caught:
        await call_isolated(leak)

    assert isinstance(caught.value.__cause__, asyncio.CancelledError | GeneratorExit)


async def test_an_isolated_call_that_cancels_its_task_does_not_cancel_the_caller() -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(RuntimeError):
        await call_isolated(cancel_own_task_and_wait)

    assert task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left to be delivered


async def test_an_isolated_call_returns_and_raises_as_the_function() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def fail() -> None:
        raise LookupError("a bug")

    assert await call_isolated(double, 2) == 4
    assert await call_isolated(lambda: 5) == 5
    with pytest.raises(LookupError, match="a bug"):
        await call_isolated(fail)


async def test_cancelling_the_caller_cancels_an_isolated_call() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    calling = asyncio.create_task(call_isolated(wait))
    await started.wait()
    calling.cancel()
    await asyncio.wait([calling])

    assert calling.cancelled()
    assert cancelled.is_set()
