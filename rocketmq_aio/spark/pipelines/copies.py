"""Messages -> rows that are sent again: what goes along, what does not, and the mark of origin."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it

from rocketmq_aio.model.properties import KEYS, RESERVED, SHARDING_KEY, TAGS
from rocketmq_aio.spark.arrow.batch_entries import ID_BYTES
from rocketmq_aio.spark.arrow.row_encoder import MOST_PROPERTIES

# Names that an SQL condition of a consumer can hold, too.
COPIED_FROM: Final = "COPIED_FROM"  # topic/broker/queue id/offset of the message itself
COPIED_ID: Final = "COPIED_ID"  # its message id
# Option of the sink: a stored message may have any tag, and its copy has the same one.
AS_THEY_ARE: Final = {"checkTags": "false"}
SEPARATORS: Final = 2  # bytes of a property beside its name and its value
# No topic is called so, nor a broker: a slash is in neither name.
SEPARATOR: Final = "/"


def position() -> Column:
    """Return where a message is stored, as `COPIED_FROM` says it."""
    names = ("topic", "brokerName", "queueId", "queueOffset")
    return F.concat_ws(SEPARATOR, *(F.col(name).cast("string") for name in names))


def copies(messages: DataFrame, topic: Column) -> DataFrame:
    """Return rows for the sink that send *messages* to *topic*.

    Bodies, keys, tags, flags and the application's properties stay; a message with a sharding
    key goes to the queue of that key.  Properties of the system do not: delays, retries,
    transactions and ids are those of the first message.  A copy of a copy has its own mark.
    """
    return messages.select(
        topic.alias("topic"),
        "body",
        "tags",
        keys().alias("keys"),
        F.map_concat(own_properties(COPIED_FROM, COPIED_ID), _mark()).alias("properties"),
        "flag",
        F.col("properties")[SHARDING_KEY].alias("shardingKey"),
    )


def fits() -> Column:
    """Return whether the properties of a row of `copies` fit in a message.

    A message near the limit has no room for the marks of its copy.
    """
    own = F.col("properties")
    texts = F.concat_ws("", F.map_keys(own), F.map_values(own))
    taken = F.octet_length(texts) + SEPARATORS * F.size(own) + ID_BYTES
    for name, text in (
        (TAGS, F.col("tags")),
        (KEYS, F.array_join("keys", " ")),
        (SHARDING_KEY, F.col("shardingKey")),
    ):
        taken = taken + F.coalesce(F.octet_length(text) + len(name) + SEPARATORS, F.lit(0))
    return taken <= MOST_PROPERTIES


def keys() -> Column:
    """Return the keys one by one: the broker stores them joined by spaces."""
    parts = F.filter(F.split("keys", " "), lambda key: F.trim(key) != "")
    return F.when(F.size(parts) > 0, parts)


def own_properties(*marks: str) -> Column:
    """Return what the application set: all that is neither the system's nor one of *marks*."""
    taken = [*sorted(RESERVED), *marks]

    def wanted(name: Column, value: Column) -> Column:
        return ~name.isin(taken) & (F.trim(name) != "") & (F.trim(value) != "")

    return F.map_filter("properties", wanted)


def _mark() -> Column:
    return F.create_map(F.lit(COPIED_FROM), position(), F.lit(COPIED_ID), F.col("msgId"))
