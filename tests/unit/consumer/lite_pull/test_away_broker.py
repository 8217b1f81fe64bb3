"""Progress in the queues of a broker that was away so long that they were revoked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.instance import routes as routes_module
from rocketmq_aio.protocol.requests.from_broker import ResetOffset
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, bodies, consuming, numbers, polled, put
from tests.unit.remoting.until import until

AWAY: Final = 1  # the number of the broker in the cluster


class Trial:
    """A consumer of two queues; the broker of one of them is away for a while."""

    def __init__(self, cluster: FakeCluster, consumer: LitePullConsumer) -> None:
        self.cluster = cluster
        self.consumer = consumer

    @property
    def broker(self) -> FakeBroker:
        return self.cluster.brokers[AWAY]

    def put(self, *texts: str) -> None:
        put(self.cluster, *texts, broker=AWAY)

    async def process(self, count: int) -> list[str]:
        """Poll *count* messages, and mark them as processed."""
        taken = bodies(await polled(self.consumer, count))
        await self.consumer.poll(0)
        return taken

    async def committed(self, offset: int) -> None:
        await until(lambda: self.broker.committed(GROUP, TOPIC, 0) == offset)

    async def process_until_outage(self) -> None:
        """Process three messages, and commit them, before the broker goes away."""
        self.put(*numbers(3))
        assert await self.process(3) == numbers(3)
        await self.committed(3)
        await self.stop_broker()

    async def stop_broker(self) -> None:
        await self.broker.stop()
        self.cluster.name_server.unregister(self.broker)
        await until(lambda: len(self.consumer.assignment()) == 1)

    async def start_broker(self) -> None:
        await self.broker.start()
        self.cluster.name_server.register(self.broker)
        await until(lambda: len(self.consumer.assignment()) == 2)


@asynccontextmanager
async def trial(
    monkeypatch: pytest.MonkeyPatch, *, auto_commit: bool = True, pull_batch_size: int = 32
) -> AsyncIterator[Trial]:
    monkeypatch.setattr(routes_module, "MISSING_SECONDS", 0.3)
    async with FakeCluster(2, topics={TOPIC: 1}) as cluster:
        client = ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=0.02)
        async with consuming(
            cluster,
            client=client,
            commit_interval_seconds=0.05,
            auto_commit=auto_commit,
            pull_batch_size=pull_batch_size,
        ) as consumer:
            yield Trial(cluster, consumer)


async def test_messages_whose_commit_the_broker_lost_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch) as it:
        await it.process_until_outage()
        it.broker.commit(GROUP, TOPIC, 0, 1)  # killed before it wrote the last ones to disk
        it.put("new")
        await it.start_broker()

        assert await it.process(1) == ["new"]
        await it.committed(4)


async def test_a_commit_of_another_member_that_is_later_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch) as it:
        await it.process_until_outage()
        it.put("theirs", "new")
        it.broker.commit(GROUP, TOPIC, 0, 4)
        await it.start_broker()

        assert await it.process(1) == ["new"]


async def test_messages_that_replaced_lost_ones_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch) as it:
        await it.process_until_outage()
        del it.broker.topics[TOPIC].queues[0].messages[1:]
        it.broker.commit(GROUP, TOPIC, 0, 1)
        it.put("a", "b", "c")
        await it.start_broker()

        assert await it.process(3) == ["a", "b", "c"]
        await it.committed(4)


async def test_a_reset_before_the_queue_is_assigned_again_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch) as it:
        await it.process_until_outage()
        it.broker.commit(GROUP, TOPIC, 0, 1)
        reset = ResetOffset(topic=TOPIC, group=GROUP, timestamp=-1, is_force=True)
        key = {"topic": TOPIC, "brokerName": it.broker.name, "queueId": 0}
        body = msgspec.json.encode({"offsetTable": [{**key, "offset": 1}]})
        await it.cluster.broker.push(reset, body=body)
        await it.start_broker()

        assert await it.process(2) == numbers(3)[1:]


async def test_a_reset_that_the_broker_keeps_for_the_next_pull_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch) as it:
        await it.process_until_outage()
        it.broker.state.reset_offsets[GROUP, TOPIC, 0] = 1
        await it.start_broker()

        assert await it.process(2) == numbers(3)[1:]


async def test_an_earlier_position_that_was_sought_counts_after_a_second_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch, pull_batch_size=1) as it:
        await it.process_until_outage()
        await it.start_broker()
        (queue,) = (q for q in it.consumer.assignment() if q.broker_name == it.broker.name)
        await it.consumer.ready(15)
        await it.consumer.seek(queue, 0)
        assert bodies(await polled(it.consumer, 1, max_messages=1)) == numbers(1)
        it.consumer.pause([queue])
        await it.consumer.poll(0)
        await it.committed(1)
        await it.stop_broker()
        await it.start_broker()

        assert await it.process(2) == numbers(3)[1:]


@pytest.mark.parametrize("taken", [0, 1])
async def test_an_earlier_position_whose_commit_the_broker_lost_counts(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    async with trial(monkeypatch, pull_batch_size=1) as it:
        it.put(*numbers(3))
        await it.process(3)
        await it.committed(3)
        (queue,) = (q for q in it.consumer.assignment() if q.broker_name == it.broker.name)
        await it.consumer.seek(queue, 0)
        if taken:
            assert bodies(await polled(it.consumer, taken, max_messages=1)) == numbers(taken)
        it.consumer.pause([queue])
        await it.consumer.poll(0)
        await it.committed(taken)
        await it.stop_broker()
        it.broker.commit(GROUP, TOPIC, 0, 3)  # killed before it wrote the earlier one to disk
        await it.start_broker()

        assert await it.process(3 - taken) == numbers(3)[taken:]


async def test_a_later_commit_of_another_member_counts_after_a_seek(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch) as it:
        it.put(*numbers(3))
        await it.process(3)
        (queue,) = (q for q in it.consumer.assignment() if q.broker_name == it.broker.name)
        it.consumer.pause([queue])
        await it.consumer.seek(queue, 0)
        await it.stop_broker()
        it.put("theirs", "new")
        it.broker.commit(GROUP, TOPIC, 0, 4)
        await it.start_broker()

        assert await it.process(1) == ["new"]


async def test_processed_messages_are_repeated_if_the_application_did_not_commit_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with trial(monkeypatch, auto_commit=False) as it:
        it.put(*numbers(2))
        await it.process(2)
        await it.stop_broker()
        await it.start_broker()

        assert await it.process(2) == numbers(2)
