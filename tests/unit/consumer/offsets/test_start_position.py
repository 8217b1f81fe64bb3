"""StartPositions: never guessed, never skipping new messages of a known group."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from time import time_ns
from typing import Any, cast

import pytest

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.common import clock
from rocketmq_aio.consumer.offsets import start_position as start_position_module
from rocketmq_aio.consumer.offsets.start_position import StartPositions
from rocketmq_aio.consumer.pull_loop.queue_state import Start
from rocketmq_aio.errors import (
    NotConnectedError,
    NotSupportedError,
    PermissionDeniedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.routes import TopicRoute
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.parts import queue
from tests.unit.consumer.stores import AppStore

DOWN = NotConnectedError("127.0.0.1:10911", "connection refused")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Ends:
    """Queues from 10 to 90, with offset 50 at noon, on brokers that may be down."""

    def __init__(self) -> None:
        self.broker = self.routes = self
        self.queues: int | None = 4
        self.brokers = ["broker-a"]
        self.down: set[MessageQueue] = set()
        self.began_ms: int | None = None
        self.silent: set[MessageQueue] = set()  # the first message came much later
        self.latest = 90

    async def get(self, topic: str) -> TopicRoute:
        route = self.known(topic)
        if route is None:
            raise RouteNotFoundError(topic, "the name server knows no such topic")
        return route

    def known(self, topic: str) -> TopicRoute | None:
        if self.queues is None:
            return None
        queues = tuple(queue(n, broker) for broker in self.brokers for n in range(self.queues))
        return TopicRoute(topic=topic, publish_queues=queues, subscribe_queues=queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        return self._of(queue, 10)

    async def max_offset(self, queue: MessageQueue) -> int:
        return self._of(queue, self.latest)

    async def offset_for_time(self, queue: MessageQueue, millis: int) -> int:
        assert millis == int(NOON.timestamp() * 1000)
        return self._of(queue, 50)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        assert self.began_ms is not None
        return self._of(queue, self.began_ms + 60_000 * (queue in self.silent))

    def _of(self, queue: MessageQueue, offset: int) -> int:
        if queue in self.down:
            raise DOWN
        return offset


class Store(AppStore):
    """Offsets of the group; those of *down* cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.down: set[MessageQueue] = set()

    async def read(self, queue: MessageQueue) -> int | None:
        if queue in self.down:
            raise DOWN
        return await super().read(queue)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_position_module, "NOTING_SECONDS", 0.01)


def starts(ends: Ends, store: Store, start_from: Any) -> StartPositions:  # noqa: ANN401
    config = LitePullConfig(start_from=start_from)
    return StartPositions(cast(MQClientInstance, ends), config, store)


@pytest.mark.parametrize(
    ("start_from", "offset"), [("latest", 90), ("earliest", 10), (NOON, 50)], ids=str
)
async def test_a_new_group_starts_at_start_from(
    ends: Ends, store: Store, start_from: object, offset: int
) -> None:
    positions = starts(ends, store, start_from)
    await positions.note_topic("orders")

    assert await positions.find(queue(0)) == Start(offset, is_new=True)


@pytest.mark.parametrize("start_from", ["latest", "earliest", NOON], ids=str)
async def test_a_known_group_starts_at_its_committed_offset(
    ends: Ends, store: Store, start_from: object
) -> None:
    store.kept = {queue(number): 33 for number in range(4)}
    positions = starts(ends, store, start_from)
    await positions.note_topic("orders")

    assert await positions.find(queue(0)) == Start(33)


@pytest.mark.parametrize("start_from", ["latest", "earliest", NOON], ids=str)
async def test_a_queue_that_is_new_to_a_known_group_is_read_from_its_beginning(
    ends: Ends, store: Store, start_from: object
) -> None:
    store.kept = {queue(0): 33}
    positions = starts(ends, store, start_from)
    await positions.note_topic("orders")

    assert await positions.find(queue(1)) == Start(10, is_new=True)


@pytest.mark.parametrize("start_from", ["latest", "earliest", NOON], ids=str)
async def test_a_queue_added_after_the_group_began_is_read_from_its_beginning(
    ends: Ends, store: Store, start_from: object
) -> None:
    positions = starts(ends, store, start_from)
    await positions.note_topic("orders")

    assert await positions.find(queue(4)) == Start(10, is_new=True)


@pytest.mark.parametrize("start_from", ["latest", "earliest", NOON], ids=str)
async def test_a_topic_that_is_created_later_is_read_from_its_beginning(
    ends: Ends, store: Store, start_from: object
) -> None:
    ends.queues = None
    positions = starts(ends, store, start_from)
    await positions.note_topic("orders")
    ends.queues = 4

    assert await positions.find(queue(0)) == Start(10, is_new=True)


