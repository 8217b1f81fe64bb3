"""Show the dead letters of a group, and resend them when the cause is fixed.

    python examples/dead_letters.py --namesrv 127.0.0.1:9876 --group push
    python examples/dead_letters.py --namesrv 127.0.0.1:9876 --group push --replay

Without --replay nothing is changed.  A replay sends each dead letter to its original topic, as a
new message, and commits its progress: the next replay continues there.  Every group that reads the
topic receives the new messages.
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


def copy_of(letter: MessageExt, group: str, own: list[str]) -> Message:
    """Return a new message with the content of *letter*; *own* names the properties to copy."""
    topic = letter.property("RETRY_TOPIC") or letter.topic
    return Message(
        re.sub(rf"^%RETRY%{re.escape(group)}[_+]", "", topic),  # of a message that was popped
        letter.body,
        tags=letter.tags,
        keys=letter.keys,
        properties={name: letter.properties[name] for name in own if name in letter.properties},
    )


async def main(namesrv: str | None, group: str, own: list[str], replay: bool) -> None:
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
                copy = copy_of(letter, group, own)
                print(f"{letter.queue_offset}: from {copy.topic}, {letter.body[:60]!r}")
                if replay:
                    await producer.send(copy)
                    await consumer.commit(queue, letter.queue_offset + 1)
    print(f"{count} dead letters{' sent again' if replay else ''}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--group", default="push")
    parser.add_argument("--property", action="append", default=[], help="to copy; may be repeated")
    parser.add_argument("--replay", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.group, arguments.property, arguments.replay))
