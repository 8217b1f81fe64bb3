"""Transaction log: what is kept of decisions."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction import transaction_log
from rocketmq_aio.producer.transaction.half_message import HalfMessage
from rocketmq_aio.producer.transaction.transaction_log import (
    BLOCK,
    KEPT_SECONDS,
    Decisions,
    TransactionLog,
)
from tests.unit.producer.transaction_env import make_halves
from tests.unit.remoting.until import settle

COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK


def decided(number: int) -> HalfMessage:
    """Return one of a few different decisions."""
    half = next(make_halves(1, process=number))
    half.topic = f"orders-{number % 3}"
    half.state = COMMIT if number % 2 else ROLLBACK
    half.confirmed = None if number % 5 else (f"127.0.0.1:{number}", number)
    half.confirmed_by = "broker-a" if number % 3 else None
    half.unanswered_by = "broker-b" if number % 7 else None
    half.unanswered_over = 0 if number % 11 else number
    half.transaction_id = half.message_id
    half.committed_at = 5.0
    return half


def add_others(decisions: Decisions, number: int) -> None:
    for half in make_halves(number, process=0xFFFF):
        half.state = COMMIT
        decisions.add(half)


def test_older_decisions_keep_all_that_a_check_needs() -> None:
    decisions = Decisions()
    halves = [decided(number) for number in range(100)]
    for half in halves:
        decisions.add(half)
    add_others(decisions, 3 * BLOCK)

    for half in halves:
        found = decisions.find(half.message_id)
        assert found is not half
        assert found is not None
        assert [getattr(found, field) for field in half.__struct_fields__] == [
            getattr(half, field) for field in half.__struct_fields__
        ]


def test_each_of_many_decisions_is_found_and_no_other() -> None:
    decisions = Decisions()
    halves = list(make_halves(10 * BLOCK))
    for number, half in enumerate(halves):
        half.state = COMMIT if number % 3 else ROLLBACK
        decisions.add(half)

    for number, half in enumerate(halves):
        found = decisions.find(half.message_id)
        assert found is not None
        assert found.state is (COMMIT if number % 3 else ROLLBACK)
    assert not any(decisions.find(half.message_id) for half in make_halves(BLOCK, process=2))


def test_a_message_between_those_of_older_decisions_has_none() -> None:
    decisions = Decisions()
    halves = list(make_halves(6 * BLOCK))
    for half in halves[::2]:
        half.state = COMMIT
        decisions.add(half)

    assert not any(decisions.find(half.message_id) for half in halves[1::2])


def test_changes_of_an_older_decision_are_kept() -> None:
    decisions = Decisions()
    half = decided(1)
    decisions.add(half)
    add_others(decisions, 3 * BLOCK)
    found = decisions.find(half.message_id)
    assert found is not None
    found.confirmed_by = "broker-c"

    again = decisions.find(half.message_id)
    assert again is not None
    assert again.confirmed_by == "broker-c"


def test_the_oldest_decisions_are_dropped() -> None:
    decisions = Decisions(most=2 * BLOCK)
    halves = list(make_halves(10 * BLOCK))
    for half in halves:
        decisions.add(half)

    kept = [half for half in halves if decisions.find(half.message_id) is not None]
    assert kept == halves[-len(kept) :]
    assert 2 * BLOCK <= len(kept) <= 4 * BLOCK


def test_decisions_are_dropped_half_an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(transaction_log, "monotonic", lambda: now)
    decisions = Decisions()
    old, young = decided(1), decided(2)
    decisions.add(old)
    add_others(decisions, 3 * BLOCK)
    now = KEPT_SECONDS - 1
    decisions.add(young)
    add_others(decisions, 3 * BLOCK)
    now = KEPT_SECONDS + 1
    add_others(decisions, BLOCK)

    assert decisions.find(old.message_id) is None
    assert decisions.find(young.message_id) is not None


def test_a_decision_keeps_what_its_request_changes_after_thousands_of_others() -> None:
    decisions = Decisions()
    half = decided(1)
    half.is_ending = True
    decisions.add(half)
    add_others(decisions, 5 * BLOCK)
    assert decisions.find(half.message_id) is half

    half.is_ending, half.confirmed = False, ("127.0.0.1:7", 3)
    add_others(decisions, 5 * BLOCK)
    found = decisions.find(half.message_id)
    assert found is not None
    assert found.confirmed == half.confirmed


def test_decisions_are_packed_in_blocks_however_many_are_being_sent() -> None:
    decisions = Decisions()
    halves = list(make_halves(3 * BLOCK))
    for half in halves:
        half.is_ending = True
        decisions.add(half)
    packed = len(decisions._packed)
    add_others(decisions, BLOCK)

    assert len(decisions._packed) == packed + 1
    assert all(decisions.find(half.message_id) is half for half in halves)


def test_the_last_decision_about_a_message_counts() -> None:
    decisions = Decisions()
    half = decided(1)
    decisions.add(half)
    add_others(decisions, 3 * BLOCK)
    decisions.add(replace(half, confirmed_by="broker-c"))
    add_others(decisions, 3 * BLOCK)

    found = decisions.find(half.message_id)
    assert found is not None
    assert found.confirmed_by == "broker-c"


def test_an_older_commit_counts_as_recorded_no_earlier_than_it_was() -> None:
    decisions = Decisions()
    halves = list(make_halves(5 * BLOCK))
    for number, half in enumerate(halves):
        half.committed_at = float(number)
        decisions.add(half)

    for number, half in enumerate(halves):
        found = decisions.find(half.message_id)
        assert found is not None
        assert number <= found.committed_at < number + BLOCK


def test_ids_of_other_clients_are_not_taken_for_others() -> None:
    decisions = Decisions()
    odd = ["", "order 42", "é" * 32, "order-12345678901", "0" * 11, "0x" + "0" * 10]
    for name in odd:
        decisions.add(HalfMessage(name, "orders", state=COMMIT))
    add_others(decisions, 3 * BLOCK)

    assert [decisions.find(name) for name in odd[:4]] == [None] * 4
    for name in odd[4:]:
        found = decisions.find(name)
        assert found is None or found.message_id == name


def test_a_transaction_in_progress_is_found_however_many_are_decided() -> None:
    log = TransactionLog()
    half = decided(1)
    log.begin(half)
    for other in make_halves(5 * BLOCK, process=2):
        log.decide(other, COMMIT)

    assert log.find(half.message_id) is half


async def test_transactions_end_after_wait_until_idle_was_cancelled() -> None:
    log = TransactionLog()
    half = decided(1)
    log.begin(half)
    idle = asyncio.create_task(log.wait_until_idle())
    await settle()
    idle.cancel()
    await asyncio.wait([idle])
    log.end(half)

    await log.wait_until_idle()
    assert log.find(half.message_id) is None
