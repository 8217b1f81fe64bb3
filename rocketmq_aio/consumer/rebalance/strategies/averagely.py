"""Which queues of a topic a member of a group reads: every member computes it for itself.

Members agree because they sort the same lists in the same way and use the same strategy; with
Java members among them, text is therefore compared as Java does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue


class AllocateAveragely:
    """Blocks of neighbouring queues; the first members get one more where it does not divide."""

    name: ClassVar[str] = "AVG"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of *client_id*; nothing when it is not listed."""
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        share, surplus = divmod(len(queues), len(client_ids))
        start = index * share + min(index, surplus)
        return list(queues[start : start + share + (index < surplus)])


class AllocateAveragelyByCircle:
    """Queues dealt out one by one, like cards."""

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every n-th queue, beginning at the place of *client_id*; nothing when unlisted."""
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


def strategy_for(
    choice: AllocateStrategy | Mapping[str, AllocateStrategy] | None, topic: str
) -> AllocateStrategy:
    """Return the strategy for *topic*: the only one, that of its name, or `AllocateAveragely`.

    Topics that a mapping does not name, retry topics among them, are shared averagely.
    """
    if isinstance(choice, Mapping):
        choice = choice.get(topic)
    return choice or AllocateAveragely()


def allocate(
    strategy: AllocateStrategy,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue] | None:
    """Return the queues that *strategy* gives to *client_id*, the inputs in any order.

    None means that it cannot be known, because *client_ids* lacks *client_id*: a broker that has
    just restarted knows nobody yet.  Keep what you hold and ask again soon.  A client id that is
    listed twice (over a connection that is about to go) counts once.

    :raises ConfigError: the strategy says that it is wrongly used, failed otherwise, or its
        answer cannot be an allocation
    """
    members = sorted(set(client_ids), key=java_order)
    if client_id not in members:
        return None
    offered = sorted(set(queues), key=queue_order)
    if not offered:
        return []
    try:
        given = list(strategy(client_id, offered, members))
    except ConfigError:
        raise
    except APPLICATION_ERRORS as error:
        raise ConfigError("allocate", strategy_name(strategy), f"it raised {error!r}") from error
    _check(strategy, given, offered)
    return given


def strategy_name(strategy: AllocateStrategy) -> str:
    """Return the name brokers and people know *strategy* by."""
    name = getattr(strategy, "name", None) or getattr(strategy, "__name__", None)
    return name if isinstance(name, str) else type(strategy).__name__


def java_order(text: str) -> bytes:
    """Return a key that sorts as Java compares strings: by UTF-16 units, not by characters."""
    return text.encode("utf-16-be", "surrogatepass")


def queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    """Return a key that sorts queues as the Java client does: topic, broker name, number."""
    return java_order(queue.topic), java_order(queue.broker_name), queue.queue_id


def _check(
    strategy: AllocateStrategy, given: list[MessageQueue], offered: list[MessageQueue]
) -> None:
    left = set(offered)
    for queue in given:
        if queue not in left:
            why = "twice" if queue in offered else "which is no queue of the topic"
            reason = f"it gave out {queue!r}, {why}"
            raise ConfigError("allocate", strategy_name(strategy), reason)
        left.remove(queue)
