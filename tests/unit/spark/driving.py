"""The driver side of a query on a fake cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.embedded.broker.store import NewMessage
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.spark.offsets import Queue, StreamOffset
from rocketmq_aio.spark.options.source_options import ReadOptions, read_options
from rocketmq_aio.spark.read.metadata import Metadata
from rocketmq_aio.spark.read.micro_batches import MicroBatches
from rocketmq_aio.spark.read.planning import plan_between
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster

TOPIC = "orders"
GROUP = "rocketmq-spark"
START = StreamOffset(at_start=True)


def queue(number: int, broker: str = "broker-a", topic: str = TOPIC) -> Queue:
    return topic, broker, number


def put(broker: FakeBroker, count: int, number: int = 0, topic: str = TOPIC) -> None:
    for _ in range(count):
        broker.put(topic, b"body", queue_id=number)


def put_at(broker: FakeBroker, *times: int, number: int = 0) -> None:
    """Store one message at each of *times* (milliseconds)."""
    store = broker.state.store
    for millis in times:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.clock, "now_ms", partial(int, millis))
            store.append(NewMessage(topic=TOPIC, queue_id=number, body=b"body"))


def options_for(
    cluster: FakeCluster, given: Mapping[str, str], *, streaming: bool = True
) -> ReadOptions:
    """Read options with short retries; ``subscribe`` defaults to the topic."""
    selected = {"subscribePattern", "assign"} & given.keys()
    basic = {
        "nameServer": cluster.namesrv,
        "fetchOffset.numRetries": "1",
        "fetchOffset.retryIntervalMs": "1",
        **({} if selected else {"subscribe": TOPIC}),
    }
    return read_options({**basic, **given}, streaming=streaming)


class Driver:
    """The driver side of one query, at its start or after a restart."""

    def __init__(
        self, instance: MQClientInstance, consumer: PullConsumer, options: ReadOptions
    ) -> None:
        self.options = options
        self.instance = instance
        self.consumer = consumer
        self.metadata = Metadata(instance, consumer, options)
        store = RemoteOffsetStore(instance.broker, options.connection.group)
        self.batches = MicroBatches(self.metadata, options, store)

    async def end_after(
        self, start: StreamOffset, most: int | None = None, *, everything: bool = False
    ) -> StreamOffset:
        self.batches._topics = None  # as if a second had passed
        return await self.batches.end_after(start, most, everything=everything)

    def ranges(self, start: StreamOffset, end: StreamOffset) -> dict[Queue, tuple[int, int]]:
        parts = [part for each in plan_between(start, end, self.options) for part in each.ranges]
        return {part.queue: (part.start, part.end) for part in parts}


@asynccontextmanager
async def driving(
    cluster: FakeCluster, *, streaming: bool = True, **given: str
) -> AsyncIterator[Driver]:
    """A driver with these options; ``__`` stands for the dot in a name."""
    named = {name.replace("__", "."): each for name, each in given.items()}
    options = options_for(cluster, named, streaming=streaming)
    config = ClientConfig(namesrv=cluster.namesrv)
    async with MQClientInstance(config) as instance:
        consumer = PullConsumer(options.connection.group, client=instance)
        async with consumer:
            yield Driver(instance, consumer, options)
