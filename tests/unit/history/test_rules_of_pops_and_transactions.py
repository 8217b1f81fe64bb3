"""The rules of popped messages and of transactions find what is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rocketmq_aio.model.values import MessageQueue
from tests.history import Delivered, History, LogEntry, Outcome, Sent, Settled, check, duplicates
from tests.history.events import Acked, Decided, Hidden, Joined, LocalPart, TransactionEnded

Q0 = MessageQueue("orders", "broker-a", 0)
RETRIES = MessageQueue("%RETRY%billing+orders", "broker-a", 0)


def got(at: float, queue: MessageQueue = Q0, until: float = 40, **changes: object) -> Delivered:
    event = Delivered(
        at=at, queue=queue, offset=0, group="billing", consumer="c1", uid="u1", until=until
    )
    return replace(event, **changes)


def entry(uid: str, queue: MessageQueue = Q0, offset: int = 0) -> LogEntry:
    return LogEntry(queue=queue, offset=offset, uid=uid, body=uid.encode(), message_id=f"M{uid}")


def settled(at: float, queue: MessageQueue = Q0) -> Settled:
    return Settled(at=at, queue=queue, offset=0, group="billing", consumer="c1", uid="u1")


def acked(at: float, queue: MessageQueue = Q0, confirmed: float | None = None) -> Acked:
    return Acked(at=at, queue=queue, offset=0, group="billing", consumer="c1", confirmed=confirmed)


def popped() -> History:
    """Return a run in which a message is delivered again when its invisible time is over."""
    history = History(
        log=[entry("u1"), entry("u1", RETRIES)],
        deliveries=[got(10), got(41, RETRIES, 71)],
        settled=[settled(42, RETRIES)],
        acked=[acked(42.5, RETRIES, 42.6)],
        drained=True,
    )
    history.add(Joined(at=9, consumer="c1", group="billing", kind="pop"))
    return history


def sent(number: int, **changes: object) -> Sent:
    event = Sent(
        uid=f"u{number}",
        body=b"u%d" % number,
        started=number,
        ended=number + 0.1,
        outcome=Outcome.OK,
        message_id=f"Mu{number}",
        transaction=True,
    )
    return replace(event, **changes)


def decided(number: int, state: str, at: float, *, checked: bool = False) -> Decided:
    return Decided(at=at, uid=f"u{number}", state=state, checked=checked)


def ended(number: int, state: str, at: float) -> TransactionEnded:
    return TransactionEnded(at=at, message_id=f"Mu{number}", state=state, confirmed=at + 0.1)


def transactions() -> History:
    """Return a run with a commit, a rollback, a failed half message and a commit by the check."""
    return History(
        sends=[sent(1), sent(2), sent(3, outcome=Outcome.FAIL, message_id=None), sent(4)],
        local_parts=[LocalPart(at=n + 0.2, uid=f"u{n}") for n in (1, 2, 4)],
        decided=[
            decided(1, "commit", 1.3),
            decided(2, "rollback", 2.3),
            decided(4, "unknown", 4.3),
            decided(4, "commit", 9, checked=True),
        ],
        transaction_ends=[
            ended(1, "commit", 1.4),
            ended(2, "rollback", 2.4),
            ended(4, "unknown", 8.9),
            ended(4, "commit", 9.1),
        ],
        log=[entry("u1"), entry("u4", offset=1)],
        deliveries=[got(12, uid="u1", body=b"u1"), got(13, uid="u4", body=b"u4", offset=1)],
        settled=[settled(14), replace(settled(14), offset=1, uid="u4")],
        drained=True,
    )


CLEAN = {"popped": popped, "transactions": transactions}


@pytest.mark.parametrize("name", CLEAN)
def test_a_correct_run_has_no_violations(name: str) -> None:
    assert check(CLEAN[name]()) == []


def test_an_expired_message_is_an_explained_duplicate() -> None:
    assert [each.reason for each in duplicates(popped())] == ["expired"]


# --- popped messages ------------------------------------------------------------------------------


def acked_before_it_was_processed(history: History) -> None:
    history.acked[0] = acked(41.5, RETRIES, 41.6)


def acked_and_never_processed(history: History) -> None:
    history.settled.clear()


def redelivered_before_its_time(history: History) -> None:
    history.deliveries[1] = got(30, RETRIES, 60)


def redelivered_after_the_acknowledgement(history: History) -> None:
    history.settled.append(settled(11))
    history.acked.append(acked(11.5, confirmed=11.6))


def redelivered_while_hidden_for_longer(history: History) -> None:
    hidden = Hidden(at=20, queue=Q0, offset=0, group="billing", consumer="c1", until=50)
    history.hidden.append(hidden)


# --- transactions ---------------------------------------------------------------------------------


def rolled_back_but_visible(history: History) -> None:
    history.log.append(entry("u2", offset=2))


def half_message_delivered(history: History) -> None:
    history.deliveries.append(got(14, uid="u2", body=b"u2", offset=2))


def committed_but_absent(history: History) -> None:
    del history.log[0], history.deliveries[0]


def commit_of_the_check_lost(history: History) -> None:
    del history.log[1], history.deliveries[1]


def committed_by_nobody(history: History) -> None:
    del history.decided[0]


def decided_only_afterwards(history: History) -> None:
    history.decided[0] = decided(1, "commit", 1.5)


def other_decision_sent(history: History) -> None:
    history.transaction_ends[0] = ended(1, "rollback", 1.4)


def two_decisions_sent(history: History) -> None:
    history.decided.append(decided(1, "rollback", 1.35))
    history.transaction_ends.append(ended(1, "rollback", 1.5))


def local_part_without_half_message(history: History) -> None:
    history.local_parts.append(LocalPart(at=3.2, uid="u3"))


def local_part_before_the_response(history: History) -> None:
    history.local_parts[0] = LocalPart(at=1.05, uid="u1")


def local_part_twice(history: History) -> None:
    history.local_parts.append(LocalPart(at=5, uid="u1"))


def checked_with_commit_during_the_local_part(history: History) -> None:
    history.decided.append(decided(1, "commit", 1.22, checked=True))
    history.transaction_ends.append(replace(ended(1, "commit", 1.25), checked=True))


PLANTED: list[tuple[str, str, Callable[[History], None]]] = [
    ("P5", "popped", acked_before_it_was_processed),
    ("P5", "popped", acked_and_never_processed),
    ("I13", "popped", redelivered_before_its_time),
    ("I13", "popped", redelivered_after_the_acknowledgement),
    ("I13", "popped", redelivered_while_hidden_for_longer),
    ("I21", "transactions", rolled_back_but_visible),
    ("I21", "transactions", half_message_delivered),
    ("I21", "transactions", committed_but_absent),
    ("I21", "transactions", commit_of_the_check_lost),
    ("I22", "transactions", committed_by_nobody),
    ("I22", "transactions", decided_only_afterwards),
    ("I22", "transactions", other_decision_sent),
    ("I22", "transactions", two_decisions_sent),
    ("I23", "transactions", local_part_without_half_message),
    ("I23", "transactions", local_part_before_the_response),
    ("I23", "transactions", local_part_twice),
    ("I24", "transactions", checked_with_commit_during_the_local_part),
]


@pytest.mark.parametrize(("rule", "name", "plant"), PLANTED, ids=[p.__name__ for *_, p in PLANTED])
def test_a_planted_violation_is_found(
    rule: str, name: str, plant: Callable[[History], None]
) -> None:
    history = CLEAN[name]()
    plant(history)

    assert rule in {violation.rule for violation in check(history)}


def test_another_process_may_decide_during_the_local_part() -> None:
    history = transactions()
    checked_with_commit_during_the_local_part(history)
    history.transaction_ends[-1].number = "till-2-7"

    assert check(history, "I24") == []
