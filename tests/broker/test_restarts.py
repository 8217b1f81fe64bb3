"""LitePullConsumer while servers are killed, frozen or restarted under load."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.events import OffsetCorrected
from rocketmq_aio.errors import NameServerUnavailableError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.testing import Broker, Cluster
from tests.broker.reading_groups import bodies, consumer_of, consuming, numbers, polled, send
from tests.broker.under_load import Load
from tests.unit.remoting.until import until

RESUME_SECONDS = 20.0
ROUTE_SECONDS = ClientConfig().route_refresh_interval_seconds / 2
Recorder = Callable[[str, object], None]


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster that tests kill and restart; each leaves it running."""
    return fresh_cluster()


@pytest.fixture
def broker(cluster: Cluster) -> Broker:
    return cluster.brokers[0]


@pytest.fixture
def topic(cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"restarts-{rocketmq_group[-12:]}"
    cluster.create_topic(name, queues=4)
    yield name
    cluster.delete_topic(name)


@pytest.fixture
def other_topic(cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"other-{rocketmq_group[-12:]}"
    cluster.create_topic(name, queues=1)
    yield name
    cluster.delete_topic(name)


async def test_reading_continues_without_a_name_server_and_a_new_topic_is_found_later(
    cluster: Cluster, topic: str, other_topic: str, rocketmq_group: str
) -> None:
    name_server = cluster.namesrvs[0]
    await send(cluster.namesrv, other_topic, numbers(3))
    async with Load(cluster.namesrv, rocketmq_group, topic) as load:
        await load.until_read(100)
        await asyncio.to_thread(name_server.kill)
        try:
            await load.until_read(300)
            with pytest.raises(NameServerUnavailableError):
                await load.consumer.subscribe(other_topic)
        finally:
            await asyncio.to_thread(name_server.start)
            await asyncio.to_thread(cluster.wait_ready)
        await load.until_read(100)
        await load.consumer.subscribe(other_topic)
        await until(lambda: load.bodies_of(other_topic) == numbers(3), "the new topic", 60)
        await load.until_all_read()

    assert (load.wrong(), load.copies(), load.failed) == ([], 0, 0)


async def test_reading_resumes_after_a_broker_restart(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    async with Load(cluster.namesrv, rocketmq_group, topic) as load:
        await load.until_read(300)
        before = len(load.read)
        await asyncio.to_thread(broker.restart)
        back = monotonic()
        await load.until_read(100, RESUME_SECONDS + 5)
        await load.until_all_read()

        assert load.first_read_after(back) < RESUME_SECONDS
        await load.consumer.commit()
    assert load.wrong() == []
    # After a long outage the broker has lost its members: uncommitted messages are redelivered.
    assert load.copies() <= before

    async with consuming(cluster.namesrv, rocketmq_group, topic) as consumer:
        assert sum((await consumer.lag()).values()) == 0


async def test_messages_stored_before_and_after_a_kill_are_read(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str, record_property: Recorder
) -> None:
    async with Load(cluster.namesrv, rocketmq_group, topic) as load:
        await load.until_read(500)
        killed = monotonic()
        await asyncio.to_thread(broker.kill)
        await until(lambda: load.failed, "a send to fail", 60)
        before = len(load.stored)
        await asyncio.to_thread(broker.start)
        back = monotonic()
        await until(lambda: len(load.stored) > before, "a send to succeed", RESUME_SECONDS)
        await load.until_read(300)
        await load.until_all_read()

        record_property("resumed_seconds", round(load.first_read_after(back), 2))
        assert load.first_read_after(back) < RESUME_SECONDS
    assert load.wrong() == []
    # A route refresh in between revokes its queues and assigns them again.
    assert load.copies() == 0 or back - killed > ROUTE_SECONDS

    async with consuming(cluster.namesrv, rocketmq_group, topic) as consumer:
        assert sum((await consumer.lag()).values()) == 0
        assert await consumer.poll(0.5) == []


async def test_reading_resumes_when_a_frozen_broker_thaws(
    cluster: Cluster, broker: Broker, topic: str, rocketmq_group: str
) -> None:
    async with Load(cluster.namesrv, rocketmq_group, topic) as load:
        await load.until_read(300)
        await asyncio.to_thread(broker.pause)
        try:
            await until(lambda: load.failed >= 4, "sends to fail", 60)
        finally:
            await asyncio.to_thread(broker.resume)
        thawed = monotonic()
        await load.until_read(300)
        await load.until_all_read()

        assert load.first_read_after(thawed) < RESUME_SECONDS
    assert load.wrong() == []
    assert load.copies() == 0


@pytest.mark.needs_real_broker("it replaces the files of a broker")
async def test_reading_resumes_after_lost_messages_and_commits_only_processed_ones(
    fresh_cluster: Callable[..., Cluster], rocketmq_group: str, tmp_path: Path
) -> None:
    store, old = tmp_path / "store", tmp_path / "old"
    paths = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
    cluster = fresh_cluster(backend="jvm", broker_properties=paths)
    broker, queue = cluster.brokers[0], MessageQueue("lost-tail", cluster.brokers[0].name, 0)
    cluster.create_topic("lost-tail", queues=1)

    def remember_disk() -> None:
        broker.stop()
        subprocess.run(["cp", "-a", "--sparse=always", store, old], check=True)
        broker.start()

    def go_back_to_remembered_disk() -> None:
        broker.kill()
        shutil.copytree(store / "config", old / "config", dirs_exist_ok=True)  # keeps commits
        shutil.rmtree(store)
        old.rename(store)
        broker.start()

    await send(cluster.namesrv, "lost-tail", numbers(6), queue=queue)
    await asyncio.to_thread(remember_disk)
    await send(cluster.namesrv, "lost-tail", numbers(10)[6:], queue=queue)
    async with consumer_of(cluster.namesrv, rocketmq_group, auto_commit=False) as consumer:
        await consumer.assign([queue])
        await polled(consumer, 3, max_messages=3)
        await consumer.commit()
        await polled(consumer, 4, max_messages=4)
        await polled(consumer, 3, max_messages=3)
        events = consumer.events()
        await asyncio.to_thread(go_back_to_remembered_disk)
        corrections: list[OffsetCorrected] = []
        async with asyncio.timeout(60):
            while not corrections:
                event = await anext(events)
                corrections += [event] if isinstance(event, OffsetCorrected) else []
        await consumer.close()

    assert [(each.requested, each.corrected) for each in corrections] == [(10, 6)]
    async with consuming(cluster.namesrv, rocketmq_group, "lost-tail") as consumer:
        assert bodies(await polled(consumer, 3)) == ["3", "4", "5"]
