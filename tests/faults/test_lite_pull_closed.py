"""LitePullConsumer closed while a broker is dead, silent or busy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.fakes.stopwatch import Stopwatch
from tests.faults.proxied import proxied_config, shorten_timeout
from tests.unit.consumer.lite_pull_env import TOPIC, consumer_of, numbers, polled, put
from tests.unit.instance.client_env import nothing_left


@pytest.mark.parametrize("fault", ["dead", "silent", "busy"])
async def test_a_close_is_bounded_and_leaves_nothing_whatever_the_broker_does(
    cluster: FakeCluster, proxy: FaultProxy, fault: str
) -> None:
    put(cluster, *numbers(3))
    async with nothing_left():
        consumer = consumer_of(cluster, client=proxied_config(proxy, cluster))
        await consumer.subscribe(TOPIC)
        await consumer.start()
        await polled(consumer, 3)
        await consumer.poll(0)
        shorten_timeout(consumer.client)
        faults: dict[str, Callable[[], object]] = {
            "dead": cluster.broker.stop,
            "silent": proxy.stall,
            "busy": lambda: cluster.faults.refuse("commit", times=None),
        }
        outcome = faults[fault]()
        if isinstance(outcome, Awaitable):
            await outcome
        with Stopwatch() as passed:
            await consumer.close()
        assert passed.seconds < 3
        proxy.flow()
    if fault == "dead":
        await cluster.broker.start()
