"""Settings of consumer groups: validation, and conversion to and from JSON bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict, cast

import msgspec

from rocketmq_aio.admin.results import GroupConfig
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.names import check_group
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import SubscriptionGroupBody

MAX_INT: Final = 2**31 - 1


class GroupSettings(TypedDict, total=False):
    """Settings of a consumer group; `GroupConfig` describes them.

    ``orderly``, ``consume_timeout_minutes`` and ``attributes`` need 5.x brokers.
    """

    enabled: bool
    broadcast_enabled: bool
    from_min_enabled: bool
    orderly: bool
    retry_queues: int
    max_retries: int
    consume_timeout_minutes: int
    notify_members: bool
    attributes: Mapping[str, str | None]


WIRE_NAMES: Final = {
    "enabled": "consumeEnable",
    "broadcast_enabled": "consumeBroadcastEnable",
    "from_min_enabled": "consumeFromMinEnable",
    "orderly": "consumeMessageOrderly",
    "retry_queues": "retryQueueNums",
    "max_retries": "retryMaxTimes",
    "consume_timeout_minutes": "consumeTimeoutMinute",
    "notify_members": "notifyConsumerIdsChangedEnable",
    "attributes": "attributes",
}
COUNTS: Final = frozenset({"retry_queues", "max_retries", "consume_timeout_minutes"})
OTHERS: Final[dict[str, object]] = {  # defaults of `GroupConfig.others`
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "subscriptionDataSet": None,
}
SINCE_5: Final = frozenset(
    {
        *("orderly", "consume_timeout_minutes", "attributes"),
        *("groupRetryPolicy", "groupSysFlag", "subscriptionDataSet"),
    }
)


def check_settings(settings: GroupSettings) -> None:
    """Raise ConfigError if a setting is unknown, or its value invalid."""
    for name, value in settings.items():
        if name not in WIRE_NAMES:
            known = ", ".join(WIRE_NAMES)
            raise ConfigError(name, value, f"a group has no such setting: expected one of {known}")
        if name in COUNTS:
            checked_count(name, value, least=0, most=MAX_INT)


def check_config(config: GroupConfig) -> None:
    """Raise ConfigError if the name of the group or of one of its others is invalid."""
    check_group(config.group)
    if unknown := sorted(config.others.keys() - OTHERS.keys()):
        raise ConfigError("others", unknown[0], f"expected some of {sorted(OTHERS)}")


def changed_body(body: Mapping[str, Any], settings: GroupSettings) -> dict[str, Any]:
    """Return the JSON *body* of a group with *settings* changed, and all other fields kept."""
    result = {**body, **{WIRE_NAMES[name]: value for name, value in settings.items()}}
    result.pop("attributes", None)
    if "attributes" in settings:  # with the signs that topic attributes have
        named = settings["attributes"].items()
        result["attributes"] = {f"{'-' if v is None else '+'}{n}": v or "" for n, v in named}
    return result


def new_body(group: str, settings: GroupSettings) -> dict[str, Any]:
    """Return the JSON body of a new group, with the fields that all releases support."""
    body = msgspec.to_builtins(SubscriptionGroupBody(group_name=group))
    newer = {wire for name, wire in WIRE_NAMES.items() if name in SINCE_5}
    known = {name: value for name, value in body.items() if name not in newer}
    return changed_body(known, settings)


def config_of(broker_name: str, group: str, body: Mapping[str, Any]) -> GroupConfig:
    """Return the settings in the JSON *body* of a group; CodecError if it is invalid."""
    read = msgspec.to_builtins(read_body(msgspec.json.encode(body), SubscriptionGroupBody))
    settings = {name: read[wire] for name, wire in WIRE_NAMES.items()}
    settings["attributes"] = settings["attributes"] or {}
    others = {n: body[n] for n, default in OTHERS.items() if body.get(n) not in (None, default)}
    return GroupConfig(group=group, broker_name=broker_name, others=others, **settings)


def differs(config: GroupConfig, settings: GroupSettings) -> bool:
    """Whether *settings* would change *config*."""
    attributes = settings.get("attributes", {}).items()
    others = [(name, value) for name, value in settings.items() if name != "attributes"]
    return any(config.attributes.get(name) != value for name, value in attributes) or any(
        getattr(config, name) != value for name, value in others
    )


def settings_of(config: GroupConfig, *, old: bool) -> GroupSettings:
    """Return all settings of *config*; for *old* brokers without defaults of newer ones."""
    defaults = {"orderly": False, "consume_timeout_minutes": 15, "attributes": {}}
    settings = {name: getattr(config, name) for name in WIRE_NAMES}
    kept = {n: v for n, v in settings.items() if not old or n not in SINCE_5 or v != defaults[n]}
    return cast("GroupSettings", kept)


def other_settings(config: GroupConfig, held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that give the JSON body *held* the others of *config*."""
    return {n: config.others.get(n, OTHERS[n]) for n in OTHERS if n in config.others or n in held}
