"""Static topics on fake brokers, limited to logical queues that keep their numbers.

Fake brokers know only their own queues: a test sets the owners in the route, and makes a broker
reject requests for queues that have moved.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster


def share_out(cluster: FakeCluster, topic: str, owners: list[str], *, epoch: int = 1) -> None:
    """Make the name server return *owners* as the owners of the logical queues 0, 1, ..."""

    def answer(command: Command, connection: ServerConnection) -> Outcome | Awaitable[Outcome]:
        normal = cluster.name_server.process(command, connection)
        if command.ext_fields().get("topic") != topic or not isinstance(normal, Response):
            return normal
        route: dict[str, Any] = msgspec.json.decode(normal.body)
        route["topicQueueMappingByBroker"] = {
            broker.name: _mapping(topic, broker.name, owners, epoch) for broker in cluster.brokers
        }
        return Response(body=msgspec.json.encode(route))

    cluster.faults.handle("route", answer, times=None)


def give_up(broker: FakeBroker, code: int, queue_id: int, *, field: str = "queueId") -> None:
    """Make *broker* reject requests of *code* for a logical queue that it no longer owns."""

    def answer(command: Command, connection: ServerConnection) -> Outcome | Awaitable[Outcome]:
        if command.ext_fields().get(field) == str(queue_id):
            remark = f"{queue_id} does not exit in request process of current broker {broker.name}"
            return Response(ResponseCode.NOT_LEADER_FOR_QUEUE, remark=remark)
        return broker.process(command, connection)

    broker.faults.handle(code, answer, broker=broker.name, times=None)


def _mapping(topic: str, broker: str, owners: list[str], epoch: int) -> dict[str, object]:
    owned = [number for number, owner in enumerate(owners) if owner == broker]
    return {
        "topic": topic,
        "scope": "__global__",
        "totalQueues": len(owners),
        "bname": broker,
        "epoch": epoch,
        "dirty": False,
        "currIdMap": {str(number): number for number in owned},
    }
