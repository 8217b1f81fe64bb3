"""Fixtures of the tests, beyond those that the package brings."""

import pytest

from rocketmq_aio.testing import Cluster


@pytest.fixture
def receipts_topic(rocketmq: Cluster, rocketmq_topic: str) -> str:
    topic = f"{rocketmq_topic}-receipts"
    rocketmq.create_topic(topic, queues=2)
    return topic
