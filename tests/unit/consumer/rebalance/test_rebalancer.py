"""Rebalancer: rounds, unknown members and routes, notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.rebalance import rebalancer as rebalance_module
from rocketmq_aio.consumer.rebalance.broker_assignment import Assignment, BrokerAssignment
from rocketmq_aio.consumer.rebalance.rebalancer import Rebalancer
from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateAveragelyByCircle
from rocketmq_aio.consumer.rebalance.strategies.consistent_hash import AllocateConsistentHash
from rocketmq_aio.consumer.rebalance.strategies.machine_room import AllocateMachineRoomNearby
from rocketmq_aio.errors import (
    NotConnectedError,
    NotSupportedError,
    RequestTimeoutError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.routes import TopicRoute
from rocketmq_aio.model.values import MessageModel, MessageQueue
from rocketmq_aio.protocol.namespaces import Namespace
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import settle, until

DOWN = NotConnectedError("127.0.0.1:10911", "connection refused")


class Instance:
    """The parts of an instance that a rebalancer uses: routes and group members."""

    client_id = "me"

    def __init__(self) -> None:
        self.routes = self.broker = self.heartbeats = self.remoting = self
        self.namespace: Namespace | None = None
        self.queues: dict[str, int] = {"orders": 8}
        self.gone: set[str] = set()
        self.brokers: dict[str, str] = {}  # by topic
        self.responses: list[list[str] | RocketMQError] = []  # used up, then *members*
        self.members = ["me"]
        self.queried = 0
        self.beats = 0
        self.checks = 0
        self.connections = 1
        self.may_answer: asyncio.Event | None = None

    def known(self, topic: str) -> TopicRoute | None:
        if topic not in self.queues:
            return None
        queues = tuple(queue(number, topic=topic) for number in range(self.queues[topic]))
        return TopicRoute(topic=topic, publish_queues=queues, subscribe_queues=queues)

    def is_gone(self, topic: str) -> bool:
        return topic in self.gone

    def any_broker(self, topic: str) -> str:
        if topic not in self.queues:
            raise RouteNotFoundError(topic, "no broker is known")
        return self.brokers.get(topic, "broker-a")

    def broker_at(self, address: str) -> str:
        return address

    def replicas_of(self, queue: MessageQueue) -> dict[int, str]:
        self.checks += 1  # whether the broker rejects the group
        return {}

    def connection_number(self, address: str) -> int:
        return self.connections

    async def consumer_ids_at(self, group: str, address: str) -> list[str]:
        assert group == "billing"
        self.queried += 1
        if self.may_answer is not None:
            await self.may_answer.wait()
        response = self.responses.pop(0) if self.responses else self.members
        if isinstance(response, RocketMQError):
            raise response
        return response

    async def send_all(self, group: str) -> None:
        assert group == "billing"
        self.beats += 1


class PoppedQueues:
    """A broker assignment: one queue of each topic, to be popped."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_known = self.is_supported = True

    async def of(self, topic: str, strategy: object, address: str) -> Assignment | None:
        self.asked.append(address)
        if not self.is_supported:
            raise NotSupportedError(3, "no such request", address)
        if not self.is_known:
            return None
        return {queue(0, topic=topic): MessageRequestMode.POP}


class GroupEnv:
    """A rebalancer and its last decision for each topic."""

    def __init__(self, instance: Instance, **settings: Any) -> None:  # noqa: ANN401
        self.topics = ["orders"]
        self.decided: dict[str, list[int]] = {}
        self.rounds = 0
        self.can_be_applied = True
        context = ConsumerContext(
            cast(MQClientInstance, instance),
            "billing",
            LitePullConfig(**settings),
            on_failed=lambda error: None,
        )
        self.rebalancer = Rebalancer(context, topics=lambda: self.topics, apply=self.apply)

    async def apply(self, shares: dict[str, frozenset[MessageQueue]]) -> bool:
        self.rounds += 1
        self.decided |= {t: sorted(q.queue_id for q in share) for t, share in shares.items()}
        return self.can_be_applied


@pytest.fixture
def instance() -> Instance:
    return Instance()


@pytest.fixture
def group(instance: Instance) -> GroupEnv:
    return GroupEnv(instance)


