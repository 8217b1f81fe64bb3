"""Settings of topics: validation, and conversion to and from requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, TypedDict

import msgspec

from rocketmq_aio.admin.results import PERMISSIONS, TopicConfig, perm_bits, perm_text
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.instance.routes import TEMPLATE_TOPIC
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.protocol.bodies import MAX_QUEUES
from rocketmq_aio.protocol.requests.admin import CreateTopic, TopicConfigBody

DEFAULT_QUEUES: Final = 8
FORBIDDEN_IN_ATTRIBUTES: Final = frozenset(",=+ ")
Perm: TypeAlias = Literal["RW", "R", "W", "RWX", "RX", "WX"]


class TopicSettings(TypedDict, total=False):
    """Settings of a topic.

    ``queues`` sets both ``read_queues`` (used by consumers) and ``write_queues`` (used by
    producers).  ``perm`` is ``"RW"``, ``"R"`` or ``"W"``.  With ``order`` name servers store the
    number of queues by broker, so that keys stay on their queues while a broker is down.
    ``attributes`` need 5.x brokers: ``{"message.type": "FIFO"}``; None removes one.
    """

    queues: int
    read_queues: int
    write_queues: int
    perm: Perm
    order: bool
    attributes: Mapping[str, str | None]


def checked(settings: TopicSettings) -> TopicSettings:
    """Return *settings* with ``queues`` replaced; ConfigError if a setting is invalid."""
    for name, value in settings.items():
        if name not in TopicSettings.__annotations__:
            known = ", ".join(TopicSettings.__annotations__)
            raise ConfigError(name, value, f"a topic has no such setting: expected one of {known}")
        if name.endswith("queues"):
            checked_count(name, value, most=MAX_QUEUES)
    for name, text in settings.get("attributes", {}).items():
        _check_attribute(name, text)
    rest = settings.copy()
    if (queues := rest.pop("queues", None)) is not None:
        return {"read_queues": queues, "write_queues": queues, **rest}
    return rest


def check_given(settings: Mapping[str, object]) -> None:
    """Raise ConfigError if there is no setting to change."""
    if not settings:
        raise ConfigError("settings", None, "nothing to change: give one or more")


def check_config(config: TopicConfig) -> None:
    """Raise ConfigError for settings that brokers may store, but that make the topic unusable.

    A topic may be without queues or permissions, and then is exported so.
    """
    check_topic(config.topic)
    for name in ("read_queues", "write_queues"):
        if not 0 <= (count := getattr(config, name)) <= MAX_QUEUES:
            raise ConfigError(name, count, f"expected 0 to {MAX_QUEUES} in topic {config.topic}")
    if not set(config.perm) <= {letter for letter, _ in PERMISSIONS}:
        reason = f"expected the letters R, W and X in topic {config.topic}"
        raise ConfigError("perm", config.perm, reason)


def changed(config: TopicConfig, settings: TopicSettings) -> TopicConfig:
    """Return *config* with *settings* changed."""
    attributes = {**config.attributes, **settings.get("attributes", {})}
    kept = {name: text for name, text in attributes.items() if text is not None}
    others = {name: value for name, value in settings.items() if name != "attributes"}
    return msgspec.structs.replace(config, attributes=kept, **others)


def new_topic(topic: str, broker_name: str, settings: TopicSettings) -> TopicConfig:
    """Return the settings of a new topic."""
    bare = TopicConfig(
        topic=topic,
        broker_name=broker_name,
        read_queues=settings.get("write_queues", DEFAULT_QUEUES),
        write_queues=settings.get("read_queues", DEFAULT_QUEUES),
    )
    return changed(bare, settings)


def config_of(broker_name: str, topic: str, body: TopicConfigBody) -> TopicConfig:
    """Return the settings in *body*."""
    return TopicConfig(
        topic=topic,
        broker_name=broker_name,
        read_queues=body.read_queue_nums,
        write_queues=body.write_queue_nums,
        perm=perm_text(body.perm),
        order=body.order,
        attributes=body.attributes or {},
        sys_flag=body.topic_sys_flag,
    )


def to_request(config: TopicConfig, attributes: Mapping[str, str | None]) -> CreateTopic:
    """Return the request that creates or changes a topic, with changes of *attributes*."""
    signed = [f"-{n}" if text is None else f"+{n}={text}" for n, text in attributes.items()]
    return CreateTopic(
        topic=config.topic,
        default_topic=TEMPLATE_TOPIC,
        read_queue_nums=config.read_queues,
        write_queue_nums=config.write_queues,
        perm=perm_bits(config.perm),
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=config.sys_flag,
        order=config.order,
        attributes=",".join(signed) or None,
    )


def _check_attribute(name: str, text: str | None) -> None:
    for word in (name, "-" if text is None else text):
        if not word or set(word) & FORBIDDEN_IN_ATTRIBUTES:
            raise ConfigError("attributes", {name: text}, "expected words without , = + and spaces")
