"""LitePullConsumer on a real broker, 4.9.7 and 5.5.0."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from rocketmq_aio.admin.client import AdminClient
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.common.events import OffsetCorrected, PullFailed
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull_loop.log_comparison import HELD_SECONDS, SHORT_HOLD_SECONDS
from rocketmq_aio.errors import OffsetIllegalError, SubscriptionError
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import (
    POLL_SECONDS,
    QUEUES,
    bodies,
    consumer_of,
    consuming,
    in_thread,
    is_5,
    numbers,
    polled,
    send,
)
from tests.unit.remoting.until import until, until_done

# --- reading -------------------------------------------------------------------------------------


async def test_every_message_is_returned_once_and_in_order(
    namesrv: str, topic: str, group: str
) -> None:
    async with consuming(namesrv, group, topic) as consumer:
        where = await send(namesrv, topic, numbers(200))
        taken = await polled(consumer, 200, max_messages=30)
        assert await consumer.poll(0.1) == []

    expected: dict[MessageQueue, list[str]] = {}
    for body, each in zip(numbers(200), where, strict=True):
        expected.setdefault(each, []).append(body)
    found: dict[MessageQueue, list[str]] = {}
    for message in taken:
        found.setdefault(message.queue, []).append(message.body.decode())
    assert found == expected


async def test_messages_have_the_sent_fields(namesrv: str, topic: str, group: str) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    await send(namesrv, topic, ["hello"], tags="new", keys=["1", "2"], properties={"a": "b"})
    async with consuming(namesrv, group, topic) as consumer:
        [message] = await polled(consumer, 1)

    assert (message.topic, message.body, message.tags) == (topic, b"hello", "new")
    assert (message.keys, message.property("a")) == (("1", "2"), "b")
    assert (message.queue_offset, message.reconsume_times) == (0, 0)
    assert before < message.born_time <= message.store_time + timedelta(minutes=1)


async def test_iteration_returns_at_the_first_message(namesrv: str, topic: str, group: str) -> None:
    async with consuming(namesrv, group, topic) as consumer:
        await polled_once(consumer)
        reading = asyncio.ensure_future(anext(aiter(consumer)))
        await send(namesrv, topic, ["at once"])
        loop = asyncio.get_running_loop()
        began = loop.time()
        message = await asyncio.wait_for(reading, 60)

    assert message.body == b"at once"
    assert loop.time() - began < 4  # by default a broker checks after 5


async def polled_once(consumer: LitePullConsumer) -> None:
    """Wait until the broker holds the pulls of all queues."""
    assert await consumer.poll(0.1) == []


async def test_committed_offsets_are_stored_at_the_broker(
    namesrv: str, topic: str, group: str
) -> None:
    await send(namesrv, topic, numbers(40))
    async with consuming(namesrv, group, topic) as consumer:
        first = await polled(consumer, 25, max_messages=5)
    async with consuming(namesrv, group, topic) as consumer:
        rest = await polled(consumer, 40 - len(first))
        assert await consumer.poll(0.1) == []

    assert sorted(map(int, bodies(first + rest))) == list(range(40))


async def test_a_commit_is_visible_to_other_clients(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(10), queue=queue)
    async with (
        consuming(namesrv, group, topic, auto_commit=False) as consumer,
        PullConsumer(group, namesrv=namesrv) as observer,  # takes no queues of the group
    ):
        assert await consumer.committed(queue) in (None, 0)  # 4.9 returns 0 for a new queue
        await polled(consumer, 10)
        await consumer.commit({queue: 7})
        assert await observer.committed(queue) == 7
        await consumer.commit()
        assert await observer.committed(queue) == 10
        await consumer.commit({queue: 2})
        assert await observer.committed(queue) == 2


# --- filters -------------------------------------------------------------------------------------


async def test_tags_of_equal_hash_are_distinguished(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    for tag in ("Aa", "BB", "Aa", "C"):
        await send(namesrv, topic, [tag], queue=queue, tags=tag)
    await send(namesrv, topic, ["none"], queue=queue)
    async with consuming(namesrv, group, topic, "Aa || D") as consumer:
        assert bodies(await polled(consumer, 2)) == ["Aa", "Aa"]
        assert await consumer.poll(0.2) == []
        assert await consumer.position(queue) == 5
        assert sum((await consumer.lag()).values()) == 0


async def test_sql_selects_by_properties(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    for price in (1, 5, 9):
        await send(namesrv, topic, [str(price)], queue=queue, properties={"price": str(price)})
    selector = MessageSelector.by_sql("price IS NOT NULL AND price > 3")
    async with consuming(namesrv, group, topic, selector) as consumer:
        assert bodies(await polled(consumer, 2)) == ["5", "9"]


@pytest.mark.parametrize("expression", ["price >", "((", "price BETWEEN 1"])
async def test_invalid_sql_is_refused_at_subscribe(
    namesrv: str, topic: str, group: str, expression: str
) -> None:
    await send(namesrv, topic, numbers(3))
    async with consumer_of(namesrv, group) as consumer:
        with pytest.raises(SubscriptionError):
            await consumer.subscribe(topic, MessageSelector.by_sql(expression))
        assert await consumer.poll(0.3) == []


async def test_the_expression_can_be_changed_while_reading(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    for number in range(6):
        tag = "even" if number % 2 == 0 else "odd"
        await send(namesrv, topic, [str(number)], queue=queue, tags=tag)
    async with consuming(namesrv, group, topic, "even") as consumer:
        first = await polled(consumer, 1, max_messages=1)
        await consumer.subscribe(topic, "odd")
        rest = await polled(consumer, 3)

    assert bodies(first + rest) == ["0", "1", "3", "5"]


# --- start position ------------------------------------------------------------------------------


async def test_a_new_group_starts_at_start_from(
    rocketmq_cluster: Cluster, namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(5), queue=queue)
    # For a queue that still has its first message, a broker before 5.0 returns offset 0 for a
    # new group, without a way to change that: all messages are read.
    young = 0 if not is_5(rocketmq_cluster) else None
    hour = timedelta(hours=1)
    expected = {"earliest": 0, "latest": 5 if young is None else young, datetime.now(UTC) - hour: 0}
    for number, (start_from, position) in enumerate(expected.items()):
        name = f"{group}-{number}"
        async with consuming(namesrv, name, topic, start_from=start_from) as consumer:
            assert await consumer.position(queue) == position


async def test_latest_skips_old_messages_and_misses_no_new_ones(
    rocketmq_cluster: Cluster, namesrv: str, topic: str, group: str
) -> None:
    await send(namesrv, topic, numbers(8))
    history = 0 if is_5(rocketmq_cluster) else 8
    async with consuming(namesrv, group, topic, start_from="latest") as consumer:
        await send(namesrv, topic, ["new"])
        taken = bodies(await polled(consumer, history + 1))
    assert sorted(taken) == [*numbers(history), "new"]


async def test_a_topic_created_later_is_read_soon(
    rocketmq_cluster: Cluster, namesrv: str, topic: str, group: str
) -> None:
    later = f"{topic[:100]}-later"
    async with consumer_of(namesrv, group, start_from="latest") as consumer:
        await consumer.subscribe(later)
        await in_thread(rocketmq_cluster.create_topic, later)
        loop = asyncio.get_running_loop()
        created = loop.time()
        await send(namesrv, later, ["first"])

        assert bodies(await polled(consumer, 1)) == ["first"]
        assert loop.time() - created < 15  # routes are refreshed every 30
    await in_thread(rocketmq_cluster.delete_topic, later)


async def test_a_queue_added_later_is_read_from_its_beginning(
    rocketmq_cluster: Cluster, namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    client = ClientConfig(namesrv=namesrv, route_refresh_interval_seconds=0.2)
    config = LitePullConfig(start_from="latest")
    async with LitePullConsumer(group, client=client, config=config) as consumer:
        await consumer.subscribe(topic)
        await consumer.ready(10)
        await in_thread(lambda: rocketmq_cluster.create_topic(topic, queues=QUEUES + 2))
        added = MessageQueue(topic, queue.broker_name, QUEUES + 1)
        await send(namesrv, topic, ["in a new queue"], queue=added)

        assert bodies(await polled(consumer, 1)) == ["in a new queue"]
        assert len(consumer.assignment()) == QUEUES + 2


# --- positions -----------------------------------------------------------------------------------


async def test_seeks_move_the_position(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(100), queue=queue)
    async with consuming(namesrv, group, topic) as consumer:
        await polled(consumer, 100)
        for target in (97, 3, 50):
            await consumer.seek(queue, target)
            taken = await polled(consumer, 100 - target)
            assert bodies(taken) == numbers(100 - target, first=target)
        await consumer.seek_to_begin(queue)
        assert bodies(await polled(consumer, 1, max_messages=1)) == ["0"]
        await consumer.seek_to_end(queue)
        await send(namesrv, topic, ["new"], queue=queue)
        assert bodies(await polled(consumer, 1)) == ["new"]


async def test_offset_for_time_and_lag(
    rocketmq_cluster: Cluster, namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(10), queue=queue)
    async with consuming(namesrv, group, topic) as consumer:

        async def has_lag(lag: int) -> bool:  # brokers index messages a moment after the send
            return (await consumer.lag())[queue] == lag

        await until_done(lambda: has_lag(10), "the lag")
        hour = timedelta(hours=1)
        assert await consumer.offset_for_time(queue, datetime.now(UTC) - hour) == 0
        # 4.9 never returns an offset after the last message.
        end = 10 if is_5(rocketmq_cluster) else 9
        assert await consumer.offset_for_time(queue, datetime.now(UTC) + hour) == end
        await polled(consumer, 4, max_messages=4)
        assert (await consumer.lag())[queue] == 6


async def test_a_paused_queue_returns_no_messages(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(10), queue=queue)
    async with consuming(namesrv, group, topic) as consumer:
        await polled(consumer, 2, max_messages=2)
        consumer.pause([queue])
        assert await consumer.poll(0.2) == []
        consumer.resume([queue])
        assert bodies(await polled(consumer, 8)) == numbers(8, first=2)


async def test_queues_can_be_assigned(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, ["of this one"], queue=queue)
    await send(namesrv, topic, ["of another"], queue=MessageQueue(topic, queue.broker_name, 1))
    async with consumer_of(namesrv, group) as consumer:
        queues = await consumer.message_queues(topic)
        assert len(queues) == QUEUES
        await consumer.assign([queue])
        assert bodies(await polled(consumer, 1)) == ["of this one"]
        assert await consumer.poll(0.2) == []


async def test_an_assignment_is_replaced_while_reading(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    other = MessageQueue(topic, queue.broker_name, 1)
    async with consumer_of(namesrv, group) as consumer:
        await consumer.assign([queue])
        await send(namesrv, topic, ["first"], queue=queue)
        assert bodies(await polled(consumer, 1)) == ["first"]
        await consumer.commit()
        await consumer.assign([other])
        await send(namesrv, topic, ["second"], queue=queue)
        await send(namesrv, topic, ["of another"], queue=other)
        assert bodies(await polled(consumer, 1)) == ["of another"]
        assert await consumer.poll(0.2) == []
        await consumer.assign([queue, other])
        assert bodies(await polled(consumer, 1)) == ["second"]


async def test_queues_of_a_topic_are_watched_with_an_assignment(
    rocketmq_cluster: Cluster, namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    seen: list[int] = []
    async with consumer_of(namesrv, group, topic_check_interval_seconds=0.2) as consumer:
        await consumer.assign([queue])
        await consumer.listen_queues(topic, lambda _topic, queues: seen.append(len(queues)))
        await in_thread(lambda: rocketmq_cluster.create_topic(topic, queues=QUEUES + 1))
        await until(lambda: seen == [QUEUES + 1], "the new queue")

        assert consumer.assignment() == [queue]


async def test_a_commit_of_one_queue_leaves_the_others_alone(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    other = MessageQueue(topic, queue.broker_name, 1)
    async with consuming(namesrv, group, topic, auto_commit=False) as consumer:
        for each in (queue, other):
            await send(namesrv, topic, numbers(5), queue=each)
        await polled(consumer, 10)
        await consumer.commit([other])
        await consumer.commit({queue: 2})
        before = [await consumer.committed(each) for each in (queue, other)]
        await consumer.commit([queue])
        after = [await consumer.committed(each) for each in (queue, other)]

    assert before == [2, 5]
    assert after == [5, 5]


async def test_a_topic_may_be_unsubscribed_and_subscribed_again_while_reading(
    namesrv: str, topic: str, group: str
) -> None:
    async with consuming(namesrv, group, topic) as consumer:
        sending = asyncio.ensure_future(send(namesrv, topic, numbers(200)))
        taken: list[str] = []
        for _ in range(5):
            taken += bodies(await polled(consumer, 10, max_messages=10))
            await consumer.commit()
            await consumer.unsubscribe(topic)
            await consumer.subscribe(topic)
        await sending
        taken += bodies(await polled(consumer, 200 - len(taken)))
        assert await consumer.poll(0.2) == []

    assert sorted(taken, key=int) == numbers(200)


async def test_an_illegal_offset_is_corrected_with_an_event(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(5), queue=queue)
    expected = {"broker": 5, "latest": 5, "earliest": 0}
    for policy, corrected in expected.items():
        name = f"{group}-{policy}"
        async with consumer_of(namesrv, name) as consumer:
            await consumer.assign([queue])
            await consumer.commit({queue: 10**6})
        async with consumer_of(namesrv, name, offset_illegal=policy) as consumer:
            events = consumer.events()
            await consumer.assign([queue])
            event = await next_correction(events)
            assert (event.requested, event.corrected) == (10**6, corrected)
            assert event.policy == policy
            if corrected == 0:
                assert bodies(await polled(consumer, 5)) == numbers(5)


async def next_correction(events: object) -> OffsetCorrected:
    async with asyncio.timeout(10):
        async for event in events:  # type: ignore[attr-defined]
            if isinstance(event, OffsetCorrected):
                return event
    raise AssertionError("the consumer was closed")


async def test_an_illegal_offset_can_be_an_error(
    namesrv: str, topic: str, group: str, queue: MessageQueue
) -> None:
    await send(namesrv, topic, numbers(5), queue=queue)
    async with consumer_of(namesrv, group) as consumer:
        await consumer.assign([queue])
        await consumer.commit({queue: 10**6})
    async with consumer_of(namesrv, group, offset_illegal="error") as consumer:
        await consumer.assign([queue])
        with pytest.raises(OffsetIllegalError):
            await consumer.poll(10)
        with pytest.raises(OffsetIllegalError):
            await consumer.poll(0)
        await consumer.seek_to_begin(queue)
        assert bodies(await polled(consumer, 5)) == numbers(5)


# --- topics that are created again ---------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 9], ids=["fewer messages", "more messages"])
async def test_messages_of_a_topic_that_is_created_again_are_read(
    namesrv: str, topic: str, group: str, count: int
) -> None:
    """The broker would continue in the middle of the new log, or at its end (5.5.0)."""
    again = f"{topic}-again"
    async with AdminClient(namesrv=namesrv) as admin, consumer_of(namesrv, group) as consumer:
        await admin.topics.create(again, queues=1)
        await consumer.subscribe(again)
        await send(namesrv, again, numbers(5))
        await polled(consumer, 5)
        events = consumer.events()
        await admin.topics.delete(again)
        async with asyncio.timeout(60):
            async for event in events:
                if isinstance(event, PullFailed):
                    break
        await admin.topics.create(again, queues=1)
        await send(namesrv, again, numbers(count))
        taken = await polled(consumer, count)
        assert await consumer.poll(1) == []
        await admin.topics.delete(again)

    assert bodies(taken) == numbers(count)


@pytest.mark.parametrize(
    ("seeks", "held_seconds"),
    [(False, 1.5 * HELD_SECONDS), (True, 1.5 * HELD_SECONDS), (False, 2 * SHORT_HOLD_SECONDS)],
    ids=["alone", "after a seek", "soon"],
)
@pytest.mark.parametrize("count", [3, 5, 9], ids=["fewer", "as many", "more"])
async def test_a_topic_created_again_while_a_pull_is_held_is_read_from_its_beginning(
    namesrv: str, topic: str, group: str, count: int, seeks: bool, held_seconds: float
) -> None:
    """The client sees no failed pull, and the broker continues in the middle of the new log."""
    again = f"{topic}-again"
    reading = consumer_of(namesrv, group, long_poll_seconds=3.0)
    async with AdminClient(namesrv=namesrv) as admin, reading as consumer:
        await admin.topics.create(again, queues=1)
        await consumer.subscribe(again)
        await send(namesrv, again, numbers(5))
        await polled(consumer, 5)
        if seeks:
            await consumer.seek_to_end(MessageQueue(again, "broker-a", 0))
        await asyncio.sleep(held_seconds)
        await admin.topics.delete(again)
        await admin.topics.create(again, queues=1)
        await send(namesrv, again, new := [f"new {number}" for number in range(count)])
        taken: set[str] = set()
        async with asyncio.timeout(POLL_SECONDS):
            while len(taken) < count:
                taken |= set(bodies(await consumer.poll(1)))
        await admin.topics.delete(again)

    assert taken == set(new)


async def test_offsets_of_a_deleted_topic_do_not_count_when_it_is_created_again(
    namesrv: str, topic: str, group: str
) -> None:
    """Brokers of 4.9.7 keep them; this member has read nothing of the deleted topic."""
    again = f"{topic}-again"
    client = ClientConfig(namesrv=namesrv, route_refresh_interval_seconds=0.2)
    config = LitePullConfig(start_from="earliest")
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.topics.create(again, queues=1)
        await send(namesrv, again, numbers(5))
        async with consuming(namesrv, group, again) as former:
            await polled(former, 5)
        async with LitePullConsumer(group, client=client, config=config) as consumer:
            await consumer.subscribe(again)
            await consumer.ready(POLL_SECONDS)
            await admin.topics.delete(again)
            await until(lambda: consumer.assignment() == [], "the revocation")
            await admin.topics.create(again, queues=1)
            await send(namesrv, again, numbers(9))
            taken = await polled(consumer, 9)
        await admin.topics.delete(again)

    assert bodies(taken) == numbers(9)
