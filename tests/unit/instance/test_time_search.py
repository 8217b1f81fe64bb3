"""Time search: the right offset for any hint of the broker."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.instance.time_search import TimeSearch


def searched(times: list[int], millis: int, hint: int, first: int = 0) -> tuple[int, int]:
    """Return the offset found in a queue that begins at *first*, and the questions it took."""
    search = TimeSearch(millis, first, first + len(times), hint)
    asked = 0
    while search.found is None:
        at = search.probe - first
        search.seen([(first + i, times[i]) for i in range(at, len(times))][: search.count])
        asked += 1
        assert asked < 100
    return search.found, asked


@given(
    st.lists(st.integers(0, 60), max_size=500).map(sorted),
    st.integers(-1, 61),
    st.integers(-5, 600),
    st.integers(0, 50),
)
def test_the_result_is_the_first_message_at_or_after_the_time(
    times: list[int], millis: int, hint: int, first: int
) -> None:
    found, _ = searched(times, millis, hint, first)

    assert found == first + bisect_left(times, millis)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=300).map(sorted), st.data())
def test_gaps_do_not_matter(times: list[int], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(range(len(times)))))
    millis, hint = data.draw(st.integers(0, 61)), data.draw(st.integers(0, 300))
    search = TimeSearch(millis, 0, len(times), hint)

    while search.found is None:
        there = [(i, times[i]) for i in sorted(kept) if i >= search.probe]
        search.seen(there[: search.count])

    assert [i for i in kept if i >= search.found] == [i for i in kept if times[i] >= millis]


def test_a_correct_hint_takes_one_query() -> None:
    assert searched([10, 20, 30, 40], 30, hint=2) == (2, 1)


def test_an_empty_queue_needs_no_read() -> None:
    assert searched([], 30, hint=7, first=7) == (7, 0)


@pytest.mark.parametrize("hint", [0, 50_000, 99_999])
def test_a_hint_among_many_equals_takes_few_questions(hint: int) -> None:
    times = [1] * 20_000 + [2] * 80_000

    found, asked = searched(times, 2, hint)

    assert found == 20_000
    assert asked < 32


def test_the_end_of_the_queue_when_everything_is_older() -> None:
    assert searched([1, 2, 3], 9, hint=0)[0] == 3
