"""Namespaces: names as the application uses them, and as brokers know them.

Nothing else of the client knows of namespaces.  Names are changed where a request is encoded and
where an answer is read.  Of version 1 the namespace is part of every name, ``<namespace>%<name>``,
and after the prefix of a group's own topics: ``%RETRY%<namespace>%<group>``.  Of version 2 names
stay, and every request says which namespace it is about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import DLQ_PREFIX, REPLY_TOPIC_SUFFIX, RETRY_PREFIX, UNSENDABLE_TOPICS
from rocketmq_aio.model.properties import RETRY_TOPIC
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.compression import MAX_INFLATED
from rocketmq_aio.protocol.receipt import RETRY_JOINTS
from rocketmq_aio.protocol.record import decode_messages

# Names that belong to the brokers, and are the same in all namespaces.
SHARED_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_", "CID_RMQ_SYS_")
SHARED_NAMES: Final = UNSENDABLE_TOPICS | {"TBW102", "BenchmarkTest", "CLIENT_INNER_PRODUCER"}

NAME_FIELDS: Final = (
    *("topic", "consumerGroup", "producerGroup", "group", "originTopic"),
    "groupName",
)
SEND_FIELDS: Final = ("a", "b", "c")  # group, topic and template topic of a send
PROPERTIES_FIELD: Final = "i"
SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
POP_ACKS: Final = frozenset({RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME})
# Requests and answers whose JSON bodies hold names; those of both directions.
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
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    }
)
# A quote inside a JSON string is escaped, so this cannot begin in the middle of one.
_NAMED: Final = re.compile(rb'("(?:topic|consumerGroup|groupName|group|c|t)":")([^"\\]+)"')
_NAME_PROPERTIES: Final = ("PGROUP", "REAL_TOPIC", RETRY_TOPIC)
_PROPERTY: Final = rf"(?<![^\x02])({'|'.join(_NAME_PROPERTIES)})\x01"
_NAMED_PROPERTY: Final = re.compile(_PROPERTY + r"([^\x02]+)")
INSTANCE_ID: Final = "INSTANCE_ID"  # by which Java clients mark messages of a namespace
ENDPOINT: Final = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\.")


class Namespace:
    """The names of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._prefix = prefix = f"{name}%"
        own = re.escape(prefix)
        self._inside_json = re.compile(rf'"({RETRY_PREFIX}|{DLQ_PREFIX}|){own}([^"\\]+)"'.encode())
        self._inside_property = re.compile((_PROPERTY + own).encode())
        self.outer: Callable[[str], str] = lru_cache(4096)(self._outer)

    def _outer(self, name: str) -> str:
        """Return *name* as brokers know it; one that is in the namespace already stays."""
        kind, rest = _split(name)
        if not rest or rest.startswith((self._prefix, *SHARED_PREFIXES)) or rest in SHARED_NAMES:
            return name
        if rest.endswith(REPLY_TOPIC_SUFFIX):
            return name
        return f"{kind}{self._prefix}{rest}"

    def inner(self, name: str) -> str:
        """Return a broker's *name* as the application uses it."""
        kind, rest = _split(name)
        return kind + rest.removeprefix(self._prefix)

    # --- what is sent ---------------------------------------------------------------------------

    def request(self, code: int, ext: MutableMapping[str, str], body: bytes) -> bytes:
        """Change the names in the fields *ext* of a request, and return *body* with its changed."""
        stored = self._stored_topic(ext) if code in POP_ACKS else None
        for field in SEND_FIELDS if code in SENDS else NAME_FIELDS:
            if field in ext:
                ext[field] = self.outer(ext[field])
        if stored is not None:
            ext["topic"] = stored
        if code in SENDS:
            ext[PROPERTIES_FIELD] = self._outer_properties(ext.get(PROPERTIES_FIELD, ""))
        return self.outer_json(code, body)

    def outer_json(self, code: int, body: bytes) -> bytes:
        """Return *body*, of a request or of our own answer, with names as brokers know them."""
        if code not in JSON_BODIES:
            return body
        return _NAMED.sub(lambda m: b'%b%b"' % (m[1], self.outer(m[2].decode()).encode()), body)

    def _stored_topic(self, ext: MutableMapping[str, str]) -> str | None:
        """Return the retry topic of one topic (5.x), whose name has both group and topic in it."""
        group, topic = ext["consumerGroup"], ext["topic"]
        for joint in RETRY_JOINTS.values():
            start = f"{RETRY_PREFIX}{group}{joint}"
            if topic.startswith(start):
                of = self.outer(topic.removeprefix(start))
                return f"{RETRY_PREFIX}{self.outer(group)}{joint}{of}"
        return None

    def _outer_properties(self, properties: str) -> str:
        changed = _NAMED_PROPERTY.sub(lambda m: f"{m[1]}\x01{self.outer(m[2])}", properties)
        if f"{INSTANCE_ID}\x01" in changed:  # of a message that is sent on
            return changed
        return f"{changed}{INSTANCE_ID}\x01{self.name}\x02"

    # --- what is received -----------------------------------------------------------------------

    def answer(self, code: int, command: Command) -> None:
        """Change the names in the answer to request *code*."""
        if code in JSON_BODIES:
            command.body = self._inside_json.sub(rb'"\1\2"', command.body)

    def asked(self, command: Command) -> None:
        """Change the names in a request of a broker."""
        ext = command.ext_fields()
        command.ext = {k: self.inner(v) if k in NAME_FIELDS else v for k, v in ext.items()}
        self.answer(command.code, command)

    def decode(
        self, body: bytes, queue: MessageQueue, *, limit: int = MAX_INFLATED
    ) -> tuple[list[MessageExt], CodecError | None]:
        """Return what `decode_messages` does, with the application's names."""
        stored = MessageQueue(self.outer(queue.topic), queue.broker_name, queue.queue_id)
        messages, fault = decode_messages(body, stored, limit=limit)
        for message in messages:
            self._rename(message, queue)
        return messages, fault

    def received(self, message: MessageExt) -> None:
        """Change the names in *message*, which came by itself."""
        queue = message.queue
        inner = MessageQueue(self.inner(queue.topic), queue.broker_name, queue.queue_id)
        self._rename(message, inner)

    def _rename(self, message: MessageExt, queue: MessageQueue) -> None:
        message.topic, message.queue = queue.topic, queue
        message.raw_properties = self._inside_property.sub(b"\\1\x01", message.raw_properties)


def _split(name: str) -> tuple[str, str]:
    """Return the prefix that marks a group's own topic, if *name* has one, and the rest."""
    for kind in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(kind):
            return kind, name.removeprefix(kind)
    return "", name


def namespace_of(config: ClientConfig) -> Namespace | None:
    """Return the namespace whose names have to be changed; None: names are as brokers know them.

    The address of a name server like ``MQ_INST_<account>_<id>.<host>`` tells one, too.
    """
    if config.namespace is None:
        match = ENDPOINT.match(config.namesrv or "")
        return None if match is None else Namespace(match[1])
    return Namespace(config.namespace) if config.namespace_version == 1 else None


def namespace_fields(config: ClientConfig) -> dict[str, str]:
    """Return the fields by which a request says what namespace of version 2 it is about."""
    if config.namespace is None or config.namespace_version == 1:
        return {}
    return {"nsd": "true", "ns": config.namespace}
