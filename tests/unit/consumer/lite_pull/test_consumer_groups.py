"""LitePullConsumer on a scripted cluster: groups and offset stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.events import QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.group import group_engine
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.consumer.rebalance import apply_assignment
from rocketmq_aio.errors import ClosedError, CommitError, ConfigError
from rocketmq_aio.model.values import MessageModel, MessageQueue
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.failing_disks import HangingDisk
from tests.unit.consumer.lite_pull_env import (
    GROUP,
    TOPIC,
    bodies,
    consumer_of,
    consuming,
    numbers,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.consumer.stores import AppStore, StoreError
from tests.unit.remoting.until import until


async def test_members_share_the_queues_and_commit_before_revocation(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_engine, "TAKEOVER_DELAY_SECONDS", 2.0)  # also on a busy machine
    for number in range(4):
        put(cluster, *numbers(3), queue_id=number)
    async with consuming(cluster) as one:
        await polled(one, 12)
        joined = asyncio.create_task(one.poll(60))
        async with consuming(cluster) as other:
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 2)
            assert set(one.assignment()) | set(other.assignment()) == {
                queue(number) for number in range(4)
            }
            assert await other.poll(0.02) == []
            for number in range(4):
                put(cluster, "new", queue_id=number)
            taken = await polled(other, 2) + await joined
            taken += await polled(one, 4 - len(taken)) if len(taken) < 4 else []
            assert bodies(taken) == ["new"] * 4
        await until(lambda: len(one.assignment()) == 4)


async def test_listeners_are_called_on_assignment_and_revocation(cluster: FakeCluster) -> None:
    queue_changes: list[tuple[str, int]] = []

    async def on_assigned(queues: tuple[MessageQueue, ...]) -> None:
        queue_changes.append(("assigned", len(queues)))

    def on_revoked(queues: tuple[MessageQueue, ...]) -> None:
        queue_changes.append(("revoked", len(queues)))

    listeners = {"on_assigned": on_assigned, "on_revoked": on_revoked}
    async with consuming(cluster, listeners=listeners) as one:
        events = one.events()
        async with consuming(cluster):
            await until(lambda: len(queue_changes) == 2)
        await until(lambda: len(queue_changes) == 3)

    assert queue_changes == [("assigned", 4), ("revoked", 2), ("assigned", 2), ("revoked", 4)]
    kinds = [type(event) async for event in events]
    assert kinds == [QueuesRevoked, QueuesAssigned, QueuesRevoked]


async def test_on_revoked_may_commit(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_engine, "TAKEOVER_DELAY_SECONDS", 2.0)
    for number in range(4):
        put(cluster, *numbers(5), queue_id=number)

    async def on_revoked(_: object) -> None:
        await one.commit()

    listeners = {"on_revoked": on_revoked}
    async with consuming(cluster, auto_commit=False, listeners=listeners) as one:
        await polled(one, 20)
        polling = asyncio.create_task(one.poll(60))
        async with consuming(cluster) as other:
            await until(lambda: len(other.assignment()) == 2)
            assert [await other.position(each) for each in other.assignment()] == [5, 5]
        polling.cancel()


async def test_on_revoked_may_commit_during_close(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    put(cluster, *numbers(5))

    async def on_revoked(queues: tuple[MessageQueue, ...]) -> None:
        await consumer.commit([each for each in queues if each.queue_id == 0])

    listeners = {"on_revoked": on_revoked}
    async with consuming(cluster, auto_commit=False, listeners=listeners) as consumer:
        await polled(consumer, 5)

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 5
    assert "listener_failed" not in caplog.text
    with pytest.raises(ClosedError):
        await consumer.commit()


async def test_a_revoked_queue_cannot_be_committed(cluster: FakeCluster) -> None:
    async with consuming(cluster) as one, consuming(cluster):
        await until(lambda: len(one.assignment()) == 2)
        [gone, *_] = sorted({queue(number) for number in range(4)} - set(one.assignment()))
        await until(lambda: gone not in one._engine.table)
        with pytest.raises(CommitError) as caught:
            await one.commit({gone: 1})

        assert isinstance(caught.value.lost[gone], ConfigError)


async def test_an_idle_member_takes_over_at_once(cluster: FakeCluster) -> None:
    cluster.create_topic("single", 1)
    put(cluster, "a", topic="single")
    async with consumer_of(cluster) as one, consumer_of(cluster) as other:
        await one.subscribe("single")
        await other.subscribe("single")
        await one.ready(5)
        await other.ready(5)
        await until(lambda: len(one.assignment() + other.assignment()) == 1)
        owner, idle = (one, other) if one.assignment() else (other, one)
        await owner.close()

        assert bodies(await polled(idle, 1)) == ["a"]


async def test_an_application_can_keep_progress_itself(cluster: FakeCluster) -> None:
    put(cluster, *numbers(6))
    store = AppStore()
    async with consuming(cluster, offset_store=store) as consumer:
        await polled(consumer, 4, max_messages=4)

    assert store.kept[queue()] == 4
    assert cluster.broker.committed(GROUP, TOPIC, 0) is None
    async with consuming(cluster, offset_store=store) as consumer:
        assert bodies(await polled(consumer, 2)) == ["4", "5"]
        assert await consumer.committed(queue()) == 4


async def test_a_store_that_is_down_for_a_while_only_delays(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    store = AppStore()
    async with consuming(cluster, offset_store=store, commit_interval_seconds=0.01) as consumer:
        store.fail = {"update": StoreError("down"), "persist": StoreError("down")}
        await polled(consumer, 3)
        assert await consumer.poll(0.03) == []
        store.fail.clear()
        await until(lambda: store.kept.get(queue()) == 3)


async def test_a_store_that_cannot_be_opened_ends_the_start(cluster: FakeCluster) -> None:
    store = AppStore()
    store.fail = {"load": StoreError("down")}

    with pytest.raises(StoreError):
        await consumer_of(cluster, offset_store=store).start()


async def test_every_member_of_a_broadcasting_group_gets_everything(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    def member(name: str) -> LitePullConsumer:
        return consumer_of(
            cluster,
            client=ClientConfig(namesrv=cluster.namesrv, instance_name=name),
            message_model=MessageModel.BROADCASTING,
            offset_store=LocalFileOffsetStore(tmp_path),
        )

    put(cluster, *numbers(4))
    for rest in (numbers(4), ["new"]):
        async with member("one") as one, member("two") as two:
            for consumer in (one, two):
                await consumer.subscribe(TOPIC)
                await consumer.ready(5)
                assert bodies(await polled(consumer, len(rest))) == rest
                assert len(consumer.assignment()) == 4
        put(cluster, "new")

    assert cluster.broker.committed(GROUP, TOPIC, 0) is None


async def test_an_offset_file_is_free_again_after_the_close(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    store = LocalFileOffsetStore(tmp_path)
    never_started = consumer_of(cluster, offset_store=store)
    await never_started.close()
    for _ in range(2):
        async with consuming(cluster, offset_store=store):
            rival = consumer_of(cluster, offset_store=LocalFileOffsetStore(tmp_path))
            with pytest.raises(ConfigError, match="another consumer"):
                await rival.start()


async def test_a_disk_that_hangs_does_not_keep_a_consumer_from_closing(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_assignment, "LAST_COMMIT_SECONDS", 0.5)
    monkeypatch.setattr(group_engine, "FILE_SECONDS", 0.5)
    disk = HangingDisk()
    put(cluster, *numbers(3))
    async with consuming(
        cluster,
        message_model=MessageModel.BROADCASTING,
        offset_store=LocalFileOffsetStore(tmp_path, disk=disk),
    ) as consumer:
        await polled(consumer, 3)
        disk.hang()

    assert disk.reached.is_set()
    assert not disk.released.is_set()
    disk.released.set()
