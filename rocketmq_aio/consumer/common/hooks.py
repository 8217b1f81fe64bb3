"""Consume and filter hooks: calls the application's hooks and isolates their failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar, cast

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.config.validation import check_hook
from rocketmq_aio.hooks import ConsumeContext, ConsumeHook, FilterMessageHook
from rocketmq_aio.instance.hook_runner import HookRunner, bound_methods
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue

M = TypeVar("M", bound=MessageExt)

METHODS: Final = ("before", "after", "filter")


def checked_hooks(hooks: Iterable[object]) -> tuple[ConsumeHooks, FilterHooks]:
    """Return the consume hooks and the filter hooks of *hooks*, in the given order.

    :raises ConfigError: one is neither, or is async
    """
    given = list(hooks)
    for hook in given:
        check_hook(hook, ConsumeHook | FilterMessageHook, METHODS)
    return (
        ConsumeHooks([hook for hook in given if isinstance(hook, ConsumeHook)]),
        FilterHooks([hook for hook in given if isinstance(hook, FilterMessageHook)]),
    )


def checked_consume_hooks(hooks: Iterable[object]) -> ConsumeHooks:
    """Return *hooks* of a consumer without handlers.

    :raises ConfigError: one is not a `ConsumeHook`, or is async
    """
    given = list(hooks)
    for hook in given:
        check_hook(hook, ConsumeHook, METHODS[:2])
    return ConsumeHooks(cast(list[ConsumeHook], given))


class ConsumeHooks:
    """Runs consume hooks around a handler; false without hooks."""

    def __init__(self, hooks: Sequence[ConsumeHook] = ()) -> None:
        self._before = bound_methods(hooks, "before")
        self._after = bound_methods(reversed(hooks), "after")
        self._runner = HookRunner()

    def __bool__(self) -> bool:
        return bool(self._before)

    def before(self, context: ConsumeContext) -> None:
        self._runner.run(self._before, context)

    def after(self, context: ConsumeContext) -> None:
        self._runner.run(self._after, context)

    def run_for(self, group: str, mode: str, messages: Iterable[MessageExt]) -> None:
        """Run the hooks for *messages* that a caller is about to get, once per queue."""
        by_queues: dict[MessageQueue, list[MessageExt]] = {}
        for message in messages:
            by_queues.setdefault(message.queue, []).append(message)
        for queue, several in by_queues.items():
            topic = several[0].topic  # that of a redelivered message is not the queue's
            context = ConsumeContext(
                group=group, topic=topic, queue=queue, messages=several, mode=mode
            )
            self.before(context)
            context.status, context.seconds = "ok", 0.0
            self.after(context)


class FilterHooks:
    """Runs filter hooks over what was pulled; false when there are none."""

    def __init__(self, hooks: Sequence[FilterMessageHook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._runner = HookRunner()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def filter(self, messages: list[M]) -> list[M]:
        """Return those of *messages* that every hook keeps, in their order."""
        for hook in self._hooks:
            try:
                # By identity: messages that a hook adds, repeats or reorders are ignored.
                kept = {id(each) for each in hook.filter(tuple(messages))}
            except APPLICATION_ERRORS as error:
                self._runner.log_failure(hook, error)
            else:
                messages = [each for each in messages if id(each) in kept]
        return messages
