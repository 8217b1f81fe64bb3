"""What a rebalance has to change, decided before anything is changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rocketmq_aio.model.values import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Queues to give up and queues to take on, each sorted and without repetition."""

    release: tuple[MessageQueue, ...] = ()
    acquire: tuple[MessageQueue, ...] = ()

    def __bool__(self) -> bool:
        """Is there anything to do?"""
        return bool(self.release or self.acquire)


def plan(held: Collection[MessageQueue], assigned: Collection[MessageQueue]) -> Plan:
    """Return what leads from the queues *held* to those *assigned*."""
    before, after = frozenset(held), frozenset(assigned)
    return Plan(release=tuple(sorted(before - after)), acquire=tuple(sorted(after - before)))
