"""Rounds of a rebalance: what they decide, and that one which cannot know changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.rebalance import rebalancer as rebalance_module
from rocketmq_aio.consumer.rebalance.rebalancer import Rebalancer
from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateAveragelyByCircle
from rocketmq_aio.errors import NotConnectedError, RequestTimeoutError, RocketMQError
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.instance.routes import TopicRoute
from rocketmq_aio.model.values import MessageModel, MessageQueue
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

DOWN = NotConnectedError("127.0.0.1:10911", "connection refused")


class Neighbours:
    """What a rebalancer asks of its instance: routes, and who is in the group."""

    client_id = "me"

    def __init__(self) -> None:
        self.routes = self.broker = self.heartbeats = self
        self.queues: dict[str, int] = {"orders": 8}
        self.gone: set[str] = set()
        self.answers: list[list[str] | RocketMQError] = []  # used up, then *members*
        self.members = ["me"]
        self.asked = 0
        self.beats = 0
        self.may_answer: asyncio.Event | None = None

    def known(self, topic: str) -> TopicRoute | None:
        if topic not in self.queues:
            return None
        queues = tuple(queue(number, topic=topic) for number in range(self.queues[topic]))
        return TopicRoute(topic=topic, publish_queues=queues, subscribe_queues=queues)

    def is_gone(self, topic: str) -> bool:
        return topic in self.gone

    async def consumer_ids(self, group: str, topic: str) -> list[str]:
        assert group == "billing"
        self.asked += 1
        if self.may_answer is not None:
            await self.may_answer.wait()
        answer = self.answers.pop(0) if self.answers else self.members
        if isinstance(answer, RocketMQError):
            raise answer
        return answer

    async def send_all(self, *, anew: bool) -> None:
        assert anew
        self.beats += 1


class Group:
    """A rebalancer, and what it decided last of each topic."""

    def __init__(self, neighbours: Neighbours, **settings: Any) -> None:  # noqa: ANN401
        self.topics = ["orders"]
        self.decided: dict[str, list[int]] = {}
        self.rounds = 0
        self.can_be_applied = True
        context = ConsumerContext(
            cast(MQClientInstance, neighbours),
            "billing",
            LitePullConfig(**settings),
            on_failed=lambda error: None,
        )
        self.rebalancer = Rebalancer(
            context,
            topics=lambda: self.topics,
            apply=self.apply,
        )

    async def apply(self, shares: dict[str, frozenset[MessageQueue]]) -> bool:
        self.rounds += 1
        self.decided |= {t: sorted(q.queue_id for q in share) for t, share in shares.items()}
        return self.can_be_applied


@pytest.fixture
def neighbours() -> Neighbours:
    return Neighbours()


@pytest.fixture
def group(neighbours: Neighbours) -> Group:
    return Group(neighbours)


# --- one round -----------------------------------------------------------------------------------


async def test_a_member_alone_reads_everything(group: Group) -> None:
    assert await group.rebalancer.round()
    assert group.decided == {"orders": list(range(8))}
    assert not group.rebalancer.has_other_members


async def test_members_share_the_queues(neighbours: Neighbours, group: Group) -> None:
    neighbours.members = ["zoe", "me", "ann"]

    assert await group.rebalancer.round()
    assert group.decided == {"orders": [3, 4, 5]}
    assert group.rebalancer.has_other_members


async def test_every_topic_is_shared_by_itself(neighbours: Neighbours, group: Group) -> None:
    neighbours.queues["invoices"] = 3
    neighbours.members = ["me", "zoe"]
    group.topics = ["orders", "invoices"]
    await group.rebalancer.round()

    assert group.decided == {"orders": [0, 1, 2, 3], "invoices": [0, 1]}


async def test_with_more_members_than_queues_some_are_idle(
    neighbours: Neighbours, group: Group
) -> None:
    neighbours.queues["orders"] = 2
    neighbours.members = ["ann", "bob", "me"]

    assert await group.rebalancer.round()
    assert group.decided == {"orders": []}


async def test_members_of_a_broadcasting_group_read_everything_and_ask_nobody(
    neighbours: Neighbours,
) -> None:
    group = Group(neighbours, message_model=MessageModel.BROADCASTING)
    neighbours.members = ["me", "zoe"]

    assert await group.rebalancer.round()
    assert (group.decided, neighbours.asked) == ({"orders": list(range(8))}, 0)


@pytest.mark.parametrize("error", [DOWN, RequestTimeoutError("a", 38, 3.0)])
async def test_a_round_that_cannot_know_the_members_changes_nothing(
    neighbours: Neighbours, group: Group, error: RocketMQError
) -> None:
    neighbours.answers = [error]

    assert not await group.rebalancer.round()
    assert group.decided == {}


async def test_a_topic_that_fails_does_not_hold_up_another(
    neighbours: Neighbours, group: Group
) -> None:
    neighbours.queues["invoices"] = 2
    neighbours.answers = [DOWN]
    group.topics = ["orders", "invoices"]

    assert not await group.rebalancer.round()
    assert group.decided == {"invoices": [0, 1]}


async def test_a_broker_that_does_not_know_us_is_told_and_asked_again(
    neighbours: Neighbours, group: Group
) -> None:
    neighbours.answers = [["zoe"]]

    assert await group.rebalancer.round()
    assert neighbours.beats == 1
    assert group.decided == {"orders": list(range(8))}


@pytest.mark.parametrize("members", [[], ["zoe"]])
async def test_a_broker_that_does_not_learn_who_we_are_takes_no_queue_from_us(
    neighbours: Neighbours, group: Group, members: list[str]
) -> None:
    neighbours.members = members

    assert not await group.rebalancer.round()
    assert group.decided == {}


async def test_a_topic_whose_route_is_unknown_is_left_as_it_is(
    neighbours: Neighbours, group: Group
) -> None:
    neighbours.queues.clear()

    assert not await group.rebalancer.round()
    assert group.decided == {}


async def test_a_topic_that_was_deleted_has_no_queues(neighbours: Neighbours, group: Group) -> None:
    neighbours.queues.clear()
    neighbours.gone = {"orders"}

    assert await group.rebalancer.round()
    assert group.decided == {"orders": []}


async def test_the_application_may_share_out_queues_itself(neighbours: Neighbours) -> None:
    def last_one(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return [queues[-1]]

    group = Group(neighbours, allocate=last_one)
    await group.rebalancer.round()

    assert group.decided == {"orders": [7]}


async def test_topics_may_be_shared_out_each_in_its_way(neighbours: Neighbours) -> None:
    neighbours.queues["bills"] = 4
    neighbours.members = ["me", "you"]
    group = Group(neighbours, allocate={"bills": AllocateAveragelyByCircle()})
    group.topics.append("bills")
    await group.rebalancer.round()

    assert group.decided == {"orders": [0, 1, 2, 3], "bills": [0, 2]}


async def test_a_strategy_that_fails_changes_nothing_and_is_heard(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(client_id: str, queues: object, client_ids: object) -> list[MessageQueue]:
        raise LookupError("a bug")

    group = Group(neighbours, allocate=broken)
    with caplog.at_level("WARNING", "rocketmq_aio"):
        assert not await group.rebalancer.round()

    assert group.decided == {}
    assert "allocation_failed" in caplog.text
    assert "a bug" in caplog.text


# --- many rounds ---------------------------------------------------------------------------------


async def test_a_change_of_the_members_begins_a_round(neighbours: Neighbours, group: Group) -> None:
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.rounds == 1)
    neighbours.members = ["me", "zoe"]
    group.rebalancer.wake()
    await until(lambda: group.rounds == 2)
    running.cancel()

    assert group.decided == {"orders": [0, 1, 2, 3]}


async def test_a_flood_of_notifications_is_one_round_at_a_time(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "LEAST_SECONDS", 60.0)
    running = asyncio.create_task(group.rebalancer.run())
    for _ in range(2000):
        group.rebalancer.wake()
        await asyncio.sleep(0)
    running.cancel()

    assert group.rounds == 1


async def test_a_round_that_failed_is_tried_again_soon(
    neighbours: Neighbours, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "INCOMPLETE_SECONDS", 0.01)
    monkeypatch.setattr(rebalance_module, "LEAST_SECONDS", 0.001)
    neighbours.answers = [DOWN, DOWN, DOWN]
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.decided)
    running.cancel()

    assert group.rounds == 4


async def test_it_looks_now_and_then_though_nobody_tells(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "LEAST_SECONDS", 0.001)
    group = Group(neighbours, rebalance_interval_seconds=0.01)
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.rounds >= 3)

    running.cancel()


# --- being settled -------------------------------------------------------------------------------


async def test_it_is_settled_once_every_topic_is(
    neighbours: Neighbours, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "INCOMPLETE_SECONDS", 0.01)
    neighbours.answers = [DOWN]
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    running = asyncio.create_task(group.rebalancer.run())
    await until(lambda: group.rounds == 1)
    assert not waiting.done()

    await asyncio.wait_for(waiting, 15)
    assert group.decided
    running.cancel()


async def test_without_a_topic_nothing_is_settled(group: Group) -> None:
    group.topics = []
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    running = asyncio.create_task(group.rebalancer.run())
    await wait_all_tasks_blocked()
    assert (waiting.done(), group.rounds) == (False, 0)
    group.topics = ["orders"]
    group.rebalancer.expect_more()

    await asyncio.wait_for(waiting, 15)
    running.cancel()


async def test_a_round_that_was_overtaken_by_a_new_topic_settles_nothing(
    neighbours: Neighbours, group: Group
) -> None:
    neighbours.may_answer = asyncio.Event()
    neighbours.queues["invoices"] = 2
    running = asyncio.create_task(group.rebalancer.run())
    await wait_all_tasks_blocked()
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    await wait_all_tasks_blocked()
    group.topics = ["orders", "invoices"]
    group.rebalancer.expect_more()
    neighbours.may_answer.set()

    await asyncio.wait_for(waiting, 15)
    assert set(group.decided) == {"orders", "invoices"}
    running.cancel()


async def test_who_waits_for_an_older_topic_hears_when_all_are_settled(group: Group) -> None:
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    await wait_all_tasks_blocked()
    group.rebalancer.expect_more()
    running = asyncio.create_task(group.rebalancer.run())

    await asyncio.wait_for(waiting, 15)
    running.cancel()


async def test_the_end_lets_go_of_who_waits(group: Group) -> None:
    waiting = asyncio.create_task(group.rebalancer.wait_until_complete())
    await wait_all_tasks_blocked()
    group.rebalancer.end()
    group.rebalancer.expect_more()

    await asyncio.wait_for(waiting, 15)
    await asyncio.wait_for(group.rebalancer.wait_until_complete(), 15)


async def test_a_share_that_cannot_be_taken_on_yet_is_not_settled(group: Group) -> None:
    group.can_be_applied = False

    assert not await group.rebalancer.round()
