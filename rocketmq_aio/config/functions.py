"""Functions of the application: their kind, and their exceptions."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Final

# Exceptions of a plain function of the application.  Cancellation is only delivered at an await,
# so a CancelledError or GeneratorExit is an error of that function.
APPLICATION_ERRORS: Final = (Exception, asyncio.CancelledError, GeneratorExit)


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling *function* returns a coroutine, as far as inspection can tell."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind matters, not whether it exists
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
