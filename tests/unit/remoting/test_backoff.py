"""Backoff: doubling pauses with jitter."""

from __future__ import annotations

from rocketmq_aio.remoting.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    pauses = [backoff.next_pause() for _ in range(6)]

    assert all(
        whole / 2 <= pause <= whole for pause, whole in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True)
    )


def test_backoff_has_jitter() -> None:
    pauses = {Backoff().next_pause() for _ in range(20)}

    assert len(pauses) > 1


def test_after_a_success_it_begins_anew() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    for _ in range(5):
        backoff.next_pause()
    backoff.reset()

    assert backoff.next_pause() <= 1.0


def test_any_number_of_failures_is_bearable() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    backoff.failures = 10**6

    assert backoff.next_pause() <= 8.0
