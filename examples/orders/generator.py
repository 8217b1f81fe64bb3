"""Generator of orders of three shops: out of order, with event times."""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from threading import Event

from rocketmq_aio import Message, Producer

SHOPS = ("Berlin", "Lisbon", "Oslo")
HEARTBEAT = "heartbeat"  # the "shop" of orders that only advance event time
OPENING = datetime(2026, 1, 5, 9, tzinfo=UTC)
LATENESS_SECONDS = 90  # orders are sent up to this much after their event time
CLOSING_MINUTES = 15  # of heartbeats: more than the watermark and a window
ALERT_CENTS = 95_000
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Order:
    order_id: str
    shop: str
    cents: int
    placed_at: str

    @property
    def minute(self) -> str:
        return self.placed_at[: len("2026-01-05T09:00")]

    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def orders_of(minute: int, chance: random.Random) -> list[Order]:
    """Return the orders of a minute of event time, some of them late."""
    arrives = OPENING + minute * MINUTE
    return [
        Order(
            order_id=f"{minute}-{number}",
            shop=chance.choice(SHOPS),
            cents=chance.randrange(500, 100_000),
            placed_at=iso(arrives - timedelta(seconds=chance.uniform(0, LATENESS_SECONDS))),
        )
        for number in range(chance.randrange(30, 60))
    ]


def closing(minute: int) -> Iterator[Order]:
    """Yield heartbeats after the last order: only newer events close the last minutes."""
    for later in range(minute, minute + CLOSING_MINUTES):
        yield Order(f"{later}-0", HEARTBEAT, 0, iso(OPENING + later * MINUTE))


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


class Generator:
    """Sends orders in accelerated time: one minute of event time takes *minute_seconds*."""

    def __init__(self, namesrv: str, topic: str, minute_seconds: float) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._minute_seconds = minute_seconds
        self.sent: list[Order] = []  # acknowledged by the broker

    def run(self, stop: Event, at_least_minutes: int) -> None:
        """Send for *at_least_minutes*, then until *stop* is set, then the heartbeats."""
        asyncio.run(self._run(stop, at_least_minutes))

    async def _run(self, stop: Event, at_least_minutes: int) -> None:
        chance = random.Random(2026)
        async with Producer("orders", namesrv=self._namesrv) as producer:
            minute = 0
            while minute < at_least_minutes or not stop.is_set():
                await self._send(producer, orders_of(minute, chance))
                minute += 1
            for heartbeat in closing(minute):
                await self._send(producer, [heartbeat])

    async def _send(self, producer: Producer, orders: list[Order]) -> None:
        """Send the orders of a minute and wait, so that queues differ by at most one minute."""
        messages = [Message(self._topic, order.body(), keys=order.order_id) for order in orders]
        await asyncio.gather(*map(producer.send, messages))
        self.sent += orders
        await asyncio.sleep(self._minute_seconds)
