"""What calling the hooks of an application needs everywhere: who is one, and what failed of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.hooks import (
    CheckForbiddenHook,
    ConsumeHook,
    EndTransactionHook,
    FilterMessageHook,
    SendHook,
)
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.remoting.hook_failures import Call


@runtime_checkable
class HookMaker(Protocol):
    """Makes one hook for each client that lists it in ``hooks=[...]``, such as `MessageTrace`."""

    def made_for(self, instance: MQClientInstance, group: str) -> Any:  # noqa: ANN401 - a hook
        """Return the hook of *group* in *instance*; it is opened and closed with the client."""
        ...


AnyConsumeHook: TypeAlias = ConsumeHook | HookMaker
AnyPushHook: TypeAlias = ConsumeHook | FilterMessageHook | HookMaker
AnySendHook: TypeAlias = SendHook | CheckForbiddenHook | EndTransactionHook | HookMaker


class Companion(Protocol):
    """What lives as long as the client that it was given to."""

    async def open(self) -> None:
        """The client is about to start; its connections are there."""
        ...

    async def close(self) -> None:
        """The client has ended its work; its connections are still there.  Bounded in time."""
        ...


def given_hooks(
    hooks: Iterable[object], instance: MQClientInstance, group: str
) -> tuple[list[object], list[Companion]]:
    """Return the hooks of a client in the order given, and those that live as long as it.

    :raises ConfigError: *hooks* is no list
    """
    if not isinstance(hooks, Iterable):
        raise ConfigError("hooks", hooks, "expected a list of hooks")
    found: list[object] = []
    companions: list[Companion] = []
    for hook in hooks:
        if isinstance(hook, HookMaker) and not isinstance(hook, type):
            companions.append(hook.made_for(instance, group))
            found.append(companions[-1])
        else:
            found.append(hook)
    return found, companions


def check_hook(hook: object, kinds: Any, methods: Iterable[str]) -> None:  # noqa: ANN401 - types
    """Refuse what is none of *kinds*, or has one of *methods* as a coroutine.

    :raises ConfigError: it says why
    """
    if isinstance(hook, type) or not isinstance(hook, kinds):
        names = ", ".join(f"{name}()" for name in methods)
        raise ConfigError("hooks", hook, f"expected objects with some of {names}")
    for name in methods:
        if inspect.iscoroutinefunction(getattr(hook, name, None)):
            raise ConfigError("hooks", hook, f"{name}() is not to be async: it is never awaited")


def calls_of(hooks: Iterable[object], method: str) -> list[Call]:
    """Return *method* of each hook: looked up once, not with every message."""
    return [(hook, getattr(hook, method)) for hook in hooks]
