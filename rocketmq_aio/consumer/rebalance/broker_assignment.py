"""Assignment by the brokers (5.x): they say which queues a member reads, and pulled or popped."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.consumer.rebalance.strategies.averagely import strategy_name
from rocketmq_aio.errors import CodecError, ConfigError, NotSupportedError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageModel, MessageQueue
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.requests.assignment import (
    AssignmentRequest,
    MessageQueueAssignment,
    MessageRequestMode,
)

logger = get_logger(__name__)

Assignment = dict[MessageQueue, MessageRequestMode]

BROKER_STRATEGIES: Final = frozenset({"AVG", "AVG_BY_CIRCLE"})
ALL_QUEUES: Final = -1  # the id that stands for all queues of a broker, for pops


async def query_assignment(
    instance: MQClientInstance,
    group: str,
    topic: str,
    strategy: str,
    model: MessageModel = MessageModel.CLUSTERING,
) -> Assignment | None:
    """Return what a broker of *topic* says that this client reads, and how.

    None means that it cannot know now (it does not know the topic or the strategy): keep what is
    held.  An empty answer means what it says: the client reads nothing, or is no member (yet).
    A queue of id `ALL_QUEUES` stands for all queues of its broker, to be popped.

    :raises NotSupportedError: the client has to allocate by itself: the broker is older than 5.0,
        or the topic is static
    :raises RouteNotFoundError: no route of the topic names a broker
    :raises RocketMQError: what else keeps a broker from answering
    """
    known = instance.routes.known(topic)
    if known is not None and known.owners:
        # A live 5.5.0 broker names its physical queues then, which nobody can pull from.
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        raise NotSupportedError(code, "brokers do not assign the queues of static topics", "-")
    request = AssignmentRequest(
        topic=topic,
        consumer_group=group,
        client_id=instance.client_id,
        strategy_name=strategy,
        message_model=model.value,
    )
    assigned = await instance.broker.query_assignment(request)
    return None if assigned is None else dict(map(_entry, assigned))


def broker_strategy(strategy: AllocateStrategy) -> str:
    """Return the name by which brokers share queues out as *strategy* does.

    :raises ConfigError: they cannot
    """
    name = strategy_name(strategy)
    if name not in BROKER_STRATEGIES:
        known = " or ".join(sorted(BROKER_STRATEGIES))
        raise ConfigError("allocate", name, f"brokers share queues out by {known} only")
    return name


class BrokerAssignment:
    """The assignment of one group as brokers say it; what they cannot say is told once by topic."""

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        model: MessageModel = MessageModel.CLUSTERING,
    ) -> None:
        self._told: set[str] = set()  # topics that brokers do not assign
        self._instance = instance
        self._group = group
        self._model = model

    async def of(self, topic: str, strategy: AllocateStrategy) -> Assignment | None:
        """Return what a broker says of *topic*, as `query_assignment`.

        :raises ConfigError: brokers cannot share queues out as *strategy* does
        :raises NotSupportedError: the member has to allocate *topic* by itself
        :raises RocketMQError: what else `query_assignment` raises
        """
        name = broker_strategy(strategy)
        try:
            return await query_assignment(self._instance, self._group, topic, name, self._model)
        except NotSupportedError as error:
            self._note(topic, error)
            raise

    def _note(self, topic: str, error: NotSupportedError) -> None:
        if topic not in self._told:
            self._told.add(topic)
            logger.warning(
                "broker_assignment_unsupported",
                group=self._group,
                topic=topic,
                broker=error.address,
                reason=error.remark,
            )


def _entry(assigned: MessageQueueAssignment) -> tuple[MessageQueue, MessageRequestMode]:
    try:
        mode = MessageRequestMode(assigned.mode)
    except ValueError:
        raise CodecError("mode", 0, f"{assigned.mode!r} is no way to fetch messages") from None
    return assigned.message_queue.queue(), mode
