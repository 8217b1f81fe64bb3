"""Topic names for ``subscribePattern``, and the registered brokers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.names import is_internal_topic
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.namespaces import names_inside
from rocketmq_aio.protocol.requests.admin import (
    ClusterInfoBody,
    GetAllTopics,
    GetClusterInfo,
    TopicList,
)

INCLUDES_INTERNAL: Final = "%"  # first character of patterns that match internal topics


async def listed_topics(instance: MQClientInstance, pattern: str) -> list[str]:
    """Return the current topics whose whole name matches *pattern*.

    :raises NameServerUnavailableError: no name server answered
    """
    command = await instance.name_servers.ask(GetAllTopics())
    names = names_inside(instance.remoting.namespace, read_body(command.body, TopicList).topic_list)
    servers = await _cluster_info(instance)
    # Brokers create topics named after themselves and their cluster.
    return matching(names, pattern, {*servers.broker_addr_table, *servers.cluster_addr_table})


async def registered_brokers(instance: MQClientInstance) -> set[str]:
    """Return the names of the brokers that are registered now.

    :raises NameServerUnavailableError: no name server answered
    """
    return set((await _cluster_info(instance)).broker_addr_table)


async def _cluster_info(instance: MQClientInstance) -> ClusterInfoBody:
    command = await instance.name_servers.ask(GetClusterInfo())
    return read_body(command.body, ClusterInfoBody)


def matching(names: Iterable[str], pattern: str, servers: set[str]) -> list[str]:
    """Return the sorted matches of *pattern*, without internal topics and names of *servers*."""
    found = sorted(name for name in set(names) if re.fullmatch(pattern, name))
    if pattern.startswith(INCLUDES_INTERNAL):
        return found
    return [name for name in found if not is_internal_topic(name) and name not in servers]
