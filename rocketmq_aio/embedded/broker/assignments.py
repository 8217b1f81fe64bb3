"""Queue assignment of the broker (5.x)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.consumer.rebalance.strategies.allocation import allocate
from rocketmq_aio.consumer.rebalance.strategies.averagely import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
)
from rocketmq_aio.embedded.broker.clients import ClientProcessor
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageModel, MessageQueue
from rocketmq_aio.protocol.bodies import MessageQueueBody
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.header import queue_fields
from rocketmq_aio.protocol.requests import groups

ALL_QUEUES: Final = -1
STRATEGIES: Final[dict[str | None, AllocateStrategy]] = {
    "AVG": AllocateAveragely(),
    "AVG_BY_CIRCLE": AllocateAveragelyByCircle(),
}


class SetMessageRequestMode(msgspec.Struct, kw_only=True, rename="camel"):
    """Request mode of a group for a topic.

    Each member pops all queues, as on real brokers when members are few; *pop_share_queue_num*
    has no effect.
    """

    topic: str
    consumer_group: str
    mode: groups.MessageRequestMode
    pop_share_queue_num: int = 0


class AssignmentProcessor:
    """Allocates the queues of a topic to the members of a group.

    :ivar read_queues: number of queues of a topic by broker; a name server sets it, so that the
        queues of all its brokers are allocated
    """

    def __init__(self, state: BrokerState, members: ClientProcessor) -> None:
        self.modes = state.request_modes
        self._state = state
        self._members = members
        self.read_queues: Callable[[str], Mapping[str, int]] = self._own_queues

    @reads(groups.AssignmentRequest, RequestCode.QUERY_ASSIGNMENT, version=5)
    def query(self, request: groups.AssignmentRequest) -> object:
        key = request.topic, request.consumer_group
        mode = self.modes.get(key, groups.MessageRequestMode.PULL)
        shared = self._share(request, mode)
        if shared is None:
            return {}
        bodies = [MessageQueueBody(**queue_fields(each)) for each in shared]
        assigned = [groups.MessageQueueAssignment(message_queue=each, mode=mode) for each in bodies]
        return groups.AssignmentResponse(message_queue_assignments=assigned)

    @reads(SetMessageRequestMode, RequestCode.SET_MESSAGE_REQUEST_MODE, version=5)
    def set_mode(self, request: SetMessageRequestMode) -> None:
        if request.topic.startswith(RETRY_PREFIX):
            remark = "retry topic is not allowed to set mode"
            raise ErrorResponse(remark, ResponseCode.NO_PERMISSION)
        self.modes[request.topic, request.consumer_group] = request.mode

    def _own_queues(self, name: str) -> Mapping[str, int]:
        topic = self._state.store.topics.get(name)
        return {} if topic is None else {self._state.name: topic.read_queues}

    def _share(
        self, request: groups.AssignmentRequest, mode: groups.MessageRequestMode
    ) -> list[MessageQueue] | None:
        topic, counts = request.topic, sorted(self.read_queues(request.topic).items())
        broadcasting = request.message_model == MessageModel.BROADCASTING.value
        if self._state.store.is_light(topic) and not broadcasting:
            counts = [(self._state.name, 1)]  # name servers know no light message queues
        if not counts:
            return None
        offered = [MessageQueue(topic, name, n) for name, count in counts for n in range(count)]
        if broadcasting:
            return offered
        group = self._members.groups.get(request.consumer_group)
        strategy = STRATEGIES.get(request.strategy_name)
        if group is None or strategy is None:
            return None
        if mode is groups.MessageRequestMode.POP:
            return [MessageQueue(topic, name, ALL_QUEUES) for name, _ in counts]
        return allocate(strategy, request.client_id, offered, group.members.values()) or []
