"""LitePullConsumer on a scripted cluster: subscriptions and assignments."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.consumer.common import context as context_module, listeners as listeners_module
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import ClosedError, ConfigError, PermissionDeniedError, SubscriptionError
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import (
    GROUP,
    TOPIC,
    bodies,
    committed,
    consumer_of,
    consuming,
    numbers,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until


def subscribed(broker: FakeBroker) -> dict[str, str]:
    """Return the topics and expressions of the last heartbeat."""
    data = read_body(broker.requests_of(RequestCode.HEART_BEAT)[-1].body, HeartbeatData)
    [group] = data.consumer_data_set
    return {each.topic: each.sub_string for each in group.subscription_data_set}


@pytest.mark.parametrize("before", [True, False])
async def test_a_subscription_may_come_before_or_after_the_start(
    cluster: FakeCluster, before: bool
) -> None:
    put(cluster, *numbers(3))
    consumer = consumer_of(cluster)
    if before:
        await consumer.subscribe(TOPIC)
    async with consumer:
        if not before:
            await consumer.subscribe(TOPIC)

        assert bodies(await polled(consumer, 3)) == numbers(3)
        assert consumer.assignment() == [queue(number) for number in range(4)]
        assert subscribed(cluster.broker) == {TOPIC: "*"}


async def test_several_topics_can_be_read(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 2)
    put(cluster, "order")
    put(cluster, "invoice", topic="invoices")
    async with consuming(cluster) as consumer:
        await consumer.subscribe("invoices")

        assert sorted(bodies(await polled(consumer, 2))) == ["invoice", "order"]
        assert subscribed(cluster.broker) == {TOPIC: "*", "invoices": "*"}


async def test_only_messages_of_the_subscribed_tags_are_returned(cluster: FakeCluster) -> None:
    for tag in ("Aa", "BB", "C", None):
        put(cluster, str(tag), tag=tag)
    async with consuming(cluster, "Aa || C") as consumer:
        assert bodies(await polled(consumer, 2)) == ["Aa", "C"]
        assert await consumer.position(queue()) == 4


async def test_a_new_expression_applies_from_the_next_message_on(cluster: FakeCluster) -> None:
    for number in range(10):
        put(cluster, str(number), tag="even" if number % 2 == 0 else "odd")
    async with consuming(cluster, "even") as consumer:
        first = await polled(consumer, 2, max_messages=2)
        await consumer.subscribe(TOPIC, "odd")
        rest = await polled(consumer, 4)
        put(cluster, "last", tag="odd")
        last = await polled(consumer, 1)

    assert bodies(first + rest + last) == ["0", "2", "3", "5", "7", "9", "last"]


async def test_the_same_expression_again_changes_nothing(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    async with consuming(cluster) as consumer:
        await until(lambda: consumer._engine.table[queue()].process_queue.count == 5)
        await consumer.subscribe(TOPIC)

        assert consumer._engine.table[queue()].process_queue.count == 5


async def test_an_expression_that_the_broker_cannot_parse_is_refused(cluster: FakeCluster) -> None:
    put(cluster, "a")
    async with consumer_of(cluster) as consumer:
        with pytest.raises(SubscriptionError):
            await consumer.subscribe(TOPIC, MessageSelector.by_sql("a >"))

        assert await consumer.poll(0.05) == []
        assert consumer.assignment() == []
    assert cluster.broker.requests_of(RequestCode.LITE_PULL_MESSAGE) == []


async def test_an_expression_that_was_prepared_is_refused_at_the_start(
    cluster: FakeCluster,
) -> None:
    async with nothing_left():
        consumer = consumer_of(cluster)
        await consumer.subscribe(TOPIC, MessageSelector.by_sql("a >"))
        with pytest.raises(SubscriptionError):
            await consumer.start()
        with pytest.raises(ClosedError):
            await consumer.poll(0)


async def test_sql_is_evaluated_by_the_broker(cluster: FakeCluster) -> None:
    put(cluster, "1", tag="a")
    put(cluster, "2", tag="b")
    put(cluster, "3", tag="a")
    async with consumer_of(cluster) as consumer:
        await consumer.subscribe(TOPIC, MessageSelector.by_sql("TAGS = 'a'"))

        assert bodies(await polled(consumer, 2)) == ["1", "3"]


async def test_a_refused_heartbeat_is_raised(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        refused = cluster.faults.refuse("heartbeat", 26, "no such group", times=None)
        with pytest.raises(SubscriptionError, match="no such group"):
            await consumer.subscribe(TOPIC)
        refused.remove()


async def test_a_later_expression_replaces_the_former_one_after_the_clock_was_set_back(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consuming(cluster, "a") as consumer:
        monkeypatch.setattr(context_module, "time_ns", lambda: 0)
        for expression in "b", "c":
            await consumer.subscribe(TOPIC, expression)

            group = cluster.broker.members.groups[GROUP]
            assert group.subscriptions[TOPIC].sub_string == expression


async def test_a_refused_subscription_is_not_kept(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 1)
    async with consumer_of(cluster) as consumer:
        await consumer.subscribe(TOPIC, "a")
        await consumer.ready(5)
        for topic in "invoices", TOPIC:
            refusal = Response(ResponseCode.NO_PERMISSION, remark="not allowed")
            refused = cluster.faults.handle("heartbeat", refusal, times=None)
            with pytest.raises(PermissionDeniedError):
                await consumer.subscribe(topic, "b")
            refused.remove()
            await consumer.client.heartbeats.send_all()

            assert subscribed(cluster.broker) == {TOPIC: "a"}
            subscriptions = cluster.broker.members.groups[GROUP].subscriptions
            assert {t: each.sub_string for t, each in subscriptions.items()} == {TOPIC: "a"}
            assert {queue.topic for queue in consumer.assignment()} == {TOPIC}


async def test_the_former_expression_returns_to_brokers_that_accepted_a_refused_one() -> None:
    async with FakeCluster(topics={TOPIC: 2}, brokers=2) as cluster, consuming(cluster, "a") as it:
        accepting, refusing = cluster.brokers
        denied = ResponseCode.NO_PERMISSION
        refused = refusing.faults.refuse("heartbeat", denied, broker=refusing.name, times=None)
        with pytest.raises(PermissionDeniedError):
            await it.subscribe(TOPIC, "b")
        refused.remove()
        await it.client.heartbeats.send_all()

        assert accepting.members.groups[GROUP].subscriptions[TOPIC].sub_string == "a"


async def test_a_cancelled_subscription_is_not_kept(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 1)
    async with consuming(cluster, "a") as consumer:
        for topic in "invoices", TOPIC:
            with cluster.faults.hold("heartbeat", times=None) as heartbeats:
                subscribing = asyncio.create_task(consumer.subscribe(topic, "b"))
                await heartbeats.wait()
                subscribing.cancel()
                await asyncio.wait([subscribing])
                heartbeats.release()
            await until(lambda: subscribed(cluster.broker) == {TOPIC: "a"}, "a heartbeat")

            subscriptions = cluster.broker.members.groups[GROUP].subscriptions
            assert {t: each.sub_string for t, each in subscriptions.items()} == {TOPIC: "a"}
            assert {queue.topic for queue in consumer.assignment()} == {TOPIC}


async def test_the_later_of_two_overlapping_subscriptions_wins(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consuming(cluster) as consumer:
        engine = consumer._engine
        know_route, may_go_on = engine.know_route, asyncio.Event()

        async def know_route_late(topic: str) -> None:
            monkeypatch.setattr(engine, "know_route", know_route)
            await may_go_on.wait()

        monkeypatch.setattr(engine, "know_route", know_route_late)
        calls = [asyncio.create_task(consumer.subscribe(TOPIC, each)) for each in ("a", "b")]
        await asyncio.wait(calls, timeout=0.05)
        may_go_on.set()
        await asyncio.gather(*calls)

        assert engine._subscriptions[TOPIC].expression == "b"
        assert subscribed(cluster.broker) == {TOPIC: "b"}
        assert cluster.broker.members.groups[GROUP].subscriptions[TOPIC].sub_string == "b"


async def test_a_refused_subscription_does_not_return_to_one_that_was_cancelled(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic("invoices", 1)
    async with consuming(cluster, "a") as consumer:
        with cluster.faults.hold("heartbeat", times=1) as heartbeats:
            first = asyncio.create_task(consumer.subscribe("invoices", "b"))
            await heartbeats.wait()
            second = asyncio.create_task(consumer.subscribe("invoices", "c"))
            await asyncio.sleep(0)
            refusal = Response(ResponseCode.NO_PERMISSION, remark="not allowed")
            refused = cluster.faults.handle("heartbeat", refusal, times=None)
            first.cancel()
            await asyncio.wait([first])
            heartbeats.release()
            with pytest.raises(PermissionDeniedError):
                await second
            refused.remove()
        await consumer.client.heartbeats.send_all()

        assert subscribed(cluster.broker) == {TOPIC: "a"}
        assert {queue.topic for queue in consumer.assignment()} == {TOPIC}


async def test_unsubscribing_commits_and_revokes(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 1)
    put(cluster, *numbers(4))
    async with consuming(cluster) as consumer:
        await consumer.subscribe("invoices")
        await consumer.ready(5)
        await polled(consumer, 2, max_messages=2)
        await polled(consumer, 2, max_messages=2)
        assert TOPIC in consumer.statistics()
        await consumer.unsubscribe(TOPIC)

        assert TOPIC not in consumer.statistics()
        assert cluster.broker.committed(GROUP, TOPIC, 0) == 2
        assert consumer.assignment() == [queue(0, topic="invoices")]
        assert subscribed(cluster.broker) == {"invoices": "*"}
        assert await consumer.poll(0.05) == []
        await consumer.subscribe(TOPIC)
        assert bodies(await polled(consumer, 2)) == ["2", "3"]


async def test_unsubscribing_an_unknown_topic_changes_nothing(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        await consumer.unsubscribe("invoices")

        assert len(consumer.assignment()) == 4


@pytest.mark.parametrize("before", [True, False])
async def test_queues_may_be_assigned_before_or_after_the_start(
    cluster: FakeCluster, before: bool
) -> None:
    for number in range(4):
        put(cluster, f"in {number}", queue_id=number)
    consumer = consumer_of(cluster)
    if before:
        await consumer.assign([queue(1), queue(3)])
    async with consumer:
        if not before:
            await consumer.assign([queue(1), queue(3)])

        assert consumer.assignment() == [queue(1), queue(3)]
        assert sorted(bodies(await polled(consumer, 2))) == ["in 1", "in 3"]
        await consumer.ready(5)


async def test_an_assignment_replaces_the_one_before(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 1)
    put(cluster, "invoice", topic="invoices")
    put(cluster, "order", queue_id=2)
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue(0), queue(2)])
        assert bodies(await polled(consumer, 1)) == ["order"]
        kept = consumer._engine.table[queue(2)]
        await consumer.assign([queue(2), queue(0, topic="invoices")])

        assert consumer.assignment() == [queue(0, topic="invoices"), queue(2)]
        assert consumer._engine.table[queue(2)] is kept
        assert bodies(await polled(consumer, 1)) == ["invoice"]
        await consumer.assign([queue(3)])
        assert consumer._engine.topics() == {TOPIC}


async def test_an_assignment_may_change_the_expression(cluster: FakeCluster) -> None:
    for number in range(6):
        put(cluster, str(number), tag="even" if number % 2 == 0 else "odd")
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue()], "even")
        await polled(consumer, 1, max_messages=1)
        await consumer.assign([queue()], "odd")

        assert bodies(await polled(consumer, 3)) == ["1", "3", "5"]


@pytest.mark.parametrize("before", [True, False])
async def test_assigned_topics_may_have_different_expressions(
    cluster: FakeCluster, before: bool
) -> None:
    cluster.create_topic("invoices", 1)
    for tag in ("even", "odd"):
        put(cluster, f"order {tag}", tag=tag)
        put(cluster, f"invoice {tag}", topic="invoices", tag=tag)
    queues = [queue(), MessageQueue("invoices", queue().broker_name, 0)]
    consumer = consumer_of(cluster)
    if before:
        await consumer.assign(queues, {TOPIC: MessageSelector.by_tag("even")})
    async with consumer:
        if not before:
            await consumer.assign(queues, {TOPIC: "even"})

        assert sorted(bodies(await polled(consumer, 3))) == [
            "invoice even",
            "invoice odd",
            "order even",
        ]
        with pytest.raises(ConfigError, match="topic 'orderz' has no queue"):
            await consumer.assign(queues, {"orderz": "even"})
        with pytest.raises(ConfigError, match="expected tags joined by"):
            await consumer.assign(queues, {TOPIC: 5})  # type: ignore[dict-item]


async def test_an_assignment_with_an_expression_that_a_broker_refuses_changes_nothing(
    cluster: FakeCluster,
) -> None:
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue(1)])
        with pytest.raises(SubscriptionError):
            await consumer.assign([queue(2)], MessageSelector.by_sql("a >"))

        assert consumer.assignment() == [queue(1)]


async def test_a_round_of_an_earlier_subscription_assigns_no_queues_beside_the_assigned_ones(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic("invoices", 1)
    invoices = queue(0, topic="invoices")
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue(1), invoices])
        engine = consumer._engine
        before = dict(engine.table)
        await engine._apply({TOPIC: frozenset(map(queue, range(4)))})

        assert engine.table == before


async def test_a_subscription_during_an_assignment_that_waits_outlasts_it(
    cluster: FakeCluster,
) -> None:
    async with consumer_of(cluster) as consumer:
        changing = consumer._engine._assignments.changing
        async with changing:
            assigning = asyncio.create_task(consumer.assign([queue(1)]))
            await until(lambda: changing.statistics().tasks_waiting, "the assignment")
            await consumer.subscribe(TOPIC)
        with pytest.raises(ConfigError):
            await assigning
        await consumer.ready(15)

        assert consumer.assignment() == [queue(number) for number in range(4)]


async def test_members_read_the_same_assigned_queues(cluster: FakeCluster) -> None:
    put(cluster, "a")
    async with consumer_of(cluster) as one, consumer_of(cluster) as other:
        for consumer in (one, other):
            await consumer.assign([queue()])

        assert bodies(await one.poll(5)) == bodies(await other.poll(5)) == ["a"]


async def test_one_consumer_subscribes_or_assigns(cluster: FakeCluster) -> None:
    for started in (False, True):
        one, other = consumer_of(cluster), consumer_of(cluster, "other")
        if started:
            await one.start()
            await other.start()
        await one.subscribe(TOPIC)
        with pytest.raises(ConfigError, match="exclude") as caught:
            await one.assign([queue()])
        assert (caught.value.setting, caught.value.value) == ("queues", [queue()])
        await other.assign([queue()])
        with pytest.raises(ConfigError, match="exclude") as caught:
            await other.subscribe(TOPIC)
        assert (caught.value.setting, caught.value.value) == ("topic", TOPIC)
        await one.close()
        await other.close()


@pytest.mark.parametrize("is_started", [True, False])
async def test_a_topic_can_be_subscribed_after_all_assigned_ones_are_unsubscribed(
    cluster: FakeCluster, is_started: bool
) -> None:
    put(cluster, *numbers(4))
    consumer = consumer_of(cluster)
    if is_started:
        await consumer.start()
    await consumer.assign([queue(1)])
    await consumer.unsubscribe(TOPIC)
    await consumer.subscribe(TOPIC)
    if not is_started:
        await consumer.start()
    await consumer.ready(5)

    assert bodies(await polled(consumer, 4)) == numbers(4)
    await consumer.close()


async def test_progress_of_assigned_queues_is_kept(cluster: FakeCluster) -> None:
    put(cluster, *numbers(4))
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue()])
        await polled(consumer, 4)
    await committed(cluster, {0: 4})
    put(cluster, "new")
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue()])

        assert bodies(await consumer.poll(5)) == ["new"]


async def test_message_queues_returns_the_queues_of_a_topic(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        assert await consumer.message_queues(TOPIC) == [queue(number) for number in range(4)]
        assert all(isinstance(each, MessageQueue) for each in await consumer.message_queues(TOPIC))


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes wait for listeners as long as the test runs."""
    monkeypatch.setattr(listeners_module, "LISTENER_SECONDS", 3600)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("change", ["unsubscribe", "assign"])
