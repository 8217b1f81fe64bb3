"""Rules of consuming: delivered, committable and committed messages."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from rocketmq_aio.model.names import DLQ_PREFIX
from rocketmq_aio.model.values import MessageQueue
from tests.history.events import Commit, Delivered, Event, Outcome, Paused, Reset, Settled
from tests.history.history import History
from tests.history.rules import (
    Epochs,
    Finding,
    GroupQueue,
    by_queue,
    expected_offsets,
    first_settled,
    receptions,
    scope,
)


def i9_everything_is_settled_in_the_end(history: History) -> Iterator[Finding]:
    """After draining, each group has consumed all its messages."""
    if not history.drained:
        return
    groups = history.groups()
    if not groups and (history.log or history.sends):
        yield Finding("no group consumed anything")
    for group in groups:
        yield from _acknowledged_but_lost(history, group)
        if group not in history.popping:  # their copies that expire become others
            yield from _unsettled(history, group)


def _unsettled(history: History, group: str) -> Iterator[Finding]:
    settled, starts = first_settled(history), _reset_offsets(history)
    for queue, offsets in expected_offsets(history, group).items():
        start = starts[GroupQueue(group, queue)]
        for member in _members(history, group):
            for offset in offsets:
                if (member, queue, offset) not in settled and offset >= start:
                    yield Finding(f"{queue}@{offset} was never settled by {member!r}")


def _members(history: History, group: str) -> list[str]:
    """Return the group, or in broadcasting its members."""
    scopes = {
        scope(history, group, each.consumer)
        for each in history.members.values()
        if each.group == group
    }
    return sorted(scopes) or [group]


def _reset_offsets(history: History) -> dict[GroupQueue, int]:
    """Return the highest offset to which each group was reset."""
    highest: dict[GroupQueue, int] = defaultdict(int)
    for reset in history.resets:
        key = GroupQueue(reset.group, reset.queue)
        highest[key] = max(highest[key], reset.offset)
    return highest


def _acknowledged_but_lost(history: History, group: str) -> Iterator[Finding]:
    done = {each.uid for each in history.settled if each.group == group and each.final}
    done |= _dead(history, group) | {recalled.uid for recalled in history.recalled}
    subscribed = history.topics.get(group)
    if subscribed is None:
        return  # which messages it has to get is not known
    resets = _reset_offsets(history)
    for sent in history.sends:
        if sent.outcome is not Outcome.OK or sent.transaction or sent.identity in done:
            continue
        if subscribed.get(sent.topic) != "*":
            continue
        if sent.queue is not None and sent.offset is not None:
            skipped = resets[GroupQueue(group, sent.queue)]
            start = max(history.starts.get(sent.queue, 0), skipped)
            if 0 <= sent.offset < start:
                continue
        yield Finding(f"{sent.identity} was acknowledged, but never consumed by {group}", (sent,))


def _dead(history: History, group: str) -> set[str]:
    """Return the messages of *group* in its dead-letter topic.

    Where that topic was not read, those count that a consumer reported and sent back.
    """
    topic = DLQ_PREFIX + group
    dead = {entry.identity for entry in history.log if entry.queue.topic == topic}
    if dead:
        return dead
    stored = {each.uid for each in history.sent_back if each.group == group and each.confirmed}
    reported = {(d.queue, d.offset) for d in history.dead_lettered if d.group == group}
    got = (each for each in receptions(history) if each.group == group)
    return stored & {each.identity for each in got if (each.queue, each.offset) in reported}


def i10_commits_cover_only_what_is_settled(history: History) -> Iterator[Finding]:
    """At a commit, all messages below the offset are processed."""
    progress: list[tuple[float, int, Event]] = []
    progress += [(each.at, 0, each) for each in history.settled]
    progress += [(each.at, 1, each) for each in history.resets]
    progress += [(each.at, 2, each) for each in history.commits]
    progress.sort(key=lambda p: p[:2])
    settled: dict[GroupQueue, set[int]] = defaultdict(set)
    floors: dict[GroupQueue, int] = defaultdict(int)
    places: dict[GroupQueue, int] = defaultdict(int)  # of the first unsettled one
    expected = {group: expected_offsets(history, group) for group in _committing(history)}
    for _, _, event in progress:
        if isinstance(event, Settled):
            key = GroupQueue(scope(history, event.group, event.consumer), event.queue)
            settled[key].add(event.offset)
            continue
        assert isinstance(event, Reset | Commit)
        key = GroupQueue(event.group, event.queue)
        if isinstance(event, Reset):
            floors[key] = max(floors[key], event.offset)
            continue
        offsets = expected[event.group].get(event.queue, [])
        place = places[key]
        while place < len(offsets) and (
            offsets[place] in settled[key] or offsets[place] < floors[key]
        ):
            place += 1
        places[key] = place
        if place < len(offsets) and offsets[place] < event.offset:
            yield Finding(
                f"{_shown(event)} covers {offsets[place]}, which was not settled", (event,)
            )


def _committing(history: History) -> set[str]:
    return {each.group for each in history.commits}


def i11_commits_ascend_within_an_epoch(history: History) -> Iterator[Finding]:
    """Committed offsets never decrease, except after a seek or reset."""
    epochs = Epochs(history)
    last: dict[tuple[GroupQueue, int | None], Commit] = {}
    resets = by_queue(history.resets, lambda r: GroupQueue(r.group, r.queue))
    for commit in sorted(history.commits, key=lambda c: c.at):
        key = GroupQueue(commit.group, commit.queue)
        epoch = epochs.at(commit.group, commit.consumer, commit.queue, commit.at)
        number = None if epoch is None else epoch.number
        before = last.get((key, number))
        if before is not None and commit.offset < before.offset:
            moved = (reset.at for reset in resets.get(key, ()))
            if not any(before.at <= at <= commit.at for at in moved):
                yield Finding(f"{_shown(commit)} after {before.offset}", (before, commit))
        last[key, number] = commit


def i12_commits_happen_within_an_epoch(history: History) -> Iterator[Finding]:
    """Members commit only queues that are assigned to them at that time."""
    epochs = Epochs(history)
    for commit in history.commits:
        member = history.members.get(commit.consumer)
        if not commit.consumer or commit.group not in epochs.groups:
            continue
        if member is not None and member.kind == "pull":
            continue
        if epochs.at(commit.group, commit.consumer, commit.queue, commit.at) is None:
            what = f"{_shown(commit)} by {commit.consumer}, which did not have the queue"
            yield Finding(what, (commit,))


def i16_only_what_is_wanted_is_delivered(history: History) -> Iterator[Finding]:
    """Delivered messages are in the log and match the filter of the group."""
    if not history.log:
        return
    log = {(entry.queue, entry.offset): entry for entry in history.log}
    topics = {entry.queue.topic for entry in history.log}
    for each in receptions(history):
        entry = log.get((each.queue, each.offset))
        if entry is None and each.queue.topic not in topics:
            continue  # the topic was not read
        if entry is None or not history.is_visible(each.group, entry):
            yield Finding(f"{each.queue}@{each.offset} was delivered, but is not wanted", (each,))


def i19_polls_are_contiguous(history: History) -> Iterator[Finding]:
    """Within an epoch messages are neither skipped nor repeated.

    After a stall a member skips those that another one has processed and committed.
    """
    grouped: dict[tuple[str, MessageQueue, int], list[Delivered]] = defaultdict(list)
    kinds = {name: member.kind for name, member in history.members.items()}
    for each in history.deliveries:
        if kinds.get(each.consumer, "lite") == "lite":
            grouped[each.group, each.queue, each.epoch].append(each)
    begins = {epoch.number: epoch.begin for epoch in history.epochs}
    visible = {group: expected_offsets(history, group) for group, _, _ in grouped}
    for (group, queue, epoch), delivered in grouped.items():
        offsets = visible[group].get(queue, [])
        begin = begins.get(epoch)
        expected = bisect_left(offsets, delivered[0].offset if begin is None else begin)
        for each in delivered:
            at = bisect_left(offsets, each.offset)
            skipped = offsets[expected:at]
            is_processed = skipped and skipped[-1] < _committed_by_others(history, each)
            if offsets[at : at + 1] != [each.offset] or (at != expected and not is_processed):
                what = f"{queue} epoch {epoch}: {each.offset} came out of turn"
                yield Finding(what, (each,))
            expected = at + 1


def _committed_by_others(history: History, delivered: Delivered) -> int:
    """Return the largest offset that others in the group had committed at a delivery."""
    return max(
        (
            commit.offset
            for commit in history.commits
            if commit.group == delivered.group
            and commit.queue == delivered.queue
            and commit.consumer != delivered.consumer
            and commit.at <= delivered.at
        ),
        default=0,
    )


def i38_pulls_are_complete(history: History) -> Iterator[Finding]:
    """A pull returns all messages between its offset and that of the next pull, in order."""
    if not history.log:
        return
    visible = {group: history.visible_offsets(group) for group in {p.group for p in history.pulls}}
    for pull in history.pulls:
        offsets = visible[pull.group].get(pull.queue, [])
        first, last = bisect_left(offsets, pull.offset), bisect_left(offsets, pull.next_offset)
        if pull.offsets != offsets[first:last]:
            what = f"a pull of {pull.queue}@{pull.offset} returned {pull.offsets}"
            yield Finding(f"{what}, and not {offsets[first:last]}", (pull,))


def i39_paused_queues_deliver_nothing(history: History) -> Iterator[Finding]:
    """Between pause and resume no message of the queue is returned, unless it was assigned anew."""
    paused: dict[tuple[str, MessageQueue], Paused] = {}
    epochs = Epochs(history)
    order: list[tuple[float, Paused | Delivered]] = [(each.at, each) for each in history.pauses]
    order += [(each.at, each) for each in history.deliveries]
    for _, event in sorted(order, key=lambda each: each[0]):
        key = (event.consumer, event.queue)
        if isinstance(event, Paused):
            if event.paused:
                paused[key] = event
            else:
                paused.pop(key, None)
        elif (since := paused.get(key)) is not None and since.at < event.at:
            begun = epochs.by_number.get(event.epoch)
            if begun is None or begun.started <= since.at:
                yield Finding(f"{event.queue}@{event.offset} came from a paused queue", (event,))


def p5_acks_follow_the_processing(history: History) -> Iterator[Finding]:
    """A popped message is acknowledged after it was processed or sent to the dead-letter topic."""
    settled = first_settled(history)
    got = {(each.group, each.queue, each.offset): each for each in receptions(history)}
    for ack in history.acked:
        key = (ack.group, ack.queue, ack.offset)
        if settled.get(key, float("inf")) > ack.at:
            proof = (got[key], ack) if key in got else (ack,)
            what = f"{ack.queue}@{ack.offset} was acknowledged before it was processed"
            yield Finding(what, proof)


def _shown(commit: Commit) -> str:
    return f"commit {commit.queue}@{commit.offset}"


CONSUMING = {
    "I9": i9_everything_is_settled_in_the_end,
    "I10": i10_commits_cover_only_what_is_settled,
    "I11": i11_commits_ascend_within_an_epoch,
    "I12": i12_commits_happen_within_an_epoch,
    "I16": i16_only_what_is_wanted_is_delivered,
    "I19": i19_polls_are_contiguous,
    "I38": i38_pulls_are_complete,
    "I39": i39_paused_queues_deliver_nothing,
    "P5": p5_acks_follow_the_processing,
}
