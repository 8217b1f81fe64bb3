"""Calls the hooks of an application, so that whatever they do changes nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.hooks import ConsumeContext, ConsumeHook, FilterMessageHook
from rocketmq_aio.instance.hook_runner import HookRunner, bound_methods, check_hook
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue

METHODS: Final = ("before", "after", "filter")


def checked_hooks(hooks: Iterable[object]) -> tuple[ConsumeHooks, FilterHooks]:
    """Return *hooks* by what they do, in the order given; one may do both.

    :raises ConfigError: one does neither, or does it in a coroutine
    """
    given = list(hooks)
    for hook in given:
        check_hook(hook, ConsumeHook | FilterMessageHook, METHODS)
    return (
        ConsumeHooks([hook for hook in given if isinstance(hook, ConsumeHook)]),
        FilterHooks([hook for hook in given if isinstance(hook, FilterMessageHook)]),
    )


def handing_hooks(hooks: Iterable[object]) -> ConsumeHooks:
    """Return *hooks* of a consumer that has no handlers.

    :raises ConfigError: one is no `ConsumeHook`, or is one in a coroutine
    """
    given: list[ConsumeHook] = []
    for hook in hooks:
        check_hook(hook, ConsumeHook, METHODS[:2])
        assert isinstance(hook, ConsumeHook)
        given.append(hook)
    return ConsumeHooks(given)


class ConsumeHooks:
    """Runs consume hooks around a handler; false when there are none, so that they cost nothing."""

    def __init__(self, hooks: Sequence[ConsumeHook] = ()) -> None:
        self._before = bound_methods(hooks, "before")
        self._after = bound_methods(hooks, "after")
        self._runner = HookRunner()

    def __bool__(self) -> bool:
        return bool(self._before)

    def before(self, context: ConsumeContext) -> None:
        """Tell all hooks that a handler is about to run."""
        self._runner.run(self._before, context)

    def after(self, context: ConsumeContext) -> None:
        """Tell all hooks how it ended."""
        self._runner.run(self._after, context)

    def handed_out(self, group: str, mode: str, messages: Iterable[MessageExt]) -> None:
        """Tell of *messages* that a caller is about to get, those of each queue together."""
        by_queues: dict[MessageQueue, list[MessageExt]] = {}
        for message in messages:
            by_queues.setdefault(message.queue, []).append(message)
        for queue, several in by_queues.items():
            topic = several[0].topic  # of one that comes again it is not the queue's
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

    def filter(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Return those of *messages* that no hook leaves out, in the order they came."""
        for hook in self._hooks:
            try:
                # By identity: what a hook adds, repeats or puts in another order is not followed.
                kept = {id(each) for each in hook.filter(tuple(messages))}
            except APPLICATION_ERRORS as error:
                self._runner.log_failure(hook, error)
            else:
                messages = [each for each in messages if id(each) in kept]
        return messages
