"""Checks of handlers: retries, order, assignments and locks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from rocketmq_aio.model.values import MessageQueue
from tests.fakes.history.events import Handled, History, LockChange, Outcome


def i14_every_try_is_counted(history: History) -> Iterator[str]:
    """A message with a retry count was handled once with each lower count."""
    failed: dict[tuple[bytes, int], float] = {}
    for each in history.handled:
        if each.outcome is not Outcome.OK:
            key = (each.body, each.tries)
            failed[key] = min(each.started, failed.get(key, each.started))
    for each in history.handled:
        if each.tries and failed.get((each.body, each.tries - 1), _NEVER) >= each.started:
            yield f"{_said(each)} is try {each.tries}, but no earlier one failed before it"


def i15_every_queue_has_one_owner(history: History) -> Iterator[str]:
    """Without rebalances each queue is assigned to one member of its group."""
    for queue, owners in (history.owners or {}).items():
        if len(owners) != 1:
            yield f"{queue} has {len(owners)} owners: {', '.join(owners)}"


def i17_each_waits_for_the_one_before(history: History) -> Iterator[str]:
    """Within an epoch handlers start in order, each after earlier messages are processed."""
    if not history.orderly:
        return
    settled: dict[tuple[MessageQueue, int], float] = {}
    for done in history.settled:
        key = (done.queue, done.offset)
        settled[key] = min(done.at, settled.get(key, done.at))
    visible = history.visible_offsets()
    for runs in _by_epoch(history).values():
        for before, after in pairwise(runs):
            if after.offset < before.offset:
                yield f"{_said(after)} after {before.offset}"
            for offset in visible.get(after.queue, ()):
                waits = before.offset <= offset < after.offset
                if waits and settled.get((after.queue, offset), _NEVER) > after.started:
                    yield f"{_said(after)} began before {offset} was settled"


def i18_handlers_of_a_queue_never_overlap(history: History) -> Iterator[str]:
    """One handler per queue at a time, across consumers, except for one message per stall."""
    if not history.orderly:
        return
    overlaps = []
    for runs in _by_queue(history).values():
        last = runs[0]
        for each in runs[1:]:
            if each.started < _end(last):
                overlaps.append(f"{_said(each)} began while {last.consumer} had {last.offset}")
            last = max(last, each, key=_end)
    if len(overlaps) > history.stalls:
        yield from overlaps


def p7_handlers_run_under_a_lock(history: History) -> Iterator[str]:
    """A handler starts with the lock of its queue, which is released after its end."""
    if not history.orderly or not history.locks:
        return
    changes: dict[MessageQueue, list[LockChange]] = defaultdict(list)
    for change in sorted(history.locks, key=lambda c: c.at):
        changes[change.queue].append(change)
    for run in history.handled:
        told = changes[run.queue]
        before = [c for c in told if c.at <= run.started]
        if not before or not before[-1].held or before[-1].consumer != run.consumer:
            yield f"{_said(run)} began without the lock"
        for change in told:
            ours = change.consumer == run.consumer and not change.held
            if ours and run.started < change.at < _end(run):
                yield f"{_said(run)} still ran when its queue was unlocked"


_NEVER = float("inf")


def _said(run: Handled) -> str:
    return f"handler of {run.queue}@{run.offset} at {run.consumer}"


def _end(run: Handled) -> float:
    return _NEVER if run.ended is None else run.ended


def _by_queue(history: History) -> dict[MessageQueue, list[Handled]]:
    grouped: dict[MessageQueue, list[Handled]] = defaultdict(list)
    for each in sorted(history.handled, key=lambda run: run.started):
        grouped[each.queue].append(each)
    return grouped


def _by_epoch(history: History) -> dict[tuple[MessageQueue, str, int], list[Handled]]:
    grouped: dict[tuple[MessageQueue, str, int], list[Handled]] = defaultdict(list)
    for each in sorted(history.handled, key=lambda run: run.started):
        grouped[each.queue, each.consumer, each.epoch].append(each)
    return grouped


HANDLING = {
    "I14": i14_every_try_is_counted,
    "I15": i15_every_queue_has_one_owner,
    "I17": i17_each_waits_for_the_one_before,
    "I18": i18_handlers_of_a_queue_never_overlap,
    "P7": p7_handlers_run_under_a_lock,
}
