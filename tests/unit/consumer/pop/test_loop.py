"""PopLoop: pauses between pops."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Final, cast

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.pop import loop as loop_module
from rocketmq_aio.consumer.pop.intake import PopIntake
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import Popped, PopRequest
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.pop_env import popped

POPS: Final = 10


@pytest.mark.parametrize(
    ("left", "pops"),
    [((), 1), ((-1.0, -1.0), 1), ((-1.0, 60.0), POPS)],
    ids=["empty", "expired", "one is valid"],
)
async def test_a_response_without_valid_messages_is_followed_by_a_pause(
    monkeypatch: pytest.MonkeyPatch, left: tuple[float, ...], pops: int
) -> None:
    """Each pop counts as a delivery: without a pause messages would be dead letters soon."""
    monkeypatch.setattr(loop_module, "MIN_INTERVAL_SECONDS", 3600.0)
    requests: list[PopRequest] = []

    async def pop(*_: object) -> Popped:
        expires_at = [boottime() + seconds for seconds in left]
        return Popped([popped(0, expires_at=each) for each in expires_at], None)

    def next_request(_: PopLoop) -> PopRequest | None:
        if len(requests) == POPS:
            return None
        requests.append(PopRequest(32, 60.0, 7200.0))
        return requests[-1]

    def accept(
        _source: object, _wanted: object, popped: Popped, **_: object
    ) -> tuple[list[PoppedMessage], list[PoppedMessage]]:
        return popped.messages, []

    intake = SimpleNamespace(
        subscription_of=lambda _: "*",
        is_orderly=False,
        client=SimpleNamespace(pop=pop),
        accept=accept,
    )
    source = MessageQueue("orders", "broker-a", -1)
    loop = PopLoop(
        cast(PopIntake, intake), source, next_request=next_request, deliver=lambda _: None
    )
    running = asyncio.create_task(loop.run())
    await wait_all_tasks_blocked()
    running.cancel()

    assert len(requests) == pops
