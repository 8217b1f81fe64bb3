"""The other side of the application: a shop."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from examples.billing.app import ORDERS, Order, Receipt
from examples.billing.tests.bank import FakeBank
from rocketmq_aio import LitePullConsumer, Message, Producer

SECONDS = 30.0  # for a busy machine; a good run takes far less


class Shop:
    """Orders, and waits for receipts."""

    def __init__(self, producer: Producer, consumer: LitePullConsumer[Receipt], topic: str) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topic = topic

    async def order(self, *orders: Order) -> None:
        for order in orders:
            await self._producer.send(Message(self._topic, ORDERS.encode(order)))

    async def receipts(self, count: int) -> list[Receipt]:
        found: list[Receipt] = []
        async with asyncio.timeout(SECONDS):
            while len(found) < count:
                found += [message.value for message in await self._consumer.poll()]
        return sorted(found, key=lambda receipt: receipt.order)


RunWith = Callable[[FakeBank], AbstractAsyncContextManager[Shop]]
