"""Micro-batches: no message skipped or read twice, limits respected."""

from __future__ import annotations

import itertools
import json
import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response, resolve
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.spark.offsets import Queue, StreamOffset
from rocketmq_aio.spark.read.data_loss import DataLossError, TopicGoneError
from rocketmq_aio.spark.read.micro_batches import backlog, split_limit
from rocketmq_aio.spark.read.start_end import BrokerAwayError, TargetNotReachedError
from tests.fakes.cluster import FakeCluster
from tests.unit.remoting.until import until
from tests.unit.spark.driving import GROUP, START, TOPIC, driving, put, put_at, queue
from tests.unit.spark.reading import script_brokers

TWO_SECONDS = "1970-01-01T00:00:02Z"


def through_json(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


# --- the start ----------------------------------------------------------------------------------


async def test_the_first_end_contains_the_start() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster, driving(cluster) as driver:
        put(cluster.broker, 3)

        end = await driver.end_after(START)

        assert end.starts == end.end == {queue(0): 3, queue(1): 0}
        assert driver.ranges(START, end) == {}


async def test_latest_is_resolved_once_also_across_a_restart() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 3)
        async with driving(cluster) as first:
            end = through_json(await first.end_after(START))
        put(cluster.broker, 2)
        async with driving(cluster) as second:
            later = await second.end_after(end)

            assert second.ranges(START, end) == {}  # batch 0 again
            assert second.ranges(end, later) == {queue(0): (3, 5)}


async def test_a_repeated_batch_is_planned_without_requests() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 3)
        async with driving(cluster, startingOffsets="earliest") as driver:
            end = through_json(await driver.end_after(START))
        put(cluster.broker, 9)

        assert driver.ranges(START, end) == {queue(0): (0, 3)}


async def test_a_broker_unavailable_at_the_start_ends_the_query() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        await cluster.brokers[1].stop()

        with pytest.raises(BrokerAwayError, match=r"broker-b.*fetchOffset\.numRetries"):
            await driver.end_after(START)


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
async def test_a_start_by_time_is_exact(version: str) -> None:
    async with FakeCluster(topics={TOPIC: 1}, version=version) as cluster:
        put_at(cluster.broker, 1000, 2000, 2000, 2000, 3000)
        async with driving(cluster, startingTimestamp=TWO_SECONDS) as driver:
            end = await driver.end_after(START)

            assert driver.ranges(START, end) == {queue(0): (1, 5)}


async def test_a_stream_can_start_at_the_committed_offsets() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        put(cluster.broker, 5)
        put(cluster.broker, 5, number=1)
        cluster.broker.commit(GROUP, TOPIC, 0, 4)
        async with driving(cluster, startingOffsets="group") as driver:
            end = await driver.end_after(START)

            assert driver.ranges(START, end) == {queue(0): (4, 5), queue(1): (0, 5)}


async def test_offsets_of_queues_without_a_route_are_kept() -> None:
    wanted = json.dumps({TOPIC: {"broker-a": {"0": 2}, "broker-b": {"0": 7}}})
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster, startingOffsets=wanted) as driver:
            end = await driver.end_after(START)

            assert end.end == {queue(0): 5, queue(0, "broker-b"): 7}


async def test_an_assigned_queue_without_a_route_is_logged_until_it_exists(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = json.dumps({TOPIC: {"broker-a": [0, 1]}})
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster, assign=wanted) as driver:
        with caplog.at_level(logging.WARNING):
            first = await driver.end_after(START)
            assert await driver.end_after(first) is first
        cluster.create_topic(TOPIC, 2)
        put(cluster.broker, 2, number=1)

        end = await driver.end_after(first)

        assert caplog.text.count("queue_missing") == 1
        assert "queue=1" in caplog.text
        assert driver.ranges(first, end) == {queue(1): (0, 2)}


async def test_a_queue_with_a_start_by_time_and_without_a_route_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = json.dumps({TOPIC: {"broker-a": {"0": 10**12}, "broker-b": {"0": 10**12}}})
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 10**12)
        async with driving(cluster, startingOffsetsByTimestamp=wanted) as driver:
            with caplog.at_level(logging.WARNING):
                first = await driver.end_after(START)

    assert first.starts == {queue(0): 1}
    assert caplog.text.count("queue_missing") == 1
    assert "broker='broker-b'" in caplog.text


async def test_offsets_of_topics_that_are_not_read_are_rejected() -> None:
    wanted = json.dumps({"order": {"broker-a": {"0": 2}}})
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, startingOffsets=wanted) as driver,
    ):
        with pytest.raises(ConfigError, match=r"startingOffsets='order'.*not subscribed"):
            await driver.end_after(START)


