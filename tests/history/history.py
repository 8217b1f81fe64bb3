"""History: the events of all processes of a run, joined."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rocketmq_aio.model.names import INTERNAL_PREFIXES, RETRY_PREFIX, UNSENDABLE_TOPICS
from rocketmq_aio.model.values import MessageQueue
from tests.history import events
from tests.history.events import (
    Acked,
    Commit,
    Delivered,
    Epoch,
    Event,
    Fault,
    Handled,
    Hidden,
    Joined,
    LogEntry,
    Outcome,
    Poll,
    Reset,
    Sent,
    SentBack,
    Settled,
)

SUFFIX = ".history.jsonl"


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


class Held(NamedTuple):
    """A queue as one consumer of a group has it."""

    group: str
    consumer: str
    queue: MessageQueue


@dataclass(slots=True)
class History:
    """All recorded events of a run. Empty or None fields are not checked.

    :ivar attempts: times each message id was written to a broker
    :ivar drained: the run continued until all messages were consumed
    :ivar starts: start offset of the groups by queue; default: 0
    :ivar visible: whether a message of the log matches the filter of a group, if its expression
        does not tell
    :ivar topics: the topics of each group, with their expressions; none: the whole log
    :ivar orderly: groups whose handlers of a queue must not overlap
    :ivar popping: groups that acknowledge messages instead of committing offsets
    :ivar paced: times of requests or connects, by queue or address
    :ivar most_per_second: maximum of these times per second
    :ivar buffered_bytes: samples of the bytes buffered by the client
    :ivar work: times of finished units of work
    :ivar fault: the fault that the run is about
    :ivar faults: all faults
    :ivar delayed: seconds in which this process was not scheduled
    :ivar owners: owner of each queue after the last rebalance
    """

    sends: list[Sent] = field(default_factory=list)
    log: list[LogEntry] = field(default_factory=list)
    attempts: dict[str, int] | None = None
    recalled: list[events.Recalled] = field(default_factory=list)
    decided: list[events.Decided] = field(default_factory=list)
    local_parts: list[events.LocalPart] = field(default_factory=list)
    transaction_ends: list[events.TransactionEnded] = field(default_factory=list)
    members: dict[str, Joined] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    topics: dict[str, dict[str, str | None]] = field(default_factory=dict)
    deliveries: list[Delivered] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    pauses: list[events.Paused] = field(default_factory=list)
    pulls: list[events.Pulled] = field(default_factory=list)
    reads: list[events.RangeRead] = field(default_factory=list)
    checkpoints: list[events.Checkpointed] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    sent_back: list[SentBack] = field(default_factory=list)
    dead_lettered: list[events.DeadLettered] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    acked: list[Acked] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    locks: list[events.LockChange] = field(default_factory=list)
    drained: bool = False
    starts: dict[MessageQueue, int] = field(default_factory=dict)
    visible: Callable[[LogEntry], bool] = lambda _entry: True
    orderly: set[str] = field(default_factory=set)
    popping: set[str] = field(default_factory=set)
    calls: list[events.Call] = field(default_factory=list)
    before: Resources | None = None
    after: Resources | None = None
    unexpected: list[str] = field(default_factory=list)
    paced: dict[str, list[float]] = field(default_factory=dict)
    most_per_second: int = 10
    buffered_bytes: list[int] = field(default_factory=list)
    most_buffered_bytes: int | None = None
    echoes: list[events.Echo] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    fault: Fault | None = None
    faults: list[Fault] = field(default_factory=list)
    delayed: float = 0.0
    owners: dict[MessageQueue, list[str]] | None = None
    # Of `add`: events whose end is to come.
    _open: dict[str, Any] = field(default_factory=dict)
    _epochs: dict[Held, Epoch] = field(default_factory=dict)
    _unprocessed: dict[str, list[Delivered]] = field(default_factory=lambda: defaultdict(list))
    _places: dict[tuple[str, str, int], Delivered | Handled] = field(default_factory=dict)
    _by_identity: dict[tuple[str, str, int], Delivered | Handled] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    @classmethod
    def load(cls, folder: Path) -> History:
        """Return the history in the files that recorders wrote to *folder*.

        A line that its process was killed in is ignored.
        """
        decode = msgspec.json.Decoder(events.AnyEvent).decode
        lines: list[events.AnyEvent] = []
        for path in sorted(folder.glob("*" + SUFFIX)):
            raw = path.read_bytes().split(b"\n")
            lines += [decode(line) for line in raw[:-1]]
        history = cls()
        history.extend(sorted(lines, key=_time))
        return history

    def extend(self, given: Iterable[Event]) -> None:
        """Add events in the order of their times."""
        for event in given:
            self.add(event)

    def add(self, event: Event) -> None:
        """Add *event*, which is later than all others of its kind."""
        _ADD[type(event)](self, event)

    # --- what rules ask ---------------------------------------------------------------------------

    def groups(self) -> set[str]:
        """Return the groups that consumed."""
        seen = {each.group for each in self.members.values()}
        for found in (self.handled, self.deliveries, self.settled):
            seen |= {each.group for each in found}
        return seen

    def is_visible(self, group: str, entry: LogEntry) -> bool:
        """Whether *group* has to consume *entry*."""
        topic = entry.queue.topic
        if topic.startswith(RETRY_PREFIX):
            return topic == RETRY_PREFIX + group or group in self.popping
        if topic in UNSENDABLE_TOPICS or topic.startswith(INTERNAL_PREFIXES):
            return False
        subscribed = self.topics.get(group)
        if subscribed is None:
            return self.visible(entry)
        if topic not in subscribed:
            return False
        expression = subscribed[topic]
        if expression is None or expression == "*":
            return self.visible(entry)
        return entry.tags in [tag.strip() for tag in expression.split("||")]

    def visible_offsets(self, group: str = "") -> dict[MessageQueue, list[int]]:
        """Return the messages that *group* has to consume, by queue in ascending order."""
        offsets: dict[MessageQueue, list[int]] = {}
        for entry in sorted(self.log, key=lambda e: (e.queue, e.offset)):
            if entry.offset >= self.starts.get(entry.queue, 0) and self.is_visible(group, entry):
                offsets.setdefault(entry.queue, []).append(entry.offset)
        return offsets

    # --- adding -----------------------------------------------------------------------------------

    def _add_sent(self, sent: Sent) -> None:
        self.sends.append(sent)
        self._open[sent.number] = sent

    def _add_attempt(self, attempt: events.Attempted) -> None:
        self._open[attempt.number].attempts += 1

    def _add_send_ended(self, ended: events.SendEnded) -> None:
        sent: Sent = self._open.pop(ended.number)
        sent.ended, sent.outcome, sent.error = ended.at, ended.outcome, ended.error
        sent.queue, sent.offset, sent.message_id = ended.queue, ended.offset, ended.message_id

    def _add_joined(self, joined: Joined) -> None:
        self.members[joined.consumer] = joined
        if joined.orderly:
            self.orderly.add(joined.group)
        if joined.kind == "pop":
            self.popping.add(joined.group)

    def _add_left(self, left: events.Left) -> None:
        self.left[left.consumer] = left.at
        for held, epoch in list(self._epochs.items()):
            if held.consumer == left.consumer and held.group == left.group:
                epoch.ended = left.at
                del self._epochs[held]

    def _add_subscribed(self, subscribed: events.Subscribed) -> None:
        self.topics.setdefault(subscribed.group, {})[subscribed.topic] = subscribed.expression

    def _add_assigned(self, assigned: events.Assigned, begin: int | None = None) -> None:
        held = Held(assigned.group, assigned.consumer, assigned.queue)
        epoch = Epoch(
            number=next(self._numbers),
            group=held.group,
            consumer=held.consumer,
            queue=held.queue,
            started=assigned.at,
            begin=begin,
        )
        self.epochs.append(epoch)
        self._epochs[held] = epoch

    def _add_revoked(self, revoked: events.Revoked) -> None:
        held = Held(revoked.group, revoked.consumer, revoked.queue)
        epoch = self._epochs.pop(held, None)
        if epoch is not None:
            epoch.ended, epoch.lost_lock = revoked.at, revoked.lost_lock

    def _add_reset(self, reset: Reset) -> None:
        self.resets.append(reset)
        for held, epoch in list(self._epochs.items()):
            theirs = not reset.consumer or held.consumer == reset.consumer
            if theirs and (held.group, held.queue) == (reset.group, reset.queue):
                epoch.ended = reset.at
                begun = events.Assigned(
                    at=reset.at, group=held.group, consumer=held.consumer, queue=held.queue
                )
                self._add_assigned(begun, reset.offset)

    def _epoch(self, each: Delivered | Handled) -> int:
        epoch = self._epochs.get(Held(each.group, each.consumer, each.queue))
        return 0 if epoch is None else epoch.number

    def _add_poll(self, poll: Poll) -> None:
        self.polls.append(poll)
        processed = events.Processed(at=poll.started, consumer=poll.consumer, group=poll.group)
        self._add_processed(processed)

    def _add_processed(self, processed: events.Processed) -> None:
        returned = self._unprocessed.pop(processed.consumer, [])
        for each in returned:
            ours = processed.queue in (None, each.queue)
            if ours and (processed.offset is None or each.offset < processed.offset):
                self._settle(each, processed.at)
            else:
                self._unprocessed[processed.consumer].append(each)

    def _add_checkpointed(self, checkpointed: events.Checkpointed) -> None:
        self.checkpoints.append(checkpointed)
        for read in self.reads:
            if (read.group, read.batch) == (checkpointed.group, checkpointed.batch):
                for offset, identity in read.rows:
                    self.settled.append(
                        Settled(
                            at=checkpointed.at,
                            queue=read.queue,
                            offset=offset,
                            group=read.group,
                            uid=identity,
                        )
                    )

    def _add_delivered(self, delivered: Delivered) -> None:
        if not delivered.epoch:
            delivered.epoch = self._epoch(delivered)
        self.deliveries.append(delivered)
        self._unprocessed[delivered.consumer].append(delivered)
        self._place(delivered)

    def _add_handled(self, handled: Handled) -> None:
        if not handled.epoch:
            handled.epoch = self._epoch(handled)
        self.handled.append(handled)
        self._open[handled.number] = handled
        self._place(handled)

    def _place(self, each: Delivered | Handled) -> None:
        if each.log_offset is not None:
            self._places[each.group, each.queue.broker_name, each.log_offset] = each
        self._by_identity[each.group, each.identity, each.tries] = each

    def _add_handler_ended(self, ended: events.HandlerEnded) -> None:
        handled: Handled = self._open.pop(ended.number)
        handled.ended, handled.outcome = ended.at, ended.outcome
        if ended.outcome is Outcome.OK:
            self._settle(handled, ended.at)

    def _settle(self, each: Delivered | Handled, at: float, *, final: bool = True) -> None:
        self.settled.append(
            Settled(
                at=at,
                queue=each.queue,
                offset=each.offset,
                group=each.group,
                consumer=each.consumer,
                uid=each.identity,
                final=final,
            )
        )

    def _add_sent_back(self, sent_back: SentBack) -> None:
        self.sent_back.append(sent_back)
        self._open[sent_back.number] = sent_back
        if not sent_back.uid and sent_back.log_offset is not None:
            place = (sent_back.group, sent_back.broker, sent_back.log_offset)
            if (message := self._places.get(place)) is not None:
                sent_back.uid = message.identity

    def _add_recalled(self, recalled: events.Recalled) -> None:
        self.recalled.append(recalled)
        self._open[recalled.number] = recalled

    def _add_commit(self, commit: Commit) -> None:
        self.commits.append(commit)
        self._open[commit.number] = commit

    def _add_acked(self, acked: Acked) -> None:
        self.acked.append(acked)
        self.popping.add(acked.group)
        self._open[acked.number] = acked

    def _add_transaction_ended(self, ended: events.TransactionEnded) -> None:
        self.transaction_ends.append(ended)
        self._open[ended.number] = ended

    def _add_confirmed(self, confirmed: events.Confirmed) -> None:
        started = self._open.pop(confirmed.number)
        started.confirmed = confirmed.at
        if isinstance(started, SentBack):
            message = self._sent_back_message(started)
            if message is not None:
                self._settle(message, confirmed.at, final=False)

    def _sent_back_message(self, sent_back: SentBack) -> Delivered | Handled | None:
        if sent_back.log_offset is None:
            key = (sent_back.group, sent_back.uid, sent_back.tries)
            return self._by_identity.get(key)
        return self._places.get((sent_back.group, sent_back.broker, sent_back.log_offset))

    def _add_fault(self, fault: Fault) -> None:
        self.faults.append(fault)
        if fault.kind == "kill":  # handlers end with their process
            for run in self.handled:
                if run.ended is None and run.number.startswith(f"{fault.target}-"):
                    run.ended = fault.started

    def _add_drained(self, _drained: events.Drained) -> None:
        self.drained = True


def _time(event: Event) -> float:
    """Return when *event* happened; those without a time come first or last."""
    if isinstance(event, Sent | Handled | Poll | Fault):
        return event.started
    if isinstance(event, events.Subscribed):
        return float("-inf")
    at: float = getattr(event, "at", float("inf"))
    return at


_ADD: dict[type[Event], Callable[[History, Any], None]] = {
    Sent: History._add_sent,
    events.Attempted: History._add_attempt,
    events.SendEnded: History._add_send_ended,
    events.Recalled: History._add_recalled,
    events.Decided: lambda history, event: history.decided.append(event),
    events.LocalPart: lambda history, event: history.local_parts.append(event),
    events.TransactionEnded: History._add_transaction_ended,
    LogEntry: lambda history, event: history.log.append(event),
    Joined: History._add_joined,
    events.Left: History._add_left,
    events.Subscribed: History._add_subscribed,
    events.Assigned: History._add_assigned,
    events.Revoked: History._add_revoked,
    Reset: History._add_reset,
    Poll: History._add_poll,
    events.Paused: lambda history, event: history.pauses.append(event),
    events.Pulled: lambda history, event: history.pulls.append(event),
    events.RangeRead: lambda history, event: history.reads.append(event),
    events.Checkpointed: History._add_checkpointed,
    events.Processed: History._add_processed,
    Delivered: History._add_delivered,
    Handled: History._add_handled,
    events.HandlerEnded: History._add_handler_ended,
    Settled: lambda history, event: history.settled.append(event),
    SentBack: History._add_sent_back,
    events.DeadLettered: lambda history, event: history.dead_lettered.append(event),
    events.LockChange: lambda history, event: history.locks.append(event),
    Commit: History._add_commit,
    Acked: History._add_acked,
    Hidden: lambda history, event: history.hidden.append(event),
    events.Confirmed: History._add_confirmed,
    Fault: History._add_fault,
    events.Drained: History._add_drained,
    events.Call: lambda history, event: history.calls.append(event),
    events.Echo: lambda history, event: history.echoes.append(event),
}
