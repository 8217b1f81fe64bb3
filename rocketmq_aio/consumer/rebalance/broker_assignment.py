"""Broker assignment (5.x): brokers assign queues to members, to be pulled or popped."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.consumer.rebalance.strategies.allocation import strategy_name
from rocketmq_aio.errors import CodecError, ConfigError, NotSupportedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageModel, MessageQueue
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.requests.groups import (
    AssignmentRequest,
    MessageQueueAssignment,
    MessageRequestMode,
)

logger = get_logger(__name__)

Assignment = dict[MessageQueue, MessageRequestMode]

BROKER_STRATEGIES: Final = frozenset({"AVG", "AVG_BY_CIRCLE"})
ALL_QUEUES: Final = -1  # the id that stands for all queues of a broker, for pops


def broker_strategy(strategy: AllocateStrategy) -> str:
    """Return the name of *strategy* at brokers.  Raises ConfigError: brokers do not support it."""
    name = strategy_name(strategy)
    if name not in BROKER_STRATEGIES:
        known = " or ".join(sorted(BROKER_STRATEGIES))
        raise ConfigError("allocate", name, f"brokers assign queues by {known} only")
    return name


class BrokerAssignment:
    """Queries the assignment of one group; logs an unsupported topic once."""

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._unsupported: set[str] = set()  # topics already logged as unsupported
        self._instance = instance
        self._group = group

    async def of(
        self, topic: str, strategy: AllocateStrategy, address: str | None = None
    ) -> Assignment | None:
        """Return the queues of *topic* that a broker assigns to this client, with their modes.

        The request goes to the broker at *address*, by default to any of the topic.
        None: the broker does not know the topic or the strategy; keep the current queues.  Empty:
        the client reads nothing, or is not a member yet.  A queue with the id `ALL_QUEUES` stands
        for all queues of its broker, to be popped.

        :raises ConfigError: brokers do not support *strategy*
        :raises NotSupportedError: the broker is older than 5.0, or the topic is static: the client
            has to allocate queues itself
        :raises RouteNotFoundError: no route of the topic names a broker
        :raises RocketMQError: the request failed
        """
        name = broker_strategy(strategy)
        try:
            assigned = await self._query(topic, name, address)
        except NotSupportedError as error:
            if topic not in self._unsupported:
                self._unsupported.add(topic)
                where = {"group": self._group, "topic": topic, "broker": error.address}
                logger.warning("broker_assignment_unsupported", **where, reason=error.remark)
            raise
        return None if assigned is None else dict(_entry(topic, each) for each in assigned)

    async def _query(
        self, topic: str, strategy: str, address: str | None
    ) -> list[MessageQueueAssignment] | None:
        known = self._instance.routes.known(topic)
        if known is not None and known.owners:
            # A 5.5.0 broker then returns its physical queues, which cannot be pulled.
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            raise NotSupportedError(code, "brokers do not assign the queues of static topics", "-")
        request = AssignmentRequest(
            topic=topic,
            consumer_group=self._group,
            client_id=self._instance.client_id,
            strategy_name=strategy,
            message_model=MessageModel.CLUSTERING.value,
        )
        return await self._instance.broker.query_assignment(request, address)


def _entry(topic: str, assigned: MessageQueueAssignment) -> tuple[MessageQueue, MessageRequestMode]:
    try:
        mode = MessageRequestMode(assigned.mode)
    except ValueError:
        raise CodecError("mode", 0, f"{assigned.mode!r} is no way to fetch messages") from None
    queue = assigned.message_queue.queue()
    # A queue of another topic would be assigned in every round, also while it is being read.
    if queue.topic != topic or (queue.queue_id < 0 and mode is MessageRequestMode.PULL):
        raise CodecError("messageQueue", 0, f"{queue} is no queue of {topic} for {mode.value}")
    return queue, mode
