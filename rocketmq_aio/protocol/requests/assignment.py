"""Asking a broker which queues a member reads: 400 QUERY_ASSIGNMENT (5.x)."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from rocketmq_aio.protocol.bodies import Body, MessageQueueBody
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class MessageRequestMode(StrEnum):
    """How the messages of a queue are fetched, as the broker wants it."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignment(RequestHeader, frozen=True, kw_only=True, gc=False):
    """The body says everything: AssignmentRequest."""

    code: ClassVar[int] = RequestCode.QUERY_ASSIGNMENT


class AssignmentRequest(Body, frozen=True, kw_only=True):
    """Who asks, about which topic, and how queues are to be shared."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str


class MessageQueueAssignment(Body, frozen=True):
    """A queue that the member reads; id -1 stands for all queues of the broker."""

    message_queue: MessageQueueBody
    mode: str


class AssignmentResponse(Body, frozen=True):
    """The queues of the member; None where the broker cannot know."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None
