"""Data loss: an error with ``failOnDataLoss=true``, else one warning for each queue."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Set
from typing import Final, NamedTuple

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.spark.offsets import Offsets, Queue

logger = get_logger(__name__)

WAY_OUT: Final = "set failOnDataLoss=false to skip them"
LOG_REPLACED: Final = (
    "the log was replaced (topic deleted and created again, or a new master without the last "
    "messages), messages may be lost"
)


class DataLossError(RocketMQError):
    """Messages are lost, or may be; ``failOnDataLoss=false`` skips them."""

    def __init__(self, queue: Queue, wanted: int, extent: Extent, reason: str) -> None:
        topic, broker, queue_id = queue
        super().__init__(
            f"{reason}: topic {topic!r}, broker {broker!r}, queue {queue_id}: wanted offset "
            f"{wanted}, the queue has {extent.minimum} to {extent.maximum}; {WAY_OUT}"
        )
        self.queue = queue
        self.wanted = wanted
        self.extent = extent


class TopicGoneError(RocketMQError):
    """No name server knows the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} is unknown to every name server (subscribe): create it, or set "
            "failOnDataLoss=false to skip it"
        )
        self.topic = topic


class Extent(NamedTuple):
    """The offsets that a queue holds: from *minimum* to *maximum*, which is excluded."""

    minimum: int
    maximum: int


class OffsetOutOfRange(NamedTuple):
    """A position that its queue does not hold, and the offset at which reading resumes.

    :ivar unread: messages of the old log that were stored and not read
    :ivar replaced: the position belongs to an earlier log of the queue
    """

    queue: Queue
    wanted: int
    extent: Extent
    resume_at: int
    unread: int = 0
    replaced: bool = False

    @property
    def was_cut(self) -> bool:
        """The queue ends below the position: its log was truncated or the topic recreated."""
        return self.wanted > self.extent.maximum

    @property
    def skipped(self) -> int:
        """The number of messages that are known to be lost."""
        return max(0, self.unread, self.resume_at - self.wanted)

    @property
    def reason(self) -> str:
        """The reason in errors and logs."""
        if self.replaced:
            return LOG_REPLACED
        return "messages may be lost" if self.was_cut else "messages are lost"


def find_out_of_range(
    positions: Mapping[Queue, int], extents: Mapping[Queue, Extent]
) -> list[OffsetOutOfRange]:
    """Return the positions outside of *extents*; queues without an extent are ignored."""
    outside = []
    for queue, wanted in sorted(positions.items()):
        extent = extents.get(queue, Extent(wanted, wanted))
        resume_at = min(max(wanted, extent.minimum), extent.maximum)
        if resume_at != wanted:
            outside.append(OffsetOutOfRange(queue, wanted, extent, resume_at))
    return outside


class LossPolicy:
    """Raises (*fail*, from ``failOnDataLoss``) or logs data loss found by the driver."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._warn_once = WarnOnce()

    def resume_offsets(self, found: Iterable[OffsetOutOfRange]) -> Offsets:
        """Return where the queues resume; raise `DataLossError` if losses are errors."""
        resume_at = {}
        for each in found:
            if self._fail:
                raise DataLossError(each.queue, each.wanted, each.extent, each.reason)
            resume_at[each.queue] = at = each.resume_at
            values = loss_values(each.queue, each.wanted, each.skipped, each.extent, each.reason)
            self._warn_once.warn("data_loss", each.queue, each.wanted, resumes_at=at, **values)
        return resume_at

    def check_gone(self, gone: Set[str]) -> None:
        """Log the topics *gone*, or raise `TopicGoneError` if losses are errors."""
        self._warn_once.retain("topic_gone", gone)
        for topic in sorted(gone):
            if self._fail:
                raise TopicGoneError(topic)
            self._warn_once.warn("topic_gone", topic, topic=topic)


def loss_values(
    queue: Queue, wanted: int, skipped: int, extent: Extent, reason: str
) -> dict[str, object]:
    """Return the values of the log event ``data_loss``."""
    place = dict(zip(("topic", "broker", "queue"), queue, strict=True))
    return {**place, "wanted": wanted, "skipped": skipped, **extent._asdict(), "reason": reason}


class WarnOnce:
    """Logs each warning once: an idle stream repeats its checks a hundred times a second."""

    def __init__(self) -> None:
        self._warned: dict[str, dict[Hashable, Hashable]] = {}  # states by event and subject

    def warn(self, event: str, about: Hashable, state: Hashable = None, **values: object) -> None:
        """Log *event* unless the last one logged for *about* had the same *state*."""
        warned = self._warned.setdefault(event, {})
        if about not in warned or warned[about] != state:
            warned[about] = state
            warn(event, **values)

    def retain(self, event: str, present: Set[Hashable]) -> None:
        """Keep only what is *present*: anything else is logged again when it returns."""
        warned = self._warned.get(event, {})
        for about in warned.keys() - present:
            del warned[about]


def warn(event: str, **values: object) -> None:
    """Log a warning; to stderr, which Spark keeps, if no log handler is configured."""
    package = logging.getLogger("rocketmq_aio")
    silent = all(isinstance(each, logging.NullHandler) for each in package.handlers)
    if silent and not logging.getLogger().handlers:
        package.addHandler(logging.StreamHandler())
    logger.warning(event, **values)
