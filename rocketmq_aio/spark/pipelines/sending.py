"""Sending of rows through the sink: copies of messages, and checks of what brokers stored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Observation, functions as F

from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.errors import ConfigError, RocketMQError, RouteNotFoundError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.properties import (
    KEYS,
    LMQ_LIST,
    LMQ_NAMES,
    PRIORITY,
    RESERVED,
    SHARDING_KEY,
    TAGS,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.send_request import MAX_OWN_PROPERTIES
from rocketmq_aio.spark.arrow.batch_entries import ID_BYTES
from rocketmq_aio.spark.offsets import Queue
from rocketmq_aio.spark.options.source_options import Connection, write_options
from rocketmq_aio.spark.pipelines.selection import FORMAT, connection_options, merge_options
from rocketmq_aio.spark.read.queue_index import wait_indexed
from rocketmq_aio.spark.runtime import Runtime

# Property names that SQL conditions of consumers can use.
COPIED_FROM: Final = "COPIED_FROM"  # topic/broker/queue id/offset of the original
COPIED_ID: Final = "COPIED_ID"  # message id of the original
# Option of the sink: a stored message may have any tag, and its copy keeps it.
ANY_TAGS: Final = {"checkTags": "false"}
PROPERTY_SEPARATORS: Final = 2  # bytes per property in addition to its name and value
PATH_SEPARATOR: Final = "/"  # not allowed in names of topics and brokers

STORED_SECONDS: Final = 10.0  # an acknowledged message reaches its queue some time later
POLL_SECONDS: Final = 0.1


def check_sink_options(connection: Connection, options: Mapping[str, str]) -> None:
    """Raise `ConfigError` if one is invalid, or the topic, which would send all rows elsewhere."""
    if any(name.lower() == "topic" for name in options):
        raise ConfigError("options", "topic", "is a setting of its own: give it there")
    write_options(merge_options(connection_options(connection), options), streaming=False)


def origin_path() -> Column:
    """Return the position of a message, in the form of `COPIED_FROM`."""
    names = ("topic", "brokerName", "queueId", "queueOffset")
    return F.concat_ws(PATH_SEPARATOR, *(F.col(name).cast("string") for name in names))


def copy_messages(messages: DataFrame, topic: Column) -> DataFrame:
    """Return rows for the sink that send *messages* to *topic*.

    Bodies, keys, tags, flags, priorities and user properties stay; a message with a sharding key
    goes to the queue of that key.  System properties are dropped: delays, retries, transactions and
    ids belong to the original.  A copy of a copy has its own origin.
    """
    origin = F.create_map(F.lit(COPIED_FROM), origin_path(), F.lit(COPIED_ID), F.col("msgId"))
    return messages.select(
        topic.alias("topic"),
        "body",
        "tags",
        split_keys().alias("keys"),
        F.map_concat(user_properties(COPIED_FROM, COPIED_ID), origin).alias("properties"),
        "flag",
        F.col("properties")[SHARDING_KEY].alias("shardingKey"),
        kept_priority().alias("priority"),
    )


def properties_fit() -> Column:
    """Return whether the properties of a copy fit in a message.

    A message near the limit has no room for `COPIED_FROM` and `COPIED_ID`.
    """
    properties = F.col("properties")
    texts = F.concat_ws("", F.map_keys(properties), F.map_values(properties))
    size = F.octet_length(texts) + PROPERTY_SEPARATORS * F.size(properties) + ID_BYTES
    system: dict[str, Column | str] = {
        TAGS: "tags",
        KEYS: F.array_join("keys", " "),
        SHARDING_KEY: "shardingKey",
        PRIORITY: F.col("priority").cast("string"),
    }
    for name, text in system.items():
        length = F.octet_length(text) + len(name) + PROPERTY_SEPARATORS
        size = size + F.coalesce(length, F.lit(0))
    return size <= MAX_OWN_PROPERTIES


def split_keys() -> Column:
    """Return the keys as an array; brokers store them joined by spaces."""
    parts = F.filter(F.split("keys", " "), lambda key: F.trim(key) != "")
    return F.when(F.size(parts) > 0, parts)


def kept_priority() -> Column:
    """Return the priority, unless a sharding key chooses the queue: brokers take one of them."""
    return F.when(F.col("properties")[SHARDING_KEY].isNull(), F.col("priority"))


def user_properties(*excluded: str) -> Column:
    """Return the properties without system properties and those named in *excluded*."""
    dropped = [*sorted(RESERVED), *excluded]

    def keep(name: Column, value: Column) -> Column:
        invalid = (name == LMQ_NAMES) & ~value.rlike(LMQ_LIST.pattern)  # the sink rejects it
        return ~name.isin(dropped) & (F.trim(name) != "") & (value != "") & ~invalid

    return F.map_filter("properties", keep)


@dataclass(frozen=True)
class CopyCounts:
    """Numbers of copies sent and *skipped*: these, such as *example*, have too large properties."""

    sent: int = 0
    skipped: int = 0
    example: str | None = None

    def __add__(self, other: CopyCounts) -> CopyCounts:
        example = self.example or other.example
        return CopyCounts(self.sent + other.sent, self.skipped + other.skipped, example)

    @property
    def problems(self) -> list[str]:
        """The reason why copies were skipped."""
        reason = "its properties have no room for COPIED_FROM and COPIED_ID"
        text = f"{self.skipped} messages were not copied, such as {self.example}: {reason}"
        return [text] if self.skipped else []


def send_rows(rows: DataFrame, connection: Connection, options: Mapping[str, str]) -> int:
    """Send *rows* and return their number; after a `PySparkException` some may be stored."""
    seen = Observation()
    counted = rows.observe(seen, F.count(F.lit(1)).alias("rows"))
    _save(counted, connection, options)
    return int(seen.get["rows"])


def send_copies(rows: DataFrame, connection: Connection, options: Mapping[str, str]) -> CopyCounts:
    """Send *rows* of `copy_messages` that fit in a message; see `send_rows`."""
    seen, fit = Observation(), properties_fit()
    origin = F.when(~fit, F.col("properties")[COPIED_FROM])
    counted = rows.observe(
        seen,
        F.count_if(fit).alias("sent"),
        F.count_if(~fit).alias("skipped"),
        F.min(origin).alias("example"),
    )
    _save(counted.where(fit), connection, options)
    return CopyCounts(**seen.get)


def _save(rows: DataFrame, connection: Connection, options: Mapping[str, str]) -> None:
    chosen = merge_options(connection_options(connection), options)
    rows.write.format(FORMAT).mode("append").options(**chosen).save()


class TopicGrowth:
    """Growth of topics while a pipeline sends to them.

    Other producers may send there too: more growth proves nothing, less growth is a loss.

    :param delayed: the messages have delays: when they are stored is unknown
    """

    def __init__(
        self, connection: Connection, topics: Iterable[str], *, delayed: bool = False
    ) -> None:
        self._connection = connection
        self._topics = tuple(topics)
        self._delayed = delayed
        self._before = end_offsets(connection, self._topics)

    def problems(self, sent: int) -> list[str]:
        """Wait up to `STORED_SECONDS` for *sent* messages; return a problem if some are missing.

        It is a problem, too, if they cannot be counted: what was sent is sent.
        """
        deadline = time.monotonic() + STORED_SECONDS
        while True:
            stored, found = self.count()
            if self._delayed or (stored is not None and stored >= sent):
                return []
            if time.monotonic() >= deadline:
                return [f"{', '.join(self._topics)}: {sent} messages were sent, {found}"]
            time.sleep(POLL_SECONDS)

    def count(self) -> tuple[int | None, str]:
        """Return by how many messages the topics have grown so far, also as text.

        None if it is unknown.
        """
        if self._delayed:
            return None, "an unknown number is stored: they have delays"
        try:
            now = end_offsets(self._connection, self._topics)
        except RocketMQError as error:
            return None, f"the stored ones could not be counted: {error}"
        stored = sum(max(0, end - self._before.get(queue, 0)) for queue, end in now.items())
        return stored, f"{stored} are stored"


def end_offsets(connection: Connection, topics: Iterable[str]) -> dict[Queue, int]:
    """Return the end offsets of the readable queues of *topics*; an unknown topic has none.

    Waits for the index of the queues, so that all messages stored before the call are counted.
    """
    runtime = Runtime.get(connection)
    consumer = runtime.pull_consumer()
    return runtime.call(indexed_end_offsets, runtime.instance, consumer, tuple(topics))


async def indexed_end_offsets(
    instance: MQClientInstance, consumer: PullConsumer, topics: tuple[str, ...]
) -> dict[Queue, int]:
    """Return the end offsets of *topics*; see `end_offsets`."""
    queues: dict[Queue, MessageQueue] = {}
    for topic in topics:
        try:
            found = await consumer.message_queues(topic)
        except RouteNotFoundError:
            continue
        queues |= {(each.topic, each.broker_name, each.queue_id): each for each in found}
    await wait_indexed(instance, queues)
    return {key: await consumer.max_offset(queue) for key, queue in queues.items()}
