"""Validation of arguments by the annotations of their parameters; raises `ConfigError`.

For calls that are not made per message: administration, the embedded cluster, helpers of tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache, wraps
from math import isfinite
from types import FunctionType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from rocketmq_aio.config.validation import NOT_UTF8, QUEUE_FORM, is_one_of, is_queue, is_utf8
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound=Callable[..., Any])

MAX_LONG: Final = 2**63 - 1
HIDDEN: Final = ("password", "secret", "token")  # in names of parameters whose values are not shown


def checked_arguments(target: C) -> C:
    """Make a function, or the constructor and the public methods of a class, check their arguments.

    `str`: not blank, and can be encoded; an empty default may be given, too.  `int`: from 0 to
    2**63 - 1.  `float`: finite, from 0.  `bool`, `bytes`, `Literal`, collections, mappings, classes
    and unions of these: as they say.  An ``Iterable[str]`` takes one text as one name.  Subclasses
    of `str` become plain text: a member of a string enum is formatted by its name.
    """
    if not isinstance(target, type):
        return _checking(target)
    for name, member in list(vars(target).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and isinstance(member, FunctionType):
            setattr(target, name, _checking(member))
    return cast("C", target)


def check_fields(config: DataclassInstance, *, blank: bool = True) -> None:
    """Check the types of the fields of a frozen dataclass; a list becomes a tuple.

    Values of fields that are not in the repr are not shown.

    :param blank: text may be blank
    :raises ConfigError: a field has another type than its annotation says
    """
    kinds = _annotations(type(config))
    for field in fields(config):
        value, kind = getattr(config, field.name), kinds[field.name]
        is_tuple = get_origin(kind) is tuple
        if is_tuple and isinstance(value, list | set | frozenset):
            value = tuple(value)
        taken = checked_argument(field.name, value, kind, blank=blank, hidden=not field.repr)
        object.__setattr__(config, field.name, tuple(taken) if is_tuple else taken)


def checked_argument(
    setting: str, value: object, kind: object, *, blank: bool = False, hidden: bool = False
) -> Any:  # noqa: ANN401 - one of *kind*
    """Return *value* as one of *kind*, see `checked_arguments`.

    :param blank: text may be blank
    :param hidden: the error does not show the value
    :raises ConfigError: it is not
    """
    try:
        return _taken(kind, value, blank=blank)
    except _MisfitError:
        hidden = hidden or any(word in setting.lower() for word in HIDDEN)
        shown = "***" if hidden else value
        reason = f"expected {_described(kind)}"
        if isinstance(value, str) and value.strip() and not is_utf8(value):
            reason = NOT_UTF8
        raise ConfigError(setting, shown, reason) from None


class _MisfitError(Exception):
    pass


def _checking(function: C) -> C:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def check_and_await(*args: object, **kwargs: object) -> object:
            args, kwargs = _checked(function, args, kwargs)
            return await function(*args, **kwargs)

        return cast("C", check_and_await)

    @wraps(function)
    def check_and_call(*args: object, **kwargs: object) -> object:
        args, kwargs = _checked(function, args, kwargs)
        return function(*args, **kwargs)

    return cast("C", check_and_call)


def _checked(
    function: Callable[..., Any], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    signature, kinds = _parameters(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return args, dict(kwargs)  # the call raises it, with the words of Python
    for name, value in bound.arguments.items():
        parameter, kind = signature.parameters[name], kinds.get(name)
        if parameter.kind is parameter.VAR_KEYWORD:
            known = kind if isinstance(kind, Mapping) else {}
            bound.arguments[name] = {
                each: checked_argument(each, given, known[each]) if each in known else given
                for each, given in value.items()
            }
        elif parameter.kind is parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(checked_argument(name, each, kind) for each in value)
        elif name in kinds:
            if isinstance(value, str) and value == "" == parameter.default:
                continue
            bound.arguments[name] = checked_argument(name, value, kind)
    return bound.args, bound.kwargs


_annotations = cache(get_type_hints)


@cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, object]]:
    """Return the signature and the kinds of the parameters; of ``**settings`` a mapping of them."""
    kinds = get_type_hints(function)
    kinds.pop("return", None)
    for name, kind in kinds.items():
        if get_origin(kind) is Unpack:
            kinds[name] = get_type_hints(get_args(kind)[0])
    return inspect.signature(function), kinds


def _taken(kind: Any, value: Any, *, blank: bool = False) -> object:  # noqa: ANN401 - both are any
    """Return *value* as one of *kind*; raise _MisfitError if it is none.

    :param blank: text may be blank
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _taken_as_any(args, value, blank=blank)
    if kind is str and isinstance(value, str):
        good = (blank or bool(value.strip())) and is_utf8(value)
        value = str.__str__(value)
    elif kind in _SIMPLE:
        good = _SIMPLE[kind].fits(value)
    elif origin is Literal:
        good = is_one_of(value, args)
    elif isinstance(origin, type) and issubclass(origin, Iterable):
        return _taken_as_collection(origin, args, value)
    else:
        kind = origin or kind  # a callable is an instance of Callable
        good = not _is_class(kind) or isinstance(value, kind)
    if not good:
        raise _MisfitError
    return value