# --- next batches ---------------------------------------------------------------------------------


async def test_without_new_messages_there_is_no_batch() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster, driving(cluster) as driver:
        end = await driver.end_after(START)

        assert await driver.end_after(end) is end


async def test_a_new_queue_is_read_from_its_minimum() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        first = await driver.end_after(START)
        cluster.create_topic(TOPIC, 2)
        put(cluster.broker, 4, number=1)
        cluster.broker.topics[TOPIC].queues[1].drop_before(1)

        end = await driver.end_after(first)

        assert end.starts == {queue(1): 1}
        assert driver.ranges(first, through_json(end)) == {queue(1): (1, 4)}


async def test_a_new_broker_is_read_from_its_minimum() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        new = cluster.brokers[1]
        cluster.name_server.unregister(new)
        first = await driver.end_after(START)
        put(new, 2)
        cluster.name_server.register(new)

        end = await driver.end_after(first)

        assert driver.ranges(first, end) == {queue(0, "broker-b"): (0, 2)}


async def test_a_start_by_time_applies_to_queues_that_are_found_later() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        away = cluster.brokers[1]
        put_at(away, 1000, 2000, 3000)
        cluster.name_server.unregister(away)
        async with driving(cluster, startingTimestamp=TWO_SECONDS) as driver:
            first = through_json(await driver.end_after(START))
        cluster.name_server.register(away)
        async with driving(cluster, startingOffsets="earliest") as driver:  # ignored
            second = through_json(await driver.end_after(first))

            assert driver.ranges(first, second) == {queue(0, "broker-b"): (1, 3)}
            assert second.since == 2000


async def test_a_start_at_a_line_of_a_checkpoint_keeps_its_start_of_later_queues() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000)
        async with driving(cluster, startingTimestamp=TWO_SECONDS) as driver:
            line = json.dumps((await driver.end_after(START)).to_json())
        put_at(cluster.broker, 3000)
        cluster.create_topic(TOPIC, 2)
        put_at(cluster.broker, 1000, 4000, number=1)
        async with driving(cluster, startingOffsets=line) as driver:
            end = through_json(await driver.end_after(START))

            assert driver.ranges(START, end) == {queue(0): (2, 3), queue(1): (1, 2)}
            assert end.since == 2000


@pytest.mark.parametrize("start", ["latest", "-1"])
async def test_after_a_start_at_latest_a_returning_broker_is_read_since_the_start(
    start: str,
) -> None:
    wanted = json.dumps({TOPIC: {"broker-a": {"0": -1}, "broker-b": {"0": -1}}})
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        away = cluster.brokers[1]
        put_at(away, 1000, 2000)
        cluster.name_server.unregister(away)
        given = start if start == "latest" else wanted
        async with driving(cluster, startingOffsets=given) as driver:
            first = through_json(await driver.end_after(START))
        put(away, 2)
        cluster.name_server.register(away)
        async with driving(cluster, startingOffsets="earliest") as driver:  # ignored by now
            second = through_json(await driver.end_after(first))

            assert driver.ranges(first, second) == {queue(0, "broker-b"): (2, 4)}


@pytest.mark.parametrize(
    ("committed", "at"),
    [(1, 1), (None, 0), (3, 2)],
    ids=["committed", "nothing_committed", "moved_on_since_the_start"],
)
async def test_after_a_start_at_the_group_a_returning_broker_is_read_from_there(
    committed: int | None, at: int
) -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        away = cluster.brokers[1]
        put_at(away, 1000, 2000)
        cluster.name_server.unregister(away)
        async with driving(cluster, startingOffsets="group") as driver:
            first = through_json(await driver.end_after(START))
        put(away, 2)
        if committed is not None:
            away.commit(GROUP, TOPIC, 0, committed)
        cluster.name_server.register(away)
        async with driving(cluster) as driver:
            second = through_json(await driver.end_after(first))

            assert driver.ranges(first, second) == {queue(0, "broker-b"): (at, 4)}


async def test_committed_offsets_that_were_deleted_meanwhile_are_a_loss() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        away = cluster.brokers[1]
        put_at(away, 1000, 2000, 3000)
        away.commit(GROUP, TOPIC, 0, 1)
        away.topics[TOPIC].queues[0].drop_before(2)
        cluster.name_server.unregister(away)
        async with driving(cluster, startingOffsets="group") as driver:
            first = await driver.end_after(START)
            cluster.name_server.register(away)

            with pytest.raises(DataLossError):
                await driver.end_after(first)


