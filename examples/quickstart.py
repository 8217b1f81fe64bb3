"""Send ten messages and read them back.

    python examples/quickstart.py --namesrv 127.0.0.1:9876

Without --namesrv the clients read ROCKETMQ_NAMESRV.
"""

import argparse
import asyncio

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer

MESSAGES = 10


async def main(namesrv: str | None, topic: str) -> None:
    async with Producer("quickstart-producer", namesrv=namesrv) as producer:
        for number in range(MESSAGES):
            result = await producer.send(Message(topic, f"hello {number}".encode()))
            print(f"sent hello {number} to {result.queue} at offset {result.queue_offset}")

    config = LitePullConfig(start_from="earliest")  # by default a new group gets only new messages
    async with LitePullConsumer("quickstart", namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        received = 0
        while received < MESSAGES:
            for message in await consumer.poll(timeout_seconds=5):
                print(f"received {message.body.decode()} from {message.queue}")
                received += 1
    # Leaving `async with` commits: the next run of this group starts after these messages.


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="quickstart")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic))
