"""History of a run: what clients did in all its processes, and rules that it has to keep.

Each process makes its clients with a `Recorder`::

    recorder = Recorder(folder, process="worker-1")  # or Recorder(): in memory
    producer = recorder.producer("group", namesrv=namesrv)
    consumer = recorder.push_consumer("group", on_message=handle, orderly=True, namesrv=namesrv)

The methods take the arguments of the classes and return instances of subclasses of them, with the
same methods: `producer`, `transaction_producer`, `push_consumer`, `lite_pull_consumer`,
`pull_consumer` and `pop_consumer`.  Messages get a property `UID` by which their copies are known;
a message that already has one keeps it.  With a folder each event is written to the file of the
process before the call goes on, so a killed process loses none.

One process, usually the one that injects the faults, adds what no client knows:

- `Recorder.fault` (kinds: "kill" and "stall" of a process or consumer, "broker" for a broker that
  may have lost commits or pops, "locks" for one that forgot its locks, "routes" for a time in which
  routes were without a broker; others are free), `Recorder.reset`, `Recorder.drained`;
- `Recorder.stored` with the messages of all topics after the run, retry and dead-letter topics
  included: `recording.stored_log` reads embedded brokers, `fakes.log_reader` any broker.

Then::

    history = History.load(folder)  # or recorder.history
    assert check(history) == []
    print(Counter(each.reason for each in duplicates(history)))

A rule that needs something that was not recorded checks nothing: I1 to I7 and I25 need the log, I9
and I21 that the run was drained.  A group that begins elsewhere than at offset 0 needs
`History.starts`.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.history.consuming import CONSUMING
from tests.history.duplicates import DUPLICATES, Duplicate, duplicates
from tests.history.events import (
    UID,
    Call,
    Commit,
    Delivered,
    Echo,
    Epoch,
    Fault,
    Handled,
    LockChange,
    LogEntry,
    Outcome,
    Poll,
    Reset,
    Sent,
    Settled,
)
from tests.history.handling import HANDLING
from tests.history.history import History, Resources
from tests.history.process import PROCESS
from tests.history.producing import PRODUCING
from tests.history.recorder import Recorder
from tests.history.streaming import STREAMING
from tests.history.transactions import TRANSACTIONS

RULES = {**PRODUCING, **CONSUMING, **DUPLICATES, **HANDLING, **TRANSACTIONS, **STREAMING, **PROCESS}


class Violation(NamedTuple):
    """A violated rule, what happened, and the events that prove it."""

    rule: str
    what: str
    proof: tuple[object, ...] = ()


def check(history: History, *rules: str) -> list[Violation]:
    """Return all violations of *rules*, by default of all rules.

    Takes time in proportion to the number of events, apart from sorting them.
    """
    return [
        Violation(name, found.what, found.proof)
        for name in (rules or RULES)
        for found in RULES[name](history)
    ]


__all__ = [
    "RULES",
    "UID",
    "Call",
    "Commit",
    "Delivered",
    "Duplicate",
    "Echo",
    "Epoch",
    "Fault",
    "Handled",
    "History",
    "LockChange",
    "LogEntry",
    "Outcome",
    "Poll",
    "Recorder",
    "Reset",
    "Resources",
    "Sent",
    "Settled",
    "Violation",
    "check",
    "duplicates",
]
