"""RawPulls: bounds on remembered brokers and expressions."""

from __future__ import annotations

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.pull import raw_pulls as raw_pulls_module
from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.consumer.pull.result import PullStatus, RawPull
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageSelector
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.subscription import subscription
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC


async def test_checked_expressions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_pulls_module, "MAX_CHECKED", 2)
    async with (
        FakeCluster(topics={TOPIC: 4}) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as instance,
    ):
        pulls = RawPulls(instance, "tools")
        await pulls.learn_route(TOPIC)
        for version in range(3):  # another version is the same expression
            for number in range(2):
                wanted = subscription(TOPIC, MessageSelector.by_sql(f"a = {number}"), version)
                await pulls._check_filter(wanted)
        checks = cluster.broker.requests_of(RequestCode.CHECK_CLIENT_CONFIG)
        assert len(checks) == 2
        await pulls._check_filter(subscription(TOPIC, MessageSelector.by_sql("b = 1"), 0))

        assert len(pulls._checked) == 2


async def test_old_brokers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_pulls_module, "MAX_OLD", 2)
    pulls = RawPulls(MQClientInstance(ClientConfig(namesrv="127.0.0.1:9876")), "tools")
    for port in range(5):
        pulls._note_old(f"127.0.0.1:{port}")

        assert f"127.0.0.1:{port}" in pulls._old
        assert len(pulls._old) <= 2


def test_the_repr_of_a_raw_pull_has_no_body() -> None:
    pulled = RawPull(
        status=PullStatus.FOUND,
        body=b"secret",
        offset_delta=0,
        next_offset=7,
        min_offset=0,
        max_offset=9,
    )

    assert repr(pulled) == "<RawPull FOUND 6 bytes next_offset=7>"
