"""Receive urgent messages first: a topic with priorities and a PopConsumer.

python examples/priorities.py --namesrv 127.0.0.1:9876 (RocketMQ 5.4)
"""

import argparse
import asyncio

from rocketmq_aio import AdminClient, Message, PopConfig, PopConsumer, Producer

LEVELS = 4  # one queue each
ORDERS = ((0, b"newsletter"), (3, b"payment"), (1, b"invoice"), (2, b"delivery"), (9, b"alarm"))


async def main(namesrv: str | None, topic: str, group: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=LEVELS, attributes={"message.type": "PRIORITY"})
    async with Producer("priorities-producer", namesrv=namesrv) as producer:
        for priority, body in ORDERS:
            sent = await producer.send(Message(topic, body, priority=priority))
            print(f"{body.decode()}: priority {priority}, queue {sent.queue.queue_id}")

    config = PopConfig(start_from="earliest")
    async with PopConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        received = 0
        while received < len(ORDERS):
            for message in await consumer.receive():
                print(f"received {message.body.decode()}, priority {message.priority}")
                await consumer.ack(message)
                received += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="priorities")
    parser.add_argument("--group", default="priorities")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic, arguments.group))
