"""The connector on a standalone cluster: tasks run in executors of two workers."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def test_tasks_run_on_both_workers_with_the_interpreter_of_the_driver(
    cluster_session: SparkSession,
) -> None:
    def where(_: object) -> tuple[str, str]:
        return os.environ["SPARK_EXECUTOR_DIRS"], sys.executable

    found = cluster_session.sparkContext.parallelize(range(8), 8).map(where).collect()

    assert {python for _, python in found} == {sys.executable}
    assert len({folder for folder, _ in found}) == 2
