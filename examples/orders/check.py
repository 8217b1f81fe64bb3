"""Verification: every minute of every shop exactly, every alert at least once."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from examples.orders.generator import ALERT_CENTS, HEARTBEAT, Order

Minutes = dict[tuple[str, str], tuple[int, int]]  # (minute, shop) -> (orders, cents)


def expected_minutes(orders: Iterable[Order]) -> Minutes:
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for order in orders:
        count, cents = totals.get((order.minute, order.shop), (0, 0))
        totals[order.minute, order.shop] = (count + 1, cents + order.cents)
    return totals


def expected_alerts(orders: Iterable[Order]) -> set[str]:
    return {order.order_id for order in orders if order.cents >= ALERT_CENTS}


@dataclass(frozen=True)
class Outcome:
    """The results of the job; *minutes* are rows, so that duplicates are detected."""

    minutes: list[tuple[str, str, int, int]]
    alerts: Counter[str]

    def problems(self, sent: list[Order]) -> list[str]:
        """Return the differences from the expected results; empty if there are none."""
        real = [order for order in sent if order.shop != HEARTBEAT]
        wanted = Counter((*where, *what) for where, what in expected_minutes(real).items())
        found = Counter(self.minutes)
        missing_alerts = expected_alerts(real) ^ set(self.alerts)
        return [
            *(f"missing: {row}" for row in wanted - found),
            *(f"wrong or there twice: {row}" for row in found - wanted),
            *(f"alert missing or not due: {order_id}" for order_id in sorted(missing_alerts)),
        ]


def read_outcome(spark: SparkSession, namesrv: str, topic: str, folder: str) -> Outcome:
    """Read the committed Parquet files and the topic of the alerts."""
    minutes = spark.read.parquet(f"{folder}/minutes").where(f"shop != '{HEARTBEAT}'")
    rows = minutes.selectExpr(
        "date_format(minute, \"yyyy-MM-dd'T'HH:mm\") minute", "shop", "orders", "cents"
    ).collect()
    messages = (
        spark.read.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", f"{topic}-alerts")
        .schema("body binary")
        .load()
        .collect()
    )
    alerts = Counter(json.loads(message.body)["order_id"] for message in messages)
    return Outcome([(row.minute, row.shop, row.orders, row.cents) for row in rows], alerts)
