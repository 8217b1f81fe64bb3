"""rocketmq_aio's producer under the send workloads."""

from __future__ import annotations

from benchmarks.subject.measure import KEY, TRACE, Options, closed_loop
from rocketmq_aio import Message, Producer

GROUP = "bench-producer"


async def send_messages(options: Options) -> None:
    """Single sends, or explicit batches where ``options.batch`` says so."""
    topic, body, size = options.topic, options.body(), options.batch

    def message() -> Message:
        return Message(topic, body, tags="TagA")

    def rich_message() -> Message:
        return Message(topic, body, tags="TagA", keys=KEY, properties=TRACE)

    make = rich_message if options.rich else message
    async with Producer(GROUP, namesrv=options.namesrv) as producer:

        async def send() -> object:
            return await producer.send(make())

        async def send_batch() -> object:
            return await producer.send_batch([make() for _ in range(size)])

        await closed_loop(send_batch if size > 1 else send, options, per_operation=size)
