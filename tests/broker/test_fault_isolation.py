"""Fault strategy with a frozen real broker: sends recover, and the log has the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster
from tests.unit.remoting.until import until, until_done

SENDERS = 16
PACE_SECONDS = 0.002  # between two sends of one task


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Two brokers that the tests leave running."""
    return fresh_cluster(brokers=2)


@pytest.fixture
def topic(cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"isolation-{rocketmq_group[-12:]}"
    cluster.create_topic(name, queues=2)
    yield name
    cluster.delete_topic(name)


class Load:
    """Sends continuously; records start, duration and broker of each send."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.sends: list[tuple[float, float, str]] = []
        self.stopped = False
        self._producer = producer
        self._topic = topic

    async def keep_sending(self) -> None:
        while not self.stopped:
            started = monotonic()
            result = await self._producer.send(Message(self._topic, b"x"))
            self.sends.append((started, monotonic() - started, result.queue.broker_name))
            await asyncio.sleep(PACE_SECONDS)

    def since(self, moment: float) -> list[tuple[float, float, str]]:
        return [each for each in self.sends if each[0] >= moment]


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


async def test_a_frozen_broker_is_excluded_and_restored(
    cluster: Cluster,
    topic: str,
    rocketmq_group: str,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    caplog.set_level("INFO", "rocketmq_aio.producer.fault_strategy")
    frozen, other = cluster.brokers
    async with Producer(rocketmq_group, namesrv=cluster.namesrv) as producer:
        load = Load(producer, topic)
        senders = [asyncio.create_task(load.keep_sending()) for _ in range(SENDERS)]
        await until(lambda: len(load.sends) > 2000, "sends", 60)
        # A new broker can be slow, and may have been excluded for that.
        await until_done(lambda: used(load, frozen.name, monotonic()), "both in use", 60)
        caplog.clear()
        stopped = monotonic()
        await asyncio.to_thread(frozen.pause)
        try:
            await until(lambda: bool(reported(caplog, "broker_isolated")), "isolation", 60)
            settled = monotonic()
            await until(lambda: len(load.since(settled)) > 1000, "more sends", 60)
            during = load.since(settled)
        finally:
            await asyncio.to_thread(frozen.resume)
        back = monotonic()
        await until_done(lambda: used(load, frozen.name, back), "the broker used again", 60)
        load.stopped = True
        await asyncio.gather(*senders)  # no send fails

    late = [each for each in load.since(stopped) if each[1] > 1.0 and each not in during]
    record_property("p99_ms_while_frozen", round(p99([each[1] for each in during]) * 1000, 1))
    record_property("sends_that_waited_for_it", len(late))
    assert {name for _, _, name in during} == {other.name}
    assert p99([seconds for _, seconds, _ in during]) < 1.0  # an attempt that hangs takes 1.5 s
    assert len(late) <= 2 * SENDERS  # each sender hit it at most once
    assert f"broker='{frozen.name}'" in reported(caplog, "broker_isolated")[0]
    assert "reason=" in reported(caplog, "broker_isolated")[0]
    assert reported(caplog, "broker_restored")


def reported(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [text for text in caplog.messages if event in text]


async def used(load: Load, name: str, since: float) -> bool:
    """Wait for sends started after *since*; return whether the broker *name* got one."""
    await until(lambda: len(load.since(since)) > 20, "sends", 60)
    return any(broker == name for _, _, broker in load.since(since))
