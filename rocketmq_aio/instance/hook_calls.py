"""What calling the hooks of an application needs everywhere: who is one, and what failed of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, runtime_checkable

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.functions import APPLICATION_ERRORS
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger

logger = get_logger(__name__)

MAX_KINDS: Final = 100  # of failures that are logged; a hook could invent exception types for ever


class Companion(Protocol):
    """What lives as long as the client that it was given to."""

    async def open(self) -> None:
        """The client is about to start; its connections are there."""
        ...

    async def close(self) -> None:
        """The client has ended its work; its connections are still there.  Bounded in time."""
        ...


@runtime_checkable
class HookMaker(Protocol):
    """Something in ``hooks=[...]`` that makes a hook of its own for every client."""

    def made_for(self, instance: MQClientInstance, group: str) -> Any:  # noqa: ANN401 - a hook
        """Return the hook, a `Companion`, of the client that is *group* in *instance*."""
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


Call = tuple[object, Callable[[Any], object]]  # a hook, and what is called of it


def calls_of(hooks: Iterable[object], method: str) -> list[Call]:
    """Return *method* of each hook: looked up once, not with every message."""
    return [(hook, getattr(hook, method)) for hook in hooks]


class Failures:
    """Calls hooks and logs each kind of failure once: a hook may fail for every message."""

    def __init__(self) -> None:
        self._told: set[tuple[int, type[BaseException]]] = set()

    def tell(self, calls: Iterable[Call], context: object) -> None:
        """Make all *calls*, in order; what one of them raises changes nothing."""
        for hook, call in calls:
            try:
                call(context)
            except APPLICATION_ERRORS as error:
                self.note(hook, error)

    def note(self, hook: object, error: BaseException) -> None:
        """*hook* has raised *error*."""
        kind = (id(hook), type(error))
        if kind not in self._told and len(self._told) < MAX_KINDS:
            self._told.add(kind)
            logger.error("hook_failed", hook=type(hook).__qualname__, exc_info=error)
