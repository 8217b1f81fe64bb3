"""Snapshots: everything that a broker keeps is there after a load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from rocketmq_aio import (
    AdminClient,
    LitePullConfig,
    LitePullConsumer,
    Message,
    Producer,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.snapshot import (
    SnapshotError,
    check_writable,
    load_snapshot,
    save_snapshot,
)
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.codes import BORN_IPV6, STORE_IPV6, RequestCode, ResponseCode
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from tests.fakes.conformance.case_env import CaseEnv, send_header
from tests.fakes.conformance.popping import LONG_MILLIS, ack_header, bodies, pop
from tests.fakes.raw_client import RawClient

ENV = CaseEnv("", "", "5.5.0", "orders", "billing")
EARLIEST = LitePullConfig(start_from="earliest")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data"


def loaded(file: Path, brokers: int = 1) -> EmbeddedCluster:
    cluster = EmbeddedCluster(brokers)
    assert load_snapshot(cluster.brokers, file)
    return cluster


async def consume(namesrv: str, count: int) -> list[bytes]:
    """Read and commit *count* messages."""
    found: list[bytes] = []
    async with LitePullConsumer("billing", namesrv=namesrv, config=EARLIEST) as consumer:
        await consumer.subscribe("orders")
        while len(found) < count:
            found += [message.body for message in await consumer.poll(1, max_messages=1)]
    return found


async def test_messages_and_committed_offsets_survive(file: Path) -> None:
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for body in (b"one", b"two", b"three"):
                await producer.send(Message("orders", body))
        assert await consume(cluster.namesrv, 1) == [b"one"]
    save_snapshot(cluster.brokers, file)

    async with loaded(file) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            result = await producer.send(Message("orders", b"four"))
        rest = await consume(cluster.namesrv, 3)

    assert result.queue_offset == 3
    assert rest == [b"two", b"three", b"four"]


async def test_settings_of_topics_and_groups_survive(file: Path) -> None:
    cluster = EmbeddedCluster(2, topics={"orders": 3})
    cluster.create_group("billing")
    cluster.brokers[1].topics["orders"].perm = 4
    save_snapshot(cluster.brokers, file)

    cluster = loaded(file, brokers=2)

    assert [broker.topics["orders"].perm for broker in cluster.brokers] == [6, 4]
    assert [len(broker.topics["orders"].queues) for broker in cluster.brokers] == [3, 3]
    assert all("billing" in broker.state.groups for broker in cluster.brokers)


@pytest.mark.parametrize("versions", [("4.9.7", "5.5.0"), ("5.5.0", "4.9.7")], ids="-".join)
async def test_groups_can_be_changed_after_a_load_by_another_version(
    file: Path, versions: tuple[str, str]
) -> None:
    before, after = (EmbeddedCluster(version=version) for version in versions)
    before.broker.state.create_group("billing")["retryMaxTimes"] = 3
    save_snapshot(before.brokers, file)
    assert load_snapshot(after.brokers, file)

    async with after, AdminClient(namesrv=after.namesrv) as admin:
        await admin.groups.update("billing", retry_queues=2)
        [config] = await admin.groups.config("billing")

    assert (config.max_retries, config.retry_queues) == (3, 2)


async def test_popped_messages_come_again_and_no_others(file: Path) -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        for body in (b"one", b"two", b"three"):
            cluster.broker.put("orders", body)
        _, (_, acked) = await pop(client, ENV, max_msg_nums=2)
        assert (await client.ask(ack_header(ENV, acked))).code == 0
    save_snapshot(cluster.brokers, file)

    async with loaded(file) as cluster, RawClient(cluster.broker.address) as client:
        rest = await pop(client, ENV, invisible_time=10 * LONG_MILLIS)
        cluster.clock.advance(LONG_MILLIS / 1000)
        again = await pop(client, ENV)

    assert (bodies(rest), bodies(again)) == ([b"three"], [b"one"])


async def test_static_topics_survive(file: Path) -> None:
    async with EmbeddedCluster(2) as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        created = await admin.static_topics.create("logical", 4)
        assert len(created) == 4
    save_snapshot(cluster.brokers, file)

    async with loaded(file, brokers=2) as cluster, AdminClient(namesrv=cluster.namesrv) as admin:
        assert await admin.static_topics.queues("logical") == created


async def test_delayed_messages_and_open_transactions_survive(file: Path) -> None:
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("orders", b"level", delay_level=5))
            await producer.send(Message("orders", b"timed", delay_seconds=60))
        async with TransactionProducer(
            "tills", namesrv=cluster.namesrv, check=lambda _: TransactionState.UNKNOWN
        ) as tills:
            await tills.send_in_transaction(
                Message("orders", b"half"), lambda _: TransactionState.UNKNOWN
            )
    save_snapshot(cluster.brokers, file)

    async with loaded(file) as cluster:
        [half] = cluster.broker.transactions.open
        cluster.clock.advance(61)
        bodies = [stored.body for stored in cluster.broker.messages("orders")]

    assert half.body == b"half"
    assert sorted(bodies) == [b"level", b"timed"]


async def test_recalls_request_modes_and_settings_of_the_broker_survive(file: Path) -> None:
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        broker = cluster.broker
        broker.state.update_settings({"autoCreateTopicEnable": "false"})
        broker.assignments.modes["orders", "billing"] = MessageRequestMode.POP
        broker.state.update_settings({"recallMessageEnable": "true"})
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            sent = await producer.send(Message("orders", b"recalled", delay_seconds=60))
            await producer.recall("orders", sent.recall_handle)
    save_snapshot(cluster.brokers, file)

    async with loaded(file) as cluster:
        cluster.clock.advance(61)
        state = cluster.broker.state

        assert cluster.broker.messages("orders") == []
        assert not state.auto_create_topics
        assert state.request_modes == {("orders", "billing"): MessageRequestMode.POP}


BIG = str(10**25)
TOPIC_FIELDS = {
    "topic": "bills",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": BIG,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "defaultTopic": "TBW102",
    "order": "false",
}
COMMIT_FIELDS = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (RequestCode.UPDATE_CONSUMER_OFFSET, {**COMMIT_FIELDS, "commitOffset": BIG}, b""),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC_FIELDS, b""),
        (
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
            TOPIC_FIELDS,
            b'{"topic":"bills","totalQueues":1,"bname":"broker-a","epoch":1,"hostedQueues":{}}',
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {},
            b'{"groupName":"billing","groupRetryPolicy":{"type":%d}}' % 10**25,
        ),
    ],
    ids=["commit", "topic", "static topic", "group"],
)
async def test_numbers_that_no_snapshot_can_store_are_refused(
    file: Path, code: int, fields: dict[str, str], body: bytes
) -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        cluster.create_group("billing")
        answer = await client.answer(client.send_fields(code, fields, body))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    save_snapshot(cluster.brokers, file)


async def test_a_pop_with_the_largest_invisible_time_is_saved(file: Path) -> None:
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "maxMsgNums": "1"}
    fields |= {"invisibleTime": str(2**64 - 1), "pollTime": "0", "bornTime": "0", "initMode": "0"}
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        cluster.broker.put("orders", b"one")
        answer = await client.answer(client.send_fields(RequestCode.POP_MESSAGE, fields))
        assert answer.code == 0

    save_snapshot(cluster.brokers, file)


async def test_odd_fields_of_messages_do_not_spoil_the_file(file: Path) -> None:
    immune = {"TRAN_MSG": "true", "CHECK_IMMUNITY_TIME_IN_SECONDS": str(2**63 - 1)}
    header = send_header(ENV)
    odd = [
        replace(header, properties=encode_properties(immune)),
        replace(header, sys_flag=BORN_IPV6 | STORE_IPV6),
    ]
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        for each in odd:
            assert (await client.ask(each, b"one")).code == 0
    save_snapshot(cluster.brokers, file)

    async with loaded(file) as cluster:
        assert await consume(cluster.namesrv, 1) == [b"one"]


def test_without_a_file_nothing_is_loaded(file: Path) -> None:
    assert not load_snapshot(EmbeddedCluster().brokers, file)


@pytest.mark.parametrize(
    ("contents", "reason"),
    [(b"not a snapshot", "is not a snapshot"), (None, "has the data of 2 brokers: start as many")],
    ids=["garbage", "brokers"],
)
def test_a_file_that_cannot_be_loaded_raises(
    file: Path, contents: bytes | None, reason: str
) -> None:
    if contents is None:
        save_snapshot(EmbeddedCluster(2).brokers, file)
    else:
        file.write_bytes(contents)

    with pytest.raises(SnapshotError, match=reason):
        load_snapshot(EmbeddedCluster().brokers, file)


def test_a_failed_save_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = EmbeddedCluster(topics={"orders": 1})
    save_snapshot(cluster.brokers, file)
    before = file.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SnapshotError, match="cannot be written: No space left"):
        save_snapshot(cluster.brokers, file)

    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_start_removes_what_killed_processes_left(tmp_path: Path) -> None:
    file = tmp_path / "[data]"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = [tmp_path / f"[data].{pid}.part" for pid in (ended.pid, os.getpid())]
    names = ("[data].x.part", f"d.{ended.pid}.part", f"[data].{os.getppid()}.part")
    others = [tmp_path / name for name in names]
    for each in (*left, *others):
        each.write_bytes(b"half")

    check_writable(file)

    assert sorted(tmp_path.iterdir()) == sorted(others)  # the parent still runs
