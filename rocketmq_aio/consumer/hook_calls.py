"""Calls the hooks of an application, so that whatever they do changes nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Final

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.hooks import ConsumeContext, ConsumeHook, FilterMessageHook
from rocketmq_aio.log import get_logger
from rocketmq_aio.message import MessageExt

logger = get_logger(__name__)

MAX_KINDS: Final = 100  # of failures that are logged; a hook could invent exception types for ever
EXPECTED: Final = "expected objects with before() and after(), or with filter()"


def checked_hooks(hooks: Iterable[object]) -> tuple[ConsumeHooks, FilterHooks]:
    """Return *hooks* by what they do, in the order given; one may do both.

    :raises ConfigError: one does neither, or does it in a coroutine
    """
    if not isinstance(hooks, Iterable):
        raise ConfigError("hooks", hooks, "expected a list of hooks")
    given = list(hooks)
    for hook in given:
        _check_hook(hook)
    return (
        ConsumeHooks([hook for hook in given if isinstance(hook, ConsumeHook)]),
        FilterHooks([hook for hook in given if isinstance(hook, FilterMessageHook)]),
    )


def _check_hook(hook: object) -> None:
    if isinstance(hook, type) or not isinstance(hook, ConsumeHook | FilterMessageHook):
        raise ConfigError("hooks", hook, EXPECTED)
    for name in ("before", "after", "filter"):
        if inspect.iscoroutinefunction(getattr(hook, name, None)):
            raise ConfigError("hooks", hook, f"{name}() is not to be async: it is never awaited")


class ConsumeHooks:
    """Runs consume hooks around a handler; false when there are none, so that they cost nothing."""

    def __init__(self, hooks: Sequence[ConsumeHook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._failures = _Failures()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before(self, context: ConsumeContext) -> None:
        """Tell all hooks that a handler is about to run."""
        for hook in self._hooks:
            try:
                hook.before(context)
            except Exception as error:  # noqa: BLE001 - the application's code
                self._failures.note(hook, error)

    def after(self, context: ConsumeContext) -> None:
        """Tell all hooks how it ended."""
        for hook in self._hooks:
            try:
                hook.after(context)
            except Exception as error:  # noqa: BLE001 - the application's code
                self._failures.note(hook, error)


class FilterHooks:
    """Runs filter hooks over what was pulled; false when there are none."""

    def __init__(self, hooks: Sequence[FilterMessageHook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._failures = _Failures()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def filter(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Return those of *messages* that no hook leaves out, in the order they came."""
        for hook in self._hooks:
            try:
                # By identity: what a hook adds, repeats or puts in another order is not followed.
                kept = {id(each) for each in hook.filter(tuple(messages))}
            except Exception as error:  # noqa: BLE001 - the application's code
                self._failures.note(hook, error)
            else:
                messages = [each for each in messages if id(each) in kept]
        return messages


class _Failures:
    """Logs each kind of failure once: a hook may fail for every message."""

    def __init__(self) -> None:
        self._told: set[tuple[int, type[Exception]]] = set()

    def note(self, hook: object, error: Exception) -> None:
        kind = (id(hook), type(error))
        if kind not in self._told and len(self._told) < MAX_KINDS:
            self._told.add(kind)
            logger.error("hook_failed", hook=type(hook).__qualname__, exc_info=error)
