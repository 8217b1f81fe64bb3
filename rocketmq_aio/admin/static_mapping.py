"""The mapping of a static topic: which physical queues a logical queue has had, on which brokers.

The last physical queue of a history belongs to the owner, which stores new messages; the earlier
ones keep theirs until they are deleted as old.  Each begins at a logical offset, which is decided
when its predecessor accepts no more messages.  Every broker stores the whole mapping with an epoch,
and rejects one that is older than its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from rocketmq_aio.admin.server_results import LogicalQueue
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.bodies import MAX_QUEUES
from rocketmq_aio.protocol.requests.operations import MappedTopicBody, PhysicalQueue, TopicMapping

READ_WRITE: Final = 6
EPOCH_STEP: Final = 1000  # as the official tool, so that both can change a topic in turn
UNDECIDED: Final = -1
# A moved queue goes on at a multiple of this, at least half of it behind its last offset: the
# previous owner may still store messages of sends that it has accepted.
BLOCK: Final = 10_000

History = tuple[PhysicalQueue, ...]


class StaticMapping:
    """The mapping of the topic *name*, read from the brokers that have it, and changed here.

    After a change that failed midway brokers differ: of each queue the longest history counts.

    :raises CodecError: a broker reports more than `MAX_QUEUES` logical queues
    :ivar total: the number of logical queues, 0 for a new topic
    :ivar histories: physical queues by logical queue, from the first to that of the owner
    """

    def __init__(self, name: str, found: Mapping[str, MappedTopicBody]) -> None:
        mappings = {broker: each.mapping_detail or TopicMapping() for broker, each in found.items()}
        self.total = max((each.total_queues for each in mappings.values()), default=0)
        if self.total > MAX_QUEUES:
            raise CodecError("TopicMapping", 0, f"{self.total} queues, above {MAX_QUEUES}")
        self.histories: dict[int, History] = {}
        newest = max((each.epoch for each in mappings.values()), default=0)
        self._epoch = max(newest + EPOCH_STEP, time.time_ns() // 1_000_000)
        self._name = name
        self._configs = dict(found)
        ranks: dict[int, tuple[int, bool, bool]] = {}
        for broker, mapping in mappings.items():
            for number, history in mapping.hosted_queues.items():
                rank = _rank(broker, history)
                if history and rank > ranks.get(number, (-1, False, False)):
                    ranks[number], self.histories[number] = rank, tuple(history)

    def queues(self) -> list[LogicalQueue]:
        """Return the logical queues with their owners."""
        return [
            LogicalQueue(
                queue_id=number,
                broker_name=history[-1].bname,
                physical_queue=history[-1].queue_id,
                first_offset=history[-1].logic_offset,
                moves=history[-1].gen,
            )
            for number, history in sorted(self.histories.items())
        ]

    def grow(self, total: int, brokers: Collection[str]) -> None:
        """Give the topic *total* queues; new ones go to those of *brokers* with the fewest."""
        self.total = total
        counts = self._counts(brokers)
        for number in sorted(set(range(total)) - self.histories.keys()):
            broker = min(counts, key=lambda name: (counts[name], name))
            counts[broker] += 1
            self.histories[number] = (self._new_queue(broker, gen=0, logic_offset=0),)

    def move(self, brokers: Collection[str]) -> None:
        """Let *brokers* own the queues, as many each as possible, with as few moves as possible."""
        counts = self._counts(brokers)
        most = sorted(counts, key=lambda name: (-counts[name], name))
        each, more = divmod(len(self.histories), len(most))
        room = {name: each + (at < more) for at, name in enumerate(most)}
        moving = []
        for number, history in sorted(self.histories.items()):
            if room.get(owner := history[-1].bname, 0) > 0:
                room[owner] -= 1
            else:
                moving.append(number)
        free = [name for name in most for _ in range(room[name])]
        for number, broker in zip(moving, free, strict=True):
            history = self.histories[number]
            gen = history[-1].gen + 1
            new = self._new_queue(broker, gen=gen, logic_offset=UNDECIDED)
            self.histories[number] = (*history, new)

    def undecided(self) -> list[PhysicalQueue]:
        """Return the previous physical queues of the logical queues that have moved."""
        return [history[-2] for history in self._undecided().values()]

    def decide(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Decide where the moved queues go on.

        :param ends: offset after the last message, by broker and physical queue
        :raises CodecError: *ends* lacks a queue
        """
        for number, (*earlier, before, new) in self._undecided().items():
            end = ends.get((before.bname, before.queue_id))
            if end is None:
                reason = f"{before.bname} reports no offset of its queue {before.queue_id}"
                raise CodecError("TopicStatsTable", 0, reason)
            stored = max(end - before.start_offset, 0)
            blocks = (before.logic_offset + stored + BLOCK // 2) // BLOCK + 1
            decided = replace(new, logic_offset=blocks * BLOCK)
            self.histories[number] = (*earlier, before, decided)

    def owners(self) -> set[str]:
        """Return the brokers that own queues."""
        return {history[-1].bname for history in self.histories.values()}

    def on(self, broker: str) -> tuple[MappedTopicBody, TopicMapping]:
        """Return the settings of the topic and the part of the mapping for *broker*."""
        hosted = {
            number: list(history)
            for number, history in sorted(self.histories.items())
            if any(each.bname == broker for each in history)
        }
        mapping = TopicMapping(
            topic=self._name,
            total_queues=self.total,
            bname=broker,
            epoch=self._epoch,
            hosted_queues=hosted,
        )
        return self._config(broker), mapping

    def _undecided(self) -> dict[int, History]:
        return {
            number: history
            for number, history in self.histories.items()
            if len(history) > 1 and history[-1].logic_offset == UNDECIDED
        }

    def _counts(self, brokers: Collection[str]) -> Counter[str]:
        """Return the number of queues that each of *brokers* owns."""
        counts = Counter(dict.fromkeys(brokers, 0))
        counts.update(o for h in self.histories.values() if (o := h[-1].bname) in counts)
        return counts

    def _new_queue(self, broker: str, *, gen: int, logic_offset: int) -> PhysicalQueue:
        config = self._config(broker)
        number = max(config.read_queue_nums, config.write_queue_nums)
        self._configs[broker] = replace(
            config, read_queue_nums=number + 1, write_queue_nums=number + 1
        )
        return PhysicalQueue(gen=gen, queue_id=number, bname=broker, logic_offset=logic_offset)

    def _config(self, broker: str) -> MappedTopicBody:
        new = MappedTopicBody(
            topic_name=self._name, read_queue_nums=0, write_queue_nums=0, perm=READ_WRITE
        )
        return self._configs.get(broker, new)


def _rank(broker: str, history: list[PhysicalQueue]) -> tuple[int, bool, bool]:
    """Return how far a history got; brokers delete old parts only of what they own."""
    if not history:
        return (-1, False, False)
    last = history[-1]
    return (last.gen, last.logic_offset != UNDECIDED, last.bname == broker)
