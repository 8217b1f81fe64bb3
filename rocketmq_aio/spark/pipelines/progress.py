"""Progress of the Spark jobs of a pipeline's step, and their end when the pipeline is to stop."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, cast

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext, StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from rocketmq_aio.spark.pipelines.reports import Report, quiet

POLL_SECONDS: Final = 0.3
JOB_GROUP: Final = "spark.jobGroup.id"
JOB_ERRORS: Final = (PySparkException, Py4JError)  # the second one where pyspark knows no better
JVM_ENDED: Final = (Py4JNetworkError, ConnectionError)


class StoppedError(Exception):
    """A pipeline ended before its end, as its caller asked.

    :ivar step: where: ``writing`` and the like
    :ivar begun: whether that step had begun
    """

    def __init__(self, step: str, *, begun: bool) -> None:
        super().__init__(f"stopped {'while' if begun else 'before'} {step}")
        self.step = step
        self.begun = begun


@contextmanager
def watched(
    spark: SparkSession, what: str, report: Report = quiet, stop: Callable[[], bool] = bool
) -> Iterator[None]:
    """Report the tasks of the jobs that this thread runs in the block; cancel them on *stop*.

    Over Spark Connect nothing is reported and nothing cancelled, for clients do not see tasks
    there: *stop* is asked before the block only.

    :raises StoppedError: *stop* returned True, before the block or when a job of it failed
    """
    if stop():
        raise StoppedError(what, begun=False)
    if is_remote() or (report is quiet and stop is bool):
        yield
        return
    context, group, done = spark.sparkContext, f"rmq-{uuid.uuid4().hex}", threading.Event()
    context.setJobGroup(group, what)
    watcher = threading.Thread(
        target=_watch, args=(context, group, done, lambda n, total: report(what, n, total), stop)
    )
    watcher.start()
    try:
        yield
    except JOB_ERRORS as error:
        if not stop():
            raise
        raise StoppedError(what, begun=True) from error
    finally:
        done.set()
        watcher.join()
        with suppress(*JVM_ENDED):
            context.setLocalProperty(JOB_GROUP, cast("str", None))  # which takes the property away


def _watch(
    context: SparkContext,
    group: str,
    done: threading.Event,
    tell: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> None:
    with suppress(*JVM_ENDED):  # the jobs fail of that themselves
        tracker = context.statusTracker()
        while not done.wait(POLL_SECONDS):
            tell(*_tasks(tracker, group))
            if stop():  # again and again: a job may begin only now
                context.cancelJobGroup(group)
        tell(*_tasks(tracker, group))


def _tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return how many tasks of the group are done, and how many there are as far as known."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [info for stage in ids if (info := tracker.getStageInfo(stage)) is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
