"""rocketmq_aio's producer under the send workloads."""

from __future__ import annotations

from benchmarks.subject.measure import KEY, TRACE, Options, closed_loop
from rocketmq_aio import AutoBatch, Message, Producer, ProducerConfig

GROUP = "bench-producer"


async def send_gathered(options: Options) -> None:
    """Single sends that travel together as they are by default."""
    await send_messages(options, ProducerConfig(auto_batch=AutoBatch()))


async def send_nowait(options: Options) -> None:
    """``options.batch`` sends at a time, none of them in a task of its own."""
    topic, body = options.topic, options.body()
    config = ProducerConfig(auto_batch=AutoBatch())
    async with Producer(GROUP, namesrv=options.namesrv, config=config) as producer:

        async def send() -> None:
            sends = [
                producer.send_nowait(Message(topic, body, tags="TagA", keys=KEY, properties=TRACE))
                for _ in range(options.batch)
            ]
            for each in sends:
                await each

        await closed_loop(send, options, per_operation=options.batch)


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
