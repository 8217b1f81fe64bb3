"""Routes: queues and addresses read from a response."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from rocketmq_aio.instance.routes import merge_routes, read_route
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import TopicRouteData
from tests.unit.instance.route_data import READ, WRITE, A, B, broker, queues, route, static


def numbers(found: Iterable[MessageQueue]) -> list[tuple[str, int]]:
    return [(each.broker_name, each.queue_id) for each in found]


def test_reading_and_writing_have_their_own_queues() -> None:
    read = read_route("orders", route(queues(read=3, write=1), broker(master=A)))

    assert numbers(read.publish_queues) == [("broker-a", 0)]
    assert numbers(read.subscribe_queues) == [("broker-a", 0), ("broker-a", 1), ("broker-a", 2)]


@pytest.mark.parametrize(
    ("perm", "written", "read"), [(6, 2, 2), (WRITE, 2, 0), (READ, 0, 2), (0, 0, 0), (1, 0, 0)]
)
def test_permissions_decide_publish_and_subscribe_queues(
    perm: int, written: int, read: int
) -> None:
    found = read_route("orders", route(queues(perm=perm), broker(master=A)))

    assert (len(found.publish_queues), len(found.subscribe_queues)) == (written, read)


def test_writing_needs_a_master_and_reading_does_not() -> None:
    found = read_route("orders", route(queues(), broker(replica=B)))

    assert (len(found.publish_queues), len(found.subscribe_queues)) == (0, 2)


def test_queues_of_brokers_without_an_address_are_left_out() -> None:
    found = read_route("orders", route(queues(), queues("broker-b"), broker("broker-b", master=B)))

    assert {name for name, _ in numbers(found.subscribe_queues)} == {"broker-b"}


def test_an_order_topic_names_its_queues_itself() -> None:
    datas = (queues(perm=READ), broker(master=A), broker("broker-b", master=B))
    found = read_route("orders", route(*datas, order="broker-a:1;broker-b:2"))

    assert numbers(found.publish_queues) == [("broker-a", 0), ("broker-b", 0), ("broker-b", 1)]


def test_keys_are_spread_over_queues_of_brokers_that_are_away_too() -> None:
    datas = (queues(), queues("broker-b"), queues("broker-c", perm=READ), broker(master=A))
    found = read_route("orders", route(*datas))
    ordered = read_route("orders", route(*datas, order="broker-a:1;broker-b:2"))

    names = [(name, number) for name in ("broker-a", "broker-b") for number in (0, 1)]
    assert numbers(found.ordered_queues) == names
    assert {name for name, _ in numbers(found.publish_queues)} == {"broker-a"}
    assert numbers(ordered.ordered_queues) == [names[0], *names[2:]]
    assert numbers(ordered.publish_queues) == [("broker-a", 0)]


def test_a_slave_that_acts_for_its_master_is_read_and_not_written_to() -> None:
    datas = (
        *(queues(perm=READ), broker(acting=True, master=A)),
        *(queues("broker-b"), broker("broker-b", acting=True, master=B)),
    )
    found = read_route("orders", route(*datas))
    ordered = read_route("orders", route(*datas, order="broker-a:1;broker-b:2"))

    assert found.acting == {"broker-a"}
    assert {name for name, _ in numbers(found.subscribe_queues)} == {"broker-a", "broker-b"}
    assert {name for name, _ in numbers(found.publish_queues)} == {"broker-b"}
    assert {name for name, _ in numbers(found.ordered_queues)} == {"broker-a", "broker-b"}
    assert numbers(ordered.publish_queues) == [("broker-b", 0), ("broker-b", 1)]
    assert found.write_masters() == {"broker-b": B}


@pytest.mark.parametrize("order", ["nonsense", "broker-x:4", "broker-a:-1", "broker-a:²", ";;"])
def test_an_order_that_cannot_be_used_changes_nothing(order: str) -> None:
    found = read_route("orders", route(queues(), broker(master=A), order=order))

    assert len(found.publish_queues) == 2


def test_a_broker_that_is_listed_twice_counts_once() -> None:
    datas = (queues(), queues(), broker(master=A), broker(replica=B))
    found = read_route("orders", route(*datas))

    for listed in (found.publish_queues, found.subscribe_queues, found.ordered_queues):
        assert numbers(listed) == [("broker-a", 0), ("broker-a", 1)]
    assert found.brokers == {"broker-a": {0: A, 1: B}}


def test_a_broker_listed_with_and_without_the_permission_to_write_may_be_down() -> None:
    datas = (queues(perm=READ), queues(), broker(acting=True, master=A))
    found = read_route("orders", route(*datas))

    assert (found.publish_queues, found.write_masters()) == ((), {})
    assert len(found.ordered_queues) == 2


def test_an_absurd_order_is_cut_off() -> None:
    found = read_route("orders", route(queues(), broker(master=A), order="broker-a:999999999"))

    assert len(found.publish_queues) == 65_536


def test_routes_compare_equal_in_any_order() -> None:
    datas = (queues(), queues("broker-b"), broker(master=A), broker("broker-b", master=B))

    assert read_route("orders", route(*datas)) == read_route("orders", route(*reversed(datas)))


# --- static topics --------------------------------------------------------------------------------


def test_the_queues_of_a_static_topic_are_logical() -> None:
    found = read_route("orders", static({0: "broker-a", 1: "broker-b"}, total=2))

    assert numbers(found.subscribe_queues) == [("__syslo__global__", 0), ("__syslo__global__", 1)]
    assert found.publish_queues == found.subscribe_queues
    assert [found.broker_of(queue) for queue in found.publish_queues] == ["broker-a", "broker-b"]


def test_an_order_topic_with_a_mapping_is_not_static() -> None:
    mapped = static({0: "broker-a", 1: "broker-b"}, total=2)
    found = read_route("orders", replace(mapped, order_topic_conf="broker-a:1;broker-b:1"))

    assert numbers(found.publish_queues) == [("broker-a", 0), ("broker-b", 0)]
    assert found.owners == {}


def test_a_logical_queue_without_an_owner_is_allocated_but_not_written_to() -> None:
    found = read_route("orders", static({1: "broker-b"}, total=3))

    assert [each.queue_id for each in found.subscribe_queues] == [0, 1, 2]
    assert [each.queue_id for each in found.publish_queues] == [1]


def test_a_queue_that_moves_changes_the_route() -> None:
    before, after = ({0: "broker-a"}, {0: "broker-b"})

    assert read_route("orders", static(before, 1)) != read_route("orders", static(after, 1))
    assert read_route("orders", static(before, 1)) == read_route("orders", static(before, 1, 2))


def test_a_physical_queue_is_at_the_broker_of_its_name() -> None:
    found = read_route("orders", static({0: "broker-a"}, total=1))

    assert found.broker_of(MessageQueue("orders", "broker-b", 3)) == "broker-b"


@pytest.mark.parametrize("address", ["", "no-port", "a:0", "a:70000", "a b:1"])
def test_malformed_addresses_are_left_out_and_named(address: str) -> None:
    datas = (queues(), queues("broker-b"), broker(master=address, replica=A))
    found = read_route("orders", route(*datas, broker("broker-b", master=B)))

    assert found.brokers == {"broker-a": {1: A}, "broker-b": {0: B}}
    assert found.malformed == (address,)
    assert {name for name, _ in numbers(found.publish_queues)} == {"broker-b"}


def test_a_merged_route_has_the_brokers_of_all_and_the_first_address_of_each() -> None:
    first = route(queues(), broker(master=A))
    second = route(queues(), queues("broker-b"), broker(master=B), broker("broker-b", master=B))

    merged = read_route("orders", merge_routes([first, second]))

    assert merged.brokers == {"broker-a": {0: A}, "broker-b": {0: B}}
    assert len(merged.subscribe_queues) == 4
    assert merge_routes([first]) is first


def test_a_merged_route_has_the_logical_queues_of_all() -> None:
    whole = static({0: "broker-a", 1: "broker-b"}, total=2)
    mappings = whole.topic_queue_mapping_by_broker or {}
    parts = [
        TopicRouteData(
            queue_datas=whole.queue_datas,
            broker_datas=whole.broker_datas,
            topic_queue_mapping_by_broker={name: mapping},
        )
        for name, mapping in mappings.items()
    ]

    assert read_route("orders", merge_routes(parts)) == read_route("orders", whole)
