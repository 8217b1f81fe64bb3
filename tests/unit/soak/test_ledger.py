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
