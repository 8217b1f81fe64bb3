"""Application listeners: plain or async functions, called one after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias, cast

import anyio

from rocketmq_aio.config.validation import check_function
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import call_isolated

logger = get_logger(__name__)

LISTENER_SECONDS: Final = 5.0  # the longest that a listener may delay a rebalance

AssignmentListener: TypeAlias = Callable[[tuple[MessageQueue, ...]], Awaitable[object] | object]
"""`on_assigned` and `on_revoked`: takes the queues; plain or async."""
TopicQueuesListener: TypeAlias = Callable[[str, list[MessageQueue]], Awaitable[object] | object]
"""`on_queues_changed`: takes a topic and its queues; plain or async."""


class AssignmentListeners(NamedTuple):
    """Called with queues that were assigned, and with queues about to be revoked."""

    on_assigned: AssignmentListener | None = None
    on_revoked: AssignmentListener | None = None


NO_LISTENERS: Final = AssignmentListeners()


def check_listener(
    setting: str, listener: object, *arguments: str, may_be_async: bool = True
) -> None:
    """Validate a listener that is called with *arguments*.

    :raises ConfigError: it cannot be called so, or is async and would not be awaited
    """
    if listener is not None:
        check_function(setting, listener, *arguments, may_be_async=may_be_async)


def checked_listeners(on_assigned: object, on_revoked: object) -> AssignmentListeners:
    """Return the listeners of a consumer; raises the errors of `check_listener`."""
    check_listener("on_assigned", on_assigned, "queues")
    check_listener("on_revoked", on_revoked, "queues")
    return AssignmentListeners(
        cast(AssignmentListener | None, on_assigned), cast(AssignmentListener | None, on_revoked)
    )


async def call_listener(listener: Callable[..., Any] | None, *args: object) -> None:
    """Call *listener* in a task of its own; cancel it after `LISTENER_SECONDS`.

    Exceptions are logged, also a CancelledError, which is not the caller's.
    """
    if listener is None:
        return
    with anyio.move_on_after(LISTENER_SECONDS) as scope:
        try:
            await call_isolated(listener, *args)
        except Exception:  # the application's code
            logger.exception("listener_failed", listener=repr(listener))
    if scope.cancelled_caught:
        logger.warning("listener_too_slow", listener=repr(listener), seconds=LISTENER_SECONDS)