async def test_a_change_made_by_a_listener_follows_the_listener(
    cluster: FakeCluster, change: str
) -> None:
    cluster.create_topic("invoices", 1)
    invoices = queue(0, topic="invoices")

    async def on_revoked(_queues: tuple[MessageQueue, ...]) -> None:
        if change == "unsubscribe":
            await consumer.unsubscribe("invoices")
        else:
            await consumer.assign([queue(3)])

    async with consumer_of(cluster, listeners={"on_revoked": on_revoked}) as consumer:
        if change == "unsubscribe":
            await consumer.subscribe(TOPIC)
            await consumer.subscribe("invoices")
            await consumer.ready(15)
        else:
            await consumer.assign([queue(0), invoices])
        await consumer.unsubscribe(TOPIC)

        left = [] if change == "unsubscribe" else [queue(3)]
        await until(lambda: consumer.assignment() == left, "the change")


@pytest.mark.usefixtures("patience")
async def test_a_listener_can_subscribe_again_what_it_unsubscribed(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 1)
    called = asyncio.Event()

    async def on_revoked(queues: tuple[MessageQueue, ...]) -> None:
        if queues[0].topic == TOPIC:
            await consumer.unsubscribe("invoices")
            await consumer.subscribe("invoices")
            called.set()

    async with consumer_of(cluster, listeners={"on_revoked": on_revoked}) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.subscribe("invoices")
        await consumer.ready(15)
        await consumer.unsubscribe(TOPIC)
        await called.wait()
        await consumer.ready(15)
        put(cluster, "a", topic="invoices")

        assert bodies(await polled(consumer, 1)) == ["a"]


