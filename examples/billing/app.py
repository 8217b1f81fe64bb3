"""Billing: charge each order, and send a receipt for it.

    python -m examples.billing.app --namesrv 127.0.0.1:9876

Orders arrive as JSON on one topic, receipts go to another. An order that is delivered again is
charged once. While the bank is busy, an order is tried again ten seconds later.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from rocketmq_aio import (
    JSONCodec,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    RetryLater,
)

AGAIN_IN_TEN_SECONDS = 3  # a delay level


@dataclass(frozen=True)
class Order:
    number: int
    amount: int


@dataclass(frozen=True)
class Receipt:
    order: int
    amount: int


ORDERS = JSONCodec(Order)
RECEIPTS = JSONCodec(Receipt)


class BankIsBusyError(Exception):
    """The bank takes no charges at the moment."""


class Bank(Protocol):
    async def charge(self, order: Order) -> None:
        """Charge *order*; a second charge of the same order has no effect."""
        ...


class Billing:
    """The handler; it needs a bank and something that sends, so it can be tested without both."""

    def __init__(
        self, bank: Bank, send: Callable[[Message], Awaitable[object]], receipts_topic: str
    ) -> None:
        self._bank = bank
        self._send = send
        self._receipts_topic = receipts_topic

    async def bill(self, message: MessageExt[Order]) -> None:
        order = message.value
        try:
            await self._bank.charge(order)
        except BankIsBusyError:
            raise RetryLater(delay_level=AGAIN_IN_TEN_SECONDS) from None
        receipt = RECEIPTS.encode(Receipt(order.number, order.amount))
        await self._send(Message(self._receipts_topic, receipt, keys=str(order.number)))


@asynccontextmanager
async def billing(
    bank: Bank,
    *,
    namesrv: str | None = None,
    orders_topic: str = "orders",
    receipts_topic: str = "receipts",
    group: str = "billing",
) -> AsyncIterator[None]:
    """Bill orders during the block; on exit running handlers finish and offsets are committed."""
    config = PushConfig(start_from="earliest", codec=ORDERS, undecodable="dead_letter")
    async with Producer(group, namesrv=namesrv) as producer:
        handler = Billing(bank, producer.send, receipts_topic)
        async with PushConsumer(
            group, on_message=handler.bill, namesrv=namesrv, config=config
        ) as consumer:
            await consumer.subscribe(orders_topic)
            yield


class PrintingBank:
    async def charge(self, order: Order) -> None:
        print(f"charged {order.amount} for order {order.number}", flush=True)


async def main(namesrv: str | None) -> None:
    async with billing(PrintingBank(), namesrv=namesrv):
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    try:
        asyncio.run(main(parser.parse_args().namesrv))
    except KeyboardInterrupt:
        print("stopped")
