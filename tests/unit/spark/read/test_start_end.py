"""Start and end offsets of batch reads."""

from __future__ import annotations

import json
import logging

import pytest

from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import ConfigError, RouteNotFoundError
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.spark.offsets import LogMark, Queue
from rocketmq_aio.spark.read.data_loss import DataLossError, TopicGoneError
from rocketmq_aio.spark.read.start_end import BrokerAwayError, resolve_ranges
from tests.fakes.cluster import FakeCluster
from tests.unit.spark.driving import GROUP, TOPIC, driving, put, put_at, queue
from tests.unit.spark.reading import script_brokers

SECOND = "1970-01-01T00:00:%02dZ"


async def planned(cluster: FakeCluster, **given: str) -> dict[Queue, tuple[int, int]]:
    async with driving(cluster, streaming=False, **given) as driver:
        found = await resolve_ranges(driver.metadata, driver.options)
        return {each.queue: (each.start, each.end) for each in found}


def at(offset: int, number: int = 0, topic: str = TOPIC, broker: str = "broker-a") -> str:
    return json.dumps({topic: {broker: {str(number): offset}}})


async def test_everything_is_read_by_default() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 2}) as cluster:
        put(cluster.broker, 4)
        cluster.broker.topics[TOPIC].queues[0].drop_before(1)

        assert await planned(cluster) == {
            queue(0): (1, 4),
            queue(1): (0, 0),
            queue(0, "broker-b"): (0, 0),
            queue(1, "broker-b"): (0, 0),
        }


async def test_a_batch_read_is_planned_with_the_store_times_that_identify_its_logs() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        put_at(cluster.broker, 1000, 2000, 3000)
        async with driving(cluster, streaming=False, endingOffsets=at(2)) as driver:
            found = await resolve_ranges(driver.metadata, driver.options)

        assert [each.mark for each in found] == [LogMark(1, 2000), None]


async def test_queues_without_explicit_offsets_are_read_whole() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        put(cluster.broker, 9)
        put(cluster.broker, 9, number=1)

        found = await planned(cluster, startingOffsets=at(3), endingOffsets=at(5))

        assert found == {queue(0): (3, 5), queue(1): (0, 9)}


@pytest.mark.parametrize("fails", ["true", "false"])
async def test_an_end_that_recovers_is_no_loss(fails: str) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 9)
        # As after a crash: the broker serves requests before its maximum is restored.
        cluster.faults.handle(RequestCode.GET_MAX_OFFSET, Response(ext={"offset": "2"}))

        found = await planned(
            cluster, startingOffsets=at(3), endingOffsets=at(5), failOnDataLoss=fails
        )

        assert found == {queue(0): (3, 5)}


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize(
    ("start", "end", "expected"), [(2, 3, (2, 5)), (0, 2, (0, 2)), (4, 9, (6, 6)), (2, 2, (2, 2))]
)
async def test_a_time_range_includes_its_start_and_excludes_its_end(
    version: str, start: int, end: int, expected: tuple[int, int]
) -> None:
    async with FakeCluster(topics={TOPIC: 1}, version=version) as cluster:
        put_at(cluster.broker, 1000, 1000, 2000, 2000, 2000, 3000)
        times = {"startingTimestamp": SECOND % start, "endingTimestamp": SECOND % end}

        found = await planned(cluster, **times)

        assert found == {queue(0): expected}


async def test_timestamps_by_queue_take_precedence_over_offsets() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        for number in (0, 1):
            put_at(cluster.broker, 1000, 10**12, 10**12 + 1, number=number)

        found = await planned(
            cluster,
            startingOffsetsByTimestamp=at(10**12),
            startingOffsets=at(1, 1),
            endingOffsetsByTimestamp=at(10**12 + 1, 1),
        )

        assert found == {queue(0): (1, 3), queue(1): (1, 2)}


@pytest.mark.parametrize(
    ("option", "value"),
    [("startingTimestamp", str(10**12)), ("startingOffsetsByTimestamp", at(10**12))],
)
async def test_a_timestamp_after_the_last_message_can_be_an_error(option: str, value: str) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        given = {option: value, "startingOffsetsByTimestampStrategy": "error"}
        put_at(cluster.broker, 1000)

        says = rf"^{option}={10**12}: no message so late in orders/broker-a/0"
        with pytest.raises(ConfigError, match=says):
            await planned(cluster, **given)
        put_at(cluster.broker, 10**12)
        assert await planned(cluster, **given) == {queue(0): (1, 2)}