async def test_a_start_by_time_of_a_queue_applies_when_it_is_found_later() -> None:
    wanted = json.dumps({TOPIC: {"broker-b": {"0": 10**12}}})
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        away = cluster.brokers[1]
        put_at(away, 1000, 10**12, 10**12 + 1)
        cluster.name_server.unregister(away)
        async with driving(cluster, startingOffsetsByTimestamp=wanted) as driver:
            first = through_json(await driver.end_after(START))
        cluster.name_server.register(away)
        async with driving(cluster) as driver:
            second = through_json(await driver.end_after(first))

            assert driver.ranges(first, second) == {queue(0, "broker-b"): (1, 3)}
            assert second.times == {}


@pytest.mark.parametrize(
    ("options", "query", "at"),
    [
        ({"startingOffsets": "group"}, RequestCode.QUERY_CONSUMER_OFFSET, 0),
        ({"startingTimestamp": TWO_SECONDS}, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, 1),
    ],
    ids=["group", "time"],
)
async def test_a_queue_that_is_found_later_waits_until_its_start_is_known(
    options: dict[str, Any], query: RequestCode, at: int
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster, **options) as driver:
        first = await driver.end_after(START)
        cluster.create_topic(TOPIC, 2)
        put_at(cluster.broker, 1000, 2000, number=1)
        busy = Response(ResponseCode.SYSTEM_BUSY, remark="busy")
        cluster.faults.handle(query, busy, times=2)

        assert await driver.end_after(first) is first
        assert driver.ranges(first, await driver.end_after(first)) == {queue(1): (at, 2)}


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_queue_without_a_route_keeps_its_position(
    fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        gone = cluster.brokers[1]
        put(gone, 3)
        async with driving(cluster, startingOffsets="earliest", failOnDataLoss=fail) as driver:
            first = await driver.end_after(START)
            cluster.name_server.unregister(gone)
            put(cluster.broker, 1)
            with caplog.at_level(logging.WARNING):
                second = await driver.end_after(first)
                await driver.end_after(second)
            cluster.name_server.register(gone)
            put(gone, 2)

            third = await driver.end_after(second)

            assert driver.ranges(first, second) == {queue(0): (0, 1)}
            assert driver.ranges(second, third) == {queue(0, "broker-b"): (3, 5)}
            assert caplog.text.count("queue_missing") == 1


async def test_a_broker_that_does_not_answer_does_not_stop_the_others() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        first = await driver.end_after(START)
        await cluster.brokers[1].stop()
        put(cluster.broker, 2)

        end = await driver.end_after(first)

        assert driver.ranges(first, end) == {queue(0): (0, 2)}
        assert end.end[queue(0, "broker-b")] == 0


async def test_a_request_that_fails_once_is_retried() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        put(cluster.broker, 2)
        cluster.faults.refuse(RequestCode.GET_MAX_OFFSET)

        end = await driver.end_after(START)

        assert end.end == {queue(0): 2}


async def test_unavailable_name_servers_do_not_stop_the_stream() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        first = await driver.end_after(START)
        await cluster.name_server.stop()
        put(cluster.broker, 2)

        end = await driver.end_after(first)

        assert driver.ranges(first, end) == {queue(0): (0, 2)}


async def test_a_topic_that_is_no_longer_subscribed_keeps_its_position_and_is_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster(topics={TOPIC: 1, "bills": 1}) as cluster:
        put(cluster.broker, 3, topic="bills")
        both = f"{TOPIC},bills"
        async with driving(cluster, subscribe=both, startingOffsets="earliest") as driver:
            first = through_json(await driver.end_after(START))
        put(cluster.broker, 2, topic="bills")
        put(cluster.broker, 2)
        with caplog.at_level(logging.WARNING):
            async with driving(cluster, commitOffsets="true") as driver:
                second = through_json(await driver.end_after(first))
                assert await driver.end_after(second) is second
        async with driving(cluster, subscribe=both) as driver:
            third = await driver.end_after(second)

            assert driver.ranges(first, second) == {queue(0): (0, 2)}
            assert driver.ranges(second, third) == {queue(0, topic="bills"): (3, 5)}
        assert cluster.broker.committed(GROUP, "bills", 0) is None
        assert caplog.text.count("topic_not_subscribed") == 1
        assert "queue_missing" not in caplog.text


async def test_a_deleted_topic_that_is_no_longer_subscribed_does_not_stop_the_stream() -> None:
    async with FakeCluster(topics={TOPIC: 1, "bills": 1}) as cluster:
        async with driving(cluster, subscribe=f"{TOPIC},bills") as driver:
            first = through_json(await driver.end_after(START))
        del cluster.broker.topics["bills"]
        script_brokers(cluster, "broker-a")
        async with driving(cluster) as driver:
            assert await driver.end_after(first) is first


# --- data loss ----------------------------------------------------------------------------------


async def test_a_start_below_the_minimum_fails_the_batch() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        first = await driver.end_after(START)
        put(cluster.broker, 5)
        cluster.broker.topics[TOPIC].queues[0].drop_before(3)

        with pytest.raises(DataLossError) as raised:
            await driver.end_after(first)

        message = str(raised.value)
        assert "topic 'orders', broker 'broker-a', queue 0: wanted offset 0" in message
        assert "3 to 5" in message
        assert "failOnDataLoss" in message


async def test_a_start_below_the_minimum_resumes_there_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, failOnDataLoss="false") as driver,
    ):
        first = await driver.end_after(START)
        put(cluster.broker, 5)
        cluster.broker.topics[TOPIC].queues[0].drop_before(3)
        with caplog.at_level(logging.WARNING):
            end = await driver.end_after(first, 1)
            await driver.end_after(first, 1)

        assert end.end == {queue(0): 4}  # one of those that are still there
        assert caplog.text.count("event='data_loss'") == 1
        assert "skipped=3" in caplog.text


