"""Handle the steps of each order in sequence, and many orders concurrently.

    python examples/orderly.py --namesrv 127.0.0.1:9876

All steps of an order are sent to one queue.  One of them fails at first: its queue waits and
retries it in place, while the others continue.
"""

import argparse
import asyncio
from collections import defaultdict

from rocketmq_aio import (
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    SuspendQueue,
    select_by_hash,
)

ORDERS = ("tea", "jam", "cake", "milk", "bread", "salt")
STEPS = ("created", "paid", "packed", "shipped")


class Shop:
    """Record the steps of each order."""

    def __init__(self) -> None:
        self.steps: defaultdict[str, list[str]] = defaultdict(list)
        self.finished = asyncio.Event()

    async def handle(self, message: MessageExt) -> None:
        order, step = message.keys[0], message.body.decode()
        if (order, step) == ("jam", "paid") and message.reconsume_times < 2:
            print("jam: the bank is busy", flush=True)
            raise SuspendQueue(seconds=0.2)
        if step in self.steps[order]:
            return  # a duplicate
        self.steps[order].append(step)
        print(f"{order} is {step}", flush=True)
        if all(len(self.steps[each]) == len(STEPS) for each in ORDERS):
            self.finished.set()


async def send_orders(namesrv: str | None, topic: str) -> None:
    async with Producer("orderly-producer", namesrv=namesrv) as producer:
        for step in STEPS:
            for order in ORDERS:
                message = Message(topic, step.encode(), keys=order)
                await producer.send(message, selector=select_by_hash(order))


async def main(namesrv: str | None, topic: str) -> None:
    await send_orders(namesrv, topic)
    shop = Shop()
    async with PushConsumer(
        "orderly",
        on_message=shop.handle,
        orderly=True,
        namesrv=namesrv,
        config=PushConfig(start_from="earliest"),
    ) as consumer:
        await consumer.subscribe(topic)
        await shop.finished.wait()
    in_order = sum(steps == list(STEPS) for steps in shop.steps.values())
    print(f"{in_order} of {len(ORDERS)} orders went through all steps in order")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="orderly")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic))
