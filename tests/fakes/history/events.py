"""What can be recorded of a run. All times are of one monotonic clock, in seconds."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rocketmq_aio.model.values import MessageQueue


class Violation(NamedTuple):
    """A promise that was broken, and the facts."""

    invariant: str
    what: str


class Outcome(Enum):
    """How an operation ended; only a FAIL has surely had no effect."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One call of send; *task* names whoever awaits its sends one after another."""

    uid: str
    body: bytes
    started: float
    outcome: Outcome
    queue: MessageQueue | None = None
    offset: int | None = None
    message_id: str | None = None
    task: str | None = None
    ordering_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One message as it lies in a queue after the run."""

    queue: MessageQueue
    offset: int
    body: bytes
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One tenure of a queue by one consumer; a seek or reset begins another.

    *begin* is the offset to be read first, where it is known.
    """

    number: int
    consumer: str
    queue: MessageQueue
    started: float
    ended: float | None = None
    begin: int | None = None

    def covers(self, at: float) -> bool:
        return self.started <= at and (self.ended is None or at <= self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One message that a poll returned."""

    at: float
    epoch: int
    consumer: str
    queue: MessageQueue
    offset: int
    body: bytes = b""
    poll: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One call of poll; *number* ascends for each consumer."""

    number: int
    consumer: str
    started: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The workload is done with a message: it may be committed from now on."""

    at: float
    queue: MessageQueue
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """One call of a handler with one message; *ended* is None if it never did.

    *tries* is the reconsume count that the handler saw.  OK settles the message, FAIL asks for
    another try, UNKNOWN is a handler that was cancelled or came too late.
    """

    consumer: str
    epoch: int
    queue: MessageQueue
    offset: int
    started: float
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    tries: int = 0
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChange:
    """A broker granted a queue to *consumer*, or was asked to take it back."""

    at: float
    queue: MessageQueue
    consumer: str
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit as the wire or the broker shows it: *offset* is the next to be read.

    *reset* marks one that somebody asked for explicitly, *auto* one by the client's own timer.
    """

    at: float
    queue: MessageQueue
    offset: int
    consumer: str | None = None
    auto: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a public coroutine; *ended* is None if it never did."""

    name: str
    deadline: float
    ended: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """What a call sent as its nonce, and what came back with its reply."""

    sent: str
    received: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """When a fault began and was healed, and whether anything showed that it took place."""

    started: float
    healed: float
    observed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a process holds at one moment."""

    tasks: int
    descriptors: int
    threads: int
    pending: int = 0  # entries in tables of the client: replies awaited, permits taken

    @classmethod
    def now(cls, pending: int = 0) -> Resources:
        return cls(
            tasks=len(asyncio.all_tasks()),
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            pending=pending,
        )


@dataclass(slots=True)
class History:
    """Everything recorded of one run. What stays empty or None is not checked.

    :ivar attempts: times each message id was written to a broker
    :ivar drained: the run went on until nothing was left to consume
    :ivar starts: where the group began in each queue; 0 elsewhere
    :ivar visible: whether a message of the log concerns the group (subscription, filter)
    :ivar extra_copies: redeliveries that faults and retries explain, besides epochs
    :ivar paced: times of requests or connects, by what repeats them (a queue, an address)
    :ivar most_per_second: how many of those one second may hold
    :ivar buffered_bytes: samples of what the client held
    :ivar work: when units of work were done
    :ivar orderly: the handlers of a queue take turns
    :ivar stalls: times that a consumer stood still for longer than its locks hold
    :ivar stood_still: seconds that the machine did not let this process run
    :ivar owners: who holds each queue after the group has come to rest
    """

    sends: list[Sent] = field(default_factory=list)
    log: list[LogEntry] = field(default_factory=list)
    attempts: dict[str, int] | None = None
    deliveries: list[Delivered] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    drained: bool = False
    starts: dict[MessageQueue, int] = field(default_factory=dict)
    visible: Callable[[LogEntry], bool] = lambda _entry: True
    extra_copies: int = 0
    calls: list[Call] = field(default_factory=list)
    before: Resources | None = None
    after: Resources | None = None
    unexpected: list[str] = field(default_factory=list)
    paced: dict[str, list[float]] = field(default_factory=dict)
    most_per_second: int = 10
    buffered_bytes: list[int] = field(default_factory=list)
    most_buffered_bytes: int | None = None
    echoes: list[Echo] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    fault: Fault | None = None
    handled: list[Handled] = field(default_factory=list)
    locks: list[LockChange] = field(default_factory=list)
    orderly: bool = False
    stalls: int = 0
    stood_still: float = 0.0
    owners: dict[MessageQueue, list[str]] | None = None

    def visible_offsets(self) -> dict[MessageQueue, list[int]]:
        """Return, queue by queue and ascending, what the group has to consume."""
        offsets: dict[MessageQueue, list[int]] = {}
        for entry in sorted(self.log, key=lambda e: (e.queue, e.offset)):
            if entry.offset >= self.starts.get(entry.queue, 0) and self.visible(entry):
                offsets.setdefault(entry.queue, []).append(entry.offset)
        return offsets
