"""Spark job: orders per minute to Parquet, alerts about large orders to a topic.

    python -m examples.orders.job --namesrv 127.0.0.1:9876 --folder /data/orders

You can kill it at any time and start it again: it continues from its checkpoints. With
``--drain`` it ends when it has read all messages of the topic.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from examples.orders.generator import ALERT_CENTS

ORDER = "order_id string, shop string, cents long, placed_at timestamp"
WATERMARK = "10 minutes"


def session(master: str = "local[2,4]") -> SparkSession:
    """Create a session with four attempts per task, which uses only loopback addresses."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return (
        SparkSession.Builder().appName("orders").master(master).config(map=settings).getOrCreate()
    )


def orders(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    """Read the orders from the first message, or from the checkpoint after a restart."""
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .schema("body binary")  # the only selected column: the others are not built
        .load()
    )
    parsed = f.from_json(f.col("body").cast("string"), ORDER)
    return messages.select(parsed.alias("order")).select("order.*")


def per_minute(placed: DataFrame) -> DataFrame:
    """Count each order once, also if it was sent twice; a minute is final ten minutes later."""
    once = placed.withWatermark("placed_at", WATERMARK).dropDuplicatesWithinWatermark(["order_id"])
    return (
        once.groupBy(f.window("placed_at", "1 minute"), "shop")
        .agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
        .select(f.col("window.start").alias("minute"), "shop", "orders", "cents")
    )


def alerts(placed: DataFrame) -> DataFrame:
    """Return alerts about large orders; an alert may be sent twice, with the key of its order."""
    large = placed.where(f.col("cents") >= ALERT_CENTS)
    return large.select(
        f.to_json(f.struct("order_id", "shop", "cents")).alias("body"),
        f.col("order_id").alias("keys"),
        f.lit("large-order").alias("tags"),
    )


def start(
    spark: SparkSession, namesrv: str, topic: str, folder: Path, *, drain: bool
) -> list[StreamingQuery]:
    """Start both queries, each with its own checkpoint."""
    placed = orders(spark, namesrv, topic)
    counts = (
        per_minute(placed).writeStream.format("parquet").option("path", str(folder / "minutes"))
    )
    warnings = (
        alerts(placed)
        .writeStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", f"{topic}-alerts")
    )

    def begin(writer: DataStreamWriter, name: str) -> StreamingQuery:
        checkpoint = str(folder / "checkpoints" / name)
        writer = writer.queryName(name).outputMode("append")
        writer = writer.option("checkpointLocation", checkpoint)
        if drain:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="1 second").start()

    return [begin(counts, "minutes"), begin(warnings, "alerts")]


def main(arguments: argparse.Namespace) -> None:
    spark = session(arguments.master)
    running = start(
        spark, arguments.namesrv, arguments.topic, arguments.folder, drain=arguments.drain
    )
    if arguments.drain:
        for query in running:
            query.awaitTermination()
    else:
        spark.streams.awaitAnyTermination()  # raises the exception of a failed query
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--drain", action="store_true")
    main(parser.parse_args())
