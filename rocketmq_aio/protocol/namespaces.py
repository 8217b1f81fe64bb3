"""Namespaces: convert topics and groups between the application's and the broker's names.

Requests are converted when they are encoded, responses when they are read; the rest of the client
uses the application's names.  In version 1 the namespace is part of every name,
``<namespace>%<name>``, after the prefix of a retry or dead-letter topic:
``%RETRY%<namespace>%<group>``.  In version 2 names stay, and every request carries the namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.address import ENDPOINT
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_NAMES,
    SYSTEM_PREFIXES,
)
from rocketmq_aio.model.properties import (
    NAME_END,
    PAIR_END,
    PRODUCER_GROUP,
    RETRY_TOPIC,
    encode_properties,
    parse_properties,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import MessageQueueBody, queue_key, queue_table
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.compression import MAX_INFLATED
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.receipt import RETRY_JOINTS, stored_topic
from rocketmq_aio.protocol.record import Decoded, decode_messages

NAME_FIELDS: Final = (
    *("topic", "originTopic", "parentTopic"),
    *("consumerGroup", "producerGroup", "group", "groupName"),
)
SEND_FIELDS: Final = ("a", "b", "c")  # group, topic and template topic of a send
PROPERTIES_FIELD: Final = "i"
SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)
# Fields of a group and a topic, which may be a retry topic of popped messages.
STORED_TOPICS: Final[dict[int, tuple[str, str]]] = {
    RequestCode.ACK_MESSAGE: ("consumerGroup", "topic"),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ("consumerGroup", "topic"),
    RequestCode.CONSUMER_SEND_MSG_BACK: ("group", "originTopic"),
}
# Requests and responses, of both directions, whose JSON bodies contain names.
JSON_BODIES: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_PARENT_TOPIC_INFO,
        RequestCode.GET_LITE_TOPIC_INFO,
        RequestCode.GET_LITE_CLIENT_INFO,
        RequestCode.GET_LITE_GROUP_INFO,
    }
)
BODY_FIELDS: Final = frozenset({"topic", "consumerGroup", "groupName", "group", "c", "t"})
TOPIC_TABLES: Final = frozenset({"statusTable", "subscriptionTable"})  # topics are their keys
NAME_PROPERTIES: Final = frozenset({PRODUCER_GROUP, "REAL_TOPIC", RETRY_TOPIC})
MAX_SHARED: Final = 256  # one for replies per cluster, and those of traces
INSTANCE_ID: Final = "INSTANCE_ID"  # by which Java clients mark messages of a namespace


class Namespace:
    """The names of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._prefix = f"{name}%"
        self._property_prefix = f"\x01{name}%".encode()
        self._shared: set[str] = set()
        self._cached = lru_cache(4096)(self._outer)
        self.outer: Callable[[str], str] = self._cached

    def share(self, topic: str) -> None:
        """Convert *topic* no more: replies or traces of all namespaces are in it."""
        if topic not in self._shared and len(self._shared) < MAX_SHARED:
            self._shared.add(topic)
            self._cached.cache_clear()

    def _outer(self, name: str) -> str:
        """Return the broker's form of *name*; a name that is in the namespace already stays."""
        kind, rest = _split(name)
        if not rest or rest.startswith((self._prefix, LMQ_PREFIX, *SYSTEM_PREFIXES)):
            return name
        if rest in SYSTEM_NAMES or rest in self._shared:
            return name
        return kind + self._prefix + rest  # not an f-string: see `check_topic`

    def inner(self, name: str) -> str:
        """Return the application's form of a broker's *name*."""
        kind, rest = _split(name)
        return kind + rest.removeprefix(self._prefix)

    # --- to brokers -----------------------------------------------------------------------------

    def request(self, code: int, ext: MutableMapping[str, str], body: bytes) -> bytes:
        """Convert the names in *ext*, in place, and return *body* with its names converted."""
        is_send = code in SENDS
        stored = self._stored_topic(ext, *STORED_TOPICS[code]) if code in STORED_TOPICS else {}
        for field in SEND_FIELDS if is_send else NAME_FIELDS:
            if field in ext:
                ext[field] = self.outer(ext[field])
        ext.update(stored)
        if is_send:
            ext[PROPERTIES_FIELD] = self._outer_properties(ext.get(PROPERTIES_FIELD, ""))
        return self.outer_json(code, body)

    def outer_json(self, code: int, body: bytes) -> bytes:
        """Return *body*, of a request or of this client's response, with its names converted."""
        return _changed_json(body, self._outer_value) if body and code in JSON_BODIES else body

    def _outer_value(self, value: Any, field: str = "") -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, str):
            return self.outer(value) if field in BODY_FIELDS else value
        if isinstance(value, list):
            return [self._outer_value(each) for each in value]
        if not isinstance(value, dict):
            return value
        changed = {key: self._outer_value(each, key) for key, each in value.items()}
        if field in TOPIC_TABLES:
            return {self.outer(topic): each for topic, each in changed.items()}
        if not _has_queue_keys(changed):
            return changed
        queues = {queue_key(key): each for key, each in changed.items()}
        return queue_table({replace(q, topic=self.outer(q.topic)): v for q, v in queues.items()})

    def _stored_topic(
        self, ext: Mapping[str, str], group_field: str, topic_field: str
    ) -> dict[str, str]:
        """Convert a 5.x retry topic, whose name contains both group and topic."""
        group, topic = ext.get(group_field, ""), ext.get(topic_field, "")
        for marker in RETRY_JOINTS:
            start = stored_topic(group, marker, "")
            if topic.startswith(start):
                of = self.outer(topic.removeprefix(start))
                return {topic_field: stored_topic(self.outer(group), marker, of)}
        return {}

    def _outer_properties(self, properties: str) -> str:
        changed = {
            name: self.outer(value) if name in NAME_PROPERTIES else value
            for name, value in parse_properties(properties.encode()).items()
        }
        changed.setdefault(INSTANCE_ID, self.name)  # a forwarded message has one
        return encode_properties(changed)

    # --- from brokers ---------------------------------------------------------------------------

    def response(self, code: int, command: Command) -> None:
        """Convert the names in the response to request *code*."""
        if command.body and code in JSON_BODIES:
            command.body = _changed_json(command.body, self._inner_value)

    def _inner_value(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, str):
            return self.inner(value)
        if isinstance(value, list):
            return [self._inner_value(each) for each in value]
        if not isinstance(value, dict):
            return value
        inner_key = self._inner_queue if _has_queue_keys(value) else self.inner
        return {inner_key(key): self._inner_value(each) for key, each in value.items()}

    def _inner_queue(self, key: str) -> str:
        queue = read_body(key.encode(), MessageQueueBody)
        return msgspec.json.encode(replace(queue, topic=self.inner(queue.topic))).decode()

    def broker_request(self, command: Command) -> None:
        """Convert the names in a request from a broker."""
        ext = command.ext_fields()
        command.ext = {k: self.inner(v) if k in NAME_FIELDS else v for k, v in ext.items()}
        self.response(command.code, command)

    def decode(self, body: bytes, queue: MessageQueue, *, limit: int = MAX_INFLATED) -> Decoded:
        """Decode as `decode_messages` does, with the application's names."""
        stored = replace(queue, topic=self.outer(queue.topic))
        messages, fault = decode_messages(body, stored, limit=limit)
        for message in messages:
            self._rename(message, queue)
        return messages, fault

    def received(self, message: MessageExt) -> None:
        """Convert the names in *message*, decoded with `decode_message`."""
        queue = message.queue
        self._rename(message, replace(queue, topic=self.inner(queue.topic)))

    def _rename(self, message: MessageExt, queue: MessageQueue) -> None:
        message.topic, message.queue = queue.topic, queue
        raw = message.raw_properties
        if self._property_prefix in raw:  # only retried and transactional messages
            pairs = raw.decode("utf-8", "surrogateescape").split(PAIR_END)
            changed = PAIR_END.join(map(self._inner_property, pairs))
            message.raw_properties = changed.encode("utf-8", "surrogateescape")

    def _inner_property(self, pair: str) -> str:
        name, end, value = pair.partition(NAME_END)
        return name + end + value.removeprefix(self._prefix) if name in NAME_PROPERTIES else pair


