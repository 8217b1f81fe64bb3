"""Queues by short names, and how a strategy shares them among members."""

from __future__ import annotations

from collections.abc import Sequence

from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.consumer.rebalance.strategies.allocation import allocate
from rocketmq_aio.model.values import MessageQueue


def queue(name: str | int) -> MessageQueue:
    """``3`` or ``"3"`` is queue 3 of broker-a, ``"b3"`` queue 3 of broker-b."""
    text = str(name)
    broker, number = (text[0], text[1:]) if text[0].isalpha() else ("a", text)
    return MessageQueue("orders", f"broker-{broker}", int(number))


def names(wanted: str) -> list[MessageQueue]:
    return [queue(name) for name in wanted.split()]


def shares(
    strategy: AllocateStrategy, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[list[MessageQueue]]:
    return [allocate(strategy, member, queues, members) for member in members]