async def test_only_assigned_queues_are_read() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 2}) as cluster:
        given = json.dumps({TOPIC: {"broker-b": [1]}})

        assert await planned(cluster, assign=given) == {queue(1, "broker-b"): (0, 0)}


async def test_a_batch_can_start_at_the_committed_offsets() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        cluster.broker.commit(GROUP, TOPIC, 0, 3)

        assert await planned(cluster, startingOffsets="group") == {queue(0): (3, 5)}


@pytest.mark.parametrize(
    ("given", "reason", "expected"),
    [
        ({"startingOffsets": at(0)}, "messages are lost", (2, 5)),
        ({"startingOffsets": at(9)}, "messages may be lost", (5, 5)),
        ({"endingOffsets": at(9)}, "messages may be lost", (2, 5)),
    ],
)
async def test_offsets_out_of_range_fail_or_are_corrected(
    given: dict[str, str], reason: str, expected: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 5)
        cluster.broker.topics[TOPIC].queues[0].drop_before(2)

        says = rf"^{reason}: .*the queue has 2 to 5; set failOnDataLoss=false"
        with pytest.raises(DataLossError, match=says):
            await planned(cluster, **given)
        with caplog.at_level(logging.WARNING):
            assert await planned(cluster, failOnDataLoss="false", **given) == {queue(0): expected}
        assert "data_loss" in caplog.text


async def test_an_unknown_topic_fails_or_is_skipped() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        script_brokers(cluster, "broker-a")
        both = {"subscribe": f"{TOPIC},unknown"}

        with pytest.raises(TopicGoneError, match="'unknown'"):
            await planned(cluster, **both)
        assert await planned(cluster, failOnDataLoss="false", **both) == {queue(0): (0, 0)}


async def test_a_subscribed_topic_without_queues_is_not_skipped() -> None:
    async with FakeCluster(topics={TOPIC: 1, "closed": 0}) as cluster:
        with pytest.raises(RouteNotFoundError, match=r"'closed': no queue of it can be read now"):
            await planned(cluster, subscribe=f"{TOPIC},closed", failOnDataLoss="false")
        assert await planned(cluster, subscribePattern=f"{TOPIC}|closed") == {queue(0): (0, 0)}


@pytest.mark.parametrize(
    "option",
    [
        *("startingOffsets", "startingOffsetsByTimestamp"),
        *("endingOffsets", "endingOffsetsByTimestamp"),
    ],
)
async def test_offsets_of_a_topic_that_is_not_read_are_an_error(option: str) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        with pytest.raises(ConfigError, match=f"^{option}='others': a topic that is not subscrib"):
            await planned(cluster, failOnDataLoss="false", **{option: at(0, topic="others")})


@pytest.mark.parametrize("kind", ["starting", "ending"])
async def test_queues_of_offsets_that_a_timestamp_overrides_need_no_route(kind: str) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        given = {f"{kind}Timestamp": SECOND % 0, f"{kind}Offsets": at(1, 7)}

        assert await planned(cluster, **given) == {queue(0): (0, 0)}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("assign", '{"orders":{"broker-a":[0,7]}}'),
        ("startingOffsetsByTimestamp", at(0, 7)),
        ("endingOffsets", at(1, 7)),
        ("endingOffsetsByTimestamp", at(0, 7)),
    ],
)
async def test_an_explicit_queue_without_a_route_is_an_error_or_logged(
    option: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        with pytest.raises(ConfigError, match=rf"{option}.*orders/broker-a/7"):
            await planned(cluster, **{option: text})
        with caplog.at_level(logging.WARNING):
            found = await planned(cluster, **{option: text}, failOnDataLoss="false")

    assert found == {queue(0): (0, 0)}
    assert caplog.text.count("queue_missing") == 1


async def test_an_assigned_queue_without_a_route_is_an_error() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        given = {"startingOffsets": at(1, 7)}

        with pytest.raises(ConfigError, match=r"orders/broker-a/7.*no route names this queue"):
            await planned(cluster, **given)
        assert await planned(cluster, failOnDataLoss="false", **given) == {queue(0): (0, 0)}


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_batch_read_needs_every_broker_of_the_routes(fail: str) -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        await cluster.brokers[1].stop()

        with pytest.raises(BrokerAwayError, match="broker-b"):
            await planned(cluster, failOnDataLoss=fail)
