"""Keyed sends on a real broker: one queue per key, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster
from tests.broker.reading import Stored, wait_for_messages
from tests.unit.remoting.until import until

KEYS = 64
PER_KEY = 40
ROUND = 20  # messages more of a key
ROUND_SECONDS = 60.0
SEND_SECONDS = 1.0
PACE_SECONDS = 0.02  # between two sends of a key, so that the log stays readable


@pytest.fixture(params=[None, AutoBatch(linger_seconds=0)], ids=["alone", "together"])
def config(request: pytest.FixtureRequest) -> ProducerConfig:
    """Unbatched and batched sends."""
    return ProducerConfig(send_timeout_seconds=60, auto_batch=request.param)


def by_key(stored: list[Stored]) -> dict[str, list[Stored]]:
    found: dict[str, list[Stored]] = defaultdict(list)
    for each in sorted(stored, key=lambda each: (each.broker_name, each.queue_id, each.offset)):
        found[each.properties["__SHARDINGKEY"]].append(each)
    return found


@dataclass
class Sending:
    """One task per key sends numbers and records the successful ones."""

    producer: Producer
    topic: str
    ok: dict[str, list[int]] = field(default_factory=dict)
    stopped: bool = False

    async def keep_sending(self, key: str) -> None:
        sent = self.ok[key] = []
        number = 0
        while not self.stopped:
            number += 1
            message = Message(self.topic, b"%d" % number, sharding_key=key)
            try:
                await self.producer.send(message, timeout_seconds=SEND_SECONDS)
            except RocketMQError:
                await asyncio.sleep(0.05)  # its broker is down: the others continue
            else:
                sent.append(number)
                await asyncio.sleep(PACE_SECONDS)

    async def go_on(self, keys: int) -> None:
        """Wait until *keys* keys have another round of messages."""
        goal = {key: len(sent) + ROUND for key, sent in self.ok.items()}

        def reached() -> bool:
            return sum(len(self.ok[key]) >= most for key, most in goal.items()) >= keys

        await until(reached, f"{ROUND} more messages of {keys} keys", ROUND_SECONDS)


@asynccontextmanager
async def sending(producer: Producer, topic: str, keys: int) -> AsyncIterator[Sending]:
    run = Sending(producer, topic)
    tasks = [asyncio.create_task(run.keep_sending(f"k{number}")) for number in range(keys)]
    try:
        await asyncio.sleep(0)
        yield run
    finally:
        run.stopped = True
        await asyncio.gather(*tasks)


async def test_concurrent_keys_keep_their_order(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str, config: ProducerConfig
) -> None:
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        await asyncio.gather(
            *(
                producer.send(Message(rocketmq_topic, b"%d" % number, sharding_key=f"k{key}"))
                for number in range(PER_KEY)
                for key in range(KEYS)
            )
        )
    found = by_key(wait_for_messages(rocketmq_cluster, rocketmq_topic, KEYS * PER_KEY))

    assert len(found) == KEYS
    for messages in found.values():
        assert len({each.queue_id for each in messages}) == 1
        assert [int(each.body) for each in messages] == list(range(PER_KEY))


@pytest.mark.timeout(300, func_only=True)  # a broker is stopped and started in it
async def test_keys_keep_their_queues_while_a_broker_is_down_and_the_topic_grows(
    two_broker_cluster: Cluster, rocketmq_group: str, config: ProducerConfig
) -> None:
    cluster, topic = two_broker_cluster, f"{rocketmq_group}-grown"
    await asyncio.to_thread(cluster.create_topic, topic, queues=4)
    living, flapping = cluster.brokers
    async with (
        Producer(rocketmq_group, namesrv=cluster.namesrv, config=config) as producer,
        sending(producer, topic, keys=16) as run,
    ):
        await run.go_on(keys=16)
        await asyncio.to_thread(flapping.stop)
        await run.go_on(keys=1)
        await asyncio.to_thread(cluster.create_topic, topic, queues=16, brokers=[living])
        await producer.client.routes.fetch(topic)
        await run.go_on(keys=1)
        await asyncio.to_thread(flapping.start)
        await run.go_on(keys=16)
    count = sum(map(len, run.ok.values()))
    found = by_key(await asyncio.to_thread(wait_for_messages, cluster, topic, count, queues=4))

    for key, sent in run.ok.items():
        assert len({(each.broker_name, each.queue_id) for each in found[key]}) == 1
        first_copies = dict.fromkeys(int(each.body) for each in found[key])
        assert [number for number in first_copies if number in set(sent)] == sent
