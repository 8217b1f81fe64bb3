"""State that the processors of a broker share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rocketmq_aio.embedded.broker.store import MessageStore, Topic
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.responses import Handler, Response
from rocketmq_aio.embedded.server import Version
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.protocol.codes import ResponseCode

Handlers = dict[int, Handler]
GroupQueue = tuple[str, str, int]  # group, topic, queue id
MAX_BYTES: Final = 256 * 1024 * 1024
INVALID_PARAMETER: Final = 29  # since 5.3.2; earlier brokers return 1


class ErrorResponse(Exception):  # noqa: N818 - an error response, raised by handlers
    """Error response of the broker."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.response = Response(code, remark=remark)


@dataclass(slots=True)
class BrokerState:
    """State that survives a restart of the broker."""

    name: str
    cluster: str
    version: Version
    store: MessageStore
    clock: Clock
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    groups: set[str] = field(default_factory=set)  # known groups
    committed: dict[GroupQueue, int] = field(default_factory=dict)
    retry_queues: dict[str, int] = field(default_factory=dict)  # by group; default: 1
    max_bytes: int = MAX_BYTES  # of stored messages

    def topic(self, name: str) -> Topic:
        """Return the topic.

        :raises ErrorResponse: it does not exist
        """
        try:
            return self.store.topics[name]
        except KeyError:
            remark = f"topic[{name}] not exist, apply first please!"
            raise ErrorResponse(ResponseCode.TOPIC_NOT_EXIST, remark) from None

    def ensure_group(self, name: str) -> bool:
        """Return whether the group exists; create it if that is enabled."""
        if self.auto_create_groups:
            self.groups.add(name)
        return name in self.groups

    def make_retry_topic(self, group: str) -> str:
        """Create the retry topic of *group*, as heartbeats do, and return it."""
        topic = RETRY_PREFIX + group
        self.store.create_topic(topic, self.retry_queues.get(group, 1))
        return topic

    def check_group(self, name: str) -> None:
        """Raise for a group that does not exist.

        :raises ErrorResponse: there is none of this name
        """
        if name not in self.groups:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            raise ErrorResponse(code, f"subscription group [{name}] does not exist")

    def invalid(self, remark: str) -> ErrorResponse:
        """Return the error response to an invalid parameter."""
        code = INVALID_PARAMETER if self.version.is_5 else ResponseCode.SYSTEM_ERROR
        return ErrorResponse(code, remark)
