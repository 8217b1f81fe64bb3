"""Recorded clients on the embedded broker: runs without faults violate no rule."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.model.message import Message, MessageExt
from tests.history import History, Recorder, check, duplicates
from tests.history.recording import stored_log
from tests.unit.remoting.until import until

TOPIC, GROUP = "orders", "billing"
COUNT = 20


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(topics={TOPIC: 2}) as cluster:
        yield cluster


def config(**settings: object) -> PushConfig:
    return PushConfig(start_from="earliest", commit_interval_seconds=0.02, **settings)  # type: ignore[arg-type]


async def send(recorder: Recorder, cluster: EmbeddedCluster, count: int = COUNT) -> None:
    async with recorder.producer("shop", namesrv=cluster.namesrv) as producer:
        for number in range(count):
            await producer.send(Message(TOPIC, b"%d" % number), sharding_key=str(number % 3))


def judged(recorder: Recorder, cluster: EmbeddedCluster) -> History:
    """Return the history with the log of the brokers."""
    for topic in list(cluster.broker.topics):
        recorder.stored(stored_log(topic, *cluster.brokers))
    recorder.drained()
    return recorder.history


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_push_run_is_legal(cluster: EmbeddedCluster, orderly: bool) -> None:
    recorder = Recorder()
    failed: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        if message.body == b"7" and not failed:
            failed.append(message.body)
            raise ValueError("once")

    for delay in range(len(cluster.broker.delays.seconds)):
        cluster.broker.delays.seconds[delay] = 0.02
    await send(recorder, cluster)
    settings = config(suspend_seconds=0.02)
    async with recorder.push_consumer(
        GROUP, on_message=handle, orderly=orderly, namesrv=cluster.namesrv, config=settings
    ) as consumer:
        await consumer.subscribe(TOPIC)
        history = recorder.history
        await until(lambda: len({e.uid for e in history.settled if e.final}) == COUNT, "all", 10)

    history = judged(recorder, cluster)
    assert check(history) == []
    assert [each.reason for each in duplicates(history)] == ["retry"]
    assert len(history.sends) == COUNT
    assert history.commits
    assert bool(history.locks) == orderly
