"""Messages that a read should return and that are not there any more: an error, or a warning."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Set
from typing import Final, NamedTuple

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.spark.offsets import Offsets, Queue

logger = get_logger(__name__)

WAY_OUT: Final = "set failOnDataLoss=false to go on without them"


class DataLossError(RocketMQError):
    """Messages are gone, or may be; reading goes on only with ``failOnDataLoss=false``."""

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
            "failOnDataLoss=false to go on without it"
        )
        self.topic = topic


class Extent(NamedTuple):
    """What a queue holds: offsets from *minimum* up to, but without, *maximum*."""

    minimum: int
    maximum: int


class OffsetOutOfRange(NamedTuple):
    """A queue whose position does not exist any more, and where reading goes on instead.

    :ivar unread: messages of the old log that were seen and not read
    :ivar replaced: the position belongs to another log than the queue has now
    """

    queue: Queue
    wanted: int
    extent: Extent
    resume_at: int
    unread: int = 0
    replaced: bool = False

    @property
    def was_cut(self) -> bool:
        """The queue ends below the position: its log was cut, or the topic was made anew."""
        return self.wanted > self.extent.maximum

    @property
    def skipped(self) -> int:
        """How many messages are known to be lost."""
        return max(0, self.unread, self.resume_at - self.wanted)

    @property
    def reason(self) -> str:
        """What happened, for errors and logs."""
        if self.replaced:
            return "the log was replaced (topic deleted and created again), messages may be lost"
        return "messages may be lost" if self.was_cut else "messages are lost"

    def error(self) -> DataLossError:
        """Return what to raise with ``failOnDataLoss=true``."""
        return DataLossError(self.queue, self.wanted, self.extent, self.reason)


def find_out_of_range(
    positions: Mapping[Queue, int], extents: Mapping[Queue, Extent]
) -> list[OffsetOutOfRange]:
    """Return the queues whose position is outside of what they hold; unknown ones are left out."""
    found = []
    for queue, wanted in sorted(positions.items()):
        extent = extents.get(queue)
        if extent is not None and (resume_at := clamp(wanted, extent)) != wanted:
            found.append(OffsetOutOfRange(queue, wanted, extent, resume_at))
    return found


def clamp(offset: int, extent: Extent) -> int:
    """Return the nearest offset that the queue has; its end is one."""
    return min(max(offset, extent.minimum), extent.maximum)


def resume_offsets(
    found: Iterable[OffsetOutOfRange], *, fail: bool, warn_once: WarnOnce | None = None
) -> Offsets:
    """Return where the queues go on, and warn of each.

    :raises DataLossError: there is one, and *fail* is set
    """
    warn_once = warn_once or WarnOnce()
    resume_at = {}
    for each in found:
        if fail:
            raise each.error()
        warn_once.warn("data_loss", (each.queue, each.wanted), **_values(each))
        resume_at[each.queue] = each.resume_at
    return resume_at


def _values(each: OffsetOutOfRange) -> dict[str, object]:
    topic, broker, queue_id = each.queue
    return {
        "topic": topic,
        "broker": broker,
        "queue": queue_id,
        "wanted": each.wanted,
        "resumes_at": each.resume_at,
        "skipped": each.skipped,
        "minimum": each.extent.minimum,
        "maximum": each.extent.maximum,
        "reason": each.reason,
    }


class WarnOnce:
    """Warns of each thing once: an idle stream looks a hundred times a second."""

    def __init__(self) -> None:
        self._warned: dict[str, set[Hashable]] = {}

    def warn(self, event: str, about: Hashable, **values: object) -> None:
        """Warn, if nothing was said about it before."""
        warned = self._warned.setdefault(event, set())
        if about not in warned:
            warned.add(about)
            warn(event, **values)

    def retain(self, event: str, present: Set[Hashable]) -> None:
        """Forget what is not *present* any more: it would be news again."""
        self._warned.get(event, set()).intersection_update(present)


def warn(event: str, **values: object) -> None:
    """Log a warning where Spark keeps what its Python processes say, if nobody configured that."""
    package = logging.getLogger("rocketmq_aio")
    if not logging.getLogger().handlers and all(
        isinstance(each, logging.NullHandler) for each in package.handlers
    ):
        package.addHandler(logging.StreamHandler())
    logger.warning(event, **values)
