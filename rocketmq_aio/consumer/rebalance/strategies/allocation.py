"""Allocation of queues: every member computes its own share with the same strategy.

Members agree because they sort the same lists in the same order; text is compared as in Java, for
groups with Java members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateAveragely
from rocketmq_aio.errors import ConfigError, text_of
from rocketmq_aio.model.values import MessageQueue


def strategy_for(
    choice: AllocateStrategy | Mapping[str, AllocateStrategy] | None, topic: str
) -> AllocateStrategy:
    """Return the strategy for *topic*, by default `AllocateAveragely`.

    Topics that a mapping does not name, such as retry topics, use the default.
    """
    if isinstance(choice, Mapping):
        choice = choice.get(topic)
    return choice or AllocateAveragely()


def in_namespace(strategy: AllocateStrategy, outer: Callable[[str], str]) -> AllocateStrategy:
    """Return *strategy* for a namespace of version 1.

    Java members take names with the namespace: a strategy whose result depends on the names has a
    method ``in_namespace(outer)``, which returns one that uses ``outer(name)``.

    :raises ConfigError: that method raised
    """
    adapt = getattr(strategy, "in_namespace", None)
    if adapt is None:
        return strategy
    try:
        return cast(AllocateStrategy, adapt(outer))
    except APPLICATION_ERRORS as error:
        reason = f"its in_namespace() raised {text_of(error)}"
        raise ConfigError("allocate", strategy_name(strategy), reason) from error


def allocate(
    strategy: AllocateStrategy,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """Return the queues that *strategy* allocates to *client_id*, one of *client_ids*.

    Inputs in any order.  A client id that is listed twice (over an old connection) counts once.

    :raises ConfigError: the strategy raised, or its result is not an allocation
    """
    members = sorted(set(client_ids), key=java_order)
    offered = sorted(set(queues), key=queue_order)
    if not offered:
        return []
    left = {queue: queue for queue in offered}  # the strategy may change its lists
    given: list[MessageQueue] = []
    try:
        for queue in strategy(client_id, offered, members):
            if not isinstance(queue, MessageQueue) or queue not in left:
                why = "twice" if queue in given else "which is no queue of the topic"
                reason = f"it gave out {queue!r}, {why}"
                raise ConfigError("allocate", strategy_name(strategy), reason)
            given.append(left.pop(queue))  # not *queue*, whose id may be an equal float
    except ConfigError:
        raise
    except APPLICATION_ERRORS as error:
        raise ConfigError(
            "allocate", strategy_name(strategy), f"it raised {text_of(error)}"
        ) from error
    return given


def strategy_name(strategy: AllocateStrategy) -> str:
    name = getattr(strategy, "name", None) or getattr(strategy, "__name__", None)
    return name if isinstance(name, str) else type(strategy).__name__


def java_order(text: str) -> bytes:
    """Return a sort key in Java's order: by UTF-16 units, not by characters."""
    return text.encode("utf-16-be", "surrogatepass")


def queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    """Return a sort key in the order of the Java client: topic, broker name, number."""
    return java_order(queue.topic), java_order(queue.broker_name), queue.queue_id
