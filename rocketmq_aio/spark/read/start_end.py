"""Start and end offsets of reads: the options resolved against the queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TypeVar

import anyio

from rocketmq_aio.errors import ConfigError, RocketMQError, RouteNotFoundError
from rocketmq_aio.spark.offsets import EARLIEST, LATEST, LogMark, Offsets, Queue, Range
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.data_loss import Extent, LossPolicy, find_out_of_range, warn
from rocketmq_aio.spark.read.metadata import Metadata, QueueResults, TopicQueues
from rocketmq_aio.spark.read.queue_index import wait_indexed
from rocketmq_aio.spark.runtime import Runtime

T = TypeVar("T")


class BrokerAwayError(RocketMQError):
    """A broker did not answer, so the offsets of its queues are unknown."""

    def __init__(self, broker: str, cause: RocketMQError) -> None:
        super().__init__(
            f"broker {broker!r} did not answer, so the offsets of its queues are unknown "
            f"(nameServer, fetchOffset.numRetries): {cause}"
        )
        self.broker = broker


class TargetNotReachedError(RocketMQError):
    """A query with the trigger ``availableNow`` cannot read all that was stored at its start.

    :param target: where *queue* ended then; None if its broker was not registered
    """

    def __init__(self, queue: Queue, read: int, target: int | None) -> None:
        topic, broker, queue_id = queue
        end, way_out = f" of {target}, the end at the start of the query", ""
        if target is None:
            end, way_out = "", ". If it does not come back, set failOnDataLoss=false"
        super().__init__(
            f"topic {topic!r}, broker {broker!r}, queue {queue_id} cannot be read now: read up to "
            f"offset {read}{end} (availableNow). Start it again when the broker is back: it "
            f"continues there{way_out}"
        )


def batch_ranges(options: ReadOptions) -> list[Range]:
    """Return the ranges of a batch read; blocks.

    :raises DataLossError: a requested offset does not exist
    :raises ConfigError: offsets are given for topics that are not read
    :raises RocketMQError: the ranges cannot be determined
    """
    runtime = Runtime.get(options.connection)
    metadata = Metadata(runtime.instance, runtime.pull_consumer(), options)
    return runtime.call(resolve_ranges, metadata, options)


async def resolve_ranges(metadata: Metadata, options: ReadOptions) -> list[Range]:
    """See `batch_ranges`."""
    losses = LossPolicy(fail=options.fail_on_data_loss)
    topics = await metadata.topics()
    losses.check_gone(topics.gone)
    check_readable(topics, options)
    if not _ends_fixed(options, topics.queues):
        await wait_indexed(metadata.instance, topics.queues)
    pauses = metadata.retry_pauses()
    while True:
        extents = complete(await metadata.extents(topics.queues))
        start = await start_offsets(metadata, options, topics, extents)
        end = await end_offsets(metadata, options, topics, extents)
        outside = find_out_of_range(start, extents)
        beyond = [each for each in find_out_of_range(end, extents) if each.was_cut]
        cut = any(each.was_cut for each in (*outside, *beyond))
        if not cut or (pause := next(pauses, None)) is None:
            break
        await anyio.sleep(pause)  # a broker that has just started reports a low end for a while
    check_missing(options, extents.keys())
    start |= losses.resume_offsets(outside)
    end |= losses.resume_offsets(beyond)
    last = {queue: end[queue] - 1 for queue in extents if end[queue] > start[queue]}
    times = complete(await metadata.stored_at(last))
    marks = {q: LogMark(last[q], time) for q, time in times.items() if time is not None}
    return [Range(*queue, start[queue], end[queue], marks.get(queue)) for queue in sorted(extents)]


async def start_offsets(
    metadata: Metadata, options: ReadOptions, topics: TopicQueues, extents: Mapping[Queue, Extent]
) -> Offsets:
    """Return the start offset of each queue, and of queues that the options name without a route.

    It may be out of range.
    """
    by_time = options.starting_offsets_by_timestamp
    instants = _instants(options.starting_timestamp, by_time, extents)
    found = complete(await metadata.offsets_at(instants, extents))
    if options.starting_offsets_by_timestamp_strategy == "error":
        by_queue = options.starting_timestamp is None
        option = "startingOffsetsByTimestamp" if by_queue else "startingTimestamp"
        _check_late_enough(option, instants, found, extents)
    named = options.starting_offsets
    check_named("startingOffsetsByTimestamp", by_time, topics)
    check_named("startingOffsets", named if isinstance(named, dict) else {}, topics)
    rest = {queue: extent for queue, extent in extents.items() if queue not in found}
    if named == "group":
        committed = complete(await metadata.committed(rest))
        return found | {q: rest[q].minimum if at is None else at for q, at in committed.items()}
    found |= _resolve(named, rest, EARLIEST)
    if isinstance(named, dict) and options.starting_timestamp is None:
        found |= {q: at for q, at in named.items() if q not in found and at >= 0}
    return found


async def end_offsets(
    metadata: Metadata, options: ReadOptions, topics: TopicQueues, extents: Mapping[Queue, Extent]
) -> Offsets:
    """Return the end offset of each queue, which may be beyond its maximum."""
    by_time = options.ending_offsets_by_timestamp
    named = options.ending_offsets
    check_named("endingOffsetsByTimestamp", by_time, topics)
    check_named("endingOffsets", named if isinstance(named, dict) else {}, topics)
    instants = _instants(options.ending_timestamp, by_time, extents)
    found = complete(await metadata.offsets_at(instants, extents))
    rest = {queue: extent for queue, extent in extents.items() if queue not in found}
    return found | _resolve(named, rest, LATEST)


def _ends_fixed(options: ReadOptions, queues: Iterable[Queue]) -> bool:
    """Return whether the options give an end offset for each of *queues*."""
    ends = options.ending_offsets
    if options.ending_timestamp is not None or options.ending_offsets_by_timestamp:
        return False
    return isinstance(ends, dict) and all(ends.get(each, LATEST) != LATEST for each in queues)


def _instants(
    for_all: int | None, by_queue: Mapping[Queue, int], queues: Iterable[Queue]
) -> dict[Queue, int]:
    if for_all is not None:
        return dict.fromkeys(queues, for_all)
    return {queue: by_queue[queue] for queue in queues if queue in by_queue}


def _resolve(named: str | Offsets, extents: Mapping[Queue, Extent], otherwise: int) -> Offsets:
    if isinstance(named, str):
        otherwise, named = {"earliest": EARLIEST, "latest": LATEST}[named], {}
    offsets = {queue: named.get(queue, otherwise) for queue in extents}
    return {
        queue: {EARLIEST: extents[queue].minimum, LATEST: extents[queue].maximum}.get(at, at)
        for queue, at in offsets.items()
    }


def _check_late_enough(
    option: str, instants: Mapping[Queue, int], found: Offsets, extents: Mapping[Queue, Extent]
) -> None:
    for queue, millis in sorted(instants.items()):
        if found[queue] >= extents[queue].maximum:
            reason = f"no message so late in {'/'.join(map(str, queue))}; choose an earlier time"
            way_out = "or startingOffsetsByTimestampStrategy=latest"
            raise ConfigError(option, millis, f"{reason}, {way_out}")


def check_named(option: str, named: Iterable[Queue], topics: TopicQueues) -> None:
    """Raise `ConfigError` for offsets of topics that are not read: a typo would be ignored."""
    read = {queue[0] for queue in topics.queues} | topics.gone
    for queue in sorted(named):
        if queue[0] not in read:
            raise ConfigError(option, queue[0], "a topic that is not subscribed to: leave it out")


def check_readable(topics: TopicQueues, options: ReadOptions) -> None:
    """Raise `RouteNotFoundError` if a subscribed topic has no queue: are its brokers up?"""
    for topic in sorted(topics.empty):
        if options.subscribe_pattern is None:
            reason = "no queue of it can be read now (subscribe); are its brokers up?"
            raise RouteNotFoundError(topic, reason)


def check_missing(options: ReadOptions, read: Set[Queue]) -> None:
    """Log queues that effective options name and that are not *read*.

    :raises ConfigError: with ``failOnDataLoss``, instead of the log
    """
    start, end = options.starting_offsets, options.ending_offsets
    named: dict[str, Iterable[Queue]] = {"assign": options.assign}
    if options.starting_timestamp is None:
        named["startingOffsets"] = start if isinstance(start, dict) else ()
        named["startingOffsetsByTimestamp"] = options.starting_offsets_by_timestamp
    if options.ending_timestamp is None:
        named["endingOffsets"] = end if isinstance(end, dict) else ()
        named["endingOffsetsByTimestamp"] = options.ending_offsets_by_timestamp
    missing = ((option, each) for option in named for each in sorted(set(named[option]) - read))
    for option, queue in missing:
        name = "/".join(map(str, queue))
        if options.fail_on_data_loss:
            reason = "no route names this queue now, or assign leaves it out"
            way_out = "leave it out here, too, or set failOnDataLoss=false"
            raise ConfigError(option, name, f"{reason}; {way_out}")
        warn("queue_missing", queue=name, option=option)


def complete(results: QueueResults[T]) -> dict[Queue, T]:
    """Return the values of all queues; raise `BrokerAwayError` if a broker is unavailable."""
    for broker, cause in sorted(results.unavailable.items()):
        raise BrokerAwayError(broker, cause) from cause
    return results.values
