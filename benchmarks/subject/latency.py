"""From a send to the push handler that gets the message, both in this process, on one clock."""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from benchmarks.subject.measure import REPORTED_ERRORS, Options, Window, percentiles, tell_result
from benchmarks.subject.push import push_consumer
from rocketmq_aio import Message, MessageExt, Producer, RocketMQError

GROUP: Final = "bench-latency"
STAMP: Final = Struct(">qqqq")  # run, number, when it should have been sent, when it was: ns
ARRIVAL_SECONDS: Final = 10.0  # for messages that are under way when the window closes


@dataclass(slots=True)
class Arrivals:
    """Latencies of one run, and the duration of its window."""

    run: int = field(default_factory=time.perf_counter_ns)
    measuring: bool = False
    repeated: int = 0
    numbers: set[int] = field(default_factory=set)
    from_sent: array[int] = field(default_factory=lambda: array("q"))
    from_intended: array[int] = field(default_factory=lambda: array("q"))

    async def take(self, message: MessageExt) -> None:
        now = time.perf_counter_ns()
        run, number, intended, sent = STAMP.unpack_from(message.body)
        if run != self.run:
            return  # an earlier run's
        self.repeated += number in self.numbers
        self.numbers.add(number)
        if self.measuring:
            self.from_sent.append(now - sent)
            self.from_intended.append(now - intended)


@dataclass(slots=True)
class Sender:
    """Sends at a fixed rate, whether answers come or not; counts what was acknowledged."""

    producer: Producer
    options: Options
    run: int
    acknowledged: int = 0
    errors: int = 0

    async def send_steadily(self, tasks: asyncio.TaskGroup) -> None:
        began, number = time.perf_counter_ns(), 0
        while True:
            intended = began + number * 1_000_000_000 // self.options.rate
            early = intended - time.perf_counter_ns()
            if early > 0:
                await asyncio.sleep(early / 1e9)
                continue
            tasks.create_task(self._send(number, intended))
            number += 1

    async def _send(self, number: int, intended: int) -> None:
        stamp = STAMP.pack(self.run, number, intended, time.perf_counter_ns())
        body = stamp + bytes(max(0, self.options.body_bytes - STAMP.size))
        try:
            await self.producer.send(Message(self.options.topic, body, tags="TagA"))
        except RocketMQError as error:
            self.errors += 1
            if self.errors <= REPORTED_ERRORS:
                print(repr(error), file=sys.stderr)
        else:
            self.acknowledged += 1


async def send_to_handler(options: Options) -> None:
    """Send for a window at ``options.rate``; wait for what is under way; tell the result."""
    arrivals, window = Arrivals(), Window()
    async with (
        push_consumer(options, on_message=arrivals.take) as consumer,
        Producer(GROUP, namesrv=options.namesrv) as producer,
    ):
        await consumer.subscribe(options.topic)
        sender = Sender(producer, options, arrivals.run)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(sender.send_steadily(tasks))
            await asyncio.sleep(options.warmup_seconds)
            window.open()
            arrivals.measuring = True
            await asyncio.sleep(options.seconds)
            arrivals.measuring = False
            window.close()
            sending.cancel()
        await _arrived(arrivals, sender.acknowledged)
    tell_result(
        messages=len(arrivals.from_sent),
        acknowledged=sender.acknowledged,
        errors=sender.errors,
        lost=max(0, sender.acknowledged - len(arrivals.numbers)),
        duplicated=arrivals.repeated,
        **window.figures,
        **percentiles(arrivals.from_sent),
        **percentiles(arrivals.from_intended, "intended_"),
    )


async def _arrived(arrivals: Arrivals, count: int) -> None:
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while len(arrivals.numbers) < count and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