async def test_a_noted_topic_stays_noted_when_the_expression_changes(
    ends: Ends, store: Store
) -> None:
    positions = starts(ends, store, "latest")
    await positions.note_topic("orders")
    store.kept = {queue(0): 33}
    await positions.note_topic("orders")

    assert await positions.find(queue(1)) == Start(90, is_new=True)


async def test_an_unsubscribed_topic_is_noted_anew(ends: Ends, store: Store) -> None:
    positions = starts(ends, store, "latest")
    await positions.note_topic("orders")
    positions.forget_topic("orders")
    store.kept = {queue(0): 33}
    await positions.note_topic("orders")

    assert await positions.find(queue(1)) == Start(10, is_new=True)


@pytest.mark.parametrize("start_from", ["latest", "earliest", NOON], ids=str)
async def test_a_topic_that_was_deleted_and_created_again_is_read_from_its_beginning(
    ends: Ends, store: Store, start_from: object
) -> None:
    positions = starts(ends, store, start_from)
    await positions.note_topic("orders")
    positions.note_gone("orders", {})

    assert await positions.find(queue(0)) == Start(10, is_new=True)


@pytest.mark.parametrize("age_ms", [-1000, 100], ids=["created again", "not deleted"])
async def test_an_offset_older_than_its_topic_does_not_count(
    ends: Ends, store: Store, age_ms: int
) -> None:
    """A topic that name servers did not know for a while has messages from before in a queue."""
    ends.began_ms = time_ns() // 1_000_000 - age_ms
    ends.silent = {queue(0)}
    store.kept[queue(0)] = 40
    positions = starts(ends, store, "latest")
    await positions.note_topic("orders")
    positions.note_gone("orders", {})
    positions.note_back("orders")
    positions.note_assigned(queue(0))

    assert await positions.find(queue(0)) == (Start(40) if age_ms > 0 else Start(10, is_new=True))


@pytest.mark.parametrize("skew_ms", [-300_000, 0, 300_000], ids=["behind", "equal", "ahead"])
@pytest.mark.parametrize("deleted", [True, False])
async def test_the_age_of_a_topic_does_not_depend_on_the_clock_of_the_client(
    ends: Ends, store: Store, deleted: bool, skew_ms: int
) -> None:
    broker_ms = time_ns() // 1_000_000 + skew_ms
    ends.began_ms = broker_ms + 1000 if deleted else broker_ms - 60_000
    store.kept[queue(0)] = 40
    positions = starts(ends, store, "latest")
    positions.note_gone("orders", {"broker-a": broker_ms})
    positions.note_back("orders")
    positions.note_assigned(queue(0))

    assert await positions.find(queue(0)) == (Start(10, is_new=True) if deleted else Start(40))


async def test_an_offset_counts_though_all_pulled_messages_were_deleted_by_retention(
    ends: Ends, store: Store
) -> None:
    now_ms = time_ns() // 1_000_000
    ends.began_ms = now_ms - 3_600_000
    store.kept[queue(0)] = 40
    positions = starts(ends, store, "latest")
    positions.note_gone("orders", {"broker-a": now_ms - 7_200_000})
    positions.note_back("orders")
    positions.note_assigned(queue(0))

    assert await positions.find(queue(0)) == Start(40)


