"""Stopped pipelines: cancelled jobs and their summaries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.spark.offsets import Queue, Range
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import dead_letter, exporting, loading, progress, sending
from rocketmq_aio.spark.pipelines.dead_letter import DeadLetterSettings, DeadLetterSummary
from rocketmq_aio.spark.pipelines.exporting import ExportSettings, export
from rocketmq_aio.spark.pipelines.loading import LoadSettings, LoadSummary, load
from rocketmq_aio.spark.pipelines.progress import StoppedError, watch_jobs
from rocketmq_aio.spark.pipelines.selection import Selection
from rocketmq_aio.spark.pipelines.summary import Report, no_report
from rocketmq_aio.spark.pipelines.target import Target

CONNECTION = Connection(name_server="127.0.0.1:1")
NO_SPARK: Any = None
TIMEOUT = 60.0


class Context:
    """A SparkContext whose jobs of a group can be cancelled."""

    def __init__(self, *, status_error: Exception | None = None) -> None:
        self.group: str | None = None
        self.properties: dict[str, str | None] = {}
        self.cancelled = threading.Event()
        self.status_error = status_error

    def setJobGroup(self, group: str, description: str) -> None:  # noqa: N802
        self.group = group
        self.properties |= {"spark.jobGroup.id": group, "spark.job.description": description}
        self.properties["spark.job.interruptOnCancel"] = "false"

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self._ask_jvm()
        self.properties[name] = value

    def statusTracker(self) -> SimpleNamespace:  # noqa: N802
        self._ask_jvm()
        return SimpleNamespace(getJobIdsForGroup=lambda _: [])

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        assert group == self.group
        self.cancelled.set()

    def _ask_jvm(self) -> None:
        if self.status_error is not None:
            raise self.status_error


def session(context: Context) -> Any:  # noqa: ANN401
    return SimpleNamespace(sparkContext=context)


@pytest.mark.parametrize("error", [PySparkException("cancelled"), Py4JError("cancelled")])
def test_a_stop_cancels_the_jobs_of_the_step(error: Exception) -> None:
    context, stop = Context(), threading.Event()

    def work() -> None:
        with watch_jobs(session(context), "writing", no_report, stop.is_set):
            stop.set()
            assert context.cancelled.wait(TIMEOUT)
            raise error

    with pytest.raises(StoppedError, match="stopped while writing") as stopped:
        work()

    assert stopped.value.started


def test_a_stop_cancels_jobs_whose_tasks_cannot_be_counted() -> None:
    context, stop = Context(status_error=Py4JError("no such stage")), threading.Event()

    def work() -> None:
        with watch_jobs(session(context), "writing", no_report, stop.is_set):
            stop.set()
            assert context.cancelled.wait(TIMEOUT)
            raise Py4JError("cancelled")

    with pytest.raises(StoppedError):
        work()


@pytest.mark.parametrize(
    ("remote", "report", "stop"), [(True, print, lambda: False), (False, no_report, bool)]
)
def test_jobs_are_not_watched_over_spark_connect_and_without_callbacks(
    monkeypatch: pytest.MonkeyPatch, remote: bool, report: Report, stop: Callable[[], bool]
) -> None:
    monkeypatch.setattr(progress, "is_remote", lambda: remote)
    done = []

    with watch_jobs(NO_SPARK, "writing", report, stop):
        done.append("writing")

    assert done == ["writing"]


@pytest.mark.parametrize("given", [{"stop": lambda: False}, {"report": lambda *_: None}])
def test_one_callback_is_enough_to_watch_jobs(given: dict[str, Any]) -> None:
    context = Context()

    with watch_jobs(session(context), "writing", **given):
        assert context.group is not None


def test_jobs_are_reported_until_the_end_of_the_block_and_not_cancelled_without_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.001)
    context, third, before = Context(), threading.Event(), threading.active_count()
    calls: list[tuple[str, int, int]] = []

    def report(*args: Any) -> None:  # noqa: ANN401 - those of `Report`
        calls.append(args)
        if len(calls) == 3:
            third.set()

    with watch_jobs(session(context), "writing", report, lambda: False):
        assert third.wait(TIMEOUT)

    assert set(calls) == {("writing", 0, 0)}
    assert not context.cancelled.is_set()
    assert threading.active_count() == before


def test_tasks_of_known_jobs_and_stages_are_counted_once() -> None:
    jobs = {1: SimpleNamespace(stageIds=[1, 2]), 2: SimpleNamespace(stageIds=[2, 3])}
    stages = {
        1: SimpleNamespace(numCompletedTasks=4, numTasks=4),
        2: SimpleNamespace(numCompletedTasks=1, numTasks=8),
    }
    tracker: Any = SimpleNamespace(
        getJobIdsForGroup={"mine": [1, 2, 3]}.__getitem__,
        getJobInfo=jobs.get,
        getStageInfo=stages.get,
    )

    assert progress._count_tasks(tracker, "mine") == (5, 12)


def test_a_step_leaves_the_job_group_of_the_application() -> None:
    context, mine = Context(), {"spark.jobGroup.id": "mine", "spark.job.description": "nightly"}
    context.properties |= mine

    with watch_jobs(session(context), "writing", no_report, lambda: False):
        assert context.properties["spark.jobGroup.id"] == context.group != "mine"

    assert context.properties == {**mine, "spark.job.interruptOnCancel": None}


def test_a_session_stopped_by_another_thread_is_a_job_failure() -> None:
    context = Context(status_error=AttributeError("'NoneType' object has no attribute"))

    with (
        pytest.raises(Py4JError, match="shut down"),
        watch_jobs(session(context), "writing", no_report, lambda: False),
    ):
        raise Py4JError("SparkContext was shut down")


def test_a_report_that_raises_is_logged_and_does_not_prevent_a_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context, stop, reported = Context(), threading.Event(), threading.Event()

    def report(*_: object) -> None:
        reported.set()
        raise ValueError("no terminal")

    def work() -> None:
        with watch_jobs(session(context), "writing", report, stop.is_set):
            assert reported.wait(TIMEOUT)
            stop.set()
            assert context.cancelled.wait(TIMEOUT)
            raise Py4JError("cancelled")

    with pytest.raises(StoppedError):
        work()

    assert caplog.text.count("report_failed") == 1


@pytest.mark.parametrize("failure", [ValueError("no such file"), SystemExit(3)])
def test_a_stop_that_raises_cancels_the_jobs_and_is_raised(
    caplog: pytest.LogCaptureFixture, failure: BaseException
) -> None:
    context, begun = Context(), threading.Event()

    def stop() -> bool:
        if begun.is_set():
            begun.clear()  # raises once
            raise failure
        return False

    def work() -> None:
        with watch_jobs(session(context), "writing", no_report, stop):
            begun.set()
            assert context.cancelled.wait(TIMEOUT)
            raise PySparkException("cancelled")

    with pytest.raises(type(failure)) as raised:
        work()

    assert raised.value is failure
    assert "stop_failed" in caplog.text


def test_no_step_starts_after_a_stop() -> None:
    with (
        pytest.raises(StoppedError, match="stopped before counting") as stopped,
        watch_jobs(NO_SPARK, "counting", no_report, lambda: True),
    ):
        pytest.fail("the step began")

    assert not stopped.value.started


def test_a_job_failure_without_a_stop_is_raised() -> None:
    context = Context()

    with (
        pytest.raises(PySparkException, match="lost"),
        watch_jobs(session(context), "writing", no_report, lambda: False),
    ):
        raise PySparkException("lost")

    assert not context.cancelled.is_set()


def test_a_jvm_ended_by_the_signal_stops_the_step() -> None:
    context, stop = Context(status_error=Py4JNetworkError("refused")), threading.Event()

    def work() -> None:
        with watch_jobs(session(context), "writing", no_report, stop.is_set):
            stop.set()
            raise Py4JNetworkError("connection refused")

    with pytest.raises(StoppedError):
        work()


def stopping_at(step: str, *, started: bool = True) -> Callable[..., Any]:
    @contextmanager
    def watch(_spark: object, what: str, *_: object, **__: object) -> Iterator[None]:
        if what == step:
            raise StoppedError(what, started=started)
        yield

    return watch


@pytest.mark.parametrize(
    ("step", "started", "expected"),
    [
        ("writing", False, "stopped before writing: the target is not complete"),
        ("writing", True, "stopped while writing: the target is not complete"),
        ("counting", True, "stopped while counting: all rows are written, but they are not"),
    ],
)
def test_the_summary_of_a_stopped_export_names_the_step(
    monkeypatch: pytest.MonkeyPatch, step: str, started: bool, expected: str
) -> None:
    monkeypatch.setattr(exporting, "plan_ranges", lambda *_: [Range("orders", "broker-a", 0, 0, 9)])
    monkeypatch.setattr(exporting, "watch_jobs", stopping_at(step, started=started))
    for name in ("read_ranges", "prepare_rows", "write_rows"):
        monkeypatch.setattr(exporting, name, lambda *_: None)

    summary = export(
        NO_SPARK,
        ExportSettings(
            connection=CONNECTION,
            selection=Selection(topics=("orders",)),
            target=Target(path="/data"),
        ),
    )

    assert (summary.interrupted, summary.complete, summary.rows) == (True, False, 0)
    assert [problem.startswith(expected) for problem in summary.problems] == [True]


@pytest.mark.parametrize(
    ("step", "started", "sent", "expected"),
    [
        ("counting", True, 0, "stopped while counting: nothing is sent"),
        ("sending", False, 0, "stopped before sending: nothing is sent"),
        ("sending", True, 4, "stopped while sending: of 9 messages, 4 are stored"),
    ],
)
def test_the_summary_of_a_stopped_load_counts_stored_messages(
    monkeypatch: pytest.MonkeyPatch, step: str, started: bool, sent: int, expected: str
) -> None:
    ends = iter([3, 7])
    monkeypatch.setattr(sending, "end_offsets", lambda *_: {("orders", "a", 0): next(ends)})

    summary = stopped_load(monkeypatch, step, started=started)

    assert (summary.interrupted, summary.sent, summary.problems) == (True, sent, (expected,))


def test_a_stopped_load_has_a_summary_while_brokers_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "end_offsets", ends_of_a_broker_that_dies())

    summary = stopped_load(monkeypatch, "sending")

    assert (summary.interrupted, summary.rows, summary.sent) == (True, 9, 0)
    assert summary.problems == (
        "stopped while sending: of 9 messages, the stored ones could not be counted: away",
    )


@pytest.mark.parametrize("error", [PySparkException("lost"), Py4JError("lost"), OSError("stop")])
def test_a_failed_load_logs_what_is_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def send_rows(*_: object) -> None:
        raise error

    ends = iter([3, 7])
    monkeypatch.setattr(sending, "end_offsets", lambda *_: {("orders", "a", 0): next(ends)})
    monkeypatch.setattr(loading, "send_rows", send_rows)

    with caplog.at_level(logging.WARNING), pytest.raises(type(error)):
        stopped_load(monkeypatch, "")

    (warning,) = [each for each in caplog.messages if "load_stopped" in each]
    assert "of 9 messages, 4 are stored" in warning


def test_delayed_messages_of_a_stopped_load_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "end_offsets", lambda *_: {("orders", "a", 0): 3})

    summary = stopped_load(monkeypatch, "sending", columns=["body", "delayLevel"])

    assert summary.problems == (
        "stopped while sending: of 9 messages, an unknown number is stored: they have delays",
    )


def stopped_load(
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    *,
    started: bool = True,
    columns: Sequence[str] = ("body",),
) -> LoadSummary:
    """Stop a load of nine rows."""
    files = SimpleNamespace(columns=columns, count=lambda: 9, sparkSession=None)
    monkeypatch.setattr(loading, "_read_files", lambda *_: files)
    monkeypatch.setattr(loading, "map_columns", lambda files, _: files)
    monkeypatch.setattr(loading, "watch_jobs", stopping_at(step, started=started))
    return load(NO_SPARK, LoadSettings(connection=CONNECTION, topic="orders", path="/files"))


def ends_of_a_broker_that_dies() -> Callable[..., dict[Queue, int]]:
    """Return a fake of `end_offsets` whose second call fails."""
    ends = iter([{("orders", "broker-a", 0): 3}])

    def end_offsets(*_: object) -> dict[Queue, int]:
        if (found := next(ends, None)) is None:
            raise RocketMQError("away")
        return found

    return end_offsets


def test_a_stopped_resend_has_a_summary_while_brokers_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def send(*_: object) -> None:
        raise StoppedError("resending", started=True)

    monkeypatch.setattr(sending, "end_offsets", ends_of_a_broker_that_dies())
    monkeypatch.setattr(dead_letter._Job, "send", send)
    settings = DeadLetterSettings(connection=CONNECTION, group="billing", resend=True)
    job = dead_letter._Job(NO_SPARK, settings, [], stopping_at(""))

    summary = job._send_and_check(NO_SPARK, ["orders"], DeadLetterSummary(tags=()))

    assert (summary.interrupted, summary.resent) == (True, 0)
    assert summary.problems == (
        "stopped while resending: the stored ones could not be counted: away; run it again for "
        "the rest",
    )
