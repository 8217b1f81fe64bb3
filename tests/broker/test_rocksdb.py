"""5.x brokers with RocksDB, for settings, timers, pops and light queues, and with a container."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import time_ns
from typing import Final

import msgspec
import pytest

from rocketmq_aio import (
    AdminClient,
    BrokerError,
    ClientConfig,
    ConfigError,
    Encoded,
    Message,
    PopConfig,
    PopConsumer,
    Producer,
)
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.testing import Cluster, probe
from tests.broker.container import broker_container
from tests.broker.official_tool import OfficialTool, cells
from tests.broker.reading_groups import POLL_SECONDS, in_thread
from tests.broker.reading_light_queues import read_by_every_kind_of_consumer
from tests.unit.remoting.until import until_done

pytestmark = pytest.mark.needs_real_broker("the embedded broker keeps everything in memory")

BROKER: Final = "broker-a"
SECONDS: Final = 60.0
IN_PROGRESS: Final = 2
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"  # also of records in the file store, until they are due
POP: Final = PopConfig(start_from="earliest", invisible_seconds=300)
PROPERTIES: Final = {
    "storeType": "defaultRocksDB",
    "timerRocksDBEnable": "true",
    "popConsumerKVServiceInit": "true",
    "popConsumerKVServiceEnable": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}


@pytest.fixture(scope="module")
def cluster(
    fresh_cluster: Callable[..., Cluster], rocketmq_cluster: Cluster, rocketmq_version: str
) -> Cluster:
    """A broker with RocksDB from 5.x on; the common one of older versions."""
    if rocketmq_version.startswith("4."):
        return rocketmq_cluster
    return fresh_cluster(broker_properties=PROPERTIES)


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(namesrv=cluster.namesrv) as client:
        yield client


@pytest.mark.mqadmin("switchTimerEngine")
async def test_the_engine_of_delayed_messages_is_switched(
    cluster: Cluster, admin: AdminClient, official_tool: OfficialTool
) -> None:
    if cluster.version.startswith("4."):
        return  # test_requests_of_5_name_the_release_that_has_them

    async def stopped() -> tuple[str, str]:
        """Whether the file time wheel and the timeline in RocksDB have stopped."""
        config = (await admin.brokers.config())[BROKER]
        return config["timerStopEnqueue"], config["timerRocksDBStopScan"]

    await admin.brokers.switch_timer_engine("ROCKSDB_TIMELINE")
    ours = await stopped()
    (printed,) = await official_tool(
        f"switchTimerEngine -b {cluster.brokers[0].address} -e F -n {cluster.namesrv}"
    )
    theirs = await stopped()
    await admin.brokers.switch_timer_engine("FILE_TIME_WHEEL")
    again = await stopped()
    async with Producer("timers", namesrv=cluster.namesrv) as producer:
        await admin.topics.create("timers", queues=1)
        await producer.send(Message("timers", b"later", delay_seconds=1))
        await until_done(lambda: stored(admin, "timers"), "the delayed message", POLL_SECONDS)

    assert "success" in printed
    assert ours == ("true", "false")
    assert theirs == again == ("false", "true")
    with pytest.raises(ConfigError, match="ROCKSDB_TIMELINE"):
        await admin.brokers.switch_timer_engine("R")  # type: ignore[arg-type]


async def stored(admin: AdminClient, topic: str) -> bool:
    return (await admin.topics.stats(topic)).count == 1


@pytest.mark.mqadmin("rocksDBConfigToJson checkRocksdbCqWriteProgress")
async def test_settings_in_rocksdb_are_exported(
    cluster: Cluster, admin: AdminClient, official_tool: OfficialTool, rocketmq_group: str
) -> None:
    if cluster.version.startswith("4."):
        return  # test_requests_of_5_name_the_release_that_has_them
    ours, theirs = f"{rocketmq_group}-ours", f"{rocketmq_group}-theirs"
    folder = Path((await admin.brokers.config())[BROKER]["storePathRootDir"]) / "config"

    def exported() -> set[str]:
        return set(json.loads((folder / "topics.json").read_text())["topicConfigTable"])

    await admin.topics.create(ours, queues=1)
    await admin.brokers.export_rocksdb_config("topics", "subscriptionGroups")
    first = exported()
    await admin.topics.create(theirs, queues=1)
    printed, checked = await official_tool(
        f"rocksDBConfigToJson -t topics -c DefaultCluster -n {cluster.namesrv}",
        f"checkRocksdbCqWriteProgress -c DefaultCluster -t {ours} -n {cluster.namesrv}",
    )
    checks = await admin.brokers.check_rocksdb_queues(ours)

    assert (ours in first, theirs in first) == (True, False)
    assert "export done" in printed
    assert f"{BROKER} check doing" in checked  # its result is in the log of the broker
    assert checks[BROKER].status == IN_PROGRESS
    assert {ours, theirs} <= exported()


@pytest.mark.mqadmin("exportPopRecord")
async def test_records_of_popped_messages_are_moved_to_files(
    cluster: Cluster, admin: AdminClient, official_tool: OfficialTool, rocketmq_group: str
) -> None:
    if cluster.version.startswith("4."):
        return  # test_requests_of_5_name_the_release_that_has_them
    topic = f"{rocketmq_group}-popped"
    await admin.topics.create(topic, queues=1)

    async def pop() -> None:
        await producer.send(Message(topic, b"hello"))
        assert len(await consumer.receive(wait_seconds=POLL_SECONDS)) == 1

    async def in_files() -> int:
        return (await admin.topics.stats(TIMER_TOPIC)).count

    async def move_to(count: int) -> None:
        async def moved() -> bool:
            return await in_files() == count

        await until_done(moved, "the record", POLL_SECONDS)

    async with (
        Producer("pops", namesrv=cluster.namesrv) as producer,
        PopConsumer(rocketmq_group, namesrv=cluster.namesrv, config=POP) as consumer,
    ):
        await consumer.subscribe(topic)
        before = await in_files()
        await pop()
        assert await in_files() == before
        await admin.brokers.roll_back_pops()
        await move_to(before + 1)
        await pop()
        (printed,) = await official_tool(
            f"exportPopRecord -b {cluster.brokers[0].address} -n {cluster.namesrv}"
        )
        await move_to(before + 2)

    assert f"brokerName={BROKER}" in printed


# --- lite topics ----------------------------------------------------------------------------------


class ControlLiteSubscriptions(RequestHeader, frozen=True):
    """What clients of lite topics send; this package has none."""

    code = 200071


@pytest.mark.mqadmin("getBrokerLiteInfo getParentTopicInfo getLiteTopicInfo getLiteClientInfo")
@pytest.mark.mqadmin("getLiteGroupInfo")
async def test_lite_topics_with_messages_and_subscribers_are_those_of_mqadmin(
    cluster: Cluster, admin: AdminClient, official_tool: OfficialTool, rocketmq_group: str
) -> None:
    if cluster.version.startswith("4."):
        return  # test_requests_of_5_name_the_release_that_has_them
    group, parent, address = rocketmq_group, f"{rocketmq_group}-p", cluster.brokers[0].address
    await admin.topics.create(parent, queues=1, attributes={"message.type": "LITE"})
    await admin.groups.create(group, attributes={"lite.bind.topic": parent})
    async with Producer("lite", namesrv=cluster.namesrv) as producer:
        for _ in range(3):
            await producer.send_encoded(lite_message(parent, "chat"))
    lite_queue = f"%LMQ%${parent}$chat"
    subscription = {
        "action": "COMPLETE_ADD",
        "clientId": "reader",
        "group": group,
        "topic": parent,
        "liteTopicSet": ["chat"],
        "version": 1,
    }
    body = msgspec.json.encode({"subscriptionSet": [subscription]})
    await admin._servers.request(address, ControlLiteSubscriptions(), body)
    offset = {"consumerGroup": group, "topic": lite_queue, "queueId": 0, "commitOffset": 1}
    await in_thread(probe.ask, address, RequestCode.UPDATE_CONSUMER_OFFSET, offset)

    async def dispatched() -> bool:
        offsets = (await admin.lite.topic(parent, "chat"))[BROKER].offsets
        return offsets is not None and offsets.max_offset == 3

    await until_done(dispatched, "the messages", POLL_SECONDS)
    (topic,) = (await admin.lite.topic(parent, "chat")).values()
    (client,) = (await admin.lite.client(parent, group, "reader")).values()
    (lag,) = (await admin.lite.group(parent, group, lite_topic="chat")).values()
    (about,) = (await admin.lite.parent(parent)).values()
    (broker,) = (await admin.lite.brokers()).values()
    printed = await official_tool(
        f"getLiteTopicInfo -p {parent} -l chat -s -n {cluster.namesrv}",
        f"getLiteClientInfo -p {parent} -g {group} -c reader -s -n {cluster.namesrv}",
        f"getLiteGroupInfo -p {parent} -g {group} -l chat -n {cluster.namesrv}",
        f"getParentTopicInfo -p {parent} -n {cluster.namesrv}",
        f"getBrokerLiteInfo -b {address} -d -n {cluster.namesrv}",
    )

    offsets, clients, lags, parents, brokers = (
        next(iter(cells(each, BROKER) or cells(each, address))) for each in printed
    )
    assert topic.offsets is not None
    assert [*map(int, offsets[1:3])] == [topic.offsets.min_offset, topic.offsets.max_offset]
    assert [f"{each.client_id}@{each.group}" for each in topic.subscribers] == [f"reader@{group}"]
    assert f"[reader@{group}]" in printed[0]
    assert int(clients[1]) == client.lite_topic_count == 1
    assert client.lite_topics == (lite_queue,)
    assert f"[{lite_queue}]" in printed[1]
    assert lag.progress is not None
    assert [*map(int, lags[1:4])] == [
        *(lag.progress.broker_offset, lag.progress.consumer_offset, lag.total_lag_count)
    ]
    assert lag.total_lag_count == 2
    assert [*map(int, parents[1:4])] == [about.ttl, about.lite_topic_count, about.lmq_num]
    assert about.groups == (group,)
    assert brokers[1:4] == [
        *(broker.store_type, str(broker.max_lmq_num), str(broker.current_lmq_num))
    ]
    assert f'"{parent}":["{group}"]' in printed[4]


def lite_message(parent: str, lite_topic: str) -> Encoded:
    message_id = f"{time_ns():032X}"
    properties = f"__LITE_TOPIC\x01{lite_topic}\x02UNIQ_KEY\x01{message_id}\x02".encode()
    return Encoded(topic=parent, body=b"hello", message_id=message_id, properties=properties)


async def test_a_popped_message_is_redelivered_until_it_is_a_dead_letter(
    cluster: Cluster, admin: AdminClient, rocketmq_group: str
) -> None:
    if cluster.version.startswith("4."):
        return  # it pops nothing
    topic, config = f"{rocketmq_group}-t", PopConfig(start_from="earliest", max_reconsume_times=1)
    await admin.topics.create(topic, queues=1)
    async with Producer("popped", namesrv=cluster.namesrv) as producer:
        await producer.send(Message(topic, b"hello"))
    async with PopConsumer(rocketmq_group, namesrv=cluster.namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        (first,) = await consumer.receive(wait_seconds=SECONDS)
        await consumer.retry(first, 1)
        (second,) = await consumer.receive(wait_seconds=SECONDS)
        await consumer.retry(second)
        assert await consumer.receive(wait_seconds=3) == []
    dead = [each async for each in admin.messages.read(f"%DLQ%{rocketmq_group}")]

    assert [(each.topic, each.reconsume_times) for each in (first, second)] == [
        (topic, 0),
        (topic, 1),
    ]
    assert [each.body for each in dead] == [b"hello"]


# --- light message queues -------------------------------------------------------------------------


async def test_every_kind_of_consumer_reads_a_light_message_queue(
    cluster: Cluster, admin: AdminClient, rocketmq_group: str
) -> None:
    if cluster.version.startswith("4."):
        return  # the common cluster is without them
    await read_by_every_kind_of_consumer(cluster, admin, rocketmq_group)


# --- containers -----------------------------------------------------------------------------------


@pytest.mark.mqadmin("addBroker removeBroker")
async def test_brokers_of_a_container_are_added_and_removed(
    cluster: Cluster, tmp_path: Path
) -> None:
    if cluster.version.startswith("4."):
        return  # test_requests_of_5_name_the_release_that_has_them

    with broker_container(cluster.version, cluster.namesrv, tmp_path) as container:
        client = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=5)
        async with AdminClient(client=client) as admin:
            await admin.brokers.add(
                container.address, container.config("broker-x", cluster.version)
            )
            await appear(admin, "broker-x")
            await admin.topics.create("in-container", queues=1, brokers=["broker-x"])
            async with Producer("contained", namesrv=cluster.namesrv) as producer:
                stored = await producer.send(Message("in-container", b"hello"))
            with pytest.raises(BrokerError, match="Broker not exist"):
                await admin.brokers.remove(container.address, "DefaultCluster", "broker-y", 0)
            # Takes longer than the timeout of requests.
            await admin.brokers.remove(container.address, "DefaultCluster", "broker-x", 0)
            await appear(admin)

    assert stored.queue.broker_name == "broker-x"


async def appear(admin: AdminClient, *names: str) -> None:
    """Wait until the name server knows these brokers beside the first one."""

    async def equal() -> bool:
        known = {each.broker_name for each in (await admin.brokers.cluster()).brokers}
        return known == {BROKER, *names}

    await until_done(equal, f"the brokers {names}", SECONDS)
