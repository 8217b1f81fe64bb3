"""`AdminClient` and mqadmin on the same cluster: equal answers, and equal effects of changes.

Changes are made twice, by each of them to an object of its own, and what the brokers have then is
compared.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final

import pytest
from msgspec.structs import replace

from rocketmq_aio import (
    AdminClient,
    BrokerError,
    Message,
    MessageExt,
    MessageQueue,
    NotSupportedError,
    Producer,
    PullConsumer,
    SendResult,
)
from rocketmq_aio.testing import Cluster
from tests.broker.official_tool import OfficialTool, cells
from tests.broker.reading_groups import QUEUES, consuming, is_5, polled
from tests.unit.remoting.until import until_done
from tests.unit.test_documented_names import mqadmin_rows

pytestmark = pytest.mark.needs_real_broker("the embedded broker has no requests of operators")

BROKER: Final = "broker-a"
SECONDS: Final = 40.0
IN_CLUSTER: Final = "-c DefaultCluster"
OF_4_9: Final = {
    *("updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr", "clusterAclConfigVersion"),
    "getAclConfig",
}


@pytest.fixture
def tool(official_tool: OfficialTool) -> OfficialTool:
    """Runs commands of mqadmin on the cluster."""
    return official_tool


@pytest.fixture
def address(rocketmq_cluster: Cluster) -> str:
    return rocketmq_cluster.brokers[0].address


async def send(namesrv: str, topic: str, count: int) -> list[SendResult]:
    """Send messages with a tag and a key, to one queue after the other."""
    queues = [MessageQueue(topic, BROKER, number) for number in range(QUEUES)]
    async with Producer("admin-answers", namesrv=namesrv) as producer:
        return [
            await producer.send(
                Message(topic, b"body-%d" % n, tags="a", keys=f"key-{n}"), queue=queues[n % QUEUES]
            )
            for n in range(count)
        ]


def settings(printed: str) -> dict[str, str]:
    """Return the values of lines such as `name  =  value` or `name : value`."""
    return dict(re.findall(r"^([\w/.-]+)[ \t]*[:=][ \t]*(.*?)[ \t]*$", printed, re.M))


# --- topics ---------------------------------------------------------------------------------------


@pytest.mark.mqadmin("updateTopic updateTopicPerm updateTopicList deleteTopic topicList")
async def test_topics_changed_by_both_are_equal(
    admin: AdminClient, tool: OfficialTool, group: str, rocketmq_cluster: Cluster
) -> None:
    stored = {"topicName": f"{group}-many", "readQueueNums": 5, "writeQueueNums": 4, "perm": 2}
    (tool.folder / "topics.json").write_text(json.dumps([stored]), encoding="utf-8")
    since_5 = is_5(rocketmq_cluster)
    lists = [f"updateTopicList {IN_CLUSTER} -f topics.json"] if since_5 else []
    await admin.topics.create(f"{group}-a", queues=3)
    await admin.topics.update(f"{group}-a", write_queues=2, perm="R")
    (ours,) = await admin.topics.config(f"{group}-a")
    wanted = replace(ours, read_queues=5, write_queues=4, perm="W")
    attributes = {"message.type": "FIFO"} if since_5 else {}
    names = [f"{group}-put", f"{group}-put-2"]
    put = [replace(wanted, topic=name, attributes=attributes) for name in names]

    *_, before, _, after = await tool(
        f"updateTopic {IN_CLUSTER} -t {group}-b -r 3 -w 2",
        f"updateTopicPerm {IN_CLUSTER} -t {group}-b -p 4",
        f"updateTopic {IN_CLUSTER} -t {group}-gone",
        *lists,
        "topicList",
        f"deleteTopic {IN_CLUSTER} -t {group}-gone",
        "topicList",
    )

    assert await admin.topics.config(f"{group}-b") == [replace(ours, topic=f"{group}-b")]
    if lists:
        many = f"{group}-many"
        assert await admin.topics.config(many) == [replace(wanted, topic=many)]
    assert {f"{group}-a", f"{group}-gone"} <= set(before.split())
    assert f"{group}-gone" not in after.split()
    assert f"{group}-gone" not in await admin.topics.list()
    assert set(await admin.topics.list(internal=True)) == set(after.split())
    await admin.topics.put(put)
    await until_done(lambda: listed(admin, names), "the topics", SECONDS)
    assert [await admin.topics.config(name) for name in names] == [[each] for each in put]
    await admin.topics.put([replace(put[0], read_queues=6), put[1]])  # one as it is
    assert [each.read_queues for each in await admin.topics.config(names[0])] == [6]


async def listed(admin: AdminClient, names: list[str]) -> bool:
    return set(names) <= set(await admin.topics.list())


@pytest.mark.mqadmin("topicRoute topicStatus topicClusterList statsAll consumerProgress")
async def test_routes_and_statistics_are_those_of_mqadmin(
    admin: AdminClient,
    tool: OfficialTool,
    namesrv: str,
    topic: str,
    group: str,
    rocketmq_cluster: Cluster,
) -> None:
    await send(namesrv, topic, 8)
    async with consuming(namesrv, group, topic) as consumer:
        await polled(consumer, 8)
        await consumer.commit()
    await send(namesrv, topic, 3)
    await until_done(lambda: counted(admin, topic), "the statistic", SECONDS)
    await admin.topics.update(topic, read_queues=QUEUES + 1)

    route, stats, progress = (
        await admin.topics.route(topic),
        await admin.topics.stats(topic),
        await admin.groups.progress(group, topic),
    )
    routed, clusters, status, progressed, all_stats = await tool(
        f"topicRoute -t {topic}",
        f"topicClusterList -t {topic}",
        f"topicStatus -t {topic}",
        f"consumerProgress -g {group}" + (f" -t {topic}" if is_5(rocketmq_cluster) else ""),
        f"statsAll -t {topic}",
    )

    numbers = dict(re.findall(r'"(\w+)":"?([\w-]+)', routed))
    (queues,) = route.queues
    assert (queues.broker_name, queues.read_queues, queues.write_queues, queues.perm) == (
        *(numbers["brokerName"], int(numbers["readQueueNums"]), int(numbers["writeQueueNums"])),
        {"6": "RW"}[numbers["perm"]],
    )
    assert clusters.split() == await admin.topics.clusters(topic)
    assert [tuple(map(int, row[1:4])) for row in cells(status, BROKER)] == [
        (each.queue.queue_id, each.min_offset, each.max_offset) for each in stats.queues
    ]
    columns = 7 if is_5(rocketmq_cluster) else 6  # with the messages in flight
    assert [list(map(int, row[2:columns])) for row in cells(progressed, topic)] == [
        [each.queue.queue_id, each.broker_offset, each.consumer_offset, each.lag]
        + ([] if each.in_flight is None else [each.in_flight])
        for each in progress.queues
    ]
    assert re.findall(r"Diff Total: *(\d+)", progressed) == [str(progress.lag)] == ["3"]
    assert await admin.brokers.statistics("TOPIC_PUT_NUMS", f"{topic}-none") == {}
    ((_, reader, accumulation, *_),) = cells(all_stats, topic)
    assert (reader, int(accumulation)) == (group, progress.lag)


async def counted(admin: AdminClient, topic: str) -> bool:
    return bool(await admin.brokers.statistics("TOPIC_PUT_NUMS", topic))


# --- groups and offsets ---------------------------------------------------------------------------


@pytest.mark.mqadmin("updateSubGroup updateSubGroupList deleteSubGroup getConsumerConfig")
async def test_groups_changed_by_both_are_equal(
    admin: AdminClient, tool: OfficialTool, group: str, rocketmq_cluster: Cluster
) -> None:
    since_5 = is_5(rocketmq_cluster)
    listed = {"groupName": f"{group}-many", "retryMaxTimes": 5, "consumeEnable": False}
    (tool.folder / "groups.json").write_text(json.dumps([listed]), encoding="utf-8")
    lists = [f"updateSubGroupList {IN_CLUSTER} -f groups.json"] if since_5 else []
    orderly = {"orderly": True} if since_5 else {}
    made = await admin.groups.create(f"{group}-a", max_retries=3, retry_queues=2, enabled=False)
    (ours,) = await admin.groups.update(f"{group}-a", broadcast_enabled=False, **orderly)  # type: ignore[arg-type]

    printed, *_ = await tool(
        f"getConsumerConfig -g {group}-a",
        f"updateSubGroup {IN_CLUSTER} -g {group}-b -s false -m true -d false -q 2 -r 3"
        + (" -o true" if since_5 else ""),
        f"updateSubGroup {IN_CLUSTER} -g {group}-gone",
        # Without -r, which deletes its offsets, 5.5.0 creates the group again at once.
        f"deleteSubGroup {IN_CLUSTER} -g {group}-gone -r true",
        *lists,
    )

    shown = settings(printed)
    assert (shown["groupName"], shown["consumeEnable"]) == (f"{group}-a", "false")
    assert (shown["retryMaxTimes"], shown["retryQueueNums"]) == ("3", "2")
    assert shown["consumeBroadcastEnable"] == "false"
    assert await admin.groups.config(f"{group}-b") == [replace(ours, group=f"{group}-b")]
    assert f"{group}-gone" not in await admin.groups.list()
    names = [f"{group}-put", f"{group}-put-2"]
    put = [replace(made[0], group=name, max_retries=5, retry_queues=1) for name in names]
    await admin.groups.put(put)
    assert [await admin.groups.config(name) for name in names] == [[each] for each in put]
    if lists:
        many = f"{group}-many"
        assert await admin.groups.config(many) == [replace(put[0], group=many)]
    else:
        with pytest.raises(NotSupportedError, match="orderly"):
            await admin.groups.put([replace(put[0], orderly=True)])


@pytest.mark.mqadmin("cloneGroupOffset skipAccumulatedMessage resetOffsetByTime")
async def test_offsets_changed_by_both_are_equal(
    admin: AdminClient,
    tool: OfficialTool,
    namesrv: str,
    topic: str,
    group: str,
    rocketmq_cluster: Cluster,
) -> None:
    sent = await send(namesrv, topic, QUEUES)
    await asyncio.sleep(0.01)  # so that the others are stored later
    sent += await send(namesrv, topic, 2 * QUEUES)
    queues = {each.queue for each in sent}
    await admin.topics.create(f"%RETRY%{group}-source", queues=1)  # mqadmin looks for brokers there
    for name in ("source", "a-clone", "b-clone", "a-skip", "b-skip", "a-reset", "b-reset"):
        await admin.groups.create(f"{group}-{name}")
        async with PullConsumer(f"{group}-{name}", namesrv=namesrv) as consumer:
            for queue in () if name.endswith("clone") else queues:
                await consumer.commit(queue, 2)
    moment = (await admin.messages.by_offset_id(sent[QUEUES].offset_message_id)).store_time

    await tool(
        f"cloneGroupOffset -s {group}-source -d {group}-b-clone -t {topic}",
        f"skipAccumulatedMessage -g {group}-b-skip -t {topic} -f true",
        f"resetOffsetByTime -g {group}-b-reset -t {topic} -s {int(moment.timestamp() * 1000)}",
    )
    await admin.offsets.clone(f"{group}-source", f"{group}-a-clone", topic)
    await admin.offsets.skip(f"{group}-a-skip", topic)
    await admin.offsets.reset(f"{group}-a-reset", topic, moment)

    async def committed(name: str) -> dict[MessageQueue, int]:
        progress = await admin.groups.progress(f"{group}-{name}", topic)
        return {each.queue: each.consumer_offset for each in progress.queues}

    assert await committed("a-clone") == await committed("b-clone") == dict.fromkeys(queues, 2)
    assert await committed("a-skip") == await committed("b-skip") == dict.fromkeys(queues, 3)
    assert await committed("a-reset") == dict.fromkeys(queues, 1)
    if is_5(rocketmq_cluster):  # 4.9 finds the closest message, also an older one
        assert await committed("b-reset") == await committed("a-reset")


# --- connections ----------------------------------------------------------------------------------


@pytest.mark.mqadmin("consumerConnection producerConnection producer consumerStatus")
@pytest.mark.mqadmin("brokerConsumeStats")
async def test_connected_clients_are_those_of_mqadmin(
    admin: AdminClient, tool: OfficialTool, namesrv: str, topic: str, group: str, address: str
) -> None:
    async with (
        Producer(f"{group}-p", namesrv=namesrv) as producer,
        consuming(namesrv, group, topic, "a || b") as consumer,
    ):
        await producer.send(Message(topic, b"hello", tags="a"))
        await polled(consumer, 1)
        await consumer.commit()
        await until_done(lambda: produces(admin, f"{group}-p"), "the producer", SECONDS)
        members, (sender,) = (
            await admin.groups.connections(group),
            await admin.groups.producers(f"{group}-p"),
        )
        (registered,) = (await admin.brokers.producers())[BROKER][f"{group}-p"]
        status = (await admin.groups.status(group))[consumer.client.client_id]
        (progress,) = [
            each
            for each in (await admin.brokers.consume_stats())[BROKER][group].queues
            if each.consumer_offset and each.queue.topic == topic
        ]
        consumers, producers, all_producers, running, consumed = await tool(
            f"consumerConnection -g {group}",
            f"producerConnection -g {group}-p -t {topic}",
            f"producer -b {address}",
            f"consumerStatus -g {group} -i {consumer.client.client_id}",
            f"brokerConsumeStats -b {address}",
        )

    (member,) = members.members
    for each, shown in ((member, consumers), (sender, producers)):
        # The column of the id is cut.
        line = next(line for line in shown.splitlines() if each.address in line)
        first, *rest = line.split()[-4:]
        assert each.client_id.startswith(first)
        assert rest == [each.address, each.language, "V5_5_0"]
    assert re.search(rf"^{re.escape(topic)}\s+a \|\| b", consumers, re.M)
    assert f"ConsumeType: {members.consume_type}" in consumers
    assert f"MessageModel: {members.message_model}" in consumers
    line = next(line for line in all_producers.splitlines() if f"({group}-p)" in line)
    assert registered.client_id in line
    assert registered.address in line
    assert settings(running)["PROP_CONSUME_TYPE"] == status.properties["PROP_CONSUME_TYPE"]
    assert set(re.findall(rf"^{topic[:30]}\S*\s+{BROKER}\s+(\d)", running, re.M)) == {
        str(each.queue_id) for each in status.queues if each.topic == topic
    }
    rows = [line.split() for line in consumed.splitlines() if group[:40] in line]
    assert [row[2:7] for row in rows if row[5] != "0"] == [
        [BROKER, str(progress.queue.queue_id), "1", "1", "0"]
    ]


async def produces(admin: AdminClient, group: str) -> bool:
    return group in (await admin.brokers.producers())[BROKER]


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.mqadmin("queryMsgById queryMsgByKey queryMsgByUniqueKey queryMsgByOffset")
@pytest.mark.mqadmin("printMsg printMsgByQueue consumeMessage")
async def test_messages_are_found_as_by_mqadmin(
    admin: AdminClient, tool: OfficialTool, namesrv: str, topic: str, rocketmq_cluster: Cluster
) -> None:
    sent = (await send(namesrv, topic, 6))[2]
    queue, offset = sent.queue, sent.queue_offset
    await until_done(lambda: indexed(admin, topic, "key-2"), "the index", SECONDS)
    found = [
        await admin.messages.by_offset_id(sent.offset_message_id),
        *await admin.messages.by_key(topic, "key-2"),
        *await admin.messages.by_id(topic, sent.message_id),
        await admin.messages.by_offset(queue, offset),
    ]
    everything = [each async for each in admin.messages.read(topic)]
    in_queue = [each.body.decode() async for each in admin.messages.read(queue)]

    by_id, by_key, by_unique, by_offset, printed, of_queue, consumed = await tool(
        f"queryMsgById -i {sent.offset_message_id}"
        + (f" -t {topic}" if is_5(rocketmq_cluster) else ""),
        f"queryMsgByKey -t {topic} -k key-2",
        f"queryMsgByUniqueKey -t {topic} -i {sent.message_id}",
        f"queryMsgByOffset -t {topic} -b {BROKER} -i {queue.queue_id} -o {offset}",
        f"printMsg -t {topic} -d true",
        f"printMsgByQueue -t {topic} -a {BROKER} -i {queue.queue_id} -p true -d true",
        f"consumeMessage -t {topic} -c 10",
    )

    for shown in (by_id, by_unique, by_offset):
        fields = dict(re.findall(r"^([\w ]+): +(.*?) *$", shown, re.M))
        for each in found:
            assert (fields["Topic"], fields["Tags"]) == (each.topic, f"[{each.tags}]")
            assert fields["Keys"] == f"[{each.keys[0]}]"
            assert fields["Queue ID"] == str(each.queue.queue_id)
            assert fields["Queue Offset"] == str(each.queue_offset)
            assert fields["CommitLog Offset"] == str(each.commit_log_offset)
            assert f"UNIQ_KEY={each.message_id}" in fields["Properties"]
    (row,) = cells(by_key, sent.message_id)  # 5.x also prints the key of the index
    assert row[:3] == [sent.message_id, str(queue.queue_id), str(offset)]
    wanted = sorted((each.message_id, each.body.decode()) for each in everything)
    for shown in (printed, consumed):
        assert sorted(re.findall(r"MSGID: (\w+) .* BODY: (.*)", shown)) == wanted
    assert re.findall(r"BODY: (.*)", of_queue) == in_queue


async def indexed(admin: AdminClient, topic: str, key: str) -> bool:
    return bool(await admin.messages.by_key(topic, key))


@pytest.mark.mqadmin("sendMessage sendMsgStatus checkMsgSendRT clusterRT")
async def test_messages_sent_by_both_are_equal(
    admin: AdminClient, tool: OfficialTool, namesrv: str, topic: str, queue: MessageQueue
) -> None:
    async with Producer("admin-answers", namesrv=namesrv) as producer:
        await producer.send(Message(topic, b"hello", tags="a", keys="k"), queue=queue)
    before = (await admin.topics.stats(BROKER)).count
    tests = await admin.brokers.send_test(count=2)

    async def has(count: int) -> bool:  # brokers index messages a moment after they store them
        return (await admin.topics.stats(BROKER)).count == before + count

    await until_done(lambda: has(2), "the test messages")
    sent, status, times = await tool(
        f"sendMessage -t {topic} -p hello -c a -k k -b {BROKER} -i {queue.queue_id}",
        f"sendMsgStatus -b {BROKER} -c 2",
        f"checkMsgSendRT -t {topic} -a 2",
    )

    ours, theirs, *_ = [each async for each in admin.messages.read(queue)]
    assert described(ours) == described(theirs)
    assert theirs.message_id in sent
    assert len(tests[BROKER].seconds) == status.count("SEND_OK") == 2
    assert 0 < tests[BROKER].average_seconds < SECONDS
    warm_up = 1
    await until_done(lambda: has(2 + 2 + warm_up), "the test messages of mqadmin")
    assert len(cells(times, BROKER)) == 2


def described(message: MessageExt) -> tuple[Any, ...]:
    own = {"UNIQ_KEY", "MIN_OFFSET", "MAX_OFFSET", "TRACE_ON", "MSG_REGION"}  # of each message
    kept = {name: value for name, value in message.properties.items() if name not in own}
    return message.body, message.tags, message.keys, message.queue, message.sys_flag, kept


# --- brokers --------------------------------------------------------------------------------------


@pytest.mark.mqadmin("brokerStatus getBrokerConfig updateBrokerConfig")
async def test_statistics_and_settings_are_those_of_mqadmin(
    admin: AdminClient, tool: OfficialTool, address: str
) -> None:
    (ours,) = await admin.brokers.stats()
    before = (await admin.brokers.config())[BROKER]
    hours = int(before["fileReservedTime"])
    await admin.brokers.update_config({"fileReservedTime": str(hours + 1)})

    status, config, updated = await tool(
        f"brokerStatus -b {address}",
        f"getBrokerConfig -b {address}",
        f"updateBrokerConfig -b {address} -k fileReservedTime -v {hours + 2}",
    )
    after = (await admin.brokers.config())[BROKER]
    with pytest.raises(BrokerError, match=f"fileReservedTime=soon, and holds {hours + 2}: check"):
        await admin.brokers.update_config({"fileReservedTime": "soon"})
    await admin.brokers.update_config({"fileReservedTime": str(hours)})

    theirs = dict(re.findall(r"^(\S+) *: ?(.*?) *$", status, re.M))
    assert theirs.keys() == ours.stats.keys()
    stable = ("Capacity", "VersionDesc", "bootTimestamp", "Morning")
    for name in theirs:
        if name.endswith(stable) and "Dir" not in name:
            assert theirs[name] == ours.stats[name]
    shown = settings(config)
    assert shown["fileReservedTime"] == str(hours + 1)
    assert {name: value for name, value in shown.items() if before.get(name) != value} == {
        "fileReservedTime": str(hours + 1)
    }
    assert "success" in updated
    assert after["fileReservedTime"] == str(hours + 2)


@pytest.mark.mqadmin("cleanExpiredCQ cleanUnusedTopic deleteExpiredCommitLog")
@pytest.mark.mqadmin("exportMetadata exportConfigs exportMetrics")
async def test_cleaning_and_exports_are_those_of_mqadmin(
    admin: AdminClient, tool: OfficialTool, topic: str, group: str, address: str
) -> None:
    await admin.groups.create(group, max_retries=7)
    await admin.brokers.clean_expired_queues()
    await admin.brokers.clean_unused_topics()
    await admin.brokers.delete_expired_logs()
    printed = await tool(
        f"cleanExpiredCQ -b {address}",
        f"cleanUnusedTopic -b {address}",
        f"deleteExpiredCommitLog -b {address}",
        f"exportMetadata {IN_CLUSTER} -f .",
        f"exportConfigs {IN_CLUSTER} -f .",
        f"exportMetrics {IN_CLUSTER} -f .",
    )
    ours = await admin.metadata.export()
    config = (await admin.brokers.config())[BROKER]
    (stats,) = await admin.brokers.stats()

    assert [each.count("success") for each in printed] == [1] * 6, printed
    metadata, configs, metrics = (
        json.loads((tool.folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("metadata", "configs", "metrics")
    )
    theirs = metadata["topicConfigTable"][topic]
    (mine,) = (each for each in ours.topics if each.topic == topic)
    assert (mine.read_queues, mine.write_queues) == (
        *(theirs["readQueueNums"], theirs["writeQueueNums"]),
    )
    assert {each.topic for each in ours.topics} <= metadata["topicConfigTable"].keys()
    (retries,) = (each.max_retries for each in ours.groups if each.group == group)
    assert retries == metadata["subscriptionGroupTable"][group]["retryMaxTimes"] == 7
    exported = configs["brokerConfigs"][BROKER]
    assert exported == {name: config[name] for name in exported}
    assert stats.version == metrics["evaluateReport"][BROKER]["runtimeVersion"]["rocketmqVersion"]


@pytest.mark.mqadmin("setCommitLogReadAheadMode getColdDataFlowCtrInfo")
@pytest.mark.mqadmin("updateColdDataFlowCtrGroupConfig removeColdDataFlowCtrGroupConfig")
async def test_reading_from_disk_is_controlled_as_by_mqadmin(
    admin: AdminClient, tool: OfficialTool, group: str, address: str, rocketmq_cluster: Cluster
) -> None:
    if not is_5(rocketmq_cluster):
        return  # test_requests_of_5_name_the_release_that_has_them

    async def reads_ahead() -> str:
        return (await admin.brokers.config())[BROKER]["dataReadAheadEnable"]

    async def limits() -> dict[str, Any]:
        table: dict[str, Any] = (await admin.brokers.cold_data())[BROKER]["configTable"]
        return {name: table[name] for name in table if name.startswith(group)}

    await admin.brokers.set_read_ahead(random=True)
    ours = await reads_ahead()
    await admin.brokers.set_read_ahead(random=False)
    ours += await reads_ahead()
    await tool(f"setCommitLogReadAheadMode -b {address} -m 1")
    theirs = await reads_ahead()
    await tool(f"setCommitLogReadAheadMode -b {address} -m 0")
    theirs += await reads_ahead()
    await admin.brokers.limit_cold_data(f"{group}-a", 1000)
    _, limited = await tool(
        f"updateColdDataFlowCtrGroupConfig -b {address} -g {group}-b -v 1000",
        f"getColdDataFlowCtrInfo -b {address}",
    )
    both = await limits()
    await admin.brokers.unlimit_cold_data(f"{group}-b")
    await tool(f"removeColdDataFlowCtrGroupConfig -b {address} -g {group}-a")

    assert ours == theirs == "falsetrue"
    assert both == {f"{group}-a": 1000, f"{group}-b": 1000}
    assert sorted(re.findall(rf"{re.escape(group)}-\w", limited)) == [f"{group}-a", f"{group}-b"]
    assert await limits() == {}


# --- name servers ---------------------------------------------------------------------------------


@pytest.mark.mqadmin("getNamesrvConfig updateNamesrvConfig updateKvConfig deleteKvConfig")
@pytest.mark.mqadmin("wipeWritePerm addWritePerm")
async def test_name_servers_changed_by_both_are_equal(
    admin: AdminClient, tool: OfficialTool, topic: str, group: str
) -> None:
    servers = admin.name_servers
    await servers.put_value("answers", f"{group}-a", "one=1")
    await servers.update_config({"productEnvName": f"{group}-a"})

    async def permission() -> list[str]:
        return [each.perm for each in (await admin.topics.route(topic)).queues]

    printed, *_ = await tool(
        "getNamesrvConfig",
        f"updateNamesrvConfig -k productEnvName -v {group}-b",
        f"updateKvConfig -s answers -k {group}-b -v two",
        f"wipeWritePerm -b {BROKER}",
    )
    (stored,) = (await servers.values("answers")).values()
    wiped = await permission()
    (added,) = (await servers.add_write_permission(BROKER)).values()
    given = await permission()
    (taken,) = (await servers.wipe_write_permission(BROKER)).values()
    await tool(f"addWritePerm -b {BROKER}", f"deleteKvConfig -s answers -k {group}-a")
    await servers.delete_value("answers", f"{group}-b")

    (config,) = (await servers.config()).values()
    assert settings(printed)["productEnvName"] == f"{group}-a"
    assert config["productEnvName"] == f"{group}-b"
    assert {name: stored[name] for name in (f"{group}-a", f"{group}-b")} == {
        f"{group}-a": "one=1",
        f"{group}-b": "two",
    }
    assert (wiped, given, await permission()) == (["R"], ["RW"], ["RW"])
    assert added == taken > 0
    (left,) = (await servers.values("answers")).values()
    assert not {f"{group}-a", f"{group}-b"} & left.keys()
    assert [*(await servers.value("answers", f"{group}-a")).values()] == [None]
    assert [*(await servers.values(f"{group}-none")).values()] == [{}]


# --- the table of the guide -----------------------------------------------------------------------


async def test_the_guide_has_every_command_of_mqadmin(
    tool: OfficialTool, rocketmq_cluster: Cluster
) -> None:
    (printed,) = await tool("")

    listed = set(re.findall(r"^ {3}(\w+) ", printed, re.M))
    known = {name for row in mqadmin_rows() for name in row.commands}
    assert len(listed) > 50
    assert listed - known == set()
    if is_5(rocketmq_cluster):
        assert known - listed == OF_4_9
