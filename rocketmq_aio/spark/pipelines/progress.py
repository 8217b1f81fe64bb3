"""How far a pipeline is, told to whoever wants to know while Spark works."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

from pyspark import SparkContext, StatusTracker
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from rocketmq_aio.spark.pipelines.reports import Report, quiet

POLL_SECONDS: Final = 0.3
JOB_GROUP: Final = "spark.jobGroup.id"


@contextmanager
def watched(spark: SparkSession, what: str, report: Report = quiet) -> Iterator[None]:
    """Report the tasks of the jobs that this thread runs in the block.

    Over Spark Connect nothing is reported, for clients do not see tasks there.
    """
    if report is quiet or is_remote():
        yield
        return
    context, group, done = spark.sparkContext, f"rmq-{uuid.uuid4().hex}", threading.Event()
    context.setJobGroup(group, what)
    watcher = threading.Thread(
        target=_watch, args=(context, group, done, lambda n, total: report(what, n, total))
    )
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        context.setLocalProperty(JOB_GROUP, cast("str", None))  # which takes the property away


def _watch(
    context: SparkContext,
    group: str,
    done: threading.Event,
    tell: Callable[[int, int], None],
) -> None:
    tracker = context.statusTracker()
    while not done.wait(POLL_SECONDS):
        tell(*_tasks(tracker, group))
    tell(*_tasks(tracker, group))


def _tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return how many tasks of the group are done, and how many there are as far as known."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [info for stage in ids if (info := tracker.getStageInfo(stage)) is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
