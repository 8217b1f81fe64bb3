"""A driver that copies a topic to a parquet sink until it is killed.

    python -m tests.spark.copying NAMESRV TOPIC FOLDER [NAME=VALUE ...]

NAME=VALUE are further options of the source. A query that fails is started again from its
checkpoint, as an operator would do it; what it failed of is printed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.support import open_session

TRIGGER: Final = "200 milliseconds"
COLUMNS: Final = "brokerName string, queueId int, queueOffset long, body binary"
PAUSE_SECONDS: Final = 0.2  # before a failed query is started again


def copy(spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
    """Run one query until it fails."""
    source = spark.readStream.format("rocketmq").options(**options).schema(COLUMNS).load()
    sink = source.writeStream.format("parquet").option("path", str(folder / "sink"))
    sink = sink.option("checkpointLocation", str(folder / "checkpoint"))
    sink.trigger(processingTime=TRIGGER).start().awaitTermination()


def main(namesrv: str, topic: str, folder: Path, more: list[str]) -> None:
    options = {"nameServer": namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    options |= dict(pair.split("=", 1) for pair in more)
    spark = open_session(folder / "driver")
    while True:
        try:
            copy(spark, folder, options)
        except StreamingQueryException as error:
            sys.stdout.write(f"query failed: {error}\n")
            sys.stdout.flush()
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    _, where, what, place, *rest = sys.argv
    main(where, what, Path(place), rest)
