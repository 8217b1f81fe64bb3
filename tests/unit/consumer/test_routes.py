"""Changes of routes, as consumers of every kind notice them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, consumer_of
from tests.unit.consumer.pop_env import popper_of


@pytest.mark.parametrize("make", [consumer_of, popper_of])
async def test_a_change_of_the_route_is_noticed_from_the_subscription_on(
    cluster: FakeCluster,
    make: Callable[[FakeCluster], LitePullConsumer | PopConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed: list[str] = []
    async with make(cluster) as consumer:
        await consumer.subscribe(TOPIC)
        monkeypatch.setattr(consumer._engine, "on_route_changed", changed.append)
        cluster.create_topic(TOPIC, 8)
        await consumer.client.routes.fetch(TOPIC)

    assert changed == [TOPIC]


async def test_a_change_of_the_route_is_noticed_from_the_call_that_adds_a_listener(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[str] = []
    async with consumer_of(cluster) as consumer:
        await consumer.listen_queues(TOPIC, lambda topic, queues: None)
        monkeypatch.setattr(consumer._engine, "on_route_changed", changed.append)
        cluster.create_topic(TOPIC, 8)
        await consumer.client.routes.fetch(TOPIC)

    assert changed == [TOPIC]
