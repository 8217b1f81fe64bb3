"""Tasks of Spark that pause in the middle of their rows until a test releases them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from tests.spark.support import wait_until

HELD_AFTER: Final = 4  # record batches that a held task has passed on
HOLD_SECONDS: Final = 600.0  # the test has failed long before


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A paused task; *pid* is its Python process."""

    pid: int
    partition: int


class TaskHold:
    """Holds one task in the middle of its rows until `release`; its next attempt passes."""

    def __init__(self, folder: Path) -> None:
        self._claimed = folder / "claimed"
        self._released = folder / "released"

    def step(self, *, stream_batch: int | None = None) -> Callable[..., Iterator[pa.RecordBatch]]:
        """A function for `mapInArrow` that passes rows on and holds the first task that comes.

        With *stream_batch* only tasks of that micro-batch are held.
        """
        claimed, released = str(self._claimed), str(self._released)
        wanted = None if stream_batch is None else str(stream_batch)
        held_after, hold_seconds = HELD_AFTER, HOLD_SECONDS

        # Pickled by value: executors cannot import this module.
        def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            for number, batch in enumerate(batches):
                right_batch = wanted in (None, context.getLocalProperty("streaming.sql.batchId"))
                if number == held_after and right_batch:
                    hold(context.partitionId())
                yield batch

        def hold(partition: int) -> None:
            written = f"{claimed}.{os.getpid()}"
            with open(written, "w", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {partition}")
            try:
                os.link(written, claimed)
            except FileExistsError:
                return  # another task is held, or this is the next attempt
            deadline = time.monotonic() + hold_seconds
            while not os.path.exists(released) and time.monotonic() < deadline:
                time.sleep(0.05)

        return pass_on

    def wait(self) -> HeldTask:
        """Wait until a task is held."""
        wait_until(self._claimed.exists, "a task is held", seconds=HOLD_SECONDS)
        pid, partition = map(int, self._claimed.read_text().split())
        return HeldTask(pid, partition)

    def release(self) -> None:
        self._released.touch()
