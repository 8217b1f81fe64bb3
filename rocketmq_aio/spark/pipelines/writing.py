"""Rows -> topics, counted on their way and again at the brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it

from rocketmq_aio.spark.offsets import Queue
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.broker_queries import ends_of, grown
from rocketmq_aio.spark.pipelines.copies import COPIED_FROM, fits
from rocketmq_aio.spark.pipelines.read_range import connection_options, merged
from rocketmq_aio.spark.pipelines.reading import FORMAT

STORED_SECONDS: Final = 10.0  # what a broker acknowledged is in its queues some time later
LOOK_SECONDS: Final = 0.1


def send(rows: DataFrame, connection: Connection, options: Mapping[str, str]) -> int:
    """Send *rows* through the sink and return how many there were.

    :raises PySparkException: some could not be sent; others may be stored
    """
    seen = Observation()
    counted = rows.observe(seen, F.count(F.lit(1)).alias("rows"))
    _save(counted, connection, options)
    return int(seen.get["rows"])


def _save(rows: DataFrame, connection: Connection, options: Mapping[str, str]) -> None:
    chosen = merged(connection_options(connection), options)
    rows.write.format(FORMAT).mode("append").options(**chosen).save()


@dataclass(frozen=True)
class Copied:
    """How many copies were sent; *set_aside*, such as *example*, have too large properties."""

    sent: int = 0
    set_aside: int = 0
    example: str | None = None

    def __add__(self, other: Copied) -> Copied:
        """Return both together."""
        example = self.example or other.example
        return Copied(self.sent + other.sent, self.set_aside + other.set_aside, example)

    @property
    def problems(self) -> list[str]:
        """Why some were not sent."""
        if not self.set_aside:
            return []
        reason = "the marks of a copy do not fit in their properties"
        return [f"{self.set_aside} messages were not copied, such as {self.example}: {reason}"]


def send_copies(rows: DataFrame, connection: Connection, options: Mapping[str, str]) -> Copied:
    """Send *rows*, made by `copies`; those that do not fit in a message are set aside.

    :raises PySparkException: some could not be sent; others may be stored
    """
    seen, fit = Observation(), fits()
    origin = F.when(~fit, F.col("properties")[COPIED_FROM])
    counted = rows.observe(
        seen,
        F.count_if(fit).alias("sent"),
        F.count_if(~fit).alias("set_aside"),
        F.min(origin).alias("example"),
    )
    _save(counted.where(fit), connection, options)
    found = seen.get
    return Copied(found["sent"], found["set_aside"], found["example"])


class Growth:
    """How much some topics grow while a pipeline sends to them.

    Others may send there, too: that they grew by more proves nothing, by less is a loss.
    """

    def __init__(self, connection: Connection, topics: Iterable[str]) -> None:
        self._connection = connection
        self._topics = tuple(topics)
        self._before: dict[Queue, int] = ends_of(connection, self._topics)

    def problems(self, sent: int) -> list[str]:
        """Return why the topics do not show the messages *sent*; it may wait some seconds."""
        found = self.stored()
        deadline = time.monotonic() + STORED_SECONDS
        while found < sent and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            found = self.stored()
        if found >= sent:
            return []
        return [f"{', '.join(self._topics)}: {sent} messages were sent, {found} are stored"]

    def stored(self) -> int:
        """Return by how many messages the topics have grown so far."""
        return grown(self._before, ends_of(self._connection, self._topics))