def _taken_as_any(kinds: tuple[object, ...], value: object, *, blank: bool) -> object:
    for kind in kinds:
        with suppress(_MisfitError):
            return _taken(kind, value, blank=blank)
    raise _MisfitError


def _taken_as_collection(origin: Any, kinds: tuple[Any, ...], value: Any) -> object:  # noqa: ANN401 - as above
    if origin is Iterable and kinds == (str,) and isinstance(value, str):
        value = [value]
    if not isinstance(value, origin) or isinstance(value, str | bytes | bytearray):
        raise _MisfitError
    if isinstance(value, Mapping) and len(kinds) == 2:
        of_key, of_value = kinds
        return {_taken(of_key, k): _taken(of_value, v, blank=True) for k, v in value.items()}
    return [_taken(kinds[0], each) for each in value]


class _Kind(NamedTuple):
    fits: Callable[[Any], bool]
    one: str
    several: str


_SIMPLE: Final[Mapping[object, _Kind]] = {
    str: _Kind(lambda _: False, "a non-empty string", "non-empty strings"),
    bool: _Kind(lambda value: type(value) is bool, "True or False", "True or False"),
    int: _Kind(
        lambda value: _is_number(value, int) and 0 <= value <= MAX_LONG,
        "a whole number from 0 on and below 2**63",
        "whole numbers from 0 on and below 2**63",
    ),
    float: _Kind(
        lambda value: _is_number(value, int | float) and value >= 0 and isfinite(value),
        "a number from 0 on",
        "numbers from 0 on",
    ),
    NoneType: _Kind(lambda value: value is None, "None", "None"),
    MessageQueue: _Kind(is_queue, f"a {QUEUE_FORM}", "MessageQueue objects"),
}


def _is_class(kind: Any) -> bool:  # noqa: ANN401 - an annotation
    """Return whether `isinstance` takes *kind*: protocols have to allow it."""
    is_protocol = getattr(kind, "_is_protocol", False)
    is_checkable = not is_protocol or getattr(kind, "_is_runtime_protocol", False)
    return isinstance(kind, type) and kind is not Any and is_checkable


def _is_number(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _described(kind: Any, *, several: bool = False) -> str:  # noqa: ANN401 - an annotation
    """Return what *kind* is, for errors."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _SIMPLE:
        return _SIMPLE[kind].several if several else _SIMPLE[kind].one
    if origin in (Union, UnionType):
        return " or ".join(_described(each, several=several) for each in args)
    if origin is Literal:
        return f"one of {', '.join(map(repr, args))}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping of {} to {}".format(*(_described(each, several=True) for each in args))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return f"a list of {_described(args[0], several=True)}"
    name = getattr(origin or kind, "__name__", str(kind))
    return f"{name} objects" if several else f"a {name}"
