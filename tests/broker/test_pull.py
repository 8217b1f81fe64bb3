"""PullConsumer on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullResult, PullStatus
from rocketmq_aio.errors import SubscriptionError
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import bodies, in_thread, is_before, numbers, send
from tests.unit.remoting.until import succeeds, until_done


@pytest_asyncio.fixture
async def puller(namesrv: str, group: str) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(group, namesrv=namesrv) as consumer:
        yield consumer


async def stored(consumer: PullConsumer, queue: MessageQueue, count: int) -> None:
    """Wait until the queue has *count* messages: brokers acknowledge earlier."""

    async def shown() -> bool:
        return await consumer.max_offset(queue) >= count

    await until_done(shown, f"{count} messages in {queue}", 60)


async def read_on(consumer: PullConsumer, queue: MessageQueue, offset: int) -> list[PullResult]:
    """Return all messages from *offset* to the end."""
    found: list[PullResult] = []
    while (result := await consumer.pull(queue, offset)).status is PullStatus.FOUND:
        found.append(result)
        offset = result.next_offset
    return found


async def test_a_queue_is_read_from_any_offset_to_its_end(
    puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(70), queue=queue)
    await stored(puller, queue, 70)
    found = await read_on(puller, queue, 3)
    end = await puller.pull(queue, 70)

    assert [each for result in found for each in bodies(result.messages)] == numbers(67, first=3)
    assert {(result.min_offset, result.max_offset) for result in found} == {(0, 70)}
    assert (end.status, end.next_offset, end.messages) == (PullStatus.NO_NEW, 70, [])
    assert len((await puller.pull(queue, 0, 5)).messages) == 5


async def test_a_waiting_pull_returns_at_the_first_message(
    puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue
) -> None:
    waiting = asyncio.ensure_future(puller.pull(queue, 0, wait_seconds=60))
    assert (await puller.pull(queue, 0)).status is PullStatus.NO_NEW  # the other one does not wait
    await send(namesrv, topic, ["late"], queue=queue)

    assert bodies((await waiting).messages) == ["late"]


async def test_illegal_offsets_return_the_nearest_offset(
    puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(4), queue=queue)
    await stored(puller, queue, 4)
    result = await puller.pull(queue, 99)

    assert (result.status, result.messages) == (PullStatus.OFFSET_ILLEGAL, [])
    assert (result.next_offset, result.max_offset) == (4, 4)


async def test_only_messages_that_match_the_selector_are_returned(
    puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue
) -> None:
    for body, tag in (("one", "Aa"), ("two", "BB"), ("three", "other")):  # Aa and BB: one hash
        await send(namesrv, topic, [body], queue=queue, tags=tag)
    await stored(puller, queue, 3)
    tagged = await puller.pull(queue, 0, selector="Aa || more")
    none = await puller.pull(queue, 2, selector="Aa")
    by_sql = await puller.pull(queue, 0, selector=MessageSelector.by_sql("TAGS = 'other'"))
    raw = await puller.pull_raw(queue, 0, selector="Aa")

    assert (bodies(tagged.messages), tagged.next_offset) == (["one"], 3)
    assert (none.status, none.next_offset) == (PullStatus.NO_MATCH, 3)
    assert bodies(by_sql.messages) == ["three"]
    assert bodies(decode_messages(raw.body, queue)[0]) == ["one", "two"]  # as the broker has it
    with pytest.raises(SubscriptionError):
        await puller.pull(queue, 0, selector=MessageSelector.by_sql("TAGS = = 'other'"))


async def test_a_raw_pull_may_hint_at_a_size(
    puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, ["x" * 4000] * 8, queue=queue)
    await stored(puller, queue, 8)
    raw = await puller.pull_raw(queue, 0, max_bytes=10_000)
    messages, fault = decode_messages(raw.body, queue)

    assert fault is None
    assert len(messages) > 1
    assert (raw.next_offset, raw.offset_delta) == (len(messages), 0)


async def test_committed_offsets_of_the_group_are_returned(
    rocketmq_cluster: Cluster, puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(4), queue=queue)
    await stored(puller, queue, 4)
    await puller.pull(queue, 4)  # registers the group
    now = datetime.now(UTC)
    for offset in (4, 1):
        await puller.commit(queue, offset)
        assert await puller.committed(queue) == offset

    assert queue in await puller.message_queues(topic)
    assert await puller.min_offset(queue) == 0
    assert await puller.offset_for_time(queue, now - timedelta(hours=1)) == 0
    # Older brokers stop at the last message.
    end = 3 if is_before(rocketmq_cluster.version, "5.1") else 4
    assert await puller.offset_for_time(queue, now + timedelta(hours=1)) == end


async def test_send_back_stores_in_the_retry_topic(
    puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue, group: str
) -> None:
    await send(namesrv, topic, ["again"], queue=queue, tags="a")
    await stored(puller, queue, 1)
    (first,) = (await puller.pull(queue, 0)).messages
    await puller.send_back(first, 1)
    retries = MessageQueue(f"%RETRY%{group}", queue.broker_name, 0)
    await until_done(lambda: succeeds(puller.message_queues(retries.topic)), "the topic", 60)
    await stored(puller, retries, 1)
    (second,) = (await puller.pull(retries, 0)).messages

    assert (second.body, second.tags) == (b"again", "a")
    assert (second.reconsume_times, second.property("RETRY_TOPIC")) == (1, topic)


async def test_a_pull_consumer_is_not_a_member_of_its_group(
    puller: PullConsumer, namesrv: str, topic: str, queue: MessageQueue, group: str
) -> None:
    await send(namesrv, topic, ["one"], queue=queue)
    await stored(puller, queue, 1)
    await puller.pull(queue, 0)
    await puller.client.heartbeats.send_all()

    assert (
        await puller.client.broker.consumer_ids_at(group, puller.client.broker.any_broker(topic))
        == []
    )


async def test_a_reset_by_the_admin_tool_changes_the_commit_and_is_returned_once(
    rocketmq_cluster: Cluster,
    puller: PullConsumer,
    namesrv: str,
    topic: str,
    queue: MessageQueue,
    group: str,
) -> None:
    await send(namesrv, topic, numbers(4), queue=queue)
    await stored(puller, queue, 4)
    await puller.pull(queue, 4)  # registers the group
    await puller.commit(queue, 4)
    arguments = ("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-n", namesrv)
    await in_thread(rocketmq_cluster.mqadmin, *arguments)
    committed = await puller.committed(queue)
    first, second = [await puller.pull(queue, 4) for _ in range(2)]
    reset = 0, PullStatus.OFFSET_RESET, 0
    if is_before(rocketmq_cluster.version, "5.2"):  # resets through members, and there are none
        reset = 4, PullStatus.NO_NEW, 4

    assert (committed, first.status, first.next_offset) == reset
    assert (second.status, second.next_offset) == (PullStatus.NO_NEW, 4)
