"""Checks of consuming: delivered, committable and committed messages."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from rocketmq_aio.model.values import MessageQueue
from tests.fakes.history.events import Commit, Delivered, Epoch, Handled, History, Outcome


def i9_everything_is_settled_in_the_end(history: History) -> Iterator[str]:
    """After draining, the group has consumed all its messages."""
    if not history.drained:
        return
    settled = {(each.queue, each.offset) for each in history.settled}
    for queue, offsets in history.visible_offsets().items():
        for offset in offsets:
            if (queue, offset) not in settled:
                yield f"{queue}@{offset} was never settled"


def i10_commits_cover_only_what_is_settled(history: History) -> Iterator[str]:
    """At a commit, all messages below the offset are processed."""
    settled: dict[tuple[MessageQueue, int], float] = {}
    for each in history.settled:
        key = (each.queue, each.offset)
        settled[key] = min(each.at, settled.get(key, each.at))
    visible = history.visible_offsets()
    for commit in history.commits:
        if commit.reset:
            continue
        for offset in visible.get(commit.queue, ()):
            if offset < commit.offset and settled.get((commit.queue, offset), _NEVER) > commit.at:
                yield f"{_said(commit)} covers {offset}, which was not settled"
                break


def i11_commits_ascend_within_an_epoch(history: History) -> Iterator[str]:
    """Committed offsets never decrease, except after a seek or reset."""
    last: dict[tuple[MessageQueue, int | None], Commit] = {}
    for commit in sorted(history.commits, key=lambda c: c.at):
        key = (commit.queue, _epoch_of(commit, history.epochs))
        before = last.get(key)
        if before is not None and commit.offset < before.offset and not commit.reset:
            yield f"{_said(commit)} after {before.offset}"
        last[key] = commit


def i12_commits_happen_within_an_epoch(history: History) -> Iterator[str]:
    """Members commit only queues that are assigned to them at that time."""
    if not history.epochs:
        return
    for commit in history.commits:
        if commit.consumer is not None and _epoch_of(commit, history.epochs) is None:
            yield f"{_said(commit)} by {commit.consumer}, who did not hold the queue"


def i13_copies_are_explained(history: History) -> Iterator[str]:
    """A message is delivered once, and again per change of owner, fault or retry."""
    tenures = Counter(epoch.queue for epoch in history.epochs)
    counts = Counter((each.queue, each.offset) for each in history.deliveries)
    counts += Counter((each.queue, each.offset) for each in history.handled)
    again = Counter((e.queue, e.offset) for e in history.handled if e.outcome is not Outcome.OK)
    for (queue, offset), count in counts.items():
        allowed = max(1, tenures[queue]) + history.extra_copies + again[queue, offset]
        if count > allowed:
            yield f"{queue}@{offset} was delivered {count} times, {allowed} are explained"


def i16_only_what_is_wanted_is_delivered(history: History) -> Iterator[str]:
    """Delivered messages are in the log and match the filter of the group."""
    wanted = {(entry.queue, entry.offset): history.visible(entry) for entry in history.log}
    came: list[Delivered | Handled] = [*history.deliveries, *history.handled]
    for each in came:
        if wanted and not wanted.get((each.queue, each.offset), False):
            yield f"{each.queue}@{each.offset} was delivered, but is not wanted"


def i19_polls_are_contiguous(history: History) -> Iterator[str]:
    """Within an epoch messages are neither skipped nor repeated."""
    visible = history.visible_offsets()
    begins = {(epoch.queue, epoch.number): epoch.begin for epoch in history.epochs}
    for (queue, epoch), delivered in _by_epoch(history.deliveries).items():
        offsets = visible.get(queue, [])
        begin = begins.get((queue, epoch))
        expected = bisect_left(offsets, delivered[0].offset if begin is None else begin)
        for each in delivered:
            if offsets[expected : expected + 1] != [each.offset]:
                yield f"{queue} epoch {epoch}: {each.offset} came out of turn"
            expected = bisect_left(offsets, each.offset) + 1


def i20_auto_commits_stay_behind_the_last_poll(history: History) -> Iterator[str]:
    """The timer commits messages of earlier polls, not of the last one."""
    for commit in history.commits:
        if not commit.auto or commit.consumer is None:
            continue
        started = [p.number for p in history.polls if _before(p.consumer, p.started, commit)]
        last = max(started, default=0)
        ends = [
            each.offset + 1
            for each in history.deliveries
            if each.queue == commit.queue and each.consumer == commit.consumer and each.poll < last
        ]
        ends += [epoch.begin or 0 for epoch in history.epochs if _owns(epoch, commit)]
        end = max(ends, default=history.starts.get(commit.queue, 0))
        if commit.offset > end:
            yield f"{_said(commit)} by the timer, but earlier polls ended at {end}"


_NEVER = float("inf")


def _said(commit: Commit) -> str:
    return f"commit {commit.queue}@{commit.offset}"


def _before(consumer: str, at: float, commit: Commit) -> bool:
    return consumer == commit.consumer and at <= commit.at


def _owns(epoch: Epoch, commit: Commit) -> bool:
    return (
        epoch.queue == commit.queue
        and commit.consumer in (None, epoch.consumer)
        and epoch.covers(commit.at)
    )


def _epoch_of(commit: Commit, epochs: Iterable[Epoch]) -> int | None:
    return next((epoch.number for epoch in epochs if _owns(epoch, commit)), None)


def _by_epoch(deliveries: Iterable[Delivered]) -> dict[tuple[MessageQueue, int], list[Delivered]]:
    grouped: dict[tuple[MessageQueue, int], list[Delivered]] = defaultdict(list)
    for each in deliveries:
        grouped[each.queue, each.epoch].append(each)
    return grouped


CONSUMING = {
    "I9": i9_everything_is_settled_in_the_end,
    "I10": i10_commits_cover_only_what_is_settled,
    "I11": i11_commits_ascend_within_an_epoch,
    "I12": i12_commits_happen_within_an_epoch,
    "I13": i13_copies_are_explained,
    "I16": i16_only_what_is_wanted_is_delivered,
    "I19": i19_polls_are_contiguous,
    "I20": i20_auto_commits_stay_behind_the_last_poll,
}
