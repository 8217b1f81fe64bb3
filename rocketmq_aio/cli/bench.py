"""``rmq bench``: a simple measurement of sending and receiving."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.completion import complete_topics
from rocketmq_aio.cli.confirm import ChangeArguments
from rocketmq_aio.cli.connection import READER_GROUP, ReadArguments, send_settings
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.output import ProgressArguments, counted, progress, show_result
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines.summary import Report

app = Group("bench")
PERCENTILES: Final = (50, 99)


@options
class BenchArguments(ChangeArguments, ProgressArguments, ReadArguments):
    topic: str = argument(
        "Topic to send to, best one of its own.", "TOPIC", complete=complete_topics
    )
    count: int = option("Messages.", "--count", "-c", default=10_000, min=1)
    size: int = option("Bytes of a body.", default=1024, min=1)
    concurrency: int = option("Sends that run at once.", default=256, min=1, max=4096)


@command(app, "bench", BenchArguments, "rmq bench bench-topic --count 100000 --yes")
async def _bench(arguments: BenchArguments) -> int:
    """Send messages to a topic, read them back, and show rates and latencies.

    The messages stay in the topic, and every group that reads it gets them. The exit code is 1
    if messages are missing. Nothing is committed.
    """
    messages, size = counted(arguments.count, "message"), counted(arguments.size, "byte")
    action = f"send {messages} of {size} to {arguments.topic}"
    if not arguments.confirm(action):
        return ExitCode.DONE
    with progress(wanted=not arguments.quiet) as report:
        result = await _figures(arguments, report)
    show_result(result, arguments.output)
    return ExitCode.DONE if result["received"] >= result["sent"] else ExitCode.INCOMPLETE


async def _figures(arguments: BenchArguments, report: Report) -> dict[str, float]:
    config = arguments.config()
    starts: dict[MessageQueue, int] = {}
    seconds: list[float] = []
    begun = time.monotonic()
    async with Producer("rmq-bench", client=config, config=send_settings(config)) as producer:
        left = iter(range(arguments.count))
        message = Message(arguments.topic, b"x" * arguments.size)

        async def send() -> None:
            for _ in left:
                before = time.monotonic()
                result = await producer.send(message)
                seconds.append(time.monotonic() - before)
                first = starts.get(result.queue, result.queue_offset)
                starts[result.queue] = min(first, result.queue_offset)
                report("sending", len(seconds), arguments.count)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(arguments.concurrency, arguments.count)):
                tasks.create_task(send())
    sent_in = time.monotonic() - begun
    begun = time.monotonic()
    received = await _receive(config, starts, arguments.count, report)
    read_in = time.monotonic() - begun
    seconds.sort()
    return {
        "sent": len(seconds),
        "sent_per_second": round(len(seconds) / sent_in),
        **{f"send_ms_p{p}": _percentile(seconds, p) for p in PERCENTILES},
        "received": received,
        "received_per_second": round(received / read_in),
    }


def _percentile(ordered: list[float], percent: int) -> float:
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000, 2)


async def _receive(
    config: ClientConfig, starts: dict[MessageQueue, int], count: int, report: Report
) -> int:
    """Return how many messages are read from *starts* on, up to the ends at this moment."""
    received = 0
    async with PullConsumer(READER_GROUP, client=config) as reader:

        async def read(queue: MessageQueue, offset: int) -> None:
            nonlocal received
            end = await reader.max_offset(queue)
            while offset < end and received < count:
                result = await reader.pull(queue, offset)
                if result.status is PullStatus.NO_NEW:
                    return
                received += len(result.messages)
                report("receiving", min(received, count), count)
                offset = result.next_offset

        async with asyncio.TaskGroup() as tasks:
            for queue, offset in starts.items():
                tasks.create_task(read(queue, offset))
    return received
