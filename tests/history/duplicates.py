"""Rule of duplicates: each redelivery has a reason."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from rocketmq_aio.consumer.offsets.start_position import FIRST_ASSIGNMENT_SECONDS
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue
from tests.history.events import Acked, Commit, Delivered, Handled, Hidden, Outcome, Sent
from tests.history.history import History
from tests.history.rules import (
    Epochs,
    Finding,
    GroupQueue,
    by_queue,
    copies,
    is_copied_by_timers,
    receptions,
    scope,
)

Reception = Delivered | Handled


class Duplicate(NamedTuple):
    """A reception of a message after others; *reason* is "" if nothing explains it."""

    reason: str
    message: Reception
    earlier: Reception


def duplicates(history: History) -> Iterator[Duplicate]:
    """Yield all redeliveries with their reasons.

    The reasons are "retry" (a handler failed or was cancelled), "sent twice" (a send whose outcome
    was unknown or that was repeated), "seek", "kill", "stall", "lost lock", "rebalance", "expired"
    (the invisible time of a popped message), the kind of a fault of the brokers, and "routes" (name
    servers did not know the topic, and all its messages are from later: it looks created again).
    """
    return _Reasons(history).duplicates()


def i13_copies_are_explained(history: History) -> Iterator[Finding]:
    """A message is delivered once, and again only for a reason."""
    for each in duplicates(history):
        if not each.reason:
            message = each.message
            what = f"{message.queue}@{message.offset} was delivered again without a reason"
            yield Finding(what, (each.earlier, message))


class _Reasons:
    """Finds the reasons of redeliveries."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._epochs = Epochs(history)
        resets = sorted(history.resets, key=lambda reset: reset.at)
        self._resets = by_queue(resets, lambda r: GroupQueue(r.group, r.queue))
        self._acks: dict[tuple[str, MessageQueue, int], Acked] = {}
        for ack in history.acked:
            if ack.confirmed is not None:
                self._acks.setdefault((ack.group, ack.queue, ack.offset), ack)
        self._hidden: dict[tuple[str, MessageQueue, int], list[Hidden]] = defaultdict(list)
        for hidden in history.hidden:
            self._hidden[hidden.group, hidden.queue, hidden.offset].append(hidden)
        confirmed = [each for each in history.commits if each.confirmed is not None]
        confirmed.sort(key=lambda commit: commit.confirmed or 0.0)
        self._commits = by_queue(confirmed, lambda c: GroupQueue(c.group, c.queue))
        self._in_flight = self._commits_of_the_gone()
        self._copies = copies(history)
        self._sends: dict[str, list[Sent]] = defaultdict(list)
        for sent in history.sends:
            self._sends[sent.identity].append(sent)
        self._first_stores = self._find_first_stores()
        self._sent_back = Counter((each.group, each.uid) for each in history.sent_back)

    def duplicates(self) -> Iterator[Duplicate]:
        history = self._history
        messages: dict[tuple[str, str], list[Reception]] = defaultdict(list)
        for each in receptions(history):
            identity = each.identity or f"{each.queue}@{each.offset}"
            messages[scope(history, each.group, each.consumer), identity].append(each)
        for several in messages.values():
            if len(several) == 1:
                continue
            several.sort(key=lambda each: each.at)
            places: dict[tuple[MessageQueue, int], Reception] = {}
            for number, each in enumerate(several):
                place = (each.queue, each.offset)
                before = places.get(place)
                if before is not None:
                    yield Duplicate(self._of_copy(before, each), each, before)
                elif places:
                    sent = sum(not q.topic.startswith(RETRY_PREFIX) for q, _ in places)
                    reason = self._of_another(several[:number], each, sent)
                    yield Duplicate(reason, each, several[number - 1])
                places[place] = each

    def _of_another(self, earlier: list[Reception], each: Reception, copies: int) -> str:
        """Return why another stored copy was delivered, after *copies* that a producer stored."""
        if each.queue.topic.startswith(RETRY_PREFIX):
            return self._of_retry(earlier, each)
        if len({before.body for before in (*earlier, each)}) > 1:
            return ""
        sends = self._sends.get(each.identity, [])
        if not sends:
            return "sent twice" if not self._history.sends else ""
        attempts = sum(max(1, sent.attempts) for sent in sends)
        unknown = any(sent.outcome is Outcome.UNKNOWN or sent.transaction for sent in sends)
        if unknown or attempts > copies:
            return "sent twice"
        return "broker" if any(is_copied_by_timers(self._history, sent) for sent in sends) else ""

    def _of_retry(self, earlier: list[Reception], each: Reception) -> str:
        """Return why a copy in a retry topic was delivered."""
        if any(self._is_refused(before, each.at) for before in earlier):
            return "retry"
        if any(self._is_visible_again(before, each.at) for before in earlier):
            return "expired"
        # Of a message that was sent twice, one copy may have expired in a lost response.
        if len(self._copies.get(each.identity, ())) > 1:
            return "sent twice"
        if each.group not in self._history.popping:
            return ""
        # A broker that lost an acknowledgement, or its pops, retries the message.
        return self._of_broker(earlier[0].queue.broker_name, earlier[0].at, each.at)

    def _of_copy(self, before: Reception, each: Reception) -> str:
        """Return why the same stored copy was delivered again."""
        if self._is_refused(before, each.at):
            return "retry"
        resets = self._resets.get(GroupQueue(each.group, each.queue), [])
        between = slice(
            bisect_left(resets, before.at, key=lambda reset: reset.at),
            bisect_right(resets, each.at, key=lambda reset: reset.at),
        )
        if any(reset.offset <= each.offset for reset in resets[between]):
            return "seek"
        if each.group in self._history.popping:
            return self._of_pop(before, each)
        if (each.consumer, each.epoch) == (before.consumer, before.epoch):
            return ""
        epoch = self._epochs.by_number.get(each.epoch)
        if epoch is not None and epoch.begin is not None and epoch.begin <= each.offset:
            return "seek"  # before the other member, which also had the queue, got the message
        begun = each.at if epoch is None else epoch.started
        commit = self._committed(each, begun)
        if commit is not None and commit.offset > each.offset:
            at = commit.confirmed or commit.at
            return self._of_broker(each.queue.broker_name, at, begun) or self._of_routes(
                each.queue, begun
            )
        return self._of_move(before, each)

    def _of_pop(self, before: Reception, each: Reception) -> str:
        """Return why the same stored copy was popped again.

        A broker that is killed forgets the pops of its last seconds: it stores their offsets every
        five seconds.
        """
        if self._is_visible_again(before, each.at):
            return "expired"
        return self._of_broker(each.queue.broker_name, before.at, each.at)

    def _of_broker(self, name: str, since: float, until: float) -> str:
        """Return "broker" if the broker may have lost a commit between the two times."""
        lost = (f for f in self._history.faults if (f.kind, f.target) == ("broker", name))
        return "broker" if any(since <= f.healed and f.started <= until for f in lost) else ""

    def _of_routes(self, queue: MessageQueue, begun: float) -> str:
        """Return "routes" if the topic looked created again when the epoch began."""
        first = self._first_stores.get((queue.topic, queue.broker_name), 0.0)
        start = min(first, begun)
        gaps = (f for f in self._history.faults if f.kind == "routes" and f.started <= start)
        return "routes" if any(begun <= gap.healed + KNOWN_AGAIN for gap in gaps) else ""

    def _of_move(self, before: Reception, each: Reception) -> str:
        """Return why the queue moved."""
        member = self._history.members.get(before.consumer)
        process = "" if member is None else member.process
        for fault in self._history.faults:
            if fault.target in (process, before.consumer) and fault.started <= each.at:
                return fault.kind
        epoch = self._epochs.by_number.get(before.epoch)
        return "lost lock" if epoch is not None and epoch.lost_lock else "rebalance"

    def _committed(self, each: Reception, begun: float) -> Commit | None:
        """Return the commit from which the epoch of *each* started.

        Members that both believe to own the queue may commit at the same time, and a former owner
        until the new one has read the offset.  What a member sent that was killed, or left without
        a response, may arrive later.  The broker may have stored any of those commits last, so the
        lowest counts.
        """
        commits = self._commits.get(GroupQueue(each.group, each.queue), [])
        end = bisect_right(commits, begun, key=_confirmed)
        if not end:
            return None
        first = bisect_left(commits, commits[end - 1].at, key=_confirmed)
        late = commits[end : bisect_right(commits, each.at, key=_confirmed)]
        of_others = (commit for commit in late if commit.consumer != each.consumer)
        in_flight = (
            commit
            for commit in self._in_flight.get(GroupQueue(each.group, each.queue), [])
            if begun - ARRIVAL_SECONDS <= commit.at <= begun
        )
        return min((*commits[first:end], *of_others, *in_flight), key=lambda commit: commit.offset)

    def _find_first_stores(self) -> dict[tuple[str, str], float]:
        """Return when the first message was stored, at the latest, by topic and broker name."""
        found: dict[tuple[str, str], float] = {}

        def note(queue: MessageQueue, at: float) -> None:
            key = queue.topic, queue.broker_name
            found[key] = min(at, found.get(key, at))

        delayed = {sent.identity for sent in self._history.sends if sent.delayed}
        for sent in self._history.sends:
            if not sent.delayed:
                queues = [each.queue for each in self._copies.get(sent.identity, ())]
                for queue in (*queues, *([sent.queue] if sent.queue else [])):
                    note(queue, sent.started)
        for each in receptions(self._history):
            if each.identity in delayed:  # stored in the topic when the delay had passed
                note(each.queue, each.at)
        return found

    def _commits_of_the_gone(self) -> dict[GroupQueue, list[Commit]]:
        """Return the commits that were not confirmed when their member was killed or left.

        The network delivers what it holds of a closed connection.
        """
        history = self._history
        killed = {fault.target for fault in history.faults if fault.kind == "kill"}
        gone = {c for c, member in history.members.items() if member.process in killed}
        gone.update(history.left)
        open_ = [c for c in history.commits if c.confirmed is None and c.consumer in gone]
        return by_queue(open_, lambda c: GroupQueue(c.group, c.queue))

    def _is_refused(self, before: Reception, at: float) -> bool:
        """Whether *before* ended without success before *at*."""
        if not isinstance(before, Handled) or before.outcome is Outcome.OK:
            return False
        return before.ended is not None and before.ended <= at

    def _is_visible_again(self, before: Reception, at: float) -> bool:
        """Whether the popped message *before* was visible to others again."""
        key = (before.group, before.queue, before.offset)
        ack = self._acks.get(key)
        if (until := before.until) is None:
            return False  # it was not popped
        for hidden in self._hidden.get(key, ()):
            if before.at <= hidden.at <= at:
                until = hidden.until
        if ack is not None and ack.confirmed is not None and ack.confirmed < until:
            return False
        return until <= at + MILLISECOND


def _confirmed(commit: Commit) -> float:
    return commit.confirmed or 0.0


ARRIVAL_SECONDS = 20.0  # the longest delay between a client and a broker
KNOWN_AGAIN = 30.0 + FIRST_ASSIGNMENT_SECONDS  # routes are refreshed every 30 s
MILLISECOND = 0.001  # brokers round down to whole milliseconds


DUPLICATES = {"I13": i13_copies_are_explained}
