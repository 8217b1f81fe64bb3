"""Validation of settings and arguments; every check raises `ConfigError`."""

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
MAX_SECONDS: Final = 1e9
MAX_COUNT: Final = 2**53 - 1

SECRET_PARTS: Final = ("secret", "token", "password", "key")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def settings(cls: type[T]) -> type[T]:
    """Make *cls* a frozen, keyword-only dataclass; an unknown setting is a `ConfigError`."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    known = fields(made)  # type: ignore[arg-type]  # made is a dataclass
    names = [f.name for f in known]
    confidential = not all(f.repr for f in known)
    plain: Callable[..., None] = made.__init__

    @wraps(plain)
    def build(self: T, **given: object) -> None:
        for name in given:
            if name not in names:
                from difflib import get_close_matches  # imported only for a typo: it is slow

                close = get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
                # The value may be a secret, misspelt or in the wrong place.
                secret = confidential or any(part in name.lower() for part in SECRET_PARTS)
                value = "***" if secret else given[name]
                raise ConfigError(name, value, f"unknown setting of {cls.__name__}; {hint}")
        plain(self, **given)

    setattr(made, "__init__", build)  # noqa: B010 - mypy refuses the plain assignment
    return made


def checked_seconds(
    setting: str, value: object, *, least: float | None = None, most: float | None = None
) -> float:
    """Return *value*, a number of seconds.

    :param least: the smallest allowed; None: above 0
    :param most: the largest allowed; None: below 1e9
    :raises ConfigError: it is not a number, or outside these bounds
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = value > 0 if least is None else value >= least
        if above and (value < MAX_SECONDS if most is None else value <= most):
            return value
    bound = "above 0" if least is None else f"at least {least:g}"
    bound += " and below 1e9" if most is None else f" and at most {most:g}"
    raise ConfigError(setting, value, f"expected a number of seconds {bound}")


def checked_count(setting: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Return *value*, a whole number.

    :param most: the largest allowed; None: below 2**53
    :raises ConfigError: it is not a whole number, or outside these bounds
    """
    if type(value) is int and least <= value <= (MAX_COUNT if most is None else most):
        return value
    bound = f", at least {least}" if most is None else f" from {least} to {most}"
    raise ConfigError(setting, value, f"expected a whole number{bound}")


def check_seconds(
    config: object, *names: str, least: float | None = None, most: float | None = None
) -> None:
    """Check settings of *config* with `checked_seconds`."""
    for name in names:
        checked_seconds(name, getattr(config, name), least=least, most=most)


def check_count(config: object, *names: str, least: int = 1, most: int | None = None) -> None:
    """Check settings of *config* with `checked_count`."""
    for name in names:
        checked_count(name, getattr(config, name), least=least, most=most)


def check_choice(config: object, name: str, choices: tuple[object, ...]) -> None:
    """Check that a setting is one of *choices*."""
    value = getattr(config, name)
    if not any(value is choice or value == choice for choice in choices):
        raise ConfigError(name, value, f"expected one of {', '.join(map(repr, choices))}")


def check_bool(config: object, *names: str) -> None:
    """Check that settings are True or False."""
    for name in names:
        value = getattr(config, name)
        if type(value) is not bool:
            raise ConfigError(name, value, "expected True or False")


def check_installed(config: object, name: str, libraries: Mapping[str, str]) -> None:
    """Check that the library of a value is installed; the setting has the name of its extra."""
    value = getattr(config, name)
    if value in libraries:
        try:
            import_module(libraries[value])
        except ImportError as error:
            raise ConfigError(name, value, missing_extra(name)) from error


def check_instance(config: object, name: str, kind: type) -> None:
    """Check that a setting is None or an instance of *kind*."""
    value = getattr(config, name)
    if value is not None and not isinstance(value, kind):
        raise ConfigError(name, value, f"expected {kind.__name__}(...) or None")


def check_allocate(choice: object) -> None:
    """Check the allocation strategies in ``allocate``."""
    if isinstance(choice, Mapping):
        for topic, strategy in choice.items():
            check_topic(topic, setting="allocate")
            if not callable(strategy):
                raise ConfigError("allocate", strategy, f"expected a callable for {topic!r}")
    elif choice is not None and not callable(choice):
        raise ConfigError("allocate", choice, "expected a callable, or a mapping of topic to such")


def check_start_from(start: object) -> None:
    """Check ``start_from``."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError("start_from", start, "the datetime needs a time zone")
    elif start not in ("latest", "earliest"):
        raise ConfigError("start_from", start, 'expected "latest", "earliest" or a datetime')
