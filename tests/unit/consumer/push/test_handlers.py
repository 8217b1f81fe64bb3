"""Handlers: kinds of callables, results and contexts."""

from __future__ import annotations

import asyncio
import copy
import functools
import math
import pickle
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from rocketmq_aio.consumer.push.consume_service import reason_of
from rocketmq_aio.consumer.push.handlers import (
    BatchContext,
    Handler,
    RetryLater,
    RetryRequest,
    SuspendQueue,
)
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import MessageExt
from tests.unit.consumer.parts import message, messages, offsets, queue
from tests.unit.consumer.worker_env import handling

user: ContextVar[str] = ContextVar("user", default="nobody")


class Kinds:
    """Handlers of all kinds, which note offset and thread."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.threads: set[str] = set()

    async def coroutine(self, message: MessageExt) -> None:
        self.plain(message)

    def plain(self, message: MessageExt) -> None:
        self.seen.append(message.queue_offset)
        self.threads.add(threading.current_thread().name)

    def named(self, _name: str, message: MessageExt) -> None:
        self.plain(message)

    async def named_coroutine(self, _name: str, message: MessageExt) -> None:
        self.plain(message)


class AsyncObject(Kinds):
    """Called like a coroutine function."""

    async def __call__(self, message: MessageExt) -> None:
        self.plain(message)


class PlainObject(Kinds):
    """Called like a plain function."""

    def __call__(self, message: MessageExt) -> None:
        self.plain(message)


class EmptyObject(AsyncObject):
    """A callable that is false."""

    def __len__(self) -> int:
        return 0


async def called(handler: object) -> bool:
    """Call *handler* with a message; return whether it is one for the event loop."""
    with handling(handler) as made:
        assert await made.call([message(7)]) is None
        return made.threads is None


KINDS: dict[str, tuple[bool, Callable[[Kinds], object]]] = {
    "coroutine function": (True, lambda kinds: kinds.coroutine),
    "plain function": (False, lambda kinds: kinds.plain),
    "partial of a coroutine function": (
        True,
        lambda kinds: functools.partial(kinds.named_coroutine, "a"),
    ),
    "partial of a plain function": (False, lambda kinds: functools.partial(kinds.named, "a")),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_coroutine_functions_run_on_the_loop_and_plain_ones_in_threads(kind: str) -> None:
    on_loop, make = KINDS[kind]
    kinds = Kinds()

    assert await called(make(kinds)) is on_loop
    assert kinds.seen == [7]
    assert (threading.current_thread().name in kinds.threads) is on_loop


@pytest.mark.parametrize(
    ("make", "on_loop"), [(AsyncObject, True), (PlainObject, False), (EmptyObject, True)]
)
async def test_callable_objects_are_handlers(
    make: type[AsyncObject] | type[PlainObject], on_loop: bool
) -> None:
    handler = make()

    assert await called(handler) is on_loop
    assert handler.seen == [7]


async def test_a_partial_of_an_async_object_runs_on_the_loop() -> None:
    handler = AsyncObject()

    assert await called(functools.partial(handler)) is True
    assert handler.seen == [7]


async def test_an_awaitable_of_a_plain_function_is_awaited_on_the_loop() -> None:
    kinds = Kinds()

    assert await called(lambda message: kinds.coroutine(message)) is False
    assert kinds.threads == {threading.current_thread().name}


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_batches_come_with_a_context_of_their_queue(kind: str) -> None:
    seen: list[tuple[list[int], object]] = []

    def plain(batch: list[MessageExt], context: BatchContext) -> None:
        seen.append((offsets(batch), context.queue))

    async def coroutine(batch: list[MessageExt], context: BatchContext) -> None:
        plain(batch, context)

    with handling(on_batch=plain if kind == "plain" else coroutine) as handler:
        assert await handler.call(messages(1, 2)) is None

    assert seen == [([1, 2], queue())]


async def test_a_thread_sees_the_context_variables_of_the_caller_and_keeps_its_own() -> None:
    seen: list[str] = []

    def handle(_: MessageExt) -> None:
        seen.append(user.get())
        user.set("changed")

    user.set("caller")
    with handling(handle) as handler:
        await handler.call([message(0)])
        await handler.call([message(1)])

    assert seen == ["caller", "caller"]
    assert user.get() == "caller"


async def test_a_plain_function_that_raises_stop_iteration_fails_like_any_other() -> None:
    def handle(_: MessageExt) -> None:
        next(iter(()))

    with handling(handle) as handler:
        async with asyncio.timeout(15):
            with pytest.raises(RuntimeError) as caught:
                await handler.call([message(0)])

    assert isinstance(caught.value.__cause__, StopIteration)


async def test_a_plain_handler_that_found_no_thread_is_not_called_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = Kinds()

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with handling(kinds.plain) as handler:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await handler.call([message(0)])
        await handler.call([message(1)])

    assert kinds.seen == [1]


async def nothing(*_: object) -> None: ...


@pytest.mark.parametrize(
    ("on_message", "on_batch", "setting", "value"),
    [
        (None, None, "on_message", None),
        (nothing, nothing, "on_message", nothing),
        ("handle", None, "on_message", "handle"),
        ("", None, "on_message", ""),
        (None, 5, "on_batch", 5),
        (None, 0, "on_batch", 0),
    ],
)
def test_exactly_one_callable_handler_is_required(
    on_message: Any,  # noqa: ANN401
    on_batch: Any,  # noqa: ANN401
    setting: str,
    value: object,
) -> None:
    with pytest.raises(ConfigError) as caught:
        Handler(on_message, on_batch, name="test")

    assert (caught.value.setting, caught.value.value) == (setting, value)


@pytest.mark.parametrize("level", [-1, 0, 1, 19, 2**31 - 1])
def test_delay_levels_of_brokers_are_accepted(level: int) -> None:
    assert RetryLater(level).delay_level == level


@pytest.mark.parametrize("level", [-2, 2**31, 1.0, "3", None, True])
def test_unknown_delay_levels_are_rejected(level: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError) as caught:
        RetryLater(level)

    assert (caught.value.setting, caught.value.value) == ("delay_level", level)


@pytest.mark.parametrize("seconds", [None, 0, 0.5, 3600])
def test_a_queue_is_suspended_for_any_time(seconds: float | None) -> None:
    assert SuspendQueue(seconds).seconds == seconds


@pytest.mark.parametrize("seconds", [-1, math.inf, "1", True, 10**9])
def test_invalid_suspend_times_are_rejected(seconds: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError) as caught:
        SuspendQueue(seconds)

    assert (caught.value.setting, caught.value.value) == ("seconds", seconds)


class BankIsBusy(RetryLater):
    def __init__(self, bank: str, seconds: int) -> None:
        super().__init__(delay_level=3)
        self.bank, self.seconds = bank, seconds


@pytest.mark.parametrize("request_", [RetryLater(3), SuspendQueue(1.5), BankIsBusy("east", 9)])
def test_a_retry_request_can_be_copied_and_pickled(request_: RetryRequest) -> None:
    # As `ProcessPoolExecutor` does with what a function raises in its process.
    for twin in (copy.copy(request_), pickle.loads(pickle.dumps(request_))):
        assert (type(twin), str(twin), vars(twin)) == (
            type(request_),
            str(request_),
            vars(request_),
        )


def test_nan_is_rejected_as_a_suspend_time() -> None:
    with pytest.raises(ConfigError):
        SuspendQueue(math.nan)


def context_with(**values: Any) -> BatchContext:  # noqa: ANN401 - what a handler sets
    context = BatchContext(queue())
    for name, value in values.items():
        setattr(context, name, value)
    return context


@pytest.mark.parametrize(
    ("values", "done"),
    [
        ({}, 5),
        ({"ack_index": None}, 5),
        ({"ack_index": 2}, 3),
        ({"ack_index": 99}, 5),
        ({"ack_index": -1}, 0),
        ({"ack_index": -9}, 0),
        ({"ack_index": 4, "rolled_back": True}, 0),
        ({"delay_level": 18, "ack_index": 0}, 1),
    ],
)
def test_done_counts_the_acknowledged_messages(values: dict[str, Any], done: int) -> None:
    assert context_with(**values).done(5) == done


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"ack_index": "2"}, "ack_index"),
        ({"ack_index": True}, "ack_index"),
        ({"ack_index": 1, "delay_level": -2}, "delay_level"),
        ({"rolled_back": True, "delay_level": "x"}, "delay_level"),
        ({"committed": True, "delay_level": "x"}, "delay_level"),
    ],
)
def test_invalid_context_values_are_rejected(values: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        context_with(**values).done(5)

    assert caught.value.setting == setting


def test_error_without_a_repr_is_named_by_its_type() -> None:
    class Mute(Exception):  # noqa: N818
        def __repr__(self) -> str:
            raise ValueError("no words")

    assert reason_of(Mute()) == "Mute"
    assert reason_of(ValueError("x")) == "ValueError('x')"
