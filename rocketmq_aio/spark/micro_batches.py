"""Where the micro-batches of a stream end: the driver's state between them, and its questions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import anyio

from rocketmq_aio.consumer.offsets import RemoteOffsetStore
from rocketmq_aio.errors import CommitError, ConfigError
from rocketmq_aio.message import MessageQueue
from rocketmq_aio.spark.limits import backlog, share_out
from rocketmq_aio.spark.lookup import Lookup, Topics, selects
from rocketmq_aio.spark.loss import Extent, Told, findings, settle
from rocketmq_aio.spark.offsets import Offsets, Queue, StreamOffset
from rocketmq_aio.spark.options import ReadOptions
from rocketmq_aio.spark.positions import check_gone, check_readable, complete, starts

ROUTES_SECONDS: Final = 1.0  # an idle stream asks for its end a hundred times a second


class MicroBatches:
    """Decides how far each micro-batch goes.

    :ivar latest: where the queues ended when they were last looked at; None before the first look
    """

    def __init__(self, lookup: Lookup, options: ReadOptions, store: RemoteOffsetStore) -> None:
        self.latest: StreamOffset | None = None
        self._lookup = lookup
        self._options = options
        self._store = store
        self._told = Told()
        self._target: Offsets | None = None
        self._topics: tuple[float, Topics] | None = None
        self._last_batch = time.monotonic()
        self._alone = not options.commit_offsets  # whether nobody else moves the group's offsets

    async def fix_target(self) -> None:
        """Let the stream end where the queues end now, whatever comes later."""
        topics = await self._lookup.topics()
        check_gone(topics.gone, fail=self._options.fail_on_data_loss, told=self._told)
        extents = complete(await self._lookup.extents(topics.queues))
        self._target = {queue: extent.maximum for queue, extent in extents.items()}

    async def end_after(
        self, start: StreamOffset, most: int | None, *, everything: bool = False
    ) -> StreamOffset:
        """Return where the batch that begins at *start* ends; *start* itself when there is none.

        :param most: offsets to read, all that there are if None
        :param everything: do not wait for ``minOffsetsPerTrigger``
        :raises DataLossError: a position does not exist any more
        :raises RocketMQError: it is not known where the stream begins
        """
        topics = await self._current_topics(start)
        await self._check_alone(topics)
        await self.publish(start)
        answers = await self._lookup.extents(topics.queues, start.end)
        if start.at_start:
            check_readable(topics, self._options)
            extents = complete(answers)
            begun = await self._begin(topics, extents)
            positions = dict(begun)
        else:
            extents = answers.of
            moved = await self._moved(start, extents)
            self._tell_missing(start, extents)
            begun = self._new_queues(start, extents)
            positions = {**start.end, **moved, **begun}
        self.latest = StreamOffset(end=positions | {q: e.maximum for q, e in extents.items()})
        waiting = backlog(positions, self._ends(extents))
        if self._waits_for_more(sum(waiting.values()), everything=everything):
            return StreamOffset(end=begun, begun=begun) if start.at_start else start
        taken = waiting if most is None else share_out(waiting, most)
        end = positions | {queue: positions[queue] + count for queue, count in taken.items()}
        if end == start.end and not start.at_start:
            return start
        self._last_batch = time.monotonic()
        return StreamOffset(end=end, begun=begun)

    async def publish(self, reached: StreamOffset) -> None:
        """Commit what is read surely; a failure is logged, for only observers look at it."""
        if not self._options.commit_offsets:
            return
        read = {MessageQueue(*q): at for q, at in reached.end.items() if selects(self._options, q)}
        if not read:
            return
        for queue, offset in read.items():
            await self._store.update(queue, offset)
        try:
            await self._store.persist(list(read))
        except CommitError as error:
            self._told.warn("offsets_not_published", None, reason=str(error))
        else:
            self._told.only("offsets_not_published", frozenset())

    async def _current_topics(self, start: StreamOffset) -> Topics:
        now = time.monotonic()
        if self._topics is not None and now - self._topics[0] < ROUTES_SECONDS:
            return self._topics[1]
        topics = await self._lookup.topics(start.end)
        check_gone(topics.gone, fail=self._options.fail_on_data_loss, told=self._told)
        self._topics = (now, topics)
        return topics

    async def _check_alone(self, topics: Topics) -> None:
        """Refuse to move the offsets of a group that others consume with.

        :raises ConfigError: it has live members
        """
        if self._alone:
            return
        members = await self._lookup.members({topic for topic, _, _ in topics.queues})
        if members:
            group = self._options.connection.group
            names = ", ".join(sorted(members)[:3])
            reason = f"group {group!r} has live members ({names}), whose position it would move"
            raise ConfigError("commitOffsets", True, f"{reason}: use a group of its own")
        self._alone = True

    async def _begin(self, topics: Topics, extents: Mapping[Queue, Extent]) -> Offsets:
        """Return where the stream begins, which never changes once it is written down."""
        wanted = await starts(self._lookup, self._options, topics, extents)
        fail = self._options.fail_on_data_loss
        begun = wanted | settle(findings(wanted, extents), fail=fail, told=self._told)
        if self._target is None:
            return begun
        # A queue that appeared since is left to the next run, which reads it from its beginning.
        known = self._target.keys() | self._named()
        return {q: min(at, self._target.get(q, at)) for q, at in begun.items() if q in known}

    def _named(self) -> set[Queue]:
        """Return the queues for which options name a start."""
        named, by_time = self._options.starting_offsets, self._options.starting_offsets_by_timestamp
        return {*(named if isinstance(named, dict) else ()), *by_time}

    def _new_queues(self, start: StreamOffset, extents: Mapping[Queue, Extent]) -> Offsets:
        """Return where those begin that appeared since: nothing of them was read before."""
        return {
            queue: extent.minimum
            for queue, extent in extents.items()
            if queue not in start.end and (self._target is None or queue in self._target)
        }

    async def _moved(self, start: StreamOffset, extents: dict[Queue, Extent]) -> Offsets:
        """Return the positions that do not exist any more, as they are to be corrected."""
        for pause in self._lookup.pauses():
            # A broker that has just started counts up to its end only after a while, and one
            # whose topic was deleted says that it is empty.
            cut = [each.queue for each in findings(start.end, extents) if each.was_cut]
            if not cut:
                break
            await anyio.sleep(pause)
            self._topics = None
            known = (await self._current_topics(start)).queues
            for queue in cut:
                del extents[queue]
            extents.update((await self._lookup.extents(known.intersection(cut))).of)
        fail = self._options.fail_on_data_loss
        return settle(findings(start.end, extents), fail=fail, told=self._told)

    def _tell_missing(self, start: StreamOffset, extents: Mapping[Queue, Extent]) -> None:
        absent = start.end.keys() - extents.keys()
        missing = {queue for queue in absent if selects(self._options, queue)}
        for topic in sorted({queue[0] for queue in absent - missing}):
            self._told.warn("topic_not_subscribed", topic, topic=topic)
        self._told.only("queue_missing", missing)
        for queue in sorted(missing):
            topic, broker, queue_id = queue
            at = start.end[queue]
            self._told.warn(
                "queue_missing", queue, topic=topic, broker=broker, queue=queue_id, stays_at=at
            )

    def _ends(self, extents: Mapping[Queue, Extent]) -> Offsets:
        if self._target is None:
            return {queue: extent.maximum for queue, extent in extents.items()}
        known = self._target.keys() & extents.keys()
        return {queue: min(self._target[queue], extents[queue].maximum) for queue in known}

    def _waits_for_more(self, waiting: int, *, everything: bool) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or everything or self._target is not None or waiting >= least:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay
