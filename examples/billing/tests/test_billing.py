"""The application on a broker: the embedded one, or a real one with --rocketmq-backend jvm."""

from examples.billing.app import Order, Receipt
from examples.billing.tests.bank import FakeBank
from examples.billing.tests.shop import RunWith


async def test_every_order_is_charged_and_gets_a_receipt(run_with: RunWith) -> None:
    bank, orders = FakeBank(), [Order(number, amount=10 * number) for number in range(1, 21)]

    async with run_with(bank) as shop:
        await shop.order(*orders)
        receipts = await shop.receipts(len(orders))

    assert receipts == [Receipt(order.number, order.amount) for order in orders]
    assert bank.charged == {order.number: 1 for order in orders}
