"""``python -m benchmarks.spark.micro_batch``: what the connector adds to a small micro-batch.

Two queries in one session: one over a source in Python that asks nobody and hands out rows that
are ready, one over the connector.  They run in shuffled turns, batch after batch of `ROWS` rows
into the sink ``noop``; compared are the medians of what Spark says that a batch took, as a whole
and without the phases that only write Spark's own files.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import standin
from benchmarks.spark.read import fill
from benchmarks.spark.session import open_session
from benchmarks.spark.steady import ROWS, SteadySource
from rocketmq_aio.testing import Cluster

WARM: Final = 5  # first batches of a query, which start Python and compile
PAUSE_SECONDS: Final = 0.05
TOPIC: Final = "bench-micro-batch"
BARE: Final = "bare source in Python"
TOTAL: Final = "triggerExecution"
# The others are files that Spark writes, which take as long as the disk is busy.
OF_SOURCES: Final = ("latestOffset", "queryPlanning", "getBatch", "addBatch")

Batches = list[Mapping[str, int]]  # milliseconds by phase, as progress reports name them


def batches(frame: DataFrame, count: int) -> Batches:
    """Run a query until *count* batches were made after the warm ones; return what they took."""
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.start()
        try:
            return _collected(query, count)
        finally:
            query.stop()


def _collected(query: StreamingQuery, count: int) -> Batches:
    found: dict[int, Mapping[str, int]] = {}
    while len(found) < count + WARM:
        time.sleep(PAUSE_SECONDS)
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        for progress in query.recentProgress:
            if progress.numInputRows == ROWS:
                found[progress.batchId] = progress.durationMs
    return [found[batch] for batch in sorted(found)[WARM:]]


def frames(
    spark: SparkSession, running: ExitStack, brokers: list[str], most: int
) -> Iterator[tuple[str, DataFrame]]:
    """Yield what is measured, by name."""
    yield BARE, spark.readStream.format("bench-steady").load()
    for broker in brokers:
        server, topic = _served(running, broker, most)
        options = {
            "nameServer": server,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(ROWS),
        }
        yield f"connector, {broker}", spark.readStream.format("rocketmq").options(**options).load()


def _served(running: ExitStack, broker: str, most: int) -> tuple[str, str]:
    if broker == "standin":
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        program = standin.build(folder)
        server = standin.running(program, body_bytes=100, queues=ROWS)
        return running.enter_context(server), standin.TOPIC
    cluster = running.enter_context(Cluster.start(broker))
    cluster.create_topic(TOPIC, queues=ROWS)
    asyncio.run(fill(cluster.namesrv, TOPIC, most))
    return cluster.namesrv, TOPIC


def measure(count: int, rounds: int, brokers: list[str]) -> dict[str, list[Batches]]:
    """Return the batches of each source, round by round; the first round is not among them."""
    with ExitStack() as running:
        spark = open_session(running, SteadySource)
        # A query goes on while it is being stopped: there is more than is counted.
        measured = dict(frames(spark, running, brokers, 4 * ROWS * (count + WARM)))
        found: dict[str, list[Batches]] = {name: [] for name in measured}
        for turn in range(rounds + 1):
            for name, frame in random.sample([*measured.items()], len(measured)):
                seen = batches(frame, count)
                if turn:
                    found[name].append(seen)
        return found


def typical(seen: Batches, phases: Iterable[str]) -> float:
    """Return the median of what the batches took in *phases* together."""
    return median(sum(batch.get(phase, 0) for phase in phases) for batch in seen)


def show(found: dict[str, list[Batches]]) -> None:
    """Print what each source takes, and adds to the bare one: medians, and extremes of rounds."""
    for name, rounds in found.items():
        for what, phases in (("whole batch", (TOTAL,)), ("phases of sources", OF_SOURCES)):
            taken = [typical(seen, phases) for seen in rounds]
            bare = [typical(seen, phases) for seen in found[BARE]]
            more = [mine - base for mine, base in zip(taken, bare, strict=True)]
            extremes = f"({min(more):+.0f} to {max(more):+.0f})"
            print(f"{name:24} {what:18} {median(taken):5.0f} ms {median(more):+5.0f} {extremes}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark.micro_batch", description=__doc__
    )
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--brokers", default="standin,5.5.0", help="standin, and versions")
    given = parser.parse_args(arguments)
    print(f"micro-batches of {ROWS} rows, {given.rounds} rounds of {given.batches}")
    show(measure(given.batches, given.rounds, given.brokers.split(",")))


if __name__ == "__main__":
    main()
