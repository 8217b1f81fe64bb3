"""Row counts: gaps, their reasons and problems."""

from __future__ import annotations

from typing import Any

import pytest

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.spark.offsets import Queue
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import sending
from rocketmq_aio.spark.pipelines.row_counts import count_problems, split_gap
from rocketmq_aio.spark.pipelines.sending import TopicGrowth
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
        (counted(rows=80, sparse=True, gaps=(Gap(start=10, end=20, reason="none"),)), []),
        (counted(rows=80, sparse=True, gaps=(GAP,)), ["t/b/0: 10 of 100 messages are missing"]),
        (counted(rows=100, repeated=3), ["t/b/0: 3 rows are there more than once"]),
    ],
)
def test_missing_and_repeated_rows_are_problems(count: QueueCount, problems: list[str]) -> None:
    assert count_problems([count], filtered=False) == problems


def test_with_a_filter_only_repeated_rows_are_problems() -> None:
    assert count_problems([counted(rows=5)], filtered=True) == []
    assert len(count_problems([counted(rows=5, repeated=1)], filtered=True)) == 1


def test_growth_counts_new_queues_and_ignores_shrunk_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = iter(
        [
            {("t", "b", 0): 5, ("t", "b", 1): 9},
            {("t", "b", 0): 8, ("t", "b", 1): 0, ("t", "c", 0): 2},
        ]
    )
    monkeypatch.setattr(sending, "end_offsets", lambda *_: next(ends))

    topics = TopicGrowth(Connection(name_server="127.0.0.1:1"), ["t"])

    assert topics.count() == (5, "5 are stored")


@pytest.mark.parametrize("failures", [1, 10**9])
def test_messages_that_cannot_be_counted_are_a_problem_after_retries(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    calls: list[object] = []

    def end_offsets(*_: object) -> dict[Queue, int]:
        calls.append(_)
        if 1 < len(calls) <= 1 + failures:
            raise RocketMQError("broker-a is away")
        return {("t", "b", 0): 5 * (len(calls) > 1)}

    monkeypatch.setattr(sending, "end_offsets", end_offsets)
    monkeypatch.setattr(sending, "STORED_SECONDS", 0.3)
    topics = TopicGrowth(Connection(name_server="127.0.0.1:1"), ["t"])

    counts = "t: 5 messages were sent, the stored ones could not be counted: broker-a is away"
    assert topics.problems(5) == ([] if failures == 1 else [counts])
