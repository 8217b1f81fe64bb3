"""Values: queues, selectors, send results, transaction states."""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from rocketmq_aio.model.errors import ConfigError

ExpressionType: TypeAlias = Literal["TAG", "SQL92"]


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """A queue of a topic on a broker; sorts by topic, broker name, queue id."""

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
    """A message filter of a subscription; create it with `by_tag` or `by_sql`."""

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
    """All four mean *stored*; the last three name the guarantee that was missed."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send: status, ids and position of the stored message."""

    status: SendStatus
    message_id: str  # created by the client, the same in all attempts
    offset_message_id: str  # created by the broker
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    recall_handle: str | None = None
    trace_on: bool = True  # whether the broker enables message traces

    @property
    def ok(self) -> bool:
        """Whether it was stored with all requested guarantees."""
        return self.status is SendStatus.SEND_OK


class TransactionState(Enum):
    """How a local transaction ended."""

    COMMIT = "commit"  # consumers get the message
    ROLLBACK = "rollback"  # consumers never get it
    UNKNOWN = "unknown"  # the broker checks again later
