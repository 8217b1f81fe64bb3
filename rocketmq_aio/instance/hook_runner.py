"""Hook runner: binds and calls the hooks of an application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.hooks import (
    CheckForbiddenHook,
    ConsumeHook,
    EndTransactionHook,
    FilterMessageHook,
    SendHook,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.remoting.failure_log import FailureLog

logger = get_logger(__name__)

HookMethod = tuple[object, Callable[[Any], object]]  # a hook, and its bound method


class HookRunner:
    """Calls hooks; an exception of a hook is logged once per kind and changes nothing."""

    def __init__(self) -> None:
        self._failures = FailureLog(logger.error, "hook_failed")

    def run(self, methods: Iterable[HookMethod], context: object) -> None:
        """Call all *methods* with *context*, in order."""
        for hook, method in methods:
            try:
                method(context)
            except APPLICATION_ERRORS as error:
                self.log_failure(hook, error)

    def log_failure(self, hook: object, error: BaseException) -> None:
        """Log that *hook* raised *error*."""
        self._failures.log_once(id(hook), error, hook=type(hook).__qualname__)


@runtime_checkable
class HookMaker(Protocol):
    """Makes one hook for each client that lists it in ``hooks=[...]``, such as `MessageTrace`."""

    def made_for(self, instance: MQClientInstance, group: str) -> Any:  # noqa: ANN401 - a hook
        """Return the hook of *group* in *instance*; it is opened and closed with the client."""


AnyConsumeHook: TypeAlias = ConsumeHook | HookMaker
AnyPushHook: TypeAlias = ConsumeHook | FilterMessageHook | HookMaker
AnySendHook: TypeAlias = SendHook | CheckForbiddenHook | EndTransactionHook | HookMaker


class LifecycleHook(Protocol):
    """A hook that a `HookMaker` made for one client, opened and closed with it."""

    async def open(self) -> None:
        """Called while the client starts, after it has connected."""

    async def close(self) -> None:
        """Called when the client closes, before it disconnects.  Bounded in time."""


def bind_hooks(
    hooks: Iterable[object], instance: MQClientInstance, group: str
) -> tuple[list[object], list[LifecycleHook]]:
    """Return the hooks in the order given, and the lifecycle hooks; ConfigError if not a list."""
    if not isinstance(hooks, Iterable):
        raise ConfigError("hooks", hooks, "expected a list of hooks")
    bound: list[object] = []
    lifecycle_hooks: list[LifecycleHook] = []
    for hook in hooks:
        if isinstance(hook, HookMaker) and not isinstance(hook, type):
            lifecycle_hooks.append(hook.made_for(instance, group))
            bound.append(lifecycle_hooks[-1])
        else:
            bound.append(hook)
    return bound, lifecycle_hooks


def bound_methods(hooks: Iterable[object], name: str) -> list[HookMethod]:
    """Return the method *name* of each hook: looked up once, not with every message."""
    return [(hook, getattr(hook, name)) for hook in hooks]
