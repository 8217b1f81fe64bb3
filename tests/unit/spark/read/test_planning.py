"""Planning: partitions cover ranges exactly, are few and of similar size."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.spark.offsets import Queue, Range
from rocketmq_aio.spark.options.source_options import Connection, ReadOptions
from rocketmq_aio.spark.read.planning import QueuePartition, plan

OPTIONS = ReadOptions(connection=Connection(name_server="127.0.0.1:9876"), subscribe=("T",))

counts = st.none() | st.integers(1, 50)
queues = st.tuples(st.sampled_from("AB"), st.sampled_from(("a", "b", "c")), st.integers(0, 9))
spans = st.tuples(st.integers(0, 1000), st.integers(-3, 5000))


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Range], ReadOptions]:
    given_spans = draw(st.dictionaries(queues, spans, max_size=20))
    ranges = [Range(*queue, start, start + size) for queue, (start, size) in given_spans.items()]
    options = replace(
        OPTIONS,
        min_partitions=draw(counts),
        max_partitions=draw(counts),
        max_records_per_partition=draw(st.none() | st.integers(100, 3000)),
        min_records_per_partition=draw(st.integers(1, 10_000)),
    )
    return ranges, options


def of_topic(*sizes: int, broker: str = "a") -> list[Range]:
    return [Range("T", broker, number, 0, size) for number, size in enumerate(sizes)]


def covered(partitions: list[QueuePartition]) -> list[tuple[Queue, int, int]]:
    """The covered ranges, adjacent ones merged."""
    found: list[tuple[Queue, int, int]] = []
    for each in sorted(part for partition in partitions for part in partition.ranges):
        if found and found[-1][0] == each.queue and found[-1][2] == each.start:
            found[-1] = (each.queue, found[-1][1], each.end)
        else:
            found.append((each.queue, each.start, each.end))
    return found


def sizes(partitions: list[QueuePartition]) -> list[int]:
    return sorted(sum(part.size for part in partition.ranges) for partition in partitions)


@given(plans())
def test_every_offset_is_in_one_partition(case: tuple[list[Range], ReadOptions]) -> None:
    ranges, options = case

    partitions = plan(ranges, options)

    assert covered(partitions) == sorted((r.queue, r.start, r.end) for r in ranges if r.size > 0)
    assert all(part.size > 0 for partition in partitions for part in partition.ranges)
    assert all(partition.ranges for partition in partitions)


@given(plans(), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_ranges(
    case: tuple[list[Range], ReadOptions], random: object
) -> None:
    ranges, options = case
    mixed = list(ranges)
    random.shuffle(mixed)  # type: ignore[attr-defined]

    assert plan(mixed, options) == plan(ranges, options)


@given(plans())
def test_partition_and_record_limits_are_respected(case: tuple[list[Range], ReadOptions]) -> None:
    ranges, options = case
    total = sum(max(0, each.size) for each in ranges)

    partitions = plan(ranges, options)

    if options.max_partitions is not None:
        assert len(partitions) <= options.max_partitions
    elif options.min_partitions is not None:
        assert len(partitions) >= min(options.min_partitions, total)
    if options.max_partitions is None and options.max_records_per_partition is not None:
        assert all(size <= options.max_records_per_partition for size in sizes(partitions))


def test_small_ranges_share_a_task() -> None:
    assert sizes(plan(of_topic(*[100] * 64), OPTIONS)) == [6400]


def test_tasks_are_filled_evenly() -> None:
    options = replace(OPTIONS, min_partitions=3)

    assert sizes(plan(of_topic(50, 40, 30, 30, 20, 10), options)) == [60, 60, 60]


def test_large_ranges_are_split() -> None:
    options = replace(OPTIONS, max_records_per_partition=400)

    assert sizes(plan(of_topic(1000, 10), options)) == [333, 334, 343]


def test_the_largest_range_is_split_up_to_min_partitions() -> None:
    options = replace(OPTIONS, min_partitions=4, min_records_per_partition=1)

    assert sizes(plan(of_topic(100, 900), options)) == [100, 300, 300, 300]


def test_the_number_of_partitions_is_at_most_that_of_offsets() -> None:
    assert sizes(plan(of_topic(2), replace(OPTIONS, min_partitions=5))) == [1, 1]


def test_a_task_reads_from_one_broker_if_there_are_enough_tasks() -> None:
    ranges = of_topic(*[6000] * 4) + of_topic(*[2000] * 4, broker="b")

    partitions = plan(ranges, OPTIONS)

    assert len(partitions) == 4
    assert all(len({part.broker for part in each.ranges}) == 1 for each in partitions)


def test_empty_ranges_have_no_partition() -> None:
    assert plan(of_topic(0, 0), OPTIONS) == []


@pytest.mark.parametrize("most", [1, 2])
def test_max_partitions_takes_precedence_over_min_records(most: int) -> None:
    options = replace(OPTIONS, max_partitions=most, min_records_per_partition=1)

    assert len(plan(of_topic(*[500] * 8), options)) == most


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [(9, None, [4]), (9, 8, [4]), (9, 2, [2, 2]), (2, 8, [2, 2]), (9, 1, [1, 1, 1, 1])],
)
def test_max_partitions_is_no_minimum(least: int, most: int | None, expected: list[int]) -> None:
    options = replace(
        OPTIONS, max_partitions=8, min_records_per_partition=least, max_records_per_partition=most
    )

    assert sizes(plan(of_topic(1, 1, 1, 1), options)) == expected


def test_a_partition_can_be_pickled() -> None:
    (partition,) = plan(of_topic(5), OPTIONS)

    assert pickle.loads(pickle.dumps(partition)) == partition
