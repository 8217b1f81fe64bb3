"""rocketmq_aio's producer under the send workloads."""

from __future__ import annotations

from benchmarks.subject.measure import KEY, TRACE, Options, closed_loop
from rocketmq_aio import AutoBatch, Message, Producer, ProducerConfig

GROUP = "bench-producer"


async def send_gathered(options: Options) -> None:
    """Single sends that travel together as they are by default."""
    await send_messages(options, ProducerConfig(auto_batch=AutoBatch()))


async def send_messages(options: Options, config: ProducerConfig | None = None) -> None:
    """Single sends, or explicit batches if ``options.batch`` is set."""
    topic, body, size = options.topic, options.body(), options.batch

    def message() -> Message:
        return Message(topic, body, tags="TagA")

    def rich_message() -> Message:
        return Message(topic, body, tags="TagA", keys=KEY, properties=TRACE)

    make = rich_message if options.rich else message
    async with Producer(GROUP, namesrv=options.namesrv, config=config) as producer:

        async def send() -> object:
            return await producer.send(make())

        async def send_batch() -> object:
            return await producer.send_batch([make() for _ in range(size)])

        await closed_loop(send_batch if size > 1 else send, options, per_operation=size)
