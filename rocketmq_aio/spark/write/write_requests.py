"""Write requests: encoded rows grouped by topic and destination and split by size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.properties import TIMER_DELIVER_MS
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.batching.pre_encoded import Encoded
from rocketmq_aio.spark.arrow import Column, pc
from rocketmq_aio.spark.arrow.batch_entries import offsets_of, read_entry
from rocketmq_aio.spark.arrow.row_encoder import EncodedRows

TIMED: Final = f"\x02{TIMER_DELIVER_MS}\x01".encode()
ENTRIES, DESTINATIONS, UNBATCHED = "entries", "destinations", "unbatched"

QueuesOfKeys = Callable[[str, list[str]], Sequence[MessageQueue]]


class Destination(NamedTuple):
    """A queue, whose requests are sent in order, and a sharding key that maps to it; or neither."""

    queue: MessageQueue | None = None
    key: str | None = None


ANY_QUEUE: Final = Destination()


class WriteRequest(NamedTuple):
    """One send request: the encoded message or batch, its number of rows and its destination."""

    encoded: Encoded
    rows: int
    destination: Destination = ANY_QUEUE


class RequestLimits(NamedTuple):
    """Limits of one request."""

    bytes: int
    records: int


SINGLE: Final = RequestLimits(bytes=0, records=1)  # a request without a batch for each row


def write_requests(
    rows: EncodedRows, limits: RequestLimits, queues_of_keys: QueuesOfKeys
) -> Iterator[WriteRequest]:
    """Yield the requests for *rows*; rows with the same destination keep their order."""
    for topic, table in _by_topic(rows):
        destinations: list[Destination] = []
        if table.schema.names != [ENTRIES]:
            table, destinations = _with_destinations(topic, table, queues_of_keys)
        for destination, mine in _by_destination(table, destinations):
            yield from _requests(topic, destination, mine, limits)


def _by_topic(rows: EncodedRows) -> Iterator[tuple[str, Column]]:
    """Yield the rows of each topic as a record batch of the columns that are set."""
    columns = {name: column for name, column in rows._asdict().items() if column is not None}
    topics = columns.pop("topics")
    table = pa.RecordBatch.from_pydict(columns)
    if isinstance(topics, str):
        yield topics, table
        return
    coded = topics.dictionary_encode()
    if len(coded.dictionary) == 1:
        yield coded.dictionary[0].as_py(), table
        return
    for place, topic in enumerate(coded.dictionary.to_pylist()):
        yield topic, table.filter(pc.equal(coded.indices, place))


def _with_destinations(
    topic: str, table: Column, queues_of_keys: QueuesOfKeys
) -> tuple[Column, list[Destination]]:
    """Return the rows with the index of their destination (null: any), and the destinations."""
    destinations: list[Destination] = []
    places: dict[MessageQueue | None, int] = {}

    def places_of(wanted: Sequence[Destination]) -> Column:
        for destination in wanted:
            if destination.queue not in places:
                places[destination.queue] = len(destinations)
                destinations.append(destination)
        return pa.array([places[destination.queue] for destination in wanted], pa.int32())

    found: list[Column] = []
    names = table.schema.names
    if "brokers" in names:
        ids = table.column("queue_ids").cast(pa.string())
        texts = pc.binary_join_element_wise(table.column("brokers"), ids, "\x01")
        chosen = texts.dictionary_encode()
        pairs = [text.split("\x01") for text in chosen.dictionary.to_pylist()]
        named = [Destination(MessageQueue(topic, broker, int(id_))) for broker, id_ in pairs]
        found.append(pc.take(places_of(named), chosen.indices))
    if "keys" in names:
        keys = table.column("keys").dictionary_encode()
        key_texts = keys.dictionary.to_pylist()
        queues = queues_of_keys(topic, key_texts) if key_texts else []
        by_key = [Destination(queue, key) for queue, key in zip(queues, key_texts, strict=True)]
        found.append(pc.take(places_of(by_key), keys.indices))
    columns = {ENTRIES: table.column(ENTRIES)}
    if found:  # an explicit queue takes precedence over a key
        columns[DESTINATIONS] = pc.coalesce(*found)
    if UNBATCHED in names:
        columns[UNBATCHED] = table.column(UNBATCHED)
    return pa.RecordBatch.from_pydict(columns), destinations


def _by_destination(
    table: Column, destinations: Sequence[Destination]
) -> Iterator[tuple[Destination, Column]]:
    if DESTINATIONS not in table.schema.names:
        yield ANY_QUEUE, table
        return
    column = table.column(DESTINATIONS)
    if column.null_count:
        yield ANY_QUEUE, table.filter(column.is_null())
    for place, destination in enumerate(destinations):
        yield destination, table.filter(pc.equal(column, place))


def _requests(
    topic: str, destination: Destination, table: Column, limits: RequestLimits
) -> Iterator[WriteRequest]:
    entries = table.column(ENTRIES)
    if topic.startswith(RETRY_PREFIX):
        limits = SINGLE
    elif UNBATCHED in table.schema.names:
        unbatched = table.column(UNBATCHED)
        yield from _batches(topic, destination, entries.filter(unbatched), SINGLE)
        entries = entries.filter(pc.invert(unbatched))
    yield from _batches(topic, destination, entries, limits)


def single(topic: str, raw: bytes) -> Encoded:
    """Return the entry as a single message, sent without a batch."""
    entry = read_entry(raw)
    return Encoded(
        topic=topic,
        body=entry.body,
        message_id=entry.message_id,
        properties=entry.properties,
        flag=entry.flag,
        timed=TIMED in entry.properties,
    )


def _batches(
    topic: str, destination: Destination, entries: Column, limits: RequestLimits
) -> Iterator[WriteRequest]:
    """Yield batches as slices of the entries, which are contiguous in memory."""
    count = len(entries)
    if not count:
        return
    ends = offsets_of(entries)
    data = memoryview(entries.buffers()[2])
    first = 0
    while first < count:
        start = ends[first]
        last = bisect_right(ends, start + limits.bytes, first) - 1
        last = max(first + 1, min(last, first + limits.records))
        raw = bytes(data[start : ends[last]])
        if len(raw) > limits.bytes:  # a single row
            yield WriteRequest(single(topic, raw), 1, destination)
        else:
            message_id = read_entry(raw).message_id
            encoded = Encoded(topic=topic, body=raw, message_id=message_id, batch=True)
            yield WriteRequest(encoded, last - first, destination)
        first = last
