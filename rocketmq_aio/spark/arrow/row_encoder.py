"""Row encoder: Arrow columns to batch entries, column by column, not row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Final, NamedTuple

import pyarrow as pa

from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.message import MAX_DELAY_LEVEL
from rocketmq_aio.model.names import RETRY_PREFIX, send_fault
from rocketmq_aio.model.properties import (
    DELAY,
    KEYS,
    LIGHT,
    LMQ_LIST,
    LMQ_NAMES,
    MAX_PRIORITY,
    PRIORITY,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
)
from rocketmq_aio.model.timestamps import LEAST_MILLIS, MILLIS_FORM
from rocketmq_aio.producer.send_request import MAX_OWN_PROPERTIES, MAX_TIMED_PROPERTIES
from rocketmq_aio.spark.arrow import Column, pc
from rocketmq_aio.spark.arrow.batch_entries import (
    NOTHING,
    bytes_of,
    encode_entries,
    id_pieces,
    join,
)
from rocketmq_aio.spark.arrow.row_schema import BY_LOWER

MAX_SLICE_BYTES: Final = 16 * 1024 * 1024  # of a record batch encoded at once
NAME_END, PAIR_END = b"\x01", b"\x02"
RESERVED_NAMES: Final = pa.array(sorted(RESERVED), pa.string())
LIGHT_NAMES: Final = pa.array(sorted(LIGHT), pa.string())


class EncodedRows(NamedTuple):
    """Encoded rows; each array has one element per row.

    :ivar entries: batch entries, binary
    :ivar topics: one name for all rows, or an array
    :ivar keys: sharding keys, or None
    :ivar brokers: broker names for *queue_ids*, or None
    :ivar unbatched: which rows need a request of their own, or None
    """

    entries: Column
    topics: str | Column
    keys: Column | None = None
    brokers: Column | None = None
    queue_ids: Column | None = None
    unbatched: Column | None = None


def slices(batch: Column, most_bytes: int = MAX_SLICE_BYTES) -> Iterator[Column]:
    """Split *batch* to bound the memory of encoding."""
    if batch.nbytes <= most_bytes or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from slices(batch.slice(0, middle), most_bytes)
    yield from slices(batch.slice(middle), most_bytes)


def encode(
    batch: Column,
    *,
    topic: str | None,
    id_prefix: str,
    first_row: int,
    most_bytes: int,
    check_tags: bool = True,
) -> EncodedRows:
    """Encode the rows of *batch*, whose schema is valid.

    :param topic: overrides the column ``topic``
    :param id_prefix: 20 hexadecimal digits, unique to this task
    :param first_row: number of the first row in this task
    :param most_bytes: maximum size of a body
    :param check_tags: reject tags with a bar
    :raises InvalidMessageError: a row is invalid; names the row, the topic and the reason
    """
    columns = {
        BY_LOWER[name.lower()]: normalize(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    encoder = _RowEncoder(columns, topic, first_row)
    bodies, queues = encoder.bodies(most_bytes), encoder.queues()
    ids = id_pieces(id_prefix, first_row, batch.num_rows)
    properties = encoder.properties(ids, encoder.tags(check=check_tags))
    entries = encode_entries(bodies, properties, encoder.numbers("flag"))
    keys, unbatched = columns.get("shardingKey"), encoder.unbatched()
    return EncodedRows(entries, encoder.topics, keys, *queues, unbatched)


def normalize(column: Column) -> Column:
    """Return *column* as the one type used here: Spark settings change the types it passes."""
    kind = column.type
    if pa.types.is_large_string(kind):
        column = column.cast(pa.string())
    elif pa.types.is_large_binary(kind):
        column = column.cast(pa.binary())
    elif pa.types.is_large_list(kind) or pa.types.is_list(kind):
        column = column.cast(pa.list_(pa.string()))
    elif pa.types.is_map(kind):
        column = column.cast(pa.map_(pa.string(), pa.string()))
    return column


class _RowEncoder:
    """Encodes the columns of one record batch; each method rejects invalid rows."""

    def __init__(self, columns: dict[str, Column], topic: str | None, first_row: int) -> None:
        self._columns = columns
        self._first_row = first_row
        self._light_rows: Column | None = None  # which rows have light message queues
        self.topics: str | Column = topic if topic is not None else self._topics()

    def bodies(self, most_bytes: int) -> Column:
        bodies = self._columns["body"].cast(pa.binary())
        self._reject(bodies.is_null(), "its body is null")
        lengths = pc.binary_length(bodies)
        self._reject(pc.equal(lengths, 0), "its body is empty, which brokers reject")
        self._reject(
            pc.greater(lengths, most_bytes),
            lambda at: f"its body has {lengths[at].as_py()} bytes, the maximum is {most_bytes}",
        )
        return bodies

    def properties(self, ids: Column, tags: Column | None) -> Column:
        pieces = [ids]
        for name, column in (
            (TAGS, tags),
            (KEYS, self._keys()),
            (SHARDING_KEY, self._sharding_keys()),
            (DELAY, self._delay_levels()),
            (TIMER_DELIVER_MS, self._delivery_times()),
            (PRIORITY, self._priorities()),
        ):
            if column is not None:
                pieces.extend(_property_pieces(name, column))
        if (own := self._user_properties()) is not None:
            pieces.append(own)
        properties = join(*pieces) if len(pieces) > 1 else ids
        lengths = pc.binary_length(properties)
        self._reject(
            pc.greater(lengths, MAX_OWN_PROPERTIES),
            lambda at: f"its properties take {lengths[at].as_py()} bytes, {MAX_OWN_PROPERTIES} fit",
        )
        if (timed := self._is_set("deliverTimestamp")) is not None:
            self._reject(
                pc.and_(timed, pc.greater(lengths, MAX_TIMED_PROPERTIES)),
                lambda at: (
                    f"its properties take {lengths[at].as_py()} bytes, "
                    f"with a deliverTimestamp {MAX_TIMED_PROPERTIES} fit"
                ),
            )
        return properties

    def tags(self, *, check: bool) -> Column | None:
        tags = self._text("tags")
        if check and tags is not None and b"|" in bytes_of(tags):
            self._reject(
                pc.match_substring(tags, "|"),
                lambda at: f"tags={tags[at].as_py()!r}: a message has one tag, without a bar",
            )
        return tags

    def numbers(self, name: str, *, least: int = -(2**31), most: int = 2**31 - 1) -> Column | None:
        """Return a column of numbers with 0 for null."""
        column = self._columns.get(name)
        if column is None:
            return None
        numbers = column.cast(pa.int64()).fill_null(0)
        wrong = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
        self._reject(wrong, lambda at: f"{name}={numbers[at].as_py()}: expected {least} to {most}")
        return numbers.cast(pa.int32())

    def queues(self) -> tuple[Column | None, Column | None]:
        """Return the broker names and the queue ids, or None twice."""
        self._text("brokerName")
        brokers, ids = self._columns.get("brokerName"), self._columns.get("queueId")
        if brokers is None or ids is None:
            return None, None
        self._reject(
            pc.not_equal(brokers.is_null(), ids.is_null()),
            "brokerName and queueId name a queue together: set both or none",
        )
        return brokers, self.numbers("queueId", least=0)

    def unbatched(self) -> Column | None:
        """Return which rows need a request of their own.

        These are delayed ones, those with a priority or light queues, and rows for retry topics.
        """
        names = ("delayLevel", "deliverTimestamp", "priority")
        conditions = [each for each in map(self._is_set, names) if each is not None]
        if self._light_rows is not None:
            conditions.append(self._light_rows)
        if not isinstance(self.topics, str):
            conditions.append(pc.starts_with(self.topics, RETRY_PREFIX))
        unbatched = reduce(pc.or_, conditions) if conditions else None
        return unbatched if conditions and pc.any(unbatched).as_py() else None

    # --- columns ----------------------------------------------------------------------------------

    def _topics(self) -> Column:
        self.topics = topics = self._columns["topic"]
        self._reject(topics.is_null(), "its topic is null")
        for name in pc.unique(topics).to_pylist():
            if fault := send_fault(name):
                raise self._error(topics.index(name).as_py(), fault)
        return topics

    def _keys(self) -> Column | None:
        keys = self._columns.get("keys")
        if keys is None or not pa.types.is_list(keys.type):
            return self._text("keys")
        flat = keys.flatten()
        wrong = pc.or_kleene(pc.match_substring(flat, " "), pc.equal(pc.utf8_length(flat), 0))
        reason = "keys: one of them is null, empty or holds a space"
        self._reject(wrong.fill_null(True), reason, pc.list_parent_indices(keys))
        self._columns["keys"] = pc.binary_join(keys, " ")
        return self._text("keys")

    def _text(self, name: str) -> Column | None:
        """Return a column of text with null for empty values."""
        text = self._columns.get(name)
        if text is None or text.null_count == len(text):
            return None
        if pc.min(pc.binary_length(text)).as_py() == 0:
            text = pc.if_else(pc.equal(pc.binary_length(text), 0), None, text)
            self._columns[name] = text
        self._check_text(name, text)
        return text

    def _sharding_keys(self) -> Column | None:
        if (keys := self._text("shardingKey")) is not None:
            self._reject(_is_blank(keys), "its shardingKey is blank: give a text, or null")
        return keys

    def _is_set(self, name: str) -> Column | None:
        """Return which rows set a column that was encoded before; None without such a column."""
        column = self._columns.get(name)
        return None if column is None else column.is_valid()

    def _reject_both(self, name: str, other: str) -> None:
        first, second = self._is_set(name), self._is_set(other)
        if first is not None and second is not None:
            both = pc.and_(first, second)
            self._reject(both, f"it has a {name} and a {other}: set one of them")

    def _delay_levels(self) -> Column | None:
        levels = self.numbers("delayLevel", least=0, most=MAX_DELAY_LEVEL)
        if levels is None:
            return None
        self._columns["delayLevel"] = levels = pc.if_else(pc.equal(levels, 0), None, levels)
        self._reject_both("delayLevel", "deliverTimestamp")
        return levels.cast(pa.string())

    def _delivery_times(self) -> Column | None:
        times = self._columns.get("deliverTimestamp")
        if times is None:
            return None
        if pa.types.is_timestamp(times.type):
            micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
            times = pc.divide(micros, pa.scalar(1000, pa.int64()))
        else:
            seconds = pc.and_(pc.greater(times, 0), pc.less(times, LEAST_MILLIS))
            reason = f"{MILLIS_FORM}, or a timestamp"
            self._reject(seconds, lambda at: f"deliverTimestamp={times[at].as_py()}: {reason}")
        return pc.max_element_wise(times, 0, skip_nulls=False).cast(pa.string())

    def _priorities(self) -> Column | None:
        numbers = self.numbers("priority", least=0, most=MAX_PRIORITY)
        if numbers is None:
            return None
        # Brokers drop it from a message with a delay or a key, and choose the queue by it.
        for other in ("delayLevel", "deliverTimestamp", "shardingKey", "brokerName"):
            self._reject_both("priority", other)
        return pc.if_else(self._is_set("priority"), numbers.cast(pa.string()), None)

    def _user_properties(self) -> Column | None:
        """Return the encoded properties of the user."""
        maps = self._columns.get("properties")
        if maps is None or maps.null_count == len(maps):
            return None
        lists = maps.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
        flat = lists.flatten()
        names, texts = flat.field("key"), flat.field("value")
        parents = pc.list_parent_indices(lists)
        self._reject(
            pc.is_in(names, value_set=RESERVED_NAMES),
            lambda at: (
                f"property name {names[at].as_py()!r} is reserved: keys, tags and others have "
                "columns of their own; drop the rest with map_filter"
            ),
            parents,
        )
        self._reject(_is_blank(names), "a property has a blank name", parents)
        for each in (names, texts):
            self._check_text("properties", each, parents)
        is_light = pc.is_in(names, value_set=LIGHT_NAMES)
        if pc.any(is_light).as_py():
            valid = pc.match_substring_regex(texts, f"^$|{LMQ_LIST.pattern}")
            reason = f"property {LMQ_NAMES}: light message queues begin with %LMQ%, hold no slash"
            self._reject(pc.and_not(pc.equal(names, LMQ_NAMES), valid), reason, parents)
            rows = pa.array(range(len(maps)), parents.type)
            self._light_rows = pc.is_in(rows, value_set=parents.filter(is_light))
        pairs = pc.binary_join_element_wise(
            names, pa.scalar("\x01"), texts, pa.scalar("\x02"), pa.scalar("")
        )
        # Brokers drop properties without a value.
        pairs = pc.if_else(pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False), pairs, "")
        counts = pc.list_value_length(lists).fill_null(0)
        ends = pc.cumulative_sum(counts).cast(pa.int32())
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        return pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), "").cast(pa.binary())

    def _check_text(self, name: str, text: Column, parents: Column | None = None) -> None:
        """Reject invalid UTF-8 and text with the separators of properties."""
        try:
            text.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._error(0, f"{name}: {error} (in this record batch)") from None
        raw = bytes_of(text)
        if NAME_END in raw or PAIR_END in raw:
            wrong = pc.match_substring_regex(text, "[\x01\x02]")
            self._reject(wrong, f"{name} may not hold U+0001, U+0002", parents)

    def _reject(
        self, wrong: Column, reason: str | Callable[[int], str], parents: Column | None = None
    ) -> None:
        """Raise the error for the first element that is *wrong*; *parents* are the rows of all."""
        if pc.any(wrong).as_py():
            at = wrong.fill_null(False).index(True).as_py()
            row = at if parents is None else parents[at].as_py()
            raise self._error(row, reason if isinstance(reason, str) else reason(at))

    def _error(self, at: int, reason: str) -> InvalidMessageError:
        topics = self.topics
        topic = topics if isinstance(topics, str) else topics[at].as_py()
        return InvalidMessageError(topic, f"row {self._first_row + at} of the task: {reason}")


def _is_blank(texts: Column) -> Column:
    return pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)


def _property_pieces(name: str, values: Column) -> tuple[Column, ...]:
    """Return the pieces of a property, null where its value is null."""
    values = values.cast(pa.binary())
    head, end = pa.scalar(name.encode() + NAME_END), pa.scalar(PAIR_END)
    if not values.null_count:
        return head, values, end
    return (pc.binary_join_element_wise(head, values, end, NOTHING),)
