"""``python -m benchmarks.spark.write``: batch-send writes beside a writer that only counts.

Paired: each round writes the same rows to every sink in turn, in one session, so that whatever
else the machine does hits all of them.  The stand-in is a broker that stores nothing, so its row
is what the connector costs; the real broker's row is what a user gets on one machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks import standin
from benchmarks.spark.session import open_session
from rocketmq_aio.testing import Cluster

TOPIC: Final = "bench-spark-write"
COUNT: Final = "writer that only counts"


class CountingSource(DataSource):
    """A sink that counts rows and does nothing else."""

    @classmethod
    def name(cls) -> str:
        return "bench-count"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()


class CountingWriter(DataSourceArrowWriter):
    """Lower bound for the cost of a writer in Python."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for batch in iterator:
            _ = batch.num_rows
        return WriterCommitMessage()


def rows(spark: SparkSession, count: int, body_bytes: int) -> DataFrame:
    """Return *count* rows in two tasks; making them costs the same for every sink."""
    body = f"CAST(RPAD(CAST(id AS STRING), {body_bytes}, 'x') AS BINARY) AS body"
    return spark.range(0, count, 1, 2).selectExpr(body, "'bench' AS tags")


def rate(frame: DataFrame, count: int, sink: str, options: Mapping[str, str]) -> float:
    """Return the rows per second of one write."""
    started = time.perf_counter()
    frame.write.format(sink).options(**options).mode("append").save()
    return count / (time.perf_counter() - started)


def measure(count: int, rounds: int, body_bytes: int, brokers: list[str]) -> dict[str, list[float]]:
    """Return the rates of each sink, round by round; the first round is not among them."""
    with ExitStack() as running:
        sinks: dict[str, tuple[str, dict[str, str]]] = {COUNT: ("bench-count", {})}
        for name, server in _servers(running, brokers):
            sinks[name] = ("rocketmq", {"nameServer": server, "topic": TOPIC})
        spark = open_session(running, CountingSource)
        frame = rows(spark, count, body_bytes)
        rates: dict[str, list[float]] = {name: [] for name in sinks}
        for turn in range(rounds + 1):
            for name, (sink, options) in sinks.items():
                found = rate(frame, count, sink, options)
                if turn:
                    rates[name].append(found)
        return rates


def _servers(running: ExitStack, brokers: list[str]) -> Iterator[tuple[str, str]]:
    for each in brokers:
        if each == "standin":
            folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
            address = running.enter_context(standin.running(standin.build(folder)))
            yield "rocketmq, C stand-in", address
        else:
            cluster = running.enter_context(Cluster.start(each))
            yield f"rocketmq, real {each}", cluster.namesrv


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.write", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--brokers", default="standin,5.5.0", help="standin, and versions")
    given = parser.parse_args(arguments)
    rates = measure(given.rows, given.rounds, given.body_bytes, given.brokers.split(","))
    print(f"{given.rows:,} rows of {given.body_bytes} bytes, median of {given.rounds} rounds")
    for name, found in rates.items():
        ratio = median(mine / base for mine, base in zip(found, rates[COUNT], strict=True))
        print(f"{name:28} {median(found):12,.0f} rows/s   {ratio:5.2f}x")


if __name__ == "__main__":
    main()
