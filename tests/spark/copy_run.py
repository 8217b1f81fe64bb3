"""A topic that is copied to a parquet sink while parts of the way are killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil  # type: ignore[import-untyped]  # it has no stubs
from pyspark.sql import SparkSession

from rocketmq_aio import Message, Producer
from rocketmq_aio.testing import Cluster
from tests.broker.reading import read_topic
from tests.spark.support import wait_until

Row = tuple[str, int, int, bytes]  # broker, queue id, offset, body

READER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMON: Final = ["pyspark.daemon", "pyspark.worker"]
RECOVERY_SECONDS: Final = 300.0  # of a machine that does much else
BATCHES_BETWEEN: Final = 1  # the stream must have gone on before the next kill
RANDOM_SECONDS: Final = 1.0  # a kill falls anywhere within: into any phase of a batch
QUEUES: Final = 4
SENT_TOGETHER: Final = 20
BETWEEN_SENDS_SECONDS: Final = 0.05
VICTIMS: Final = {
    "driver": "kill_and_restart_driver",
    "reader": "kill_stream_reader",
    "worker": "kill_worker",
    "broker": "kill_and_restart_broker",
}


class CopyRun:
    """The driver (`copying`) in a process of its own, whose processes can be killed."""

    def __init__(self, cluster: Cluster, topic: str, folder: Path, **options: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.folder = folder
        self.log = folder / "driver.log"
        self._options = [f"{name}={value}" for name, value in options.items()]
        self._driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the driver and kill it at the end of the block; reusable."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_driver()
        if error is not None and self.log.exists():
            error.add_note(self.log.read_text(encoding="utf-8", errors="replace")[-6000:])

    def start(self) -> None:
        """Start the driver."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arguments = [self._cluster.namesrv, self._topic, str(self.folder), *self._options]
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.copying", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_driver(self) -> None:
        """Kill Python and its JVM; the workers then exit."""
        if self._driver is not None:
            workers = self._processes()
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()
            self._driver = None
            psutil.wait_procs(workers, RECOVERY_SECONDS)

    def kill_and_restart_driver(self) -> None:
        self.kill_driver()
        self.start()

    def kill_stream_reader(self) -> None:
        self._kill_one_of(self.stream_readers)

    def kill_worker(self) -> None:
        self._kill_one_of(self.workers)

    def kill_and_restart_broker(self) -> None:
        broker = self._cluster.brokers[0]
        broker.kill()
        broker.start()

    def stream_readers(self) -> list[psutil.Process]:
        return [process for process in self._processes() if READER in words(process)]

    def workers(self) -> list[psutil.Process]:
        """The forked workers of the executor, without their daemon."""
        daemons = [each for each in self._processes() if words(each)[-2:] == DAEMON]
        found = {daemon.pid for daemon in daemons}
        return [each for each in daemons if parent(each) in found]

    def batches(self) -> int:
        """The number of the last completed batch, -1 before the first."""
        return last_number(self.folder / "checkpoint" / "commits")

    def wait_for_batches(self, more: int) -> None:
        """Wait until *more* batches are completed."""
        wanted = self.batches() + more
        wait_until(lambda: self.batches() >= wanted, f"batch {wanted}", seconds=RECOVERY_SECONDS)

    def wait_until_copied(self) -> None:
        """Wait until the checkpoint is at the end of the topic."""
        ends: dict[tuple[str, int], int] = {}
        for broker, queue, offset, _ in self.log_rows():
            ends[broker, queue] = max(ends.get((broker, queue), 0), offset + 1)
        wait_until(lambda: self._is_behind(ends), "everything is copied", seconds=RECOVERY_SECONDS)

    def log_rows(self) -> Counter[Row]:
        """The stored messages, read without the connector."""
        stored = read_topic(self._cluster, self._topic, QUEUES)
        return Counter((m.broker_name, m.queue_id, m.offset, m.body) for m in stored)

    def sink_rows(self, spark: SparkSession) -> Counter[Row]:
        """The rows that Spark has committed to the sink."""
        rows = spark.read.parquet(str(self.folder / "sink")).collect()
        return Counter(
            (row.brokerName, row.queueId, row.queueOffset, bytes(row.body)) for row in rows
        )

    def _kill_one_of(self, find: Callable[[], list[psutil.Process]]) -> None:
        """Kill the first process that *find* returns."""
        found: list[psutil.Process] = []

        def look() -> bool:
            found.extend(find())
            return bool(found)

        wait_until(look, f"a process for {find.__name__}", seconds=RECOVERY_SECONDS)
        victim = random.choice(found)
        victim.kill()
        victim.wait(RECOVERY_SECONDS)

    def _processes(self) -> list[psutil.Process]:
        assert self._driver is not None
        found: list[psutil.Process] = psutil.Process(self._driver.pid).children(recursive=True)
        return found

    def _is_behind(self, ends: Mapping[tuple[str, int], int]) -> bool:
        done = self.batches()
        if done < 0:
            return False
        offsets = self.folder / "checkpoint" / "offsets" / str(done)
        brokers = json.loads(offsets.read_text().splitlines()[-1])["end"].get(self._topic, {})
        return all(brokers.get(b, {}).get(str(q), 0) >= end for (b, q), end in ends.items())


class Load:
    """Sends numbers to a topic from a thread during its block, also across failures.

    A send that fails is left out or stored after all: what counts is what the log holds.
    """

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _send(self) -> None:
        numbers = itertools.count()
        async with Producer("load", namesrv=self._namesrv) as producer:
            while not self._stop.is_set():
                bodies = (f"number {next(numbers)}" for _ in range(SENT_TOGETHER))
                sends = [producer.send(Message(self._topic, body.encode())) for body in bodies]
                await asyncio.gather(*sends, return_exceptions=True)
                await asyncio.sleep(BETWEEN_SENDS_SECONDS)


def kill_all(run: CopyRun, kills: Iterable[str], chance: random.Random) -> None:
    """Kill one after the other at random moments, after progress of the stream each time."""
    for victim in kills:
        run.wait_for_batches(BATCHES_BETWEEN)
        time.sleep(chance.uniform(0, RANDOM_SECONDS))
        getattr(run, VICTIMS[victim])()


def last_number(folder: Path) -> int:
    """The highest number among the file names of *folder*, or -1."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=-1)


def words(process: psutil.Process) -> list[str]:
    """The command line, empty for an ended process."""
    try:
        found: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return found


def parent(process: psutil.Process) -> int:
    """The parent process id, 0 for an ended process."""
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0
