"""A client of Spark Connect in a process of its own, where no JVM was ever started.

python -m tests.spark.connect_client REMOTE NAMESRV TOPIC FOLDER [PACKAGE_ZIP]
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import BodySchema, IngestSettings, Selection, Target, ingest


def copy_stream(spark: SparkSession, options: dict[str, str], folder: str) -> DataFrame:
    """Copy the topic to files with a stream that ends where the topic ends now."""
    stream = spark.readStream.format("rocketmq").options(**options).schema("body binary")
    copied = stream.option("startingOffsets", "earliest").load().writeStream.format("parquet")
    copied = copied.option("path", f"{folder}/copy").option("checkpointLocation", f"{folder}/saved")
    copied.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(f"{folder}/copy")


def ingest_all(spark: SparkSession, namesrv: str, topic: str, folder: str) -> DataFrame:
    """Ingest the topic, whose bodies are no JSON, in two runs; the second has nothing to read."""
    settings = IngestSettings(
        connection=Connection(name_server=namesrv),
        selection=Selection(topics=(topic,)),
        target=Target(path=f"{folder}/ingested"),
        checkpoint=f"{folder}/progress",
        body=BodySchema(kind="json", schema="id long"),
        bad_rows=f"{folder}/bad",
        once=True,
    )
    runs = [ingest(spark, settings) for _ in range(2)]
    assert all(each.complete for each in runs), runs
    assert [(each.rows, each.bad) for each in runs] == [(runs[0].offsets,) * 2, (0, 0)], runs
    return spark.read.parquet(f"{folder}/bad")


def write_back(spark: SparkSession, namesrv: str, topic: str, bodies: list[str]) -> None:
    rows = spark.createDataFrame([(body.upper(),) for body in bodies], "body string")
    rows.write.format("rocketmq").options(nameServer=namesrv, topic=topic).mode("append").save()


def bodies_of(rows: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in rows.collect())


def main(remote: str, namesrv: str, topic: str, folder: str, package: list[str]) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    if package:
        from rocketmq_aio.spark import register

        spark.addArtifacts(*package, pyfile=True)
        register(spark)
    options = {"nameServer": namesrv, "subscribe": topic}
    read = spark.read.format("rocketmq").options(**options).schema("body binary")
    before = bodies_of(read.load())
    write_back(spark, namesrv, topic, before)
    after = bodies_of(read.load())
    outcome = {"before": before, "after": after}
    if not package:  # Spark 4.3 runs streams without artifacts of the client
        outcome["streamed"] = bodies_of(copy_stream(spark, options, folder))
        outcome["ingested"] = bodies_of(ingest_all(spark, namesrv, topic, folder))
    sys.stdout.write(json.dumps(outcome))
    spark.stop()


if __name__ == "__main__":
    _, where, who, what, place, *more = sys.argv
    main(where, who, what, place, more)
