"""Strategies compared with tables of the Java client; invalid allocations."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final, cast

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.consumer.rebalance.strategies.allocation import (
    allocate,
    in_namespace,
    java_order,
    strategy_for,
    strategy_name,
)
from rocketmq_aio.consumer.rebalance.strategies.averagely import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
)
from rocketmq_aio.consumer.rebalance.strategies.by_config import AllocateByConfig
from rocketmq_aio.consumer.rebalance.strategies.consistent_hash import AllocateConsistentHash
from rocketmq_aio.consumer.rebalance.strategies.machine_room import AllocateByMachineRoom
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.sharing import names, queue, shares

TWO_BROKERS: Final = ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")
BUILT_IN: Final[list[AllocateAveragely | AllocateAveragelyByCircle]] = [
    AllocateAveragely(),
    AllocateAveragelyByCircle(),
]

# queues, then what client 1, 2, ... gets: numbers of one broker's queues, or broker and number
AVERAGELY: Final = [
    (4, "0 1", "2 3"),
    (4, "0 1", "2", "3"),
    (4, "0", "1", "2", "3"),
    (4, "0", "1", "2", "3", ""),
    (8, "0 1 2", "3 4 5", "6 7"),
    (10, "0 1 2", "3 4 5", "6 7", "8 9"),
    (10, "0 1 2 3", "4 5 6", "7 8 9"),
    (7, "0 1 2", "3 4", "5 6"),
    (6, "0 1", "2 3", "4", "5"),
    (3, "0", "1", "2", "", "", "", ""),
    (TWO_BROKERS, "a0 a1 a2", "a3 b0 b1", "b2 b3"),
]
BY_CIRCLE: Final = [
    (4, "0 3", "1", "2"),
    (8, "0 3 6", "1 4 7", "2 5"),
    (10, "0 4 8", "1 5 9", "2 6", "3 7"),
    (6, "0 4", "1 5", "2", "3"),
    (TWO_BROKERS, "a0 a3 b2", "a1 b0 b3", "a2 b1"),
]


def check(strategy: AllocateStrategy, row: tuple[int | tuple[str, ...] | str, ...]) -> None:
    offered, *wanted = row
    assert not isinstance(offered, str)
    queues = [queue(name) for name in (range(offered) if isinstance(offered, int) else offered)]
    members = [f"10.0.0.{n}@1" for n in range(1, len(wanted) + 1)]

    assert shares(strategy, queues, members) == [names(str(each)) for each in wanted]


@pytest.mark.parametrize("row", AVERAGELY, ids=str)
def test_averagely_equals_java(row: tuple[int | tuple[str, ...] | str, ...]) -> None:
    check(AllocateAveragely(), row)


@pytest.mark.parametrize("row", BY_CIRCLE, ids=str)
def test_by_circle_equals_java(row: tuple[int | tuple[str, ...] | str, ...]) -> None:
    check(AllocateAveragelyByCircle(), row)


def test_strategies_have_the_names_brokers_know() -> None:
    assert [strategy.name for strategy in BUILT_IN] == ["AVG", "AVG_BY_CIRCLE"]


@pytest.mark.parametrize("strategy", BUILT_IN, ids=lambda strategy: strategy.name)
@settings(deadline=None)
@given(count=st.integers(0, 40), members=st.sets(st.text(min_size=1), min_size=1, max_size=12))
def test_every_queue_goes_to_one_member_and_shares_differ_by_one_at_most(
    strategy: AllocateStrategy, count: int, members: set[str]
) -> None:
    given_out = shares(strategy, [queue(n) for n in range(count)], list(members))

    flat = [each for share in given_out for each in share or []]
    sizes = [len(share or []) for share in given_out]
    assert sorted(flat) == [queue(n) for n in range(count)]
    assert max(sizes) - min(sizes) <= 1


def test_members_agree_for_any_input_order() -> None:
    offered = [queue(name) for name in TWO_BROKERS]

    there = allocate(AllocateAveragely(), "c2", offered, ["c1", "c2", "c3"])
    here = allocate(AllocateAveragely(), "c2", offered[::-1], ["c3", "c1", "c2"])

    assert there == here == names("a3 b0 b1")


def test_queues_are_sorted_by_broker_name_as_text_and_by_number_as_number() -> None:
    reported = [
        ("broker-b", 0),
        ("broker-a", 10),
        ("broker-a", 2),
        ("broker-10", 0),
        ("broker-2", 0),
    ]
    offered = [MessageQueue("orders", broker, number) for broker, number in reported]

    allocated = allocate(AllocateAveragely(), "c1", offered, ["c1"]) or []

    assert [f"{each.broker_name}:{each.queue_id}" for each in allocated] == [
        "broker-10:0",
        "broker-2:0",
        "broker-a:2",
        "broker-a:10",
        "broker-b:0",
    ]


def test_text_is_compared_as_java_compares_it() -> None:
    # U+1F600 is two units from U+D83D on, below U+FF5E; by characters it would come after it.
    assert sorted(["\uff5e", "\U0001f600", "a", "B", "ab", ""], key=java_order) == [
        "",
        "B",
        "a",
        "ab",
        "\U0001f600",
        "\uff5e",
    ]


def test_members_are_sorted_as_java_sorts_them() -> None:
    first = allocate(AllocateAveragely(), "\U0001f600", [queue(0)], ["\uff5e", "\U0001f600"])

    assert first == [queue(0)]


def test_topic_without_queues_allocates_none() -> None:
    assert allocate(AllocateAveragely(), "c1", [], ["c1"]) == []


def test_a_member_listed_over_two_connections_counts_once() -> None:
    offered = [queue(n) for n in range(4)]

    assert allocate(AllocateAveragely(), "c2", offered, ["c1", "c1", "c2"]) == names("2 3")


def test_a_strategy_may_be_any_callable() -> None:
    def last_one_takes_all(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> tuple[MessageQueue, ...]:
        return tuple(queues) if client_id == client_ids[-1] else ()

    assert shares(last_one_takes_all, names("1 0"), ["c2", "c1"]) == [names("0 1"), []]


def test_topic_uses_its_strategy_of_a_mapping() -> None:
    circle, averagely = AllocateAveragelyByCircle(), AllocateAveragely()

    assert strategy_for(circle, "orders") is circle
    assert strategy_for({"orders": circle, "bills": averagely}, "orders") is circle


@pytest.mark.parametrize("choice", [None, {}, {"bills": AllocateAveragelyByCircle()}])
def test_topic_without_a_strategy_uses_averagely(
    choice: dict[str, AllocateStrategy] | None,
) -> None:
    assert isinstance(strategy_for(choice, "orders"), AllocateAveragely)


def test_config_error_of_a_strategy_is_passed_on() -> None:
    fault = ConfigError("rooms", "x", "no such room")

    def misused(*_: object) -> list[MessageQueue]:
        raise fault

    with pytest.raises(ConfigError) as caught:
        allocate(misused, "c1", [queue(0)], ["c1"])

    assert caught.value is fault


def foreign(*_: object) -> list[MessageQueue]:
    return [queue(7)]


def twice(*_: object) -> list[MessageQueue]:
    return [queue(0), queue(0)]


def junk(*_: object) -> list[str]:
    return ["orders/broker-a/0"]


def nested(*_: object) -> list[list[MessageQueue]]:
    return [[queue(0)]]


def nothing(*_: object) -> None:
    return None


def broken(*_: object) -> list[MessageQueue]:
    raise ZeroDivisionError("no rooms")


class MuteError(Exception):
    def __str__(self) -> str:
        raise LookupError

    __repr__ = __str__


def mute(*_: object) -> list[MessageQueue]:
    raise MuteError


def cancelled(*_: object) -> list[MessageQueue]:
    raise asyncio.CancelledError


def endless(*_: object) -> Iterator[MessageQueue]:
    return cycle([queue(0), queue(1)])


def unhashable(*_: object) -> list[MessageQueue]:
    return [MessageQueue("orders", "broker-a", cast(int, [0]))]


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (endless, "twice"),
        (unhashable, "raised TypeError"),
        (foreign, "no queue of the topic"),
        (twice, "twice"),
        (junk, "no queue of the topic"),
        (nested, "no queue of the topic"),
        (nothing, "raised TypeError"),
        (broken, "raised ZeroDivisionError: no rooms"),
        (mute, "raised MuteError"),
        (cancelled, "raised CancelledError"),
    ],
)
def test_invalid_allocation_names_the_strategy(strategy: AllocateStrategy, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        allocate(strategy, "c1", [queue(0), queue(1)], ["c1"])

    assert caught.value.setting == "allocate"
    assert caught.value.value == getattr(strategy, "__name__", None)


def test_a_strategy_may_change_the_lists_it_is_called_with() -> None:
    def last_half(
        _client_id: str, queues: Sequence[MessageQueue], _client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        own = cast(list[MessageQueue], queues)
        return [own.pop() for _ in range(len(own) // 2)]

    offered = [queue(number) for number in range(4)]

    assert allocate(last_half, "c1", offered, ["c1", "c2"]) == [queue(3), queue(2)]


def test_allocated_queues_are_those_of_the_route_and_not_others_that_are_equal() -> None:
    def by_division(*_: object) -> list[MessageQueue]:
        return [MessageQueue("orders", "broker-a", cast(int, 2 / 2))]

    [allocated] = allocate(by_division, "c1", [queue(0), queue(1)], ["c1"])

    assert type(allocated.queue_id) is int


def test_a_strategy_that_cannot_be_adapted_to_a_namespace_is_named() -> None:
    class ByRoom(AllocateAveragely):
        def in_namespace(self, _: object) -> AllocateStrategy:
            raise ZeroDivisionError

    with pytest.raises(ConfigError, match=r"in_namespace\(\) raised ZeroDivisionError"):
        in_namespace(ByRoom(), str)


def test_a_strategy_without_any_name_is_called_by_its_class() -> None:
    class ByRoom:
        def __call__(self, *_: object) -> list[MessageQueue]:
            return twice()

    with pytest.raises(ConfigError, match="'ByRoom'"):
        allocate(ByRoom(), "c1", [queue(0)], ["c1"])


STRATEGIES: Final[list[AllocateStrategy]] = [
    *BUILT_IN,
    AllocateConsistentHash(),
    AllocateByMachineRoom(["room1"]),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=strategy_name)
@pytest.mark.parametrize("members", [["c1", "c2"], []], ids=["others", "nobody"])
def test_strategies_give_no_queues_to_an_unlisted_client(
    strategy: AllocateStrategy, members: list[str]
) -> None:
    queues = [MessageQueue("orders", "room1@broker-a", number) for number in range(4)]

    assert list(strategy("c9", queues, members)) == []


@pytest.mark.parametrize(
    "strategy", [*STRATEGIES, AllocateByConfig(names("a0"))], ids=strategy_name
)
def test_without_queues_every_share_is_empty(strategy: AllocateStrategy) -> None:
    assert list(strategy("c1", [], ["c1"])) == []
