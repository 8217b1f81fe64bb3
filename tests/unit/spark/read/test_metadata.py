"""Metadata for the driver, and its retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import AuthError, NameServerUnavailableError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.spark.options.source_options import read_options
from rocketmq_aio.spark.read import metadata as metadata_module
from rocketmq_aio.spark.read.data_loss import Extent
from rocketmq_aio.spark.read.metadata import Metadata, matching, selects
from tests.fakes.cluster import FakeCluster
from tests.fakes.name_server import FakeNameServer
from tests.unit.spark.driving import TOPIC, driving, put, put_at, queue
from tests.unit.spark.reading import pull_response

BUSY = Response(ResponseCode.SYSTEM_BUSY, remark="busy")


def list_topics(cluster: FakeCluster, *names: str, brokers: Iterable[str] = ("broker-a",)) -> None:
    """Script the topics and brokers of the name server."""
    topics = json.dumps({"topicList": list(names)}).encode()
    table = {name: {"brokerName": name, "brokerAddrs": {"0": "x:1"}} for name in brokers}
    clusters = {"brokerAddrTable": table, "clusterAddrTable": {"DefaultCluster": list(table)}}
    answer_topics, answer_clusters = (
        Response(body=topics),
        Response(body=json.dumps(clusters).encode()),
    )
    server = cluster.name_server
    server.faults.handle(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, answer_topics, times=None)
    server.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, answer_clusters, times=None)


async def test_a_pattern_matches_whole_names_and_is_resolved_each_time() -> None:
    async with FakeCluster(topics={"orders-eu": 1, "orders-us": 1, "old-orders-eu": 1}) as cluster:
        list_topics(cluster, "orders-eu", "old-orders-eu", "%RETRY%orders-eu")
        async with driving(cluster, subscribePattern="orders-..") as driver:
            first = await driver.metadata.topics()
            list_topics(cluster, "orders-eu", "orders-us")
            second = await driver.metadata.topics()

    assert first.queues == {queue(0, topic="orders-eu")}
    assert second.queues == {queue(0, topic="orders-eu"), queue(0, topic="orders-us")}


async def test_a_checkpointed_topic_that_is_not_listed_counts_as_deleted() -> None:
    async with FakeCluster(topics={"orders-eu": 1}) as cluster:
        list_topics(cluster, "orders-eu")
        async with driving(cluster, subscribePattern="orders-..") as driver:
            found = await driver.metadata.topics({queue(0, topic="orders-us")})

    assert found.gone == {"orders-us"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"subscribe": "orders"}, {"orders"}),
        ({"subscribePattern": "%.*"}, {"%RETRY%g"}),
        ({"subscribePattern": "ord.*|%.*"}, {"orders"}),
        ({"assign": '{"bills":{"broker-a":[0]}}'}, {"bills"}),
        ({"assign": '{"bills":{"broker-b":[0]}}'}, set()),
    ],
)
def test_options_select_queues_of_a_checkpoint(given: dict[str, str], read: set[str]) -> None:
    options = read_options({"nameServer": "127.0.0.1:1", **given}, streaming=True)
    topics = ("orders", "bills", "%RETRY%g")

    assert {each for each in topics if selects(options, queue(0, topic=each))} == read


async def test_known_topics_are_used_while_name_servers_are_unavailable() -> None:
    async with FakeCluster(topics={"orders-eu": 1}) as cluster:
        list_topics(cluster, "orders-eu")
        async with driving(cluster, subscribePattern="orders-..") as driver:
            await driver.metadata.topics()
            server = cluster.name_server
            server.faults.handle(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, BUSY, times=None)

            assert (await driver.metadata.topics()).queues == {queue(0, topic="orders-eu")}


async def test_brokers_missing_at_one_name_server_are_read() -> None:
    restarted = FakeNameServer()
    async with FakeCluster(brokers=2, topics={TOPIC: 1, "orders-eu": 1}) as cluster, restarted:
        restarted.register(cluster.brokers[0])
        namesrv = f"{restarted.address};{cluster.namesrv}"
        config = ClientConfig(namesrv=namesrv)
        async with MQClientInstance(config) as instance, PullConsumer("g", client=instance) as pull:
            for given in ({"subscribe": TOPIC}, {"subscribePattern": "orders"}):
                options = read_options({"nameServer": namesrv, **given}, streaming=False)
                metadata = Metadata(instance, pull, options)
                found = await metadata.topics()
                extents = await metadata.extents(found.queues)

                assert found.queues == {queue(0), queue(0, "broker-b")}
                assert not extents.unavailable


@pytest.mark.parametrize("registered", [[], ["broker-a"]])
async def test_a_topic_is_not_gone_before_its_brokers_register(registered: list[str]) -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        await driver.metadata.topics()
        for broker in cluster.brokers:
            cluster.name_server.unregister(broker)
        list_topics(cluster, brokers=registered)
        restarted = await driver.metadata.topics()
        list_topics(cluster, brokers=["broker-a", "broker-b"])
        deleted = await driver.metadata.topics()

    assert (restarted.queues, restarted.gone) == (frozenset(), frozenset())
    assert deleted.gone == {TOPIC}


async def test_a_new_process_distinguishes_unavailable_brokers_from_a_deleted_topic() -> None:
    held = {queue(0, "broker-a"), queue(0, "broker-b"), queue(0, "__syslo__global__")}
    async with FakeCluster() as cluster, driving(cluster) as driver:
        list_topics(cluster, brokers=["broker-b"])
        away = await driver.metadata.topics(held)
        list_topics(cluster, brokers=["broker-a", "broker-b"])
        deleted = await driver.metadata.topics(held)

    assert not away.gone
    assert away.empty == {TOPIC}
    assert deleted.gone == {TOPIC}


async def test_a_topic_is_not_gone_while_the_registered_brokers_are_unknown() -> None:
    async with FakeCluster() as cluster, driving(cluster) as driver:
        cluster.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, BUSY, times=None)

        assert (await driver.metadata.topics()).gone == frozenset()


async def test_a_wait_for_a_topic_is_logged_before_the_first_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[tuple[str, object, int]] = []

    async with FakeCluster() as cluster, driving(cluster, fetchOffset__numRetries="2") as driver:

        def warn(event: str, **values: object) -> None:
            requests = cluster.name_server.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            logged.append((event, values["topic"], len(requests)))

        monkeypatch.setattr(metadata_module, "warn", warn)
        list_topics(cluster, brokers=["broker-a"])
        await driver.metadata.topics()
        requests = len(cluster.name_server.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC))

    assert [each[:2] for each in logged] == [("waiting_for_topic", TOPIC)]
    assert logged[0][2] == requests - 3  # then two more attempts, and the check that it is gone


async def test_no_name_server_is_an_error_at_the_start() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        await cluster.name_server.stop()

        with pytest.raises(NameServerUnavailableError):
            await driver.metadata.topics()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (".*", ["ORDER_REPLY_TOPIC", "orders", "rmq"]),
        ("%RETRY%.*", ["%RETRY%billing"]),
        ("%.*", ["%DLQ%billing", "%RETRY%billing"]),
    ],
)
def test_internal_topics_need_an_explicit_pattern(pattern: str, expected: list[str]) -> None:
    names = ["orders", "rmq", "%RETRY%billing", "%DLQ%billing", "TBW102", "RMQ_SYS_TRACE_TOPIC"]
    names += ["SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"]
    names += ["ORDER_REPLY_TOPIC"]

    assert matching(names, pattern, {"DefaultCluster", "broker-a"}) == expected


async def test_the_minimum_is_not_requested_for_fully_read_queues() -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster, driving(cluster) as driver:
        put(cluster.broker, 5)
        put(cluster.broker, 5, number=1)
        cluster.broker.topics[TOPIC].queues[1].drop_before(2)
        topics = await driver.metadata.topics()

        found = await driver.metadata.extents(topics.queues, {queue(0): 5, queue(1): 4})

        assert found.values == {queue(0): Extent(5, 5), queue(1): Extent(2, 5)}


async def test_a_permanent_error_is_not_retried() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        topics = await driver.metadata.topics()
        refusal = Response(ResponseCode.NO_PERMISSION, remark="Authentication failed")
        cluster.faults.handle(RequestCode.GET_MAX_OFFSET, refusal)

        with pytest.raises(AuthError):
            await driver.metadata.extents(topics.queues)


async def test_an_unavailable_broker_gets_no_retries_until_it_answers() -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, fetchOffset__numRetries="3") as driver,
    ):
        queues = (await driver.metadata.topics()).queues
        cluster.faults.handle(RequestCode.GET_MAX_OFFSET, BUSY, times=6)
        first = await driver.metadata.extents(queues)  # four questions
        second = await driver.metadata.extents(queues)  # one
        third = await driver.metadata.extents(queues)  # one
        fourth = await driver.metadata.extents(queues)  # answered

        assert [set(each.unavailable) for each in (first, second, third)] == [{"broker-a"}] * 3
        assert fourth.values == {queue(0): Extent(0, 0)}


async def test_a_request_cancelled_by_foreign_code_leaves_no_queue_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeCluster(topics={TOPIC: 2}) as cluster, driving(cluster) as driver:
        queues = (await driver.metadata.topics()).queues

        async def committed(each: MessageQueue) -> int:
            if each.queue_id == 1:
                raise asyncio.CancelledError
            return 0

        monkeypatch.setattr(driver.metadata._consumer, "committed", committed)

        with pytest.raises(asyncio.CancelledError):
            await driver.metadata.committed(queues)


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("hint", [-7, 0, 2, 5, 99])
async def test_the_time_search_corrects_a_wrong_hint(version: str, hint: int) -> None:
    async with FakeCluster(topics={TOPIC: 1}, version=version) as cluster:
        put_at(cluster.broker, 1000, 2000, 2000, 2000, 3000)
        answer = Response(ext={"offset": str(hint)})
        cluster.faults.handle(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, answer)
        async with driving(cluster) as driver:
            queues = (await driver.metadata.topics()).queues
            extents = (await driver.metadata.extents(queues)).values

            found = await driver.metadata.offsets_at({queue(0): 2000}, extents)

        assert found.values == {queue(0): 1}


async def test_a_response_of_a_stale_replica_is_not_the_end() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        put_at(cluster.broker, 1000, 2000)
        queues = (await driver.metadata.topics()).queues
        extents = (await driver.metadata.extents(queues)).values
        behind = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
        reply = Response(ResponseCode.PULL_NOT_FOUND, ext={"suggestWhichBrokerId": "0", **behind})
        cluster.faults.handle(RequestCode.PULL_MESSAGE, reply)

        found = await driver.metadata.offsets_at({queue(0): 1500}, extents)

        assert found.values == {queue(0): 1}


@pytest.mark.parametrize("wrong_hint", [False, True])
async def test_lookups_of_times_ignore_reset_notifications(wrong_hint: bool) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        put_at(cluster.broker, *range(1000, 1000 + 10 * 10, 10))
        topics = await driver.metadata.topics()
        extents = (await driver.metadata.extents(topics.queues)).values
        reset = pull_response(ResponseCode.PULL_OFFSET_MOVED, 10, most=10, remark="OFFSET_RESET")
        if wrong_hint:
            cluster.faults.handle(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, Response(ext={"offset": "9"})
            )
        cluster.faults.handle(RequestCode.PULL_MESSAGE, reset)

        found = await driver.metadata.offsets_at({queue(0): 1050}, extents)
        cluster.faults.handle(RequestCode.PULL_MESSAGE, reset)
        stored = await driver.metadata.stored_at({queue(0): 5})

    assert found.values == {queue(0): 5}
    assert stored.values == {queue(0): 1050}
