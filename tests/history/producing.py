"""Rules of sends against the log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise

from rocketmq_aio.model.values import MessageQueue
from tests.history.events import Delivered, Handled, LogEntry, Outcome, Sent
from tests.history.history import History
from tests.history.rules import NEVER, Finding, copies, is_copied_by_timers, receptions

TIMER_SECONDS = 1.001  # precision of the delays of brokers, and of their clock


def i1_what_was_ok_is_stored(history: History) -> Iterator[Finding]:
    """The body of a successful send is in the log at the position of its result."""
    if not history.log and not history.drained:
        return  # the log was not read
    stored = {(entry.queue, entry.offset): entry for entry in history.log}
    identities = {entry.identity for entry in history.log}
    identities |= {recalled.uid for recalled in history.recalled}
    for sent in history.sends:
        if sent.outcome is not Outcome.OK or sent.transaction:
            continue
        if sent.delayed or sent.queue is None or sent.offset is None or sent.offset < 0:
            # The result does not tell where consumers find it.
            if history.drained and sent.identity not in identities:
                yield Finding(f"{sent.identity} is in no queue", (sent,))
            continue
        entry = stored.get((sent.queue, sent.offset))
        if entry is None or not _is_stored_as(sent, entry):
            what = f"{sent.identity} is not what lies at {sent.queue}@{sent.offset}"
            yield Finding(what, (sent, entry))


def _is_stored_as(sent: Sent, entry: LogEntry) -> bool:
    return entry.body == sent.body and sent.message_id in (None, entry.message_id)


def i2_what_is_there_was_sent(history: History) -> Iterator[Finding]:
    """All messages in the log, and all that consumers get, were sent with these bytes."""
    if not history.sends:
        return
    bodies = {sent.identity: sent for sent in history.sends}
    for entry in chain[LogEntry | Delivered | Handled](history.log, receptions(history)):
        sent = bodies.get(entry.identity)
        if sent is None:
            yield Finding(
                f"{entry.queue}@{entry.offset}: {entry.identity} was never sent", (entry,)
            )
        elif entry.body != sent.body:
            what = f"{entry.queue}@{entry.offset}: the body of {entry.identity} is another"
            yield Finding(what, (sent, entry))


def i3_what_failed_is_absent(history: History) -> Iterator[Finding]:
    """A send with the outcome FAIL stored nothing."""
    places = copies(history)
    tried = {sent.identity for sent in history.sends if sent.outcome is not Outcome.FAIL}
    for sent in history.sends:
        identity = sent.identity
        if sent.outcome is Outcome.FAIL and identity in places and identity not in tried:
            entry = places[identity][0]
            yield Finding(
                f"{identity} failed, but lies at {entry.queue}@{entry.offset}", (sent, entry)
            )


def i4_copies_have_one_id_and_an_attempt_each(history: History) -> Iterator[Finding]:
    """A send has at most one copy per attempt on the wire, all with one id; timers may add some."""
    sends: dict[str, list[Sent]] = defaultdict(list)
    for sent in history.sends:
        sends[sent.identity].append(sent)
    for identity, entries in copies(history).items():
        calls = sends.get(identity, [])
        ids = {entry.message_id for entry in entries}
        if len(ids) > max(1, len(calls)):
            yield Finding(
                f"{len(entries)} copies of {identity} with ids {sorted(ids)}", (*entries,)
            )
        attempts = sum(sent.attempts for sent in calls)
        is_made_later = any(s.transaction or is_copied_by_timers(history, s) for s in calls)
        if attempts and len(entries) > attempts and not is_made_later:
            what = f"{len(entries)} copies of {identity} from {attempts} attempts"
            yield Finding(what, (*calls, *entries))
    if history.attempts is None:
        return
    for message_id, count in Counter(entry.message_id for entry in history.log).items():
        if count > history.attempts.get(message_id, 0):
            attempts = history.attempts.get(message_id, 0)
            yield Finding(f"{count} copies of {message_id} from {attempts} attempts")


def i5_sends_keep_their_order(history: History) -> Iterator[Finding]:
    """Sends awaited one after another are in order within each queue, unless made visible later."""
    first: dict[tuple[str, MessageQueue], LogEntry] = {}
    for identity, entries in copies(history).items():
        for entry in reversed(entries):
            first[identity, entry.queue] = entry
    lines: dict[tuple[str, MessageQueue], list[Sent]] = defaultdict(list)
    stored_at_once = [s for s in history.sends if not s.delayed and not s.transaction]
    for sent in sorted(stored_at_once, key=lambda s: s.started):
        if sent.outcome is Outcome.OK and sent.task is not None and sent.queue is not None:
            lines[sent.task, sent.queue].append(sent)
    for (task, queue), sends in lines.items():
        stored = [(sent, first.get((sent.identity, queue))) for sent in sends]
        found = [(sent, entry) for sent, entry in stored if entry is not None]  # see I1
        for (_, last), (sent, entry) in pairwise(found):
            if entry.offset < last.offset:
                what = f"{task}: {sent.identity} lies before {last.identity} in {queue}"
                yield Finding(what, (sent, entry, last))


def i6_an_ordering_key_stays_in_one_queue(history: History) -> Iterator[Finding]:
    """All copies of messages with one ordering key are in one queue.

    A producer spreads keys over the queues of its first route.  One that got it while a broker was
    in no route may use another queue than other producers.
    """
    places = copies(history)
    partial_routes = _producers_with_partial_routes(history)
    queues: dict[str, dict[MessageQueue, LogEntry]] = defaultdict(dict)
    for sent in history.sends:
        if sent.ordering_key is not None:
            key = f"{sent.topic} {sent.ordering_key}"
            if (sent.producer, sent.topic) in partial_routes:
                key += f" of {sent.producer}"
            for entry in places.get(sent.identity, ()):
                queues[key].setdefault(entry.queue, entry)
    for key, found in queues.items():
        if len(found) > 1:
            yield Finding(f"key {key} in {', '.join(map(str, sorted(found)))}", (*found.values(),))


def _producers_with_partial_routes(history: History) -> set[tuple[str, str]]:
    """Return producers, by topic, whose first sends fall into a time with incomplete routes."""
    gaps = [fault for fault in history.faults if fault.kind == "routes"]
    begun: dict[tuple[str, str], float] = {}
    routed: dict[tuple[str, str], float] = {}  # the end of the first send that had a route
    for sent in sorted(history.sends, key=lambda s: s.started) if gaps else ():
        key = (sent.producer, sent.topic)
        begun.setdefault(key, sent.started)
        if sent.attempts or sent.outcome is Outcome.OK:
            routed.setdefault(key, NEVER if sent.ended is None else sent.ended)
    return {
        key
        for key, started in begun.items()
        if any(g.started <= routed.get(key, NEVER) and started <= g.healed for g in gaps)
    }


def i7_a_batch_is_whole_or_absent(history: History) -> Iterator[Finding]:
    """The messages of a batch of one request lie next to each other in their order, or nowhere."""
    places = copies(history)
    log = {(entry.queue, entry.offset): entry.identity for entry in history.log}
    batches: dict[str, list[Sent]] = defaultdict(list)
    for sent in history.sends:
        if sent.batch:
            batches[sent.batch].append(sent)
    for name, members in batches.items():
        uids = [sent.identity for sent in members]
        for place, uid in enumerate(uids):
            for entry in places.get(uid, ()):
                begin = entry.offset - place
                stored = [log.get((entry.queue, begin + n)) for n in range(len(uids))]
                if stored != uids:
                    what = f"batch {name} is not whole at {entry.queue}@{begin}: {stored}"
                    yield Finding(what, (*members, entry))
                    break


def i8_an_offset_has_one_value(history: History) -> Iterator[Finding]:
    """All consumers read the same message at an offset of a queue."""
    values: dict[tuple[MessageQueue, int], LogEntry | Delivered | Handled] = {}
    for each in chain[LogEntry | Delivered | Handled](
        history.log, history.deliveries, history.handled
    ):
        if not each.body:
            continue
        other = values.setdefault((each.queue, each.offset), each)
        if other.body != each.body:
            what = f"{each.queue}@{each.offset} was read as different messages"
            yield Finding(what, (other, each))


def i36_delayed_messages_come_later(history: History) -> Iterator[Finding]:
    """A delayed message is received when its delay has passed, and not before."""
    delayed = {sent.identity: sent for sent in history.sends if sent.delay_seconds}
    for each in receptions(history):
        sent = delayed.get(each.identity)
        if sent is not None and each.at < sent.started + sent.delay_seconds - TIMER_SECONDS:
            what = f"{each.identity} came {each.at - sent.started:.3f} s after its send"
            yield Finding(what, (sent, each))


def i37_recalled_messages_never_come(history: History) -> Iterator[Finding]:
    """A message whose recall was confirmed before its time is not received.

    A send that was repeated has stored several copies, of which the recall hits one.
    """
    sends = {sent.identity: sent for sent in history.sends}
    got = {each.identity: each for each in receptions(history)}
    for recalled in history.recalled:
        sent, each = sends.get(recalled.uid), got.get(recalled.uid)
        if sent is None or each is None or recalled.confirmed is None or sent.attempts > 1:
            continue
        if is_copied_by_timers(history, sent):
            continue  # 5.5.0, killed after a recall, delivered the message all the same
        if recalled.confirmed < sent.started + sent.delay_seconds - TIMER_SECONDS:
            yield Finding(f"{recalled.uid} was recalled, but received", (sent, recalled, each))


PRODUCING = {
    "I1": i1_what_was_ok_is_stored,
    "I2": i2_what_is_there_was_sent,
    "I3": i3_what_failed_is_absent,
    "I4": i4_copies_have_one_id_and_an_attempt_each,
    "I5": i5_sends_keep_their_order,
    "I6": i6_an_ordering_key_stays_in_one_queue,
    "I7": i7_a_batch_is_whole_or_absent,
    "I8": i8_an_offset_has_one_value,
    "I36": i36_delayed_messages_come_later,
    "I37": i37_recalled_messages_never_come,
}
