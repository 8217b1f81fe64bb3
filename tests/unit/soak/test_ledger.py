"""Ledger: every message is counted once."""

from __future__ import annotations

from tests.soak.ledger import Ledger


def test_a_message_is_missing_until_it_is_received() -> None:
    ledger = Ledger()
    number = ledger.begin()
    assert ledger.missing == 0  # its send has not returned
    ledger.succeed(number)
    assert ledger.missing == 1
    ledger.receive(number)

    assert (ledger.missing, ledger.received, ledger.extra) == (0, 1, 0)


def test_the_faults_at_the_end_are_listed() -> None:
    ledger = Ledger()
    assert ledger.faults() == ["nothing was received"]
    first, second, third = (ledger.begin() for _ in range(3))
    for number in (first, second, third):
        ledger.succeed(number)
    ledger.receive_in_order(third, key=1)
    ledger.receive_in_order(first, key=1)

    assert ledger.faults() == [
        "1 messages are missing",
        "1 messages came after a later one of their key",
    ]


def test_a_message_may_be_received_before_its_send_returns() -> None:
    ledger = Ledger()
    number = ledger.begin()
    ledger.receive(number)
    ledger.succeed(number)

    assert (ledger.missing, ledger.received, ledger.extra) == (0, 1, 0)


def test_further_copies_are_extra() -> None:
    ledger = Ledger()
    number = ledger.begin()
    ledger.receive(number)
    ledger.receive(number)
    ledger.succeed(number)
    ledger.receive(number)

    assert (ledger.received, ledger.extra) == (1, 2)


def test_a_failed_send_is_not_missing() -> None:
    ledger = Ledger()
    number = ledger.begin()
    ledger.fail(number, TimeoutError())
    ledger.receive(number)  # it was stored all the same

    assert (ledger.missing, ledger.failed, ledger.extra) == (0, 1, 1)
    assert ledger.errors == {"TimeoutError": 1}


def test_the_first_copy_of_a_message_that_a_later_one_of_its_key_precedes_is_disordered() -> None:
    ledger = Ledger()
    first, second, other = (ledger.begin() for _ in range(3))
    for number in (first, second, other):
        ledger.succeed(number)

    ledger.receive_in_order(second, key=1)
    ledger.receive_in_order(other, key=2)
    assert ledger.disordered == 0
    ledger.receive_in_order(first, key=1)
    ledger.receive_in_order(first, key=1)

    assert (ledger.disordered, ledger.received, ledger.extra) == (1, 3, 1)
