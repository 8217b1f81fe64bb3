"""Redeliveries: each kind of reason explains those that it allows, and no others."""

from __future__ import annotations

import pytest

from rocketmq_aio.model.values import MessageQueue
from tests.history import (
    Commit,
    Epoch,
    Fault,
    Handled,
    History,
    Outcome,
    Reset,
    Sent,
    Violation,
    check,
    duplicates,
)
from tests.history.events import Confirmed, DeadLettered, Drained, Joined, SentBack, Subscribed
from tests.unit.costs import cpu_seconds

Q0 = MessageQueue("orders", "broker-a", 0)
RETRIES = MessageQueue("%RETRY%billing", "broker-a", 0)
GROUP = "billing"


def handled(
    at: float, consumer: str = "c1", queue: MessageQueue = Q0, **changes: object
) -> Handled:
    fields = {"epoch": int(consumer[1:]), "outcome": Outcome.OK, "ended": at + 1, "offset": 0}
    return Handled(
        queue=queue,
        group=GROUP,
        consumer=consumer,
        started=at,
        uid="u1",
        body=b"1",
        **{**fields, **changes},  # type: ignore[arg-type]
    )


def joined(consumer: str, process: str, at: float = 0) -> Joined:
    return Joined(at=at, consumer=consumer, group=GROUP, process=process)


def moved(**changes: object) -> History:
    """Return a run in which a message is handled twice, by two owners of its queue."""
    history = History(
        handled=[handled(10), handled(20, "c2")],
        epochs=[
            Epoch(number=1, group=GROUP, consumer="c1", queue=Q0, started=5, ended=15),
            Epoch(number=2, group=GROUP, consumer="c2", queue=Q0, started=18),
        ],
    )
    history.add(joined("c1", "p1"))
    history.add(joined("c2", "p2"))
    for name, value in changes.items():
        setattr(history, name, value)
    return history


def fault(kind: str, target: str, started: float = 12) -> list[Fault]:
    return [Fault(started=started, healed=started + 1, kind=kind, target=target)]


def lost_lock() -> History:
    history = moved()
    history.epochs[0].lost_lock = True
    return history


def confirmed(at: float, offset: int = 1) -> list[Commit]:
    return [Commit(at=at, queue=Q0, offset=offset, group=GROUP, consumer="c1", confirmed=at + 0.5)]


def in_flight(at: float, offset: int) -> list[Commit]:
    return [Commit(at=at, queue=Q0, offset=offset, group=GROUP, consumer="c1")]


def concurrent(*offsets: int) -> list[Commit]:
    """Return commits in flight at the same time, confirmed in this order."""
    return [
        Commit(at=14, queue=Q0, offset=offset, group=GROUP, consumer="c1", confirmed=15 + number)
        for number, offset in enumerate(offsets)
    ]


def again(second: Handled, **changes: object) -> History:
    """Return a run in which the same owner gets the message twice."""
    return moved(handled=[handled(10), second], **changes)


def sent(**changes: object) -> Sent:
    fields = {"outcome": Outcome.OK, "attempts": 1, "started": 1, **changes}
    return Sent(uid="u1", body=b"1", queue=Q0, offset=0, **fields)  # type: ignore[arg-type]


def reset(offset: int, at: float = 15) -> list[Reset]:
    return [Reset(at=at, queue=Q0, group=GROUP, consumer="c1", offset=offset)]


def failed(**changes: object) -> list[Handled]:
    return [handled(10, outcome=Outcome.FAIL), handled(20, **changes)]  # type: ignore[arg-type]


