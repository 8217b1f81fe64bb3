"""Recorded events of a run. All times are from one monotonic clock, in seconds."""

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
    """A violated guarantee, with details."""

    invariant: str
    what: str


class Outcome(Enum):
    """Outcome of an operation; only FAIL certainly had no effect."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One call of send; sends of one *task* are awaited one after another."""

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
    """One message in a queue after the run."""

    queue: MessageQueue
    offset: int
    body: bytes
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Period of assignment of a queue to a consumer; a seek or reset starts another.

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
    """One call of poll; *number* increases for each consumer."""

    number: int
    consumer: str
    started: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The workload has processed a message: it is committable."""

    at: float
    queue: MessageQueue
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """One call of a handler with one message; *ended* is None if it did not end.

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
    """A broker locked a queue for *consumer*, or was asked to unlock it."""

    at: float
    queue: MessageQueue
    consumer: str
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit seen in requests or at the broker: *offset* is the next to be read.

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
    """One call of a public coroutine; *ended* is None if it did not end."""

    name: str
    deadline: float
    ended: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """The nonce of a call, and the nonce of its reply."""

    sent: str
    received: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Start and end of a fault, and whether its effect was observed."""

    started: float
    healed: float
    observed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of the process at one time."""

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
    """All recorded events of a run. Empty or None fields are not checked.

    :ivar attempts: times each message id was written to a broker
    :ivar drained: the run continued until all messages were consumed
    :ivar starts: start offset of the group by queue; default: 0
    :ivar visible: whether a message of the log matches the subscription of the group
    :ivar extra_copies: allowed redeliveries by faults and retries, in addition to epochs
    :ivar paced: times of requests or connects, by queue or address
    :ivar most_per_second: maximum of these times per second
    :ivar buffered_bytes: samples of the bytes buffered by the client
    :ivar work: times of finished units of work
    :ivar orderly: handlers of a queue must not overlap
    :ivar stalls: number of stalls of a consumer that exceeded its lock time
    :ivar delayed: seconds in which this process was not scheduled
    :ivar owners: owner of each queue after the last rebalance
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
    delayed: float = 0.0
    owners: dict[MessageQueue, list[str]] | None = None

    def visible_offsets(self) -> dict[MessageQueue, list[int]]:
        """Return the messages that the group has to consume, by queue in ascending order."""
        offsets: dict[MessageQueue, list[int]] = {}
        for entry in sorted(self.log, key=lambda e: (e.queue, e.offset)):
            if entry.offset >= self.starts.get(entry.queue, 0) and self.visible(entry):
                offsets.setdefault(entry.queue, []).append(entry.offset)
        return offsets
