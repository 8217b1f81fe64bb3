"""Rebalance plan: the queues to revoke and to assign."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rocketmq_aio.model.values import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Queues to revoke and to assign, each sorted and unique."""

    release: tuple[MessageQueue, ...] = ()
    acquire: tuple[MessageQueue, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.release or self.acquire)


def plan(held: Collection[MessageQueue], assigned: Collection[MessageQueue]) -> Plan:
    """Return the changes from the queues *held* to those *assigned*."""
    before, after = frozenset(held), frozenset(assigned)
    return Plan(release=tuple(sorted(before - after)), acquire=tuple(sorted(after - before)))
