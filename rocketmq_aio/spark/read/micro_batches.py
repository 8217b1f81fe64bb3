"""Micro-batches of a stream: decides on the driver at which offsets each one ends."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import anyio

from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore
from rocketmq_aio.errors import CommitError, ConfigError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.spark.offsets import LATEST, Offsets, Queue, StreamOffset, shares
from rocketmq_aio.spark.options.source_options import ReadOptions
from rocketmq_aio.spark.read.data_loss import (
    Extent,
    LossPolicy,
    OffsetOutOfRange,
    WarnOnce,
    find_out_of_range,
)
from rocketmq_aio.spark.read.metadata import Metadata, TopicQueues, registered_brokers, selects
from rocketmq_aio.spark.read.queue_index import wait_indexed
from rocketmq_aio.spark.read.start_end import (
    TargetNotReachedError,
    check_readable,
    complete,
    start_offsets,
)

ROUTES_SECONDS: Final = 1.0  # an idle stream calls `end_after` a hundred times a second
# Store times are of the brokers' clocks: a start by this one must not skip newer messages.
CLOCKS_DIFFER_SECONDS: Final = 600


class MicroBatches:
    """Decides where each micro-batch ends.

    :ivar latest: the ends of the queues at the last call; None before the first one
    """

    def __init__(self, metadata: Metadata, options: ReadOptions, store: RemoteOffsetStore) -> None:
        self.latest: StreamOffset | None = None
        self._metadata = metadata
        self._options = options
        self._store = store
        self._losses = LossPolicy(fail=options.fail_on_data_loss)
        self._warn_once = WarnOnce()
        self._target: Offsets | None = None
        self._topics: tuple[float, TopicQueues] | None = None
        self._last_batch = time.monotonic()
        self._group_is_unused = not options.commit_offsets  # False: its members are checked

    def reconnect(self, fresh: MicroBatches) -> None:
        """Use the client of *fresh* and keep the state of the query."""
        self._metadata = fresh._metadata
        self._store = fresh._store

    async def fix_target(self) -> None:
        """Let the stream end where the queues end now."""
        topics = await self._metadata.topics()  # `end_after` finds deleted ones: it has the offsets
        await wait_indexed(self._metadata.instance, topics.queues)
        extents = complete(await self._metadata.extents(topics.queues))
        self._target = _maxima(extents)

    async def start(self) -> tuple[StreamOffset, Offsets]:
        """Return where the stream starts and where its queues end now.

        :raises RocketMQError: the start of the stream cannot be determined
        """
        start = self._before_start()
        topics = await self._current_topics(start)
        await wait_indexed(self._metadata.instance, topics.queues)
        extents = complete(await self._metadata.extents(topics.queues))
        end = await self._start_offsets(start, topics, extents)
        times = {queue: instant for queue, instant in start.times.items() if queue not in end}
        first = replace(start, at_start=False, end=end, times=times)
        return first, end | _maxima(extents)

    async def end_after(
        self, start: StreamOffset, most: int | None, *, everything: bool = False
    ) -> StreamOffset:
        """Return the end of the batch that starts at *start*; *start* itself if it is empty.

        :param most: maximum number of offsets; None reads all
        :param everything: do not wait for ``minOffsetsPerTrigger``
        :raises DataLossError: a position does not exist any more
        :raises TargetNotReachedError: queues below their target, or of a broker that is not
            registered, cannot be read, and the others are read
        :raises RocketMQError: the start of the stream cannot be determined
        """
        for pause in self._metadata.retry_pauses():
            try:
                return await self._end_after(start, most, everything=everything)
            except TargetNotReachedError:
                await anyio.sleep(pause)
                self._topics = None
        return await self._end_after(start, most, everything=everything)

    async def _end_after(
        self, start: StreamOffset, most: int | None, *, everything: bool
    ) -> StreamOffset:
        if start.at_start:
            start = self._before_start()
        topics = await self._current_topics(start)
        await self._check_group_unused(topics)
        await self.publish(start)
        results = await self._metadata.extents(topics.queues, start.end)
        self._extend_target(start, results.values)
        if start.at_start:
            extents = complete(results)
            starts = await self._start_offsets(start, topics, extents)
            positions = dict(starts)
            self._warn_missing({**dict.fromkeys(self._named()), **starts}, extents)
        else:
            extents = results.values
            moved = await self._corrected(start, extents)
            self._warn_missing(start.end, extents)
            starts = await self._new_queues(start, extents)
            starts |= {queue: at for queue, at in moved.items() if at < start.end[queue]}
            positions = {**start.end, **moved, **starts}
        seen, self.latest = self.latest, StreamOffset(end=positions | _maxima(extents))
        waiting = backlog(positions, self._ends(extents))
        if self._is_below_minimum(sum(waiting.values()), everything=everything):
            return (
                await self._batch_end(start, starts, starts, extents) if start.at_start else start
            )
        replaced = await self._replaced(start, waiting, extents, seen)
        starts |= replaced
        positions |= replaced
        waiting = backlog(positions, self._ends(extents))
        taken = waiting if most is None else split_limit(waiting, most)
        end = positions | {queue: positions[queue] + count for queue, count in taken.items()}
        if end == start.end and not starts and not start.at_start:
            await self._check_target(end, topics, extents)
            return start
        self._last_batch = time.monotonic()
        return await self._batch_end(start, end, starts, extents)

    async def publish(self, reached: StreamOffset) -> None:
        """Commit *reached* for the group; failures are logged: only monitoring uses them."""
        if not self._options.commit_offsets or not self._group_is_unused:
            return
        read = {MessageQueue(*q): at for q, at in reached.end.items() if selects(self._options, q)}
        if not read:
            return
        for queue, offset in read.items():
            await self._store.update(queue, offset)
        try:
            await self._store.persist(list(read))
        except CommitError as error:
            self._warn_once.warn("offsets_not_published", None, reason=str(error))
        else:
            self._warn_once.retain("offsets_not_published", frozenset())

    async def _current_topics(self, start: StreamOffset) -> TopicQueues:
        now = time.monotonic()
        if self._topics is not None and now - self._topics[0] < ROUTES_SECONDS:
            return self._topics[1]
        topics = await self._metadata.topics(start.end)
        self._losses.check_gone(topics.gone)
        self._topics = (now, topics)
        return topics

    async def _check_group_unused(self, topics: TopicQueues) -> None:
        """Raise `ConfigError` for ``commitOffsets`` if live members of the group would be moved."""
        if self._group_is_unused:
            return
        members = await self._metadata.group_members({queue[0] for queue in topics.queues})
        if members:
            group, names = self._options.connection.group, ", ".join(sorted(members)[:3])
            reason = f"group {group!r} has live members ({names}), whose position it would move"
            raise ConfigError("commitOffsets", True, f"{reason}: use another group")
        self._group_is_unused = members is not None

    async def _start_offsets(
        self, start: StreamOffset, topics: TopicQueues, extents: dict[Queue, Extent]
    ) -> Offsets:
        """Return the start offsets of the stream, which never change once they are checkpointed.

        Queues that cannot be searched now are removed from *extents*.
        """
        check_readable(topics, self._options)
        wanted = await start_offsets(self._metadata, self._options, topics, extents)
        if self._options.later_starts is not None:
            given = {queue: at for queue, at in wanted.items() if queue in self._named()}
            wanted = given | await self._new_queues(replace(start, end=given), extents)
        starts = wanted | self._losses.resume_offsets(find_out_of_range(wanted, extents))
        if self._target is None:
            return starts
        # The next run reads a queue that was added since from its beginning.
        known = self._target.keys() | self._named()
        return {q: min(at, self._target.get(q, at)) for q, at in starts.items() if q in known}

    def _before_start(self) -> StreamOffset:
        """Return the start of the stream with the rules for queues that are found later."""
        options = self._options
        if options.starting_timestamp is not None:
            return StreamOffset(at_start=True, since=options.starting_timestamp)
        now, named = round((time.time() - CLOCKS_DIFFER_SECONDS) * 1000), options.starting_offsets
        explicit = named.items() if isinstance(named, dict) else ()
        times = {queue: now for queue, at in explicit if at == LATEST}
        since, group = now if named in ("latest", "group") else None, named == "group"
        if (later := options.later_starts) is not None:
            since, group, times = later.since, later.group, later.times | times
        times |= options.starting_offsets_by_timestamp
        return StreamOffset(at_start=True, since=since, times=times, group=group)

    def _named(self) -> set[Queue]:
        """Return the queues whose start the options give."""
        named, by_time = self._options.starting_offsets, self._options.starting_offsets_by_timestamp
        return {*(named if isinstance(named, dict) else ()), *by_time}

    async def _new_queues(self, start: StreamOffset, extents: dict[Queue, Extent]) -> Offsets:
        """Return the start offsets of queues that were added since.

        Queues that cannot be searched now are removed from *extents*.
        """
        new = [
            queue
            for queue in extents.keys() - start.end.keys()
            if self._target is None or queue in self._target
        ]
        # Their broker may have been away at the start, and have older messages.
        times = {queue: start.times.get(queue, start.since) for queue in new}
        instants = {queue: instant for queue, instant in times.items() if instant is not None}
        found = (await self._metadata.offsets_at(instants, extents)).values
        starts = found | {queue: extents[queue].minimum for queue in new if queue not in instants}
        if start.group:
            starts = await self._committed_or_older(starts, start.times.keys(), extents)
        for queue in set(new) - starts.keys():
            del extents[queue]
        return starts

    async def _committed_or_older(
        self, starts: Offsets, given: Collection[Queue], extents: Mapping[Queue, Extent]
    ) -> Offsets:
        """Move *starts* back to the committed offsets, except of *given* queues.

        All that was stored since the start of the stream is read, even if the group has moved on.
        """
        committed = (await self._metadata.committed(starts.keys() - given)).values
        moved = {
            queue: min(starts[queue], extents[queue].minimum if at is None else at)
            for queue, at in committed.items()
        }
        moved |= self._losses.resume_offsets(find_out_of_range(moved, extents))
        return {queue: at for queue, at in starts.items() if queue in given} | moved

    async def _corrected(self, start: StreamOffset, extents: dict[Queue, Extent]) -> Offsets:
        """Return the resume offsets of positions that do not exist any more."""
        for pause in self._metadata.retry_pauses():
            # A starting broker reports a low end for a while, and one whose topic was deleted
            # reports an empty queue.
            cut = [each.queue for each in find_out_of_range(start.end, extents) if each.was_cut]
            if not cut:
                break
            await anyio.sleep(pause)
            self._topics = None
            known = (await self._current_topics(start)).queues
            for queue in cut:
                del extents[queue]
            extents.update((await self._metadata.extents(known.intersection(cut))).values)
        found = find_out_of_range(start.end, extents)
        cut = [each.queue for each in found if each.was_cut and each.queue in start.stored]
        restarts = await self._restarts(start, cut, extents, self.latest)
        kept = [each for each in found if each.queue in extents and each.queue not in cut]
        return self._losses.resume_offsets([*kept, *restarts])

    async def _replaced(
        self,
        start: StreamOffset,
        waiting: Mapping[Queue, int],
        extents: dict[Queue, Extent],
        seen: StreamOffset | None,
    ) -> Offsets:
        """Return the resume offsets of queues whose log was replaced since *start*.

        Queues that cannot be compared now are removed from *extents*: this batch skips them.
        """
        last = {q: start.end[q] - 1 for q in waiting if q in start.stored}
        times = (await self._metadata.stored_at(last)).values
        for queue in last.keys() - times.keys():
            del extents[queue]
        # None: retention or compaction removed the message; the log may be the same.
        changed = [q for q, time in times.items() if time not in (None, start.stored[q])]
        restarts = await self._restarts(start, changed, extents, seen)
        return self._losses.resume_offsets(restarts)

    async def _restarts(
        self,
        start: StreamOffset,
        queues: Collection[Queue],
        extents: dict[Queue, Extent],
        seen: StreamOffset | None,
    ) -> list[OffsetOutOfRange]:
        """Return where to resume in changed logs: after the last message that was read.

        Queues that cannot be searched now are removed from *extents*.

        :param seen: the ends at the previous call, if any
        """
        instants = {queue: start.stored[queue] + 1 for queue in queues}
        resume_at = (await self._metadata.offsets_at(instants, extents)).values
        for queue in instants.keys() - resume_at.keys():
            del extents[queue]
        ends = seen.end if seen is not None else {}
        restarts = []
        for queue, at in sorted(resume_at.items()):
            wanted, extent = start.end[queue], extents[queue]
            unread = ends.get(queue, wanted) - wanted
            replaced = wanted <= extent.maximum or at == extent.minimum
            restarts.append(OffsetOutOfRange(queue, wanted, extent, at, unread, replaced))
        return restarts

    async def _batch_end(
        self, start: StreamOffset, end: Offsets, starts: Offsets, extents: Mapping[Queue, Extent]
    ) -> StreamOffset:
        """Return the end of a batch with the store times that identify its logs."""
        same = {q for q, at in end.items() if start.end.get(q) == at and q not in starts}
        last = {
            queue: at - 1
            for queue, at in end.items()
            if queue not in same and queue in extents and at > extents[queue].minimum
        }
        found = (await self._metadata.stored_at(last)).values
        stored = {queue: time for queue, time in start.stored.items() if queue in same}
        stored |= {queue: time for queue, time in found.items() if time is not None}
        times = {queue: instant for queue, instant in start.times.items() if queue not in end}
        return replace(start, at_start=False, end=end, starts=starts, stored=stored, times=times)

    def _warn_missing(
        self, held: Mapping[Queue, int | None], extents: Mapping[Queue, Extent]
    ) -> None:
        absent = {*held, *self._options.assign} - extents.keys()
        missing = {queue for queue in absent if selects(self._options, queue)}
        for topic in sorted({queue[0] for queue in absent - missing}):
            self._warn_once.warn("topic_not_subscribed", topic, topic=topic)
        self._warn_once.retain("queue_missing", missing)
        for queue in sorted(missing):
            place = dict(zip(("topic", "broker", "queue"), queue, strict=True))
            self._warn_once.warn("queue_missing", queue, stays_at=held.get(queue), **place)

    def _ends(self, extents: Mapping[Queue, Extent]) -> Offsets:
        ends = _maxima(extents)
        if self._target is None:
            return ends
        return {queue: min(at, ends[queue]) for queue, at in self._target.items() if queue in ends}

    def _extend_target(self, start: StreamOffset, extents: Mapping[Queue, Extent]) -> None:
        """Include held queues whose broker was unavailable when the target was fixed."""
        if self._target is not None:
            for queue in self._held(start.end) & extents.keys():
                self._target.setdefault(queue, extents[queue].maximum)

    async def _check_target(
        self, reached: Offsets, topics: TopicQueues, extents: Mapping[Queue, Extent]
    ) -> None:
        """Raise `TargetNotReachedError`: Spark ends the query after an empty batch."""
        if self._target is None:
            return
        missing = (self._target.keys() | self._held(reached)) - extents.keys()
        missing = {queue for queue in missing if queue[0] not in topics.gone}
        short = {q for q in missing & self._target.keys() if reached.get(q, 0) < self._target[q]}
        if self._options.fail_on_data_loss and (unknown := missing - self._target.keys()):
            registered = await registered_brokers(self._metadata.instance)
            # A queue of a registered broker was removed from its topic.
            short |= {queue for queue in unknown if queue[1] not in registered}
        for queue in sorted(short):
            raise TargetNotReachedError(queue, reached.get(queue, 0), self._target.get(queue))

    def _held(self, reached: Offsets) -> set[Queue]:
        """Return the selected queues that the checkpoint or the options name."""
        return {q for q in {*reached, *self._options.assign} if selects(self._options, q)}

    def _is_below_minimum(self, waiting: int, *, everything: bool) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or everything or self._target is not None or waiting >= least:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay


def _maxima(extents: Mapping[Queue, Extent]) -> Offsets:
    return {queue: extent.maximum for queue, extent in extents.items()}


def backlog(start: Mapping[Queue, int], latest: Mapping[Queue, int]) -> Offsets:
    """Return the number of unread offsets by queue, without empty queues."""
    return {
        queue: latest[queue] - offset
        for queue, offset in start.items()
        if latest.get(queue, offset) > offset
    }


def split_limit(waiting: Mapping[Queue, int], most: int) -> Offsets:
    """Split *most* over the queues in proportion to *waiting*; each gets at least one offset."""
    extra = shares([size - 1 for size in waiting.values()], max(0, most - len(waiting)))
    return {queue: 1 + more for queue, more in zip(waiting, extra, strict=True)}
