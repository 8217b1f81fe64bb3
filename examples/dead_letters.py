"""Show the dead letters of a group, and resend them when the cause is fixed.

    python examples/dead_letters.py --namesrv 127.0.0.1:9876 --group push
    python examples/dead_letters.py --namesrv 127.0.0.1:9876 --group push --replay

Without --replay nothing is changed.  A replay sends each dead letter to its original topic, as a
new message, and commits its progress: the next replay continues there.  Every group that reads the
topic receives the new messages.  Dead letters of a light message queue return there by --to-topic.
"""

import argparse
import asyncio
import re
from collections.abc import AsyncIterator

from rocketmq_aio import (
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    RouteNotFoundError,
)


async def read_dead_letters(
    consumer: PullConsumer, queue: MessageQueue
) -> AsyncIterator[MessageExt]:
    """Yield the dead letters of *queue* that are not replayed yet."""
    offset = await consumer.committed(queue) or await consumer.min_offset(queue)
    result = await consumer.pull(queue, offset)
    while result.status is not PullStatus.NO_NEW:
        for message in result.messages:
            yield message
        result = await consumer.pull(queue, result.next_offset)


def origin_of(letter: MessageExt, group: str) -> str:
    """Return the original topic of *letter*."""
    topic = letter.property("RETRY_TOPIC") or letter.topic
    return re.sub(rf"^%RETRY%{re.escape(group)}[_+]", "", topic)  # of a message that was popped


def copy_of(letter: MessageExt, origin: str, own: list[str], to_topic: str | None) -> Message:
    """Return a new message with the content of *letter*; *own* names the properties to copy."""
    properties = {name: letter.properties[name] for name in own if name in letter.properties}
    if origin.startswith("%LMQ%"):  # brokers put messages of a topic there
        if to_topic is None:
            raise SystemExit(f"--to-topic is needed: a topic to send messages of {origin} to")
        properties["INNER_MULTI_DISPATCH"], origin = origin, to_topic
    return Message(origin, letter.body, tags=letter.tags, keys=letter.keys, properties=properties)


async def main(
    namesrv: str | None, group: str, own: list[str], to_topic: str | None, replay: bool
) -> None:
    async with (
        PullConsumer(f"{group}-replay", namesrv=namesrv) as consumer,
        Producer(f"{group}-replay", namesrv=namesrv) as producer,
    ):
        try:
            queues = await consumer.message_queues(f"%DLQ%{group}")
        except RouteNotFoundError:  # the first dead letter creates the topic
            queues = []
        count = 0
        for queue in queues:
            async for letter in read_dead_letters(consumer, queue):
                count += 1
                origin = origin_of(letter, group)
                print(f"{letter.queue_offset}: from {origin}, {letter.body[:60]!r}")
                if replay:
                    await producer.send(copy_of(letter, origin, own, to_topic))
                    await consumer.commit(queue, letter.queue_offset + 1)
    print(f"{count} dead letters{' sent again' if replay else ''}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--group", default="push")
    parser.add_argument("--property", action="append", default=[], help="to copy; may be repeated")
    parser.add_argument("--to-topic", help="for dead letters of a light message queue")
    parser.add_argument("--replay", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.namesrv, given.group, given.property, given.to_topic, given.replay))
