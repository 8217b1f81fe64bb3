"""AdminClient on real brokers, compared with mqadmin."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from time import time_ns
from typing import Final, TypeVar

import pytest

from rocketmq_aio import (
    AdminClient,
    AdminError,
    BrokerError,
    ClientConfig,
    CodecError,
    ConfigError,
    Encoded,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageNotFoundError,
    MessageQueue,
    NotSupportedError,
    Producer,
    ProducerConfig,
    PullConsumer,
    RequestTimeoutError,
    RouteNotFoundError,
    SendResult,
    SubscriptionError,
    UnreadableMessagesError,
    describe_message,
)
from rocketmq_aio.protocol.record import encode_batch_entry
from rocketmq_aio.testing import Cluster
from tests.broker.official_tool import OfficialTool
from tests.broker.reading_groups import in_thread, is_before
from tests.unit.remoting.until import until_done

T = TypeVar("T")

SECONDS: Final = 40.0
COUNT: Final = 12
QUEUES: Final = 4


async def send(namesrv: str, topic: str, count: int = COUNT) -> list[SendResult]:
    """Send messages that each have a unique key and a shared one; wait until queues have them."""
    async with Producer("admin-test", namesrv=namesrv) as producer:
        results = [
            await producer.send(Message(topic, b"%d" % n, keys=[f"key-{n}", "all"]))
            for n in range(count)
        ]
    async with AdminClient(namesrv=namesrv) as admin:

        async def have_all() -> bool:
            stats = await admin.topic_stats(topic)
            ends = {each.queue: each.max_offset for each in stats.queues}
            return all(ends[each.queue] > each.queue_offset for each in results)

        await until_done(have_all, "the messages in their queues", SECONDS)
    return results


async def commit(namesrv: str, group: str, offsets: dict[MessageQueue, int]) -> None:
    async with PullConsumer(group, namesrv=namesrv) as consumer:
        for queue, offset in offsets.items():
            await consumer.commit(queue, offset)


async def eventually(ask: Callable[[], Awaitable[Sequence[T]]], count: int) -> Sequence[T]:
    """Query until *count* messages are returned: brokers index them later."""
    found: list[Sequence[T]] = []

    async def enough() -> bool:
        found.append(await ask())
        return len(found[-1]) == count

    await until_done(enough, f"{count} results", SECONDS)
    return found[-1]


# --- topics --------------------------------------------------------------------------------------


async def test_a_topic_is_created_updated_and_deleted(admin: AdminClient, group: str) -> None:
    topic = f"{group}-topic"

    made = await admin.create_topic(topic, queues=3)
    again = await admin.create_topic(topic, queues=3)
    with pytest.raises(ConfigError, match=r"use topics\.update"):
        await admin.create_topic(topic, queues=5)
    listed = await admin.list_topics()
    (changed,) = await admin.update_topic(topic, write_queues=5, read_queues=6, perm="R")
    route = await admin.topic_route(topic)

    assert made == again == [made[0]]
    assert (made[0].read_queues, made[0].write_queues, made[0].perm) == (3, 3, "RW")
    assert topic in listed
    assert "TBW102" not in listed
    assert {"TBW102", topic} <= set(await admin.list_topics(internal=True))
    assert await admin.topic_config(topic) == [changed]
    assert (changed.read_queues, changed.write_queues, changed.perm) == (6, 5, "R")
    assert [(q.read_queues, q.write_queues, q.perm) for q in route.queues] == [(6, 5, "R")]
    assert route.brokers == (await admin.cluster_info()).brokers
    await admin.delete_topic(topic)
    await admin.delete_topic(topic)
    assert topic not in await admin.list_topics()
    update = partial(admin.update_topic, perm="R")
    for gone in (admin.topic_route, admin.topic_config, admin.topic_stats, update):
        with pytest.raises(RouteNotFoundError):
            await gone(topic)


async def test_an_unknown_cluster_or_broker_raises_config_error(admin: AdminClient) -> None:
    for refused in (
        admin.create_topic("never-made", cluster="elsewhere"),
        admin.create_topic("never-made", brokers=["elsewhere"]),
        admin.list_topics(cluster="elsewhere"),
    ):
        with pytest.raises(ConfigError, match="elsewhere"):
            await refused
    assert "never-made" not in await admin.list_topics(cluster="DefaultCluster")


async def test_topic_attributes_are_set_and_updated_since_5_0(
    admin: AdminClient, group: str, rocketmq_version: str
) -> None:
    topic = f"{group}-topic"
    if rocketmq_version.startswith("4."):
        with pytest.raises(NotSupportedError, match=r"5\.0"):
            await admin.create_topic(topic, attributes={"message.type": "FIFO"})
        assert topic not in await admin.list_topics()
        return

    await admin.create_topic(topic, queues=1, attributes={"message.type": "FIFO"})
    (config,) = await admin.topic_config(topic)
    await admin.update_topic(topic, attributes={"message.type": "NORMAL"}, queues=2)
    (other,) = await admin.topic_config(topic)
    await admin.update_topic(topic, attributes={"message.type": None})
    (without,) = await admin.topic_config(topic)

    await admin.delete_topic(topic)
    assert config.attributes == {"message.type": "FIFO"}
    assert (other.attributes, other.read_queues) == ({"message.type": "NORMAL"}, 2)
    assert (without.attributes, without.read_queues) == ({}, 2)


@pytest.mark.mqadmin("updateOrderConf")
async def test_an_ordered_topic_stores_its_queues_at_the_name_servers(
    admin: AdminClient, group: str, rocketmq_cluster: Cluster, official_tool: OfficialTool
) -> None:
    topic = f"{group}-topic"
    name = rocketmq_cluster.brokers[0].name

    await admin.create_topic(topic, queues=2, order=True)
    await admin.create_topic(topic, queues=2, order=True)
    await admin.update_topic(topic, queues=3)

    (printed,) = await official_tool(f"updateOrderConf -m get -t {topic}")
    await admin.update_topic(topic, order=False)
    await admin.update_topic(topic, queues=4)  # the broker registers, and reads the order again
    (config,) = await admin.topics.config(topic)
    await admin.delete_topic(topic)
    assert f"{name}:3" in printed
    assert not config.order
    assert (await admin.cluster_info()).clusters == ("DefaultCluster",)


# --- groups --------------------------------------------------------------------------------------


async def test_a_group_is_created_updated_and_deleted(admin: AdminClient, group: str) -> None:
    made = await admin.create_group(group, max_retries=3)
    again = await admin.create_group(group, max_retries=3)
    with pytest.raises(ConfigError, match=r"use groups\.update"):
        await admin.create_group(group, max_retries=4)
    (changed,) = await admin.update_group(group, enabled=False, retry_queues=2)
    listed = await admin.list_groups()

    assert made == again
    assert (made[0].max_retries, made[0].enabled, made[0].retry_queues) == (3, True, 1)
    assert (changed.max_retries, changed.enabled, changed.retry_queues) == (3, False, 2)
    assert group in listed
    assert "TOOLS_CONSUMER" not in listed
    assert "TOOLS_CONSUMER" in await admin.list_groups(internal=True)
    await admin.delete_group(group, delete_topics=True)
    await admin.delete_group(group, delete_topics=True)
    assert await admin.group_config(group) == []
    with pytest.raises(SubscriptionError):
        await admin.update_group(group, enabled=True)


async def test_group_settings_of_5_raise_for_older_brokers(
    admin: AdminClient, group: str, rocketmq_version: str
) -> None:
    await admin.create_group(group)
    if rocketmq_version.startswith("4."):
        with pytest.raises(NotSupportedError, match="orderly"):
            await admin.update_group(group, orderly=True)
    else:
        (changed,) = await admin.update_group(group, orderly=True, consume_timeout_minutes=3)
        assert (changed.orderly, changed.consume_timeout_minutes) == (True, 3)
    await admin.delete_group(group)


async def test_connections_list_members_and_producers(
    admin: AdminClient, namesrv: str, topic: str, group: str
) -> None:
    offline = await admin.consumer_connections(group)
    async with (
        Producer(f"{group}-p", namesrv=namesrv) as producer,
        LitePullConsumer(group, namesrv=namesrv) as consumer,
    ):
        await producer.send(Message(topic, b"one"))
        await consumer.subscribe(topic, "a || b")
        await consumer.ready(SECONDS)
        await eventually(lambda: admin.producer_connections(f"{group}-p"), 1)
        seen = await admin.consumer_connections(group)
        (sender,) = await admin.producer_connections(f"{group}-p")
        progress = await admin.group_progress(group, topic, owners=True)

        assert (offline.online, seen.online) == (False, True)
        assert [each.client_id for each in seen.members] == [consumer.client.client_id]
        assert sender.client_id == producer.client.client_id
        assert {each.topic: each.expression for each in seen.subscriptions}[topic] == "a || b"
        assert {each.client_id for each in progress.queues} == {consumer.client.client_id}
        assert progress.silent == {}
        with pytest.raises(ConfigError, match="connected"):
            await admin.clone_offsets("any-group", group)
    assert await admin.producer_connections(f"{group}-nobody") == []


# --- offsets -------------------------------------------------------------------------------------


@pytest.mark.mqadmin("consumerProgress topicStatus")
async def test_progress_and_statistics_equal_those_of_mqadmin(
    admin: AdminClient, namesrv: str, topic: str, group: str, official_tool: OfficialTool
) -> None:
    await send(namesrv, topic)
    await admin.create_group(group)
    await admin.create_topic(f"%RETRY%{group}", queues=1)  # mqadmin looks for brokers there
    stats = await admin.topic_stats(topic)
    await commit(namesrv, group, {each.queue: each.max_offset - 1 for each in stats.queues})

    progress = await admin.group_progress(group)

    assert stats.count == COUNT
    assert [each.lag for each in progress.queues] == [1] * QUEUES
    assert progress.lag == progress.to_dict()["lag"] == QUEUES
    assert json.dumps([stats.to_dict(), progress.to_dict()])
    assert await admin.topic_groups(topic) == [group]
    reported, status = await official_tool(
        f"consumerProgress -g {group}", f"topicStatus -t {topic}"
    )
    assert re.findall(r"Diff Total: *(\d+)", reported) == [str(progress.lag)], reported
    ends = [(q.queue.queue_id, q.min_offset, q.max_offset) for q in stats.queues]
    assert rows(status) == ends, status


async def test_progress_counts_messages_that_members_have_not_committed(
    admin: AdminClient, namesrv: str, topic: str, group: str, rocketmq_version: str
) -> None:
    await send(namesrv, topic)
    config = LitePullConfig(start_from="earliest", auto_commit=False)
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        received = 0
        async with asyncio.timeout(SECONDS):
            while received < COUNT:
                received += len(await consumer.poll())
        polled = await admin.groups.progress(group, topic)
        await consumer.commit()
        committed = await admin.groups.progress(group, topic)

    counts = (polled.lag, polled.in_flight, committed.lag, committed.in_flight)
    if rocketmq_version.startswith("4."):
        assert counts == (COUNT, None, 0, None)
    else:
        assert counts == (COUNT, COUNT, 0, 0)


def rows(printed: str) -> list[tuple[int, ...]]:
    """Return the numbers in lines that begin with a broker name: queue and offsets."""
    lines = [line.split() for line in printed.splitlines()]
    return [tuple(map(int, cells[1:4])) for cells in lines if cells[:1] == ["broker-a"]]


async def test_reset_commits_for_an_offline_group(
    admin: AdminClient, namesrv: str, topic: str, group: str
) -> None:
    began = datetime.now(UTC) - timedelta(minutes=1)
    await send(namesrv, topic)
    await admin.create_group(group)
    ends = {each.queue: each.max_offset for each in (await admin.topic_stats(topic)).queues}
    queue = next(iter(ends))

    async def offsets() -> dict[MessageQueue, int]:
        progress = await admin.group_progress(group, topic)
        return {each.queue: each.consumer_offset for each in progress.queues}

    latest = await admin.reset_offsets(group, topic, "latest")
    assert {each.queue: each.offset for each in latest} == await offsets() == ends
    await admin.reset_offsets(group, topic, began)
    assert set((await offsets()).values()) == {0}
    await admin.reset_offsets(group, topic, "latest")
    (moved,) = await admin.reset_offsets(group, topic, {queue: 1})
    assert (moved.before, moved.offset) == (ends[queue], 1)
    assert await offsets() == {**ends, queue: 1}
    for wrong in ({queue: ends[queue] + 1}, {MessageQueue(topic, "elsewhere", 0): 0}):
        with pytest.raises(ConfigError):
            await admin.reset_offsets(group, topic, wrong)
    assert await offsets() == {**ends, queue: 1}


async def test_reset_to_a_time_finds_the_first_message_whatever_brokers_answer(
    admin: AdminClient, namesrv: str, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    async with Producer("admin-test", namesrv=namesrv) as producer:
        for number in range(8):
            await producer.send_batch([Message(topic, b"%d" % number)] * 3, queue=queue)
            await asyncio.sleep(0.01)  # so that they are stored at different times
    async with PullConsumer(group, namesrv=namesrv) as reader:
        stored = [each.store_time for each in (await reader.pull(queue, 0)).messages]
    await admin.create_group(group)

    for moment in sorted({each + timedelta(milliseconds=d) for each in stored for d in (-1, 0, 1)}):
        resets = await admin.reset_offsets(group, topic, moment)
        first = next((at for at, each in enumerate(stored) if each >= moment), len(stored))
        assert {each.offset for each in resets if each.queue == queue} == {first}


@pytest.mark.mqadmin("resetOffsetByTime")
@pytest.mark.parametrize("has_committed", [True, False])
async def test_reset_moves_an_online_group(
    admin: AdminClient,
    namesrv: str,
    topic: str,
    group: str,
    rocketmq_version: str,
    *,
    has_committed: bool,
) -> None:
    results = await send(namesrv, topic)
    wanted = {b"%d" % n for n in range(COUNT)}
    config = LitePullConfig(start_from="earliest", auto_commit=False)
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        await polled(consumer, wanted)
        if has_committed:
            await consumer.commit()

        resets = await admin.reset_offsets(group, topic, "earliest")

        assert [each.offset for each in resets] == [0] * QUEUES
        assert {each.how for each in resets} == {
            "members" if rocketmq_version.startswith("4.") else "broker"
        }
        await polled(consumer, wanted)
        if rocketmq_version.startswith("4."):
            with pytest.raises(NotSupportedError, match="stop its members"):
                await admin.reset_offsets(group, topic, {results[0].queue: 0})


async def polled(consumer: LitePullConsumer, wanted: set[bytes]) -> None:
    """Poll until all bodies of *wanted* are received."""
    seen: set[bytes] = set()

    async def all_there() -> bool:
        seen.update(message.body for message in await consumer.poll(1))
        return wanted <= seen

    await until_done(all_there, "the messages", SECONDS)


async def test_offsets_are_cloned(admin: AdminClient, namesrv: str, topic: str, group: str) -> None:
    await send(namesrv, topic)
    clone = f"{group}-clone"
    for name in (group, clone):
        await admin.create_group(name)
    ends = {each.queue: each.max_offset for each in (await admin.topic_stats(topic)).queues}
    await commit(namesrv, group, {queue: end - 1 for queue, end in ends.items()})

    await admin.clone_offsets(group, clone)

    progress = await admin.group_progress(clone, topic)
    assert {each.queue: each.lag for each in progress.queues} == dict.fromkeys(ends, 1)


async def test_resetting_an_unknown_group_raises_where_brokers_check(
    admin: AdminClient, topic: str, group: str, rocketmq_version: str
) -> None:
    if rocketmq_version.startswith("4."):
        assert len(await admin.reset_offsets(group, topic, "earliest")) == QUEUES
    else:
        with pytest.raises(SubscriptionError, match="does not exist"):
            await admin.reset_offsets(group, topic, "earliest")


# --- messages ------------------------------------------------------------------------------------


async def test_messages_are_found_by_tag_since_5_4(
    admin: AdminClient, namesrv: str, topic: str, rocketmq_version: str
) -> None:
    async with Producer("admin-test", namesrv=namesrv) as producer:
        for number, tag in enumerate(("new", "paid", "new", "new")):
            await producer.send(Message(topic, b"%d" % number, tags=tag, keys=["paid"]))
    if is_before(rocketmq_version, "5.4"):
        with pytest.raises(NotSupportedError, match=r"5\.4"):
            await admin.messages.by_tag(topic, "new")
        return

    await eventually(lambda: admin.messages.by_tag(topic, "new"), 3)
    newest = await admin.messages.by_tag(topic, "new", max_messages=1)
    (paid,) = await admin.messages.by_tag(topic, "paid")

    assert [each.body for each in newest] == [b"3"]
    assert paid.body == b"1"
    assert await admin.messages.by_tag(topic, "old") == []


async def test_messages_are_found_by_offset_id_and_key(
    admin: AdminClient, namesrv: str, topic: str
) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    results = await send(namesrv, topic)
    third = results[3]

    viewed = await admin.view_message(third.offset_message_id)
    (found,) = await eventually(lambda: admin.find_message(topic, third.message_id), 1)
    (keyed,) = await eventually(lambda: admin.query_messages(topic, "key-3"), 1)
    everything = await eventually(lambda: admin.query_messages(topic, "all"), COUNT)

    for message in (viewed, found, keyed):
        assert (message.body, message.queue, message.topic) == (b"3", third.queue, topic)
        assert message.queue_offset == third.queue_offset
    # Messages stored in the same millisecond have no order.
    assert {message.body for message in everything} == {b"%d" % n for n in range(COUNT)}
    assert [each.store_time for each in everything] == sorted(e.store_time for e in everything)
    assert await admin.query_messages(topic, "all", end=before) == []
    assert len(await admin.query_messages(topic, "all", begin=before, max_messages=5)) == 5
    begin, end = everything[1].store_time, everything[-2].store_time
    between = await admin.query_messages(topic, "all", begin=begin, end=end)
    assert [each.body for each in between] == [
        each.body for each in everything if begin <= each.store_time <= end
    ]
    assert await admin.find_message(topic, "key-3") == []
    assert json.loads(json.dumps(describe_message(viewed)))["keys"] == ["key-3", "all"]
    inside = int(third.offset_message_id[-16:], 16) + 1
    with pytest.raises(BrokerError):
        await admin.view_message(f"{third.offset_message_id[:-16]}{inside:016x}")
    for offset in (0x77777, 2**62):
        with pytest.raises(MessageNotFoundError, match="no message begins at"):
            await admin.view_message(f"{third.offset_message_id[:-16]}{offset:016x}")


@pytest.mark.needs_real_broker("the embedded broker has no batch consume queues")
async def test_messages_of_a_batch_stored_as_one_record_are_found(
    admin: AdminClient, namesrv: str, topic: str, rocketmq_version: str
) -> None:
    if rocketmq_version.startswith("4."):
        with pytest.raises(NotSupportedError):  # such topics need 5.0
            await admin.create_topic(f"{topic}-batches", attributes={"queue.type": "BatchCQ"})
        return
    await admin.create_topic(f"{topic}-batches", queues=1, attributes={"queue.type": "BatchCQ"})
    whole = f"{time_ns():032X}"
    entries = [
        encode_batch_entry(
            b"%d" % n, f"KEYS\x01own-{n}\x02UNIQ_KEY\x01{whole[:-1]}{n}\x02".encode(), 0
        )
        for n in range(3)
    ]
    batch = Encoded(
        topic=f"{topic}-batches",
        body=b"".join(part for entry in entries for part in entry),
        message_id=whole,
        properties=f"WAIT\x01true\x02UNIQ_KEY\x01{whole}\x02KEYS\x01whole\x02".encode(),
        batch=True,
    )
    async with Producer("admin-test", namesrv=namesrv) as producer:
        place = (await producer.send_encoded(batch)).offset_message_id

    viewed = await admin.view_messages(place)
    keyed = await eventually(lambda: admin.query_messages(batch.topic, "whole"), 3)
    found = await eventually(lambda: admin.find_message(batch.topic, whole), 3)

    for messages in (viewed, keyed, found):
        assert [(each.queue_offset, each.body) for each in messages] == [
            (0, b"0"),
            (1, b"1"),
            (2, b"2"),
        ]
    with pytest.raises(ConfigError, match=r"a batch of 3 messages .* batch_by_offset_id\(\)"):
        await admin.view_message(place)


async def test_unreadable_messages_do_not_hide_the_others(
    admin: AdminClient, namesrv: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ProducerConfig(compression="lz4")
    async with Producer("admin-test", namesrv=namesrv, config=config) as producer:
        small = await producer.send(Message(topic, b"small", keys="both"))
        large = await producer.send(Message(topic, b"large" * 1000, keys="both"))
    await eventually(lambda: admin.query_messages(topic, "both"), 2)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)  # as if the extra were not installed

    with pytest.raises(UnreadableMessagesError, match="1 of 2 messages cannot be read") as caught:
        await admin.query_messages(topic, "both")
    assert [each.message_id for each in caught.value.messages] == [small.message_id]
    [(unread, fault)] = caught.value.unreadable.items()
    assert (unread.message_id, unread.queue_offset) == (large.message_id, large.queue_offset)
    assert "rocketmq-aio with its extra [compression]" in fault.reason
    with pytest.raises(CodecError, match="it is compressed with lz4"):
        await admin.view_message(large.offset_message_id)


async def test_broker_stats_are_returned(admin: AdminClient, rocketmq_version: str) -> None:
    (runtime,) = await admin.broker_stats()

    assert runtime.version == f"V{rocketmq_version.replace('.', '_')}"
    assert runtime.to_dict()["stats"]["brokerVersionDesc"] == runtime.version
    assert "commitLogMaxOffset" in runtime.stats


# --- two brokers ---------------------------------------------------------------------------------


async def test_a_partial_failure_is_reported_and_a_retry_completes_it(
    two_broker_cluster: Cluster, group: str
) -> None:
    topic = f"{group}-topic"
    name, other = (broker.name for broker in two_broker_cluster.brokers)
    client = ClientConfig(namesrv=two_broker_cluster.namesrv, request_timeout_seconds=3)
    async with AdminClient(client=client) as admin:
        await admin.create_topic(topic, queues=2)
        await in_thread(two_broker_cluster.brokers[1].pause)
        try:
            with pytest.raises(AdminError, match=other) as caught:
                await admin.update_topic(topic, queues=4)
            with pytest.raises(AdminError):
                await admin.delete_topic(topic)
        finally:
            await in_thread(two_broker_cluster.brokers[1].resume)

        assert set(caught.value.done) == {name}
        assert isinstance(caught.value.failed[other], RequestTimeoutError)
        await admin.delete_topic(topic)
        with pytest.raises(RouteNotFoundError):
            await admin.topic_route(topic)


async def test_a_topic_can_be_created_on_one_of_two_brokers(
    two_broker_cluster: Cluster, group: str
) -> None:
    topic = f"{group}-topic"
    name, other = (broker.name for broker in two_broker_cluster.brokers)
    async with AdminClient(namesrv=two_broker_cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=2, brokers=[other])
        with pytest.raises(RouteNotFoundError, match=name):
            await admin.update_topic(topic, queues=4, brokers=[name])
        await admin.create_topic(topic, queues=2)

        assert {each.broker_name for each in await admin.topic_config(topic)} == {name, other}
        await admin.delete_topic(topic)


async def test_progress_includes_brokers_where_nothing_is_committed(
    two_broker_cluster: Cluster, group: str
) -> None:
    topic = f"{group}-topic"
    async with (
        AdminClient(namesrv=two_broker_cluster.namesrv) as admin,
        Producer(f"{group}-producer", namesrv=two_broker_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        await admin.create_group(group)
        committed, other = (
            MessageQueue(topic, broker.name, 0) for broker in two_broker_cluster.brokers
        )
        for queue in (committed, other):
            await producer.send(Message(topic, b"x"), queue=queue)
        await commit(two_broker_cluster.namesrv, group, {committed: 1})

        progress = await admin.group_progress(group)

        lags = {each.queue: each.lag for each in progress.queues if each.queue.topic == topic}
        assert lags == {committed: 0, other: 1}
        await admin.delete_topic(topic)