async def test_a_truncated_log_fails_the_batch() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster) as driver:
            first = await driver.end_after(START)
            del cluster.broker.topics[TOPIC].queues[0].messages[2:]

            with pytest.raises(DataLossError, match=r"wanted offset 5.*0 to 2"):
                await driver.end_after(first)


async def test_after_a_truncation_the_stream_resumes_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster, failOnDataLoss="false") as driver:
            first = await driver.end_after(START)
            del cluster.broker.topics[TOPIC].queues[0].messages[2:]
            with caplog.at_level(logging.WARNING):
                second = await driver.end_after(first)
            put(cluster.broker, 2)
            third = await driver.end_after(second)

            assert driver.ranges(first, second) == {}
            assert driver.ranges(second, third) == {queue(0): (2, 4)}
            assert "data_loss" in caplog.text


async def test_an_end_that_recovers_is_no_loss() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster) as driver:
            first = await driver.end_after(START)
            # As after a crash: the broker serves requests before its maximum is restored.
            cluster.faults.handle(RequestCode.GET_MAX_OFFSET, Response(ext={"offset": "2"}))

            assert await driver.end_after(first) is first


async def test_an_end_that_is_too_low_before_its_broker_leaves_is_no_loss() -> None:
    held = StreamOffset(end={queue(0): 5})
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        put(cluster.broker, 9)
        script_brokers(cluster)

        def leave(_command: Command, _connection: ServerConnection) -> Response:
            cluster.name_server.unregister(cluster.broker)
            return Response(ext={"offset": "2"})

        cluster.faults.handle(RequestCode.GET_MAX_OFFSET, leave)

        assert await driver.end_after(held) is held


async def test_a_deleted_topic_fails_the_batch() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        first = await driver.end_after(START)
        del cluster.broker.topics[TOPIC]
        script_brokers(cluster, "broker-a")

        with pytest.raises(TopicGoneError, match=r"'orders' is unknown to every name server"):
            await driver.end_after(first)


async def test_nothing_is_skipped_while_the_only_broker_is_unavailable() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        put(cluster.broker, 5)
        first = await driver.end_after(START)
        script_brokers(cluster)
        cluster.name_server.unregister(cluster.broker)
        assert await driver.end_after(first) is first
        assert await driver.end_after(first) is first

        cluster.name_server.register(cluster.broker)
        put(cluster.broker, 2)
        end = await driver.end_after(first)

    assert driver.ranges(first, end) == {queue(0): (first.end[queue(0)], 7)}


async def test_a_deleted_topic_keeps_its_position(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster, failOnDataLoss="false") as driver:
            first = await driver.end_after(START)
            del cluster.broker.topics[TOPIC]
            script_brokers(cluster, "broker-a")
            with caplog.at_level(logging.WARNING):
                assert await driver.end_after(first) is first
                assert await driver.end_after(first) is first

            assert caplog.text.count("topic_gone") == 1


def recreate_topic(cluster: FakeCluster, *times: int) -> None:
    """Recreate the topic and store one message at each of *times* (milliseconds)."""
    del cluster.broker.topics[TOPIC]
    cluster.create_topic(TOPIC, 1)
    put_at(cluster.broker, *times)


