"""Renewal and AckService.give_back: concurrency and order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.pop.ack_service import GIVEN_BACK_AT_ONCE, AckService
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import PopClient
from rocketmq_aio.consumer.pop.renewal import RENEWALS_AT_ONCE, Renewal
from rocketmq_aio.protocol.requests.pop import ChangeInvisibleTimeResponse
from tests.unit.consumer.pop_env import popped
from tests.unit.remoting.until import until

SILENT = "broker-a"


class Calls:
    """Changes of the invisible time: one broker does not respond until it is released."""

    def __init__(self) -> None:
        self.requests: list[PoppedMessage] = []
        self.responses = asyncio.Event()

    async def change(
        self, message: PoppedMessage, seconds: float, *, suspend: bool
    ) -> ChangeInvisibleTimeResponse:
        self.requests.append(message)
        if message.receipt.broker_name == SILENT:
            await self.responses.wait()
        return ChangeInvisibleTimeResponse(
            pop_time=2, invisible_time=int(seconds * 1000), revive_queue_id=1
        )

    def changed_at(self, broker: str) -> int:
        return sum(each.receipt.broker_name == broker for each in self.requests)


def service_of(calls: Calls) -> AckService:
    return AckService(cast(PopClient, calls), max_reconsume_times=16)


def due(count: int, broker: str = "broker-b", *, seconds: float = 20.0) -> list[PoppedMessage]:
    """Messages that have less than half of their time left."""
    now = boottime()
    return [
        popped(number, expires_at=now + seconds, received_at=now, broker=broker)
        for number in range(count)
    ]


@asynccontextmanager
async def renewing(calls: Calls, in_use: Callable[[], list[PoppedMessage]]) -> AsyncIterator[None]:
    """A renewal that looks often."""
    renewal = Renewal(service_of(calls), in_use, invisible_seconds=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(renewal.run)
        yield
        tasks.cancel_scope.cancel()


async def test_silent_broker_does_not_delay_renewals_at_another() -> None:
    calls = Calls()
    messages = due(2 * RENEWALS_AT_ONCE, SILENT)
    async with renewing(calls, lambda: messages):
        await until(lambda: calls.changed_at(SILENT) == RENEWALS_AT_ONCE)
        messages += due(3)
        await until(lambda: calls.changed_at("broker-b") == 3)


async def test_renewal_without_an_answer_does_not_delay_others_at_its_broker() -> None:
    calls = Calls()
    messages = due(1, SILENT)
    async with renewing(calls, lambda: messages):
        await until(lambda: calls.changed_at(SILENT) == 1)
        messages += due(3, SILENT)
        await until(lambda: calls.changed_at(SILENT) == 4)


async def test_messages_with_the_least_time_left_are_renewed_first() -> None:
    calls = Calls()
    [late], [early] = due(1, seconds=20), due(1, seconds=10)
    async with renewing(calls, lambda: [late, early]):
        await until(lambda: len(calls.requests) == 2)

    assert calls.requests == [early, late]


async def test_message_settled_while_its_renewal_waits_is_not_renewed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = Calls()
    messages = due(RENEWALS_AT_ONCE + 2, SILENT)
    async with renewing(calls, lambda: messages):
        await until(lambda: len(calls.requests) == RENEWALS_AT_ONCE)
        messages[-1].ack_state = AckState.ACKED
        calls.responses.set()
        await until(lambda: len(calls.requests) > RENEWALS_AT_ONCE)
        await until(lambda: all(each.pending is None for each in messages))

    assert calls.requests == messages[:-1]
    assert "renewal_failed" not in caplog.text


async def test_silent_broker_does_not_delay_messages_given_back_to_another() -> None:
    calls = Calls()
    messages = due(GIVEN_BACK_AT_ONCE, SILENT) + due(3)
    giving = asyncio.ensure_future(service_of(calls).give_back(messages))
    await until(lambda: calls.changed_at("broker-b") == 3)
    calls.responses.set()
    await giving
