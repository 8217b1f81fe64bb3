"""Consumer context: what the components of one consumer share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import time_ns
from typing import Generic, TypeVar

from rocketmq_aio.consumer.common.events import ConsumerEvent, EventStreams
from rocketmq_aio.consumer.common.hooks import FilterHooks
from rocketmq_aio.consumer.common.statistics import ConsumeStatistics
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageSelector
from rocketmq_aio.protocol.subscription import Subscription, subscription
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.keyed_lock import KeyedLock

logger = get_logger(__name__)

C_co = TypeVar("C_co", covariant=True)  # the settings of the consumer


class ConsumerContext(Generic[C_co]):
    """The instance, group and settings of a consumer, and where its components report.

    :ivar on_failed: called when the consumer cannot go on
    :ivar subscriptions: the current subscriptions by topic; components read this dict
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        config: C_co,
        *,
        on_failed: Callable[[BaseException], None],
        on_event: Callable[[ConsumerEvent], object] | None = None,
        filters: FilterHooks | None = None,
    ) -> None:
        self.instance = instance
        self.group = group
        self.config = config
        self.on_failed = on_failed
        self.tasks = BackgroundTasks(f"rocketmq:{group}", on_failure=on_failed)
        self.events = EventStreams(on_event)
        self.publish: Callable[[ConsumerEvent], None] = self.events.publish
        self.statistics = ConsumeStatistics()
        self.filters = filters or FilterHooks()
        self.subscriptions: dict[str, Subscription] = {}
        self._subscribing = KeyedLock[str]()

    def new_subscription(self, topic: str, selector: str | MessageSelector) -> Subscription:
        """Return a subscription that replaces the current one of *topic* at brokers.

        They keep the one with the largest version, even if the clock was set back.

        :raises ConfigError: *selector* is invalid
        """
        known, now = self.subscriptions.get(topic), time_ns() // 1_000_000
        return subscription(topic, selector, max(now, known.version + 1) if known else now)

    async def subscribe(
        self,
        topic: str,
        selector: str | MessageSelector,
        announce: Callable[[Subscription], Awaitable[None]] | None,
    ) -> None:
        """Subscribe by *announce*, or, if it is None, note the subscription for the start."""
        wanted = self.new_subscription(topic, selector)
        if announce is None:
            self.subscriptions[topic] = wanted
            return
        # One at a time: an earlier call could replace a later one, or a refused one return to it.
        async with self._subscribing.hold(topic):
            await announce(self.new_subscription(topic, selector))

    def warn(self, name: str, event: ConsumerEvent, **fields: str) -> None:
        """Log a warning with *event*, and publish it."""
        logger.warning(name, **fields, event_value=repr(event))
        self.publish(event)
