"""Missing group: reports topics whose brokers do not know the group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rocketmq_aio.config.consumer import ConsumerConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import PullFailed
from rocketmq_aio.consumer.pull_loop.pull_request import PullRequest
from rocketmq_aio.errors import RocketMQError, SubscriptionError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)

SETTLING_ROUNDS: Final = 2  # a broker that has just restarted may list the member a round later
PULLED_ROUNDS: Final = 4  # one of so many rounds pulls
REPORTED: Final = -1


class MissingGroup:
    """Publishes `PullFailed` once per topic while no queue of it is assigned for lack of the group.

    A broker from 5.0 that creates no groups accepts heartbeats of an unknown group, but does not
    register the member.  It assigns it no queue, so no pull fails.  Older ones register it.  A
    5.5.0 broker with ``rejectPullConsumerEnable`` treats members of lite pull consumers so, too.
    """

    def __init__(self, context: ConsumerContext[ConsumerConfig]) -> None:
        self._context = context
        self._unlisted: dict[str, int] = {}  # by topic: rounds in a row, or REPORTED

    def retain(self, topics: Collection[str]) -> None:
        """Forget every topic but *topics*."""
        for topic in self._unlisted.keys() - topics:
            del self._unlisted[topic]

    async def note(self, topic: str, address: str, *, is_listed: bool) -> None:
        """Note a round, and whether the broker at *address* listed this member."""
        if is_listed:
            self._unlisted.pop(topic, None)
            return
        rounds = self._unlisted.get(topic, 0)
        if rounds == REPORTED:
            return
        self._unlisted[topic] = rounds + 1
        if (rounds + 1) % PULLED_ROUNDS != SETTLING_ROUNDS:
            return
        routes = self._context.instance.routes
        route = routes.known(topic)
        for queue in route.subscribe_queues if route is not None else ():
            if address in routes.replicas_of(queue).values():
                await self._pull(queue, address)
                return

    async def _pull(self, queue: MessageQueue, address: str) -> None:
        """Report the queue if the broker rejects the group; no other request tells it."""
        context = self._context
        subscription = context.subscriptions.get(queue.topic)
        if subscription is None:
            return
        request = PullRequest(context.instance, context.group, queue, subscription, 1)
        try:
            command = await request.send(address, 0)
        except RocketMQError as error:
            logger.debug("group_not_checked", topic=queue.topic, reason=str(error))
            return
        rejection = broker_error(command, address)
        if isinstance(rejection, SubscriptionError) and queue.topic in self._unlisted:
            self._unlisted[queue.topic] = REPORTED
            event = PullFailed(queue=queue, reason=str(rejection))
            context.warn("pull_failed", event, queue=str(queue))
