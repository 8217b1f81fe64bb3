"""LitePullEngine on a scripted cluster: starts, changing routes, requests by brokers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.events import OffsetCorrected
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.instance import routes as routes_module
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import ConsumerRunningInfo, HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.from_broker import (
    GetConsumerRunningInfo,
    GetConsumerStatus,
    ResetOffset,
)
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
from tests.unit.consumer.puller_env import moved
from tests.unit.remoting.until import settle, until


def config(cluster: FakeCluster) -> ClientConfig:
    """Look for changed routes so often that a test need not wait."""
    return ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=0.02)


async def test_a_new_group_skips_old_messages_and_misses_no_new_ones(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    async with consuming(cluster, start_from="latest") as consumer:
        await committed(cluster, {number: 5 if number == 0 else 0 for number in range(4)})
        put(cluster, "new")

        assert bodies(await polled(consumer, 1)) == ["new"]


@pytest.mark.parametrize("running", [False, True])
async def test_latest_begins_when_the_subscription_or_the_start_returns(
    cluster: FakeCluster, running: bool
) -> None:
    put(cluster, *numbers(5))
    consumer = consumer_of(cluster, start_from="latest")
    if not running:
        await consumer.subscribe(TOPIC)
    async with consumer:
        if running:
            await consumer.subscribe(TOPIC)
        put(cluster, "new")

        assert bodies(await polled(consumer, 1)) == ["new"]


async def test_the_newest_store_time_that_was_pulled_is_noted_when_a_topic_is_gone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells later whether the topic was created again, also if the clocks differ."""
    put(cluster, *numbers(3))
    put(cluster, "last", queue_id=1)
    async with consuming(cluster) as consumer:
        pulled = await polled(consumer, 4)
        engine, noted = consumer._engine, list[object]()
        monkeypatch.setattr(engine.starts, "note_gone", lambda *call: noted.append(call))
        monkeypatch.setattr(engine.instance.routes, "is_gone", lambda topic: True)
        engine.on_route_changed(TOPIC)

        newest = max(millis_of(each.store_time) for each in pulled)
        assert noted == [(TOPIC, {pulled[0].queue.broker_name: newest})]


