"""Lite pull consumers on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import TAGS, encode_properties
from tests.fakes.cluster import FakeCluster
from tests.unit.remoting.until import until

GROUP: Final = "billing"
TOPIC: Final = "orders"
QUEUES: Final = 4


def consumer_of(
    cluster: FakeCluster,
    group: str = GROUP,
    *,
    client: Any = None,  # noqa: ANN401 - as the constructor takes it
    listeners: dict[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401 - those of LitePullConfig
) -> LitePullConsumer:
    """Return a consumer that starts at the earliest offset by default."""
    config = LitePullConfig(**{"start_from": "earliest", **settings})
    client = client or ClientConfig(namesrv=cluster.namesrv)
    return LitePullConsumer(group, client=client, config=config, **(listeners or {}))


@asynccontextmanager
async def consuming(
    cluster: FakeCluster,
    selector: str = "*",
    **arguments: Any,  # noqa: ANN401 - those of `consumer_of`
) -> AsyncIterator[LitePullConsumer]:
    """A started consumer of the topic, with its queues."""
    async with consumer_of(cluster, **arguments) as consumer:
        await consumer.subscribe(TOPIC, selector)
        await consumer.ready(15)
        yield consumer


def put(
    cluster: FakeCluster,
    *bodies: str,
    queue_id: int = 0,
    tag: str | None = None,
    broker: int = 0,
    topic: str = TOPIC,
) -> None:
    """Store messages in one queue."""
    properties = encode_properties({TAGS: tag}) if tag is not None else ""
    for body in bodies:
        cluster.brokers[broker].put(topic, body.encode(), queue_id=queue_id, properties=properties)


async def polled(
    consumer: LitePullConsumer, count: int, max_messages: int | None = None
) -> list[MessageExt]:
    """Poll until *count* messages have come.

    :raises TimeoutError: nothing came for a while
    """
    taken: list[MessageExt] = []
    while len(taken) < count:
        messages = await consumer.poll(15, max_messages)
        if not messages:
            raise TimeoutError(f"{len(taken)} of {count} messages came: {bodies(taken)}")
        taken += messages
    return taken


async def committed(
    cluster: FakeCluster, expected: dict[int, int], group: str = GROUP, topic: str = TOPIC
) -> None:
    """Return once the broker has these offsets, by queue number."""

    def stored() -> bool:
        return {q: cluster.broker.committed(group, topic, q) for q in expected} == expected

    await until(stored, f"the commit of {expected}")


def bodies(taken: Iterable[MessageExt]) -> list[str]:
    return [each.body.decode() for each in taken]


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]
