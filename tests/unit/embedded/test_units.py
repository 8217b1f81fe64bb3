"""Topics of units on embedded servers."""

from __future__ import annotations

import msgspec
import pytest

from rocketmq_aio.embedded.broker.store import UNIT, UNIT_GROUP
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from tests.fakes.raw_client import RawClient

TOPICS = {"none": 0, "unit": UNIT, "group": UNIT_GROUP, "both": UNIT | UNIT_GROUP}


@pytest.mark.parametrize(
    ("code", "expected"), [(311, {"unit", "both"}), (312, {"group", "both"}), (313, {"group"})]
)
async def test_name_server_lists_topics_by_their_flags_of_units(
    code: int, expected: set[str]
) -> None:
    async with EmbeddedCluster(brokers=2) as cluster:
        for broker in cluster.brokers:
            for topic, flags in TOPICS.items():
                broker.state.store.create_topic(topic, 1, sys_flag=flags)
        async with RawClient(cluster.namesrv) as raw:
            response = await raw.answer(raw.send_fields(code))

    listed = msgspec.json.decode(response.body)["topicList"]
    assert sorted(listed) == sorted(expected)


def test_flags_of_a_topic_that_exists_do_not_change() -> None:
    with EmbeddedCluster(topics={"orders": 1}) as cluster:
        store = cluster.broker.state.store
        assert store.create_topic("orders", 2, sys_flag=UNIT).sys_flag == 0