EXPLAINED: dict[str, tuple[str, History]] = {
    "another owner": ("rebalance", moved()),
    "a killed process": ("kill", moved(faults=fault("kill", "p1"))),
    "a stalled consumer": ("stall", moved(faults=fault("stall", "c1"))),
    "a lost lock": ("lost lock", lost_lock()),
    "a commit below it": ("rebalance", moved(commits=confirmed(14, offset=0))),
    "commits of two owners at once": ("rebalance", moved(commits=concurrent(0, 1))),
    "a commit of the former owner after the move": (
        "rebalance",
        moved(commits=confirmed(14) + confirmed(18.4, offset=0)),
    ),
    "a commit in flight at a kill, which arrives later": (
        "kill",
        moved(commits=in_flight(14, offset=0) + confirmed(15), faults=fault("kill", "p1")),
    ),
    "a commit of a member that left, which arrives later": (
        "rebalance",
        moved(commits=in_flight(14, offset=0) + confirmed(15), left={"c1": 16.0}),
    ),
    "a commit that was too late": ("rebalance", moved(commits=confirmed(17.8))),
    "a broker that lost the commit": (
        "broker",
        moved(commits=confirmed(14), faults=fault("broker", "broker-a", 16)),
    ),
    "a seek": ("seek", again(handled(20), resets=reset(0))),
    "a failed handler": ("retry", moved(handled=failed())),
    "a retry topic": ("retry", moved(handled=failed(queue=RETRIES))),
    "a send of unknown outcome": (
        "sent twice",
        again(handled(20, offset=1), sends=[sent(outcome=Outcome.UNKNOWN)]),
    ),
    "a topic unknown to name servers before its first message": (
        "routes",
        moved(commits=confirmed(14), sends=[sent(started=9)], faults=fault("routes", "n", 8)),
    ),
    "a topic unknown to name servers before its first delayed message was due": (
        "routes",
        moved(
            commits=confirmed(14),
            sends=[sent(started=7, delayed=True)],
            faults=fault("routes", "n", 8),
        ),
    ),
    "a delayed send before a kill of the broker": (
        "broker",
        again(
            handled(20, offset=1), sends=[sent(delayed=True)], faults=fault("broker", "broker-a")
        ),
    ),
    "a repeated send": ("sent twice", again(handled(20, offset=1), sends=[sent(attempts=2)])),
}

