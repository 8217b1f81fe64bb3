"""LitePullConsumer: decoded values, and errors of the codec."""

from __future__ import annotations

import msgspec
import pytest

from rocketmq_aio.errors import PayloadError
from rocketmq_aio.model.codec import JSONCodec
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import consuming, polled, put


async def test_values_are_decoded_on_access(cluster: FakeCluster) -> None:
    put(cluster, '{"id": 7}')
    async with consuming(cluster, codec=JSONCodec(dict[str, int])) as consumer:
        (message,) = await polled(consumer, 1)

        assert message.decoded is msgspec.UNSET
        assert message.value == {"id": 7}


async def test_an_undecodable_value_is_delivered_and_blocks_nothing(cluster: FakeCluster) -> None:
    put(cluster, "1", "{", "2")
    async with consuming(cluster, codec=JSONCodec(int)) as consumer:
        first, broken, last = await polled(consumer, 3)

        assert (first.value, last.value) == (1, 2)
        with pytest.raises(PayloadError):
            _ = broken.value


async def test_without_a_codec_a_value_is_the_body(cluster: FakeCluster) -> None:
    put(cluster, "plain")
    async with consuming(cluster) as consumer:
        (message,) = await polled(consumer, 1)

        assert message.value is message.body
