"""Application listeners: failures, timeouts and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.consumer.common import listeners as callbacks_module
from rocketmq_aio.consumer.common.listeners import call_listener, check_listener
from rocketmq_aio.errors import ConfigError


async def test_plain_and_async_listeners_are_called() -> None:
    calls: list[object] = []

    async def listener(*args: object) -> None:
        await asyncio.sleep(0)
        calls.append(args)

    await call_listener(None, 1)
    await call_listener(lambda *args: calls.append(args), 1, 2)
    await call_listener(listener, 3)

    assert calls == [(1, 2), (3,)]


async def test_failing_listener_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def plain() -> None:
        raise LookupError("plain bug")

    async def coroutine() -> None:
        raise LookupError("async bug")

    await call_listener(plain)
    await call_listener(coroutine)

    assert "plain bug" in caplog.text
    assert "async bug" in caplog.text


async def test_slow_listener_is_cancelled_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks_module, "LISTENER_SECONDS", 0.01)
    cancelled = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await asyncio.wait_for(call_listener(slow), 15)

    assert cancelled.is_set()
    assert "listener_too_slow" in caplog.text


async def test_caller_can_be_cancelled_during_a_listener() -> None:
    calling = asyncio.create_task(call_listener(asyncio.sleep, 3600))
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.wait([calling])

    assert calling.cancelled()


@pytest.mark.parametrize("own", [True, False])
async def test_listener_cannot_cancel_its_caller(
    own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener() -> None:
        task = asyncio.current_task() if own else asyncio.create_task(asyncio.sleep(3600))
        assert task is not None
        task.cancel()
        await (asyncio.sleep(0) if own else task)

    calling = asyncio.current_task()
    assert calling is not None
    await call_listener(listener)
    await asyncio.sleep(0)  # no cancellation is left to be delivered

    assert calling.cancelling() == 0
    assert "listener_failed" in caplog.text


async def test_generator_exit_of_a_listener_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def listener() -> None:
        raise GeneratorExit

    await call_listener(listener)

    assert "listener_failed" in caplog.text


def test_a_listener_takes_the_arguments_that_it_is_called_with() -> None:
    check_listener("on_assigned", lambda queues: None, "queues")

    words = r"on_assigned=.*it is called with \(queues\), and takes \(\)"
    with pytest.raises(ConfigError, match=words):
        check_listener("on_assigned", lambda: None, "queues")
