"""Settings from ``ROCKETMQ_*`` environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from rocketmq_aio.errors import ConfigError


def bool_from(variable: str, text: str) -> bool:
    """Parse the boolean *text* of *variable*.

    :raises ConfigError: it is not a boolean
    """
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ConfigError(variable, text, "expected true or false")


def numbers_from(cls: type[Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the numeric settings of *cls*, and the header encoding, that *env* sets.

    :raises ConfigError: one is not a number
    """
    found: dict[str, Any] = {}
    for each in fields(cls):
        text = env.get(f"ROCKETMQ_{each.name.upper()}")
        if not text or each.default is MISSING or isinstance(each.default, bool):
            continue
        if isinstance(each.default, int | float):
            try:
                found[each.name] = type(each.default)(text)
            except ValueError:
                variable = f"ROCKETMQ_{each.name.upper()}"
                raise ConfigError(variable, text, "expected a number") from None
        elif each.name == "header_encoding":
            found[each.name] = text
    return found
