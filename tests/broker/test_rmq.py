"""`rmq` on real brokers: its answers are those of mqadmin, its effects are seen by clients."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketmq_aio.admin.client import AdminClient
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster
from tests.broker.official_tool import OfficialTool, mqadmin
from tests.unit.remoting.until import until_done

COMMAND = [sys.executable, "-c", "from rocketmq_aio.cli import main; main()"]


async def rmq(cluster: Cluster, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
    """Run a command as a process and return its output."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, "--namesrv", cluster.namesrv,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate(stdin)
    assert process.returncode == code, error.decode()
    return out.decode()


async def rows(cluster: Cluster, *arguments: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(await rmq(cluster, *arguments, "-o", "json"))


@pytest.mark.mqadmin("topicList updateTopic deleteTopic")
async def test_topics_are_those_of_mqadmin(
    rocketmq_cluster: Cluster, rocketmq_topic: str, official_tool: OfficialTool
) -> None:
    name = f"{rocketmq_topic}-made"
    await rmq(rocketmq_cluster, "topic", "create", name, "--queues", "3")

    printed = (await mqadmin(official_tool, "topicList")).split()
    listed = await rows(rocketmq_cluster, "topic", "list")
    route = await rows(rocketmq_cluster, "topic", "route", name)
    assert name in printed
    assert set(listed) <= set(printed)
    assert {each["read_queues"] for each in route["queues"]} == {3}

    await rmq(rocketmq_cluster, "topic", "delete", name, "--yes")
    assert name not in (await mqadmin(official_tool, "topicList")).split()


@pytest.mark.mqadmin("sendMessage consumeMessage consumerProgress resetOffsetByTime")
@pytest.mark.mqadmin("startMonitoring")
async def test_sent_lines_are_consumed_committed_and_reset(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str, official_tool: OfficialTool
) -> None:
    topic, group = rocketmq_topic, rocketmq_group
    await rmq(rocketmq_cluster, "group", "create", group)
    await rmq(rocketmq_cluster, "produce", topic, "--tag", "a", "--key", "42", stdin=b"1\n2\n3\n")
    begin = ("consume", topic, "--from", "beginning", "--exit-at-end", "--bodies")

    watched = await rmq(rocketmq_cluster, *begin)
    member = await rmq(rocketmq_cluster, *begin, "--group", group)
    lag = await rows(rocketmq_cluster, "lag", group, "--topic", topic)
    progress = await mqadmin(official_tool, f"consumerProgress -g {group}")
    await rmq(rocketmq_cluster, "offset", "reset", group, topic, "earliest", "--yes")
    again = await rmq(rocketmq_cluster, *begin, "--group", group)

    assert sorted(watched.split()) == sorted(member.split()) == ["1", "2", "3"]
    assert [row["lag"] for row in lag] == [0]
    assert "Diff Total: 0" in progress
    assert sorted(again.split()) == ["1", "2", "3"]


@pytest.mark.mqadmin("queryMsgByKey queryMsgByUniqueKey")
async def test_a_message_is_found_by_its_key_and_id(
    rocketmq_cluster: Cluster, rocketmq_topic: str
) -> None:
    async with Producer("p", namesrv=rocketmq_cluster.namesrv) as producer:
        sent = await producer.send(Message(rocketmq_topic, b"hello", keys="42"))
    async with AdminClient(namesrv=rocketmq_cluster.namesrv) as admin:

        async def is_indexed() -> bool:
            return bool(await admin.messages.by_key(rocketmq_topic, "42"))

        await until_done(is_indexed)

    by_key = await rows(rocketmq_cluster, "message", "by-key", rocketmq_topic, "42")
    by_id = await rows(rocketmq_cluster, "message", "by-id", rocketmq_topic, sent.message_id)

    assert [each["body"] for each in by_key] == [each["body"] for each in by_id] == ["hello"]
    assert by_key[0]["message_id"] == sent.message_id


@pytest.mark.mqadmin("clusterList getBrokerConfig")
async def test_brokers_and_their_settings_are_those_of_mqadmin(
    rocketmq_cluster: Cluster, official_tool: OfficialTool
) -> None:
    brokers = await rows(rocketmq_cluster, "cluster", "list")
    settings = await rows(rocketmq_cluster, "broker", "config", "--match", "brokerName")
    printed = await mqadmin(official_tool, "clusterList")
    checks = await rows(rocketmq_cluster, "doctor")

    assert {each["broker_name"] for each in brokers} == {b.name for b in rocketmq_cluster.brokers}
    assert all(each["address"] in printed for each in brokers)
    assert {each["value"] for each in settings} == {b.name for b in rocketmq_cluster.brokers}
    assert all(each["ok"] for each in checks)


@pytest.mark.mqadmin("exportMetadata updateTopicList")
async def test_exported_topics_are_restored(
    rocketmq_cluster: Cluster, rocketmq_topic: str, tmp_path: Path
) -> None:
    file, copy = tmp_path / "cluster.json", f"{rocketmq_topic}-copy"
    await rmq(rocketmq_cluster, "metadata", "export", "--file", str(file))
    exported = json.loads(file.read_text())["topics"]
    copies = [each | {"topic": copy} for each in exported if each["topic"] == rocketmq_topic]
    file.write_text(json.dumps({"topics": copies}))

    await rmq(rocketmq_cluster, "metadata", "restore", str(file), "--yes")

    assert len(copies) == 1
    assert await rows(rocketmq_cluster, "topic", "config", copy) == copies
    await rmq(rocketmq_cluster, "topic", "delete", copy, "--yes")


async def test_an_unknown_topic_or_group_ends_with_2(
    rocketmq_cluster: Cluster, rocketmq_topic: str
) -> None:
    await rmq(rocketmq_cluster, "topic", "stats", "no-such-topic", code=2)
    for command in ("lag", "group config", "group connections", "group delete --yes", "dlq show"):
        await rmq(rocketmq_cluster, *command.split(), "no-such-group", code=2)
    await rmq(rocketmq_cluster, "lag", "no-such-group", "--topic", rocketmq_topic, code=2)
    reset = ("offset", "reset", "no-such-group", rocketmq_topic, "earliest", "--yes")
    await rmq(rocketmq_cluster, *reset, code=2)


async def test_a_message_that_is_not_found_ends_with_3(
    rocketmq_cluster: Cluster, rocketmq_topic: str
) -> None:
    await rmq(rocketmq_cluster, "message", "by-id", rocketmq_topic, "no-such-id", code=3)
    await rmq(rocketmq_cluster, "message", "by-key", rocketmq_topic, "no-such-key", code=3)
    await rmq(rocketmq_cluster, "trace", "no-such-id", code=3)
