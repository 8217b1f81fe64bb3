"""``python -m benchmarks spark-read``: reads beside sources that only hand out what is ready.

Paired: each round reads as many rows from every source in turn, in one session, so that whatever
else the machine does hits all of them.  The stand-in is a broker that always has the same
messages at hand: its rows are what the connector costs.  The real broker's rows are a topic that
is written once, read by the connector and by a consumer on the driver.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks import standin
from benchmarks.spark.session import open_session
from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer
from rocketmq_aio.spark.arrow.columns import SCHEMA, arrow_schema
from rocketmq_aio.testing import Cluster

TASKS: Final = 2
TOGETHER: Final = 3000  # rows of a ready batch: about 1 MiB
DRIVER_ROWS: Final = 10_000  # that the consumer on the driver gathers for a batch
ARROW, TUPLES = "ready Arrow batches", "ready tuples"
DRIVER: Final = "consumer on the driver, real"
SLIM: Final = "queueOffset long, body binary"


class ReadySource(DataSource):
    """Hands out the same rows again and again: ``kind`` is ``arrow`` or ``tuples``."""

    @classmethod
    def name(cls) -> str:
        return "bench-ready"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options["kind"], int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    """Lower bound for the cost of a reader in Python."""

    def __init__(self, kind: str, rows: int) -> None:
        self._kind = kind
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        count = partition.value
        if self._kind == "arrow":
            columns, schema = ready(TOGETHER), arrow_schema(SCHEMA)
            for first in range(0, count, TOGETHER):
                batch = pa.RecordBatch.from_pydict(columns, schema)
                yield batch.slice(0, min(TOGETHER, count - first))
        else:
            rows = list(zip(*ready(TOGETHER).values(), strict=True))
            rows = [(*row[:3], dict(row[3]), *row[4:]) for row in rows]
            for first in range(0, count, TOGETHER):
                yield from rows[: min(TOGETHER, count - first)]


def ready(count: int) -> dict[str, list[Any]]:
    """Return columns such as the stand-in's messages give."""
    when = datetime(2026, 1, 1, tzinfo=UTC)
    properties = [("KEYS", "order-0000001"), ("UNIQ_KEY", "7F0000010D2C18B4AAC27B5E2A3D0001")]
    properties += [("WAIT", "true"), ("TAGS", "TagA"), ("CLUSTER", "DefaultCluster")]
    values: dict[str, Any] = {
        "topic": standin.TOPIC,
        "flag": 0,
        "body": b"x" * 100,
        "properties": properties,
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": 1,
        "bornTimestamp": when,
        "storeTimestamp": when,
        "msgId": "7F0000010D2C18B4AAC27B5E2A3D0001",
        "keys": "order-0000001",
        "tags": "TagA",
        "sysFlag": 0,
        "reconsumeTimes": 0,
        "bornHost": "127.0.0.1:50000",
        "storeHost": "127.0.0.1:10911",
    }
    return {name: [value] * count for name, value in values.items()}


Read = Callable[[], None]


def finish(reader: DataFrameReader) -> None:
    """Read every row and keep none."""
    drain(reader.load())


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def sources(
    spark: SparkSession, running: ExitStack, rows: int, brokers: list[str]
) -> Iterator[tuple[str, Read]]:
    """Yield what is measured, by name."""
    for name, kind in ((ARROW, "arrow"), (TUPLES, "tuples")):
        reader = spark.read.format("bench-ready").options(kind=kind, rows=str(rows))
        yield name, partial(finish, reader)
    for broker in brokers:
        if broker == "standin":
            yield from _of_standin(spark, running, rows)
        else:
            yield from _of_real(spark, running, rows, broker)