def _changed_json(body: bytes, change: Callable[[Any], Any]) -> bytes:
    try:
        return msgspec.json.encode(change(read_body(body, dict)))
    except (CodecError, RecursionError):
        return body  # the reader of the body reports what is wrong with it


def _has_queue_keys(table: dict[str, Any]) -> bool:
    return next(iter(table), "").startswith("{")


def _split(name: str) -> tuple[str, str]:
    """Split *name* into the prefix of a retry or dead-letter topic, if any, and the rest."""
    for kind in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(kind):
            return kind, name.removeprefix(kind)
    return "", name


def names_inside(namespace: Namespace | None, names: Iterable[str]) -> set[str]:
    """Return those of the broker's *names* that are in *namespace*, in the application's form."""
    return {inner for name in names if (inner := name_inside(namespace, name)) is not None}


def name_inside(namespace: Namespace | None, name: str) -> str | None:
    """Return the application's form of a broker's *name*, None if it is not in *namespace*."""
    if namespace is None:
        return name
    inner = namespace.inner(name)
    return None if inner == name else inner


def namespace_of(config: ClientConfig) -> Namespace | None:
    """Return the version 1 namespace of *config*, or None.

    A name server address like ``MQ_INST_<account>_<id>.<host>`` implies one.
    """
    if config.namespace is None:
        match = ENDPOINT.match(config.namesrv or "")
        return None if match is None else Namespace(match[1])
    return Namespace(config.namespace) if config.namespace_version == 1 else None


def namespace_fields(config: ClientConfig) -> dict[str, str]:
    """Return the fields that requests carry for a version 2 namespace."""
    if config.namespace is None or config.namespace_version == 1:
        return {}
    return {"nsd": "true", "ns": config.namespace}
