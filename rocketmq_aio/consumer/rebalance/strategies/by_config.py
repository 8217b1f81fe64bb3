"""Allocation by configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateAveragely
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue


class AllocateByConfig:
    """This member reads exactly *queues*.

    The members together must name every queue once: this is not checked, and a queue that no
    member names is not read.  Queues that do not exist yet are read as soon as they do.  The retry
    topic of the group is allocated with `AllocateAveragely`.

    :raises ConfigError: *queues* is empty or holds other values
    """

    name: ClassVar[str] = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self.queues = _checked(queues)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues of the topic, in its order."""
        if queues and queues[0].topic.startswith(RETRY_PREFIX):
            return AllocateAveragely()(client_id, queues, client_ids)
        return [queue for queue in queues if queue in self.queues]


def _checked(queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
    try:
        chosen = frozenset(queues)
    except TypeError:
        raise ConfigError("queues", queues, "expected MessageQueue objects") from None
    if not chosen or not all(isinstance(queue, MessageQueue) for queue in chosen):
        raise ConfigError("queues", queues, "expected at least one MessageQueue, and only those")
    return chosen
