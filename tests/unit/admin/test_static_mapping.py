"""The mapping of a static topic: which broker gets which queue, and where a moved queue goes on."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from rocketmq_aio.admin.static_mapping import BLOCK, StaticMapping
from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.bodies import MAX_QUEUES
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.operations import MappedTopicBody, TopicMapping

TOPIC = "orders"


def stored(mapping: StaticMapping, *brokers: str) -> dict[str, MappedTopicBody]:
    """Return what *brokers* respond after storing *mapping*."""
    found = {}
    for name in brokers:
        config, part = mapping.on(name)
        body = msgspec.to_builtins(config) | {"mappingDetail": msgspec.to_builtins(part)}
        found[name] = read_body(msgspec.json.encode(body), MappedTopicBody)
    return found


def created(total: int, *brokers: str) -> StaticMapping:
    mapping = StaticMapping(TOPIC, {})
    mapping.grow(total, brokers)
    return mapping


def part(mapping: StaticMapping, broker: str) -> TopicMapping:
    return mapping.on(broker)[1]


def test_queues_are_spread_evenly() -> None:
    mapping = created(5, "b", "a")

    assert [each.broker_name for each in mapping.queues()] == ["a", "b", "a", "b", "a"]
    assert [each.physical_queue for each in mapping.queues()] == [0, 0, 1, 1, 2]
    assert mapping.on("a")[0].write_queue_nums == 3
    assert mapping.on("c")[0].write_queue_nums == 0
    assert part(mapping, "c").total_queues == 5


def test_new_queues_go_to_the_brokers_with_the_fewest() -> None:
    mapping = StaticMapping(TOPIC, stored(created(4, "a", "b"), "a", "b", "c"))
    mapping.grow(6, ["a", "c"])

    assert [each.broker_name for each in mapping.queues()] == ["a", "b", "a", "b", "c", "c"]


def test_as_few_queues_as_possible_move() -> None:
    before = created(7, "a", "b")
    mapping = StaticMapping(TOPIC, stored(before, "a", "b", "c"))
    mapping.move(["a", "b", "c"])

    pairs = list(zip(before.queues(), mapping.queues(), strict=True))
    moved = [new for old, new in pairs if old.broker_name != new.broker_name]
    assert Counter(each.broker_name for each in mapping.queues()) == {"a": 3, "b": 2, "c": 2}
    assert [each.broker_name for each in moved] == ["c", "c"]
    assert {each.first_offset for each in moved} == {-1}
    assert {each.moves for each in moved} == {1}


def test_a_moved_queue_goes_on_behind_all_its_messages() -> None:
    mapping = StaticMapping(TOPIC, stored(created(2, "a"), "a", "b"))
    mapping.move(["b"])
    ends = {("a", 0): 0, ("a", 1): 3 * BLOCK - 1}
    mapping.decide(ends)

    first, second = (each.first_offset for each in mapping.queues())
    assert first == BLOCK
    assert second == 4 * BLOCK
    assert not mapping.undecided()


@pytest.mark.parametrize("end", [0, 1, BLOCK // 2 - 1, BLOCK // 2, BLOCK, 7 * BLOCK + 1])
def test_half_a_block_is_left_for_sends_under_way(end: int) -> None:
    mapping = StaticMapping(TOPIC, stored(created(1, "a"), "a", "b"))
    mapping.move(["b"])
    mapping.decide({("a", 0): end})

    [queue] = mapping.queues()
    assert queue.first_offset % BLOCK == 0
    assert end + BLOCK // 2 <= queue.first_offset <= end + 2 * BLOCK


def test_a_queue_that_moves_back_gets_a_new_physical_queue() -> None:
    mapping = StaticMapping(TOPIC, stored(created(1, "a"), "a", "b"))
    for broker, end in (("b", 5), ("a", 7)):
        mapping.move([broker])
        source = mapping.undecided()[0]
        mapping.decide({(source.bname, source.queue_id): end})

    history = part(mapping, "a").hosted_queues[0]
    assert [(each.bname, each.queue_id, each.gen) for each in history] == [
        ("a", 0, 0),
        ("b", 0, 1),
        ("a", 1, 2),
    ]
    assert [each.logic_offset for each in history] == [0, BLOCK, 2 * BLOCK]
    assert mapping.on("a")[0].write_queue_nums == 2


def test_the_longest_history_counts_after_a_move_that_failed_midway() -> None:
    """The new owner knows the move, the previous one does not yet: a repetition continues."""
    before = created(1, "a")
    moving = StaticMapping(TOPIC, stored(before, "a", "b"))
    moving.move(["b"])

    found = stored(before, "a") | stored(moving, "b")
    repeated = StaticMapping(TOPIC, found)
    repeated.move(["b"])

    assert [each.bname for each in repeated.undecided()] == ["a"]
    assert part(repeated, "b").hosted_queues == part(moving, "b").hosted_queues
    assert part(repeated, "a").epoch > part(moving, "b").epoch > part(before, "a").epoch


def test_the_owner_knows_which_old_queues_are_deleted() -> None:
    mapping = StaticMapping(TOPIC, stored(created(1, "a"), "a", "b"))
    mapping.move(["b"])
    mapping.decide({("a", 0): 1})
    found = stored(mapping, "a", "b")
    del found["b"].mapping_detail.hosted_queues[0][0]  # type: ignore[union-attr]

    assert len(StaticMapping(TOPIC, found).histories[0]) == 1


def test_a_creation_that_failed_midway_keeps_the_queues_that_exist() -> None:
    whole = created(4, "a", "b")
    repeated = StaticMapping(TOPIC, stored(whole, "a"))
    repeated.grow(4, ["a", "b"])

    assert repeated.queues() == whole.queues()


def test_a_broker_that_reports_no_offset_of_a_moved_queue_is_named() -> None:
    mapping = created(2, "a", "b")
    mapping.move(["b"])

    with pytest.raises(CodecError, match="a reports no offset of its queue 0"):
        mapping.decide({("b", 0): 5})


def test_more_queues_than_a_topic_can_have_are_rejected() -> None:
    detail = {"totalQueues": MAX_QUEUES + 1, "hostedQueues": {}}
    body = {"topicName": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    found = read_body(msgspec.json.encode(body | {"mappingDetail": detail}), MappedTopicBody)

    with pytest.raises(CodecError, match="65537 queues"):
        StaticMapping(TOPIC, {"a": found})
