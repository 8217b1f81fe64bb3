"""Names of topics for a pattern; those of the system itself only when they are asked for."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Final, TypeVar

from rocketmq_aio.errors import NameServerUnavailableError, RocketMQError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.names import is_internal_topic
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.namespaces import names_inside
from rocketmq_aio.protocol.requests.admin_cluster import ClusterInfoBody, GetClusterInfo
from rocketmq_aio.protocol.requests.admin_topics import GetAllTopics, TopicList
from rocketmq_aio.remoting.response_errors import broker_error

T = TypeVar("T")

ASKS_FOR_ALL: Final = "%"  # how a pattern begins that means the topics of groups and of the system


async def listed_topics(instance: MQClientInstance, pattern: str) -> list[str]:
    """Return the topics that match *pattern* whole, as a name server knows them now.

    :raises NameServerUnavailableError: none answered
    """
    names = (await _asked(instance, GetAllTopics(), TopicList)).topic_list
    servers = await _servers(instance)
    # Brokers make topics named after themselves and their cluster.
    of_servers = {*servers.broker_addr_table, *servers.cluster_addr_table}
    return matching(names_inside(instance.remoting.namespace, names), pattern, of_servers)


async def registered_brokers(instance: MQClientInstance) -> set[str]:
    """Return the names of the brokers that a name server knows now.

    :raises NameServerUnavailableError: none answered
    """
    return set((await _servers(instance)).broker_addr_table)


async def _servers(instance: MQClientInstance) -> ClusterInfoBody:
    return await _asked(instance, GetClusterInfo(), ClusterInfoBody)


def matching(names: Iterable[str], pattern: str, of_servers: set[str]) -> list[str]:
    """Return the *names* that *pattern* means, sorted."""
    found = sorted(name for name in set(names) if re.fullmatch(pattern, name))
    if pattern.startswith(ASKS_FOR_ALL):
        return found
    return [name for name in found if not is_internal_topic(name) and name not in of_servers]


async def _asked(instance: MQClientInstance, header: RequestHeader, kind: type[T]) -> T:
    causes: dict[str, BaseException] = {}
    addresses = instance.name_servers.addresses
    for address in random.sample(addresses, len(addresses)):
        try:
            command = await instance.remoting.request(address, header)
        except RocketMQError as error:
            causes[address] = error
            continue
        if command.code == ResponseCode.SUCCESS:
            return read_body(command.body, kind)
        causes[address] = broker_error(command, address)
    raise NameServerUnavailableError(causes)
