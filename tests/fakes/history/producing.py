"""Checks of sends against the log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from rocketmq_aio.model.values import MessageQueue
from tests.fakes.history.events import History, LogEntry, Outcome, Sent


def i1_what_was_ok_is_stored(history: History) -> Iterator[str]:
    """The body of a successful send is in the log at the position of its result."""
    stored = {(entry.queue, entry.offset): entry for entry in history.log}
    for sent in history.sends:
        if sent.outcome is not Outcome.OK:
            continue
        assert sent.queue is not None, f"{sent.uid}: an ok send has a queue"
        assert sent.offset is not None, f"{sent.uid}: an ok send has an offset"
        entry = stored.get((sent.queue, sent.offset))
        if entry is None:
            yield f"{sent.uid}: nothing at {sent.queue}@{sent.offset}"
        elif entry.body != sent.body or sent.message_id not in (None, entry.message_id):
            yield f"{sent.uid}: {sent.queue}@{sent.offset} holds {entry.message_id}"


def i2_what_is_stored_was_sent(history: History) -> Iterator[str]:
    """All messages in the log were sent."""
    if not history.sends:
        return
    bodies = {sent.body for sent in history.sends}
    for entry in history.log:
        if entry.body not in bodies:
            yield f"{entry.queue}@{entry.offset}: {entry.body[:40]!r} was never sent"


def i3_what_failed_is_absent(history: History) -> Iterator[str]:
    """A send with the outcome FAIL stored nothing."""
    places = _copies(history)
    for sent in history.sends:
        if sent.outcome is Outcome.FAIL and sent.body in places:
            entry = places[sent.body][0]
            yield f"{sent.uid} failed, but lies at {entry.queue}@{entry.offset}"


def i4_copies_have_one_id_and_an_attempt_each(history: History) -> Iterator[str]:
    """A send has at most one copy per attempt on the wire, all with one id."""
    for copies in _copies(history).values():
        ids = {entry.message_id for entry in copies}
        if len(ids) > 1:
            yield f"{len(copies)} copies of {copies[0].body[:40]!r} with ids {sorted(ids)}"
    if history.attempts is None:
        return
    for message_id, count in Counter(entry.message_id for entry in history.log).items():
        if count > history.attempts.get(message_id, 0):
            attempts = history.attempts.get(message_id, 0)
            yield f"{count} copies of {message_id} from {attempts} attempts"


def i5_sends_keep_their_order(history: History) -> Iterator[str]:
    """Sends awaited one after another are in order within each queue."""
    first = {
        (body, entry.queue): entry.offset
        for body, copies in _copies(history).items()
        for entry in reversed(copies)
    }
    lines: dict[tuple[str, MessageQueue], list[Sent]] = defaultdict(list)
    for sent in sorted(history.sends, key=lambda s: s.started):
        if sent.outcome is Outcome.OK and sent.task is not None and sent.queue is not None:
            lines[sent.task, sent.queue].append(sent)
    for (task, queue), sends in lines.items():
        highest = -1
        for sent in sends:
            offset = first.get((sent.body, queue), highest)  # I1 reports missing ones
            if offset < highest:
                yield f"{task}: {sent.uid} at {queue}@{offset}, sent after what lies at {highest}"
            highest = max(highest, offset)


def i6_an_ordering_key_stays_in_one_queue(history: History) -> Iterator[str]:
    """All copies of messages with one ordering key are in one queue."""
    places = _copies(history)
    queues: dict[str, set[MessageQueue]] = defaultdict(set)
    for sent in history.sends:
        if sent.ordering_key is not None:
            queues[sent.ordering_key] |= {entry.queue for entry in places.get(sent.body, ())}
    for key, found in queues.items():
        if len(found) > 1:
            yield f"key {key} in {', '.join(map(str, sorted(found)))}"


def i8_an_offset_has_one_value(history: History) -> Iterator[str]:
    """All consumers read the same message at an offset of a queue."""
    seen = [(e.queue, e.offset, e.body) for e in history.log]
    seen += [(d.queue, d.offset, d.body) for d in history.deliveries if d.body]
    values: dict[tuple[MessageQueue, int], set[bytes]] = defaultdict(set)
    for queue, offset, body in seen:
        values[queue, offset].add(body)
    for (queue, offset), bodies in values.items():
        if len(bodies) > 1:
            yield f"{queue}@{offset} was read as {len(bodies)} different messages"


def _copies(history: History) -> dict[bytes, list[LogEntry]]:
    """Return the positions of each body, in the order of the log."""
    places: dict[bytes, list[LogEntry]] = defaultdict(list)
    for entry in sorted(history.log, key=lambda e: (e.queue, e.offset)):
        places[entry.body].append(entry)
    return places


PRODUCING = {
    "I1": i1_what_was_ok_is_stored,
    "I2": i2_what_is_stored_was_sent,
    "I3": i3_what_failed_is_absent,
    "I4": i4_copies_have_one_id_and_an_attempt_each,
    "I5": i5_sends_keep_their_order,
    "I6": i6_an_ordering_key_stays_in_one_queue,
    "I8": i8_an_offset_has_one_value,
}
