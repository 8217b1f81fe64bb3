"""AdminClient against servers that reject, hang or return wrong data."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any, cast

import msgspec
import pytest

from rocketmq_aio import (
    AdminClient,
    AdminError,
    BrokerError,
    ClientConfig,
    ClosedError,
    CodecError,
    ConfigError,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageNotFoundError,
    MessageQueue,
    NotConnectedError,
    NotRunningError,
    NotSupportedError,
    PermissionDeniedError,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    RequestTimeoutError,
    RocketMQError,
    RouteNotFoundError,
    SubscriptionError,
    TopicConfig,
)
from rocketmq_aio.admin.metadata import Metadata
from rocketmq_aio.admin.servers import NO_MASTER
from rocketmq_aio.admin.topic_settings import TopicSettings
from rocketmq_aio.embedded import EmbeddedCluster
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.timestamps import EPOCH
from rocketmq_aio.protocol.bodies import queue_table
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.static_topics import is_logical
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.fakes.name_server import FakeNameServer
from tests.fakes.static_topics import share_out
from tests.unit.remoting.until import until

TOPIC = "orders"
GROUP = "billing"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
OFFLINE = Response(ResponseCode.CONSUMER_NOT_ONLINE)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        tell_of_brokers(cluster)
        yield cluster


@pytest.fixture
async def admin(cluster: FakeCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        yield admin


@pytest.fixture
async def impatient(cluster: FakeCluster) -> AsyncIterator[AdminClient]:
    """A client for requests that are not answered."""
    config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=2.0)
    async with AdminClient(client=config) as admin:
        yield admin


def tell_of_brokers(cluster: FakeCluster, *without_master: str) -> None:
    tell_of_brokers_at(cluster.name_server, cluster.brokers, *without_master)


def tell_of_brokers_at(
    server: FakeNameServer, brokers: list[FakeBroker], *without_master: str
) -> None:
    table = {
        broker.name: {
            "brokerName": broker.name,
            "cluster": broker.state.cluster,
            "brokerAddrs": {"1" if broker.name in without_master else "0": broker.address},
        }
        for broker in brokers
    }
    body = msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": {}})
    server.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, Response(body=body), times=None)


def on_all(cluster: FakeCluster, code: int, reply: Response) -> None:
    for broker in cluster.brokers:
        broker.faults.handle(code, reply, times=None, broker=broker.name)


async def test_requests_that_take_long_outlast_the_request_timeout(
    cluster: FakeCluster, impatient: AdminClient
) -> None:
    broker = cluster.brokers[0]
    held = broker.faults.hold(RequestCode.REMOVE_BROKER, times=None, broker=broker.name)
    broker.faults.drop(RequestCode.GET_BROKER_CONFIG, executed=False, broker=broker.name)

    removal = asyncio.create_task(impatient.brokers.remove(broker.address, "c", "broker-x", 0))
    await broker.wait_for(RequestCode.REMOVE_BROKER)
    with pytest.raises(RequestTimeoutError):  # later than the removal
        await impatient.brokers.config(brokers=[broker.name])
    held.release()

    with pytest.raises(NotSupportedError):  # what the embedded broker responds
        await removal


async def test_closing_ends_waiting_calls_to_several_brokers_with_closed_error(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    for broker in cluster.brokers:
        broker.faults.drop(RequestCode.GET_TOPIC_STATS_INFO, executed=False, broker=broker.name)
    stats = asyncio.create_task(admin.topics.stats(TOPIC))
    for broker in cluster.brokers:
        await broker.wait_for(RequestCode.GET_TOPIC_STATS_INFO)
    await admin.close()

    with pytest.raises(ClosedError, match="the client was closed"):
        await stats


async def test_closing_during_a_restore_raises_closed_error() -> None:
    async with EmbeddedCluster() as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        held = cluster.faults.hold(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
        config = TopicConfig(topic=TOPIC, broker_name="broker-a", read_queues=1, write_queues=1)
        restore = asyncio.create_task(admin.metadata.restore(Metadata(topics=(config,), groups=())))
        await held.wait()
        await admin.close()

        with pytest.raises(ClosedError):
            await restore


async def test_requests_that_old_brokers_leave_unanswered_are_not_sent() -> None:
    async with EmbeddedCluster(version="4.9.7") as cluster:
        broker = cluster.broker
        broker.version = broker.version._replace(number=393)  # 4.9.0
        broker.faults.drop([351, 2003], times=None, executed=False)
        client = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=60)
        async with AdminClient(client=client) as admin:
            [made] = await admin.topics.create(TOPIC, queues=3)
            [found] = await admin.topics.config(TOPIC)
            with pytest.raises(NotSupportedError, match=r"this needs a broker of 5\.1\.2 or newer"):
                await admin.brokers.cold_data()

    assert made == found
    assert found.read_queues == 3


async def test_a_direct_consumption_outlasts_the_request_timeout() -> None:
    async def handle(message: MessageExt) -> None:
        await asyncio.sleep(2.2)

    async with EmbeddedCluster(topics={TOPIC: 1}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=2.0)
        async with (
            Producer("shop", namesrv=cluster.namesrv) as producer,
            PushConsumer(GROUP, on_message=handle, namesrv=cluster.namesrv) as consumer,
            AdminClient(client=config) as admin,
        ):
            sent = await producer.send(Message(TOPIC, b"x"))
            done = await admin.messages.consume_directly(
                sent.offset_message_id, GROUP, consumer.client.client_id
            )

    assert done.outcome == "CR_SUCCESS"


async def test_admin_error_has_the_outcome_of_each_server(
    cluster: FakeCluster, impatient: AdminClient
) -> None:
    cluster.faults.handle(RequestCode.DELETE_SUBSCRIPTIONGROUP, Response(), broker="broker-a")
    cluster.faults.drop(RequestCode.DELETE_SUBSCRIPTIONGROUP, executed=False, broker="broker-b")

    with pytest.raises(AdminError, match="1 of 2 servers: broker-b") as caught:
        await impatient.delete_group(GROUP)

    assert caught.value.done == {"broker-a": None}
    assert isinstance(caught.value.failed["broker-b"], RequestTimeoutError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_an_error_of_stored_settings_counts_topics_and_groups(
    cluster: FakeCluster, impatient: AdminClient
) -> None:
    for code in (
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    ):
        cluster.faults.drop(code, executed=False, broker="broker-b")
    topics = [
        TopicConfig(topic=topic, broker_name=name, read_queues=1, write_queues=1)
        for topic in ("one", "two")
        for name in ("broker-a", "broker-b")
    ]
    stored = [*await impatient.groups.create("one"), *await impatient.groups.create("two")]
    groups = [msgspec.structs.replace(each, max_retries=3) for each in stored]

    with pytest.raises(AdminError, match="storing 4 topics failed on 1 of 2 servers"):
        await impatient.topics.put(topics)
    with pytest.raises(AdminError, match="storing 4 groups failed on 1 of 2 servers"):
        await impatient.groups.put(groups)


async def test_an_update_needs_the_topic_or_group_on_each_named_broker_only() -> None:
    named = ["broker-a", "broker-b"]
    async with EmbeddedCluster(2) as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create(TOPIC, brokers="broker-a")
        await admin.groups.create(GROUP, brokers="broker-a")

        topics = await admin.topics.update(TOPIC, perm="R")
        groups = await admin.groups.update(GROUP, max_retries=3)
        with pytest.raises(RouteNotFoundError, match=r"not on \['broker-b'\]"):
            await admin.topics.update(TOPIC, perm="W", brokers=named)
        with pytest.raises(SubscriptionError, match=r"not on \['broker-b'\]"):
            await admin.groups.update(GROUP, max_retries=4, brokers=named)

        assert topics == await admin.topics.config(TOPIC)
        assert [(each.broker_name, each.perm) for each in topics] == [("broker-a", "R")]
        assert groups == await admin.groups.config(GROUP)
        assert [(each.broker_name, each.max_retries) for each in groups] == [("broker-a", 3)]


async def test_an_error_common_to_all_brokers_is_raised_itself(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    on_all(cluster, RequestCode.DELETE_SUBSCRIPTIONGROUP, Response(16, remark="not you"))

    with pytest.raises(PermissionDeniedError, match="not you") as caught:
        await admin.delete_group(GROUP)

    assert len(caught.value.__notes__) == 1


async def test_different_errors_raise_admin_error(cluster: FakeCluster, admin: AdminClient) -> None:
    cluster.faults.refuse(RequestCode.DELETE_SUBSCRIPTIONGROUP, 16, "not you", broker="broker-a")
    cluster.faults.refuse(RequestCode.DELETE_SUBSCRIPTIONGROUP, 1, "disk", broker="broker-b")

    with pytest.raises(AdminError) as caught:
        await admin.delete_group(GROUP)

    kinds = {name: type(error) for name, error in caught.value.failed.items()}
    assert kinds == {"broker-a": PermissionDeniedError, "broker-b": BrokerError}


@pytest.mark.parametrize("replicas", [False, True])
async def test_a_broker_without_a_master_fails_the_call(
    cluster: FakeCluster, admin: AdminClient, replicas: bool
) -> None:
    tell_of_brokers(cluster, "broker-b")
    response = Response(body=b'{"table": {}}')
    on_all(cluster, RequestCode.GET_BROKER_RUNTIME_INFO, response)

    with pytest.raises(AdminError) as caught:
        await admin.broker_stats(replicas=replicas)

    assert set(caught.value.done) == {"broker-a", *(["broker-b:1"] if replicas else [])}
    assert isinstance(caught.value.failed["broker-b"], NotConnectedError)


async def test_a_broker_without_a_master_is_listed_with_the_problem(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    tell_of_brokers(cluster, "broker-b")

    listed = await admin.brokers.list()

    problems = [(each.broker_name, each.broker_id, each.problem) for each in listed]
    assert problems[1:] == [("broker-b", 0, NO_MASTER), ("broker-b", 1, None)]


async def test_name_servers_keep_a_topic_if_a_broker_fails_to_delete_it(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    cluster.faults.handle(RequestCode.DELETE_TOPIC_IN_BROKER, Response(), broker="broker-a")
    cluster.faults.refuse(RequestCode.DELETE_TOPIC_IN_BROKER, 1, "disk", broker="broker-b")

    with pytest.raises(AdminError):
        await admin.delete_topic(TOPIC)

    assert cluster.name_server.requests_of(RequestCode.DELETE_TOPIC_IN_NAMESRV) == []


async def test_in_a_namespace_names_are_those_of_the_application(cluster: FakeCluster) -> None:
    names = msgspec.json.encode({"topicList": ["shop%orders", "other%orders", "orders", "TBW102"]})
    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    cluster.faults.handle(code, Response(body=names))
    on_all(cluster, RequestCode.DELETE_SUBSCRIPTIONGROUP, Response())
    config = ClientConfig(namesrv=cluster.namesrv, namespace="shop", namespace_version=1)
    async with AdminClient(client=config) as admin:
        listed = await admin.list_topics()
        await admin.delete_group(GROUP)

    (asked,) = cluster.broker.requests_of(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    assert listed == ["orders"]
    assert asked.ext_fields()["groupName"] == f"shop%{GROUP}"


async def test_fields_of_responses_that_are_invalid_count_as_missing(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    """As in headers of other responses."""
    elected, wiped = RequestCode.CONTROLLER_ELECT_MASTER, RequestCode.WIPE_WRITE_PERM_OF_BROKER
    metadata = Response(ext={"controllerLeaderAddress": cluster.broker.address, "isLeader": "?"})
    on_all(cluster, RequestCode.CONTROLLER_GET_METADATA_INFO, metadata)
    on_all(cluster, elected, Response(ext={"masterAddress": "10.0.0.1:1", "masterEpoch": ""}))
    cluster.name_server.faults.handle(wiped, Response(ext={"wipeTopicCount": "many"}))
    address = cluster.broker.address

    assert (await admin.controllers.metadata(address)).leader_address == address
    master = await admin.controllers.elect_master(address, "DefaultCluster", "broker-a", 1)
    assert (master.master_address, master.master_epoch) == ("10.0.0.1:1", None)
    counts = await admin.name_servers.wipe_write_permission("broker-a")
    assert list(counts.values()) == [0]


@pytest.mark.parametrize("newest", ["broker-a", "broker-b"])
async def test_the_newest_subscription_of_all_brokers_counts(
    cluster: FakeCluster, admin: AdminClient, newest: str
) -> None:
    """A heartbeat does not reach all brokers at the same time."""
    for broker in cluster.brokers:
        expression, version = ("new", 2) if broker.name == newest else ("old", 1)
        data = {"topic": TOPIC, "subString": expression, "subVersion": version}
        body = {"connectionSet": [], "subscriptionTable": {TOPIC: data}}
        response = Response(body=msgspec.json.encode(body))
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        broker.faults.handle(code, response, broker=broker.name)

    (subscription,) = (await admin.groups.connections(GROUP)).subscriptions

    assert subscription.expression == "new"


async def test_a_single_text_is_one_name(cluster: FakeCluster, admin: AdminClient) -> None:
    on_all(cluster, RequestCode.AUTH_CREATE_ACL, Response())
    on_all(cluster, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, Response())
    await admin.acl.create_policy("User:alice", "Topic:orders", "Sub", source_ips="10.0.0.1")
    await admin.acl.put_open_addresses("10.0.0.*")

    (created,) = cluster.broker.requests_of(RequestCode.AUTH_CREATE_ACL)
    (stored,) = cluster.broker.requests_of(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    (entry,) = msgspec.json.decode(created.body)["policies"][0]["entries"]
    assert (entry["resource"], entry["actions"], entry["sourceIps"]) == (
        *("Topic:orders", ["Sub"]),
        ["10.0.0.1"],
    )
    assert stored.ext_fields()["globalWhiteAddrs"] == "10.0.0.*"
    assert [*await admin.topics.allocate(TOPIC, "one")] == ["one"]
    address = cluster.broker.address
    cluster.faults.handle(RequestCode.GET_CONTROLLER_CONFIG, Response(body=b"a=1"))
    assert await admin.controllers.config(address) == {address: {"a": "1"}}


@pytest.mark.parametrize(
    ("remark", "failed"),
    [
        (f"the producer group[{GROUP}] not exist", False),
        ("the broker does not exist any more", True),
    ],
)
async def test_only_a_group_without_producers_has_no_connections(
    cluster: FakeCluster, admin: AdminClient, remark: str, failed: bool
) -> None:
    on_all(cluster, RequestCode.GET_PRODUCER_CONNECTION_LIST, Response(1, remark=remark))

    if failed:
        with pytest.raises(BrokerError, match="any more"):
            await admin.producer_connections(GROUP)
    else:
        assert await admin.producer_connections(GROUP) == []


# --- offsets -------------------------------------------------------------------------------------


def online(cluster: FakeCluster) -> None:
    body = msgspec.json.encode({"connectionSet": [], "subscriptionTable": {}})
    on_all(cluster, RequestCode.GET_CONSUMER_CONNECTION_LIST, Response(body=body))


def moved(cluster: FakeCluster, offset: int) -> None:
    body = msgspec.json.encode({"offsetTable": queue_table({QUEUE: offset})})
    on_all(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, Response(body=body))


async def test_the_queues_of_members_are_requested_concurrently(cluster: FakeCluster) -> None:
    members = [{"clientId": f"member-{number}"} for number in range(3)]
    body = msgspec.json.encode({"connectionSet": members})
    connections = Response(body=body)
    cluster.faults.handle(RequestCode.GET_CONSUMER_CONNECTION_LIST, connections, broker="broker-a")
    cluster.faults.handle(RequestCode.GET_CONSUMER_CONNECTION_LIST, OFFLINE, broker="broker-b")
    on_all(cluster, RequestCode.GET_CONSUME_STATS, Response(body=b"{}"))
    cluster.faults.drop(
        RequestCode.GET_CONSUMER_RUNNING_INFO, executed=False, times=None, broker="broker-a"
    )  # never answers
    config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=2.0)
    async with AdminClient(client=config) as admin:
        progress = asyncio.create_task(admin.group_progress(GROUP, owners=True))
        await until(
            lambda: len(cluster.broker.requests_of(RequestCode.GET_CONSUMER_RUNNING_INFO)) == 3
        )
        assert not progress.done()

        silent = (await progress).silent
    assert silent.keys() == {"member-0", "member-1", "member-2"}


async def test_irregular_running_info_still_names_the_queues_of_a_member(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    body = msgspec.json.encode({"connectionSet": [{"clientId": "member-0"}]})
    cluster.faults.handle(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, Response(body=body), broker="broker-a"
    )
    cluster.faults.handle(RequestCode.GET_CONSUMER_CONNECTION_LIST, OFFLINE, broker="broker-b")
    offsets = {"brokerOffset": 2, "consumerOffset": 1, "lastTimestamp": 0}
    stats = msgspec.json.encode({"offsetTable": queue_table({QUEUE: offsets})})
    on_all(cluster, RequestCode.GET_CONSUME_STATS, Response(body=stats))
    info = {"properties": None, "subscriptionSet": None, "mqTable": queue_table({QUEUE: {}})}
    on_all(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, Response(body=msgspec.json.encode(info)))

    progress = await admin.group_progress(GROUP, owners=True)

    assert progress.silent == {}
    assert {each.client_id for each in progress.queues} == {"member-0"}


async def test_reset_falls_back_to_time_if_the_broker_does_not_store_it(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    for broker in cluster.brokers:
        broker.create_group(GROUP)
    online(cluster)
    moved(cluster, 7)  # not what a single queue was to be moved to

    resets = await admin.reset_offsets(GROUP, TOPIC, datetime(2026, 1, 1, tzinfo=UTC))

    assert {(each.offset, each.how) for each in resets} == {(7, "members")}
    asked = cluster.broker.requests_of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    first, second = (each.ext_fields() for each in asked)
    assert (first["queueId"], first["timestamp"], first["isForce"]) == ("0", "-1", "false")
    assert "queueId" not in second
    assert (second["timestamp"], second["isForce"]) == ("1767225600000", "true")


async def test_connected_members_that_have_not_committed_are_reset() -> None:
    config = LitePullConfig(auto_commit=False)
    async with (
        EmbeddedCluster(version="4.9.7", topics={TOPIC: 2}) as cluster,
        LitePullConsumer(GROUP, namesrv=cluster.namesrv, config=config) as consumer,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        await consumer.subscribe(TOPIC)
        await consumer.ready()

        resets = await admin.reset_offsets(GROUP, TOPIC, "earliest")

        assert [(each.offset, each.how) for each in resets] == [(0, "members")] * 2


@pytest.mark.parametrize(("online", "how"), [(True, "members"), (False, "committed")])
async def test_a_group_without_commits_is_reset_if_the_broker_stores_no_resets(
    *, online: bool, how: str
) -> None:
    config = LitePullConfig(auto_commit=False, start_from="earliest")
    async with (
        EmbeddedCluster(topics={TOPIC: 2}) as cluster,
        LitePullConsumer(GROUP, namesrv=cluster.namesrv, config=config) as consumer,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        await admin.brokers.update_config({"useServerSideResetOffset": "false"})
        await consumer.subscribe(TOPIC)
        await consumer.ready()
        if not online:
            await consumer.close()

        resets = await admin.reset_offsets(GROUP, TOPIC, "earliest")

        assert [(each.offset, each.how) for each in resets] == [(0, how)] * 2


async def test_members_are_moved_once_if_the_broker_stores_no_resets() -> None:
    """A request that tries whether it does would return them to their last commits."""
    async with (
        EmbeddedCluster(topics={TOPIC: 1}) as cluster,
        LitePullConsumer(GROUP, namesrv=cluster.namesrv) as consumer,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        await admin.brokers.update_config({"useServerSideResetOffset": "false"})
        await consumer.subscribe(TOPIC)
        await consumer.ready()
        (queue,) = consumer.assignment()
        asked = cluster.faults.delay(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 0)

        await admin.reset_offsets(GROUP, TOPIC, "latest")
        with pytest.raises(NotSupportedError, match="stop its members"):
            await admin.reset_offsets(GROUP, TOPIC, {queue: 0})

        assert asked.count == 1


async def test_members_that_pop_are_reset_if_the_broker_stores_no_resets() -> None:
    async with (
        EmbeddedCluster(topics={TOPIC: 1}) as cluster,
        Producer("senders", namesrv=cluster.namesrv) as producer,
        PopConsumer(GROUP, namesrv=cluster.namesrv) as consumer,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        await admin.brokers.update_config({"useServerSideResetOffset": "false"})
        await consumer.subscribe(TOPIC)
        await producer.send(Message(TOPIC, b"1"))
        await consumer.ack(await consumer.receive())

        resets = await admin.reset_offsets(GROUP, TOPIC, "earliest")

        assert [(each.offset, each.how) for each in resets] == [(0, "members")]
        assert [each.body for each in await consumer.receive()] == [b"1"]


async def test_a_broker_without_stored_resets_cannot_reset_a_single_queue(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    online(cluster)
    moved(cluster, 7)

    with pytest.raises(NotSupportedError, match="stop its members"):
        await admin.reset_offsets(GROUP, TOPIC, {QUEUE: 0})


async def test_reset_raises_if_the_committed_offset_is_not_stored(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    cluster.broker.put(TOPIC, b"one")
    cluster.broker.commit(GROUP, TOPIC, 0, 0)
    on_all(cluster, RequestCode.GET_CONSUMER_CONNECTION_LIST, OFFLINE)
    on_all(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, OFFLINE)
    cluster.faults.handle("commit", Response())

    with pytest.raises(BrokerError, match=r"acknowledged offset 1 .* holds 0"):
        await admin.reset_offsets(GROUP, TOPIC, {QUEUE: 1})


async def test_the_first_offset_that_a_reset_commits_is_sent_alone(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    broker = cluster.broker
    broker.create_group(GROUP)
    broker.create_topic("wide", queues=8)
    on_all(cluster, RequestCode.GET_CONSUMER_CONNECTION_LIST, OFFLINE)
    on_all(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, OFFLINE)
    held = broker.faults.hold("commit")
    resetting = asyncio.create_task(admin.reset_offsets(GROUP, "wide", "latest"))
    await held.wait(1)
    # A request that is sent and answered after all that the reset could send meanwhile.
    await admin.client.broker.max_offset(MessageQueue("wide", "broker-a", 0))
    sent = len(broker.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET))
    held.release()
    await resetting

    assert sent == 1
    assert len(broker.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 8


async def test_a_reset_keeps_its_route_however_long_it_takes(
    cluster: FakeCluster, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = admin.client.routes

    async def search_long(queue: MessageQueue, millis: int) -> int:
        for _ in range(3):  # as many looks at unused routes
            routes._drop_unused({*routes._topics_in_use(), *routes._pinned})
        return await admin.client.broker.min_offset(queue)

    monkeypatch.setattr(admin.offsets._search, "offset_at", search_long)
    on_all(cluster, RequestCode.GET_CONSUMER_CONNECTION_LIST, OFFLINE)
    on_all(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, OFFLINE)
    for broker in cluster.brokers:
        broker.create_group(GROUP)

    resets = await admin.reset_offsets(GROUP, TOPIC, datetime(2026, 1, 1, tzinfo=UTC))

    assert {each.queue.broker_name for each in resets} == {"broker-a", "broker-b"}
    assert not routes._pinned


async def test_logical_queues_are_reset_at_the_brokers_that_hold_them(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    share_out(cluster, TOPIC, ["broker-b"])
    on_all(cluster, RequestCode.GET_CONSUMER_CONNECTION_LIST, OFFLINE)
    cluster.brokers[1].create_group(GROUP)

    resets = await admin.reset_offsets(GROUP, TOPIC, "latest")

    assert [(is_logical(each.queue), each.how) for each in resets] == [(True, "committed")]
    update = RequestCode.UPDATE_CONSUMER_OFFSET
    assert [len(broker.requests_of(update)) for broker in cluster.brokers] == [0, 1]


async def test_a_connected_group_is_not_reset_in_a_static_topic(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    share_out(cluster, TOPIC, ["broker-b"])
    online(cluster)

    with pytest.raises(NotSupportedError, match="static topic: stop its members"):
        await admin.reset_offsets(GROUP, TOPIC, "latest")


# --- which servers there are ----------------------------------------------------------------------


async def test_calls_raise_without_any_broker() -> None:
    async with FakeCluster(brokers=0) as cluster:
        tell_of_brokers(cluster)
        template = Response(ResponseCode.TOPIC_NOT_EXIST)
        cluster.faults.handle("route", template, times=None)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            for refused in (
                admin.create_topic(TOPIC),
                admin.update_topic(TOPIC, queues=2),
                admin.delete_topic(TOPIC),
                admin.create_group(GROUP),
                admin.update_group(GROUP, enabled=False),
                admin.delete_group(GROUP),
            ):
                with pytest.raises(NotConnectedError, match="no broker"):
                    await refused


async def test_an_empty_list_of_brokers_raises(admin: AdminClient) -> None:
    for refused in (admin.create_topic(TOPIC, brokers=[]), admin.create_group(GROUP, brokers=())):
        with pytest.raises(ConfigError, match="broker-a"):
            await refused


async def test_brokers_missing_at_one_name_server_are_included(cluster: FakeCluster) -> None:
    restarted = FakeNameServer()
    restarted.register(cluster.brokers[0])
    async with restarted:
        tell_of_brokers_at(restarted, cluster.brokers[:1])
        on_all(cluster, RequestCode.DELETE_SUBSCRIPTIONGROUP, Response())
        namesrv = f"{restarted.address};{cluster.namesrv}"
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.delete_group(GROUP)
            stats = await admin._servers.masters_of(TOPIC)

    asked = [len(b.requests_of(RequestCode.DELETE_SUBSCRIPTIONGROUP)) for b in cluster.brokers]
    assert asked == [1, 1]
    assert set(stats) == {"broker-a", "broker-b"}


async def test_a_request_that_a_name_server_lacks_is_neither_an_outage_nor_a_proxy(
    admin: AdminClient, cluster: FakeCluster
) -> None:
    refusal = Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="too old")
    cluster.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, refusal, times=None)

    with pytest.raises(NotSupportedError, match="code 3: too old"):
        await admin.cluster_info()


@pytest.mark.parametrize(
    ("cluster_name", "code", "value"),
    [("east", RequestCode.PUT_KV_CONFIG, "broker-b:1"), (None, RequestCode.DELETE_KV_CONFIG, None)],
)
async def test_deleting_a_topic_in_one_cluster_keeps_the_order_of_the_others(
    cluster: FakeCluster, admin: AdminClient, cluster_name: str | None, code: int, value: str | None
) -> None:
    cluster.brokers[0].state.cluster, cluster.brokers[1].state.cluster = "east", "west"
    tell_of_brokers(cluster)
    server = cluster.name_server
    server.faults.handle(
        RequestCode.GET_KV_CONFIG, Response(ext={"value": "broker-a:1;broker-b:1"}), times=None
    )
    for each in (RequestCode.DELETE_TOPIC_IN_NAMESRV, code):
        server.faults.handle(each, Response(), times=None)
    on_all(cluster, RequestCode.DELETE_TOPIC_IN_BROKER, Response())

    await admin.delete_topic(TOPIC, cluster=cluster_name)

    (kept,) = server.requests_of(code)
    assert kept.ext_fields().get("value") == value


async def test_the_order_of_a_topic_is_read_from_every_name_server(cluster: FakeCluster) -> None:
    cluster.brokers[0].state.cluster, cluster.brokers[1].state.cluster = "east", "west"
    tell_of_brokers(cluster)
    cluster.name_server.configs["ORDER_TOPIC_CONFIG"] = {TOPIC: "broker-a:1;broker-b:1"}
    async with FakeNameServer() as restarted:
        tell_of_brokers_at(restarted, cluster.brokers)
        namesrv = f"{restarted.address};{cluster.namesrv}"
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.delete_topic(TOPIC, cluster="east")

        for server in (restarted, cluster.name_server):
            assert server.configs["ORDER_TOPIC_CONFIG"] == {TOPIC: "broker-b:1"}


async def test_a_topic_loses_its_order_at_the_name_servers_before_the_brokers(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    """Brokers set it again with each registration while a name server has the queues."""
    await admin.topics.update(TOPIC, order=True)
    cluster.name_server.faults.refuse(RequestCode.DELETE_KV_CONFIG, 1, "no space")

    with pytest.raises(AdminError) as caught:
        await admin.topics.update(TOPIC, order=False)
    kept = [each.order for each in await admin.topics.config(TOPIC)]
    changed = [each.order for each in await admin.topics.update(TOPIC, order=False)]

    assert [*caught.value.failed] == [cluster.namesrv]
    assert caught.value.done == {}
    assert kept == [True, True]
    assert changed == [False, False]
    assert await admin.topics.order(TOPIC) == {}


async def test_an_unreadable_order_configuration_raises_codec_error(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    cluster.name_server.configs["ORDER_TOPIC_CONFIG"] = {TOPIC: "broker-a:4;broker-b:four"}

    with pytest.raises(CodecError, match="order configuration at byte 0"):
        await admin.topics.order(TOPIC)


@pytest.mark.parametrize(
    "name", ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_ONSAPI_PULL", "CID_ONS-HTTP-PROXY"]
)
async def test_groups_of_brokers_and_tools_are_not_deleted(
    cluster: FakeCluster, admin: AdminClient, name: str
) -> None:
    with pytest.raises(ConfigError, match="brokers and tools need this group"):
        await admin.groups.delete(name)

    for broker in cluster.brokers:
        assert not broker.requests_of(RequestCode.DELETE_SUBSCRIPTIONGROUP)


async def test_accounts_are_not_queried_while_access_control_is_off(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    """4.9.7 brokers do not respond to it then."""
    on_all(cluster, RequestCode.GET_BROKER_CONFIG, Response(body=b"aclEnable=false\n"))

    with pytest.raises(NotSupportedError, match=r"access control 1\.0 is off"):
        await admin.acl.account_versions()

    for broker in cluster.brokers:
        assert not broker.requests_of(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)


async def test_a_group_is_no_internal_one_because_its_name_is_similar(admin: AdminClient) -> None:
    for group in ("CID_ONSALE", "TOOLS_CONSUMER_2"):
        await admin.groups.create(group)
        listed = await admin.groups.list()
        await admin.groups.delete(group)

        assert listed == [group]
        assert await admin.groups.list() == []


# --- brokers and static topics -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "setting", "reason"),
    [
        ({"queues": 8}, "queues", "adds queues"),
        ({"write_queues": 1}, "write_queues", "moves them"),
        ({"order": True}, "order", "moves them"),
        ({"perm": "R"}, "perm", "whatever its permission"),
    ],
)
async def test_settings_of_queues_are_rejected_for_a_static_topic(
    settings: TopicSettings, setting: str, reason: str
) -> None:
    async with EmbeddedCluster(2) as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.static_topics.create(TOPIC, 2, brokers=["broker-a"])
        before = await admin.topics.config(TOPIC)

        with pytest.raises(ConfigError, match=reason) as caught:
            await admin.topics.update(TOPIC, **settings)
        with pytest.raises(ConfigError, match="exists as a static topic"):
            await admin.topics.create(TOPIC)

        assert caught.value.setting == setting
        assert await admin.topics.config(TOPIC) == before


async def test_other_settings_of_a_static_topic_change_and_keep_its_queues() -> None:
    async with EmbeddedCluster(2) as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        made = await admin.static_topics.create(TOPIC, 2)
        attributes = {"message.type": "FIFO"}
        changed = await admin.topics.update(TOPIC, perm="W", order=False, attributes=attributes)

        assert [(each.perm, each.attributes) for each in changed] == [("W", attributes)] * 2
        assert await admin.static_topics.queues(TOPIC) == made


@pytest.mark.parametrize("text", ["NaN", "1e999", "-Infinity", "?"])
async def test_statistics_that_are_no_numbers_count_as_zero(
    cluster: FakeCluster, admin: AdminClient, text: str
) -> None:
    table = {"msgPutTotalTodayNow": text, "putTps": f"{text} 1 2"}
    body = msgspec.json.encode({"table": table})
    on_all(cluster, RequestCode.GET_BROKER_RUNTIME_INFO, Response(body=body))

    listed = await admin.brokers.list()

    assert {(each.messages_today, each.put_tps) for each in listed} == {(0, 0.0)}


async def test_an_address_without_a_port_is_not_called_a_broker_without_a_master(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    for refused in (
        admin.controllers.metadata("localhost"),
        admin.brokers.remove("localhost", "DefaultCluster", "broker-a", 0),
    ):
        with pytest.raises(ConfigError, match="address='localhost': expected host:port"):
            await refused


async def test_an_unknown_setting_changes_nothing_and_the_error_has_a_similar_one(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    settings = {"deleteWhen": "05", "flushDiskTyp": "SYNC_FLUSH"}
    reason = "flushDiskTyp': not a setting of broker-a, broker-b: did you mean flushDiskType?"
    with pytest.raises(ConfigError, match=re.escape(reason)):
        await admin.brokers.update_config(settings)

    assert not any(each.requests_of(RequestCode.UPDATE_BROKER_CONFIG) for each in cluster.brokers)


async def test_a_value_that_servers_acknowledge_and_do_not_take_is_an_error(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    on_all(cluster, RequestCode.UPDATE_BROKER_CONFIG, Response())

    await admin.brokers.update_config({"deleteWhen": "4", "flushDiskType": "async_flush"})
    with pytest.raises(BrokerError, match="acknowledged deleteWhen=x, and holds 04: check the val"):
        await admin.brokers.update_config({"deleteWhen": "x"})


async def test_settings_are_changed_without_the_permission_to_read_them(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    on_all(cluster, RequestCode.GET_BROKER_CONFIG, Response(16, remark="not you"))
    await admin.brokers.update_config({"deleteWhen": "05"})

    assert {each.state.settings["deleteWhen"] for each in cluster.brokers} == {"05"}


# --- messages -----------------------------------------------------------------------------------


async def test_a_message_id_that_names_a_stranger_opens_no_connection(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    async with FakeBroker() as stranger:
        stranger.faults.handle(RequestCode.VIEW_MESSAGE_BY_ID, Response(), times=None)
        crafted = f"7F000001{stranger.port:08X}{0:016X}"
        for call in (admin.view_message, admin.view_messages):
            with pytest.raises(NotConnectedError, match="the id is one of another cluster") as info:
                await call(crafted)
            assert info.value.address == stranger.address

        assert stranger.connects == []


async def test_a_message_of_a_broker_that_is_down_is_unreachable() -> None:
    async with (
        EmbeddedCluster(brokers=2, topics={TOPIC: 1}) as cluster,
        Producer(GROUP, namesrv=cluster.namesrv) as producer,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        sent = await producer.send(Message(TOPIC, b"1"), queue=QUEUE)
        assert sent.offset_message_id is not None
        broker = cluster.broker
        broker.kill()

        for call in (
            admin.messages.by_offset_id(sent.offset_message_id),
            admin.messages.consume_directly(sent.offset_message_id, GROUP, "client"),
        ):
            with pytest.raises(NotConnectedError, match=f"^{broker.address}.* is down"):
                await call


async def test_a_message_id_finds_a_broker_that_advertises_a_host_name(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    broker = cluster.brokers[0]
    table = {
        "broker-a": {
            "brokerName": "broker-a",
            "cluster": "c",
            "brokerAddrs": {
                "0": f"no..such.host:{broker.port}",
                "1": f"{64 * 'x'}.invalid:{broker.port}",
                "2": f"localhost:{broker.port}",
                "3": "no.such.host.invalid:1",
            },
        }
    }
    body = msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": {}})
    cluster.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, Response(body=body), times=None)

    with pytest.raises(MessageNotFoundError):
        await admin.view_message(f"7F000001{broker.port:08X}{0:016X}")
    (asked,) = broker.requests_of(RequestCode.VIEW_MESSAGE_BY_ID)
    assert asked.ext_fields()["offset"] == "0"


async def test_a_tag_finds_the_newest_messages_of_each_broker() -> None:
    async with EmbeddedCluster(2, topics={TOPIC: 1}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(4):
                for broker in cluster.brokers:
                    queue = MessageQueue(TOPIC, broker.name, 0)
                    tag = "odd" if number % 2 else "even"
                    message = Message(TOPIC, b"%d" % number, tags=tag, keys=["even"])
                    await producer.send(message, queue=queue)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            everything = await admin.messages.by_tag(TOPIC, "even")
            newest = await admin.messages.by_tag(TOPIC, "odd", max_messages=1)
            nothing = await admin.messages.by_tag(TOPIC, "even", end=EPOCH)

    assert sorted(each.body for each in everything) == [b"0", b"0", b"2", b"2"]
    assert [each.body for each in newest] == [b"3", b"3"]
    assert nothing == []


async def test_a_key_finds_each_message_of_a_time_range_once() -> None:
    """Brokers index times in whole seconds, and return a message once for each of its keys."""
    async with EmbeddedCluster(topics={TOPIC: 1}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for body in (b"0", b"1", b"2"):
                await producer.send(Message(TOPIC, body, keys=["42", "7", "42"]))
                cluster.clock.advance(0.4)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            zero, one, two = await admin.messages.by_key(TOPIC, "42")
            since = await admin.messages.by_key(TOPIC, "42", begin=one.store_time)
            until = await admin.messages.by_key(TOPIC, "42", end=one.store_time)

    assert [each.body for each in (zero, one, two)] == [b"0", b"1", b"2"]
    assert [each.body for each in since] == [b"1", b"2"]
    assert [each.body for each in until] == [b"0", b"1"]


async def test_messages_are_read_by_time_and_tag() -> None:
    async with EmbeddedCluster(topics={TOPIC: 1}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for tag in ("a", "b", "a"):
                await producer.send(Message(TOPIC, tag.encode(), tags=tag))
                cluster.clock.advance(1.0)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            by_time = admin.messages.by_time
            first, second, third = [each async for each in by_time(TOPIC, EPOCH)]
            since = [each async for each in by_time(TOPIC, second.store_time)]
            until = [each async for each in by_time(TOPIC, EPOCH, second.store_time)]
            tagged = [each async for each in by_time(TOPIC, EPOCH, expression="c || b")]

    assert [each.queue_offset for each in (first, second, third)] == [0, 1, 2]
    assert [each.queue_offset for each in since] == [1, 2]
    assert [each.queue_offset for each in until] == [0]
    assert [each.body for each in tagged] == [b"b"]


async def test_a_broker_that_does_not_index_tags_is_an_error() -> None:
    versions = ("5.5.0", "4.9.7")
    async with EmbeddedCluster(2, broker_versions=versions, topics={TOPIC: 1}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            queue = MessageQueue(TOPIC, "broker-a", 0)
            await producer.send(Message(TOPIC, b"x", tags="paid", keys=["paid"]), queue=queue)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            with pytest.raises(AdminError) as caught:
                await admin.messages.by_tag(TOPIC, "paid")

    found = cast("list[MessageExt]", caught.value.done["broker-a"])
    assert [each.body for each in found] == [b"x"]
    assert isinstance(caught.value.failed["broker-b"], NotSupportedError)


async def test_a_slave_is_read_while_the_master_is_down() -> None:
    async with EmbeddedCluster(replicas=1, topics={TOPIC: 1}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            sent = await producer.send(Message(TOPIC, b"x", keys=["42"], tags="paid"))
        async with (
            AdminClient(namesrv=cluster.namesrv) as admin,
            PullConsumer(GROUP, namesrv=cluster.namesrv) as reader,
        ):
            await admin.create_group(GROUP)
            await reader.commit(QUEUE, 0)
            cluster.broker.kill()

            assert len(await admin.messages.by_key(TOPIC, "42")) == 1
            assert len(await admin.messages.by_tag(TOPIC, "paid")) == 1
            assert len(await admin.messages.by_id(TOPIC, sent.message_id)) == 1
            assert GROUP in await admin.groups.list()
            assert [each.broker_name for each in await admin.groups.config(GROUP)] == ["broker-a"]
            assert not (await admin.groups.connections(GROUP)).online
            assert await admin.groups.producers("shop") == []
            assert (await admin.groups.progress(GROUP)).lag == 1
            assert (await admin.groups.progress(GROUP, TOPIC)).lag == 1
            assert (await admin.topics.stats(TOPIC)).count == 1
            assert await admin.topics.groups(TOPIC) == [GROUP]
            assert [each.broker_name for each in await admin.topics.config(TOPIC)] == ["broker-a"]
            with pytest.raises(NotConnectedError, match="master"):
                await admin.groups.update(GROUP, max_retries=2)


# --- arguments -----------------------------------------------------------------------------------


async def test_invalid_arguments_raise_before_any_request(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    naive = datetime(2026, 1, 1)
    for refused in (
        admin.create_topic(TOPIC, queues=0),
        admin.create_topic(TOPIC, perm="everything"),  # type: ignore[arg-type]
        admin.create_topic(TOPIC, colour="red"),  # type: ignore[call-arg]
        admin.create_topic(TOPIC, attributes={"a,b": "c"}),
        admin.create_group(GROUP, max_retries=-1),
        admin.create_group(GROUP, enabled="yes"),  # type: ignore[arg-type]
        admin.create_group(GROUP, colour="red"),  # type: ignore[call-arg]
        admin.reset_offsets(GROUP, TOPIC, "middle"),  # type: ignore[arg-type]
        admin.reset_offsets(GROUP, TOPIC, naive),
        admin.view_message("not-an-id"),
        admin.view_message("7F00000179C4563F18866DD9A34B0000"),  # a producer's: no such port
        admin.view_message("7F00000100002A9F" + "F" * 16),  # brokers fail at it
        admin.query_messages(TOPIC, ""),
        admin.query_messages(TOPIC, "key", begin=naive),
        admin.query_messages(TOPIC, "key", max_messages=0),
        admin.messages.by_tag(TOPIC, ""),
        admin.topics.allocate(TOPIC, []),
        admin.topics.set_order(TOPIC, {"broker-a": 0}),
        admin.topics.put(
            [TopicConfig(topic=TOPIC, broker_name="broker-a", read_queues=-1, write_queues=1)]
        ),
        admin.group_progress("a b"),
        admin.messages.by_tag(TOPIC, "a || b"),
        admin.metadata.restore({}),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            await refused
    assert cluster.broker.requests == []


async def test_a_queue_that_the_topic_lacks_is_named(admin: AdminClient) -> None:
    with pytest.raises(ConfigError, match="topic orders has no such queue") as caught:
        await admin.messages.by_offset(MessageQueue(TOPIC, "broker-z", 0), 0)
    assert caught.value.setting == "queue"


async def test_calls_raise_before_start_and_after_close(cluster: FakeCluster) -> None:
    admin = AdminClient(namesrv=cluster.namesrv)
    with pytest.raises(NotRunningError):
        await admin.list_topics()
    async with admin:
        assert cluster.namesrv in repr(admin)
    with pytest.raises(NotRunningError):
        await admin.topic_route(TOPIC)


@pytest.mark.parametrize("said", ["[]", '{"retryMaxTimes":"often"}'])
async def test_an_invalid_group_config_raises_a_client_error(
    cluster: FakeCluster, admin: AdminClient, said: str
) -> None:
    body = f'{{"subscriptionGroupTable":{{"{GROUP}":{said}}}}}'.encode()
    on_all(cluster, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Response(body=body))

    with pytest.raises(RocketMQError, match="body"):
        await admin.group_config(GROUP)


async def test_a_proxy_that_refuses_administration_is_named_as_the_cause(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    cluster.name_server.is_proxy = True
    refusal = Response(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=" request type not supported"
    )
    cluster.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, refusal, times=None)
    for broker in cluster.brokers:
        broker.faults.handle(
            RequestCode.GET_TOPIC_STATS_INFO, refusal, times=None, broker=broker.name
        )
    for call in (admin.cluster_info(), admin.topic_stats(TOPIC)):
        with pytest.raises(NotSupportedError, match="a proxy supports no administration"):
            await call


@pytest.mark.parametrize(
    ("setting", "call"),
    [
        ("attributes", lambda admin: admin.create_topic(TOPIC, attributes=None)),
        ("attributes", lambda admin: admin.groups.update(GROUP, attributes={"a": 1})),
        ("queue", lambda admin: admin.topics.update(TOPIC, queue=5)),
        ("consume_in_order", lambda admin: admin.groups.update(GROUP, consume_in_order=True)),
        ("brokers", lambda admin: admin.topics.update(TOPIC, brokers=5)),
        ("cluster", lambda admin: admin.topics.list(cluster=b"c")),
        ("configs", lambda admin: admin.topics.put([1])),
        ("configs", lambda admin: admin.groups.put(None)),
        ("queues", lambda admin: admin.topics.set_order(TOPIC, {"broker-a": "8"})),
        ("group", lambda admin: admin.groups.producers("")),
        ("keep_offsets", lambda admin: admin.groups.delete(GROUP, keep_offsets="no")),
        ("offset", lambda admin: admin.messages.by_offset(QUEUE, "0")),
        ("queue", lambda admin: admin.brokers.consume_queue(TOPIC, 0)),
        ("settings", lambda admin: admin.brokers.update_config("a=b")),
        ("value", lambda admin: admin.name_servers.put_value("ns", "key", None)),
        ("address", lambda admin: admin.controllers.metadata(None)),
        ("password", lambda admin: admin.acl.create_user("u", object())),
        ("topics", lambda admin: admin.acl.put_account("key", "secret", topics="orders")),
        ("count", lambda admin: admin.lite.client("p", "g", "c", count="20")),
        ("brokers", lambda admin: admin.metadata.restore(Metadata((), ()), brokers="a")),
    ],
)
async def test_a_wrong_argument_is_named_before_anything_is_sent(
    setting: str, call: Callable[[Any], Awaitable[object]]
) -> None:
    admin = AdminClient(namesrv="127.0.0.1:9876")  # not started: a request raises NotRunningError

    with pytest.raises(ConfigError, match=f"^{setting}=.*expected"):
        await call(admin)


async def test_a_topic_may_be_a_member_of_a_string_enum(admin: AdminClient) -> None:
    class Topic(str, Enum):  # noqa: UP042 - str() of a StrEnum is plain text
        ORDERS = TOPIC

    assert (await admin.topics.route(Topic.ORDERS)).topic == "orders"
