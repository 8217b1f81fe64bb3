"""Commit manually, and seek back to a message that failed.

    python examples/manual_commit.py --namesrv 127.0.0.1:9876

Every fifth payment fails at the first attempt. Its queue is set back to it; the others continue.
"""

import argparse
import asyncio

from rocketmq_aio import (
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
)

PAYMENTS = 20


class BankIsBusyError(Exception):
    pass


class Ledger:
    """Replaces a database: one entry per payment, so that a duplicate has no effect."""

    def __init__(self) -> None:
        self.booked: set[bytes] = set()
        self.failed: set[bytes] = set()

    async def book(self, payment: bytes) -> None:
        if payment.endswith((b"0", b"5")) and payment not in self.failed:
            self.failed.add(payment)
            raise BankIsBusyError
        self.booked.add(payment)


async def handle(
    consumer: LitePullConsumer, messages: list[MessageExt], ledger: Ledger
) -> set[MessageQueue]:
    """Book all payments; seek a queue back to its first failed message."""
    rewound: set[MessageQueue] = set()
    for message in messages:
        if message.queue in rewound:
            continue  # polled again, in order
        try:
            await ledger.book(message.body)
        except BankIsBusyError:
            print(f"{message.body.decode()}: the bank is busy, retrying")
            await consumer.seek(message.queue, message.queue_offset)
            rewound.add(message.queue)
    return rewound


async def main(namesrv: str | None, topic: str) -> None:
    async with Producer("payments-producer", namesrv=namesrv) as producer:
        await producer.send_batch(
            [Message(topic, f"payment {number}".encode()) for number in range(PAYMENTS)]
        )

    config = LitePullConfig(start_from="earliest", auto_commit=False)
    async with LitePullConsumer("payments", namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        ledger = Ledger()
        while len(ledger.booked) < PAYMENTS:
            messages = await consumer.poll(timeout_seconds=5)
            rewound = await handle(consumer, messages, ledger)
            await consumer.commit()  # the position of each queue, also after a seek
            print(f"{len(ledger.booked)} booked, {len(rewound)} queues rewound")
        for queue in consumer.assignment():
            print(f"{queue} is committed up to {await consumer.committed(queue)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="payments")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic))
