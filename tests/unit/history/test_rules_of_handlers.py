"""The invariants of handlers find what is planted, and nothing in a run where all went well."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rocketmq_aio.model.values import MessageQueue
from tests.history import (
    Commit,
    Epoch,
    Fault,
    Handled,
    History,
    LockChange,
    LogEntry,
    Outcome,
    Settled,
    check,
)

Q0 = MessageQueue("orders", "broker-a", 0)
OK, FAIL = Outcome.OK, Outcome.FAIL


def handled(offset: int, started: float, **changes: object) -> Handled:
    event = Handled(
        consumer="c1",
        epoch=1,
        queue=Q0,
        offset=offset,
        started=started,
        ended=started + 1,
        outcome=OK,
        body=b"body %d" % offset,
    )
    return replace(event, **changes)


def lock(at: float, held: bool, consumer: str = "c1") -> LockChange:
    return LockChange(at=at, queue=Q0, consumer=consumer, held=held)


def clean() -> History:
    """Return three messages in order, the second of which is tried again in place."""
    return History(
        log=[
            LogEntry(queue=Q0, offset=number, body=b"body %d" % number, message_id=f"M{number}")
            for number in range(3)
        ],
        epochs=[Epoch(number=1, consumer="c1", queue=Q0, started=9, ended=30)],
        handled=[
            handled(0, 10),
            handled(1, 12, outcome=FAIL),
            handled(1, 14, tries=1),
            handled(2, 16),
        ],
        settled=[Settled(at=at, queue=Q0, offset=o) for o, at in enumerate((11.0, 15.0, 17.0))],
        commits=[Commit(at=29, queue=Q0, offset=3, consumer="c1")],
        drained=True,
        locks=[lock(9, True), lock(29.5, False)],
        orderly={""},
        owners={Q0: ["c1"]},
    )


def handed_over() -> History:
    """Return a run in which the second message is still handled when another takes the queue."""
    history = clean()
    history.epochs = [
        Epoch(number=1, consumer="c1", queue=Q0, started=9, ended=13),
        Epoch(number=2, consumer="c2", queue=Q0, started=14, ended=30),
    ]
    history.handled = [
        handled(0, 10),
        handled(1, 12, outcome=Outcome.UNKNOWN),
        handled(1, 14, consumer="c2", epoch=2),
        handled(2, 16, consumer="c2", epoch=2),
    ]
    history.commits = [Commit(at=29, queue=Q0, offset=3, consumer="c2")]
    history.locks = [lock(9, True), lock(13.5, False), lock(14, True, "c2")]
    history.owners = {Q0: ["c2"]}
    return history


@pytest.mark.parametrize("history", [clean(), handed_over()], ids=["one owner", "two owners"])
def test_a_correct_run_has_no_violations(history: History) -> None:
    assert check(history) == []


def unexplained_copy(history: History) -> None:
    history.handled.append(handled(0, 18))
    history.orderly.clear()


def handled_from_nowhere(history: History) -> None:
    history.handled.append(handled(3, 18))


def tries_out_of_nowhere(history: History) -> None:
    history.handled[2] = handled(1, 14, tries=2)


def try_counted_without_a_failure(history: History) -> None:
    history.handled[3] = handled(2, 16, tries=1)


def queue_without_owner(history: History) -> None:
    history.owners = {Q0: []}


def queue_with_two_owners(history: History) -> None:
    history.owners = {Q0: ["c1", "c2"]}


def begun_before_the_last_was_settled(history: History) -> None:
    history.handled[3] = handled(2, 13)


def gone_back(history: History) -> None:
    history.handled.append(handled(1, 18))


def two_at_once(history: History) -> None:
    history.handled[3] = handled(2, 14.5)


def two_consumers_at_once(history: History) -> None:
    history.handled.append(handled(2, 16.5, consumer="c2", epoch=2))


def begun_before_a_hanging_one_ended(history: History) -> None:
    history.handled[1] = handled(1, 12, outcome=Outcome.UNKNOWN, ended=None)


def begun_without_the_lock(history: History) -> None:
    history.locks[0] = lock(10.5, True)


def begun_with_a_lock_of_somebody_else(history: History) -> None:
    history.locks.insert(1, lock(13, True, "c2"))


def unlocked_while_it_ran(history: History) -> None:
    history.locks.insert(1, lock(16.5, False))


PLANTED: list[tuple[str, Callable[[History], None]]] = [
    ("I13", unexplained_copy),
    ("I16", handled_from_nowhere),
    ("I14", tries_out_of_nowhere),
    ("I14", try_counted_without_a_failure),
    ("I15", queue_without_owner),
    ("I15", queue_with_two_owners),
    ("I17", begun_before_the_last_was_settled),
    ("I17", gone_back),
    ("I18", two_at_once),
    ("I18", two_consumers_at_once),
    ("I18", begun_before_a_hanging_one_ended),
    ("P7", begun_without_the_lock),
    ("P7", begun_with_a_lock_of_somebody_else),
    ("P7", unlocked_while_it_ran),
]


@pytest.mark.parametrize(("invariant", "plant"), PLANTED, ids=[p.__name__ for _, p in PLANTED])
def test_a_planted_violation_is_found(invariant: str, plant: Callable[[History], None]) -> None:
    history = clean()
    plant(history)

    assert invariant in {violation.rule for violation in check(history)}


def overlapping(*faults: Fault) -> set[str]:
    """Return the violations of a run whose second owner begins while the first has a message."""
    history = handed_over()
    history.handled[1] = handled(1, 12, outcome=Outcome.UNKNOWN, ended=14.5)
    history.locks = [lock(9, True), lock(14, True, "c2")]
    history.faults = [*faults]
    return {violation.rule for violation in check(history)}


def stall(**changes: object) -> Fault:
    return replace(Fault(started=-50, healed=14, kind="stall", target="c1"), **changes)


def forgotten(**changes: object) -> Fault:
    return replace(Fault(started=13, healed=13.5, kind="locks", target="broker-a"), **changes)


@pytest.mark.parametrize("fault", [stall(), forgotten()], ids=["stall", "locks"])
def test_an_overlap_is_allowed_by_its_cause(fault: Fault) -> None:
    assert overlapping() == {"I18"}
    assert overlapping(fault) == set()


@pytest.mark.parametrize(
    "fault",
    [
        stall(started=0),  # shorter than brokers keep locks
        stall(target="c3"),
        stall(started=15, healed=80),
        forgotten(target="broker-b"),
        forgotten(started=15, healed=16),
        forgotten(started=7, healed=8),  # before the lock was granted
        forgotten(kind="broker"),
    ],
)
def test_an_overlap_is_not_allowed_by_another_fault(fault: Fault) -> None:
    assert overlapping(fault) == {"I18"}


def test_a_stall_allows_one_overlap_per_queue() -> None:
    history = handed_over()
    history.handled[1] = handled(1, 12, outcome=Outcome.UNKNOWN, ended=16.5)
    history.locks = []
    history.faults = [stall()]

    assert {violation.rule for violation in check(history)} == {"I18"}


def under_a_forgotten_lock(*changes: LockChange, started: float = 15) -> set[str]:
    """Return the violations of an owner that handles a message when another got the lock."""
    history = handed_over()
    history.handled = [handled(0, 10), handled(1, started)]
    history.epochs = [Epoch(number=1, consumer="c1", queue=Q0, started=9, ended=30)]
    history.locks = [lock(9, True), lock(14, True, "c2"), *changes]
    history.faults = [forgotten()]
    return {violation.rule for violation in check(history, "P7")}


def test_a_forgotten_lock_counts_until_the_next_response() -> None:
    assert under_a_forgotten_lock() == set()
    assert under_a_forgotten_lock(lock(14.5, False)) == {"P7"}
    assert under_a_forgotten_lock(lock(14.5, True), lock(14.7, True, "c2")) == {"P7"}


def test_unordered_handlers_may_overlap() -> None:
    history = clean()
    history.orderly.clear()
    history.handled = [handled(offset, 10 - offset, ended=20) for offset in range(3)]
    history.settled = [Settled(at=20, queue=Q0, offset=offset) for offset in range(3)]

    assert check(history) == []
