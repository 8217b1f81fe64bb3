"""Static topics: logical queues and their owners."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import TopicQueueMappingInfo, TopicRouteData, read_route
from rocketmq_aio.protocol.static_topics import NO_OWNER, is_logical, logical_queues
from tests.unit.protocol.wire_files import load

GLOBAL = "__syslo__global__"


def info(
    broker: str, *ids: int, total: int = 4, epoch: int = 1, scope: str | None = "__global__"
) -> TopicQueueMappingInfo:
    return TopicQueueMappingInfo(
        topic="orders",
        scope=scope,
        total_queues=total,
        bname=broker,
        epoch=epoch,
        curr_id_map={number: place for place, number in enumerate(ids)},
    )


def owners(*infos: TopicQueueMappingInfo) -> dict[tuple[str, int], str]:
    data = TopicRouteData(topic_queue_mapping_by_broker={each.bname: each for each in infos})
    queues = logical_queues("orders", data)
    assert all(queue.topic == "orders" and is_logical(queue) for queue in queues)
    return {(queue.broker_name, queue.queue_id): owner for queue, owner in queues.items()}


def test_the_route_that_java_writes_has_its_logical_queues() -> None:
    text = load("frames/golden/bodies.json")["bodies"]["TopicRouteData_static_default"]

    queues = logical_queues("TopicTest", read_route(text.encode()))

    assert queues == {
        MessageQueue("TopicTest", GLOBAL, 0): "broker-a",
        MessageQueue("TopicTest", GLOBAL, 1): "broker-a",
        MessageQueue("TopicTest", GLOBAL, 2): NO_OWNER,
        MessageQueue("TopicTest", GLOBAL, 3): NO_OWNER,
    }


def test_each_queue_is_owned_by_the_broker_that_claims_it() -> None:
    found = owners(info("broker-a", 1, 3), info("broker-b", 0, 2))

    assert [found[GLOBAL, number] for number in range(4)] == [
        "broker-b",
        "broker-a",
        "broker-b",
        "broker-a",
    ]


@pytest.mark.parametrize("newer", ["broker-a", "broker-b"])
def test_the_claim_with_the_highest_epoch_wins(newer: str) -> None:
    epochs = {"broker-a": 5, "broker-b": 5, newer: 6}

    found = owners(*(info(broker, 0, epoch=epoch) for broker, epoch in epochs.items()))

    assert found[GLOBAL, 0] == newer


def test_the_largest_queue_count_is_used() -> None:
    found = owners(info("broker-a", 0, total=2, epoch=2), info("broker-b", 2, total=3))

    assert found == {(GLOBAL, 0): "broker-a", (GLOBAL, 1): NO_OWNER, (GLOBAL, 2): "broker-b"}


def test_every_scope_has_queues_of_its_own() -> None:
    found = owners(info("broker-a", 0, total=1), info("broker-b", 0, total=1, scope="east"))

    assert found == {(GLOBAL, 0): "broker-a", ("__syslo__east", 0): "broker-b"}


@given(claims=st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=4))
def test_the_queue_list_does_not_depend_on_owners(claims: list[set[int]]) -> None:
    infos = [info(f"broker-{at}", *ids, total=8) for at, ids in enumerate(claims)]

    found = owners(*infos)

    assert found == owners(*infos[::-1])
    assert list(found) == [(GLOBAL, number) for number in range(8)]


def test_other_topics_have_none() -> None:
    assert logical_queues("orders", TopicRouteData()) == {}
    assert owners() == {}
    assert owners(info("broker-a", 0, scope=None)) == {}


def test_queues_of_real_brokers_are_not_logical() -> None:
    assert not is_logical(MessageQueue("orders", "broker-a", 0))


def test_too_many_queues_are_rejected() -> None:
    body = b'{"topicQueueMappingByBroker":{"a":{"totalQueues":99999999}}}'

    with pytest.raises(CodecError, match="99999999 queues"):
        read_route(body)
