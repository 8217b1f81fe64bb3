"""Validation of settings and arguments; every check raises `ConfigError`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial, wraps
from types import FunctionType, MethodType, NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue

T = TypeVar("T")

MIB: Final = 1024 * 1024
MAX_SECONDS: Final = 1e9
MAX_COUNT: Final = 2**53 - 1

QUEUE_FORM: Final = "MessageQueue(topic: str, broker_name: str, queue_id: int)"
NOT_UTF8: Final = "half a surrogate pair cannot be sent: give the text it was decoded from"

GENERATOR_FLAGS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

SECRET_PARTS: Final = ("secret", "token", "password", "key")


def bounded(*, default: T, least: float | None = None, most: float | None = None) -> T:
    """Return the field of a number with other bounds than `check_settings` has by default."""
    bounds = {"least": least, "most": most}
    return field(default=default, metadata={k: v for k, v in bounds.items() if v is not None})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, bounded))
def settings(cls: type[T]) -> type[T]:
    """Make *cls* a frozen, keyword-only dataclass; an unknown setting is a `ConfigError`.

    Text becomes a plain `str`: a member of a string enum is formatted by its name.
    """
    made = dataclass(frozen=True, kw_only=True)(cls)
    known = fields(made)  # type: ignore[arg-type]  # made is a dataclass
    names = [f.name for f in known]
    confidential = not all(f.repr for f in known)
    plain: Callable[..., None] = made.__init__

    @wraps(plain)
    def build(self: T, **given: object) -> None:
        for name, value in given.items():
            if isinstance(value, str):
                given[name] = str.__str__(value)
            if name not in names:
                from difflib import get_close_matches  # imported only for a typo: it is slow

                close = get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
                # The value may be a secret, misspelt or in the wrong place.
                secret = confidential or any(part in name.lower() for part in SECRET_PARTS)
                shown = "***" if secret else value
                raise ConfigError(name, shown, f"unknown setting of {cls.__name__}; {hint}")
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


def checked_several(setting: str, values: Iterable[T]) -> Iterable[T]:
    """Return *values*; raise ConfigError if it is no iterable, or one text."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(setting, values, "expected several, as a list")
    return values


def checked_queue(queue: object) -> MessageQueue:
    """Return *queue*; raise ConfigError if it is not a valid `MessageQueue`."""
    if not is_queue(queue):
        raise ConfigError("queue", queue, f"expected a {QUEUE_FORM}")
    return queue


def is_queue(queue: object) -> TypeGuard[MessageQueue]:
    """Return whether *queue* is a `MessageQueue` with names, and a number from 0."""
    if not isinstance(queue, MessageQueue):
        return False
    topic, broker = queue.topic, queue.broker_name
    named = isinstance(topic, str) and isinstance(broker, str) and bool(topic and broker)
    return named and type(queue.queue_id) is int and queue.queue_id >= 0


def is_utf8(text: str) -> bool:
    """Return whether *text* can be sent: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_of(function: object) -> str:
    """Return the name of *function* for logs and errors, without arguments that are bound to it."""
    if isinstance(function, partial):
        return f"partial({name_of(function.func)})"
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else repr(function)


def is_async(function: Callable[..., object]) -> bool:
    """Return whether calling *function* returns a coroutine, as far as inspection can tell."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind matters, not whether it exists
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_function(
    setting: str,
    function: object,
    *arguments: str,
    may_be_async: bool = True,
    may_yield: bool = False,
) -> None:
    """Check that *function* can be called with *arguments* by position.

    :param may_be_async: what it returns is awaited
    :param may_yield: its result is iterated, so it may be a generator function
    :raises ConfigError: it cannot; the error names the arguments
    """
    if not callable(function):
        kinds = "function, plain or async" if may_be_async else "plain function"
        raise ConfigError(setting, function, f"expected a {kinds}")
    if not may_be_async and is_async(function):
        raise ConfigError(setting, name_of(function), "expected a plain function, not an async one")
    if _takes(function, len(arguments)):
        return
    if not may_yield and _yields(function):
        reason = "a call of a generator function runs none of it: use no yield"
        raise ConfigError(setting, name_of(function), reason)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # some builtins have no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        # Without defaults: those of a partial are arguments, which may be secret.
        bare = [each.replace(default=each.empty) for each in signature.parameters.values()]
        takes = signature.replace(parameters=bare)
        reason = f"it is called with ({', '.join(arguments)}), and takes {takes}: {error}"
        raise ConfigError(setting, name_of(function), reason) from error


