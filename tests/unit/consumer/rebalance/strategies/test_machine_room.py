"""Allocation by machine room compared with tables of the Java client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    ConfigError,
    MachineRoomResolver,
    MessageQueue,
)
from rocketmq_aio.config.consumer import AllocateStrategy
from rocketmq_aio.consumer.rebalance.strategies.allocation import allocate
from tests.unit.consumer.sharing import queue, shares

TWO_ROOMS: Final = [
    MessageQueue("orders", broker, number)
    for broker, numbers in (("room1@broker-a", range(5)), ("room2@broker-b", range(5, 10)))
    for number in numbers
]
ONE: Final = ["room1"]
BOTH: Final = ["room1", "room2"]

# rooms, then the queues of client 1, 2, ...
BY_ROOM: Final = [
    (ONE, [0, 1, 2, 3, 4]),
    (ONE, [0, 1, 4], [2, 3]),
    (ONE, [0, 3], [1, 4], [2]),
    (ONE, [0, 4], [1], [2], [3]),
    (ONE, [0], [1], [2], [3], [4]),
    (ONE, [0], [1], [2], [3], [4], []),
    (BOTH, [0, 1, 2, 9], [3, 4, 5], [6, 7, 8]),
    (BOTH, [0, 1, 8], [2, 3, 9], [4, 5], [6, 7]),
]

IDC: Final = [
    MessageQueue("orders", f"IDC{room}-broker", number)
    for room, count in ((1, 5), (2, 5), (3, 3))
    for number in range(count)
]
NEARBY: Final = [
    {
        "IDC1-c1": "1:0 1:1 1:2 3:0",
        "IDC1-c2": "1:3 1:4 3:1",
        "IDC2-c1": "2:0 2:1 3:2",
        "IDC2-c2": "2:2 2:3",
        "IDC2-c3": "2:4",
    },
    {"IDC1-c1": "1:0 1:1 1:2 2:0 2:1 2:2 3:0 3:1", "IDC1-c2": "1:3 1:4 2:3 2:4 3:2"},
    {"IDC1-c1": "1:0 1:1 1:2 1:3 1:4 2:0 2:1 2:2 3:0 3:1", "IDC4-c1": "2:3 2:4 3:2"},
]


class ByPrefix:
    """The room is what comes before the first dash."""

    def room_of_broker(self, queue: MessageQueue) -> str:
        return queue.broker_name.split("-")[0]

    def room_of_client(self, client_id: str) -> str:
        return client_id.split("-")[0]


def short(share: list[MessageQueue] | None) -> str:
    return " ".join(f"{each.broker_name[3]}:{each.queue_id}" for each in share or [])


@pytest.mark.parametrize("row", BY_ROOM, ids=str)
def test_machine_room_equals_java(row: tuple[list[Any], ...]) -> None:
    rooms, *wanted = row
    clients = [f"c{number}" for number in range(1, len(wanted) + 1)]

    given_out = shares(AllocateByMachineRoom(rooms), TWO_ROOMS, clients)

    assert [sorted(each.queue_id for each in share or []) for share in given_out] == wanted


@settings(deadline=None)
@given(members=st.sets(st.text(min_size=1), min_size=1, max_size=14))
def test_every_queue_of_the_rooms_goes_to_one_member(members: set[str]) -> None:
    given_out = shares(AllocateByMachineRoom(ONE), TWO_ROOMS, list(members))

    assert sorted(each for share in given_out for each in share or []) == TWO_ROOMS[:5]


def test_topic_in_other_rooms_is_not_read() -> None:
    assert allocate(AllocateByMachineRoom(["room9"]), "c1", TWO_ROOMS, ["c1"]) == []


@pytest.mark.parametrize("broker", ["broker-a", "a@b@c"])
def test_broker_names_without_a_room_are_an_error(broker: str) -> None:
    with pytest.raises(ConfigError, match="<room>@<broker>") as caught:
        allocate(AllocateByMachineRoom(ONE), "c1", [MessageQueue("orders", broker, 0)], ["c1"])

    assert (caught.value.setting, caught.value.value) == ("rooms", broker)


@pytest.mark.parametrize("rooms", ["room1", [], [""], [1], None, 5, [["room1"]]])
def test_rooms_are_a_collection_of_names(rooms: Any) -> None:  # noqa: ANN401 - wrong on purpose
    with pytest.raises(ConfigError, match="expected"):
        AllocateByMachineRoom(rooms)


@pytest.mark.parametrize("wanted", NEARBY, ids=len)
def test_members_read_their_room_and_share_rooms_without_members(wanted: dict[str, str]) -> None:
    strategy = AllocateMachineRoomNearby(AllocateAveragely(), ByPrefix())

    given_out = shares(strategy, IDC, list(wanted))

    assert dict(zip(wanted, map(short, given_out), strict=True)) == wanted


@settings(deadline=None)
@given(
    members=st.sets(st.from_regex(r"IDC[1-5]-c[0-9]", fullmatch=True), min_size=1),
    inner=st.sampled_from([AllocateAveragely(), AllocateAveragelyByCircle()]),
)
def test_every_queue_of_every_room_goes_to_one_member(
    members: set[str], inner: AllocateStrategy
) -> None:
    given_out = shares(AllocateMachineRoomNearby(inner, ByPrefix()), IDC, list(members))

    assert sorted(each for share in given_out for each in share or []) == IDC


def test_an_inner_strategy_may_change_the_lists_it_is_called_with() -> None:
    def emptying(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        share = AllocateAveragely()(client_id, queues, client_ids)
        cast(list[MessageQueue], queues).clear()
        cast(list[str], client_ids).clear()
        return share

    given_out = shares(AllocateMachineRoomNearby(emptying, ByPrefix()), IDC, ["IDC4-c1", "IDC4-c2"])

    assert sorted(each for share in given_out for each in share) == IDC


class Lost(ByPrefix):
    def room_of_client(self, client_id: str) -> str:
        return ""


def test_a_member_without_a_room_is_an_error_that_names_it() -> None:
    strategy = AllocateMachineRoomNearby(AllocateAveragely(), Lost())

    with pytest.raises(ConfigError, match="room of 'c1'"):
        allocate(strategy, "c1", IDC, ["c1"])


@pytest.mark.parametrize(
    ("inner", "resolver", "setting"),
    [
        ("AVG", ByPrefix(), "inner"),
        (AllocateAveragely, ByPrefix(), "inner"),
        (lambda queues: queues, ByPrefix(), "inner"),
        (AllocateAveragely(), object(), "resolver"),
        (AllocateAveragely(), ByPrefix, "resolver"),
    ],
)
def test_nearby_needs_a_strategy_and_a_resolver(
    inner: Any,  # noqa: ANN401 - wrong on purpose
    resolver: Any,  # noqa: ANN401 - wrong on purpose
    setting: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        AllocateMachineRoomNearby(inner, resolver)

    assert caught.value.setting == setting


def test_their_names_at_brokers_are_those_of_java() -> None:
    resolver: MachineRoomResolver = ByPrefix()

    def ours(*_: object) -> list[MessageQueue]:
        return [queue(0)]

    nearby = [AllocateMachineRoomNearby(inner, resolver) for inner in (AllocateAveragely(), ours)]

    assert AllocateByMachineRoom(ONE).name == "MACHINE_ROOM"
    assert [each.name for each in nearby] == ["MACHINE_ROOM_NEARBY-AVG", "MACHINE_ROOM_NEARBY-ours"]
