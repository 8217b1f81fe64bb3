"""Allocation by configuration."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio import AllocateByConfig, ConfigError, MessageQueue
from rocketmq_aio.consumer.rebalance.strategies.allocation import allocate
from tests.unit.consumer.sharing import names, queue, shares


def test_member_gets_its_configured_queues() -> None:
    strategy = AllocateByConfig(names("3 1"))

    assert shares(strategy, names("0 1 2 3"), ["c1", "c2"]) == [names("1 3")] * 2


def test_a_queue_that_the_topic_does_not_have_now_is_left_out() -> None:
    assert allocate(AllocateByConfig(names("1 9")), "c1", names("0 1"), ["c1"]) == names("1")
    assert allocate(AllocateByConfig(names("9")), "c1", names("0 1"), ["c1"]) == []


def test_retry_topic_is_allocated_to_all_members() -> None:
    retries = [MessageQueue("%RETRY%billing", "broker-a", number) for number in range(2)]

    shared = shares(AllocateByConfig(names("0")), retries, ["c1", "c2"])

    assert shared == [retries[:1], retries[1:]]


@settings(deadline=None)
@given(owners=st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_members_that_name_every_queue_once_read_every_queue_once(owners: list[int]) -> None:
    offered = [queue(number) for number in range(len(owners))]
    members = sorted({f"c{owner}" for owner in owners})
    given_out: list[MessageQueue] = []

    for member in members:
        mine = [each for each, owner in zip(offered, owners, strict=True) if f"c{owner}" == member]
        given_out += allocate(AllocateByConfig(mine), member, offered, members) or []

    assert sorted(given_out) == offered


@pytest.mark.parametrize("queues", [[], None, 3, ["orders/broker-a/0"], [queue(0), None]])
def test_only_queues_can_be_configured(queues: Any) -> None:  # noqa: ANN401 - wrong on purpose
    with pytest.raises(ConfigError, match="MessageQueue") as caught:
        AllocateByConfig(queues)

    assert caught.value.setting == "queues"


def test_its_name_at_brokers_is_that_of_java() -> None:
    assert AllocateByConfig([queue(0)]).name == "CONFIG"
