"""rocketmq_aio's lite-pull consumer under the consume workloads."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.subject.measure import Drain, Options, Seen, Window, tell_result, timed_window
from rocketmq_aio import LitePullConfig, LitePullConsumer

POLL_SECONDS: Final = 1.0
COUNTED_AT_ONCE: Final = 32  # so that a stream of single messages is not measured counting


def _consumer(options: Options) -> LitePullConsumer:
    """Return a consumer in a group of its own, so that each pass sees the whole backlog."""
    group = f"bench-consumer-{time.time_ns()}"
    config = LitePullConfig(start_from="earliest")
    return LitePullConsumer(group, namesrv=options.namesrv, config=config)


async def drain_backlog(options: Options) -> None:
    """Consume the backlog with ``poll``: checked passes until warm, then the measured one."""
    await _drain(options, iterate=False)


async def iterate_backlog(options: Options) -> None:
    """The same with ``async for``."""
    await _drain(options, iterate=True)


async def _drain(options: Options, *, iterate: bool) -> None:
    warm_at = time.monotonic() + options.warmup_seconds
    while True:
        seen = Seen()
        await _polling_pass(options, Drain(options.total, measured=False), seen)
        if time.monotonic() >= warm_at:
            break
    drain = Drain(options.total)
    await (_iterating_pass(options, drain) if iterate else _polling_pass(options, drain))
    lost = options.total - seen.unique
    tell_result(lost=lost, duplicated=seen.repeated, **drain.figures())


async def _polling_pass(options: Options, drain: Drain, seen: Seen | None = None) -> None:
    held = 0
    async with _consumer(options) as consumer:
        await consumer.subscribe(options.topic)
        while drain.count < options.total:
            messages = await consumer.poll(timeout_seconds=POLL_SECONDS)
            for message in messages:
                held += len(message.body)
            if seen is not None:
                seen.add((each.queue.queue_id, each.queue_offset) for each in messages)
            drain.add(len(messages))
    assert held > 0


async def _iterating_pass(options: Options, drain: Drain) -> None:
    held = count = 0
    async with _consumer(options) as consumer:
        await consumer.subscribe(options.topic)
        async for message in consumer:
            held += len(message.body)
            count += 1
            if not count % COUNTED_AT_ONCE:
                drain.add(COUNTED_AT_ONCE)
            if count == options.total:
                break
    assert held > 0


async def poll_endless(options: Options) -> None:
    """Poll a backlog without end and read the bodies, for a window of time."""
    drain, held = Drain(0, measured=False), 0

    async def poll(consumer: LitePullConsumer) -> None:
        nonlocal held
        while True:
            messages = await consumer.poll(timeout_seconds=POLL_SECONDS)
            for message in messages:
                held += len(message.body)
            drain.count += len(messages)

    async with _consumer(options) as consumer:
        await consumer.subscribe(options.topic)
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(poll(consumer))
            await timed_window(lambda: drain.count, options)
            polling.cancel()


async def stay_idle(options: Options) -> None:
    """Consume a topic that nothing is sent to; what is measured is what that costs."""
    window = Window()
    async with _consumer(options) as consumer:
        await consumer.subscribe(options.topic)
        await consumer.poll(timeout_seconds=options.warmup_seconds)
        window.open()
        await consumer.poll(timeout_seconds=options.seconds)
        window.close()
    tell_result(messages=0, **window.figures)
