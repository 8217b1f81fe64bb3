"""Shared helpers: sessions, messages in a topic, waiting."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from rocketmq_aio import Message, Producer, ProducerConfig
from tests.spark.class_archive import jvm_options

STARTUP: Final = str(Path(__file__).parent / "startup")
LOCAL: Final = "local[2,4]"  # without the second number a failed task is never tried again
PATIENT: Final = ProducerConfig(send_timeout_seconds=30.0)  # the machine may be busy
SEND_TOGETHER: Final = 500  # messages under way at once
WAIT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.05
NO_CHANGES: Final[Mapping[str, str]] = MappingProxyType({})

# Small, silent and on loopback: tests share a machine with brokers.
SESSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.log.level": "ERROR",
        "spark.speculation": "false",  # the settings of the first session are those of the JVM
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
)


def use_this_python() -> None:
    """Let the JVM, planners, workers and executors run the interpreter of this process.

    They start by `startup/sitecustomize.py`.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if STARTUP not in places:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, *places]))


def settings_in(folder: Path) -> dict[str, str]:
    """Settings that keep all files of a session below *folder*, also if it is killed."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        **SESSION,
        "spark.driver.extraJavaOptions": f"{jvm_options()} -Djava.io.tmpdir={scratch}",
        "spark.executor.extraJavaOptions": jvm_options(),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


def open_session(
    folder: Path, *, master: str = LOCAL, settings: Mapping[str, str] = NO_CHANGES
) -> SparkSession:
    """Return a new session that keeps its files below *folder*; the caller stops it.

    What belongs to the JVM, such as its memory, counts for the first session of a process only.
    """
    use_this_python()
    builder = SparkSession.Builder().master(master).appName("rocketmq-aio-tests")
    return builder.config(map={**settings_in(folder), **settings}).getOrCreate()


@contextmanager
def running_session(
    folder: Path, *, master: str = LOCAL, settings: Mapping[str, str] = NO_CHANGES
) -> Iterator[SparkSession]:
    """A session that is stopped after the block, with the queries that it runs."""
    session = open_session(folder, master=master, settings=settings)
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()
        session.stop()


def active_executors(session: SparkSession) -> set[str]:
    """The ids of the executors that the status API of the driver lists as active."""
    java: Any = session.sparkContext._jsc
    executors = java.sc().statusStore().executorList(True)
    ids = {str(executors.apply(number).id()) for number in range(executors.size())}
    return ids - {"driver"}


def end_jvm(seconds: float = WAIT_SECONDS) -> None:
    """End the JVM that the sessions of this process had; the next session starts another."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc  # pyspark keeps it for its callers
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # makes it exit
    process.wait(seconds)
    SparkContext._gateway = SparkContext._jvm = None


def write_messages(
    namesrv: str,
    topic: str,
    bodies: Iterable[bytes | str],
    *,
    tags: str | None = None,
    keys: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Send one message per body, in any order over the queues; return when all are stored."""
    messages = [
        Message(
            topic,
            body.encode() if isinstance(body, str) else body,
            tags=tags,
            keys=keys,
            properties=properties,
        )
        for body in bodies
    ]
    asyncio.run(send_all(namesrv, messages))


def write_batches(namesrv: str, topic: str, count: int, body: bytes) -> None:
    """Store *count* messages of one body, in batches: much faster than one by one."""
    asyncio.run(_send_batches(namesrv, topic, count, body))


async def _send_batches(namesrv: str, topic: str, count: int, body: bytes) -> None:
    async with Producer("spark-tests-producer", namesrv=namesrv, config=PATIENT) as producer:
        for first in range(0, count, SEND_TOGETHER):
            size = min(SEND_TOGETHER, count - first)
            await producer.send_batch([Message(topic, body) for _ in range(size)])


async def send_all(namesrv: str, messages: list[Message]) -> None:
    async with Producer("spark-tests-producer", namesrv=namesrv, config=PATIENT) as producer:
        for first in range(0, len(messages), SEND_TOGETHER):
            sends = map(producer.send, messages[first : first + SEND_TOGETHER])
            await asyncio.gather(*sends)


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    seconds: float = WAIT_SECONDS,
    pause: float = PAUSE_SECONDS,
) -> None:
    """Return as soon as *condition* holds.

    :raises AssertionError: it did not in time
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
