"""Faults and time: they need the embedded broker, on real ones these tests are skipped."""

import asyncio

from examples.billing.app import Order, Receipt
from examples.billing.tests.bank import FakeBank
from examples.billing.tests.shop import SECONDS, RunWith
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.faults import Faults

ORDER = Order(number=42, amount=12)
RECEIPT = Receipt(order=42, amount=12)


async def test_an_order_is_tried_again_when_the_bank_was_busy(
    rocketmq_clock: Clock, run_with: RunWith
) -> None:
    bank = FakeBank(busy=1)

    async with run_with(bank) as shop:
        await shop.order(ORDER)
        async with asyncio.timeout(SECONDS):
            while bank.calls < 2:
                rocketmq_clock.advance(1)
                await asyncio.sleep(0.05)
        receipts = await shop.receipts(1)

    assert receipts == [RECEIPT]
    assert bank.calls == 2


async def test_a_busy_broker_costs_no_receipt(
    rocketmq_faults: Faults, receipts_topic: str, run_with: RunWith
) -> None:
    bank = FakeBank()
    refused = rocketmq_faults.refuse("send", topic=receipts_topic, times=2)

    async with run_with(bank) as shop:
        await shop.order(ORDER)
        receipts = await shop.receipts(1)

    assert receipts == [RECEIPT]
    assert refused.count == 2