async def test_the_offset_holds_the_store_time_of_the_last_message_before_it() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        put_at(cluster.broker, 1000, 2000, 3000)
        async with driving(cluster, startingOffsets="earliest") as driver:
            first = await driver.end_after(START, 2)
            second = await driver.end_after(first, 2)
            put_at(cluster.broker, 4000, number=1)
            third = through_json(await driver.end_after(second))

            assert first.stored == {queue(0): 2000}
            assert second.stored == {queue(0): 3000}
            assert third.stored == {queue(0): 3000, queue(1): 4000}


async def test_an_unreadable_last_message_has_no_store_time() -> None:
    refused = Response(ResponseCode.NO_PERMISSION, remark="no")
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 3)
        cluster.faults.handle(RequestCode.PULL_MESSAGE, refused, times=None)
        async with driving(cluster, startingOffsets="earliest") as driver:
            end = through_json(await driver.end_after(START))

            assert (end.end, end.stored) == ({queue(0): 3}, {})


@pytest.mark.parametrize("count", [2, 9])
async def test_a_recreated_topic_fails_the_batch(count: int) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000, 3000, 4000, 5000)
        async with driving(cluster) as driver:
            first = through_json(await driver.end_after(START))
        recreate_topic(cluster, *range(6000, 6000 + count))
        async with driving(cluster) as driver:
            with pytest.raises(DataLossError, match=rf"replaced.*wanted offset 5.*0 to {count}"):
                await driver.end_after(first)


@pytest.mark.parametrize("count", [2, 5, 9])
async def test_a_recreated_topic_is_read_from_its_minimum_without_fail_on_data_loss(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000, 3000, 4000, 5000)
        async with driving(cluster, failOnDataLoss="false") as driver:
            first = await driver.end_after(START)
            put_at(cluster.broker, 5500, 5600)
            await driver.end_after(first)  # which Spark does not get to write down
            recreate_topic(cluster, *range(6000, 6000 + count))
            unread = 2
            if count == 5:  # a log of the same length is compared once there is more to read
                unread = 0  # that were known at the look before
                assert await driver.end_after(first) is first
                put_at(cluster.broker, 7000)
                count += 1
            with caplog.at_level(logging.WARNING):
                offset, after = first, through_json(await driver.end_after(first, 5))
            ranges = []
            while after is not offset:
                ranges.append(driver.ranges(offset, after)[queue(0)])
                offset, after = after, await driver.end_after(after, 5)

            steps = [*range(0, count, 5), count]
            assert ranges == list(pairwise(steps))
            assert caplog.text.count("event='data_loss'") == 1
            assert f"skipped={unread}" in caplog.text
            assert "replaced" in caplog.text


async def test_after_a_truncation_messages_stored_since_are_read() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000, 3000, 4000, 5000)
        async with driving(cluster, failOnDataLoss="false") as driver:
            first = await driver.end_after(START)
            del cluster.broker.topics[TOPIC].queues[0].messages[2:]
            put_at(cluster.broker, 6000, 7000)

            second = await driver.end_after(first)

            assert driver.ranges(first, second) == {queue(0): (2, 4)}


async def test_a_checkpoint_without_store_times_is_resumed() -> None:
    old = StreamOffset(end={queue(0): 2})
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000, 3000)
        async with driving(cluster) as driver:
            end = await driver.end_after(old)

            assert driver.ranges(old, end) == {queue(0): (2, 3)}
            assert end.stored == {queue(0): 3000}


async def test_a_queue_is_not_read_while_its_log_cannot_be_compared() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000)
        async with driving(cluster) as driver:
            first = await driver.end_after(START)
            put_at(cluster.broker, 3000)
            busy = Response(ResponseCode.SYSTEM_BUSY, remark="busy")
            cluster.faults.handle(RequestCode.PULL_MESSAGE, busy, times=2)

            assert await driver.end_after(first) is first
            assert driver.ranges(first, await driver.end_after(first)) == {queue(0): (2, 3)}


# --- limits -------------------------------------------------------------------------------------


async def test_a_limit_is_split_over_queues_and_all_messages_are_read() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        put(cluster.broker, 9)
        put(cluster.broker, 3, number=1)
        async with driving(cluster, startingOffsets="earliest") as driver:
            first = await driver.end_after(START, 4)
            offset, batches = first, 1
            while (after := await driver.end_after(offset, 4)) is not offset:
                offset, batches = after, batches + 1

            assert first.end == {queue(0): 3, queue(1): 1}
            assert offset.end == {queue(0): 9, queue(1): 3}
            assert batches == 3


