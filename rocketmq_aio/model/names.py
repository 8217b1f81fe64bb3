"""Names of topics and groups: validation and reserved names.

The limits are the broker's; names are validated before any connection is opened.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from rocketmq_aio.model.errors import ConfigError, repr_of

MAX_TOPIC: Final = 127
MAX_GROUP: Final = 255
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"  # of light message queues, which only brokers know
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"  # of a topic, after the name of the cluster
NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
NAMESPACE: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME_RULE: Final = "only letters, digits and the characters % | _ - are allowed"
DEFAULT_GROUPS: Final = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})

UNSENDABLE_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_wheel_timer",  # a foreign message ends the delays and pop retries of the broker
    }
)
# Names that brokers reserve; they are the same in all namespaces.
SYSTEM_NAMES: Final = UNSENDABLE_TOPICS | {"TBW102", "BenchmarkTest", "CLIENT_INNER_PRODUCER"}
SYSTEM_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_", "CID_RMQ_SYS_")
INTERNAL_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, "%SYS%", *SYSTEM_PREFIXES)


def popped_topic_pattern(group: str) -> str:
    """Return a regular expression whose group 1 is the topic in a retry topic of popped messages.

    Brokers from 5.0 store a popped message that is redelivered in ``%RETRY%<group>_<topic>``, or
    with ``+``; with a namespace of version 1 it is before both names.
    """
    return rf"^{RETRY_PREFIX}(?:[^%]+%)?{re.escape(group)}[_+](.+)$"


def topic_fault(topic: object) -> str | None:
    """Return why *topic* is invalid, or None."""
    # Retry and dead-letter topics contain the name of the group.
    of_group = isinstance(topic, str) and topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _name_fault("topic", topic, len(RETRY_PREFIX) + MAX_GROUP if of_group else MAX_TOPIC)


def send_fault(topic: object) -> str | None:
    """Return why nothing can be sent to *topic*, or None."""
    if (fault := topic_fault(topic)) is not None:
        return fault
    assert isinstance(topic, str)
    if topic in UNSENDABLE_TOPICS:
        return "this topic is reserved by the broker"
    if topic.startswith(LMQ_PREFIX):
        reason = "what is sent to a light message queue itself hides other messages there: send to "
        return f"{reason}a topic, with properties={{'INNER_MULTI_DISPATCH': {repr_of(topic)}}}"
    return None


def _name_fault(kind: str, name: object, longest: int) -> str | None:
    if not isinstance(name, str) or not name.strip():
        return f"a {kind} is text that is not blank, not {repr_of(name)}"
    if len(name) > longest:
        return f"{len(name)} characters, at most {longest} are allowed"
    return None if NAME.fullmatch(name) else NAME_RULE


def check_topic(topic: str, *, setting: str = "topic") -> str:
    """Return *topic* as plain text; raise ConfigError if it is invalid.

    A member of a string enum is formatted by its name.
    """
    if (fault := topic_fault(topic)) is not None:
        raise ConfigError(setting, topic, fault)
    return str.__str__(topic)


def is_internal_topic(topic: str, servers: Container[str] = ()) -> bool:
    """Whether *topic* belongs to the brokers or to a group: retry and dead-letter topics.

    :param servers: names of brokers and clusters, which have topics of these names, and for replies
    """
    if topic in SYSTEM_NAMES or topic.removesuffix(REPLY_TOPIC_SUFFIX) in servers:
        return True
    return topic.startswith(INTERNAL_PREFIXES)


def check_group(group: str) -> str:
    """Return *group* as plain text, as `check_topic`; raise ConfigError if it is invalid."""
    fault = _name_fault("group", group, MAX_GROUP)
    if fault is None and group in DEFAULT_GROUPS:
        fault = "this name is reserved; choose one for your application"
    if fault is not None:
        raise ConfigError("group", group, fault)
    return str.__str__(group)


def check_client_id_part(config: object, *names: str) -> None:
    """Check that settings are None or valid parts of a client id.

    :raises ConfigError: one is not
    """
    for name in names:
        part = getattr(config, name)
        good = isinstance(part, str) and part and part.isprintable() and "@" not in part
        if part is not None and not good:
            raise ConfigError(name, part, "expected printable text without @")


def check_namespace(namespace: object) -> None:
    """Check that *namespace* is a valid namespace.

    :raises ConfigError: it is not
    """
    if not isinstance(namespace, str) or not NAMESPACE.fullmatch(namespace):
        reason = "expected 1 to 64 letters, digits and the characters _ -"
        raise ConfigError("namespace", namespace, reason)
