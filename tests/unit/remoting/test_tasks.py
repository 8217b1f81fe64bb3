"""The host of long-lived tasks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from rocketmq_aio.remoting.tasks import TaskHost
from tests.unit.remoting.until import until


class Failures(list[BaseException]):
    """What hosts reported."""


def host_of(failures: Failures) -> TaskHost:
    return TaskHost("test", on_failure=failures.append)


async def forever(started: asyncio.Event | None = None) -> None:
    if started is not None:
        started.set()
    await asyncio.Event().wait()


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_tasks_end_when_the_host_closes() -> None:
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


async def test_closing_twice_and_at_once_is_one_close() -> None:
    host = host_of(Failures())
    await host.start()
    await asyncio.gather(host.close(), host.close())
    await host.close()

    assert others() == set()


async def test_a_host_that_was_never_started_can_be_closed() -> None:
    await host_of(Failures()).close()

    assert others() == set()


async def test_what_is_spawned_after_the_close_does_not_run() -> None:
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


async def test_a_host_that_somebody_else_cancels_counts_as_failed() -> None:
    failures = Failures()
    host = host_of(failures)
    await host.start()
    for task in others():  # as asyncio.run() does at the end of a program
        task.cancel()
    await until(lambda: not others())

    assert [type(each) for each in failures] == [asyncio.CancelledError]
    await host.close()
