"""Rules of transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.history.events import Decided, Outcome, Sent, TransactionEnded
from tests.history.history import History
from tests.history.rules import NEVER, Finding, copies, process_of, receptions


def i21_visible_if_committed(history: History) -> Iterator[Finding]:
    """A committed transaction is visible, all others are not."""
    decided = _decisions(history)
    ends = _ends(history)
    places = copies(history)
    seen = {each.identity: each for each in receptions(history)}
    for sent in _halves(history):
        uid = sent.identity
        visible = [*places.get(uid, ()), *([seen[uid]] if uid in seen else [])]
        committed = [each for each in decided.get(uid, ()) if each.state == "commit"]
        if visible and not committed:
            yield Finding(f"{uid} is visible, but was not committed", (sent, visible[0]))
        confirmed = [e for e in ends.get(sent.message_id or "", ()) if e.confirmed is not None]
        certain = confirmed or all(each.state == "commit" for each in decided[uid])
        if history.drained and committed and not visible and certain:
            yield Finding(f"{uid} was committed, but is not visible", (sent, committed[0]))


def i22_the_decision_is_that_of_the_application(history: History) -> Iterator[Finding]:
    """Each decision that is sent is one that the application made before, and there is one.

    A broker stores a half message again before it checks it.  The copy of a message that it has
    committed is rolled back.
    """
    decided = _decisions(history)
    uids = {sent.message_id: sent.identity for sent in history.sends if sent.message_id}
    final: dict[tuple[str, int], TransactionEnded] = {}
    committed: dict[str, TransactionEnded] = {}
    for end in sorted(history.transaction_ends, key=lambda e: e.at):
        uid = uids.get(end.message_id)
        if end.state == "unknown" or uid is None:
            continue
        made = [d for d in decided.get(uid, ()) if d.state == end.state and d.at <= end.at]
        is_copy = end.checked and uid in committed
        if not made and not is_copy:
            yield Finding(f"{end.state} of {uid}, which nobody decided", (end,))
        before = final.setdefault((uid, end.log_offset), end)
        if before.state != end.state:
            yield Finding(f"{end.state} of {uid} after {before.state}", (before, end))
        if end.state == "commit":
            committed[uid] = end


def i23_the_local_part_runs_once_after_the_half_message(history: History) -> Iterator[Finding]:
    """The local transaction runs once, and only if the half message is stored."""
    accepted = {sent.identity: sent for sent in _halves(history) if sent.outcome is Outcome.OK}
    begun: dict[str, float] = {}
    for part in history.local_parts:
        sent = accepted.get(part.uid)
        if sent is None or (sent.ended or 0.0) > part.at:
            yield Finding(f"the local part of {part.uid} began without its half message", (part,))
        if part.uid in begun:
            yield Finding(f"the local part of {part.uid} began twice", (part,))
        begun[part.uid] = part.at


def i24_a_check_during_the_local_part_gets_unknown(history: History) -> Iterator[Finding]:
    """Until the application decides, its process responds to checks with "unknown"."""
    uids = {sent.message_id: sent for sent in _halves(history) if sent.message_id}
    begun = {part.uid: part.at for part in history.local_parts}
    decided: dict[str, float] = {}
    for each in history.decided:
        if not each.checked:
            decided.setdefault(each.uid, each.at)
    for end in history.transaction_ends:
        sent = uids.get(end.message_id)
        if sent is None or not end.checked or end.state == "unknown":
            continue
        if process_of(end.number) != process_of(sent.number):
            continue  # another member of the group does not know of the local part
        if begun.get(sent.identity, NEVER) <= end.at < decided.get(sent.identity, NEVER):
            yield Finding(f"{end.state} of {sent.identity} during its local part", (sent, end))


def _halves(history: History) -> Iterator[Sent]:
    return (sent for sent in history.sends if sent.transaction)


def _decisions(history: History) -> dict[str, list[Decided]]:
    decisions: dict[str, list[Decided]] = defaultdict(list)
    for decided in history.decided:
        decisions[decided.uid].append(decided)
    return decisions


def _ends(history: History) -> dict[str, list[TransactionEnded]]:
    ends: dict[str, list[TransactionEnded]] = defaultdict(list)
    for end in history.transaction_ends:
        ends[end.message_id].append(end)
    return ends


TRANSACTIONS = {
    "I21": i21_visible_if_committed,
    "I22": i22_the_decision_is_that_of_the_application,
    "I23": i23_the_local_part_runs_once_after_the_half_message,
    "I24": i24_a_check_during_the_local_part_gets_unknown,
}
