"""Cancels and closes at every step of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.errors import ClosedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from tests.unit.consumer.lite_pull_env import TOPIC

STEPS: Final = 400  # loop iterations, far more than any call here takes

Call = Callable[[], Coroutine[Any, Any, object]]


async def cancelled_after(steps: int, call: Coroutine[Any, Any, object]) -> bool:
    """Run *call*, cancel it after *steps* loop iterations; return whether it had ended."""
    task = asyncio.create_task(call)
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    return not task.cancelled()


async def sweep(call: Call, after_each: Call | None = None) -> int:
    """Cancel *call* after 0, 1, 2 ... loop iterations until it ends first; return the count."""
    steps = 0
    for steps in range(STEPS):
        ended = await cancelled_after(steps, call())
        if after_each is not None:
            await after_each()
        if ended:
            return steps
    raise AssertionError("the sweep did not reach the end")


async def close_at_every_step_of_start(
    client: MQClientInstance, make: Callable[[], LitePullConsumer | PushConsumer]
) -> None:
    """Close a new consumer after 0, 1, 2 ... loop iterations of its start until that ends first."""
    steps = 0
    for steps in range(STEPS):
        consumer = make()
        await consumer.subscribe(TOPIC)
        starting = asyncio.create_task(consumer.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        await consumer.close()
        await asyncio.wait([starting], timeout=15)

        assert consumer.assignment() == []
        assert client._consumers == {}
        error = starting.exception()
        if error is None:
            break
        assert isinstance(error, ClosedError)
    assert 5 < steps < STEPS - 1, "the sweep did not reach the end"
