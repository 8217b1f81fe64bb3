"""Static topics (5.x): a fixed number of logical queues that move between brokers.

Clients identify these queues by a virtual broker name (``__syslo__global__``) and a logical id, so
offsets, allocations and locks stay valid when a queue moves.  Only sending a request resolves the
current owner.
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
    """Whether *queue* belongs to a static topic."""
    return queue.broker_name.startswith(LOGICAL_PREFIX)


def logical_queues(topic: str, data: TopicRouteData) -> dict[MessageQueue, str]:
    """Return the logical queues of *topic* with their owners; empty if it is not static.

    A queue without an owner is included, owned by `NO_OWNER`: all members of a group must compute
    the same list.
    """
    scopes: dict[str, list[TopicQueueMappingInfo]] = {}
    for info in (data.topic_queue_mapping_by_broker or {}).values():
        if info.scope is not None:
            scopes.setdefault(info.scope, []).append(info)
    owners: dict[MessageQueue, str] = {}
    for scope, infos in scopes.items():
        suffix = scope.removeprefix("__") if scope == GLOBAL_SCOPE else scope
        broker, owner_of = LOGICAL_PREFIX + suffix, _owners(infos)
        for number in range(max(info.total_queues for info in infos)):
            owners[MessageQueue(topic, broker, number)] = owner_of.get(number, NO_OWNER)
    return owners


def _owners(infos: Iterable[TopicQueueMappingInfo]) -> dict[int, str]:
    """Return the owner of each logical id; the claim with the highest epoch wins."""
    owner_of: dict[int, str] = {}
    for info in sorted(infos, key=lambda info: (info.epoch, info.bname)):
        owner_of.update(dict.fromkeys(info.curr_id_map, info.bname))
    return owner_of
