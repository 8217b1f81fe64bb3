"""AdminClient in a namespace of version 1: names are those of the application."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from rocketmq_aio import (
    AdminClient,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
)
from rocketmq_aio.embedded import EmbeddedCluster
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from tests.fakes.cluster import FakeCluster

TOPIC, GROUP, PRODUCERS = "orders", "billing", "till"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


def config_of(cluster: EmbeddedCluster) -> ClientConfig:
    return ClientConfig(namesrv=cluster.namesrv, namespace="shop")


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A topic with one message, and the same names in no namespace."""
    async with FakeCluster(topics={f"shop%{TOPIC}": 1, TOPIC: 1}) as cluster:
        cluster.broker.state.create_group(f"shop%{GROUP}")
        cluster.broker.state.create_group(GROUP)
        cluster.broker.state.commit(GROUP, TOPIC, 0, 0)
        async with Producer(PRODUCERS, client=config_of(cluster)) as producer:
            await producer.send(Message(TOPIC, b"1"))
        yield cluster


@pytest.fixture
async def admin(cluster: FakeCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(client=config_of(cluster)) as admin:
        yield admin


async def test_the_request_mode_is_that_of_the_group_in_the_namespace(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    await admin.groups.set_mode(GROUP, TOPIC, "pop")

    wanted = {(f"shop%{TOPIC}", f"shop%{GROUP}"): MessageRequestMode.POP}
    assert cluster.broker.assignments.modes == wanted


async def test_queues_have_the_names_of_the_application(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(GROUP, client=config_of(cluster), config=config) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.ready(15)
        await consumer.poll(15)
        await consumer.commit()
        spans = await admin.offsets.time_spans(GROUP, TOPIC)
        in_memory = await admin.offsets.in_memory(GROUP, TOPIC)
        by_broker = await admin.brokers.consume_stats()

    assert [each.queue for each in spans] == [QUEUE]
    assert list(in_memory.values()) == [{QUEUE: 1}]
    assert by_broker["broker-a"].keys() == {GROUP}
    (progress,) = by_broker["broker-a"][GROUP].queues
    assert (progress.queue, progress.consumer_offset) == (QUEUE, 1)


async def test_producers_are_those_of_the_namespace(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    async with (
        Producer(PRODUCERS, client=config_of(cluster)) as inside,
        Producer("outside", namesrv=cluster.namesrv) as outside,
    ):
        await inside.send(Message(TOPIC, b"2"))
        await outside.send(Message(TOPIC, b"2"))
        producers = await admin.brokers.producers()

    assert producers["broker-a"].keys() == {PRODUCERS}


async def test_statistics_are_those_of_the_topic_in_the_namespace(admin: AdminClient) -> None:
    found = await admin.brokers.statistics("TOPIC_PUT_NUMS", TOPIC)

    assert found["broker-a"].day.sum == 1


async def test_cold_reads_are_limited_for_the_group_in_the_namespace(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    limit = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    unlimit = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
    for code in (limit, unlimit):
        cluster.faults.handle(code, Response())
    await admin.brokers.limit_cold_data(GROUP, 1024)
    await admin.brokers.unlimit_cold_data(GROUP)

    bodies = [cluster.broker.requests_of(code)[0].body for code in (limit, unlimit)]
    assert bodies == [f"shop%{GROUP}=1024\n".encode(), f"shop%{GROUP}".encode()]


async def test_lite_topics_belong_to_the_topic_in_the_namespace(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    parent, group = f"shop%{TOPIC}", f"shop%{GROUP}"
    answers = {
        RequestCode.GET_PARENT_TOPIC_INFO: {"topic": parent, "groups": [group]},
        RequestCode.GET_LITE_TOPIC_INFO: {
            "parentTopic": parent,
            "liteTopic": "one",
            "subscriber": [{"clientId": "c", "group": group}],
        },
        RequestCode.GET_LITE_CLIENT_INFO: {"parentTopic": parent, "group": group},
        RequestCode.GET_LITE_GROUP_INFO: {"parentTopic": parent, "group": group},
    }
    for code, body in answers.items():
        cluster.faults.handle(code, Response(body=msgspec.json.encode(body)))

    of_parent = (await admin.lite.parent(TOPIC))["broker-a"]
    of_topic = (await admin.lite.topic(TOPIC, "one"))["broker-a"]
    of_client = (await admin.lite.client(TOPIC, GROUP, "c"))["broker-a"]
    of_group = (await admin.lite.group(TOPIC, GROUP))["broker-a"]

    fields = [cluster.broker.requests_of(code)[0].ext_fields() for code in answers]
    assert [each.get("parentTopic", each.get("topic")) for each in fields[:3]] == [parent] * 3
    assert (of_parent.topic, of_parent.groups) == (TOPIC, (GROUP,))
    assert (of_topic.parent_topic, of_topic.subscribers[0].group) == (TOPIC, GROUP)
    assert (of_client.parent_topic, of_client.group) == (TOPIC, GROUP)
    assert (of_group.parent_topic, of_group.group) == (TOPIC, GROUP)


async def test_test_messages_go_to_the_topics_of_the_brokers(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    await admin.brokers.send_test(count=1)

    *_, sent = cluster.broker.requests_of(RequestCode.SEND_MESSAGE_V2)
    assert sent.ext_fields()["b"] == "broker-a"
