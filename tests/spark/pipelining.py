"""Messages of a topic, for tests of pipelines."""

from __future__ import annotations

import asyncio

from rocketmq_aio import MessageExt, MessageQueue, PullConsumer, PullStatus


def stored(namesrv: str, topic: str) -> list[MessageExt]:
    """Return all messages of a topic."""

    async def read() -> list[MessageExt]:
        found: list[MessageExt] = []
        async with PullConsumer("spark-tests-reader", namesrv=namesrv) as consumer:
            for queue in await consumer.message_queues(topic):
                found += await read_queue(consumer, queue)
        return found

    return asyncio.run(read())


async def read_queue(consumer: PullConsumer, queue: MessageQueue) -> list[MessageExt]:
    found: list[MessageExt] = []
    offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    while offset < end:
        result = await consumer.pull(queue, offset)
        found += result.messages if result.status is PullStatus.FOUND else []
        offset = result.next_offset
    return found


def bodies(namesrv: str, topic: str) -> list[str]:
    return sorted(message.body.decode() for message in stored(namesrv, topic))