async def test_only_member_gets_all_queues(group: GroupEnv) -> None:
    assert await group.rebalancer.round()
    assert group.decided == {"orders": list(range(8))}
    assert not group.rebalancer.has_other_members


async def test_members_share_the_queues(instance: Instance, group: GroupEnv) -> None:
    instance.members = ["zoe", "me", "ann"]

    assert await group.rebalancer.round()
    assert group.decided == {"orders": [3, 4, 5]}
    assert group.rebalancer.has_other_members


async def test_members_that_one_of_several_brokers_lists_count(
    instance: Instance, group: GroupEnv
) -> None:
    """The others do not know a member yet that has just joined."""
    group.topics = ["orders", "invoices"]
    instance.queues = dict.fromkeys(group.topics, 8)
    instance.brokers = {"invoices": "broker-b"}
    instance.responses = [["me", "zoe"], ["me"]]
    await group.rebalancer.round()

    assert group.rebalancer.has_other_members


async def test_each_broker_is_asked_for_the_members_once_in_a_round(
    instance: Instance, group: GroupEnv
) -> None:
    group.topics = [f"topic-{number}" for number in range(20)]
    instance.queues = dict.fromkeys(group.topics, 8)
    instance.brokers = dict.fromkeys(group.topics[15:], "broker-b")
    instance.members = ["zoe", "me", "ann"]
    await group.rebalancer.round()

    assert instance.queried == 2
    assert group.decided == {topic: [3, 4, 5] for topic in group.topics}
    await group.rebalancer.round()
    assert instance.queried == 4


async def test_topics_do_not_wait_for_each_other(instance: Instance, group: GroupEnv) -> None:
    group.topics = ["orders", *(f"topic-{number}" for number in range(5))]
    instance.queues = dict.fromkeys(group.topics, 1)
    instance.brokers = {topic: f"broker-of-{topic}" for topic in group.topics}
    instance.may_answer = asyncio.Event()
    computing = asyncio.create_task(group.rebalancer.round())
    await wait_all_tasks_blocked()
    queried = instance.queried
    instance.may_answer.set()

    assert await computing
    assert queried == 6
    assert set(group.decided) == set(group.topics)


async def test_a_broker_that_fails_is_queried_once_in_a_round(
    instance: Instance, group: GroupEnv
) -> None:
    group.topics = ["orders", "invoices", "bills"]
    instance.queues = dict.fromkeys(group.topics, 1)
    instance.brokers = {"bills": "broker-b"}
    instance.responses = [DOWN]

    assert not await group.rebalancer.round()
    assert instance.queried == 2
    assert set(group.decided) == {"bills"}


async def test_popped_queues_of_an_unsubscribed_topic_are_forgotten(
    instance: Instance, group: GroupEnv
) -> None:
    instance.queues["invoices"] = 1
    rebalancer = group.rebalancer
    rebalancer._assignment = cast(BrokerAssignment, PoppedQueues())
    group.topics = ["orders", "invoices"]
    await rebalancer.round()
    both = set(rebalancer.popped)
    group.topics = ["invoices"]
    await rebalancer.round()

    assert both == {"orders", "invoices"}
    assert set(rebalancer.popped) == {"invoices"}


async def test_a_topic_that_brokers_do_not_assign_any_more_is_pulled(
    instance: Instance, group: GroupEnv
) -> None:
    assignment = PoppedQueues()
    group.rebalancer._assignment = cast(BrokerAssignment, assignment)
    await group.rebalancer.round()
    assert set(group.rebalancer.popped) == {"orders"}
    assignment.is_supported = False

    assert await group.rebalancer.round()
    assert group.rebalancer.popped == {}
    assert group.decided == {"orders": list(range(8))}


async def test_only_queues_that_are_assigned_to_be_popped_are_popped(
    instance: Instance, group: GroupEnv
) -> None:
    class Mixed(PoppedQueues):
        async def of(self, topic: str, strategy: object, address: str) -> Assignment | None:
            return {queue(0): MessageRequestMode.POP, queue(1): MessageRequestMode.PULL}

    group.rebalancer._assignment = cast(BrokerAssignment, Mixed())

    assert await group.rebalancer.round()
    assert group.decided == {"orders": [0, 1]}
    assert group.rebalancer.popped == {"orders": {queue(0)}}