UNEXPLAINED: dict[str, History] = {
    "the same owner": again(handled(20)),
    "another owner after a commit": moved(commits=confirmed(14)),
    "a commit without response of a member that lives": moved(
        commits=in_flight(14, offset=0) + confirmed(15)
    ),
    "a commit in flight at a kill long before": moved(
        commits=in_flight(-10, offset=0) + confirmed(15), faults=fault("kill", "p1")
    ),
    "a broker that failed later": moved(
        commits=confirmed(14), faults=fault("broker", "broker-a", 30)
    ),
    "a topic unknown to name servers after its first message": moved(
        commits=confirmed(14), sends=[sent(started=7)], faults=fault("routes", "n", 8)
    ),
    "a topic unknown to name servers after its first delayed message was due": moved(
        commits=confirmed(14), sends=[sent(delayed=True)], faults=fault("routes", "n", 11)
    ),
    "a topic unknown to name servers long before": moved(
        commits=confirmed(14), sends=[sent(started=9)], faults=fault("routes", "n", -20)
    ),
    "another broker that failed": moved(
        commits=confirmed(14), faults=fault("broker", "broker-b", 16)
    ),
    "a seek behind it": again(handled(20), resets=reset(1)),
    "a seek before the first": again(handled(20), resets=reset(0, at=5)),
    "a handler that failed afterwards": moved(
        handled=[handled(10, ended=25.0, outcome=Outcome.FAIL), handled(20)]
    ),
    "a retry topic without a failure": again(handled(20, queue=RETRIES)),
    "a delayed send after a kill of the broker": again(
        handled(20, offset=1), sends=[sent(delayed=True)], faults=fault("broker", "broker-a", -5)
    ),
    "a delayed send before a kill of another broker": again(
        handled(20, offset=1), sends=[sent(delayed=True)], faults=fault("broker", "broker-b")
    ),
    "a send without delay before a kill of the broker": again(
        handled(20, offset=1), sends=[sent()], faults=fault("broker", "broker-a")
    ),
    "a send of one attempt": again(handled(20, offset=1), sends=[sent()]),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_redelivery_with_a_reason_is_legal(name: str) -> None:
    reason, history = EXPLAINED[name]

    assert [each.reason for each in duplicates(history)] == [reason]
    assert check(history, "I13") == []


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_a_redelivery_without_a_reason_is_a_violation(name: str) -> None:
    history = UNEXPLAINED[name]
    (violation,) = check(history, "I13")

    assert violation.rule == "I13"
    assert violation.proof == tuple(history.handled)


# --- acknowledged messages, without a log ---------------------------------------------------------


def lost() -> History:
    """Return a run that fails at its only message, which was acknowledged."""
    history = History(sends=[sent(topic="orders")])
    history.add(Subscribed(group=GROUP, topic="orders"))
    history.add(joined("c1", "p1"))
    history.add(handled(10, outcome=Outcome.FAIL, log_offset=7))
    history.add(Drained(at=30))
    return history


def dead_lettered(history: History, *, confirmed_at: float | None) -> None:
    history.dead_lettered.append(
        DeadLettered(at=12, queue=Q0, offset=0, group=GROUP, consumer="c1")
    )
    history.sent_back.append(
        SentBack(at=11, number="s1", group=GROUP, uid="u1", confirmed=confirmed_at)
    )


def test_a_confirmed_copy_settles_the_message_that_failed_and_no_redelivery() -> None:
    """The broker executed the request that sent it back, too, and its response was lost."""
    history = History()
    history.add(handled(10, outcome=Outcome.FAIL))
    history.add(handled(20, queue=RETRIES, tries=1))
    history.add(SentBack(at=21, number="s1", group=GROUP, uid="u1", tries=0))
    history.add(Confirmed(at=22, number="s1"))

    assert [each.queue for each in history.settled] == [Q0]


def never_consumed(history: History) -> list[Violation]:
    return [each for each in check(history, "I9") if "acknowledged" in each.what]


def test_an_acknowledged_message_that_no_group_consumes_is_a_violation() -> None:
    assert never_consumed(lost())


@pytest.mark.parametrize(("confirmed_at", "legal"), [(12.0, True), (None, False)])
def test_a_dead_letter_counts_if_the_broker_has_confirmed_it(
    confirmed_at: float | None, legal: bool
) -> None:
    history = lost()
    dead_lettered(history, confirmed_at=confirmed_at)

    assert bool(never_consumed(history)) != legal


def test_a_message_of_an_unsubscribed_topic_need_not_be_consumed() -> None:
    history = lost()
    history.topics = {GROUP: {"others": "*"}}

    assert never_consumed(history) == []


# --- costs ----------------------------------------------------------------------------------------


def long_run(count: int) -> History:
    """Return a run in which every message is redelivered after a rebalance, and committed."""
    history = moved(handled=[], epochs=moved().epochs)
    for number in range(count):
        for base, consumer in ((10, "c1"), (20, "c2")):
            message = handled(base + number / count, consumer, offset=number)
            message.uid = f"u{number}"
            history.handled.append(message)
        send = sent(attempts=2)
        send.uid, send.offset = f"u{number}", number
        history.sends.append(send)
        (commit,) = confirmed(14 + number / count, offset=0)
        commit.confirmed = commit.at
        history.commits.append(commit)
        history.resets += reset(0, at=1)
    return history


def test_the_costs_of_a_check_grow_with_the_events() -> None:
    def seconds(count: int) -> float:
        history = long_run(count)
        return cpu_seconds(lambda: check(history))

    assert seconds(2000) < 8 * seconds(500)


def test_copies_for_retries_are_not_those_of_a_repeated_send() -> None:
    handled_again = [*failed(queue=RETRIES), handled(30, offset=1)]
    history = moved(handled=handled_again, sends=[sent(attempts=2)])

    assert [each.reason for each in duplicates(history)] == ["retry", "sent twice"]


def test_a_seek_explains_what_another_owner_got_since() -> None:
    history = moved(commits=confirmed(14))
    history.epochs[1].begin = 0

    assert [each.reason for each in duplicates(history)] == ["seek"]


@pytest.mark.parametrize(
    ("failed_at", "pops", "reason"), [(15, True, "broker"), (30, True, ""), (15, False, "")]
)
def test_a_broker_that_lost_an_acknowledgement_explains_a_retry_of_a_pop(
    failed_at: float, pops: bool, reason: str
) -> None:
    faults = fault("broker", "broker-a", failed_at)
    history = again(handled(20, queue=RETRIES), faults=faults)
    history.popping = {GROUP} if pops else set()

    assert [each.reason for each in duplicates(history)] == [reason]