@pytest.mark.usefixtures("patience")
async def test_a_later_subscription_outlasts_an_unsubscription_that_waits(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic("invoices", 1)
    go = asyncio.Event()

    async def on_revoked(queues: tuple[MessageQueue, ...]) -> None:
        if queues[0].topic == "invoices":
            await go.wait()

    async with consumer_of(cluster, listeners={"on_revoked": on_revoked}) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.subscribe("invoices")
        await consumer.ready(15)
        change = asyncio.create_task(consumer.unsubscribe("invoices"))
        await until(lambda: len(consumer.assignment()) == 4, "the change")
        leaving = asyncio.create_task(consumer.unsubscribe(TOPIC))
        await asyncio.sleep(0)
        await consumer.subscribe(TOPIC)
        go.set()
        await asyncio.gather(change, leaving)
        put(cluster, "a")

        assert bodies(await polled(consumer, 1)) == ["a"]


@pytest.mark.usefixtures("patience")
async def test_a_consumer_can_be_closed_in_a_listener(cluster: FakeCluster) -> None:
    async def on_revoked(_queues: tuple[MessageQueue, ...]) -> None:
        await consumer.close()

    consumer = consumer_of(cluster, listeners={"on_revoked": on_revoked})
    consumer._close_seconds = 3600
    await consumer.start()
    await consumer.subscribe(TOPIC)
    await consumer.ready(15)
    async with asyncio.timeout(15):
        await consumer.unsubscribe(TOPIC)
        await consumer.close()

    assert cluster.broker.members.groups == {}
