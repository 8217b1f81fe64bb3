"""What can be known of a function of the application before it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling *function* makes a coroutine, as far as that can be known."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind is asked for, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
