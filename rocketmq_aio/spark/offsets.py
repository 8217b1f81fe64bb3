"""Offsets of queues and their JSON form in checkpoints and options; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from rocketmq_aio.errors import ConfigError

Queue = tuple[str, str, int]  # topic, broker name, queue id
Offsets = dict[Queue, int]

VERSION: Final = 1
EARLIEST: Final = -2
LATEST: Final = -1
MAX_QUEUE_ID: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1
MARKER: Final = {"v": VERSION, "at": "start"}  # the start of a stream, before its offsets are known


class LogMark(NamedTuple):
    """A message of a queue and its store time in milliseconds since 1970; identifies the log."""

    offset: int
    stored: int


class Range(NamedTuple):
    """The offsets of one queue from *start* to *end* (excluded).

    :ivar mark: a message that was stored after these offsets, or the last of them, when the
        read was planned; None if unknown
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    mark: LogMark | None = None

    @property
    def queue(self) -> Queue:
        """The queue of the range."""
        return self.topic, self.broker, self.queue_id

    @property
    def size(self) -> int:
        """The number of offsets; there may be fewer messages."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class StreamOffset:
    """Position of a stream.

    :ivar end: the next offset to read, by queue
    :ivar starts: the start offsets of queues that are new in this batch or start over
    :ivar stored: the store time of the last message before *end*, by queue, in milliseconds since
        1970; identifies the log: a topic that is deleted and recreated has other messages
    :ivar since: store time from which queues that are found later are read; None: from the minimum
    :ivar times: the same for single queues that were not found yet
    :ivar group: queues that are found later are read from the committed offset, if it is lower
    :ivar at_start: the start offsets are not known yet
    """

    end: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)
    stored: Offsets = field(default_factory=dict)
    since: int | None = None
    times: Offsets = field(default_factory=dict)
    group: bool = False
    at_start: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value for the checkpoint."""
        if self.at_start:
            return dict(MARKER)
        optional = {
            "from": nested(self.starts),
            "stored": nested(self.stored),
            "since": self.since,
            "times": nested(self.times),
            "group": self.group or None,
        }
        kept = {name: value for name, value in optional.items() if value not in ({}, None)}
        return {"v": VERSION, "end": nested(self.end), **kept}

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """Read the result of `to_json` of this or an older version, else raise `ConfigError`."""
        if not isinstance(value, Mapping) or type(version := value.get("v")) is not int:
            reason = "of another source: give the query a checkpointLocation of its own"
            raise ConfigError("checkpoint", value, reason)
        if version != VERSION:
            reason = f"a checkpoint of version {version}; this package reads {VERSION}"
            raise ConfigError("checkpoint", dict(value), f"{reason}: use the newer package")
        if value.get("at") == MARKER["at"]:
            return cls(at_start=True)
        since = value.get("since")
        return cls(
            end=flattened("checkpoint", value.get("end")),
            starts=flattened("checkpoint", value.get("from", {})),
            stored=flattened("checkpoint", value.get("stored", {})),
            since=since if type(since) is int else None,
            times=flattened("checkpoint", value.get("times", {})),
            group=value.get("group") is True,
        )

    def start_of(self, queue: Queue, before: StreamOffset) -> int | None:
        """Return the start offset of *queue* in the batch from *before* to this position."""
        return self.starts.get(queue, before.end.get(queue))

    def mark_of(self, queue: Queue) -> LogMark | None:
        """Return the last message of *queue* before this position, if its store time is known."""
        stored = self.stored.get(queue)
        return None if stored is None else LogMark(self.end[queue] - 1, stored)


def shares(sizes: Iterable[int], limit: int) -> list[int]:
    """Split *limit*, or less if the sizes are less, in proportion to *sizes*; the sum is exact."""
    sums = [0, *accumulate(sizes)]
    shared, whole = min(limit, sums[-1]), max(1, sums[-1])
    bounds = ((2 * at * shared + whole) // (2 * whole) for at in sums)  # rounded to the nearest
    return [end - start for start, end in pairwise(bounds)]


def nested(offsets: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return ``{topic: {broker: {queue id: offset}}}``, sorted."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(offsets.items()):
        tree.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return tree


def flattened(option: str, value: object, least: int = 0) -> Offsets:
    """Return the offsets of the nested form; a `ConfigError` names *option*."""
    return {
        (topic, broker, _queue_id(option, queue_id)): _number(option, offset, least)
        for topic, brokers in items_of(option, value)
        for broker, queues in items_of(option, brokers)
        for queue_id, offset in items_of(option, queues)
    }


def items_of(
    option: str, value: object, form: str = 'expected {"topic":{"broker-a":{"0":120}}}'
) -> list[tuple[str, Any]]:
    """Return the items of a mapping; a `ConfigError` names *option* and *form*."""
    if not isinstance(value, Mapping):
        raise ConfigError(option, value, form)
    return list(value.items())


def _queue_id(option: str, text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_QUEUE_ID))
    if not is_number or int(text) > MAX_QUEUE_ID:
        raise ConfigError(option, text, f"a queue id is a whole number from 0 to {MAX_QUEUE_ID}")
    return int(text)


def _number(option: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_OFFSET:
        raise ConfigError(option, value, f"expected a whole number from {least} to {MAX_OFFSET}")
    return value
