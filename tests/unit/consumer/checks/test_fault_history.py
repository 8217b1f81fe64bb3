"""FaultHistory: when a fault is reported, by samples, joins and departures."""

from __future__ import annotations

from collections.abc import Iterable

from rocketmq_aio.consumer.checks.fault_history import (
    GAP_SECONDS,
    GONE_SECONDS,
    JOIN_SECONDS,
    LEAST_OCCURRENCES,
    LONGEST_SECONDS,
    QUIET_SECONDS,
    SETTLE_SECONDS,
    UNPROVEN_SECONDS,
    FaultHistory,
)

STEP = 1.0


class History(FaultHistory[str]):
    """A history with samples of a clock that tests move."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(now)
        self.now = now
        self.reported: list[str] = []

    def sample(
        self,
        seconds: float = 0.0,
        *,
        faults: Iterable[str] = ("fault",),
        members: str = "ab",
        unproven: Iterable[str] = (),
    ) -> list[str]:
        """Take a sample each second for so long, at least one; return what is reported."""
        reported: list[str] = []
        for _ in range(max(1, int(seconds / STEP))):
            self.now += STEP
            self.note_members(members, self.now)
            reported += self.note_faults(list(faults), self.now, unproven=list(unproven))
        return reported


def grown() -> History:
    """A member whose group has just got a second one."""
    history = History()
    history.sample(1000, faults=[], members="a")
    history.sample(faults=[])
    return history


def test_a_fault_that_came_with_a_join_is_reported_within_seconds() -> None:
    assert grown().sample(SETTLE_SECONDS + STEP) == ["fault"]
    assert History().sample(SETTLE_SECONDS + STEP) == ["fault"]  # this member joined


def test_a_fault_that_ends_within_seconds_is_not_reported() -> None:
    history = grown()

    assert history.sample(SETTLE_SECONDS - STEP) == []
    assert history.sample(2 * QUIET_SECONDS, faults=[]) == []


def test_a_fault_is_reported_once_until_it_is_gone() -> None:
    history = grown()
    history.sample(SETTLE_SECONDS + STEP)

    assert history.sample(1000) == []
    assert history.sample(GONE_SECONDS, faults=[]) == []
    assert history.sample(1000) == []
    history.sample(GONE_SECONDS + 2 * STEP, faults=[])
    assert history.sample(QUIET_SECONDS + STEP) == ["fault"]


def test_few_occurrences_are_not_enough() -> None:
    history = grown()
    for _ in range(LEAST_OCCURRENCES - 1):
        history.now += SETTLE_SECONDS
        assert history.sample() == []
    history.now += SETTLE_SECONDS
    assert history.sample() == ["fault"]


def test_another_join_postpones_the_report() -> None:
    history = grown()
    history.sample(SETTLE_SECONDS - STEP)

    assert history.sample(SETTLE_SECONDS - STEP, members="abc") == []
    assert history.sample(2 * STEP, members="abc") == ["fault"]


def test_a_fault_that_began_without_a_join_has_to_last() -> None:
    history = grown()
    history.sample(JOIN_SECONDS + STEP, faults=[])

    assert history.sample(QUIET_SECONDS) == []
    assert history.sample(STEP) == ["fault"]


def test_members_replaced_one_by_one_are_no_fault() -> None:
    history = History()
    history.sample(1000, faults=[], members="abc")
    for members in ("bc", "bcd", "cd", "cde", "de", "def"):
        faults = [] if members == "def" else ["fault"]
        assert history.sample(QUIET_SECONDS - STEP, faults=faults, members=members) == []


def test_a_departure_that_others_saw_counts() -> None:
    history = History()
    history.note_departure(-10.0)

    assert history.sample(QUIET_SECONDS - 10 - STEP) == []
    assert history.sample(2 * STEP) == ["fault"]
    assert history.seconds_since_departure(history.now) == history.now + 10


def test_lasting_fault_is_reported_despite_joins_and_departures() -> None:
    history = grown()
    history.note_departure(history.now)
    reported = [history.sample(10, members="ab" if turn % 2 else "abc") for turn in range(89)]

    assert reported == [[]] * 89
    assert history.sample(LONGEST_SECONDS - 890 + STEP) == ["fault"]


def test_intermittent_fault_counts_as_lasting() -> None:
    history = grown()
    history.sample(JOIN_SECONDS + STEP, faults=[])
    reported: list[str] = []
    for _ in range(3):
        reported += history.sample(10)
        reported += history.sample(GAP_SECONDS - 20, faults=[])
    reported += history.sample(10)

    assert reported == ["fault"]


def test_a_fault_that_ended_begins_anew() -> None:
    history = grown()
    history.sample(JOIN_SECONDS + STEP, faults=[])
    history.sample(QUIET_SECONDS - STEP)
    history.sample(GAP_SECONDS + 2 * STEP, faults=[])

    assert history.sample(QUIET_SECONDS) == []


def test_an_unproven_fault_has_to_outlast_connections_that_are_gone() -> None:
    history = grown()

    assert history.sample(UNPROVEN_SECONDS, unproven=["fault"]) == []
    assert history.sample(STEP, unproven=["fault"]) == ["fault"]


def test_a_fault_that_is_proven_later_is_reported_within_seconds() -> None:
    history = grown()
    history.sample(10, unproven=["fault"])

    assert history.sample(SETTLE_SECONDS) == []
    assert history.sample(STEP, unproven=["fault"]) == ["fault"]


def test_faults_are_tracked_separately() -> None:
    history = grown()
    history.sample(SETTLE_SECONDS - STEP, faults=["one"])

    assert history.sample(2 * STEP, faults=["one", "two"]) == ["one"]
    assert history.has_pending()
    assert history.sample(SETTLE_SECONDS, faults=["one", "two"]) == ["two"]
    assert not history.has_pending()


def test_a_group_settles_after_a_join() -> None:
    history = grown()

    assert history.is_settling(history.now)
    assert not history.is_settling(history.now + 3 * SETTLE_SECONDS)
