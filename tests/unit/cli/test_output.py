"""Tables, JSON and bars."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rocketmq_aio.cli.lag import format_seconds, lag_table, print_lag
from rocketmq_aio.cli.output import format_table, progress
from rocketmq_aio.cli.summaries import show_summary
from rocketmq_aio.spark.pipelines import Gap, LagSummary, QueueCount, QueueLag
from rocketmq_aio.spark.pipelines.dead_letter import DeadLetterSummary
from rocketmq_aio.spark.pipelines.exporting import ExportSummary

QUEUE = QueueCount(
    topic="orders",
    broker="broker-a",
    queue_id=1,
    start=10,
    end=2010,
    rows=1900,
    gaps=(Gap(start=10, end=100, reason="deleted"), Gap(start=200, end=210)),
)
SUMMARY = ExportSummary(queues=(QUEUE,), target="/out", problems=("10 are missing",))


def test_a_summary_is_printed_as_table_and_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    show_summary(SUMMARY, as_json=False)

    captured = capfd.readouterr()
    for text in ("orders", "2,010", "1,900", "10-99: deleted", "200-209: MISSING", "NOT COMPLETE"):
        assert text in captured.out
    assert captured.err == "rmq: 10 are missing\n"


def test_json_of_a_summary_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    show_summary(SUMMARY, as_json=True)

    line = capfd.readouterr().out
    assert line.count("\n") == 1
    document = json.loads(line)
    assert (document["complete"], document["offsets"], document["pipeline"]) == (
        False,
        2000,
        "export",
    )
    assert document["queues"][0]["gaps"][0] == {"start": 10, "end": 100, "reason": "deleted"}


def test_a_table_has_numbers_to_the_right_and_fits_wide_characters() -> None:
    rows: list[list[object]] = [
        ["注文", 1234, True, None, 0.5],
        ["ab", None, False, "", 12.0],
        ["c\n", 7, None, [], 1],
    ]

    table = format_table(["queue.topic", "count", "ok", "tags", "rate"], rows)

    assert table.splitlines() == [
        "TOPIC  COUNT  OK   TAGS   RATE",
        "注文   1,234  yes  -      0.50",
        "ab         -  no   -     12.00",
        "c\\x0a      7  -              1",
    ]


def test_there_are_no_bars_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(wanted=True) as bars:
        bars("writing", 1, 2)

    assert capfd.readouterr().err == ""


def test_a_report_updates_the_bar_of_its_step(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    with progress(wanted=True) as bars:
        bars("writing", 1, 0)
        bars("writing", 3, 4)

    assert "writing" in capfd.readouterr().err


def test_lag_is_printed_by_queue() -> None:
    at = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
    queue = {"topic": "orders", "broker": "broker-a", "minimum": 100, "maximum": 1500}
    lags = (
        QueueLag(**queue, queue_id=0, committed=50, next_time=at.replace(hour=11, minute=0)),  # type: ignore[arg-type]
        QueueLag(**queue, queue_id=1, committed=None),  # type: ignore[arg-type]
    )
    summary = LagSummary(group="billing", at=at, lags=lags)
    out = lag_table(summary)
    assert "billing: 2,800 messages behind at 2026-01-01 12:30:00 UTC" in out
    assert "1 h 30 min" in out
    first, second = summary.to_dict()["lags"]
    assert (first["lag"], first["deleted"], first["behind_seconds"]) == (1400, 50, 5400.0)
    assert (second["lag"], second["deleted"], second["committed"]) == (1400, 0, None)


@pytest.mark.parametrize("as_json", [True, False])
def test_an_unused_group_is_noted_on_standard_error(
    capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    print_lag(LagSummary(group="tpyo", unused=True), as_json=as_json)

    assert "'tpyo' has no offsets" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, None), (0.25, "0.2 s"), (59.0, "59.0 s"), (61, "1 min 01 s"), (7260, "2 h 01 min")],
)
def test_durations_are_formatted(seconds: float, text: str | None) -> None:
    assert format_seconds(seconds) == text


def test_a_group_without_a_topic_for_dead_letters_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its name may be misspelt, and a job that runs every night would do nothing."""
    show_summary(DeadLetterSummary(group="biling"), as_json=True)

    assert "group 'biling' has no topic for dead letters" in capsys.readouterr().err
