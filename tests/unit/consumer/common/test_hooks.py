"""Consume and filter hooks: order and isolation of failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

import pytest

from rocketmq_aio.consumer.common.hooks import (
    ConsumeHooks,
    FilterHooks,
    checked_consume_hooks,
    checked_hooks,
)
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.hooks import ConsumeContext
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.remoting.failure_log import MAX_KINDS
from tests.unit.consumer.parts import message, queue


def context() -> ConsumeContext:
    return ConsumeContext(group="billing", topic="orders", queue=queue(), messages=[message(0)])


class Recorder:
    """Writes down when it was called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def before(self, context: ConsumeContext) -> None:
        self.log.append(f"{self.name} before {context.topic}")
        context.notes[self.name] = "started"

    def after(self, context: ConsumeContext) -> None:
        self.log.append(f"{self.name} after {context.status} {context.notes.pop(self.name)}")


class Failing:
    """Raises what a test sets."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def before(self, context: ConsumeContext) -> None:
        self.calls += 1
        raise self.error

    def after(self, context: ConsumeContext) -> None:
        self.before(context)

    def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
        self.calls += 1
        raise self.error


class Keeping:
    """Returns the messages at these places."""

    def __init__(self, *places: int) -> None:
        self.places = places

    def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
        return [messages[place] for place in self.places]


class Both(Recorder, Keeping):
    """Does everything."""

    def __init__(self) -> None:
        Recorder.__init__(self, "both", [])
        Keeping.__init__(self)


def run(hooks: ConsumeHooks, status: str = "success") -> None:
    about = context()
    hooks.before(about)
    about.status = status
    hooks.after(about)


def test_hooks_surround_each_other_with_one_context_for_both_calls() -> None:
    log: list[str] = []
    run(ConsumeHooks([Recorder("a", log), Recorder("b", log)]))

    assert log == [
        "a before orders",
        "b before orders",
        "b after success started",
        "a after success started",
    ]


def test_empty_hooks_are_false() -> None:
    consume, choose = checked_hooks([])

    assert not consume
    assert not choose
    assert ConsumeHooks([Recorder("a", [])])
    assert FilterHooks([Keeping()])


def test_failing_hook_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    run(ConsumeHooks([Failing(ValueError("no")), Recorder("b", log)]))

    assert log == ["b before orders", "b after success started"]


def test_each_kind_of_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(ValueError("first"))
    hooks = ConsumeHooks([failing])
    with caplog.at_level(logging.ERROR, "rocketmq_aio"):
        for error in (ValueError("again"), KeyError("other"), ValueError("more")):
            failing.error = error
            run(hooks)

    assert failing.calls == 6
    assert len(caplog.records) == 2


def test_repeated_failures_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(ValueError())
    hooks = ConsumeHooks([failing])
    with caplog.at_level(logging.ERROR, "rocketmq_aio"):
        for number in range(3 * MAX_KINDS):
            failing.error = type(f"Error{number}", (Exception,), {})()
            hooks.before(context())

    assert len(caplog.records) == MAX_KINDS


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_cancelled_error_or_generator_exit_is_a_failure_of_the_hook(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    ConsumeHooks([Failing(kind()), Recorder("b", log)]).before(context())

    assert log == ["b before orders"]
    assert kept(Failing(kind()), Keeping(1)) == [1]
    assert "hook_failed" in caplog.text


def test_keyboard_interrupt_in_a_hook_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        ConsumeHooks([Failing(KeyboardInterrupt())]).before(context())


def kept(*hooks: object) -> list[int]:
    """Return which of five messages come through, by their offsets."""
    messages = [message(offset) for offset in range(5)]
    _, choose = checked_hooks(hooks)
    return [each.queue_offset for each in choose.filter(messages)]


def test_filter_hook_removes_messages() -> None:
    assert kept(Keeping(0, 1, 3)) == [0, 1, 3]
    assert kept(Keeping(0, 1, 3), Keeping(0, 2)) == [0, 3]
    assert kept(Keeping(), Keeping()) == []


def test_the_order_of_messages_stays_and_none_is_doubled() -> None:
    assert kept(Keeping(4, 0, 0, 2)) == [0, 2, 4]


def test_filter_hook_cannot_add_messages() -> None:
    class Adding:
        def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
            return [*messages, message(99)]

    assert kept(Adding()) == [0, 1, 2, 3, 4]


def test_failing_filter_hook_removes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Nothing:
        def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
            return None  # type: ignore[return-value]  # a hook that forgot to return

    class Halfway:
        def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
            yield messages[0]
            raise ValueError("half-way")

    for hook in (Failing(ValueError("no")), Nothing(), Halfway()):
        assert kept(hook, Keeping(1)) == [1]
    assert len(caplog.records) == 3


def test_object_may_be_both_kinds_of_hook() -> None:
    consume, choose = checked_hooks([Both()])

    assert consume
    assert choose


class Waiting:
    async def before(self, context: ConsumeContext) -> None: ...
    def after(self, context: ConsumeContext) -> None: ...


@pytest.mark.parametrize("hook", [5, Recorder, print, Waiting()])
def test_invalid_hooks_are_rejected(hook: object) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_hooks([Keeping(), hook])

    assert (caught.value.setting, caught.value.value) == ("hooks", hook)


def test_hooks_run_once_per_queue_of_a_batch() -> None:
    reported: list[ConsumeContext] = []
    statuses_before: list[str | None] = []

    class Listener:
        def before(self, context: ConsumeContext) -> None:
            statuses_before.append(context.status)

        def after(self, context: ConsumeContext) -> None:
            reported.append(context)

    taken = [message(0), message(0, queue(1)), message(1)]
    checked_consume_hooks([Listener()]).run_for("billing", "poll", taken)

    assert [(each.queue, list(each.messages)) for each in reported] == [
        (taken[0].queue, [taken[0], taken[2]]),
        (taken[1].queue, [taken[1]]),
    ]
    assert {(each.group, each.mode, each.status) for each in reported} == {
        ("billing", "poll", "ok")
    }
    assert statuses_before == [None, None]


def test_consumers_without_handlers_reject_filter_hooks() -> None:
    class Filter:
        def filter(self, messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
            return messages

    with pytest.raises(ConfigError, match=r"before\(\), after\(\)"):
        checked_consume_hooks([Filter()])
