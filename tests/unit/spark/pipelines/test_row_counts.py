"""Row counts: gaps, their reasons, problems, and sums over micro-sums."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.pipelines.micro_batch_counts import BatchSums
from rocketmq_aio.spark.pipelines.row_counts import count_problems, split_gap
from rocketmq_aio.spark.pipelines.sending import growth
from rocketmq_aio.spark.pipelines.summary import Gap, QueueCount

GAP = Gap(start=10, end=20)


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (0, [(10, 20, False)]),
        (10, [(10, 20, False)]),
        (15, [(10, 15, True), (15, 20, False)]),
        (20, [(10, 20, True)]),
        (99, [(10, 20, True)]),
    ],
)
def test_a_gap_is_split_at_the_first_offset_of_the_queue(
    begin: int, expected: list[tuple[int, int, bool]]
) -> None:
    found = [(gap.start, gap.end, gap.reason is not None) for gap in split_gap(GAP, begin)]

    assert found == expected


def counted(**changes: Any) -> QueueCount:  # noqa: ANN401 - the fields
    return QueueCount(topic="t", broker="b", queue_id=0, start=0, end=100, **changes)


@pytest.mark.parametrize(
    ("count", "problems"),
    [
        (counted(rows=100), []),
        (counted(), []),
        (counted(rows=90, gaps=(Gap(start=10, end=20, reason="deleted"),)), []),
        (counted(rows=90, gaps=(GAP,)), ["t/b/0: 10 of 100 messages are missing"]),
        (counted(rows=80), ["t/b/0: 20 of 100 messages are missing"]),
        (counted(rows=100, repeated=3), ["t/b/0: 3 rows are there more than once"]),
    ],
)
def test_missing_and_repeated_rows_are_problems(count: QueueCount, problems: list[str]) -> None:
    assert count_problems([count], filtered=False) == problems


def test_with_a_filter_only_repeated_rows_are_problems() -> None:
    assert count_problems([counted(rows=5)], filtered=True) == []
    assert len(count_problems([counted(rows=5, repeated=1)], filtered=True)) == 1


def test_growth_counts_new_queues_and_ignores_shrunk_queues() -> None:
    before = {("t", "b", 0): 5, ("t", "b", 1): 9}

    assert growth(before, {("t", "b", 0): 8, ("t", "b", 1): 0, ("t", "c", 0): 2}) == 5


def progress(batch: int, start: object, end: object, rows: int, bad: int) -> SimpleNamespace:
    """Return Spark's progress of a batch."""

    def text(offset: object) -> str | None:
        return None if offset is None else json.dumps(offset)

    source = SimpleNamespace(startOffset=text(start), endOffset=text(end), numInputRows=rows)
    counts = SimpleNamespace(asDict=lambda: {"rows": rows, "bad": bad})
    return SimpleNamespace(
        batchId=batch,
        sources=[source],
        observedMetrics={"ingest": counts},
        durationMs={"addBatch": 5, "triggerExecution": 9},
    )


def idle(batch: int, end: object) -> SimpleNamespace:
    """Return the progress of an idle query: its id is that of the next batch."""
    found = progress(batch, end, end, 0, 0)
    found.observedMetrics, found.durationMs = {}, {"latestOffset": 3, "triggerExecution": 3}
    return found


def at(offset: int) -> dict[str, dict[str, dict[str, int]]]:
    return {"t": {"b": {"0": offset}}}


def test_each_batch_is_added_once() -> None:
    first = progress(0, {"v": 1, "at": "start"}, {"v": 1, "end": at(7), "from": at(2)}, 5, 1)
    second = progress(1, {"v": 1, "end": at(7)}, {"v": 1, "end": at(9)}, 2, 0)
    sums = BatchSums()

    sums.add([first], "ingest")
    sums.add([first, second], "ingest")

    assert (sums.rows, sums.counted["bad"]) == (7, 1)
    assert sums.ranges == [Range("t", "b", 0, 2, 9)]


def test_a_batch_after_idle_progress_is_counted() -> None:
    first = progress(0, {"v": 1, "at": "start"}, {"v": 1, "end": at(7), "from": at(2)}, 5, 1)
    waited = idle(1, {"v": 1, "end": at(7)})
    second = progress(1, {"v": 1, "end": at(7)}, {"v": 1, "end": at(9)}, 2, 0)
    sums = BatchSums()

    sums.add([first, waited], "ingest")
    sums.add([first, waited, second], "ingest")

    assert (sums.rows, sums.ranges) == (7, [Range("t", "b", 0, 2, 9)])


def test_a_recreated_queue_has_a_range_for_each_log() -> None:
    first = progress(0, {"v": 1, "at": "start"}, {"v": 1, "end": at(40), "from": at(30)}, 10, 0)
    anew = progress(1, {"v": 1, "end": at(40)}, {"v": 1, "end": at(3), "from": at(0)}, 3, 0)
    later = progress(2, {"v": 1, "end": at(3)}, {"v": 1, "end": at(9)}, 6, 0)
    sums = BatchSums()

    sums.add([first, anew, later], "ingest")

    assert sums.ranges == [Range("t", "b", 0, 30, 40), Range("t", "b", 0, 0, 9)]
    assert sum(each.size for each in sums.ranges) == sums.rows


def test_a_first_batch_may_have_no_start_offset() -> None:
    sums = BatchSums()

    sums.add([progress(0, None, {"v": 1, "end": at(3), "from": at(3)}, 0, 0)], "ingest")

    assert sums.ranges == [Range("t", "b", 0, 3, 3)]
