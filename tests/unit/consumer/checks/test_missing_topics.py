"""MissingTopics: events for missing and found topics."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest

from rocketmq_aio import ClientConfig, ConsumerEvent, MessageQueue, TopicFound, TopicMissing
from rocketmq_aio.consumer.checks.missing_topics import NAMES_AT_ONCE, nearest_name
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.requests.admin import TopicList
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, consumer_of
from tests.unit.consumer.pop_env import popper_of
from tests.unit.consumer.pushing import push_consumer
from tests.unit.remoting.until import until

LIST: Final = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
TYPO: Final = "ordrs"

AnyConsumer = LitePullConsumer | PushConsumer | PopConsumer


def listed(*names: str) -> Response:
    return Response(body=msgspec.json.encode(TopicList(topic_list=list(names))))


def client_of(cluster: FakeCluster, **settings: Any) -> ClientConfig:  # noqa: ANN401
    """Settings of a client that looks for missing topics often."""
    return ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=0.01, **settings)


async def handle(_message: object) -> None:
    """A handler for push consumers."""


@asynccontextmanager
async def reading(consumer: AnyConsumer, topic: str = TYPO) -> AsyncIterator[list[ConsumerEvent]]:
    """A started consumer that subscribes to *topic*; yields its events about topics."""
    async with consumer:
        stream = consumer._engine.events.open()
        events = stream._unread
        await consumer.subscribe(topic)
        yield events  # type: ignore[misc]


def of_topics(events: Iterable[ConsumerEvent]) -> list[ConsumerEvent]:
    return [each for each in events if isinstance(each, TopicMissing | TopicFound)]


@pytest.fixture(params=[consumer_of, popper_of, push_consumer], ids=["lite", "pop", "push"])
def make(request: pytest.FixtureRequest) -> Callable[..., AnyConsumer]:
    def consumer(cluster: FakeCluster, **arguments: object) -> AnyConsumer:
        arguments.setdefault("client", client_of(cluster))
        if request.param is push_consumer:
            arguments["handler"] = handle
        return request.param(cluster, **arguments)  # type: ignore[no-any-return]

    return consumer


async def test_a_missing_topic_is_reported_with_name_servers_and_the_nearest_name(
    cluster: FakeCluster, make: Callable[..., AnyConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.faults.handle(LIST, listed(TOPIC, "invoices"), times=None)
    with caplog.at_level(logging.WARNING, "rocketmq_aio"):
        async with reading(make(cluster)) as events:
            await until(lambda: of_topics(events), "the event")

    assert of_topics(events) == [
        TopicMissing(topic=TYPO, namesrv=(cluster.namesrv,), nearest=TOPIC)
    ]
    [warning] = [each.message for each in caplog.records if "topic_missing" in each.message]
    assert TYPO in warning
    assert cluster.namesrv in warning
    assert TOPIC in warning


async def test_a_missing_topic_that_appears_is_reported_and_read(
    cluster: FakeCluster, make: Callable[..., AnyConsumer]
) -> None:
    async with reading(make(cluster)) as events:
        await until(lambda: of_topics(events), "the first event")
        cluster.create_topic(TYPO)
        await until(lambda: len(of_topics(events)) > 1, "the second event")

    missing = TopicMissing(topic=TYPO, namesrv=(cluster.namesrv,), nearest=TOPIC)
    assert of_topics(events) == [missing, TopicFound(topic=TYPO)]


async def test_a_missing_topic_subscribed_before_the_start_is_reported(
    cluster: FakeCluster, make: Callable[..., AnyConsumer]
) -> None:
    consumer = make(cluster)
    stream = consumer._engine.events.open()
    await consumer.subscribe(TYPO)
    async with consumer:
        await until(lambda: of_topics(stream._unread), "the event")


async def test_a_missing_topic_of_an_assigned_queue_is_reported(cluster: FakeCluster) -> None:
    async with consumer_of(cluster, client=client_of(cluster)) as consumer:
        stream = consumer._engine.events.open()
        await consumer.assign([MessageQueue(TYPO, "broker-a", 0)])
        await until(lambda: of_topics(stream._unread), "the event")


async def test_a_topic_that_is_deleted_is_reported(cluster: FakeCluster) -> None:
    client = client_of(cluster)
    consumer = consumer_of(cluster, client=client)
    async with reading(consumer, TOPIC) as events:
        await until(lambda: consumer.client.routes.known(TOPIC), "a route")
        del cluster.broker.topics[TOPIC]
        await until(lambda: of_topics(events), "the event")

    assert isinstance(of_topics(events)[0], TopicMissing)


async def test_topics_known_missing_to_a_shared_client_are_reported_to_later_consumers(
    cluster: FakeCluster, make: Callable[..., AnyConsumer]
) -> None:
    async with MQClientInstance(client_of(cluster)) as client:
        first = consumer_of(cluster, "first", client=client)
        async with reading(first) as events:
            await until(lambda: of_topics(events), "the first consumer's event")
            async with reading(make(cluster, client=client)) as later:
                await until(lambda: of_topics(later), "the second consumer's event")


async def test_a_topic_subscribed_again_is_reported_again(
    cluster: FakeCluster, make: Callable[..., AnyConsumer]
) -> None:
    consumer = make(cluster)
    async with reading(consumer) as events:
        await until(lambda: of_topics(events), "the first event")
        await consumer.unsubscribe(TYPO)
        await consumer.subscribe(TYPO)
        await until(lambda: len(of_topics(events)) > 1, "the second event")

    assert not any(isinstance(each, TopicFound) for each in events)


@pytest.mark.parametrize(
    "response",
    [
        Response(ResponseCode.NO_PERMISSION, remark="not allowed"),
        Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        Response(body=b"{"),
        listed(),
    ],
    ids=lambda response: f"{response.code}-{response.body.decode()}",
)
async def test_a_missing_topic_is_reported_where_topics_cannot_be_listed(
    cluster: FakeCluster, response: Outcome
) -> None:
    cluster.faults.handle(LIST, response, times=None)
    async with reading(consumer_of(cluster, client=client_of(cluster))) as events:
        await until(lambda: of_topics(events), "the event")

    assert of_topics(events) == [TopicMissing(topic=TYPO, namesrv=(cluster.namesrv,), nearest=None)]


async def test_names_of_other_namespaces_are_not_proposed(cluster: FakeCluster) -> None:
    cluster.faults.handle(LIST, listed("orders", "shop%ordres", "other%ordrs"), times=None)
    client = client_of(cluster, namespace="shop", namespace_version=1)
    async with reading(consumer_of(cluster, client=client)) as events:
        await until(lambda: of_topics(events), "the event")

    [event] = of_topics(events)
    assert isinstance(event, TopicMissing)
    assert event.nearest == "ordres"


@pytest.mark.parametrize(
    ("wanted", "names", "nearest"),
    [
        ("ordrs", ["invoices", "orders", "orders-archive"], "orders"),
        ("Orders", ["invoices", "orders"], "orders"),
        ("order_events", ["orders", "order-events"], "order-events"),
        ("payments", ["orders", "invoices"], None),
        ("orders", ["orders"], None),
        ("ordersb", ["ordersc", "ordersa"], "ordersa"),
        ("orders", ["%RETRY%orders", "%DLQ%orders", "rmq_sys_orders", "%SYS%orders"], None),
        ("TBW103", ["TBW102"], None),
    ],
)
async def test_nearest_name_is_the_most_similar_application_topic(
    wanted: str, names: list[str], nearest: str | None
) -> None:
    assert await nearest_name(wanted, names) == nearest


async def test_the_nearest_name_is_found_among_many() -> None:
    names = [f"metrics-{number}" for number in range(3 * NAMES_AT_ONCE)]

    assert await nearest_name("ordrs", [*names, "orders", *names]) == "orders"
