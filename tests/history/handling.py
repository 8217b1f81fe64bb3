"""Rules of handlers: retries, order, assignments and locks."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, TypeVar

from rocketmq_aio.model.values import MessageQueue
from tests.history.events import Fault, Handled, LockChange, Outcome
from tests.history.history import History
from tests.history.rules import NEVER, Finding, expected_offsets, first_settled, scope

K = TypeVar("K")
LOCK_SECONDS: Final = 60.0  # after which brokers give the queue of a silent member to another


def i14_every_try_is_counted(history: History) -> Iterator[Finding]:
    """A message with a retry count was handled once with each lower count."""
    failed: dict[tuple[str, str, int], float] = {}
    runs = [each for each in history.handled if each.group not in history.popping]
    for each in runs:
        if each.outcome is not Outcome.OK:
            key = (each.group, each.identity, each.tries)
            failed[key] = min(each.started, failed.get(key, each.started))
    for each in runs:
        key = (each.group, each.identity, each.tries - 1)
        if each.tries and failed.get(key, NEVER) >= each.started:
            what = f"{_shown(each)} is try {each.tries}, but no earlier one failed before it"
            yield Finding(what, (each,))


def i15_every_queue_has_one_owner(history: History) -> Iterator[Finding]:
    """Without rebalances each queue is assigned to one member of its group."""
    for queue, owners in (history.owners or {}).items():
        if len(owners) != 1:
            yield Finding(f"{queue} has {len(owners)} owners: {', '.join(owners)}")


def i17_each_waits_for_the_one_before(history: History) -> Iterator[Finding]:
    """Within an epoch handlers start in order, each after earlier messages are processed."""
    settled = first_settled(history)
    expected = {group: expected_offsets(history, group) for group in history.orderly}
    grouped = _grouped(history, lambda e: (e.group, e.queue, e.consumer, e.epoch))
    for (group, queue, consumer, _), runs in grouped.items():
        visible = expected[group].get(queue, [])
        member = scope(history, group, consumer)
        for before, after in pairwise(runs):
            if before.call and before.call == after.call:
                continue
            if after.offset < before.offset:
                yield Finding(f"{_shown(after)} after {before.offset}", (before, after))
            between = slice(bisect_left(visible, before.offset), bisect_left(visible, after.offset))
            for offset in visible[between]:
                if settled.get((member, queue, offset), NEVER) > after.started:
                    what = f"{_shown(after)} began before {offset} was settled"
                    yield Finding(what, (before, after))


def i18_handlers_of_a_queue_never_overlap(history: History) -> Iterator[Finding]:
    """One handler per queue at a time, across consumers.

    A consumer that stalled for longer than brokers keep its lock may have one handler left per
    queue, and one whose lock the broker forgot has not learned it before its next request.
    """
    locks, used = Locks(history), set[tuple[float, str, MessageQueue]]()
    grouped = _grouped(history, lambda e: (scope(history, e.group, e.consumer), e.queue))
    for runs in grouped.values():
        last = runs[0]
        for each in runs[1:]:
            if each.started < _end(last) and not (each.call and each.call == last.call):
                stall = _stall(history, last, each.started)
                allowed = (stall.started, stall.target, each.queue) if stall is not None else None
                if allowed is not None and allowed not in used:
                    used.add(allowed)
                elif not any(locks.is_forgotten_of(run, each.started) for run in (last, each)):
                    what = f"{_shown(each)} began while {last.consumer} had {last.offset}"
                    yield Finding(what, (last, each))
            last = max(last, each, key=_end)


def _stall(history: History, run: Handled, at: float) -> Fault | None:
    """Return the stall in which *run* lost its lock before *at*."""
    member = history.members.get(run.consumer)
    names = {run.consumer, "" if member is None else member.process} - {""}
    for fault in history.faults:
        is_long = fault.healed - fault.started > LOCK_SECONDS
        is_theirs = fault.kind == "stall" and fault.target in names
        if is_theirs and is_long and run.started <= fault.healed and fault.started <= at:
            return fault
    return None


class Locks:
    """The locks of queues, and the times at which brokers forgot them."""

    def __init__(self, history: History) -> None:
        self.changes: dict[tuple[str, MessageQueue], list[LockChange]] = defaultdict(list)
        for change in sorted(history.locks, key=lambda c: c.at):
            self.changes[change.group, change.queue].append(change)
        self._forgotten = [fault for fault in history.faults if fault.kind == "locks"]

    def is_forgotten(self, grant: LockChange, at: float) -> bool:
        """Whether the broker forgot a lock before *at* that it last confirmed by *grant*."""
        return any(
            fault.target == grant.queue.broker_name
            and grant.at <= fault.healed
            and fault.started <= at
            for fault in self._forgotten
        )

    def is_forgotten_of(self, run: Handled, at: float) -> bool:
        """Whether the broker forgot before *at* the lock under which *run* started."""
        grant = None
        for change in self.changes.get((run.group, run.queue), ()):
            if change.at <= run.started and change.consumer == run.consumer:
                grant = change
        return grant is not None and grant.held and self.is_forgotten(grant, at)


def p7_handlers_run_under_a_lock(history: History) -> Iterator[Finding]:
    """A handler starts with the lock of its queue, which is released after its end.

    A lock that the broker forgot, and gave to another, counts until the next response about it.
    """
    locks = Locks(history)
    known = {change.group for change in history.locks}
    known |= {each.group for each in history.members.values()}
    for (group, queue), runs in _grouped(history, lambda e: (e.group, e.queue)).items():
        if group in known:
            yield from _under_a_lock(runs, locks.changes.get((group, queue), []), locks)


def _under_a_lock(
    runs: list[Handled], changes: list[LockChange], locks: Locks
) -> Iterator[Finding]:
    owners: dict[str, LockChange] = {}  # several only where the broker forgot the earlier ones
    running: list[Handled] = []
    order: list[tuple[float, int, Handled | LockChange]] = [(c.at, 0, c) for c in changes]
    order += [(run.started, 1, run) for run in runs]
    for at, _, event in sorted(order, key=lambda each: each[:2]):
        running = [run for run in running if at < _end(run)]
        if isinstance(event, Handled):
            if event.consumer not in owners:
                what = f"{_shown(event)} began without the lock"
                yield Finding(what, (*owners.values(), event))
            running.append(event)
        elif event.held:
            kept = (each for each in owners.values() if locks.is_forgotten(each, at))
            owners = {each.consumer: each for each in (*kept, event)}
        elif event.consumer in owners:
            del owners[event.consumer]
            for run in running:
                if run.consumer == event.consumer and not event.refused:
                    what = f"{_shown(run)} still ran when its queue was unlocked"
                    yield Finding(what, (run, event))


def _shown(run: Handled) -> str:
    return f"handler of {run.queue}@{run.offset} at {run.consumer}"


def _end(run: Handled) -> float:
    return NEVER if run.ended is None else run.ended


def _grouped(history: History, key: Callable[[Handled], K]) -> dict[K, list[Handled]]:
    """Return the handlers of orderly groups by *key*, in the order of their starts."""
    grouped: dict[K, list[Handled]] = defaultdict(list)
    runs = [each for each in history.handled if each.group in history.orderly]
    for each in sorted(runs, key=lambda run: run.started):
        grouped[key(each)].append(each)
    return grouped


HANDLING = {
    "I14": i14_every_try_is_counted,
    "I15": i15_every_queue_has_one_owner,
    "I17": i17_each_waits_for_the_one_before,
    "I18": i18_handlers_of_a_queue_never_overlap,
    "P7": p7_handlers_run_under_a_lock,
}
