"""Lag of a consumer group in its queues: committed offsets, and how old the next message is."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import settings
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.errors import AuthError, ConfigError, PermissionDeniedError, SubscriptionError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.summary import Summary
from rocketmq_aio.spark.runtime import Runtime

CONCURRENT_QUEUES: Final = 16
TOOLS: Final = "TOOLS_CONSUMER"  # a group for tools that every broker has
REFUSALS: Final = (AuthError, PermissionDeniedError, SubscriptionError)  # of reads as that group


@settings
class LagSettings:
    """Settings of `lag`: the group is that of the connection."""

    connection: Connection
    topics: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.topics:
            raise ConfigError("topics", self.topics, "give at least one")


@dataclass(frozen=True, kw_only=True)
class QueueLag:
    """Lag of the group in one queue.

    :ivar committed: the next offset to consume; None: nothing was ever committed
    :ivar lag: messages between there (or the beginning of the queue) and the end
    :ivar deleted: messages that were deleted before the group consumed them
    :ivar next_time: when the next message to consume was stored; None: there is none, or the
        account is not allowed to read as the group ``TOOLS_CONSUMER``
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
        """Number of stored messages that the group has not consumed."""
        return max(0, self.maximum - max(self.committed or 0, self.minimum))

    @property
    def deleted(self) -> int:
        """Number of messages that the broker deleted before the group consumed them."""
        return 0 if self.committed is None else max(0, self.minimum - self.committed)

    def behind(self, now: datetime) -> float:
        """Return the age of the next message in seconds."""
        return 0.0 if self.next_time is None else max(0.0, (now - self.next_time).total_seconds())


@dataclass(frozen=True, kw_only=True)
class LagSummary(Summary):
    """Lag of a group in its queues, at one time.

    :ivar at: time by the clock of this machine, which may differ from that of brokers
    :ivar unused: the group has no offsets in these topics and no members: check the name
    """

    pipeline: str = "lag"
    group: str = ""
    at: datetime = datetime.min
    lags: tuple[QueueLag, ...] = ()
    unused: bool = False

    @property
    def lag(self) -> int:
        """Sum of the lags of all queues."""
        return sum(each.lag for each in self.lags)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as values for JSON, with the computed properties of queues."""
        queues = [
            dataclasses.asdict(each)
            | {"lag": each.lag, "deleted": each.deleted, "behind_seconds": each.behind(self.at)}
            for each in self.lags
        ]
        return {**super().to_dict(), "lags": queues, "lag": self.lag}


def lag(settings: LagSettings) -> LagSummary:
    """Look up the lag of the group; changes nothing and needs no Spark.

    :raises RouteNotFoundError: a topic is unknown or not readable
    :raises RocketMQError: a request to a broker failed
    """
    began = time.monotonic()
    runtime = Runtime.get(settings.connection)
    lags = runtime.call(lags_of, runtime.instance, runtime.pull_consumer(), settings.topics)
    started = any(each.committed for each in lags)  # brokers before 5.0 return 0 for unknown groups
    return LagSummary(
        group=settings.connection.group,
        at=datetime.now(UTC),
        lags=tuple(lags),
        unused=not started and not runtime.call(_has_members, runtime.instance, settings),
        seconds=time.monotonic() - began,
    )


async def _has_members(instance: MQClientInstance, settings: LagSettings) -> bool:
    """Return whether the group has members at the masters of the topics."""
    routes = [await instance.routes.get(topic) for topic in settings.topics]
    for master in sorted({each for route in routes for each in route.masters}):
        if await instance.broker.consumer_ids_at(settings.connection.group, master):
            return True
    return False


async def lags_of(
    instance: MQClientInstance, consumer: PullConsumer, topics: tuple[str, ...]
) -> list[QueueLag]:
    """Return the lags of *consumer*'s group by queue."""
    queues = [queue for topic in topics for queue in await consumer.message_queues(topic)]
    # A pull as the group itself would consume a reset meant for its members (5.x).
    async with PullConsumer(TOOLS, client=instance) as reader:
        lag_of = partial(_lag, consumer, reader)
        found = await gather_limited(lag_of, sorted(queues), CONCURRENT_QUEUES)
    return list(found.complete().values())


async def _lag(consumer: PullConsumer, reader: PullConsumer, queue: MessageQueue) -> QueueLag:
    # The maximum is read last, so that the committed offset is not beyond it.
    minimum = await consumer.min_offset(queue)
    committed = await consumer.committed(queue)
    maximum = await consumer.max_offset(queue)
    position = max(committed or 0, minimum)
    return QueueLag(
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        minimum=minimum,
        maximum=maximum,
        committed=committed,
        next_time=await _stored_at(reader, queue, position) if position < maximum else None,
    )


async def _stored_at(reader: PullConsumer, queue: MessageQueue, offset: int) -> datetime | None:
    try:
        result = await reader.pull(queue, offset, 1)
    except REFUSALS:
        return None
    return result.messages[0].store_time if result.status is PullStatus.FOUND else None
