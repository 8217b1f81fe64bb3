"""Copy a topic to a file, queue by queue, from the committed offsets: pull and commit.

python examples/pull.py --namesrv 127.0.0.1:9876 --topic orders --to orders.txt
"""

import argparse
import asyncio
from pathlib import Path
from typing import TextIO

from rocketmq_aio import MessageQueue, PullConsumer, PullStatus


async def copy(consumer: PullConsumer, queue: MessageQueue, file: TextIO) -> int:
    """Write the messages of *queue* from the committed offset on; return their number."""
    start = await consumer.committed(queue) or await consumer.min_offset(queue)
    copied, result = 0, await consumer.pull(queue, start)
    while result.status is not PullStatus.NO_NEW:
        if result.status is PullStatus.OFFSET_ILLEGAL:
            print(f"{queue} has no offset {start}, going on at {result.next_offset}")
        file.writelines(f"{message.body.decode()}\n" for message in result.messages)
        copied += len(result.messages)
        start = result.next_offset
        result = await consumer.pull(queue, start)
    file.flush()  # write before the commit
    await consumer.commit(queue, start)
    return copied


async def main(namesrv: str | None, topic: str, to: Path) -> None:
    async with PullConsumer("archive", namesrv=namesrv) as consumer:
        with to.open("a") as file:
            for queue in await consumer.message_queues(topic):
                print(f"{queue}: {await copy(consumer, queue, file)} copied")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--to", type=Path, default=Path("orders.txt"))
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic, arguments.to))
