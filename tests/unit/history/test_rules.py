"""The invariants find what is planted, and nothing in a run where all went well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rocketmq_aio.model.values import MessageQueue
from tests.history import (
    RULES,
    Call,
    Commit,
    Delivered,
    Echo,
    Epoch,
    Fault,
    History,
    LogEntry,
    Outcome,
    Poll,
    Reset,
    Resources,
    Sent,
    Settled,
    check,
)
from tests.history.events import Paused, Pulled, Recalled
from tests.unit.history.test_rules_of_handlers import PLANTED as OF_HANDLERS
from tests.unit.history.test_rules_of_pops_and_transactions import PLANTED as OF_OTHERS
from tests.unit.history.test_rules_of_streams import PLANTED as OF_STREAMS

Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)
IDLE = Resources(tasks=1, descriptors=9, threads=1)


def sent(number: int, **changes: object) -> Sent:
    event = Sent(
        body=b"body %d" % number,
        started=float(number),
        outcome=Outcome.OK,
        queue=Q0,
        offset=number,
        message_id=f"M{number}",
        task="t1",
        ordering_key="k1",
    )
    return replace(event, **changes)


def entry(number: int, **changes: object) -> LogEntry:
    event = LogEntry(queue=Q0, offset=number, body=b"body %d" % number, message_id=f"M{number}")
    return replace(event, **changes)


def delivered(offset: int, at: float, poll: int, **changes: object) -> Delivered:
    event = Delivered(
        at=at, epoch=1, consumer="c1", queue=Q0, offset=offset, poll=poll, body=b"body %d" % offset
    )
    return replace(event, **changes)


def commit(offset: int, at: float, **changes: object) -> Commit:
    event = Commit(at=at, queue=Q0, offset=offset, consumer="c1")
    return replace(event, **changes)


def clean() -> History:
    """Return a run of four messages, two polls of two each, one fault, nothing wrong."""
    return History(
        sends=[sent(number) for number in range(4)],
        log=[entry(number) for number in range(4)],
        attempts={f"M{number}": 1 for number in range(4)},
        epochs=[Epoch(number=1, consumer="c1", queue=Q0, started=9, ended=30, begin=0)],
        polls=[Poll(number=n, consumer="c1", started=10.0 * n) for n in (1, 2)],
        deliveries=[
            delivered(offset, 11.0 + 10 * (offset // 2), 1 + offset // 2) for offset in range(4)
        ],
        settled=[
            Settled(at=12.0 + 10 * (offset // 2), queue=Q0, offset=offset) for offset in range(4)
        ],
        commits=[commit(2, 20.5), commit(4, 29)],
        drained=True,
        calls=[Call(name="poll", deadline=15, ended=15.9)],
        before=IDLE,
        after=IDLE,
        paced={"pull of q0": [0.1 * index for index in range(30)]},
        buffered_bytes=[10, 90],
        most_buffered_bytes=100,
        echoes=[Echo(sent="n1", received="n1"), Echo(sent="n2", received=None)],
        work=[1, 29],
        fault=Fault(started=5, healed=6, observed=True),
    )


def test_a_correct_run_has_no_violations() -> None:
    assert check(clean()) == []


def test_an_empty_history_has_no_violations() -> None:
    assert check(History()) == []


def nothing_stored(history: History) -> None:
    del history.log[3]
    history.drained = False


def other_message_stored(history: History) -> None:
    history.sends[3] = sent(3, message_id="M9")


def never_sent(history: History) -> None:
    history.log.append(entry(9, queue=Q1))


def failed_but_stored(history: History) -> None:
    history.sends[3] = sent(3, outcome=Outcome.FAIL, queue=None, offset=None)


def more_copies_than_attempts(history: History) -> None:
    history.log.append(entry(3, offset=4))
    history.drained = False


def copies_with_two_ids(history: History) -> None:
    history.log.append(entry(3, offset=4, message_id="M4"))
    history.attempts = {f"M{number}": 1 for number in range(5)}
    history.drained = False


def swapped_in_the_log(history: History) -> None:
    history.sends[1], history.sends[2] = sent(1, started=2.0), sent(2, started=1.0)


def sent_last_but_stored_first(history: History) -> None:
    history.sends[0] = sent(0, started=9.0)


def key_in_two_queues(history: History) -> None:
    history.log[3] = entry(3, queue=Q1)
    history.sends[3] = sent(3, queue=Q1)
    history.drained = False


def key_moved_by_another_producer(history: History) -> None:
    key_in_two_queues(history)
    history.sends[3].producer = "p2"


def batch_of(history: History, *numbers: int) -> None:
    for number in numbers:
        history.sends[number].batch = "b1"


def batch_stored_in_part(history: History) -> None:
    batch_of(history, 1, 2, 3)
    del history.log[3]


def batch_in_two_queues(history: History) -> None:
    key_in_two_queues(history)
    batch_of(history, 2, 3)


def batch_with_another_message_in_between(history: History) -> None:
    batch_of(history, 1, 3)


def batch_stored_again_in_part(history: History) -> None:
    batch_of(history, 2, 3)
    history.log.append(entry(2, offset=4))


def offset_with_two_values(history: History) -> None:
    history.deliveries[1] = delivered(1, 11, 1, body=b"something else")


def never_settled(history: History) -> None:
    del history.settled[3]


def settled_after_the_commit(history: History) -> None:
    history.settled[1] = Settled(at=20.6, queue=Q0, offset=1)


def commit_taken_back(history: History) -> None:
    history.commits.append(commit(3, 29.5))


def commit_by_a_stranger(history: History) -> None:
    history.commits.append(commit(4, 29.5, consumer="c2"))


def commit_after_the_epoch(history: History) -> None:
    history.commits.append(commit(4, 31))


def delivered_twice(history: History) -> None:
    history.deliveries.insert(1, delivered(0, 11, 1))


def delivered_though_filtered(history: History) -> None:
    history.visible = lambda entry: entry.offset != 1


def delivered_from_nowhere(history: History) -> None:
    history.deliveries.append(delivered(4, 22, 2))


def left_out(history: History) -> None:
    del history.deliveries[1]


def begun_too_late(history: History) -> None:
    del history.deliveries[0]


def call_that_never_ended(history: History) -> None:
    history.calls.append(Call(name="close", deadline=15, ended=None))


def call_that_overran(history: History) -> None:
    history.calls.append(Call(name="send", deadline=15, ended=16.5))


def task_left_behind(history: History) -> None:
    history.after = dataclasses.replace(IDLE, tasks=2)


def descriptor_left_behind(history: History) -> None:
    history.after = dataclasses.replace(IDLE, descriptors=10)


def entry_left_behind(history: History) -> None:
    history.after = dataclasses.replace(IDLE, pending=1)


def delayed_but_early(history: History) -> None:
    history.sends[2].delay_seconds = 30.0


def recalled_but_delivered(history: History) -> None:
    history.sends[3].delay_seconds = 15.0
    recalled = Recalled(at=4, number="r", uid=history.sends[3].identity, confirmed=5)
    history.recalled.append(recalled)


def pull_with_a_gap(history: History) -> None:
    pulled = Pulled(at=40, queue=Q0, consumer="c2", offset=0, next_offset=3, offsets=[0, 2])
    history.pulls.append(pulled)


def delivered_while_paused(history: History) -> None:
    history.pauses.append(Paused(at=15, queue=Q0, consumer="c1", paused=True))


def noise(history: History) -> None:
    history.unexpected.append("Task exception was never retrieved")


def hot_loop(history: History) -> None:
    history.paced["pull of q0"] += [2.01 + 0.001 * index for index in range(20)]


def too_much_buffered(history: History) -> None:
    history.buffered_bytes.append(101)


def reply_to_another_call(history: History) -> None:
    history.echoes.append(Echo(sent="n3", received="n1"))


def fault_without_effect(history: History) -> None:
    history.fault = Fault(started=5, healed=6, observed=False)


def no_work_after_the_fault(history: History) -> None:
    history.work = [1, 5.5]


PLANTED: list[tuple[str, Callable[[History], None]]] = [
    ("I1", nothing_stored),
    ("I1", other_message_stored),
    ("I2", never_sent),
    ("I3", failed_but_stored),
    ("I4", more_copies_than_attempts),
    ("I4", copies_with_two_ids),
    ("I5", swapped_in_the_log),
    ("I5", sent_last_but_stored_first),
    ("I6", key_in_two_queues),
    ("I6", key_moved_by_another_producer),
    ("I7", batch_stored_in_part),
    ("I7", batch_in_two_queues),
    ("I7", batch_with_another_message_in_between),
    ("I7", batch_stored_again_in_part),
    ("I8", offset_with_two_values),
    ("I9", never_settled),
    ("I10", settled_after_the_commit),
    ("I11", commit_taken_back),
    ("I12", commit_by_a_stranger),
    ("I12", commit_after_the_epoch),
    ("I13", delivered_twice),
    ("I16", delivered_though_filtered),
    ("I16", delivered_from_nowhere),
    ("I19", left_out),
    ("I19", begun_too_late),
    ("I28", call_that_never_ended),
    ("I28", call_that_overran),
    ("I29", task_left_behind),
    ("I29", descriptor_left_behind),
    ("I29", entry_left_behind),
    ("I30", noise),
    ("I31", hot_loop),
    ("I32", too_much_buffered),
    ("I33", reply_to_another_call),
    ("I36", delayed_but_early),
    ("I37", recalled_but_delivered),
    ("I38", pull_with_a_gap),
    ("I39", delivered_while_paused),
    ("I34", fault_without_effect),
    ("I34", no_work_after_the_fault),
]


@pytest.mark.parametrize(("invariant", "plant"), PLANTED, ids=[p.__name__ for _, p in PLANTED])
def test_a_planted_violation_is_found(invariant: str, plant: Callable[[History], None]) -> None:
    history = clean()
    plant(history)

    assert invariant in {violation.rule for violation in check(history)}


def test_every_invariant_has_a_planted_violation() -> None:
    planted = [*PLANTED, *OF_HANDLERS, *OF_OTHERS, *OF_STREAMS]
    assert {invariant for invariant, *_ in planted} == set(RULES)


@pytest.mark.parametrize(("early", "violations"), [(1.0005, 0), (1.002, 1)])
def test_a_delayed_message_may_come_a_second_and_a_millisecond_early(
    early: float, violations: int
) -> None:
    """Brokers count from the millisecond of the send, and move whole seconds back by one."""
    history = clean()
    came = next(each.at for each in history.deliveries if each.offset == 2)
    history.sends[2].delay_seconds = came - history.sends[2].started + early

    assert len(check(history, "I36")) == violations


@pytest.mark.parametrize("plant", [lambda _: None, lambda history: history.log.clear()])
def test_a_batch_that_is_whole_or_absent_is_allowed(plant: Callable[[History], None]) -> None:
    history = clean()
    batch_of(history, 1, 2, 3)
    plant(history)

    assert check(history, "I7") == []


def routes(started: float, healed: float) -> Fault:
    return Fault(started=started, healed=healed, kind="routes", target="broker-a")


def key_moved_during(fault: Fault, *others: Sent) -> set[str]:
    """Return the violations of a producer that sends to another queue from time 3 on."""
    history = clean()
    key_moved_by_another_producer(history)
    for each in history.sends:
        each.ended = each.started + 0.1
    history.sends += others
    history.faults = [fault]
    return {violation.rule for violation in check(history, "I6")}


def test_a_producer_may_move_a_key_if_its_first_route_was_incomplete() -> None:
    early = sent(8, started=1.5, producer="p2", outcome=Outcome.FAIL)

    assert key_moved_during(routes(2.9, 3.1)) == set()
    assert key_moved_during(routes(1, 2), early) == set()  # its first send found no route
    assert key_moved_during(routes(1, 2)) == {"I6"}
    assert key_moved_during(routes(4, 5)) == {"I6"}


def test_a_producer_with_an_incomplete_route_keeps_its_queues() -> None:
    history = clean()
    key_in_two_queues(history)
    history.faults = [routes(-1, 0)]

    assert {violation.rule for violation in check(history, "I6")} == {"I6"}


def test_messages_that_another_member_committed_may_be_skipped() -> None:
    history = clean()
    left_out(history)
    history.commits.append(commit(2, 22, consumer="c2"))
    assert len(check(history, "I19")) == 1  # after the next delivery
    history.commits.append(commit(2, 15, consumer="c2"))

    assert check(history, "I19") == []


def test_redelivery_to_a_new_owner_is_allowed() -> None:
    history = clean()
    history.epochs = [
        Epoch(number=1, consumer="c1", queue=Q0, started=9, ended=21, begin=0),
        Epoch(number=2, consumer="c2", queue=Q0, started=22, begin=2),
    ]
    history.polls.append(Poll(number=1, consumer="c2", started=22))
    history.deliveries += [delivered(o, 23, 1, consumer="c2", epoch=2) for o in (2, 3)]
    history.commits = [commit(2, 20.5), commit(4, 29, consumer="c2")]

    assert check(history) == []


def test_a_reset_may_commit_unprocessed_messages() -> None:
    history = clean()
    history.commits = [commit(4, 29), commit(1, 29.5)]
    history.resets = [Reset(at=29.2, queue=Q0, offset=1)]
    skipped = clean()
    skipped.settled.clear()
    skipped.commits = [commit(4, 29)]
    skipped.resets = [Reset(at=28, queue=Q0, offset=4)]

    assert check(history) == []
    assert check(skipped) == []


def test_messages_before_the_start_of_the_group_are_not_checked() -> None:
    history = clean()
    history.starts = {Q0: 2}
    history.epochs = [Epoch(number=1, consumer="c1", queue=Q0, started=9, ended=30, begin=2)]
    del history.deliveries[:2], history.settled[:2]

    assert check(history) == []


def test_copies_of_a_send_with_unknown_outcome_are_allowed() -> None:
    history = clean()
    history.sends[3] = sent(3, outcome=Outcome.UNKNOWN, queue=None, offset=None)
    history.log.append(entry(3, offset=4))
    assert history.attempts is not None
    history.attempts["M3"] = 2
    history.deliveries.append(delivered(4, 22, 2, body=b"body 3"))
    history.settled.append(Settled(at=23, queue=Q0, offset=4))

    assert check(history) == []