async def test_a_batch_waits_for_the_minimum() -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, minOffsetsPerTrigger="3") as driver,
    ):
        first = await driver.end_after(START)
        put(cluster.broker, 2)
        waiting = await driver.end_after(first)
        everything = await driver.end_after(first, everything=True)
        put(cluster.broker, 1)

        assert waiting is first
        assert driver.ranges(first, everything) == {queue(0): (0, 2)}  # Trigger.Once
        assert driver.ranges(first, await driver.end_after(first)) == {queue(0): (0, 3)}


async def test_a_batch_waits_at_most_max_trigger_delay() -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, minOffsetsPerTrigger="9", maxTriggerDelay="1h") as driver,
    ):
        first = await driver.end_after(START)
        put(cluster.broker, 2)
        driver.batches._last_batch -= 3600

        end = await driver.end_after(first)
        put(cluster.broker, 2)

        assert driver.ranges(first, end) == {queue(0): (0, 2)}
        assert await driver.end_after(end) is end  # waits again


async def test_the_start_is_fixed_while_a_batch_waits_for_the_minimum() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 2)
        async with driving(cluster, startingOffsets="earliest", minOffsetsPerTrigger="9") as driver:
            end = await driver.end_after(START)

            assert end.starts == end.end == {queue(0): 0}


async def test_available_now_ends_at_its_target() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(
            cluster, startingOffsets="earliest", minOffsetsPerTrigger="100"
        ) as driver:
            await driver.batches.fix_target()
            put(cluster.broker, 5)
            cluster.create_topic(TOPIC, 2)
            put(cluster.broker, 5, number=1)

            first = await driver.end_after(START, 3)
            second = await driver.end_after(first, 3)
            third = await driver.end_after(second, 3)

            assert first.end == {queue(0): 3}
            assert second.end == {queue(0): 5}
            assert third is second


async def test_available_now_from_the_latest_reads_nothing() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster) as driver:
            await driver.batches.fix_target()
            put(cluster.broker, 5)

            end = await driver.end_after(START)

            assert end.starts == end.end == {queue(0): 5}


async def test_available_now_keeps_explicit_starts_of_queues_without_a_route() -> None:
    wanted = json.dumps({TOPIC: {"broker-a": {"0": 2}, "broker-b": {"0": 7}}})
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster, startingOffsets=wanted) as driver:
            await driver.batches.fix_target()

            end = await driver.end_after(START)

            assert end.end == {queue(0): 5, queue(0, "broker-b"): 7}
            assert end.starts == {queue(0): 2, queue(0, "broker-b"): 7}


async def test_available_now_keeps_the_explicit_start_of_a_returning_queue() -> None:
    wanted = json.dumps({TOPIC: {"broker-a": {"0": 2}, "broker-b": {"0": 3}}})
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        back = cluster.brokers[1]
        put(cluster.broker, 5)
        put(back, 5)
        cluster.name_server.unregister(back)
        async with driving(cluster, startingOffsets=wanted) as driver:
            await driver.batches.fix_target()
            cluster.name_server.register(back)

            end = await driver.end_after(START)

            assert end.end == {queue(0): 5, queue(0, "broker-b"): 3}


@pytest.mark.parametrize("keeps_route", [True, False])
async def test_available_now_does_not_end_before_its_target(keeps_route: bool) -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        lost = cluster.brokers[1]
        put(cluster.broker, 5)
        put(lost, 5)
        async with driving(cluster, startingOffsets="earliest", failOnDataLoss="false") as driver:
            await driver.batches.fix_target()
            first = await driver.end_after(START, 2)
            await lost.stop()
            if not keeps_route:
                cluster.name_server.unregister(lost)
            second = await driver.end_after(first)

            with pytest.raises(TargetNotReachedError, match=r"'broker-b', queue 0 .* 1 of 5"):
                await driver.end_after(second)
            await lost.start()
            cluster.name_server.register(lost)
            await until(lambda: not driver.instance.remoting.backoff_left(lost.address))
            third = await driver.end_after(second)

            assert driver.ranges(first, second) == {queue(0): (1, 5)}
            assert driver.ranges(second, third) == {queue(0, "broker-b"): (1, 5)}
            assert await driver.end_after(third) is third


