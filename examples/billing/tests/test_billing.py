"""The application on a broker: the embedded one, or a real one with --rocketmq-backend jvm."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from examples.billing.app import ORDERS, RECEIPTS, Order, Receipt, billing
from examples.billing.tests.bank import FakeBank
from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer

SECONDS = 30.0  # for a busy machine; a good run takes far less


class Shop:
    """The other side of the application: it orders, and waits for receipts."""

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


@asynccontextmanager
async def shop_of(namesrv: str, topic: str, receipts_topic: str) -> AsyncIterator[Shop]:
    config = LitePullConfig(start_from="earliest", codec=RECEIPTS)
    async with (
        Producer(f"{topic}-shop", namesrv=namesrv) as producer,
        LitePullConsumer(f"{topic}-shop", namesrv=namesrv, config=config) as consumer,
    ):
        await consumer.subscribe(receipts_topic)
        yield Shop(producer, consumer, topic)


async def test_every_order_is_charged_and_gets_a_receipt(
    rocketmq_namesrv: str, rocketmq_topic: str, rocketmq_group: str, receipts_topic: str
) -> None:
    bank, orders = FakeBank(), [Order(number, amount=10 * number) for number in range(1, 21)]

    async with (
        shop_of(rocketmq_namesrv, rocketmq_topic, receipts_topic) as shop,
        billing(
            bank,
            namesrv=rocketmq_namesrv,
            orders_topic=rocketmq_topic,
            receipts_topic=receipts_topic,
            group=rocketmq_group,
        ),
    ):
        await shop.order(*orders)
        receipts = await shop.receipts(len(orders))

    assert receipts == [Receipt(order.number, order.amount) for order in orders]
    assert bank.charged == {order.number: 1 for order in orders}
