"""Push consumers on a fake cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.bodies import ConsumerData, HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.fastjson import read_body
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, bodies
from tests.unit.remoting.until import until

RETRIES = f"%RETRY%{GROUP}"
DEAD = f"%DLQ%{GROUP}"

E = TypeVar("E")


class Notes:
    """An async handler that keeps its messages; *react* may raise."""

    def __init__(self, react: Callable[[MessageExt], object] | None = None) -> None:
        self.seen: list[MessageExt] = []
        self.react = react

    async def __call__(self, message: MessageExt) -> None:
        self.seen.append(message)
        if self.react is not None:
            self.react(message)

    def bodies(self) -> list[str]:
        return bodies(self.seen)

    async def have(self, count: int) -> None:
        await until(lambda: len(self.seen) >= count, f"{count} messages")


class Events:
    """A listener that keeps its events."""

    def __init__(self) -> None:
        self.events: list[ConsumerEvent] = []

    def __call__(self, event: ConsumerEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def have(self, kind: type[E], count: int = 1) -> list[E]:
        await until(lambda: len(self.of(kind)) >= count, f"{count} of {kind.__name__}")
        return self.of(kind)


def push_consumer(
    cluster: FakeCluster,
    handler: Any = None,  # noqa: ANN401 - as the constructor takes it
    *,
    group: str = GROUP,
    client: Any = None,  # noqa: ANN401 - likewise
    arguments: dict[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401 - those of PushConfig
) -> PushConsumer:
    """Return a consumer that begins at the beginning, and closes soon, by default."""
    config = PushConfig(**{"start_from": "earliest", "close_timeout_seconds": 1.0, **settings})
    client = client or ClientConfig(namesrv=cluster.namesrv)
    return PushConsumer(
        group, on_message=handler, client=client, config=config, **(arguments or {})
    )


@asynccontextmanager
async def pushing(
    cluster: FakeCluster,
    handler: Any = None,  # noqa: ANN401 - as the constructor takes it
    *,
    selector: str = "*",
    **arguments: Any,  # noqa: ANN401 - those of `push_consumer`
) -> AsyncIterator[PushConsumer]:
    """A started consumer of the topic, with its queues."""
    async with push_consumer(cluster, handler, **arguments) as consumer:
        await consumer.subscribe(TOPIC, selector)
        await consumer.ready(5)
        yield consumer


def last_heartbeat(broker: FakeBroker) -> ConsumerData:
    """Return the group's part of the last heartbeat."""
    data = read_body(broker.requests_of(RequestCode.HEART_BEAT)[-1].body, HeartbeatData)
    [group] = data.consumer_data_set
    return group


def topics_of(data: ConsumerData) -> dict[str, str]:
    """Return the topics that are subscribed to, each with its expression."""
    return {each.topic: each.sub_string for each in data.subscription_data_set}