def _yields(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind matters
    kinds = inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return any(is_kind(each) for is_kind in kinds for each in (function, call))


def _takes(function: object, count: int) -> bool:
    """Whether *function* certainly takes *count* arguments by position.

    Checks only plain functions and methods, in a tenth of the time of a signature:
    `send_in_transaction` checks the function of each call.
    """
    if isinstance(function, MethodType):
        function, count = function.__func__, count + 1
    if not isinstance(function, FunctionType) or function.__dict__:  # may name what it wraps
        return False
    code = function.__code__
    if code.co_flags & GENERATOR_FLAGS:
        return False
    least = code.co_argcount - len(function.__defaults__ or ())
    return not code.co_kwonlyargcount and least <= count <= code.co_argcount


def check_hook(
    hook: object,
    kinds: Any,  # noqa: ANN401 - types
    methods: Iterable[str],
    *,
    setting: str = "hooks",
) -> None:
    """Raise ConfigError if *hook* is not one of *kinds*, or a method of it is a coroutine."""
    if isinstance(hook, type) or not isinstance(hook, kinds):
        names = ", ".join(f"{name}()" for name in methods)
        raise ConfigError(setting, hook, f"expected objects with some of {names}")
    for name in methods:
        if inspect.iscoroutinefunction(getattr(hook, name, None)):
            raise ConfigError(setting, hook, f"{name}() is not to be async: it is never awaited")


_PACKAGE: Final = __name__.partition(".")[0] + "."


def check_settings(config: object) -> None:
    """Check the settings of *config* that have a simple type, None included where allowed.

    `bool`: True or False.  `int`: a whole number from 1.  `float`: seconds above 0.  `Literal`: one
    of its values.  Other bounds are those given to `bounded`.
    """
    simple = _simple_settings(type(config))  # type: ignore[arg-type]  # a type is hashable
    for name, (kind, is_optional, bounds) in simple.items():
        value = getattr(config, name)
        if value is None and is_optional:
            continue
        if kind is int:
            checked_count(name, value, **bounds)
        elif kind is float:
            checked_seconds(name, value, **bounds)
        elif kind is bool:
            if type(value) is not bool:
                raise ConfigError(name, value, "expected True or False")
        elif not is_one_of(value, choices := get_args(kind)):
            shown = ", ".join(map(repr, (*choices, None) if is_optional else choices))
            raise ConfigError(name, value, f"expected one of {shown}")


def is_one_of(value: object, choices: tuple[object, ...]) -> bool:
    """Return whether *value* is one of *choices*; numbers of other types are not, though equal."""
    return isinstance(value, str | int) and not isinstance(value, bool) and value in choices


@cache
def _simple_settings(cls: type[Any]) -> Mapping[str, tuple[Any, bool, Mapping[str, Any]]]:
    """Return type, whether None is allowed, and bounds of settings that `check_settings` checks.

    Settings that a subclass of another package adds are not among them.
    """
    found: dict[str, tuple[Any, bool, Mapping[str, Any]]] = {}
    own = next(each for each in cls.__mro__ if each.__module__.startswith(_PACKAGE))
    hints = get_type_hints(own)
    for each in fields(own):
        is_union = get_origin(hints[each.name]) in (Union, UnionType)
        kind, *others = get_args(hints[each.name]) if is_union else (hints[each.name],)
        is_simple = kind in (bool, int, float) or get_origin(kind) is Literal
        if is_simple and others in ([], [NoneType]):
            found[each.name] = kind, bool(others), each.metadata
    return found


def bool_from(setting: str, text: str) -> bool:
    """Return the boolean that *text* means."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ConfigError(setting, text, "expected true or false")
