"""The rules of Spark streams find what is planted, and nothing in a run where all went well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketmq_aio.model.values import MessageQueue
from tests.history import Commit, History, LogEntry, check
from tests.history.events import Checkpointed, RangeRead

Q0 = MessageQueue("orders", "broker-a", 0)


def read(batch: int, begin: int, end: int, at: float) -> RangeRead:
    rows = [(offset, f"u{offset}") for offset in range(begin, end)]
    return RangeRead(at=at, group="spark", queue=Q0, batch=batch, begin=begin, end=end, rows=rows)


def commit(offset: int, at: float) -> Commit:
    return Commit(at=at, group="spark", queue=Q0, offset=offset)


def clean() -> History:
    """Return a stream of two batches of two messages; one task of the second is repeated."""
    history = History(
        log=[LogEntry(queue=Q0, offset=n, uid=f"u{n}", message_id=f"M{n}") for n in range(5)]
    )
    history.extend(
        [
            read(1, 0, 2, 10),
            Checkpointed(at=11, group="spark", batch=1),
            commit(2, 12),
            read(2, 2, 3, 20),
            read(2, 3, 4, 20),
            read(2, 3, 4, 21),
            Checkpointed(at=22, group="spark", batch=2),
            commit(4, 23),
            read(3, 4, 5, 30),
        ]
    )
    return history


def test_a_correct_stream_has_no_violations() -> None:
    assert check(clean()) == []


def row_dropped(history: History) -> None:
    for each in history.reads[3:6]:
        each.rows.clear()


def row_written_twice(history: History) -> None:
    history.reads[1].rows *= 2


def range_skipped(history: History) -> None:
    del history.reads[1]


def range_of_another_queue(history: History) -> None:
    history.reads[1].rows[0] = (2, "u7")


def second_read_differs(history: History) -> None:
    history.reads[2].rows.clear()


def committed_before_the_checkpoint(history: History) -> None:
    history.commits[1] = commit(4, 21.5)


def committed_beyond_the_checkpoint(history: History) -> None:
    history.commits[1] = commit(5, 31)


PLANTED: list[tuple[str, Callable[[History], None]]] = [
    ("I25", row_dropped),
    ("I25", row_written_twice),
    ("I25", range_skipped),
    ("I25", range_of_another_queue),
    ("I26", second_read_differs),
    ("I27", committed_before_the_checkpoint),
    ("I27", committed_beyond_the_checkpoint),
]


@pytest.mark.parametrize(("rule", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_violation_is_found(rule: str, plant: Callable[[History], None]) -> None:
    history = clean()
    plant(history)

    assert rule in {violation.rule for violation in check(history)}


def test_a_batch_without_a_checkpoint_is_not_in_the_sink() -> None:
    history = clean()
    history.reads[-1].rows.clear()

    assert check(history) == []
