"""The handler alone: no broker, no event loop of a client."""

import pytest

from examples.billing.app import ORDERS, RECEIPTS, Billing, Order, Receipt
from examples.billing.tests.bank import FakeBank
from rocketmq_aio import Message, MessageExt, RetryLater
from rocketmq_aio.testing import received_message

ORDER = Order(number=42, amount=12)


def ordered(order: Order, reconsume_times: int = 0) -> MessageExt[Order]:
    message = Message("orders", ORDERS.encode(order))
    return received_message(message, codec=ORDERS, reconsume_times=reconsume_times)


async def test_a_charged_order_gets_a_receipt() -> None:
    bank, sent = FakeBank(), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    await Billing(bank, send, "receipts").bill(ordered(ORDER))

    assert bank.charged == {42: 1}
    [receipt] = sent
    assert (receipt.topic, receipt.keys) == ("receipts", ("42",))
    assert RECEIPTS.decode(receipt.body) == Receipt(order=42, amount=12)


async def test_a_busy_bank_makes_the_order_wait_ten_seconds_without_a_receipt() -> None:
    async def send(message: Message) -> None:
        raise AssertionError("nothing is charged, so nothing may be sent")

    with pytest.raises(RetryLater) as raised:
        await Billing(FakeBank(busy=1), send, "receipts").bill(ordered(ORDER))

    assert raised.value.delay_level == 3
