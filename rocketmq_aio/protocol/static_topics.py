"""Static topics (5.x): a fixed number of logical queues, which move between brokers.

Clients name the queues of such a topic by a broker that does not exist (``__syslo__global__``) and
a logical id, so that offsets, allocations and locks stay what they are when a queue moves.  Only
who needs an address asks which broker owns a queue now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import TopicQueueMappingInfo, TopicRouteData

LOGICAL_PREFIX: Final = "__syslo__"  # of broker names
NO_OWNER: Final = f"{LOGICAL_PREFIX}none__"
GLOBAL_SCOPE: Final = "__global__"


def is_logical(queue: MessageQueue) -> bool:
    """Whether *queue* is one of a static topic."""
    return queue.broker_name.startswith(LOGICAL_PREFIX)


def logical_queues(topic: str, data: TopicRouteData) -> dict[MessageQueue, str]:
    """Return the logical queues of *topic* and the brokers that own them; nothing if not static.

    A queue that no broker owns at the moment is there all the same, owned by `NO_OWNER`: members
    of a group must share the same list.
    """
    scopes: dict[str, list[TopicQueueMappingInfo]] = {}
    for info in (data.topic_queue_mapping_by_broker or {}).values():
        if info.scope is not None:
            scopes.setdefault(info.scope, []).append(info)
    owners: dict[MessageQueue, str] = {}
    for scope, infos in scopes.items():
        broker, owner_of = _logical_broker(scope), _owners(infos)
        for number in range(max(info.total_queues for info in infos)):
            owners[MessageQueue(topic, broker, number)] = owner_of.get(number, NO_OWNER)
    return owners


def _logical_broker(scope: str) -> str:
    return LOGICAL_PREFIX + (scope.removeprefix("__") if scope == GLOBAL_SCOPE else scope)


def _owners(infos: Iterable[TopicQueueMappingInfo]) -> dict[int, str]:
    """Return the owner of each logical id: of brokers that claim it, the one told last."""
    owner_of: dict[int, str] = {}
    for info in sorted(infos, key=lambda info: (info.epoch, info.bname)):
        owner_of.update(dict.fromkeys(info.curr_id_map, info.bname))
    return owner_of
