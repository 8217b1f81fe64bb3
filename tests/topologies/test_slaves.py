"""Consumers read from a slave while its master is down, and return to the master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rocketmq_aio import (
    AdminClient,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    NotConnectedError,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from rocketmq_aio.testing import Broker, Cluster, ClusterError, probe
from tests.broker.reading_groups import bodies, numbers, polled
from tests.topologies.workload import Workload
from tests.unit.remoting.until import until

QUEUES = 4
BACKLOG = 200
CACHED = 8  # messages of a queue, so that most of the backlog is read after the kill
READ_SECONDS = 60.0
KINDS = ("push", "lite", "new", "pull", "late")  # of groups
GET_COMMITTED = 14


@pytest.fixture
def master(replicated: Cluster) -> Broker:
    return replicated.brokers[0]


@pytest_asyncio.fixture
async def backlog(replicated: Cluster, rocketmq_group: str) -> AsyncIterator[str]:
    """A topic with messages that the slave has, too; the master runs afterwards."""
    topic = f"backlog-{rocketmq_group[-12:]}"
    await asyncio.to_thread(replicated.create_topic, topic, queues=QUEUES)
    async with Producer("feeding", namesrv=replicated.namesrv) as producer:
        for body in numbers(BACKLOG):
            await producer.send(Message(topic, body.encode(), keys=[body]))
    (broker,) = replicated.brokers
    (slave,) = broker.slaves
    await asyncio.to_thread(slave.wait_copied, topic)
    assert probe.queues(slave.address, topic) == QUEUES
    known = probe.members(replicated.namesrvs[0].address, broker.name)
    assert known == {0: broker.address, 1: slave.address}
    yield topic
    if not runs(broker):
        await asyncio.to_thread(broker.start)


def runs(broker: Broker) -> bool:
    try:
        broker.check_running()
    except ClusterError:
        return False
    return True


class Pushed:
    """A push consumer whose handlers wait after the first messages until `go_on`."""

    def __init__(self, namesrv: str, group: str, *, first: int = 20, orderly: bool = False) -> None:
        self.bodies: list[str] = []
        self.go_on = asyncio.Event()
        self._first = first
        config = PushConfig(start_from="earliest", pull_threshold_per_queue=CACHED)
        self.consumer = PushConsumer(
            group, on_message=self._note, orderly=orderly, namesrv=namesrv, config=config
        )

    async def _note(self, message: MessageExt) -> None:
        if len(self.bodies) >= self._first:
            await self.go_on.wait()
        self.bodies.append(message.body.decode())


def lite_pull(cluster: Cluster, group: str) -> LitePullConsumer:
    config = LitePullConfig(
        start_from="earliest", pull_threshold_per_queue=CACHED, commit_interval_seconds=0.5
    )
    return LitePullConsumer(group, namesrv=cluster.namesrv, config=config)


@pytest.mark.essential
async def test_a_backlog_is_read_from_the_slave_and_its_commits_reach_the_returned_master(
    replicated: Cluster, master: Broker, backlog: str, rocketmq_group: str
) -> None:
    names = {kind: f"{kind}-{rocketmq_group[-12:]}" for kind in KINDS}
    pushed, new = (
        Pushed(replicated.namesrv, names["push"]),
        Pushed(replicated.namesrv, names["new"]),
    )
    new.go_on.set()
    async with pushed.consumer, lite_pull(replicated, names["lite"]) as lite:
        await pushed.consumer.subscribe(backlog)
        await lite.subscribe(backlog)
        taken = await polled(lite, 20)
        await until(lambda: len(pushed.bodies) >= 20, "the first messages", READ_SECONDS)

        await asyncio.to_thread(master.kill)
        pushed.go_on.set()
        taken += await polled(lite, BACKLOG - len(taken))
        await until(lambda: len(pushed.bodies) >= BACKLOG, "the backlog", READ_SECONDS)
        async with new.consumer:
            await new.consumer.subscribe(backlog)
            await until(lambda: len(new.bodies) >= BACKLOG, "all messages", READ_SECONDS)
        assert await pulled(replicated, names["pull"], master, backlog) == sorted(numbers(BACKLOG))
        async with AdminClient(namesrv=replicated.namesrv) as admin:
            (found,) = await admin.messages.by_key(backlog, "0")
        assert found.body == b"0"
        latest = LitePullConfig(start_from="latest")
        async with LitePullConsumer(
            names["late"], namesrv=replicated.namesrv, config=latest
        ) as late:
            with pytest.raises(NotConnectedError):
                await late.subscribe(backlog)
        assert not runs(master)

        await asyncio.to_thread(master.start)
        async with Producer("feeding", namesrv=replicated.namesrv) as producer:
            for body in numbers(QUEUES * 2, BACKLOG):
                await producer.send(Message(backlog, body.encode()), timeout_seconds=60)
        taken += await polled(lite, QUEUES * 2)
        everything = sorted(numbers(BACKLOG + QUEUES * 2))
        await until(lambda: len(pushed.bodies) >= len(everything), "the rest", READ_SECONDS)
        # The next poll commits the last batch.
        await lite.poll(0.5)
        for kind in ("push", "lite"):
            await until(
                lambda group=names[kind]: (
                    committed(master.address, group, backlog) == ends(master.address, backlog)
                ),  # type: ignore[misc]  # a bound loop variable
                f"the commits of {kind}",
                READ_SECONDS,
            )

    assert sorted(bodies(taken)) == sorted(pushed.bodies) == everything
    assert sorted(new.bodies) == sorted(numbers(BACKLOG))


async def pulled(cluster: Cluster, group: str, master: Broker, topic: str) -> list[str]:
    """Return all messages that pulls find."""
    found: list[str] = []
    async with PullConsumer(group, namesrv=cluster.namesrv) as consumer:
        for number in range(QUEUES):
            queue, offset = MessageQueue(topic, master.name, number), 0
            while messages := (await consumer.pull(queue, offset)).messages:
                found += bodies(messages)
                offset += len(messages)
    return sorted(found)


def committed(address: str, group: str, topic: str) -> list[int]:
    offsets = []
    for number in range(QUEUES):
        fields = {"consumerGroup": group, "topic": topic, "queueId": number}
        reply = probe.request(address, GET_COMMITTED, fields)
        offsets.append(int(reply.ext_fields.get("offset") or -1))
    return offsets


def ends(address: str, topic: str) -> list[int]:
    return probe.queue_ends(address, topic, QUEUES)


async def test_nothing_is_lost_when_servers_are_killed_under_load(
    replicated: Cluster, master: Broker, rocketmq_group: str
) -> None:
    (slave,) = master.slaves
    topic = f"killed-{rocketmq_group[-12:]}"
    await asyncio.to_thread(replicated.create_topic, topic, queues=QUEUES)
    async with Workload(replicated.namesrv, topic, transactions=False) as load:
        await load.until_more()
        await asyncio.to_thread(slave.kill)
        await asyncio.to_thread(slave.start)
        await load.until_more()
        assert load.failed == {}

        await asyncio.to_thread(master.kill)
        await asyncio.to_thread(slave.kill)
        await asyncio.to_thread(master.start)
        await asyncio.to_thread(slave.start)
        await load.until_more()
        await load.finish()

    assert load.disorder("orderly") == load.disorder("lite-pull") == []
