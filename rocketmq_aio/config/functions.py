"""Functions of the application: validation and inspection."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Final

from rocketmq_aio.errors import ConfigError

# Exceptions of a plain function of the application.  Cancellation is only delivered at an await,
# so a CancelledError or GeneratorExit is an error of that function.
APPLICATION_ERRORS: Final = (Exception, asyncio.CancelledError, GeneratorExit)


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling *function* returns a coroutine, as far as inspection can tell."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind matters, not whether it exists
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def name_of(function: object) -> str:
    """Return the name of *function* for logs and errors."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else repr(function)


def check_function(setting: str, function: object, *arguments: str) -> None:
    """Check that *function* can be called with *arguments* by position.

    :raises ConfigError: it cannot; the error names the arguments
    """
    if not callable(function):
        raise ConfigError(setting, function, "expected a function, plain or async")
    if _takes(function, len(arguments)):
        return
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # some builtins have no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        reason = f"it is called with ({', '.join(arguments)}), and takes {signature}: {error}"
        raise ConfigError(setting, name_of(function), reason) from error


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
    least = code.co_argcount - len(function.__defaults__ or ())
    return not code.co_kwonlyargcount and least <= count <= code.co_argcount
