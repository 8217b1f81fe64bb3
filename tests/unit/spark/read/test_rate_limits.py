"""Rate limits: split by backlog, at least one offset for each queue."""

from __future__ import annotations

from hypothesis import given, strategies as st

from rocketmq_aio.spark.offsets import Queue
from rocketmq_aio.spark.read.rate_limits import backlog, split_limit

queues = st.tuples(st.sampled_from("AB"), st.just("a"), st.integers(0, 40))
waiting = st.dictionaries(queues, st.integers(1, 10**12), max_size=30)


def queue(number: int) -> Queue:
    return "T", "a", number


@given(waiting, st.integers(1, 10**9))
def test_the_limit_is_used_up_and_every_queue_gets_a_share(
    sizes: dict[Queue, int], most: int
) -> None:
    shares = split_limit(sizes, most)

    assert sum(shares.values()) == min(sum(sizes.values()), max(most, len(sizes)))
    assert all(1 <= share <= sizes[each] for each, share in shares.items())
    assert shares.keys() == sizes.keys()


def test_shares_follow_the_backlog() -> None:
    shares = split_limit({queue(0): 901, queue(1): 101}, 102)

    assert shares == {queue(0): 91, queue(1): 11}


def test_each_queue_gets_one_message_even_beyond_the_limit() -> None:
    assert split_limit({queue(0): 1, queue(1): 1, queue(2): 1}, 2) == {
        queue(0): 1,
        queue(1): 1,
        queue(2): 1,
    }


def test_a_queue_whose_end_is_not_beyond_its_start_has_no_backlog() -> None:
    start = {queue(0): 5, queue(1): 5, queue(2): 5, queue(3): 5}

    assert backlog(start, {queue(0): 9, queue(1): 5, queue(2): 3}) == {queue(0): 4}
