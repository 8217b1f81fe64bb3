"""Progress and cancellation of the Spark jobs of a pipeline step."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Final, cast

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext, StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from rocketmq_aio.log import get_logger
from rocketmq_aio.spark.pipelines.summary import Report, no_report

logger = get_logger(__name__)

POLL_SECONDS: Final = 0.3
# Set by `setJobGroup` for the jobs of a thread.
JOB_PROPERTIES: Final = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
)
JOB_ERRORS: Final = (PySparkException, Py4JError)  # the latter: errors that pyspark lets through
JVM_ENDED: Final = (Py4JNetworkError, ConnectionError)
# Of requests about jobs; the last one: the session was stopped by another thread.
NO_STATUS: Final = (Py4JError, ConnectionError, AttributeError)

Watch = Callable[[str], AbstractContextManager[None]]  # `watch_jobs` by step


class StoppedError(Exception):
    """`stop` ended a pipeline.

    :ivar step: the step that was cancelled or not started, such as ``writing``
    :ivar started: whether that step had started
    """

    def __init__(self, step: str, *, started: bool) -> None:
        super().__init__(f"stopped {'while' if started else 'before'} {step}")
        self.step = step
        self.started = started


@contextmanager
def watch_jobs(
    spark: SparkSession, step: str, report: Report = no_report, stop: Callable[[], bool] = bool
) -> Iterator[None]:
    """Report the tasks of the jobs that this thread runs in the block; cancel them on *stop*.

    Spark Connect does not show tasks to clients: there nothing is reported or cancelled, and
    *stop* is called only before the block.

    :raises StoppedError: *stop* returned True, before the block or when one of its jobs failed
    :raises BaseException: *stop* raised it; the jobs are cancelled
    """
    if stop():
        raise StoppedError(step, started=False)
    if is_remote() or (report is no_report and stop is bool):
        yield
        return
    context, group, done = spark.sparkContext, f"rmq-{uuid.uuid4().hex}", threading.Event()
    before = {name: context.getLocalProperty(name) for name in JOB_PROPERTIES}
    context.setJobGroup(group, step)
    wanted = _Stop(stop)
    args = (context, group, done, partial(logged(report), step), wanted)
    watcher = threading.Thread(target=_watch, args=args)
    watcher.start()
    try:
        yield
    except JOB_ERRORS as error:
        if not wanted():
            raise
        raise wanted.failure or StoppedError(step, started=True) from error
    finally:
        done.set()
        watcher.join()
        with suppress(*NO_STATUS):
            for name, value in before.items():
                context.setLocalProperty(name, cast("str", value))  # None removes it


class _Stop:
    """`stop` of the caller; after it has raised, it is not called again and counts as True.

    :ivar failure: what it raised, for the thread of the caller
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.failure: BaseException | None = None
        self._stop = stop

    def __call__(self) -> bool:
        try:
            return self.failure is not None or self._stop()
        except BaseException as error:  # of any kind: the jobs have to be cancelled
            logger.exception("stop_failed", stop=repr(self._stop))
            self.failure = error
            return True


def logged(report: Report) -> Report:
    """Return *report* without its errors: the first one is logged, and ends the reports.

    It is the application's code, and a terminal may be gone: what is running is more important.
    """
    failed = False

    def call(step: str, done: int, total: int) -> None:
        nonlocal failed
        if failed:
            return
        try:
            report(step, done, total)
        except Exception:  # see above
            failed = True
            logger.exception("report_failed", report=repr(report))

    return call


def _watch(
    context: SparkContext,
    group: str,
    done: threading.Event,
    report: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> None:
    is_last = False
    while not is_last:
        is_last = done.wait(POLL_SECONDS)
        with suppress(*NO_STATUS):  # the jobs raise it themselves
            report(*_count_tasks(context.statusTracker(), group))
        if not is_last and stop():  # repeated, because a job may start after the first call
            with suppress(*NO_STATUS):
                context.cancelJobGroup(group)


def _count_tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return the numbers of finished and of known tasks of the group."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [info for stage in ids if (info := tracker.getStageInfo(stage)) is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
