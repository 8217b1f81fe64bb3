"""Read a topic with `async for` and a tag filter while another task sends.

python examples/stream.py --namesrv 127.0.0.1:9876
"""

import argparse
import asyncio

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer

ORDERS = 20


async def send_orders(namesrv: str | None, topic: str) -> None:
    async with Producer("stream-producer", namesrv=namesrv) as producer:
        for number in range(ORDERS):
            tag = "paid" if number % 2 else "new"
            await producer.send(Message(topic, f"order {number}".encode(), tags=tag))
            await asyncio.sleep(0.05)


async def read_paid_orders(namesrv: str | None, topic: str) -> int:
    paid = 0
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer("stream", namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic, "paid")
        async for message in consumer:
            paid += 1
            print(f"{message.body.decode()} is {message.tags}")
            if paid == ORDERS // 2:
                break
    return paid


async def main(namesrv: str | None, topic: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_orders(namesrv, topic))
        reading = tasks.create_task(read_paid_orders(namesrv, topic))
    print(f"{reading.result()} of {ORDERS} orders were paid")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="stream")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic))
