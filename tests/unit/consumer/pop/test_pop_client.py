"""PopClient: remembered brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketmq_aio.consumer.pop.pop_client import PopClient, PopRequest
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.protocol.subscription import subscription
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, queue


async def test_only_the_current_master_of_a_broker_is_remembered() -> None:
    requests: list[str] = []

    async def lose(address: str, *_: object, **_how: Any) -> None:  # noqa: ANN401 - those of `request`
        requests.append(address)
        raise NotConnectedError(address, "away")

    instance = SimpleNamespace(
        routes=SimpleNamespace(master=lambda _name: f"10.0.0.{len(requests)}:10911"),
        remoting=SimpleNamespace(request=lose, decode=None),
    )
    calls = PopClient(cast(MQClientInstance, instance), GROUP, start_from="earliest")
    for _ in range(5):
        with pytest.raises(NotConnectedError):
            await calls.pop(queue(-1), subscription(TOPIC, "*", 0), PopRequest(1, 60.0, 0.0), None)

    assert len(set(requests)) == 5
    assert [len(table) for table in vars(calls).values() if isinstance(table, dict)] == [1]
