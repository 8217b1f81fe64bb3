"""Queue assignment by the broker: 400 QUERY_ASSIGNMENT (5.x)."""

from __future__ import annotations

from enum import StrEnum

from rocketmq_aio.protocol.bodies import Body, MessageQueueBody
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class MessageRequestMode(StrEnum):
    """How to fetch the messages of a queue, chosen by the broker."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignment(RequestHeader, code=RequestCode.QUERY_ASSIGNMENT, frozen=True):
    """Query the assignment of a member; the body is AssignmentRequest."""


class AssignmentRequest(Body, frozen=True, kw_only=True):
    """Member, topic and allocation strategy."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str


class MessageQueueAssignment(Body, frozen=True):
    """An assigned queue; id -1: all queues of the broker."""

    message_queue: MessageQueueBody
    mode: str


class AssignmentResponse(Body, frozen=True):
    """The queues of the member; None if the broker does not know it."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None
