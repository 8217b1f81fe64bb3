"""Lite pull consumers on a real broker: broadcasting groups, and what administrators do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketmq_aio.config import ClientConfig, LitePullConfig
from rocketmq_aio.consumer.lite_pull import LitePullConsumer
from rocketmq_aio.consumer.offset_file import LocalFileOffsetStore
from rocketmq_aio.message import MessageModel, MessageQueue
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import (
    QUEUES,
    bodies,
    consuming,
    in_thread,
    numbers,
    polled,
    send,
)
from tests.unit.remoting.until import until, until_done

# --- broadcasting --------------------------------------------------------------------------------


async def test_every_member_of_a_broadcasting_group_gets_everything_and_goes_on_where_it_stopped(
    namesrv: str, topic: str, group: str, tmp_path: Path
) -> None:
    def member(name: str) -> LitePullConsumer:
        config = LitePullConfig(
            message_model=MessageModel.BROADCASTING,
            start_from="earliest",
            offset_store=LocalFileOffsetStore(tmp_path),
        )
        client = ClientConfig(namesrv=namesrv, instance_name=name)
        return LitePullConsumer(group, client=client, config=config)

    for batch in (numbers(20), numbers(20, first=20)):
        await send(namesrv, topic, batch)
        async with member("one") as one, member("two") as two:
            for consumer in (one, two):
                await consumer.subscribe(topic)
                taken = await polled(consumer, 20)
                assert sorted(map(int, bodies(taken))) == sorted(map(int, batch))
                assert len(consumer.assignment()) == QUEUES


# --- what administrators do ----------------------------------------------------------------------


async def test_the_admin_tool_can_ask_a_consumer_how_it_is(
    rocketmq_cluster: Cluster,
    namesrv: str,
    topic: str,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the tool leaves a file for each member
    await send(namesrv, topic, numbers(8))
    async with consuming(namesrv, group, topic) as consumer:
        await polled(consumer, 8)
        await consumer.commit()
        seen = await in_thread(rocketmq_cluster.mqadmin, "consumerProgress", "-g", group)
        members = await in_thread(
            rocketmq_cluster.mqadmin, "consumerStatus", "-g", group, "-n", namesrv
        )
        status = await in_thread(
            rocketmq_cluster.mqadmin,
            *("consumerStatus", "-g", group, "-i", consumer.client.client_id, "-n", namesrv),
        )

    assert re.search(rf"{topic[:30]}\S*\s+\S+\s+0\s+2\s+2", seen), seen
    assert consumer.client.client_id in members
    assert "Rebalance OK" in members
    assert "CONSUME_ACTIVELY" in status
    assert topic in status


@pytest.mark.parametrize("when", ["earliest", "now"])
async def test_the_admin_tool_can_move_a_group_and_the_move_lasts(
    rocketmq_cluster: Cluster,
    namesrv: str,
    topic: str,
    group: str,
    queue: MessageQueue,
    when: str,
) -> None:
    await send(namesrv, topic, numbers(10), queue=queue)
    async with consuming(namesrv, group, topic, commit_interval_seconds=0.2) as consumer:
        await polled(consumer, 5, max_messages=5)
        await consumer.commit()
        target = "0" if when == "earliest" else "-1"
        printed = await in_thread(
            rocketmq_cluster.mqadmin,
            *("resetOffsetByTime", "-g", group, "-t", topic, "-s", target, "-n", namesrv),
        )
        assert queue.broker_name in printed or "rollback" in printed, printed
        position = 0 if when == "earliest" else 10
        await send(namesrv, topic, ["wakes the pull"], queue=queue)
        await until_done(lambda: stands_at(consumer, queue, position), "the move", 20)
        taken = await polled(consumer, 11 - position)
        assert bodies(taken) == [*numbers(10 - position, first=position), "wakes the pull"]
        await until(lambda: consumer.assignment() != [])
        assert await consumer.poll(0.1) == []
        await consumer.commit()
        assert await consumer.committed(queue) == 11


async def stands_at(consumer: LitePullConsumer, queue: MessageQueue, position: int) -> bool:
    return await consumer.position(queue) == position
