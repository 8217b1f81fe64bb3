"""What can be known of a function of the application before it is called."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Final

from rocketmq_aio.errors import ConfigError

# What a plain function of the application may raise without ending anything else.  No cancellation
# is delivered during a call that does not await, so a CancelledError is an error of that function;
# likewise GeneratorExit.
APPLICATION_ERRORS: Final = (Exception, asyncio.CancelledError, GeneratorExit)


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling *function* makes a coroutine, as far as that can be known."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind is asked for, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def name_of(function: object) -> str:
    """Return what *function* is called, for logs and errors."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else repr(function)


def check_function(setting: str, function: object, *arguments: str) -> None:
    """Refuse what is no function, or cannot be called with so many arguments by their place.

    :raises ConfigError: it says what the function is called with
    """
    if not callable(function):
        raise ConfigError(setting, function, "expected a function, plain or async")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # of what is built in nothing is known
    try:
        signature.bind(*arguments)
    except TypeError as error:
        reason = f"it is called with ({', '.join(arguments)}), and takes {signature}: {error}"
        raise ConfigError(setting, name_of(function), reason) from error
