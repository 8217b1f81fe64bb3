"""Minimiser: drops faults and clients of a failing plan as long as it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.chaos.plan import Plan

Fails = Callable[[Plan], bool]


def minimised(plan: Plan, fails: Fails) -> Plan:
    """Return the shortest plan found that still fails.

    Removes one thing at a time, so it makes at most the square of their number of runs.
    """
    while (shorter := next((each for each in _shorter(plan) if fails(each)), None)) is not None:
        plan = shorter
    return plan


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Return plans that lack one thing."""
    for number in reversed(range(len(plan.faults))):
        kept = plan.faults[:number] + plan.faults[number + 1 :]
        yield replace(plan, faults=kept)
    for client in reversed(plan.clients):
        if len(plan.clients) > 1:
            yield plan.without_client(client)
    if plan.replicas:
        yield replace(plan, replicas=0)
    if plan.queues > 1:
        yield replace(plan, queues=1)