async def test_available_now_waits_for_a_broker_that_returns_soon() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        back = cluster.brokers[1]
        put(back, 5)
        async with driving(cluster, startingOffsets="earliest") as driver:
            await driver.batches.fix_target()
            first = await driver.end_after(START, 2)
            cluster.name_server.unregister(back)
            requests = itertools.count()

            async def route(command: Command, connection: ServerConnection) -> Outcome:
                if next(requests):
                    cluster.name_server.register(back)
                return await resolve(cluster.name_server.process(command, connection))

            cluster.faults.handle(RequestCode.GET_ROUTEINFO_BY_TOPIC, route, times=None)

            second = await driver.end_after(first)

            assert driver.ranges(first, second) == {queue(0, "broker-b"): (2, 5)}


async def test_available_now_ends_without_deleted_topics() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster, startingOffsets="earliest", failOnDataLoss="false") as driver:
            await driver.batches.fix_target()
            first = await driver.end_after(START, 2)
            del cluster.broker.topics[TOPIC]
            script_brokers(cluster, "broker-a")

            assert await driver.end_after(first) is first


@pytest.mark.parametrize("assign", [True, False])
async def test_available_now_does_not_end_while_a_broker_of_its_queues_is_unregistered(
    assign: bool,
) -> None:
    both = json.dumps({TOPIC: {"broker-a": [0], "broker-b": [0]}})
    given: dict[str, Any] = {"startingOffsets": "earliest", **({"assign": both} if assign else {})}
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        lost = cluster.brokers[1]
        put(cluster.broker, 2)
        put(lost, 2)
        held = START
        if not assign:
            async with driving(cluster, **given) as earlier:
                held = await earlier.end_after(START)
        put(cluster.broker, 3)
        put(lost, 3)
        cluster.name_server.unregister(lost)
        async with driving(cluster, **given) as driver:
            await driver.batches.fix_target()
            first = await driver.end_after(held)

            with pytest.raises(TargetNotReachedError, match=r"'broker-b', queue 0 .*=false"):
                await driver.end_after(first)
            cluster.name_server.register(lost)
            second = await driver.end_after(first)
            put(lost, 3)

            assert driver.ranges(held, first) == {queue(0): (held.end.get(queue(0), 0), 5)}
            start = held.end.get(queue(0, "broker-b"), 0)
            assert driver.ranges(first, second) == {queue(0, "broker-b"): (start, 5)}
            assert await driver.end_after(second) is second


async def test_available_now_tells_unregistered_brokers_from_a_deleted_topic() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        async with driving(cluster, startingOffsets="earliest") as earlier:
            held = await earlier.end_after(START)
        cluster.name_server.unregister(cluster.broker)
        script_brokers(cluster, "broker-b")
        async with driving(cluster, startingOffsets="earliest") as driver:
            await driver.batches.fix_target()

            with pytest.raises(TargetNotReachedError, match=r"'broker-a', queue 0 "):
                await driver.end_after(held)
            script_brokers(cluster, "broker-a", "broker-b")
            with pytest.raises(TopicGoneError):
                await driver.end_after(held)


@pytest.mark.parametrize(("fail", "registered"), [("false", False), ("true", True)])
async def test_available_now_ends_without_removed_queues(fail: str, registered: bool) -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 2}) as cluster:
        async with driving(cluster, startingOffsets="earliest", failOnDataLoss=fail) as earlier:
            held = await earlier.end_after(START)
        if registered:
            cluster.create_topic(TOPIC, 1)
        else:
            cluster.name_server.unregister(cluster.brokers[1])
        async with driving(cluster, startingOffsets="earliest", failOnDataLoss=fail) as driver:
            await driver.batches.fix_target()

            assert await driver.end_after(held) is held


async def test_available_now_does_not_wait_for_topics_that_are_no_longer_subscribed() -> None:
    held = StreamOffset(end={queue(0): 5, queue(0, "broker-b", "old"): 7})
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        put(cluster.broker, 5)
        script_brokers(cluster, "broker-a")
        await driver.batches.fix_target()

        assert await driver.end_after(held) is held


async def test_the_latest_offsets_are_reported() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        async with driving(cluster, startingOffsets="earliest") as driver:
            await driver.end_after(START, 2)

            assert driver.batches.latest == StreamOffset(end={queue(0): 5})


# --- the group ----------------------------------------------------------------------------------


async def test_offsets_are_committed_for_the_group() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        cluster.broker.create_group(GROUP)
        put(cluster.broker, 5)
        async with driving(cluster, startingOffsets="earliest", commitOffsets="true") as driver:
            first = await driver.end_after(START)
            before = cluster.broker.committed(GROUP, TOPIC, 0)
            await driver.end_after(first)  # the trigger after it, with nothing new

            assert before is None
            assert cluster.broker.committed(GROUP, TOPIC, 0) == 5


