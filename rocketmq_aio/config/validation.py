"""How settings are declared, and what refuses a wrong one before anything is connected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import wraps
from importlib import import_module
from typing import Final, TypeVar, dataclass_transform

from rocketmq_aio.errors import ConfigError, missing_extra
from rocketmq_aio.model.names import check_topic

T = TypeVar("T")

MIB: Final = 1024 * 1024

SECRET_PARTS: Final = ("secret", "token", "password", "key")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def settings(cls: type[T]) -> type[T]:
    """Make *cls* a frozen, keyword-only dataclass that names the setting it does not know."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    known = fields(made)  # type: ignore[arg-type]  # made is a dataclass
    names = [f.name for f in known]
    confidential = not all(f.repr for f in known)
    plain: Callable[..., None] = made.__init__

    @wraps(plain)
    def build(self: T, **given: object) -> None:
        for name in given:
            if name not in names:
                from difflib import get_close_matches  # only for a typo: it takes time to load

                close = get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
                # It may be a secret, misspelt or in the wrong place.
                secret = confidential or any(part in name.lower() for part in SECRET_PARTS)
                value = "***" if secret else given[name]
                raise ConfigError(name, value, f"unknown setting of {cls.__name__}; {hint}")
        plain(self, **given)

    setattr(made, "__init__", build)  # noqa: B010 - mypy refuses the plain assignment
    return made


def check_seconds(config: object, *names: str, zero: bool = False) -> None:
    """Refuse what is not a number of seconds above 0, or 0 itself where *zero* is allowed."""
    for name in names:
        value = getattr(config, name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0 <= value < 10**9 or not (value or zero):
            bound = "0 or more" if zero else "above 0"
            reason = f"expected a number of seconds {bound} and below 1e9"
            raise ConfigError(name, value, reason)


def check_invisible(config: object, name: str) -> None:
    """Refuse an invisible time that the Java client refuses too."""
    value = getattr(config, name)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 5 <= value <= 300:
        raise ConfigError(name, value, "expected 5 to 300 seconds")


def check_count(config: object, *names: str, least: int = 1) -> None:
    """Refuse what is not a whole number of at least *least*."""
    for name in names:
        value = getattr(config, name)
        if type(value) is not int or not least <= value < 2**53:
            raise ConfigError(name, value, f"expected a whole number, at least {least}")


def check_most(config: object, name: str, most: float) -> None:
    """Refuse more than *most*."""
    value = getattr(config, name)
    if value > most:
        raise ConfigError(name, value, f"expected at most {most}")


def check_choice(config: object, name: str, choices: tuple[object, ...]) -> None:
    """Refuse what is not one of *choices*."""
    value = getattr(config, name)
    if not any(value is choice or value == choice for choice in choices):
        raise ConfigError(name, value, f"expected one of {', '.join(map(repr, choices))}")


def check_bool(config: object, *names: str) -> None:
    """Refuse what is not True or False."""
    for name in names:
        value = getattr(config, name)
        if type(value) is not bool:
            raise ConfigError(name, value, "expected True or False")


def check_installed(config: object, name: str, libraries: Mapping[str, str]) -> None:
    """Refuse what needs a library, by value, that is not there; an extra of the setting's name."""
    value = getattr(config, name)
    if value in libraries:
        try:
            import_module(libraries[value])
        except ImportError as error:
            raise ConfigError(name, value, missing_extra(name)) from error


def check_instance(config: object, name: str, kind: type) -> None:
    """Refuse what is neither None nor of *kind*."""
    value = getattr(config, name)
    if value is not None and not isinstance(value, kind):
        raise ConfigError(name, value, f"expected {kind.__name__}(...) or None")


def check_allocate(choice: object) -> None:
    """Refuse what shares no queues out."""
    if isinstance(choice, Mapping):
        for topic, strategy in choice.items():
            check_topic(topic, setting="allocate")
            if not callable(strategy):
                raise ConfigError("allocate", strategy, f"expected a callable for {topic!r}")
    elif choice is not None and not callable(choice):
        raise ConfigError("allocate", choice, "expected a callable, or a mapping of topic to such")


def check_start_from(start: object) -> None:
    """Refuse what names no position."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError("start_from", start, "the datetime needs a time zone")
    elif start not in ("latest", "earliest"):
        raise ConfigError("start_from", start, 'expected "latest", "earliest" or a datetime')
