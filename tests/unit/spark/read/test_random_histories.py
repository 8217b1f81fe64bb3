"""Streams over queues and brokers that come and go, on a fake cluster."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, product

import pytest
from anyio import to_thread

from rocketmq_aio.embedded.broker.store import NewMessage, QueueLog, Topic
from rocketmq_aio.spark.offsets import StreamOffset
from rocketmq_aio.spark.read.batch_reader import read
from rocketmq_aio.spark.read.planning import plan_between
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.spark.driving import START, TOPIC, Driver, driving
from tests.unit.spark.reading import PLACES

SEEDS = 12
STEPS = 30
MOST_QUEUES = 5


class History:
    """Random changes of a topic, and the messages that a query reads meanwhile."""

    def __init__(self, cluster: FakeCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.at = START
        self.read = Counter[bytes]()
        self.away: set[FakeBroker] = set()
        self.queues = 2
        self._bodies = count()
        self._millis = round(time.time() * 1000)

    def change(self) -> None:
        """Change a queue, a broker or the number of queues."""
        broker = self.random.choice(self.cluster.brokers)
        changes: list[Callable[[FakeBroker], None]] = [
            *[self.put] * 4,
            *(self.delete_read, self.truncate, self.recreate, self.move, self.resize),
        ]
        self.random.choice(changes)(broker)

    def change_logs(self) -> None:
        """Store messages, maybe after a truncation, as after a failover."""
        broker = self.random.choice(self.cluster.brokers)
        if self.random.random() < 0.3:
            self.random.choice((self.truncate, self.recreate))(broker)
        for _ in range(self.random.randint(1, 3)):
            self.put(broker, most=3)

    def put(self, broker: FakeBroker, number: int | None = None, most: int = 6) -> None:
        if number is None:
            number = self.random.choice(topic_of(broker).to_write())[0]
        store = broker.state.store
        for _ in range(self.random.randint(1, most)):
            self._millis += self.random.choice((1, 1, 1000))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(store.clock, "now_ms", partial(int, self._millis))
                body = b"%d" % next(self._bodies)
                store.append(NewMessage(topic=TOPIC, queue_id=number, body=body))

    def delete_read(self, broker: FakeBroker) -> None:
        """Delete read messages except the last one, by which the log is recognised."""
        number, log = self.choose(broker)
        if (position := self.position(broker, number)) <= log.max_offset:  # else of an earlier log
            log.drop_before(position - 1)

    def truncate(self, broker: FakeBroker) -> None:
        _, log = self.choose(broker)
        del log.messages[len(log.messages) - self.random.randint(0, min(2, len(log.messages))) :]

    def recreate(self, broker: FakeBroker) -> None:
        broker.state.store.delete_topic(TOPIC)
        broker.state.store.create_topic(TOPIC, self.queues)

    def move(self, broker: FakeBroker) -> None:
        """Let a broker leave, unless the other one is away, or all return."""
        if self.away:
            self.return_all()
        else:
            self.away.add(broker)
            self.cluster.name_server.unregister(broker)

    def resize(self, _: FakeBroker) -> None:
        self.queues = min(self.queues + self.random.randint(0, 1), MOST_QUEUES)
        used = self.random.randint(1, self.queues)
        for broker in self.cluster.brokers:
            topic = broker.state.store.create_topic(TOPIC, self.queues)
            topic.read_queues = topic.write_queues = used
        self.register()

    def return_all(self) -> None:
        self.away.clear()
        self.register()

    def register(self) -> None:
        for broker in self.cluster.brokers:
            if broker not in self.away:
                self.cluster.name_server.register(broker)

    def choose(self, broker: FakeBroker) -> tuple[int, QueueLog]:
        return self.random.choice([*enumerate(topic_of(broker).queues)])

    def position(self, broker: FakeBroker, number: int) -> int:
        return self.at.end.get((TOPIC, name_of(self.cluster, broker), number), 0)

    async def run_batch(self, driver: Driver, between: Callable[[], None]) -> bool:
        """Run a batch; its rows are read after *between*. Return whether there was one."""
        end = await driver.end_after(self.at, self.random.choice((None, 3, 7)))
        if end is self.at:
            return False
        end = StreamOffset.from_json(json.loads(json.dumps(end.to_json())))
        between()
        parts = [
            part for each in plan_between(self.at, end, driver.options) for part in each.ranges
        ]
        for batch in await to_thread.run_sync(lambda: [*read(parts, driver.options, PLACES)]):
            self.read.update(batch.column("body").to_pylist())
        self.at = end
        return True

    async def run(self, batches: AsyncExitStack) -> None:
        """Run and restart the query while the topic changes."""
        driver = await self.start(batches)
        for _ in range(STEPS):
            for _ in range(self.random.randint(1, 3)):
                self.change()
            if self.random.random() < 0.2:
                driver = await self.start(batches)
            if self.random.random() < 0.7:
                await self.run_batch(driver, self.change_logs)

    async def start(self, batches: AsyncExitStack) -> Driver:
        await batches.aclose()
        query = driving(self.cluster, startingOffsets="earliest", failOnDataLoss="false")
        return await batches.enter_async_context(query)

    async def read_rest(self, batches: AsyncExitStack) -> None:
        """Let all queues and brokers return, and read everything."""
        self.return_all()
        for broker in self.cluster.brokers:
            broker.state.store.create_topic(TOPIC, MOST_QUEUES)
        self.register()
        driver = await self.start(batches)
        for _ in range(2):  # a log that ends at the position is compared once it is longer
            for broker, number in product(self.cluster.brokers, range(MOST_QUEUES)):
                self.put(broker, number)
            while await self.run_batch(driver, lambda: None):
                pass


def topic_of(broker: FakeBroker) -> Topic:
    return broker.topics[TOPIC]


def name_of(cluster: FakeCluster, broker: FakeBroker) -> str:
    return f"broker-{'ab'[cluster.brokers.index(broker)]}"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_message_is_read_once_while_queues_and_brokers_come_and_go(seed: int) -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 2}) as cluster:
        history = History(cluster, seed)
        async with AsyncExitStack() as batches:
            await history.run(batches)
            await history.read_rest(batches)

        logs = [log for each in cluster.brokers for log in topic_of(each).queues]
        stored = {message.body for log in logs for message in log.messages}
        assert stored - history.read.keys() == set()
        assert {body for body, copies in history.read.items() if copies > 1} == set()