async def test_assignments_of_topics_do_not_wait_for_each_other(
    instance: Instance, group: GroupEnv
) -> None:
    class Blocked(PoppedQueues):
        async def of(self, topic: str, strategy: object, address: str) -> Assignment | None:
            self.asked.append(topic)
            await asyncio.Event().wait()
            return {}

    assignment = Blocked()
    instance.queues["invoices"] = 1
    group.topics = ["orders", "invoices"]
    group.rebalancer._assignment = cast(BrokerAssignment, assignment)
    running = asyncio.create_task(group.rebalancer.round())
    await wait_all_tasks_blocked()
    running.cancel()

    assert assignment.asked == ["orders", "invoices"]


async def test_a_topic_that_the_assigning_broker_does_not_know_keeps_its_queues(
    instance: Instance, group: GroupEnv
) -> None:
    assignment = PoppedQueues()
    group.rebalancer._assignment = cast(BrokerAssignment, assignment)
    assignment.is_known = False

    assert not await group.rebalancer.round()
    assert group.decided == {}


async def test_the_broker_that_lists_the_members_assigns_their_queues(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have restarted: it would assign nothing."""
    chosen, listed = iter(["broker-a", "broker-b"]), list[str]()
    list_members = instance.consumer_ids_at

    async def consumer_ids_at(group: str, address: str) -> list[str]:
        listed.append(address)
        return await list_members(group, address)

    monkeypatch.setattr(instance, "any_broker", lambda _topic: next(chosen))
    monkeypatch.setattr(instance, "consumer_ids_at", consumer_ids_at)
    assignment = PoppedQueues()
    group.rebalancer._assignment = cast(BrokerAssignment, assignment)

    assert await group.rebalancer.round()
    assert assignment.asked == listed == ["broker-a"]


async def test_topics_are_allocated_independently(instance: Instance, group: GroupEnv) -> None:
    instance.queues["invoices"] = 3
    instance.members = ["me", "zoe"]
    group.topics = ["orders", "invoices"]
    await group.rebalancer.round()

    assert group.decided == {"orders": [0, 1, 2, 3], "invoices": [0, 1]}


async def test_with_more_members_than_queues_some_are_idle(
    instance: Instance, group: GroupEnv
) -> None:
    instance.queues["orders"] = 2
    instance.members = ["ann", "bob", "me"]

    assert await group.rebalancer.round()
    assert group.decided == {"orders": []}


async def test_broadcasting_assigns_everything_without_requests(instance: Instance) -> None:
    group = GroupEnv(instance, message_model=MessageModel.BROADCASTING)
    instance.members = ["me", "zoe"]

    assert await group.rebalancer.round()
    assert (group.decided, instance.queried) == ({"orders": list(range(8))}, 0)


@pytest.mark.parametrize("error", [DOWN, RequestTimeoutError("a", 38, 3.0)])
async def test_round_without_member_list_changes_nothing(
    instance: Instance, group: GroupEnv, error: RocketMQError
) -> None:
    instance.responses = [error]

    assert not await group.rebalancer.round()
    assert group.decided == {}


async def test_failing_topic_does_not_block_another(instance: Instance, group: GroupEnv) -> None:
    instance.queues["invoices"] = 2
    instance.brokers = {"invoices": "broker-b"}
    instance.responses = [DOWN]
    group.topics = ["orders", "invoices"]

    assert not await group.rebalancer.round()
    assert group.decided == {"invoices": [0, 1]}


async def test_unknown_member_sends_a_heartbeat_and_repeats_the_query(
    instance: Instance, group: GroupEnv
) -> None:
    instance.responses = [["zoe"]]

    assert await group.rebalancer.round()
    assert instance.beats == 1
    assert group.decided == {"orders": list(range(8))}


@pytest.mark.parametrize("members", [[], ["zoe"]])
async def test_member_unknown_to_the_broker_keeps_its_queues(
    instance: Instance, group: GroupEnv, members: list[str]
) -> None:
    instance.members = members

    assert not await group.rebalancer.round()
    assert group.decided == {}


async def test_members_that_have_not_reconnected_to_a_restarted_broker_keep_their_queues(
    instance: Instance, group: GroupEnv
) -> None:
    instance.members = ["me", "zoe"]
    await group.rebalancer.round()
    instance.connections += 1
    instance.members = ["me"]

    assert not await group.rebalancer.round()
    assert not await group.rebalancer.round()
    assert group.decided == {"orders": [0, 1, 2, 3]}
    assert instance.checks == 0  # it lists this member: it knows the group

    instance.members = ["me", "zoe"]
    assert await group.rebalancer.round()
    instance.members = ["me"]
    assert await group.rebalancer.round()
    assert group.decided == {"orders": list(range(8))}


async def test_members_that_do_not_reconnect_to_a_restarted_broker_lose_their_queues(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "RECONNECTION_SECONDS", 0.001)
    instance.members = ["me", "zoe"]
    await group.rebalancer.round()
    instance.connections += 1
    instance.members = ["me"]

    assert not await group.rebalancer.round()
    await asyncio.sleep(0.01)
    assert await group.rebalancer.round()
    assert group.decided == {"orders": list(range(8))}


async def test_members_are_awaited_at_a_broker_that_restarted_with_another_address(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "broker_at", lambda _: "broker-a")
    instance.members = ["me", "zoe"]
    await group.rebalancer.round()
    instance.brokers["orders"] = "its new address"
    instance.connections += 1
    instance.members = ["me"]

    assert not await group.rebalancer.round()
    assert group.decided == {"orders": [0, 1, 2, 3]}


async def test_members_are_awaited_at_each_of_several_restarted_brokers(
    instance: Instance, group: GroupEnv
) -> None:
    instance.queues["invoices"] = 8
    instance.brokers["invoices"] = "broker-b"
    group.topics = ["orders", "invoices"]
    instance.members = ["me", "zoe"]
    await group.rebalancer.round()
    instance.connections += 1
    instance.members = ["me"]

    assert not await group.rebalancer.round()
    assert group.decided == {"orders": [0, 1, 2, 3], "invoices": [0, 1, 2, 3]}


async def test_member_lists_of_a_limited_number_of_brokers_are_remembered(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "MAX_BROKERS", 2)
    for broker in ("a", "b", "c"):
        instance.brokers["orders"] = broker
        assert await group.rebalancer.round()

    assert list(group.rebalancer._listed) == ["c"]


async def test_a_group_whose_members_are_unknown_keeps_its_size(
    instance: Instance, group: GroupEnv
) -> None:
    instance.members = ["me", "zoe"]
    await group.rebalancer.round()
    instance.members = []
    await group.rebalancer.round()

    assert group.rebalancer.has_other_members


async def test_queues_of_a_departed_member_are_taken_over_in_the_next_round(
    instance: Instance, group: GroupEnv
) -> None:
    instance.members = ["me", "zoe"]
    await group.rebalancer.round()
    instance.members = ["me"]

    assert await group.rebalancer.round()
    assert group.decided == {"orders": list(range(8))}


async def test_round_is_incomplete_while_the_share_of_a_known_retry_topic_is_unknown(
    instance: Instance, group: GroupEnv
) -> None:
    group.topics = ["orders", "%RETRY%billing"]
    instance.brokers["%RETRY%billing"] = "broker-b"
    assert await group.rebalancer.round()

    instance.queues["%RETRY%billing"] = 1
    instance.responses = [["me"], DOWN]
    assert not await group.rebalancer.round()


async def test_topic_without_a_route_keeps_its_queues(instance: Instance, group: GroupEnv) -> None:
    instance.queues.clear()

    assert not await group.rebalancer.round()
    assert group.decided == {}


async def test_a_topic_that_was_deleted_has_no_queues(instance: Instance, group: GroupEnv) -> None:
    instance.queues.clear()
    instance.gone = {"orders"}

    assert await group.rebalancer.round()
    assert group.decided == {"orders": []}


async def test_custom_strategy_allocates_queues(instance: Instance) -> None:
    def last_one(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return [queues[-1]]

    group = GroupEnv(instance, allocate=last_one)
    await group.rebalancer.round()

    assert group.decided == {"orders": [7]}


async def test_topics_may_have_different_strategies(instance: Instance) -> None:
    instance.queues["bills"] = 4
    instance.members = ["me", "you"]
    group = GroupEnv(instance, allocate={"bills": AllocateAveragelyByCircle()})
    group.topics.append("bills")
    await group.rebalancer.round()

    assert group.decided == {"orders": [0, 1, 2, 3], "bills": [0, 2]}


async def test_failing_strategy_changes_nothing_and_is_logged(
    instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(client_id: str, queues: object, client_ids: object) -> list[MessageQueue]:
        raise LookupError("a bug")

    group = GroupEnv(instance, allocate=broken)
    with caplog.at_level("WARNING", "rocketmq_aio"):
        assert not await group.rebalancer.round()

    assert group.decided == {}
    assert "allocation_failed" in caplog.text
    assert "a bug" in caplog.text


async def test_strategy_that_keeps_failing_is_logged_again_only_with_another_reason(
    instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = ["one", "one", "two", None, "two"]

    def broken(client_id: str, queues: object, client_ids: object) -> list[MessageQueue]:
        if reason := reasons.pop(0):
            raise LookupError(reason)
        return []

    group = GroupEnv(instance, allocate=broken)
    with caplog.at_level("WARNING", "rocketmq_aio"):
        while reasons:
            await group.rebalancer.round()

    logged = [each.getMessage() for each in caplog.records]
    assert [text.count("one") for text in logged] == [1, 0, 0]
    assert [text.count("two") for text in logged] == [0, 1, 1]


async def test_failures_of_a_topic_are_forgotten_with_its_subscription(
    instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(client_id: str, queues: object, client_ids: object) -> list[MessageQueue]:
        raise LookupError("a bug")

    group = GroupEnv(instance, allocate=broken)
    instance.members = ["zoe"]
    await group.rebalancer.round()  # this member is not listed
    assert set(group.rebalancer._missing_group._unlisted) == {"orders"}
    instance.members = ["me"]
    with caplog.at_level("WARNING", "rocketmq_aio"):
        for topics in (["orders"], [], ["orders"]):
            group.topics = topics
            await group.rebalancer.round()
    assert caplog.text.count("a bug") == 2
    instance.members = ["zoe"]
    await group.rebalancer.round()
    group.topics = []
    await group.rebalancer.round()

    assert group.rebalancer._missing_group._unlisted == {}


async def test_member_change_starts_a_round(instance: Instance, group: GroupEnv) -> None:
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.rounds == 1)
    instance.members = ["me", "zoe"]
    group.rebalancer.wake()
    await until(lambda: group.rounds == 2)
    running.cancel()

    assert group.decided == {"orders": [0, 1, 2, 3]}


async def test_notifications_are_merged_into_one_round(
    group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "LEAST_SECONDS", 60.0)
    running = asyncio.create_task(group.rebalancer.run())
    for _ in range(2000):
        group.rebalancer.wake()
        await asyncio.sleep(0)
    running.cancel()

    assert group.rounds == 1


async def test_notifications_are_merged_for_longer_in_large_groups(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(rebalance_module, "MEMBER_SECONDS", 1.0)
    monkeypatch.setattr(rebalance_module, "MOST_SECONDS", 60.0)
    instance.members = ["me", *(f"member-{number}" for number in range(99))]
    running = asyncio.create_task(group.rebalancer.run())
    for _ in range(2000):
        group.rebalancer.wake()
        await asyncio.sleep(0)
    running.cancel()

    assert group.rounds == 1


async def test_the_time_between_rounds_of_a_large_group_is_limited(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "MEMBER_SECONDS", 60.0)
    monkeypatch.setattr(rebalance_module, "MOST_SECONDS", 0.001)
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.rounds == 1)
    group.rebalancer.wake()
    await until(lambda: group.rounds == 2)
    running.cancel()


async def test_a_complete_round_is_not_repeated_before_the_interval(
    group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEAST_SECONDS", "MEMBER_SECONDS", "INCOMPLETE_SECONDS"):
        monkeypatch.setattr(rebalance_module, name, 0.0)
    running = asyncio.create_task(group.rebalancer.run())
    await settle(turns=200)
    running.cancel()

    assert group.rounds == 1


async def test_incomplete_round_is_repeated_soon(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "INCOMPLETE_SECONDS", 0.01)
    monkeypatch.setattr(rebalance_module, "LEAST_SECONDS", 0.001)
    instance.responses = [DOWN, DOWN, DOWN]
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.decided)
    running.cancel()

    assert group.rounds == 4


async def test_rounds_run_regularly_without_notification(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "LEAST_SECONDS", 0.001)
    group = GroupEnv(instance, rebalance_interval_seconds=0.01)
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.rounds >= 3)

    running.cancel()


async def test_assignment_is_complete_once_every_topic_is(
    instance: Instance, group: GroupEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "INCOMPLETE_SECONDS", 0.01)
    instance.responses = [DOWN]
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.rounds == 1)
    assert not waiting.done()

    await asyncio.wait_for(waiting, 15)
    assert group.decided
    running.cancel()


async def test_assignment_is_incomplete_without_topics(group: GroupEnv) -> None:
    group.topics = []
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    running = asyncio.create_task(group.rebalancer.run())
    await wait_all_tasks_blocked()
    assert (waiting.done(), group.rounds) == (False, 0)
    group.topics = ["orders"]
    group.rebalancer.expect_more()

    await asyncio.wait_for(waiting, 15)
    running.cancel()


async def test_round_overtaken_by_a_new_topic_is_incomplete(
    instance: Instance, group: GroupEnv
) -> None:
    instance.may_answer = asyncio.Event()
    instance.queues["invoices"] = 2
    running = asyncio.create_task(group.rebalancer.run())
    await wait_all_tasks_blocked()
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    await wait_all_tasks_blocked()
    group.topics = ["orders", "invoices"]
    group.rebalancer.expect_more()
    instance.may_answer.set()

    await asyncio.wait_for(waiting, 15)
    assert set(group.decided) == {"orders", "invoices"}
    running.cancel()


async def test_a_complete_assignment_is_incomplete_after_a_new_topic(
    instance: Instance, group: GroupEnv
) -> None:
    instance.queues["invoices"] = 2
    running = asyncio.create_task(group.rebalancer.run())
    await group.rebalancer.wait_until_complete()
    group.topics = ["orders", "invoices"]
    group.rebalancer.expect_more()

    await asyncio.wait_for(group.rebalancer.wait_until_complete(), 15)
    assert set(group.decided) == {"orders", "invoices"}
    running.cancel()


async def test_waiters_return_when_all_topics_are_complete(group: GroupEnv) -> None:
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    await wait_all_tasks_blocked()
    group.rebalancer.expect_more()
    running = asyncio.create_task(group.rebalancer.run())

    await asyncio.wait_for(waiting, 15)
    running.cancel()


async def test_end_wakes_waiters(group: GroupEnv) -> None:
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    await wait_all_tasks_blocked()
    group.rebalancer.end()
    group.rebalancer.expect_more()

    await asyncio.wait_for(waiting, 15)
    await asyncio.wait_for(group.rebalancer.wait_until_complete(), 15)


async def test_share_that_is_not_admitted_is_incomplete(group: GroupEnv) -> None:
    group.can_be_applied = False

    assert not await group.rebalancer.round()


class OneRoom:
    """A resolver that finds everything in one room, by names without a namespace."""

    def room_of_broker(self, queue: MessageQueue) -> str:
        assert queue.topic == "orders"
        return "one"

    def room_of_client(self, client_id: str) -> str:
        return "one"


@pytest.mark.parametrize("nearby", [False, True], ids=["hash", "nearby"])
async def test_members_hash_topics_with_their_namespace(instance: Instance, nearby: bool) -> None:
    """As Java members do: otherwise both had some queues, and nobody others."""
    strategy = AllocateConsistentHash()
    instance.members = members = ["me", "other"]
    instance.namespace = Namespace("shop")
    stored = [queue(number, topic="shop%orders") for number in range(8)]
    group = GroupEnv(
        instance, allocate=AllocateMachineRoomNearby(strategy, OneRoom()) if nearby else strategy
    )
    await group.rebalancer.round()

    assert group.decided["orders"] == [each.queue_id for each in strategy("me", stored, members)]
    plain = strategy("me", [queue(number) for number in range(8)], members)
    assert group.decided["orders"] != [each.queue_id for each in plain]
