"""Maintenance by AdminClient, compared with mqadmin or with the effect on clients."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import pytest

from rocketmq_aio import (
    AdminClient,
    AdminError,
    BrokerError,
    ClientConfig,
    ConfigError,
    Message,
    MessageExt,
    MessageNotFoundError,
    MessageQueue,
    MessageTrace,
    NotSupportedError,
    Producer,
    PushConfig,
    PushConsumer,
)
from rocketmq_aio.admin import servers
from rocketmq_aio.admin.metadata import Metadata
from rocketmq_aio.testing import Cluster
from tests.broker.official_tool import OfficialTool, mqadmin
from tests.broker.reading_groups import POLL_SECONDS, in_thread, is_5, send
from tests.unit.remoting.until import until, until_done

pytestmark = pytest.mark.needs_real_broker("the embedded broker has no requests of operators")

BROKER: Final = "broker-a"
# Brokers of 5.x register all their topics every 30 s; a registration that was being made when a
# topic was created removes it from the name server until the next one.
SECONDS: Final = 90.0


async def needs(release: str, call: Awaitable[object]) -> None:
    """*call* raises the error for older brokers that names the *release*."""
    with pytest.raises(NotSupportedError, match=rf"needs a broker of {re.escape(release)}"):
        await call


# --- topics ---------------------------------------------------------------------------------------


async def listed(admin: AdminClient, names: list[str]) -> bool:
    return set(names) <= set(await admin.topics.list())


@pytest.mark.mqadmin("updateOrderConf allocateMQ")
async def test_order_configuration_and_allocation_equal_those_of_mqadmin(
    admin: AdminClient, topic: str, official_tool: OfficialTool
) -> None:
    await admin.topics.set_order(topic, {BROKER: 4})
    stored = await admin.topics.order(topic)
    printed = await mqadmin(official_tool, f"updateOrderConf -m get -t {topic}")
    await admin.topics.set_order(topic, {})
    members = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    allocated = await admin.topics.allocate(topic, members)
    reported = await mqadmin(official_tool, f"allocateMQ -t {topic} -i {','.join(members)}")

    assert stored == {BROKER: 4}
    assert f"{BROKER}:4" in printed
    assert await admin.topics.order(topic) == {}
    theirs = json.loads(reported)["result"]
    # mqadmin does not sort the queues first, as clients do.
    assert {name: len(queues) for name, queues in allocated.items()} == {
        name: len(queues) for name, queues in theirs.items()
    }
    ids = [queue.queue_id for name in members for queue in allocated[name]]
    assert ids == [0, 1, 2, 3]


# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.mqadmin("exportMetadata")
async def test_metadata_is_exported_and_restored(
    admin: AdminClient,
    topic: str,
    group: str,
    rocketmq_cluster: Cluster,
    official_tool: OfficialTool,
) -> None:
    await admin.groups.create(group, max_retries=7)
    others: dict[str, object] = {"brokerId": 2, "whichBrokerWhenConsumeSlowly": 3}
    await official_tool(f"updateSubGroup -c DefaultCluster -g {group} -r 7 -i 2 -w 3")
    if is_5(rocketmq_cluster):
        numbers = {"initial": 5, "max": 60, "multiplier": 3}
        policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": numbers}
        text = json.dumps(policy, separators=(",", ":"))
        await official_tool(f"updateSubGroup -c DefaultCluster -g {group} -r 7 -i 2 -w 3 -p {text}")
        others["groupRetryPolicy"] = policy
    # 5.5.0 stores nothing of a list that contains a topic as it is.
    await admin.topics.create(f"{topic}-unchanged", queues=1)
    if is_5(rocketmq_cluster):  # an attribute that cannot be changed
        await admin.topics.create(f"{topic}-b", queues=1, attributes={"queue.type": "BatchCQ"})
    await official_tool(f"updateTopic -c DefaultCluster -t {topic} -r 4 -w 4 -u true")
    exported = await admin.metadata.export(cluster="DefaultCluster")
    saved = Metadata.from_dict(json.loads(json.dumps(exported.to_dict())))
    config = await admin.topics.config(topic)
    await admin.topics.delete(topic)
    await admin.groups.delete(group)

    with pytest.raises(ConfigError, match="elsewhere"):
        await admin.metadata.restore(saved, brokers={BROKER: "elsewhere"})
    assert await admin.groups.config(group) == []
    difference = await admin.metadata.difference(saved)
    await admin.metadata.restore(saved)

    await until_done(lambda: listed(admin, [topic]), "the topic", SECONDS)
    assert saved == exported
    assert await admin.metadata.difference(saved) == Metadata(topics=(), groups=())
    assert [each.topic for each in difference.topics] == [topic]
    assert [each.group for each in difference.groups] == [group]
    assert await admin.topics.config(topic) == config
    assert [each.sys_flag for each in config] == [1]
    assert [each.max_retries for each in await admin.groups.config(group)] == [7]
    [restored] = await admin.groups.config(group)
    assert {name: restored.others[name] for name in others} == others
    assert not {"TBW102", "TOOLS_CONSUMER"} & {
        *(each.topic for each in saved.topics),
        *(each.group for each in saved.groups),
    }
    with pytest.raises(ConfigError):
        Metadata.from_dict({"topics": 1})
    wrong = msgspec.structs.replace(restored, others={"retryPolicy": 1})
    with pytest.raises(ConfigError, match="groupRetryPolicy"):
        await admin.metadata.restore(Metadata(topics=(), groups=(wrong,)))


@pytest.mark.mqadmin("setConsumeMode")
async def test_the_mode_of_a_group_reaches_assignments(
    admin: AdminClient,
    namesrv: str,
    topic: str,
    group: str,
    rocketmq_cluster: Cluster,
    official_tool: OfficialTool,
) -> None:
    if not is_5(rocketmq_cluster):
        await needs("5.0", admin.groups.set_mode(group, topic, "pop"))
        return
    await admin.groups.create(group)

    await admin.groups.set_mode(group, topic, "pop", shared_queues=1)

    place = f"-b {rocketmq_cluster.brokers[0].address} -g {group} -t {topic}"
    printed = await mqadmin(official_tool, f"setConsumeMode {place} -m PULL -q 0")
    assert "success" in printed
    with pytest.raises(ConfigError, match="pop"):
        await admin.groups.set_mode(group, topic, "push")  # type: ignore[arg-type]


@pytest.mark.mqadmin("consumerStatus")
async def test_status_shows_members_and_their_offsets(
    admin: AdminClient, namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    await send(namesrv, topic, [str(number) for number in range(8)])
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message)

    config = PushConfig(start_from="earliest", commit_interval_seconds=0.2)
    async with PushConsumer(group, on_message=handle, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        await consumer.ready(POLL_SECONDS)
        await until(lambda: len(seen) == 8, "the messages", SECONDS)
        me = consumer.client.client_id
        status = await admin.groups.status(group, stacks=True)
        without = await admin.groups.status(group, me)
        in_memory = await admin.offsets.in_memory(group, topic)
        await until_done(lambda: has_spans(admin, group, topic), "the commits", SECONDS)
        spans = await admin.offsets.time_spans(group, topic)
        with pytest.raises(ConfigError, match=re.escape(me)):
            await admin.groups.status(group, "nobody")

    assert list(status) == list(without) == [me]
    assert {queue.topic for queue in status[me].queues} >= {topic}
    assert status[me].subscriptions[topic] == "*"
    assert status[me].properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert status[me].rates[topic]["consumeFailedMsgs"] == 0
    assert f"task rocketmq:{group}" in (status[me].stacks or "")
    assert without[me].stacks is None
    offsets = {queue: offset for queue, offset in in_memory[me].items() if queue.topic == topic}
    assert sum(offsets.values()) == 8
    assert [span.delay_time for span in spans] == [0] * 4
    assert all(0 < span.min_time_stamp <= span.max_time_stamp for span in spans)
    assert json.dumps([status[me].to_dict(), spans[0].to_dict()])


async def has_spans(admin: AdminClient, group: str, topic: str) -> bool:
    spans = await admin.offsets.time_spans(group, topic)
    return len(spans) == 4 and not any(span.delay_time for span in spans)


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.mqadmin("queryMsgByOffset")
async def test_messages_are_read_without_a_group(
    admin: AdminClient, namesrv: str, topic: str, queue: MessageQueue, official_tool: OfficialTool
) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    await send(namesrv, topic, [str(number) for number in range(40)], queue=queue, tags="a")
    await send(namesrv, topic, ["other"], queue=MessageQueue(topic, BROKER, 1), tags="b")

    everything = [each async for each in admin.messages.read(topic)]
    some = [each.body async for each in admin.messages.read(queue, begin=3, end=6)]
    tagged = [each.body async for each in admin.messages.read(topic, expression="b || c")]
    early = [each async for each in admin.messages.by_time(topic, before, before)]
    first = [each async for each in admin.messages.read(topic, begin=before, max_messages=2)]
    one = await admin.messages.by_offset(queue, 7)
    printed = await mqadmin(official_tool, f"queryMsgByOffset -t {topic} -b {BROKER} -i 0 -o 7")

    assert [each.queue_offset for each in everything if each.queue == queue] == [*range(40)]
    assert len(everything) == 41
    assert (some, tagged, early) == ([b"3", b"4", b"5"], [b"other"], [])
    assert [each.body for each in first] == [b"0", b"1"]
    assert one.body == b"7"
    assert one.message_id in printed
    with pytest.raises(MessageNotFoundError):
        await admin.messages.by_offset(queue, 40)
    with pytest.raises(ConfigError, match="offset=-1: expected a whole number from 0"):
        await admin.messages.by_offset(queue, -1)
    with pytest.raises(ConfigError, match="no such queue"):
        await admin.messages.by_offset(MessageQueue(topic, BROKER, 9), 0)


@pytest.mark.mqadmin("queryMsgTraceById")
async def test_a_trace_is_a_timeline_of_the_message(
    admin: AdminClient, namesrv: str, topic: str, group: str, official_tool: OfficialTool
) -> None:
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message)

    trace = MessageTrace(flush_seconds=0.1)
    config = PushConfig(start_from="earliest")
    async with (
        Producer(f"{group}-p", namesrv=namesrv, hooks=[trace]) as producer,
        PushConsumer(
            group, on_message=handle, namesrv=namesrv, config=config, hooks=[trace]
        ) as consumer,
    ):
        await consumer.subscribe(topic)
        await consumer.ready(POLL_SECONDS)
        sent = await producer.send(Message(topic, b"one", keys="k"))
        await until(lambda: seen, "the message", SECONDS)

    async def complete() -> bool:
        return len(await admin.messages.trace(sent.message_id)) == 3

    await until_done(complete, "three events", SECONDS)
    events = await admin.messages.trace(sent.message_id)
    printed = await mqadmin(
        official_tool, f"queryMsgTraceById -i {sent.message_id} -t RMQ_SYS_TRACE_TOPIC"
    )
    pub, before, after = events
    assert [each.kind for each in events] == ["Pub", "SubBefore", "SubAfter"]
    assert (pub.group, before.group, after.group) == (f"{group}-p", group, group)
    assert (pub.success, before.success, after.success) == (True, None, True)
    assert (pub.topic, pub.keys, before.retries) == (topic, "k", 0)
    assert before.request_id == after.request_id
    assert f"{group}-p" in printed
    assert group in printed


async def test_a_member_consumes_a_message_directly(
    admin: AdminClient, namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    tried: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        tried.append(message.body)
        if message.body == b"bad":
            raise ValueError("no good")

    async with (
        Producer("feeding", namesrv=namesrv) as producer,
        PushConsumer(group, on_message=handle, namesrv=namesrv) as consumer,
    ):
        await consumer.subscribe(topic, "none-of-them")
        await consumer.ready(POLL_SECONDS)
        good = await producer.send(Message(topic, b"good", tags="a"), queue=queue)
        bad = await producer.send(Message(topic, b"bad", tags="a"), queue=queue)
        me = consumer.client.client_id
        done = await admin.messages.consume_directly(good.offset_message_id, group, me)
        failed = await admin.messages.consume_directly(bad.offset_message_id, group, me)
        with pytest.raises(BrokerError):
            await admin.messages.consume_directly(good.offset_message_id, group, "nobody")

    assert tried == [b"good", b"bad"]
    assert (done.outcome, failed.outcome) == ("CR_SUCCESS", "CR_THROW_EXCEPTION")
    assert "no good" in (failed.remark or "")


# --- brokers --------------------------------------------------------------------------------------


@pytest.mark.mqadmin("clusterList")
async def test_brokers_are_listed_with_their_rates(
    admin: AdminClient, official_tool: OfficialTool
) -> None:
    (overview,) = await admin.brokers.list()
    printed = await mqadmin(official_tool, "clusterList")

    assert (overview.broker_name, overview.broker_id, overview.problem) == (BROKER, 0, None)
    row = next(line for line in printed.splitlines() if BROKER in line)
    assert [overview.cluster, BROKER, "0", overview.address, overview.version] == row.split()[:5]
    assert 0 < overview.disk_ratio < 1


@pytest.mark.mqadmin("queryCq")
async def test_consume_queues_are_inspected(
    admin: AdminClient,
    namesrv: str,
    topic: str,
    queue: MessageQueue,
    rocketmq_cluster: Cluster,
    official_tool: OfficialTool,
) -> None:
    await send(namesrv, topic, ["0", "1", "2"], queue=queue, tags="a")

    async def dispatched() -> bool:
        return (await admin.brokers.consume_queue(queue, 0)).max_queue_index == 3

    await until_done(dispatched, "the entries", SECONDS)
    entries = await admin.brokers.consume_queue(queue, 1, 2)
    printed = await mqadmin(
        official_tool, f"queryCq -t {topic} -q 0 -i 1 -c 2 -b {rocketmq_cluster.brokers[0].address}"
    )

    assert (entries.min_queue_index, len(entries.entries)) == (0, 2)
    for entry in entries.entries:
        assert str(entry.physic_offset) in printed
    with pytest.raises(ConfigError, match=BROKER):
        await admin.brokers.consume_queue(MessageQueue(topic, "elsewhere", 0), 0)


@pytest.mark.mqadmin("haStatus")
async def test_requests_of_5_name_the_release_that_has_them(
    admin: AdminClient, topic: str, rocketmq_cluster: Cluster, official_tool: OfficialTool
) -> None:
    brokers, lite, acl = admin.brokers, admin.lite, admin.acl
    if not is_5(rocketmq_cluster):
        await needs("5.0", brokers.ha_status())
        await needs("5.1.2", brokers.cold_data())
        await needs("5.1.2", brokers.set_read_ahead(random=True))
        await needs("5.4.0", brokers.switch_timer_engine("FILE_TIME_WHEEL"))
        await needs("5.5.0", lite.brokers())
        await needs("5.3.0", acl.list_users())
        await needs("5.3.2", brokers.export_rocksdb_config("topics"))
        return
    status = await brokers.ha_status()
    printed = await mqadmin(official_tool, f"haStatus -b {rocketmq_cluster.brokers[0].address}")

    assert status[BROKER].master
    assert f"#MasterAddr\t{rocketmq_cluster.brokers[0].address}" in printed
    assert str(status[BROKER].in_sync_slave_nums) in printed
    checks = await brokers.check_rocksdb_queues(topic)
    assert list(checks) == [BROKER]
    with pytest.raises(BrokerError, match="timerRocksDBEnable must be configured"):
        await brokers.switch_timer_engine("ROCKSDB_TIMELINE")
    with pytest.raises(BrokerError, match="controllerMode"):
        await brokers.epochs()
    await brokers.export_rocksdb_config("topics", "subscriptionGroups")
    await brokers.roll_back_pops()
    for refused in (
        brokers.add(rocketmq_cluster.brokers[0].address, "/broker.conf"),
        brokers.remove(rocketmq_cluster.brokers[0].address, "DefaultCluster", "other", 0),
    ):
        with pytest.raises(NotSupportedError, match="needs a broker container of 5"):
            await refused
    with pytest.raises(NotSupportedError, match="needs a controller of 5"):
        await admin.controllers.metadata(rocketmq_cluster.brokers[0].address)


@pytest.mark.mqadmin("getBrokerLiteInfo getParentTopicInfo triggerLiteDispatch")
async def test_lite_topics_are_described(
    admin: AdminClient, group: str, rocketmq_cluster: Cluster, official_tool: OfficialTool
) -> None:
    if not is_5(rocketmq_cluster):
        await needs("5.5.0", admin.lite.brokers())
        return
    parent = f"{group}-parent"
    await admin.topics.create(parent, queues=1, attributes={"message.type": "LITE"})

    brokers = await admin.lite.brokers()
    found = await admin.lite.parent(parent)
    printed = await mqadmin(official_tool, "getBrokerLiteInfo -c DefaultCluster")
    reported = await mqadmin(official_tool, f"getParentTopicInfo -p {parent}")

    assert (found[BROKER].topic, found[BROKER].lite_topic_count) == (parent, 0)
    assert str(brokers[BROKER].max_lmq_num) in printed
    assert parent in reported
    assert (await admin.lite.topic(parent, "none"))[BROKER].subscribers == ()
    await admin.groups.create(group, attributes={"lite.bind.topic": parent})
    lag = (await admin.lite.group(parent, group))[BROKER]
    assert (lag.group, lag.parent_topic, lag.total_lag_count) == (group, parent, 0)
    nobody = (await admin.lite.client(parent, group, "nobody"))[BROKER]
    assert (nobody.client_id, nobody.lite_topics) == ("nobody", ())
    await admin.lite.dispatch(parent, group)
    reported = await mqadmin(official_tool, f"triggerLiteDispatch -p {parent} -g {group}")
    assert re.search(rf"{BROKER}\s+dispatched", reported)


# --- several brokers ------------------------------------------------------------------------------


async def test_a_dead_broker_is_named_and_does_not_hide_the_others(
    two_broker_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SLOW_SECONDS", 2.0)
    name, other = (broker.name for broker in two_broker_cluster.brokers)
    client = ClientConfig(namesrv=two_broker_cluster.namesrv, request_timeout_seconds=2)
    async with AdminClient(client=client) as admin:
        await in_thread(two_broker_cluster.brokers[1].pause)
        try:
            overviews = {each.broker_name: each for each in await admin.brokers.list()}
            with pytest.raises(AdminError, match=other) as caught:
                await admin.brokers.config()
            with pytest.raises(AdminError, match=other):
                await admin.brokers.clean_expired_queues()
        finally:
            await in_thread(two_broker_cluster.brokers[1].resume)

    assert overviews[name].problem is None
    assert overviews[other].problem
    assert overviews[other].version == ""
    assert set(caught.value.done) == {name}
    assert set(caught.value.failed) == {other}
