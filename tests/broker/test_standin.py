"""Conformance of the benchmark stand-in with a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import standin
from benchmarks.standin import conformance
from benchmarks.standin.conformance import Shape
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import is_5

QUEUES = 16  # as the stand-in's topic
NEW_ANSWERS = {"no offset", "lite pull"}  # 4.9 returns 0 instead of none, and an unknown code
NEW_FIELDS = {
    "IS_SUB_CHANGE", "IS_SUPPORT_HEART_BEAT_V2", "groupSysFlag", "topicSysFlag", "transactionId",
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def topic(rocketmq_cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"standin-{rocketmq_group[-12:]}"
    rocketmq_cluster.create_topic(name, queues=QUEUES)
    yield name
    rocketmq_cluster.delete_topic(name)


def test_the_stand_in_responds_like_a_real_broker(
    program: Path, rocketmq_cluster: Cluster, topic: str
) -> None:
    real = conformance.shapes(rocketmq_cluster.brokers[0].address, topic)
    with standin.running(program, mirror_encoding=not is_5(rocketmq_cluster)) as address:
        played = conformance.shapes(address, standin.TOPIC)

    assert (played if is_5(rocketmq_cluster) else as_4_9(played, real)) == real


def as_4_9(played: dict[str, Shape], real: dict[str, Shape]) -> dict[str, Shape]:
    """Remove fields that the stand-in, a 5.x broker, adds to those of 4.9."""
    less = {}
    for name, (code, fields, keys) in played.items():
        kept = {field: kind for field, kind in fields.items() if field not in NEW_FIELDS}
        less[name] = (code, kept, keys) if name not in NEW_ANSWERS else real[name]
    return less


def test_a_message_of_the_stand_in_decodes_like_one_of_a_real_broker(
    program: Path, rocketmq_cluster: Cluster, topic: str
) -> None:
    broker = rocketmq_cluster.brokers[0].address
    conformance.shapes(broker, topic)  # sends
    real = asyncio.run(conformance.pulled(broker, topic))
    with standin.running(program, body_bytes=4) as address:
        played = asyncio.run(conformance.pulled(address, standin.TOPIC))

    assert (real.topic, played.topic) == (topic, standin.TOPIC)
    assert len(real.fixed) == len(played.fixed)
    assert len(real.body) == len(played.body)
