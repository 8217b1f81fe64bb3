"""Listeners of the application: plain or async functions, called one after another."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from rocketmq_aio.log import get_logger

logger = get_logger(__name__)

LISTENER_SECONDS: Final = 5.0  # the longest that a listener may hold up a rebalance

Listener = Callable[..., Awaitable[Any] | Any]


async def call_listener(listener: Listener | None, *args: object) -> None:
    """Call *listener*; what it raises is logged, and it is cancelled when it takes too long."""
    if listener is None:
        return
    with anyio.move_on_after(LISTENER_SECONDS) as scope:
        try:
            outcome = listener(*args)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            logger.exception("listener_failed", listener=repr(listener))
    if scope.cancelled_caught:
        logger.warning("listener_too_slow", listener=repr(listener), seconds=LISTENER_SECONDS)
