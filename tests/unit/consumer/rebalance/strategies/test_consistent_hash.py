"""Consistent hashing compared with tables of the Java client."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio import AllocateConsistentHash, ConfigError, MessageQueue
from tests.unit.consumer.sharing import queue, shares

OFFERED: Final = [MessageQueue("TopicTest", "broker-a", number) for number in range(10)]

# virtual nodes, then the queues of client 1, 2, ...
JAVA: Final = [
    (10, [1, 2, 4, 5, 8], [0, 3, 6, 7, 9]),
    (10, [1, 4, 5], [0, 6, 7, 9], [2, 3, 8]),
    (10, [1, 5], [0, 6, 7, 9], [2, 3, 8], [4]),
    (3, [7], [3, 4, 5], [0, 1, 2, 6, 8, 9]),
]


def members(count: int) -> list[str]:
    return [f"10.0.0.{number}@1" for number in range(1, count + 1)]


@pytest.mark.parametrize("row", JAVA, ids=str)
def test_consistent_hash_equals_java(row: tuple[int | list[int], ...]) -> None:
    virtual_nodes, *wanted = row
    assert isinstance(virtual_nodes, int)

    given_out = shares(AllocateConsistentHash(virtual_nodes), OFFERED, members(len(wanted)))

    assert [[each.queue_id for each in share or []] for share in given_out] == wanted


@settings(deadline=None)
@given(
    count=st.integers(0, 40),
    clients=st.sets(st.text(min_size=1), min_size=1, max_size=12),
    virtual_nodes=st.integers(1, 20),
)
def test_every_queue_goes_to_one_member(count: int, clients: set[str], virtual_nodes: int) -> None:
    offered = [queue(number) for number in range(count)]

    given_out = shares(AllocateConsistentHash(virtual_nodes), offered, list(clients))

    assert sorted(each for share in given_out for each in share or []) == offered


@settings(deadline=None)
@given(count=st.integers(1, 12))
def test_a_member_that_joins_takes_queues_and_moves_none_between_others(count: int) -> None:
    offered = [queue(number) for number in range(40)]
    clients = members(count + 1)
    strategy = AllocateConsistentHash()

    before = shares(strategy, offered, clients[:-1])
    after = shares(strategy, offered, clients)

    for old, new in zip(before, after, strict=False):
        assert set(new or []) <= set(old or [])


def test_another_hash_can_be_given() -> None:
    places = {"c1-0": 10, "c2-0": 20}

    def by_table(text: str) -> int:
        return places.get(text) or int(text.rpartition("=")[2].rstrip("]")) * 8

    strategy = AllocateConsistentHash(1, hash=by_table)

    given_out = shares(strategy, [queue(number) for number in range(4)], ["c1", "c2"])
    assert given_out == [[queue(0), queue(1), queue(3)], [queue(2)]]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("virtual_nodes", number) for number in (0, -1, True, 10**15)),
        *(("hash", function) for function in ("md5", hash, lambda: 0)),
    ],
)
def test_invalid_ring_arguments_are_rejected(
    setting: str,
    value: Any,  # noqa: ANN401 - wrong on purpose
) -> None:
    with pytest.raises(ConfigError) as caught:
        AllocateConsistentHash(**{setting: value})

    assert caught.value.setting == setting


def test_its_name_at_brokers_is_that_of_java() -> None:
    assert AllocateConsistentHash().name == "CONSISTENT_HASH"
