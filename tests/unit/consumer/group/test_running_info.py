"""Running info for administration tools."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from rocketmq_aio.config.consumer import LitePullConfig, PopConfig, PushConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.statistics import ConsumeStatistics
from rocketmq_aio.consumer.group.running_info import running_info
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateAveragelyByCircle
from rocketmq_aio.model.values import MessageModel, MessageQueue
from rocketmq_aio.protocol.bodies import PopProcessQueueInfo
from rocketmq_aio.protocol.fastjson import to_standard
from rocketmq_aio.protocol.requests.from_broker import GetConsumerRunningInfo
from rocketmq_aio.protocol.subscription import subscription
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, consuming, numbers, polled, put
from tests.unit.consumer.parts import assigned_queue, queue

NAME_SERVERS = SimpleNamespace(addresses=("127.0.0.1:9876", "127.0.0.2:9876"))


def info_json(config: object = None, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the running info as plain JSON."""
    context = SimpleNamespace(
        instance=SimpleNamespace(started_ms=1_700_000_000_000, name_servers=NAME_SERVERS),
        config=config or LitePullConfig(),
        statistics=arguments.pop("statistics", ConsumeStatistics()),
    )
    info = running_info(
        cast(ConsumerContext[LitePullConfig], context),
        arguments.pop("subscriptions", []),
        arguments.pop("held", []),
        **arguments,
    )
    standard: dict[str, Any] = msgspec.json.decode(to_standard(msgspec.json.encode(info)))
    return standard


def only(table: dict[str, Any]) -> tuple[MessageQueue, Any]:
    """Return the one entry of a map with queues as keys."""
    ((key, value),) = table.items()
    place = msgspec.json.decode(key)
    return MessageQueue(place["topic"], place["brokerName"], place["queueId"]), value


def test_properties_contain_the_kind_of_consumer() -> None:
    kind = {"consume_type": "CONSUME_PASSIVELY", "orderly": True, "concurrency": 7}
    properties = info_json(**kind)["properties"]

    assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert properties["PROP_CONSUMEORDERLY"] == "true"
    assert properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
    assert properties["PROP_NAMESERVER_ADDR"] == "127.0.0.1:9876;127.0.0.2:9876"
    assert properties["PROP_CONSUMER_START_TIMESTAMP"] == "1700000000000"
    assert info_json()["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"


def test_settings_have_the_names_and_units_of_the_java_client() -> None:
    push = info_json(PushConfig(message_model=MessageModel.BROADCASTING))["properties"]
    changed = PushConfig(
        start_from=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        allocate=AllocateAveragelyByCircle(),
        max_reconsume_times=3,
        pull_threshold_per_topic=500,
        consume_timeout_seconds=90,
    )
    other = info_json(changed)["properties"]
    mapped = info_json(PushConfig(allocate={TOPIC: AllocateAveragelyByCircle()}))["properties"]

    assert push["messageModel"] == "BROADCASTING"
    assert push["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert "consumeTimestamp" not in push
    assert push["allocateMessageQueueStrategy"] == "AVG"
    assert (push["pullThresholdForQueue"], push["pullThresholdSizeForQueue"]) == ("1000", "100")
    assert (push["pullThresholdForTopic"], push["pullThresholdSizeForTopic"]) == ("-1", "-1")
    assert (push["consumeThreadMin"], push["consumeThreadMax"]) == ("20", "20")
    assert (push["maxReconsumeTimes"], push["consumeTimeout"]) == ("-1", "15")
    assert (push["pullInterval"], push["suspendCurrentQueueTimeMillis"]) == ("0", "1000")
    assert push["clientRebalance"] == "true"
    assert other["consumeFromWhere"] == "CONSUME_FROM_TIMESTAMP"
    assert other["consumeTimestamp"] == "20260102030405"
    assert (other["allocateMessageQueueStrategy"], other["consumeTimeout"]) == (
        "AVG_BY_CIRCLE",
        "1.5",
    )
    assert (other["maxReconsumeTimes"], other["pullThresholdForTopic"]) == ("3", "500")
    assert mapped["allocateMessageQueueStrategy"] == f"{TOPIC}=AVG_BY_CIRCLE"


@pytest.mark.parametrize("config", [LitePullConfig(), PushConfig(), PopConfig()])
def test_every_property_is_text(config: object) -> None:
    properties = info_json(config)["properties"]

    assert len(properties) > 8
    assert all(isinstance(value, str) for value in properties.values())


def test_queue_info_shows_its_cache() -> None:
    held = assigned_queue(3, begin=10, cached=5)
    held.last_pull = time.monotonic() - 60
    at, info = only(info_json(held=[held], is_locked=lambda each: each == queue(3))["mqTable"])

    assert at == queue(3)
    assert (info["cachedMsgCount"], info["commitOffset"]) == (5, 10)
    assert (info["cachedMsgMinOffset"], info["cachedMsgMaxOffset"]) == (10, 14)
    assert (info["locked"], info["droped"]) == (True, False)
    assert info["lastPullTimestamp"] == pytest.approx((time.time() - 60) * 1000, abs=30_000)
    assert info["lastConsumeTimestamp"] == 0


def test_queue_without_a_start_shows_offset_zero() -> None:
    held = PolledQueue(queue(0), Cache())
    _, info = only(info_json(held=[held])["mqTable"])

    assert (info["commitOffset"], info["cachedMsgMinOffset"], info["lastPullTimestamp"]) == (
        0,
        0,
        0,
    )


def test_popped_queues_have_their_own_table() -> None:
    seen = info_json(popped={queue(1): PopProcessQueueInfo(wait_ack_count=4)})

    assert seen["mqTable"] == {}
    assert only(seen["mqPopTable"]) == (
        queue(1),
        {"waitAckCount": 4, "droped": False, "lastPopTimestamp": 0},
    )


def test_every_subscribed_topic_has_statistics() -> None:
    statistics = ConsumeStatistics()
    statistics.note_consumed("%RETRY%billing", ok=1, failed=2, seconds=0.5)
    seen = info_json(subscriptions=[subscription(TOPIC, "new", 1)], statistics=statistics)

    assert [each["subString"] for each in seen["subscriptionSet"]] == ["new"]
    assert seen["statusTable"][TOPIC]["pullTPS"] == 0
    assert seen["statusTable"]["%RETRY%billing"]["consumeRT"] == 500
    assert seen["statusTable"]["%RETRY%billing"]["consumeFailedMsgs"] == 2


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        yield cluster


async def test_lite_pull_consumer_answers_its_broker(cluster: FakeCluster) -> None:
    put(cluster, *numbers(9))
    async with consuming(cluster) as consumer:
        await polled(consumer, 9)
        await consumer.commit()
        requests = GetConsumerRunningInfo(consumer_group=GROUP, client_id=consumer.client.client_id)
        response = await cluster.broker.push(requests)
        statistics = consumer.statistics()[TOPIC]

    assert response is not None
    seen = msgspec.json.decode(to_standard(response.body))
    at, info = only(seen["mqTable"])
    assert (at, info["commitOffset"]) == (queue(), 9)
    assert info["lastPullTimestamp"] >= info["lastConsumeTimestamp"] - 30_000 > 0
    assert seen["statusTable"][TOPIC]["pullTPS"] > 0
    assert seen["jstack"] is None
    assert statistics.pulled_per_second > 0
    assert statistics.consumed_per_second == 0


async def test_iterated_messages_count_as_consumed(cluster: FakeCluster) -> None:
    put(cluster, "one")
    async with consuming(cluster) as consumer:
        await consumer.__anext__()

        assert consumer._engine.table[queue()].last_consume > 0