async def test_routes_of_other_topics_cause_no_rebalance(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of one instance have many topics: its consumers would all rebalance for each."""
    async with consuming(cluster) as consumer:
        woken: list[str] = []
        monkeypatch.setattr(consumer._engine.rebalancer, "wake", lambda: woken.append("woken"))
        consumer._engine.on_route_changed("another")
        assert woken == []

        consumer._engine.on_route_changed(TOPIC)
        assert woken == ["woken"]


async def test_latest_means_the_same_after_a_crash(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))

    async def crash() -> None:
        async with consuming(cluster, start_from="latest", auto_commit=False):
            await committed(cluster, {0: 5})
            put(cluster, "meanwhile")
            raise LookupError

    with pytest.raises(LookupError):
        await crash()
    async with consuming(cluster, start_from="latest") as consumer:
        assert bodies(await polled(consumer, 1)) == ["meanwhile"]


async def test_a_new_group_may_start_at_a_time(cluster: FakeCluster) -> None:
    put(cluster, "old")
    cluster.broker.state.store.topics[TOPIC].queues[0].messages.clear()
    put(cluster, *numbers(3))
    hour = timedelta(hours=1)
    async with consuming(cluster, start_from=datetime.now(UTC) - hour) as consumer:
        assert bodies(await polled(consumer, 3)) == numbers(3)
    async with consuming(cluster, start_from=datetime.now(UTC) + hour, group="late") as consumer:
        assert await consumer.position(queue()) == 3


async def test_a_topic_that_appears_later_is_read_from_its_beginning(cluster: FakeCluster) -> None:
    async with (
        consumer_of(cluster, "one", start_from="latest") as latest,
        consumer_of(cluster, "other", start_from="earliest") as earliest,
    ):
        await latest.subscribe("invoices")
        await earliest.subscribe("invoices")
        cluster.create_topic("invoices", 2)
        put(cluster, "first", topic="invoices")
        async with asyncio.timeout(15):
            assert bodies(await polled(latest, 1)) == ["first"]
            assert bodies(await polled(earliest, 1)) == ["first"]


@pytest.mark.parametrize("start_from", ["latest", "earliest"])
async def test_a_queue_that_is_added_later_is_read_from_its_beginning(
    cluster: FakeCluster, start_from: str
) -> None:
    client = config(cluster)
    async with consuming(cluster, client=client, start_from=start_from) as consumer:
        cluster.create_topic(TOPIC, 6)
        put(cluster, "in a new queue", queue_id=5)

        assert bodies(await polled(consumer, 1)) == ["in a new queue"]
        assert len(consumer.assignment()) == 6


async def test_a_young_queue_of_an_old_broker_is_read_from_its_beginning() -> None:
    async with FakeCluster(version="4.9.7", topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(3))
        async with consuming(cluster, start_from="latest") as consumer:
            assert bodies(await polled(consumer, 3)) == numbers(3)
    assert cluster.broker.requests_of(RequestCode.LITE_PULL_MESSAGE) == []


async def test_queues_come_and_go_with_the_route(cluster: FakeCluster) -> None:
    async with consuming(cluster, client=config(cluster)) as consumer:
        put(cluster, "kept", queue_id=1)
        cluster.create_topic(TOPIC, 8)
        await until(lambda: len(consumer.assignment()) == 8)
        topic = cluster.broker.topics[TOPIC]
        topic.read_queues = topic.write_queues = 4
        await until(lambda: len(consumer.assignment()) == 4)

        assert bodies(await polled(consumer, 1)) == ["kept"]


async def test_queues_of_a_removed_broker_are_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "MISSING_SECONDS", 0.1)
    async with (
        FakeCluster(2, topics={TOPIC: 2}) as cluster,
        consuming(cluster, client=config(cluster)) as consumer,
    ):
        assert len(consumer.assignment()) == 4
        await cluster.brokers[1].stop()
        cluster.name_server.unregister(cluster.brokers[1])
        await until(lambda: len(consumer.assignment()) == 2)
        put(cluster, "a")

        assert bodies(await polled(consumer, 1)) == ["a"]


async def test_queues_of_a_deleted_topic_are_revoked_and_assigned_again(
    cluster: FakeCluster,
) -> None:
    async with consuming(cluster, client=config(cluster)) as consumer:
        gone = cluster.broker.topics.pop(TOPIC)
        await until(lambda: consumer.assignment() == [])
        cluster.broker.topics[TOPIC] = gone
        await until(lambda: len(consumer.assignment()) == 4)


async def test_queues_of_a_topic_that_name_servers_lost_are_committed_at_their_broker(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(3))
    client = config(cluster)
    async with consuming(cluster, client=client, commit_interval_seconds=60) as consumer:
        await polled(consumer, 3)
        await consumer.poll(0)
        cluster.name_server.unregister(cluster.broker)
        await until(lambda: consumer.assignment() == [])

        await committed(cluster, {0: 3})


async def test_a_listener_is_called_when_the_queues_of_a_topic_change(cluster: FakeCluster) -> None:
    events: list[tuple[str, int]] = []

    def listener(topic: str, queues: list[MessageQueue]) -> None:
        events.append((topic, len(queues)))

    async with consumer_of(cluster, client=config(cluster)) as consumer:
        await consumer.subscribe(TOPIC, on_queues_changed=listener)
        cluster.create_topic("invoices", 1)
        await consumer.listen_queues("invoices", listener)
        await consumer.ready(5)
        cluster.create_topic(TOPIC, 5)
        cluster.create_topic("invoices", 2)
        await until(lambda: len(events) == 2)

    assert sorted(events) == [("invoices", 2), (TOPIC, 5)]


async def test_a_topic_is_not_listened_to_after_it_was_unsubscribed(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        await consumer.subscribe(TOPIC, on_queues_changed=lambda _topic, _queues: None)
        await consumer.ready(5)
        await consumer.unsubscribe(TOPIC)

        assert consumer._engine.topics() == set()


async def test_a_listener_that_takes_long_is_called_for_one_change_after_another(
    cluster: FakeCluster,
) -> None:
    called, ended, first_may_end = list[int](), list[int](), asyncio.Event()

    async def listener(_topic: str, queues: list[MessageQueue]) -> None:
        called.append(len(queues))
        if len(called) == 1:
            await first_may_end.wait()
        ended.append(len(queues))

    async with consumer_of(cluster, client=config(cluster)) as consumer:
        await consumer.listen_queues(TOPIC, listener)
        cluster.create_topic(TOPIC, 5)
        await until(lambda: called == [5])
        cluster.create_topic(TOPIC, 6)
        watch = consumer._engine._watch
        await until(lambda: len(watch._known[TOPIC]) == 6)
        await settle(turns=10)
        assert called == [5]
        first_may_end.set()
        await until(lambda: ended == [5, 6])


async def test_listeners_look_for_changes_of_their_own_accord(cluster: FakeCluster) -> None:
    events: list[int] = []
    async with consumer_of(cluster, topic_check_interval_seconds=0.01) as consumer:
        await consumer.listen_queues(TOPIC, lambda _topic, queues: events.append(len(queues)))
        cluster.create_topic(TOPIC, 7)
        await until(lambda: events == [7])


async def test_a_listener_given_before_the_start_sees_the_first_change(
    cluster: FakeCluster,
) -> None:
    events: list[int] = []
    cluster.create_topic("invoices", 1)
    consumer = consumer_of(cluster, client=config(cluster))
    await consumer.listen_queues("invoices", lambda _topic, queues: events.append(len(queues)))
    async with consumer:
        cluster.create_topic("invoices", 2)
        await until(lambda: events == [2])


async def test_heartbeats_have_subscriptions_and_start_position(cluster: FakeCluster) -> None:
    async with consuming(cluster, "a || b", start_from="latest"):
        body = cluster.broker.requests_of(RequestCode.HEART_BEAT)[-1].body
    [group] = read_body(body, HeartbeatData).consumer_data_set
    [wanted] = group.subscription_data_set

    assert (group.group_name, group.message_model) == (GROUP, "CLUSTERING")
    assert group.consume_type == "CONSUME_ACTIVELY"
    assert group.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert (wanted.topic, wanted.sub_string, set(wanted.tags_set)) == (TOPIC, "a || b", {"a", "b"})


@pytest.mark.parametrize("target", [2, 7])
async def test_an_old_broker_may_move_the_group(target: int) -> None:
    async with FakeCluster(version="4.9.7", topics={TOPIC: 2}) as cluster:
        put(cluster, *numbers(10))
        async with consuming(cluster, auto_commit=False) as consumer:
            await polled(consumer, 5, max_messages=5)
            key = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
            body = msgspec.json.encode({"offsetTable": [{**key, "offset": target}]})
            header = ResetOffset(topic=TOPIC, group=GROUP, timestamp=-1, is_force=True)
            await cluster.broker.push(header, body=body)

            await committed(cluster, {0: target})
            assert bodies(await polled(consumer, 10 - target)) == numbers(10 - target, target)


async def test_a_reset_of_unassigned_queues_changes_nothing() -> None:
    async with FakeCluster(version="4.9.7", topics={TOPIC: 2}) as cluster:
        put(cluster, *numbers(4))
        async with consuming(cluster) as consumer:
            await polled(consumer, 4)
            for each in (
                {"topic": TOPIC, "brokerName": "broker-z", "queueId": 0, "offset": 0},
                {"topic": "invoices", "brokerName": "broker-a", "queueId": 0, "offset": 0},
                {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0, "offset": -5},
            ):
                header = ResetOffset(topic=TOPIC, group=GROUP, timestamp=-1, is_force=True)
                body = msgspec.json.encode({"offsetTable": [each]})
                await cluster.broker.push(header, body=body)

            assert await consumer.position(queue()) == 4


async def test_a_reset_at_the_broker_is_applied_committed_and_published(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, auto_commit=False) as consumer:
        await polled(consumer, 10)
        await consumer.commit()
        events = consumer.events()

        reset = Response(ResponseCode.PULL_OFFSET_MOVED, moved(3).ext, remark="OFFSET_RESET")
        cluster.faults.handle(RequestCode.LITE_PULL_MESSAGE, reset)
        put(cluster, "wakes the pull")

        taken = await polled(consumer, 8)
        event = await asyncio.wait_for(anext(events), 15)
        assert isinstance(event, OffsetCorrected)
        assert (event.corrected, event.remark) == (3, "OFFSET_RESET")
        assert bodies(taken)[-8:] == [*numbers(7, 3), "wakes the pull"]
        await committed(cluster, {0: 3})


async def test_a_reset_in_the_response_to_an_abandoned_pull_is_applied() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consuming(cluster, auto_commit=False) as consumer:
            with cluster.faults.hold(RequestCode.LITE_PULL_MESSAGE, executed=False) as pulls:
                await pulls.wait()
                await consumer.seek(queue(), 10)
                await cluster.broker.wait_for(RequestCode.LITE_PULL_MESSAGE, 2)
                cluster.broker.state.reset_offsets[GROUP, TOPIC, 0] = 3
                pulls.release()

            assert bodies(await polled(consumer, 7)) == numbers(7, 3)
            await committed(cluster, {0: 3})


async def test_a_reset_in_the_response_to_a_pull_of_an_earlier_assignment_is_applied() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consuming(cluster) as consumer:
            with cluster.faults.hold(RequestCode.LITE_PULL_MESSAGE, executed=False) as pulls:
                await pulls.wait()
                await consumer.unsubscribe(TOPIC)
                cluster.broker.commit(GROUP, TOPIC, 0, 10)
                await consumer.subscribe(TOPIC)
                await cluster.broker.wait_for(RequestCode.LITE_PULL_MESSAGE, 3)
                cluster.broker.state.reset_offsets[GROUP, TOPIC, 0] = 3
                pulls.release()

            assert bodies(await polled(consumer, 7)) == numbers(7, 3)


async def test_a_reset_in_the_response_to_the_comparison_of_logs_is_applied() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(10))
        async with consuming(cluster) as consumer:
            await polled(consumer, 10)
            cluster.broker.state.reset_offsets[GROUP, TOPIC, 0] = 3
            for connection in list(cluster.broker.connections.values()):
                connection.reset()

            assert bodies(await polled(consumer, 7)) == numbers(7, 3)
            await committed(cluster, {0: 3})


async def test_a_broker_may_query_consumed_offsets(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        await polled(consumer, 6, max_messages=6)
        reply = await cluster.broker.push(GetConsumerStatus(topic=TOPIC, group=GROUP))
        assert reply is not None

    table = read_body(reply.body, dict[str, dict[str, int]])["messageQueueTable"]
    assert sorted(table.values()) == [0, 0, 0, 6]


async def test_a_broker_may_query_the_running_info(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, "a || b", long_poll_seconds=7.0) as consumer:
        header = GetConsumerRunningInfo(
            consumer_group=GROUP, client_id=consumer.client.client_id, jstack_enable=False
        )
        reply = await cluster.broker.push(header)
        assert reply is not None
    info = read_body(reply.body, ConsumerRunningInfo)

    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert info.properties["brokerSuspendMaxTimeMillis"] == "7000"
    assert info.properties["PROP_NAMESERVER_ADDR"] == cluster.namesrv
    assert [each.sub_string for each in info.subscription_set] == ["a || b"]
    assert b'"queueId":3' in reply.body
