"""A job with credentials that does all a job may do, and says all that Spark tells of it.

python -m tests.spark.secret_job NAMESRV TOPIC FORBIDDEN FOLDER ACCESS_KEY SECRET_KEY
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.support import open_session

BODIES = [(f"order {number}",) for number in range(20)]


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def refused(what: str, call: Callable[[], object]) -> None:
    """Print the error of *call*."""
    try:
        call()
    except PySparkException as error:
        say(f"refused {what}: {error}")
    else:
        say(f"not refused: {what}")


def write(spark: SparkSession, options: dict[str, str], topic: str) -> None:
    rows = spark.createDataFrame(BODIES, "body string")
    rows.write.format("rocketmq").options(**options, topic=topic).mode("append").save()


def read(spark: SparkSession, options: dict[str, str], topic: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**options, subscribe=topic).load()


def copy(spark: SparkSession, options: dict[str, str], topic: str, folder: Path) -> None:
    """Copy the topic to another sink and back to itself, both with a checkpoint."""
    stream = spark.readStream.format("rocketmq").options(**options, subscribe=topic)
    rows = stream.option("startingOffsets", "earliest").schema("body binary").load()
    for name, sink in {
        "files": rows.writeStream.format("parquet").option("path", str(folder / "sink")),
        "topic": rows.writeStream.format("rocketmq").options(**options, topic=topic),
    }.items():
        sink = sink.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        query.explain(extended=True)
        say(query.lastProgress)


def main(namesrv: str, topic: str, forbidden: str, folder: Path, access: str, secret: str) -> None:
    events = folder / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.log.level": "INFO",
    }
    spark = open_session(folder, master="local[2]", settings=settings)  # no task is tried again
    options = {"nameServer": namesrv, "accessKey": access, "secretKey": secret}
    wrong = {**options, "accessKey": "nobody-knows-it"}
    write(spark, options, topic)
    read(spark, options, topic).explain(extended=True)
    say(f"read {read(spark, options, topic).count()} messages")
    copy(spark, options, topic, folder)
    say(f"then {read(spark, options, topic).count()} messages")
    refused("write", lambda: write(spark, options, forbidden))
    refused("read", lambda: read(spark, options, forbidden).count())
    refused("account", lambda: write(spark, wrong, topic))
    refused("option", lambda: read(spark, {**options, "secretKeys": secret}, topic).count())
    spark.stop()


if __name__ == "__main__":
    _, where, what, other, place, *who = sys.argv
    main(where, what, other, Path(place), *who)
