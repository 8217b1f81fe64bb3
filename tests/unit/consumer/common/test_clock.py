"""Clock of leases: what brokers grant ends also while the machine is suspended."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pytest

from rocketmq_aio.consumer.common import clock as clock_module
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.events import LeaseLost, QueuesRevoked
from rocketmq_aio.errors import AckError
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import put
from tests.unit.consumer.pop_env import popping
from tests.unit.consumer.pushing import Events, Notes, pushing

HOUR = 3600.0


@pytest.fixture
def suspend(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets an hour pass for brokers, and not for the event loop."""
    slept = 0.0

    def suspend() -> None:
        nonlocal slept
        slept += HOUR

    read = clock_module._read
    monkeypatch.setattr(clock_module, "_read", lambda: read() + slept)
    return suspend


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the usual clock serves there")
def test_the_clock_includes_suspension() -> None:
    number = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    before = time.clock_gettime(number)
    now = boottime()

    assert before <= now <= time.clock_gettime(number)


async def test_locks_do_not_outlast_a_suspension(
    cluster: FakeCluster, suspend: Callable[[], None]
) -> None:
    events = Events()
    async with pushing(cluster, Notes(), arguments={"orderly": True, "on_event": events}):
        suspend()

        assert await events.have(LeaseLost)


async def test_queues_are_revoked_after_a_suspension(
    cluster: FakeCluster, suspend: Callable[[], None]
) -> None:
    events = Events()
    arguments = {"on_event": events}
    async with pushing(cluster, Notes(), arguments=arguments, commit_interval_seconds=0.02):
        suspend()

        assert await events.have(QueuesRevoked)


async def test_popped_messages_expire_during_a_suspension(
    cluster: FakeCluster, suspend: Callable[[], None]
) -> None:
    put(cluster, "a")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        now = asyncio.get_running_loop().time()
        before = message.deadline
        suspend()

        assert before > now > message.deadline
        with pytest.raises(AckError, match="invisible time"):
            await consumer.ack(message)
