"""Wrapped handlers: decoding and hooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio.consumer.common.hooks import ConsumeHooks
from rocketmq_aio.consumer.push.handlers import (
    BatchContext,
    Handler,
    RetryLater,
    UndecodableError,
    decoding,
    hooked,
)
from rocketmq_aio.hooks import ConsumeContext
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import MessageExt
from tests.unit.consumer.parts import message, offsets, queue
from tests.unit.consumer.worker_env import handling


def with_body(offset: int, body: bytes) -> MessageExt:
    of = queue()
    return MessageExt(of.topic, body, of, offset, bytes(88), b"")


async def test_values_are_decoded_before_the_handler_is_called() -> None:
    values: list[object] = []

    async def handle(message: MessageExt) -> None:
        values.append(message.value)

    with handling(handle) as handler:
        handler.wrap(lambda call: decoding(call, JSONCodec(dict[str, int])))
        await handler.call([with_body(0, b'{"id": 1}')])

    assert values == [{"id": 1}]


async def test_handler_is_not_called_with_undecodable_messages() -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)

    with handling(handle) as handler:
        handler.wrap(lambda call: decoding(call, JSONCodec(int)))
        good, bad = with_body(0, b"1"), with_body(1, b"one")
        with pytest.raises(UndecodableError) as caught:
            await handler.call([good, bad])

    assert seen == []
    assert [each for each, _ in caught.value.messages] == [bad]


class Hook:
    """A hook that keeps its contexts."""

    def __init__(self, name: str, notes: list[str], fails: bool = False) -> None:
        self.name = name
        self.notes = notes
        self.fails = fails
        self.last: ConsumeContext | None = None

    def before(self, context: ConsumeContext) -> None:
        self.notes.append(f"before {self.name} {context.status}")
        self._fail()

    def after(self, context: ConsumeContext) -> None:
        self.last = context
        self.notes.append(f"after {self.name} {context.status}")
        self._fail()

    def _fail(self) -> None:
        if self.fails:
            raise ValueError("a bad hook")


@asynccontextmanager
async def watched(handler: object, notes: list[str]) -> AsyncIterator[tuple[Handler, Hook]]:
    """A handler with three hooks, the second of which fails."""
    hooks = [Hook("a", notes), Hook("b", notes, fails=True), Hook("c", notes)]
    with handling(handler) as made:
        made.wrap(lambda call: hooked(call, ConsumeHooks(hooks), "billing"))
        yield made, hooks[-1]


async def test_hooks_surround_the_handler_and_a_failing_one_is_ignored() -> None:
    notes: list[str] = []

    async def handle(_: MessageExt) -> None:
        notes.append("handler")

    async with watched(handle, notes) as (handler, hook):
        await handler.call([message(3)])

    before = [f"before {name} None" for name in "abc"]
    assert notes == [*before, "handler", *(f"after {name} ok" for name in "cba")]
    assert hook.last is not None
    assert (hook.last.group, hook.last.topic, hook.last.queue) == ("billing", "orders", queue())
    assert offsets(hook.last.messages) == [3]
    assert hook.last.seconds is not None


async def test_hooks_get_the_error_of_the_handler() -> None:
    error = ValueError("bad")

    async def handle(_: MessageExt) -> None:
        raise error

    async with watched(handle, []) as (handler, hook):
        with pytest.raises(ValueError, match="bad"):
            await handler.call([message(0)])

    assert hook.last is not None
    assert (hook.last.status, hook.last.error) == ("failed", error)


async def test_hooks_get_the_error_of_a_batch_with_a_delay_level() -> None:
    error = ValueError("bad")

    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.delay_level = 3
        raise error

    hook = Hook("a", [])
    with handling(None, handle) as handler:
        handler.wrap(lambda call: hooked(call, ConsumeHooks([hook]), "billing"))
        await handler.call([message(3)])

    assert hook.last is not None
    assert (hook.last.status, hook.last.error) == ("failed", error)


@pytest.mark.parametrize("batch", [False, True], ids=["message", "batch"])
async def test_hooks_get_a_retry_that_the_handler_returns(*, batch: bool) -> None:
    later = RetryLater(3)

    async def handle(*_: object) -> RetryLater:
        return later

    hook = Hook("a", [])
    with handling(None, handle) if batch else handling(handle) as handler:
        handler.wrap(lambda call: hooked(call, ConsumeHooks([hook]), "billing"))
        assert await handler.call([message(3)]) is later

    assert hook.last is not None
    assert (hook.last.status, hook.last.error) == ("failed", later)


async def test_hooks_run_after_a_cancelled_handler() -> None:
    started = asyncio.Event()

    async def handle(_: MessageExt) -> None:
        started.set()
        await asyncio.Event().wait()

    async with watched(handle, []) as (handler, hook):
        task = asyncio.ensure_future(handler.call([message(0)]))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])

    assert task.cancelled()
    assert hook.last is not None
    assert isinstance(hook.last.error, asyncio.CancelledError)
