"""Rules of handlers: retries, order, assignments and locks."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

from rocketmq_aio.model.values import MessageQueue
from tests.history.events import Handled, LockChange, Outcome
from tests.history.history import History
from tests.history.rules import NEVER, Finding, expected_offsets, first_settled, scope

K = TypeVar("K")


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
    """One handler per queue at a time, across consumers, except for one message per stall."""
    overlaps = []
    grouped = _grouped(history, lambda e: (scope(history, e.group, e.consumer), e.queue))
    for runs in grouped.values():
        last = runs[0]
        for each in runs[1:]:
            if each.started < _end(last) and not (each.call and each.call == last.call):
                what = f"{_shown(each)} began while {last.consumer} had {last.offset}"
                overlaps.append(Finding(what, (last, each)))
            last = max(last, each, key=_end)
    if len(overlaps) > history.stalls:
        yield from overlaps


def p7_handlers_run_under_a_lock(history: History) -> Iterator[Finding]:
    """A handler starts with the lock of its queue, which is released after its end."""
    changes: dict[tuple[str, MessageQueue], list[LockChange]] = defaultdict(list)
    for change in sorted(history.locks, key=lambda c: c.at):
        changes[change.group, change.queue].append(change)
    known = {change.group for change in history.locks}
    known |= {each.group for each in history.members.values()}
    for (group, queue), runs in _grouped(history, lambda e: (e.group, e.queue)).items():
        if group in known:
            yield from _under_a_lock(runs, changes.get((group, queue), []))


def _under_a_lock(runs: list[Handled], changes: list[LockChange]) -> Iterator[Finding]:
    owner: LockChange | None = None
    running: list[Handled] = []
    order: list[tuple[float, int, Handled | LockChange]] = [(c.at, 0, c) for c in changes]
    order += [(run.started, 1, run) for run in runs]
    for at, _, event in sorted(order, key=lambda each: each[:2]):
        running = [run for run in running if at < _end(run)]
        if isinstance(event, Handled):
            if owner is None or owner.consumer != event.consumer:
                yield Finding(f"{_shown(event)} began without the lock", (owner, event))
            running.append(event)
        elif event.held:
            owner = event
        elif owner is not None and owner.consumer == event.consumer:
            owner = None
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