async def test_offsets_are_not_committed_by_default() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        cluster.broker.create_group(GROUP)
        end = await driver.end_after(START)
        await driver.end_after(end)
        await driver.batches.publish(end)

        assert cluster.broker.committed(GROUP, TOPIC, 0) is None


async def test_a_failed_commit_is_logged_and_does_not_stop_the_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        refusal = Response(ResponseCode.SYSTEM_ERROR, remark="no")
        cluster.faults.handle("commit", refusal, times=None)
        async with driving(cluster, commitOffsets="true") as driver:
            first = await driver.end_after(START)
            with caplog.at_level(logging.WARNING):
                assert await driver.end_after(first) is first

            assert "offsets_not_published" in caplog.text


async def test_commit_offsets_rejects_a_group_with_live_members() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        body = json.dumps({"consumerIdList": ["10.0.0.1@worker"]}).encode()
        cluster.faults.handle("members", Response(body=body), times=None)
        async with driving(cluster, commitOffsets="true") as driver:
            with pytest.raises(ConfigError, match=r"commitOffsets=True.*10\.0\.0\.1@worker"):
                await driver.end_after(START)


async def test_nothing_is_committed_before_a_broker_was_asked_for_members() -> None:
    held = StreamOffset(end={queue(0): 1})
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        cluster.broker.create_group(GROUP)
        put(cluster.broker, 1)
        script_brokers(cluster)
        cluster.name_server.unregister(cluster.broker)
        async with driving(cluster, commitOffsets="true") as driver:
            assert await driver.end_after(held) is held
            cluster.name_server.register(cluster.broker)
            await driver.instance.routes.fetch(TOPIC)
            await driver.batches.publish(held)
            body = json.dumps({"consumerIdList": ["10.0.0.1@worker"]}).encode()
            cluster.faults.handle("members", Response(body=body), times=None)

            with pytest.raises(ConfigError, match=r"commitOffsets=True.*10\.0\.0\.1@worker"):
                await driver.end_after(held)
        assert cluster.broker.committed(GROUP, TOPIC, 0) is None


async def test_an_unavailable_broker_does_not_end_a_stream_that_commits() -> None:
    body = json.dumps({"consumerIdList": ["10.0.0.1@worker"]}).encode()
    held = StreamOffset(end={queue(0): 1, queue(0, "broker-b"): 0})
    async with FakeCluster(2, topics={TOPIC: 1}) as cluster:
        cluster.broker.create_group(GROUP)
        put(cluster.broker, 1)
        await cluster.brokers[1].stop()
        async with driving(cluster, commitOffsets="true") as driver:
            assert await driver.end_after(held) is held

        assert cluster.broker.committed(GROUP, TOPIC, 0) == 1
        cluster.faults.handle("members", Response(body=body), times=None)
        async with driving(cluster, commitOffsets="true") as driver:
            with pytest.raises(ConfigError, match=r"commitOffsets=True.*10\.0\.0\.1@worker"):
                await driver.end_after(held)


# --- rate limits --------------------------------------------------------------------------------

QUEUES = st.tuples(st.sampled_from("AB"), st.just("a"), st.integers(0, 40))
WAITING = st.dictionaries(QUEUES, st.integers(1, 10**12), max_size=30)


@given(WAITING, st.integers(1, 10**9))
def test_the_limit_is_used_up_and_every_queue_gets_a_share(
    sizes: dict[Queue, int], most: int
) -> None:
    shares = split_limit(sizes, most)

    assert sum(shares.values()) == min(sum(sizes.values()), max(most, len(sizes)))
    assert all(1 <= share <= sizes[each] for each, share in shares.items())
    assert shares.keys() == sizes.keys()


def test_shares_follow_the_backlog() -> None:
    shares = split_limit({queue(0): 901, queue(1): 101}, 102)

    assert shares == {queue(0): 91, queue(1): 11}


def test_each_queue_gets_one_message_even_beyond_the_limit() -> None:
    waiting = dict.fromkeys(map(queue, range(3)), 5)

    assert split_limit(waiting, 1) == dict.fromkeys(waiting, 1)


def test_a_queue_whose_end_is_not_beyond_its_start_has_no_backlog() -> None:
    start = dict.fromkeys(map(queue, range(4)), 5)

    assert backlog(start, {queue(0): 9, queue(1): 5, queue(2): 3}) == {queue(0): 4}