async def test_brokers_may_create_a_topic_again_one_after_another(
    ends: Ends, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routes are refreshed every 30 s: the queues of the second broker can come that much later."""
    ends.began_ms = time_ns() // 1_000_000 + 1000
    store.kept = {queue(0): 40, queue(0, "broker-b"): 40}
    positions = starts(ends, store, "latest")
    await positions.note_topic("orders")
    positions.note_gone("orders", {})
    positions.note_back("orders")
    monkeypatch.setattr(start_position_module, "FIRST_ASSIGNMENT_SECONDS", 0.0)
    positions.note_assigned(queue(0))
    monkeypatch.undo()
    ends.brokers.append("broker-b")
    positions.note_back("orders")
    positions.note_assigned(queue(0, "broker-b"))

    assert await positions.find(queue(0)) == Start(40)
    assert await positions.find(queue(0, "broker-b")) == Start(10, is_new=True)


@pytest.mark.parametrize("later", ["again", "after others", "after a suspension"])
async def test_an_offset_committed_since_its_topic_was_created_again_counts(
    ends: Ends, store: Store, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    ends.began_ms = time_ns() // 1_000_000 + 1000
    store.kept[queue(0)] = 40
    positions = starts(ends, store, "latest")
    positions.note_gone("orders", {})
    positions.note_back("orders")
    if later == "again":
        positions.note_assigned(queue(0))
    elif later == "after a suspension":
        monkeypatch.setattr(clock, "_read", lambda read=clock._read: read() + 3600)
    else:
        monkeypatch.setattr(start_position_module, "FIRST_ASSIGNMENT_SECONDS", 0.0)
    positions.note_assigned(queue(0))

    assert await positions.find(queue(0)) == Start(40)


async def test_a_broker_that_no_route_names_does_not_prove_that_its_topic_was_deleted(
    ends: Ends, store: Store
) -> None:
    ends.began_ms = time_ns() // 1_000_000 - 100
    store.kept[queue(0)] = 40
    positions = starts(ends, store, "latest")
    positions.note_gone("orders", {})
    positions.note_back("orders")
    positions.note_assigned(queue(0))
    ends.brokers = ["broker-b"]
    with pytest.raises(RouteNotFoundError):
        await positions.find(queue(0))
    ends.brokers = ["broker-a", "broker-b"]

    assert await positions.find(queue(0)) == Start(40)


@pytest.mark.parametrize(
    "error",
    [PermissionDeniedError(16, "no permission"), NotSupportedError(3, "as proxies say")],
    ids=["account", "proxy"],
)
async def test_an_offset_counts_if_the_age_of_its_topic_cannot_be_queried(
    ends: Ends, store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def refused(*_: object) -> int:
        raise error

    monkeypatch.setattr(ends, "earliest_store_time", refused)
    store.kept[queue(0)] = 40
    positions = starts(ends, store, "latest")
    positions.note_gone("orders", {})
    positions.note_back("orders")
    positions.note_assigned(queue(0))

    assert await positions.find(queue(0)) == Start(40)


@pytest.mark.parametrize("start_from", ["latest", "earliest", NOON], ids=str)
async def test_manually_assigned_queues_start_at_start_from(
    ends: Ends, store: Store, start_from: object
) -> None:
    offset = {"latest": 90, "earliest": 10}.get(str(start_from), 50)

    assert await starts(ends, store, start_from).find(queue(0)) == Start(offset, is_new=True)


async def test_members_of_a_new_group_that_start_together_agree(ends: Ends, store: Store) -> None:
    store.kept = {queue(0): 90}  # another member has just begun, and notes its queues one by one
    positions = starts(ends, store, "latest")
    others = {queue(number): 90 for number in range(4)}
    asyncio.get_running_loop().call_later(0.002, store.kept.update, others)
    await positions.note_topic("orders")

    assert await positions.find(queue(3)) == Start(90)


async def test_an_unknown_offset_is_an_error(ends: Ends, store: Store) -> None:
    positions = starts(ends, store, "latest")
    ends.down = {queue(0)}
    await positions.note_topic("orders")
    store.down = {queue(0)}
    with pytest.raises(NotConnectedError):
        await positions.find(queue(0))
    store.down = set()
    with pytest.raises(NotConnectedError):
        await positions.find(queue(0))
    ends.down = set()
    assert await positions.find(queue(0)) == Start(90, is_new=True)


async def test_an_unsubscribed_topic_begins_anew_at_the_latest(ends: Ends, store: Store) -> None:
    positions = starts(ends, store, "latest")
    await positions.note_topic("orders")
    ends.latest = 95
    assert await positions.find(queue(0)) == Start(90, is_new=True)
    positions.forget_topic("orders")
    await positions.note_topic("orders")
    assert await positions.find(queue(0)) == Start(95, is_new=True)


async def test_an_unknown_group_state_is_an_error(ends: Ends, store: Store) -> None:
    store.down = {queue(2)}
    positions = starts(ends, store, "latest")
    with pytest.raises(RocketMQError) as caught:
        await positions.note_topic("orders")
    assert caught.value is DOWN

    store.down, store.kept = set(), {queue(2): 33}
    await positions.note_topic("orders")
    assert await positions.find(queue(0)) == Start(10, is_new=True)


async def test_one_offset_is_enough_to_know_a_group_though_a_broker_is_down(
    ends: Ends, store: Store
) -> None:
    store.down, store.kept = {queue(2)}, {queue(0): 33}
    positions = starts(ends, store, "latest")
    await positions.note_topic("orders")

    assert await positions.find(queue(1)) == Start(10, is_new=True)


async def test_the_earliest_start_needs_no_query(ends: Ends, store: Store) -> None:
    store.down = {queue(number) for number in range(4)}

    await starts(ends, store, "earliest").note_topic("orders")
