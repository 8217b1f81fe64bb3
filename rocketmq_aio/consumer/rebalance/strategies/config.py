"""Queues named by hand instead of worked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateAveragely
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue


class AllocateByConfig:
    """This member reads *queues* and no others, whoever else there is.

    Together the members must name every queue once: nothing checks that, and what nobody names
    nobody reads.  Queues that the topic does not have at the moment are left out until it has.
    The retry topic of the group, whose queues nobody names, is shared averagely.

    :raises ConfigError: *queues* holds something else, or nothing
    """

    name: ClassVar[str] = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self.queues = _checked(queues)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return what was configured, of the topic and in its order."""
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
