"""Helpers for consumers on real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster

QUEUES: Final = 4  # of the topic that the fixture makes
POLL_SECONDS: Final = 10.0  # for a busy machine; reached only by a failing test


def is_5(cluster: Cluster) -> bool:
    return cluster.version.startswith("5.")


def is_before(version: str, other: str) -> bool:
    """Whether RocketMQ *version* is older than *other*."""
    numbers, others = ([int(part) for part in each.split(".")] for each in (version, other))
    return numbers < others


def consumer_of(
    namesrv: str,
    group: str,
    *,
    listeners: dict[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401 - those of LitePullConfig
) -> LitePullConsumer:
    """Return a consumer with `start_from="earliest"` by default."""
    config = LitePullConfig(**{"start_from": "earliest", **settings})
    return LitePullConsumer(group, namesrv=namesrv, config=config, **(listeners or {}))


@asynccontextmanager
async def consuming(
    namesrv: str,
    group: str,
    topic: str,
    selector: Any = "*",  # noqa: ANN401 - as `subscribe` takes it
    **settings: Any,  # noqa: ANN401 - those of `consumer_of`
) -> AsyncIterator[LitePullConsumer]:
    """A started consumer of the topic, with its queues."""
    async with consumer_of(namesrv, group, **settings) as consumer:
        await consumer.subscribe(topic, selector)
        await consumer.ready(POLL_SECONDS)
        yield consumer


async def send(
    namesrv: str,
    topic: str,
    bodies: Iterable[str],
    *,
    queue: MessageQueue | None = None,
    **parts: Any,  # noqa: ANN401 - those of Message
) -> list[MessageQueue]:
    """Send messages one after another and return where each is."""
    async with Producer("feeding", namesrv=namesrv) as producer:
        results = [
            await producer.send(Message(topic, body.encode(), **parts), queue=queue)
            for body in bodies
        ]
    return [result.queue for result in results]


async def polled(
    consumer: LitePullConsumer, count: int, max_messages: int | None = None
) -> list[MessageExt]:
    """Poll until *count* messages are received.

    :raises TimeoutError: no message within the timeout
    """
    taken: list[MessageExt] = []
    while len(taken) < count:
        messages = await consumer.poll(POLL_SECONDS, max_messages)
        if not messages:
            raise TimeoutError(f"{len(taken)} of {count} messages came: {bodies(taken)}")
        taken += messages
    return taken


def bodies(taken: Iterable[MessageExt]) -> list[str]:
    return [each.body.decode() for each in taken]


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


async def in_thread(function: Any, *arguments: Any) -> Any:  # noqa: ANN401 - any blocking call
    return await asyncio.to_thread(function, *arguments)
