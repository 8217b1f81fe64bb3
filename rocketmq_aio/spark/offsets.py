"""Offsets of queues and their JSON form in checkpoints and options; no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rocketmq_aio.errors import ConfigError

Queue = tuple[str, str, int]  # topic, broker name, queue id
Offsets = dict[Queue, int]

VERSION: Final = 1
EARLIEST: Final = -2
LATEST: Final = -1
MARKER: Final = {"v": VERSION, "at": "start"}  # the start of a stream, before its offsets are known


class Range(NamedTuple):
    """The offsets of one queue from *start* to *end* (excluded)."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int

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
    :ivar at_start: the start offsets are not known yet
    """

    end: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)
    stored: Offsets = field(default_factory=dict)
    at_start: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value for the checkpoint."""
        if self.at_start:
            return dict(MARKER)
        starts = {"from": nested(self.starts)} if self.starts else {}
        stored = {"stored": nested(self.stored)} if self.stored else {}
        return {"v": VERSION, "end": nested(self.end), **starts, **stored}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Read the result of `to_json` of this or an older version, else raise `ConfigError`."""
        if value.get("v") != VERSION:
            reason = f"a checkpoint of version {value.get('v')!r}; this package reads {VERSION}"
            raise ConfigError("checkpoint", dict(value), f"{reason}: use the newer package")
        if value.get("at") == MARKER["at"]:
            return cls(at_start=True)
        return cls(
            end=flattened("checkpoint", value.get("end")),
            starts=flattened("checkpoint", value.get("from", {})),
            stored=flattened("checkpoint", value.get("stored", {})),
        )

    def start_of(self, queue: Queue, before: StreamOffset) -> int | None:
        """Return the start offset of *queue* in the batch from *before* to this position."""
        return self.starts.get(queue, before.end.get(queue))


def nested(offsets: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return ``{topic: {broker: {queue id: offset}}}``, sorted."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(offsets.items()):
        found.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return found


def flattened(option: str, value: object, least: int = 0) -> Offsets:
    """Return the offsets of the nested form; a `ConfigError` names *option*."""
    found: Offsets = {}
    for topic, brokers in _items(option, value):
        for broker, queues in _items(option, brokers):
            for queue_id, offset in _items(option, queues):
                found[topic, broker, _queue_id(option, queue_id)] = _number(option, offset, least)
    return found


def _items(option: str, value: object) -> Iterator[tuple[str, object]]:
    if not isinstance(value, Mapping):
        raise ConfigError(option, value, 'expected {"topic":{"broker-a":{"0":120}}}')
    yield from value.items()


def _queue_id(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(option, text, "a queue id is a whole number, 0 or more")
    return int(text)


def _number(option: str, value: object, least: int) -> int:
    if type(value) is not int or value < least:
        raise ConfigError(option, value, f"expected a whole number, {least} or more")
    return value
