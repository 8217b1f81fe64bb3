"""Recorded history of a run, and checks of the guarantees of clients.

A test records a `History`, waits until all messages are consumed, and asserts that `violations`
returns none.  The guarantees are numbered in `INVARIANTS`.
"""

from __future__ import annotations

from tests.fakes.history.consuming import CONSUMING
from tests.fakes.history.events import (
    Call,
    Commit,
    Delivered,
    Echo,
    Epoch,
    Fault,
    Handled,
    History,
    LockChange,
    LogEntry,
    Outcome,
    Poll,
    Resources,
    Sent,
    Settled,
    Violation,
)
from tests.fakes.history.handling import HANDLING
from tests.fakes.history.process import PROCESS
from tests.fakes.history.producing import PRODUCING

INVARIANTS = {**PRODUCING, **CONSUMING, **HANDLING, **PROCESS}


def violations(history: History) -> list[Violation]:
    """Return all violations in *history*."""
    return [Violation(name, what) for name, check in INVARIANTS.items() for what in check(history)]


__all__ = [
    "INVARIANTS",
    "Call",
    "Commit",
    "Delivered",
    "Echo",
    "Epoch",
    "Fault",
    "Handled",
    "History",
    "LockChange",
    "LogEntry",
    "Outcome",
    "Poll",
    "Resources",
    "Sent",
    "Settled",
    "Violation",
    "violations",
]
