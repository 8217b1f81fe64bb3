"""State that the processors of a broker share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from rocketmq_aio.embedded.broker.events import Event, MessagesDelivered, OffsetCommitted
from rocketmq_aio.embedded.broker.rates import Rate
from rocketmq_aio.embedded.broker.store import UNIT_GROUP, MessageStore, StoredMessage, Topic
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.responses import ErrorResponse as ErrorResponse
from rocketmq_aio.embedded.server import Version
from rocketmq_aio.model.names import MAX_GROUP, NAME, RETRY_PREFIX
from rocketmq_aio.protocol.codes import PERM_READ, PERM_WRITE, ResponseCode
from rocketmq_aio.protocol.header import Header
from rocketmq_aio.protocol.requests.admin import SubscriptionGroupBody
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from rocketmq_aio.protocol.requests.operations import TopicMapping

K = TypeVar("K")
WINDOWS: Final = {"statsMinute": 60, "statsHour": 3600, "statsDay": 86400}  # seconds
RATE_SECONDS: Final = (10, 60, 600)
GroupQueue = tuple[str, str, int]  # group, topic, queue id
MAX_BYTES: Final = 256 * 1024 * 1024
NEW_GROUP_5: Final[dict[str, Any]] = {
    **msgspec.to_builtins(SubscriptionGroupBody(group_name="")),
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "attributes": {},
}
ONLY_IN_5: Final = """consumeMessageOrderly consumeTimeoutMinute groupRetryPolicy groupSysFlag
    attributes""".split()
NEW_GROUP: Final = {name: NEW_GROUP_5[name] for name in NEW_GROUP_5 if name not in ONLY_IN_5}
AUTO_CREATE_TOPICS: Final = "autoCreateTopicEnable"
AUTO_CREATE_GROUPS: Final = "autoCreateSubscriptionGroup"
LIGHT_QUEUES: Final = "enableLmq"
MULTI_DISPATCH: Final = "enableMultiDispatch"
ILLEGAL_OPERATION: Final = 604
INVALID_PARAMETER: Final = 29  # since 5.3.2; earlier brokers return 1


def discard_keys(table: dict[K, Any], is_gone: Callable[[K], bool]) -> None:
    """Delete the entries of *table* whose keys are gone."""
    for key in [key for key in table if is_gone(key)]:
        del table[key]


def is_group_name(name: str) -> bool:
    """Whether brokers accept it as the name of a new group."""
    return len(name) <= MAX_GROUP and NAME.fullmatch(name) is not None


class Page(Header, frozen=True):
    """The part of the table of topics or groups that a 5.x tool requests."""

    topic_seq: int = 0
    max_topic_num: int | None = None
    group_seq: int = 0
    max_group_num: int | None = None

    def of(self, names: Iterable[str]) -> list[str]:
        most = self.max_topic_num if self.max_group_num is None else self.max_group_num
        return list(names)[self.topic_seq + self.group_seq :][:most]


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
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)  # JSON of their settings
    committed: dict[GroupQueue, int] = field(default_factory=dict)
    # For the next pull or pop (5.x); until then members cannot commit.
    reset_offsets: dict[GroupQueue, int] = field(default_factory=dict)
    pulled: dict[GroupQueue, int] = field(default_factory=dict)  # where the last pull ended
    settings: dict[str, str] = field(default_factory=dict)  # that an administrator updated
    mappings: dict[str, TopicMapping] = field(default_factory=dict)  # of static topics
    # By topic and group; `SlaveSynchronize` of 5.x copies them.
    request_modes: dict[tuple[str, str], MessageRequestMode] = field(default_factory=dict)
    changes: int = 0  # of topics and groups
    rates: dict[tuple[str, str], Rate] = field(default_factory=dict)  # by topic and group
    delivery_rate: Rate = field(init=False)  # of all groups
    on_topic_deleted: Callable[[str], object] | None = None
    on_event: Callable[[Event], object] | None = None

    def __post_init__(self) -> None:
        self.delivery_rate = Rate(self.clock, RATE_SECONDS)

    def topic(self, name: str, unknown: str = "topic[{}] not exist, apply first please!") -> Topic:
        """Return a topic; ErrorResponse with the remark *unknown* if it does not exist."""
        if (topic := self.store.find_topic(name)) is None:
            remark = unknown.format(name)
            raise ErrorResponse(remark, ResponseCode.TOPIC_NOT_EXIST)
        return topic

    def delivered(
        self, group: str, topic: str, messages: Sequence[StoredMessage], size: int
    ) -> None:
        """Count messages of *topic* that a member of *group* gets, and notify the callback."""
        key = topic, group
        rate = self.rates.get(key)
        if rate is None:
            rate = self.rates[key] = Rate(self.clock, WINDOWS.values())
        rate.add(len(messages), size)
        self.delivery_rate.add(len(messages), size)
        if self.on_event is not None:
            self.on_event(MessagesDelivered(self.name, group, messages))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset; notify the callback if it is another one than before."""
        key = group, topic, queue_id
        before, self.committed[key] = self.committed.get(key, 0), offset
        if self.on_event is not None and offset != before:
            self.on_event(OffsetCommitted(self.name, *key, offset))

    def ensure_group(self, name: str) -> bool:
        """Return whether the group exists; create it if that is enabled, in 5.x by a valid name."""
        if self.auto_create_groups and (is_group_name(name) or not self.version.is_5):
            self.create_group(name)
        return name in self.groups

    def create_group(self, name: str) -> dict[str, Any]:
        """Return the settings of a group, which is created if it does not exist."""
        if name not in self.groups:
            defaults = NEW_GROUP_5 if self.version.is_5 else NEW_GROUP
            self.groups[name] = {**defaults, "groupName": name}
            self.changes += 1
        return self.groups[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic; 5.x brokers also delete the offsets that were committed for it."""
        if self.store.find_topic(name) is None:
            return
        self.mappings.pop(name, None)
        self.store.delete_topic(name)
        self.changes += 1
        if self.on_topic_deleted is not None:
            self.on_topic_deleted(name)
        if self.version.is_5:
            for offsets in (self.committed, self.reset_offsets, self.pulled):
                discard_keys(offsets, lambda key: key[1] == name)
        discard_keys(self.rates, lambda key: key[0] == name)

    def data_version(self) -> dict[str, int]:
        """Return the version of the topics and groups, as in their tables."""
        version = {"counter": self.changes, "timestamp": 0}
        return {**version, "stateVersion": 0} if self.version.is_5 else version

    def make_retry_topic(self, group: str, *, unit: bool = False) -> str:
        """Create the retry topic of *group*, as heartbeats do, and return it."""
        topic = RETRY_PREFIX + group
        queues = self.group_setting(group, "retryQueueNums")
        return self.store.ensure_topic(topic, queues, UNIT_GROUP if unit else 0)

    def update_settings(self, settings: Mapping[str, str]) -> None:
        """Store settings of an administrator, and apply those that have an effect."""
        self.settings.update(settings)
        self.auto_create_topics = self.enabled(AUTO_CREATE_TOPICS, self.auto_create_topics)
        self.auto_create_groups = self.enabled(AUTO_CREATE_GROUPS, self.auto_create_groups)
        store = self.store
        store.has_light_queues = self.enabled(LIGHT_QUEUES)
        store.fills_light_queues = store.has_light_queues and self.enabled(MULTI_DISPATCH)

    def enabled(self, setting: str, default: bool = False) -> bool:
        """Return a setting of the broker that is on or off."""
        return self.settings.get(setting, "true" if default else "false").lower() == "true"

    @property
    def permission(self) -> int:
        """Permission of the broker, which limits those of its topics in routes."""
        return int(self.settings.get("brokerPermission", PERM_READ | PERM_WRITE))

    def group_setting(self, group: str, name: str) -> Any:  # noqa: ANN401 - any JSON value
        return self.groups.get(group, NEW_GROUP)[name]

    def group(
        self, name: str, unknown: str = "subscription group [{}] does not exist"
    ) -> dict[str, Any]:
        """Return the settings of a group; ErrorResponse if it does not exist, as in `topic`."""
        if name not in self.groups:
            remark = unknown.format(name)
            raise ErrorResponse(remark, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return self.groups[name]

    def check_consumer(self, group: str) -> None:
        """Create the group of a request for messages if that is enabled.

        :raises ErrorResponse: it does not exist, or may not consume
        """
        self.ensure_group(group)
        if not self.group(group)["consumeEnable"]:
            remark = f"subscription group no permission, {group}"
            raise ErrorResponse(remark, ResponseCode.NO_PERMISSION)

    def invalid(self, remark: str) -> ErrorResponse:
        """Return the error response to an invalid parameter."""
        code = INVALID_PARAMETER if self.version.is_5 else ResponseCode.SYSTEM_ERROR
        return ErrorResponse(remark, code)
