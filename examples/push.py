"""Handle each message; retry failures, send invalid messages to the dead-letter topic.

    python examples/push.py --namesrv 127.0.0.1:9876

Every fifth order fails at first and is retried a second later. One message is not JSON and goes to
the dead-letter topic, which examples/dead_letters.py reads.
"""

import argparse
import asyncio
from dataclasses import dataclass

from rocketmq_aio import (
    ConsumerEvent,
    JSONCodec,
    Message,
    MessageDeadLettered,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    RetryLater,
)

ORDERS = 20


@dataclass
class Order:
    number: int


CODEC = JSONCodec(Order)


class Shop:
    """Books orders by number, so that a duplicate has no effect."""

    def __init__(self) -> None:
        self.booked: set[int] = set()
        self.dead: list[str] = []
        self.finished = asyncio.Event()

    async def book(self, message: MessageExt[Order]) -> None:
        order = message.value
        if order.number % 5 == 0 and not message.reconsume_times:
            print(f"order {order.number}: the bank is busy", flush=True)
            raise RetryLater(delay_level=1)  # 1 s; other exceptions use the default delays
        self.booked.add(order.number)
        print(f"order {order.number} is booked, at try {message.reconsume_times + 1}", flush=True)
        self.check_finished()

    def on_event(self, event: ConsumerEvent) -> None:
        if isinstance(event, MessageDeadLettered):
            print(f"dead: offset {event.offset} of {event.queue}: {event.reason}", flush=True)
            self.dead.append(event.message_id)
            self.check_finished()

    def check_finished(self) -> None:
        if len(self.booked) == ORDERS and self.dead:
            self.finished.set()


async def send_orders(namesrv: str | None, topic: str) -> None:
    async with Producer("push-producer", namesrv=namesrv) as producer:
        for number in range(ORDERS):
            await producer.send(Message(topic, CODEC.encode(Order(number)), keys=str(number)))
        await producer.send(Message(topic, b"no order at all"))


async def main(namesrv: str | None, topic: str, group: str) -> None:
    await send_orders(namesrv, topic)
    shop = Shop()
    config = PushConfig(start_from="earliest", codec=CODEC, undecodable="dead_letter")
    async with PushConsumer(
        group, on_message=shop.book, on_event=shop.on_event, namesrv=namesrv, config=config
    ) as consumer:
        await consumer.subscribe(topic)
        await shop.finished.wait()
    # Leaving `async with` waits for running handlers and commits.
    print(f"{len(shop.booked)} booked, {len(shop.dead)} dead")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="push")
    parser.add_argument("--group", default="push")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic, arguments.group))