def _of_standin(spark: SparkSession, running: ExitStack, rows: int) -> Iterator[tuple[str, Read]]:
    program = standin.build(Path(running.enter_context(tempfile.TemporaryDirectory())))
    places = {standin.TOPIC: {"broker-a": dict.fromkeys(map(str, range(TASKS)), 0)}}
    ends = {standin.TOPIC: {"broker-a": dict.fromkeys(map(str, range(TASKS)), rows // TASKS)}}
    for messages in (standin.PULL_MESSAGES, 8):
        server = running.enter_context(
            standin.running(program, body_bytes=100, queues=TASKS, messages=messages)
        )
        options = {
            "nameServer": server,
            "subscribe": standin.TOPIC,
            "startingOffsets": json.dumps(places),
            "endingOffsets": json.dumps(ends),
        }
        whole = spark.read.format("rocketmq").options(**options)
        yield f"connector, {messages} a pull", partial(finish, whole)
        if messages == standin.PULL_MESSAGES:
            slim = spark.read.format("rocketmq").schema(SLIM).options(**options)
            yield f"connector, {messages} a pull, 2 columns", partial(finish, slim)


def _of_real(
    spark: SparkSession, running: ExitStack, rows: int, version: str
) -> Iterator[tuple[str, Read]]:
    cluster = running.enter_context(Cluster.start(version))
    topic = "bench-spark-read"
    asyncio.run(fill(cluster.namesrv, topic, rows))
    reader = spark.read.format("rocketmq").options(nameServer=cluster.namesrv, subscribe=topic)
    yield f"connector, real {version}", partial(finish, reader)
    slim = spark.read.format("rocketmq").schema(SLIM)
    slim = slim.options(nameServer=cluster.namesrv, subscribe=topic)
    yield f"connector, real {version}, 2 columns", partial(finish, slim)
    yield DRIVER, lambda: asyncio.run(_through_driver(spark, cluster.namesrv, topic, rows))


async def fill(namesrv: str, topic: str, rows: int) -> None:
    """Send *rows* messages of 100 bytes."""
    async with Producer("bench", namesrv=namesrv) as producer:
        await producer.send(Message(topic, b"x" * 100))
        for first in range(1, rows, 10_000):
            batch = [Message(topic, b"x" * 100) for _ in range(min(10_000, rows - first))]
            await producer.send_batch(batch)


async def _through_driver(spark: SparkSession, namesrv: str, topic: str, rows: int) -> None:
    """Do what one writes without a connector: consume on the driver, a DataFrame at a time."""
    group = f"bench-{time.time_ns()}"
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        gathered: list[tuple[int, bytes]] = []
        done = 0
        while done < rows:
            messages = await consumer.poll(1.0, 1024)
            gathered += [(message.queue_offset, message.body) for message in messages]
            if len(gathered) >= DRIVER_ROWS or done + len(gathered) >= rows:
                done += len(gathered)
                frame = spark.createDataFrame(gathered, SLIM)
                await asyncio.to_thread(drain, frame)
                gathered = []


def measure(rows: int, rounds: int, brokers: list[str]) -> dict[str, list[float]]:
    """Return the rates of each source, round by round; the first round is not among them."""
    with ExitStack() as running:
        spark = open_session(running, ReadySource)
        measured = dict(sources(spark, running, rows, brokers))
        rates: dict[str, list[float]] = {name: [] for name in measured}
        for turn in range(rounds + 1):
            for name, read in measured.items():
                started = time.perf_counter()
                read()
                if turn:
                    rates[name].append(rows / (time.perf_counter() - started))
        return rates


def run(given: argparse.Namespace) -> None:
    """Measure and print."""
    rates = measure(given.rows, given.rounds, given.brokers.split(","))
    print(f"{given.rows:,} rows, median of {given.rounds} rounds; beside {ARROW} and {TUPLES}")
    for name, found in rates.items():
        ratios = [
            median(mine / base for mine, base in zip(found, rates[bare], strict=True))
            for bare in (ARROW, TUPLES)
        ]
        print(f"{name:32} {median(found):12,.0f} rows/s {ratios[0]:6.2f}x {ratios[1]:6.2f}x")
