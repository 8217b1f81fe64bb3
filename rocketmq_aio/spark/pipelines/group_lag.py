"""Where a group is in its queues: offsets against the least, the greatest, and the clock."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rocketmq_aio.config.validation import settings
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.errors import (
    AuthError,
    ConfigError,
    PermissionDeniedError,
    SubscriptionError,
)
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.summary import Summary
from rocketmq_aio.spark.runtime import Runtime

QUEUES_AT_ONCE: Final = 16
TOOLS: Final = "TOOLS_CONSUMER"  # a group that all brokers have for tools
REFUSALS: Final = (AuthError, PermissionDeniedError, SubscriptionError)  # to read as that group


@settings
class LagSettings:
    """Whose lag: that of the connection's group in *topics*."""

    connection: Connection
    topics: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("topics", self.topics, "give at least one")


@dataclass(frozen=True, kw_only=True)
class QueueLag:
    """Where the group is in one queue.

    :ivar committed: the next offset to consume; None: nothing was ever committed
    :ivar lag: messages between there (or the beginning of the queue) and the end
    :ivar deleted: messages that were deleted before the group came to them
    :ivar next_time: when the next message to consume was stored; None: there is none, or the
        account may not read as the group ``TOOLS_CONSUMER``
    """

    topic: str
    broker: str
    queue_id: int
    minimum: int
    maximum: int
    committed: int | None
    next_time: datetime | None = None

    @property
    def lag(self) -> int:
        """Messages that are there and wait for the group."""
        return max(0, self.maximum - max(self.committed or 0, self.minimum))

    @property
    def deleted(self) -> int:
        """Messages that the broker deleted before the group had them."""
        return 0 if self.committed is None else max(0, self.minimum - self.committed)

    def behind(self, now: datetime) -> float:
        """Return for how many seconds the next message has been waiting."""
        return 0.0 if self.next_time is None else max(0.0, (now - self.next_time).total_seconds())


@dataclass(frozen=True, kw_only=True)
class LagSummary(Summary):
    """Where a group is in its queues, at one time.

    :ivar at: by the clock of this machine; brokers may have another
    :ivar unused: the group has no offsets in these topics, and no members: is it the right name?
    """

    pipeline: str = "lag"
    group: str = ""
    at: datetime = datetime.min
    lags: tuple[QueueLag, ...] = ()
    unused: bool = False

    @property
    def lag(self) -> int:
        """Messages that wait, over all queues."""
        return sum(each.lag for each in self.lags)

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON knows, with what follows from the offsets."""
        queues = [
            {
                **dataclasses.asdict(each),
                "lag": each.lag,
                "deleted": each.deleted,
                "behind_seconds": each.behind(self.at),
            }
            for each in self.lags
        ]
        return {**super().to_dict(), "lags": queues, "lag": self.lag}


def lag(settings: LagSettings) -> LagSummary:
    """Ask brokers where the group is; nothing is changed, and Spark is not needed.

    :raises RouteNotFoundError: there is no such topic, or it cannot be read
    :raises RocketMQError: a broker cannot be asked
    """
    began = time.monotonic()
    runtime = Runtime.get(settings.connection)
    lags = runtime.call(_all, runtime, runtime.pull_consumer(), settings.topics)
    started = any(each.committed for each in lags)  # brokers before 5.0 say 0 of groups unknown
    return LagSummary(
        group=settings.connection.group,
        at=datetime.now(UTC),
        lags=tuple(lags),
        unused=not started and not runtime.call(_members, runtime, settings),
        seconds=time.monotonic() - began,
    )


async def _members(runtime: Runtime, settings: LagSettings) -> set[str]:
    """Return the client ids of the group's members, as the brokers of the topics know them."""
    return await members_of(runtime.instance, settings.connection.group, settings.topics)


async def members_of(instance: MQClientInstance, group: str, topics: tuple[str, ...]) -> set[str]:
    """Return the client ids of *group*'s members at the masters of *topics*.

    :raises RocketMQError: a broker cannot be asked
    """
    routes = [await instance.routes.get(topic) for topic in topics]
    brokers = [addresses for route in routes for addresses in route.brokers.values()]
    masters = {addresses[MASTER_ID] for addresses in brokers if MASTER_ID in addresses}
    return {
        each for at in sorted(masters) for each in await instance.broker.consumer_ids_at(group, at)
    }


async def _all(runtime: Runtime, asker: PullConsumer, topics: tuple[str, ...]) -> list[QueueLag]:
    # Who pulls as the group takes the news of a reset away from its members (5.x).
    async with PullConsumer(TOOLS, client=runtime.instance) as reader:
        return await lags_of(asker, reader, topics)


async def lags_of(
    consumer: PullConsumer, reader: PullConsumer, topics: tuple[str, ...]
) -> list[QueueLag]:
    """Return the lag of *consumer*'s group, queue by queue; messages are looked at by *reader*.

    :raises RocketMQError: a broker cannot be asked
    """

    async def ask(queue: MessageQueue) -> QueueLag:
        return await _lag(consumer, reader, queue)

    queues = [queue for topic in topics for queue in await consumer.message_queues(topic)]
    found, failures = await gather_limited(ask, queues, QUEUES_AT_ONCE)
    for error in failures.values():
        raise error
    return sorted(found.values(), key=lambda each: (each.topic, each.broker, each.queue_id))


async def _lag(consumer: PullConsumer, reader: PullConsumer, queue: MessageQueue) -> QueueLag:
    # The least is asked for first and the greatest last: the group cannot be beyond them.
    minimum = await consumer.min_offset(queue)
    committed = await consumer.committed(queue)
    maximum = await consumer.max_offset(queue)
    position = max(committed or 0, minimum)
    waiting = position < maximum
    return QueueLag(
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        minimum=minimum,
        maximum=maximum,
        committed=committed,
        next_time=await _stored_at(reader, queue, position) if waiting else None,
    )


async def _stored_at(reader: PullConsumer, queue: MessageQueue, offset: int) -> datetime | None:
    try:
        answer = await reader.pull(queue, offset, 1)
    except REFUSALS:
        return None
    return answer.messages[0].store_time if answer.status is PullStatus.FOUND else None
