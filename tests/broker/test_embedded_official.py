"""The official admin tool and the official Java client on the embedded broker."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.protocol.subscription import java_hash
from rocketmq_aio.testing.jars import fetch_jars
from tests.broker.official_tool import OfficialTool, cells
from tests.broker.reading_groups import in_thread
from tests.broker.test_compression_interop import java

OFFICIAL: Final = Path(__file__).parent / "java" / "Official.java"
POLL_SECONDS: Final = 30.0


@pytest.fixture(scope="module", autouse=True)
def jars(rocketmq_version: str) -> Path:
    """Return the folder of the official jars; the first use on a machine downloads them."""
    return fetch_jars(rocketmq_version)


async def mqadmin(
    version: str, cluster: EmbeddedCluster, folder: Path, *commands: str
) -> list[str]:
    with closing(OfficialTool(version, cluster.namesrv, folder)) as tool:
        return await tool(*commands)


async def test_mqadmin_administers_topics_and_groups(rocketmq_version: str, tmp_path: Path) -> None:
    async with EmbeddedCluster(brokers=2, version=rocketmq_version) as cluster:
        address = cluster.broker.address
        printed = await mqadmin(
            *(rocketmq_version, cluster, tmp_path),
            "clusterList",
            "updateTopic -c DefaultCluster -t orders -r 2 -w 2",
            "topicRoute -t orders",
            "topicList",
            "updateSubGroup -c DefaultCluster -g billing -r 3",
            "wipeWritePerm -b broker-a",
            "addWritePerm -b broker-a",
            "updateOrderConf -m put -t orders -v broker-a:2",
            "updateOrderConf -m get -t orders",
            f"getBrokerConfig -b {address}",
            f"updateBrokerConfig -b {address} -k autoCreateTopicEnable -v false",
            f"brokerStatus -b {address}",
            "deleteSubGroup -c DefaultCluster -g billing",
            "deleteTopic -c DefaultCluster -t orders",
            "topicList -c",
            "updateNamesrvConfig -k orderMessageEnable -v true",
            "getNamesrvConfig",
            "deleteExpiredCommitLog -c DefaultCluster",
            f"exportConfigs -c DefaultCluster -f {tmp_path}/configs",
        )

        clusters, topic, route, topics, group, wiped, added, put, order, config, *rest = printed
        updated, status, no_group, no_topic, left, *rest = rest
        changed, name_server, cleaned, exported = rest
        release = "V" + rocketmq_version.replace(".", "_")
        assert [line[1:5] for line in cells(clusters, "DefaultCluster")] == [
            [broker.name, "0", broker.address, release] for broker in cluster.brokers
        ]
        assert topic.count("success") == 2
        assert re.findall(r'"(?:read|write)QueueNums":(\d+)', route) == ["2"] * 4
        assert "orders" in topics.split()
        assert group.count("success") == 2
        assert wiped.split()[-1] == added.split()[-1]
        assert "OK" in wiped
        assert "success" in put
        assert "orderConf=[broker-a:2]" in order
        assert re.search(r"autoCreateTopicEnable\s+=  true", config)
        assert "success" in updated
        assert not cluster.broker.state.auto_create_topics
        assert re.search(rf"brokerVersionDesc\s+: {release}", status)
        assert no_group.count("delete subscription group [billing]") == 2
        assert no_topic.count("success") == 2
        assert not re.search(r"\sorders\s", left)
        assert "billing" not in cluster.broker.state.groups
        assert "success" in changed
        assert re.search(r"orderMessageEnable\s+=  true", name_server)
        assert "success" in cleaned
        assert "success" in exported


async def test_mqadmin_reads_messages_and_progress(rocketmq_version: str, tmp_path: Path) -> None:
    config = LitePullConfig(start_from="earliest")
    by_topic = " -t orders" if rocketmq_version.startswith("5.") else ""
    async with (
        EmbeddedCluster(version=rocketmq_version, topics={"orders": 2}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
        LitePullConsumer("billing", namesrv=cluster.namesrv, config=config) as consumer,
    ):
        sent = await producer.send(Message("orders", b"hello", tags="tagA", keys="key-1"))
        await consumer.subscribe("orders", "tagA || tagB")
        assert await consumer.poll(POLL_SECONDS)
        await consumer.commit()
        client_id = consumer.client.client_id
        printed = await mqadmin(
            *(rocketmq_version, cluster, tmp_path),
            "sendMessage -t orders -p again -c tagA",
            "topicStatus -t orders",
            f"queryMsgById -i {sent.offset_message_id}{by_topic}",
            "queryMsgByKey -t orders -k key-1",
            f"queryMsgByUniqueKey -i {sent.message_id} -t orders",
            f"queryMsgByOffset -t orders -b broker-a -i {sent.queue.queue_id} -o 0",
            "printMsg -t orders -d true",
            "consumerConnection -g billing",
            f"consumerStatus -g billing -i {client_id}",
            "producerConnection -g shop -t orders",
            "consumerProgress -g billing",
            f"brokerConsumeStats -b {cluster.broker.address}",
            "resetOffsetByTime -g billing -t orders -s 0",
            "statsAll -t orders",
            f"queryCq -t orders -q {sent.queue.queue_id} -i 0",
        )

    sends, status, by_id, by_key, by_unique, by_offset, messages, *rest = printed
    connections, running, producers, progress, consumed, reset, stats, index = rest
    assert "SEND_OK" in sends
    assert sum(int(line[3]) for line in cells(status, "broker-a")) == 2
    for found in (by_id, by_unique, by_offset):
        assert sent.message_id in found, found
        assert "key-1" in found
    assert sent.message_id in by_key
    assert messages.count("MSGID: ") == 2
    assert client_id[:20] in connections
    assert "tagA || tagB" in connections
    assert "PYTHON" in connections
    assert "PROP_CLIENT_VERSION" in running
    assert "PYTHON" in producers
    assert {line[1] for line in cells(progress, "orders")} == {"broker-a"}
    assert re.search(r"Diff Total: *\d", progress)
    assert len(cells(reset.partition("#offset")[2], "broker-a")) == 2
    assert "billing" in consumed
    assert "billing" in stats
    assert f"tagsCode={java_hash('tagA')}" in index, index


async def test_the_java_client_sends_and_consumes_messages_of_all_kinds(
    rocketmq_version: str, tmp_path: Path
) -> None:
    # A Java consumer looks for queues of a topic that was created later every 20 s only.
    topics = {"java-requests": 4}
    async with EmbeddedCluster(version=rocketmq_version, topics=topics) as cluster:
        arguments = (rocketmq_version, tmp_path, cluster.namesrv)
        printed = await in_thread(lambda: java(*arguments, source=OFFICIAL))

    seen = dict(line.split(" ", 1) for line in printed.splitlines() if " " in line)
    once = {f"ordered-{number}": 1 for number in range(4)} | {"batch-0": 1, "batch-1": 1}
    counts = {"async": 2, "sync": 2, "oneway": 1, "delayed": 1, **once}
    assert seen["sync"] == seen["async"] == "SEND_OK"
    assert seen["batch"] == "2"
    expected = ", ".join(f"{name}={counts[name]}" for name in sorted(counts))
    assert seen["concurrent"] == f"{{{expected}}}"
    assert seen["dead"] == "1"
    assert seen["orderly"] == "[ordered-0, ordered-1, ordered-2, ordered-3]"
    assert seen["lite"] == "10"
    assert seen["filtered"] == "[filtered-2, filtered-3]"
    assert seen["checked"] == "unknown"
    assert seen["transactions"] == "[committed, unknown]"
    assert seen["reply"] == "reply to request"
