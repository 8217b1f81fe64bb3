"""rocketmq_aio's push consumer: a backlog through its handlers, once or without end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict, Unpack

from benchmarks.subject.measure import Drain, Options, Seen, tell_result, timed_window
from rocketmq_aio import MessageExt
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.push.consumer import PushConsumer

COUNTED_AT_ONCE: Final = 31  # a mask: a handler reports after 32 messages


class Handler(TypedDict, total=False):
    """One of the two, by the name of the consumer's argument."""

    on_message: Callable[[MessageExt], Awaitable[None]]
    on_batch: Callable[[list[MessageExt], object], Awaitable[None]]


def push_consumer(options: Options, **handler: Unpack[Handler]) -> PushConsumer:
    """Return a consumer in a group of its own."""
    size = options.handler_batch if "on_batch" in handler else 1
    config = PushConfig(start_from="earliest", consume_batch_size=size)
    if options.pull_batch != config.pull_batch_size:
        config = replace(
            config,
            pull_batch_size=options.pull_batch,
            pull_threshold_per_queue=4 * options.pull_batch,
            max_span=40 * options.pull_batch,
        )
    group = f"bench-push-{time.time_ns()}"
    return PushConsumer(group, namesrv=options.namesrv, config=config, **handler)


@dataclass(slots=True)
class Pass:
    """One consumption of the topic: how far it is; *done* is set after the last message."""

    total: int
    drain: Drain
    count: int = 0
    held: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self, new: int) -> None:
        self.drain.add(new)
        if self.drain.count == self.total:
            self.done.set()


MakeHandler = Callable[[Pass], Handler]


def _looking(going: Pass) -> Handler:
    async def handle(message: MessageExt) -> None:
        going.held += len(message.body)
        going.count += 1
        if not going.count & COUNTED_AT_ONCE or going.count == going.total:
            going.report(going.count - going.drain.count)

    return {"on_message": handle}


def _reading(going: Pass) -> Handler:
    async def handle(message: MessageExt) -> None:
        if message.tags is not None:
            going.held += len(message.properties) + len(message.body)
        going.count += 1
        if not going.count & COUNTED_AT_ONCE or going.count == going.total:
            going.report(going.count - going.drain.count)

    return {"on_message": handle}


def _taking_lists(going: Pass) -> Handler:
    async def handle(messages: list[MessageExt], context: object) -> None:
        for message in messages:
            going.held += len(message.body)
        going.report(len(messages))

    return {"on_batch": handle}


def _checking(seen: Seen) -> MakeHandler:
    def make(going: Pass) -> Handler:
        async def handle(message: MessageExt) -> None:
            before = seen.unique
            seen.add([(message.queue.queue_id, message.queue_offset)])
            going.held += len(message.body)
            going.report(seen.unique - before)

        return {"on_message": handle}

    return make


async def look_at_bodies(options: Options) -> None:
    """A handler per message that looks at the body."""
    await _measure(options, _looking)


async def read_properties(options: Options) -> None:
    """A handler per message that reads tags and properties too."""
    await _measure(options, _reading)


async def take_lists(options: Options) -> None:
    """A handler for lists of messages."""
    await _measure(options, _taking_lists)


async def _measure(options: Options, make: MakeHandler) -> None:
    await (_drain(options, make) if options.total else _endless(options, make))


async def _drain(options: Options, make: MakeHandler) -> None:
    """Consume the backlog: one pass that is checked, others until warm, then the measured one."""
    seen = Seen()
    warm_at = time.monotonic() + options.warmup_seconds
    await _pass_over(options, Drain(options.total, measured=False), _checking(seen))
    while time.monotonic() < warm_at:
        await _pass_over(options, Drain(options.total, measured=False), make)
    drain = Drain(options.total)
    await _pass_over(options, drain, make)
    lost = options.total - seen.unique
    tell_result(lost=lost, duplicated=seen.repeated, **drain.figures())


async def _pass_over(options: Options, drain: Drain, make: MakeHandler) -> None:
    going = Pass(options.total, drain)
    async with push_consumer(options, **make(going)) as consumer:
        await consumer.subscribe(options.topic)
        await going.done.wait()
    assert going.held > 0


async def _endless(options: Options, make: MakeHandler) -> None:
    going = Pass(0, Drain(0, measured=False))
    async with push_consumer(options, **make(going)) as consumer:
        await consumer.subscribe(options.topic)
        await timed_window(lambda: going.drain.count, options)
