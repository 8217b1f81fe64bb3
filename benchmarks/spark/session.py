"""The Spark session that reading and writing are measured in."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from rocketmq_aio.spark import register

SESSION: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def open_session(running: ExitStack, *sources: type[DataSource]) -> SparkSession:
    """Return a session of two tasks that knows *sources* too; it ends with *running*."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder = running.enter_context(tempfile.TemporaryDirectory())
    places = {"spark.local.dir": folder, "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    builder = SparkSession.Builder().master("local[2]").appName("bench-spark")
    spark = builder.config(map={**SESSION, **places}).getOrCreate()
    running.callback(spark.stop)
    register(spark)
    for source in sources:
        spark.dataSource.register(source)
    return spark
