"""Small values: queues, selectors, the results of sends."""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from rocketmq_aio.model.errors import ConfigError

ExpressionType: TypeAlias = Literal["TAG", "SQL92"]


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic on one broker; sorts by topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


class MessageModel(Enum):
    """How the members of a group share a topic."""

    CLUSTERING = "CLUSTERING"  # every queue belongs to one member of the group
    BROADCASTING = "BROADCASTING"  # every member gets every message


class MessageSelector(msgspec.Struct, frozen=True, gc=False):
    """Which messages of a topic a consumer wants; build it with `by_tag` or `by_sql`."""

    expression: str
    kind: ExpressionType = "TAG"

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """Tags joined by ``||``; ``*`` means all."""
        return cls(expression, "TAG")

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """An SQL92 condition over properties; the broker needs ``enablePropertyFilter=true``."""
        if not isinstance(expression, str) or not expression.strip():
            raise ConfigError("selector", expression, "an SQL expression is a non-empty string")
        return cls(expression, "SQL92")


class SendStatus(Enum):
    """All four mean *stored*; the last three say which guarantee was missed in time."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where the broker stored the message, and how firmly."""

    status: SendStatus
    message_id: str  # made by this client, equal for all attempts
    offset_message_id: str  # made by the broker
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    recall_handle: str | None = None
    trace_on: bool = True  # the broker wants its messages traced

    @property
    def ok(self) -> bool:
        """Stored with every guarantee that was asked for."""
        return self.status is SendStatus.SEND_OK


class TransactionState(Enum):
    """How a local transaction ended."""

    COMMIT = "commit"  # consumers get the message
    ROLLBACK = "rollback"  # consumers never get it
    UNKNOWN = "unknown"  # the broker checks again later
