"""Failovers: a replica becomes the master of its broker name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.events import (
    ConsumerEvent,
    OffsetCorrected,
    PullFailed,
    QueueHeld,
    QueuesRevoked,
)
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import OffsetIllegalError, RequestTimeoutError, SendUnknownError
from rocketmq_aio.instance import routes as routes_module
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer import send_attempts as send_attempts_module
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.faults.pushing import group_of
from tests.unit.consumer.lite_pull_env import (
    GROUP,
    TOPIC,
    bodies,
    committed,
    consuming,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
MESSAGE = Message(TOPIC, b"x")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes in doubt are fetched every 20 ms instead of every second."""
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.02)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A broker with one replica; stopped servers vanish from the routes."""
    async with FakeCluster(replicas=1, topics={TOPIC: 1}) as cluster:
        cluster.name_server.keeps_lost_brokers = False
        yield cluster


def replica_of(cluster: FakeCluster) -> FakeBroker:
    (replica,) = cluster.broker.replicas
    assert isinstance(replica, FakeBroker)
    return replica


def truncate(cluster: FakeCluster, offset: int) -> None:
    """Delete the messages from *offset* on, as if they had not been copied to a new master."""
    store = cluster.broker.state.store
    lost = store.topics[TOPIC].queues[0].messages[offset:]
    del store.topics[TOPIC].queues[0].messages[offset:]
    store.log = [each for each in store.log if each not in lost]
    store.clock.advance(0.01)


@asynccontextmanager
async def noted(consumer: LitePullConsumer) -> AsyncIterator[list[ConsumerEvent]]:
    """The events of *consumer*."""
    events: list[ConsumerEvent] = []

    async def note() -> None:
        async for event in consumer.events():
            events.append(event)  # noqa: PERF401 - each at once

    task = asyncio.create_task(note())
    yield events
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def pulls_of(broker: FakeBroker) -> int:
    return sum(len(broker.requests_of(code)) for code in PULLS)


# --- routes ---------------------------------------------------------------------------------------


async def test_routes_are_fetched_while_the_master_is_silent(cluster: FakeCluster) -> None:
    async with Producer("sales", namesrv=cluster.namesrv) as producer:
        await producer.send(MESSAGE)
        old, new = cluster.broker, replica_of(cluster)
        old.freeze()
        with pytest.raises(SendUnknownError):
            await producer.send(MESSAGE, timeout_seconds=0.3)
        routes = producer.client.routes
        before = len(cluster.name_server.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        await cluster.name_server.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, before + 3)
        new.promote()
        await until(lambda: routes.master("broker-a") == new.address, "the new master")

        assert (await producer.send(MESSAGE)).ok
        old.resume()


async def test_routes_without_a_master_are_fetched_until_they_name_one(
    cluster: FakeCluster,
) -> None:
    async with consuming(cluster) as consumer:
        routes, new = consumer.client.routes, replica_of(cluster)
        cluster.broker.kill()
        await until(lambda: routes.master("broker-a") is None, "the route without a master")
        before = len(cluster.name_server.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        await cluster.name_server.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, before + 3)
        new.promote()

        await until(lambda: routes.master("broker-a") == new.address, "the new master")


async def test_a_commit_that_a_former_master_rejects_is_sent_to_the_new_one(
    cluster: FakeCluster,
) -> None:
    async def check(message: MessageExt) -> TransactionState:
        raise AssertionError(message)

    at = cluster.namesrv
    async with TransactionProducer("till", check=check, namesrv=at) as producer:
        async with producer.transaction(MESSAGE) as transaction:
            replica_of(cluster).promote()

        assert transaction.result is not None
        assert transaction.result.confirmed
        assert [each.body for each in cluster.broker.messages(TOPIC)] == [MESSAGE.body]


async def test_a_master_that_rejects_pulls_as_slaves_do_invalidates_the_route(
    cluster: FakeCluster,
) -> None:
    async with consuming(cluster) as consumer:
        new = replica_of(cluster)
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "0",
            "minOffset": "0",
            "maxOffset": "0",
        }
        rejected = Response(ResponseCode.PULL_RETRY_IMMEDIATELY, ext)
        cluster.faults.handle("pull", rejected, times=None)
        put(cluster, "wakes the held pull")
        new.promote()

        routes = consumer.client.routes
        await until(lambda: routes.master("broker-a") == new.address, "the new master")


async def test_a_send_to_a_silent_master_is_repeated_at_the_new_one(cluster: FakeCluster) -> None:
    async with Producer("sales", namesrv=cluster.namesrv) as producer:
        await producer.send(MESSAGE)
        cluster.broker.freeze()
        sending = asyncio.create_task(producer.send(MESSAGE))
        await asyncio.sleep(0)
        with pytest.raises(RequestTimeoutError):
            await producer.client.remoting.request(
                cluster.broker.address, GetMaxOffset(topic=TOPIC, queue_id=0), timeout=0.1
            )
        replica_of(cluster).promote()
        # Half of its time is left: the attempt ended because the route names another master.
        async with asyncio.timeout(25):
            assert (await sending).ok
        cluster.broker.resume()


async def test_a_send_leaves_time_for_the_replica_that_follows_a_silent_master(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_attempts_module, "LEAST_FAILOVER_SECONDS", 0.1)
    async with Producer("sales", namesrv=cluster.namesrv) as producer:
        await producer.send(MESSAGE)
        cluster.broker.freeze()
        replica_of(cluster).promote()

        assert (await producer.send(MESSAGE, timeout_seconds=5)).ok
        cluster.broker.resume()


# --- consumers ------------------------------------------------------------------------------------


async def test_a_pull_held_by_a_silent_master_is_sent_to_the_new_one(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        put(cluster, "one")
        await polled(consumer, 1)
        await until(lambda: pulls_of(cluster.broker) >= 2, "the long poll")
        cluster.broker.freeze()
        replica_of(cluster).promote()
        put(cluster, "two")
        await consumer.client.routes.refresh([TOPIC])

        assert bodies(await polled(consumer, 1)) == ["two"]
        cluster.broker.resume()


async def test_offsets_are_committed_again_at_the_new_master(cluster: FakeCluster) -> None:
    async with group_of(cluster) as group:
        consumer = await group.join()
        put(cluster, "one")
        await group.drained()
        old, new = cluster.broker, replica_of(cluster)
        before = len(new.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET))
        new.promote()
        cluster.broker.state.committed.clear()  # a replica copies offsets every few seconds
        await consumer.client.routes.refresh([TOPIC])
        await until(lambda: new.committed(GROUP, TOPIC, 0) == 1, "the commit")

        assert before == 0
        # A second one if a pull failed meanwhile.
        assert len(new.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)) <= 2
        assert old.is_running


# --- messages that the new master does not have ---------------------------------------------------


@pytest.mark.parametrize("lost", [1, 3])
async def test_messages_at_offsets_of_lost_ones_are_read(cluster: FakeCluster, lost: int) -> None:
    async with consuming(cluster) as consumer, noted(consumer) as events:
        put(cluster, *"abcd")
        assert bodies(await polled(consumer, 4)) == [*"abcd"]
        cluster.broker.kill()
        truncate(cluster, 4 - lost)
        put(cluster, *"ABCDEF")  # the log is longer than before: no offset is illegal
        replica_of(cluster).promote()

        assert bodies(await polled(consumer, 6)) == [*"ABCDEF"]
        (corrected,) = events_of(events)
        assert (corrected.requested, corrected.corrected) == (4, 4 - lost)
        assert "log of the master differs" in corrected.remark


async def test_push_consumers_read_messages_at_offsets_of_lost_ones(cluster: FakeCluster) -> None:
    got: list[str] = []
    events: list[ConsumerEvent] = []
    gate = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        got.append(message.body.decode())
        if got[-1] == "d":
            await gate.wait()

    client = ClientConfig(namesrv=cluster.namesrv)
    config = PushConfig(start_from="earliest", commit_interval_seconds=0.02)
    async with PushConsumer(
        GROUP, on_message=handle, client=client, config=config, on_event=events.append
    ) as consumer:
        await consumer.subscribe(TOPIC)
        put(cluster, *"abcd")
        await until(lambda: got == [*"abcd"], "the handlers")
        cluster.broker.kill()
        truncate(cluster, 2)
        put(cluster, *"ABCDEF")
        replica_of(cluster).promote()
        await until(lambda: "F" in got, "the new messages")
        gate.set()
        await committed(cluster, {0: 8})

    assert got == [*"abcdABCDEF"]
    (corrected,) = events_of(events)
    assert (corrected.requested, corrected.corrected) == (4, 2)


@pytest.mark.parametrize("count", [2, 6], ids=["shorter log", "longer log"])
async def test_messages_at_offsets_of_lost_ones_that_did_not_match_are_read(
    cluster: FakeCluster, count: int
) -> None:
    """The last message that was pulled, before them, is the same in both logs."""
    async with consuming(cluster, "wanted", commit_interval_seconds=0.02) as consumer:
        put(cluster, "a", tag="wanted")
        put(cluster, *"bcd", tag="other")
        assert bodies(await polled(consumer, 1)) == ["a"]
        await consumer.poll(0)
        await committed(cluster, {0: 4})
        cluster.broker.kill()
        truncate(cluster, 1)
        put(cluster, *"ABCDEF"[:count], tag="wanted")
        replica_of(cluster).promote()

        assert bodies(await polled(consumer, count)) == [*"ABCDEF"][:count]
        await consumer.poll(0)
        await committed(cluster, {0: 1 + count})


async def test_a_bounded_number_of_messages_that_did_not_match_is_read_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter may have excluded all messages of days."""
    monkeypatch.setattr("rocketmq_aio.consumer.pull_loop.log_comparison.RESCANNED_OFFSETS", 2)
    async with consuming(cluster, "wanted", commit_interval_seconds=0.02) as consumer:
        put(cluster, "a", tag="wanted")
        put(cluster, *"bcd", tag="other")
        await polled(consumer, 1)
        await consumer.poll(0)
        await committed(cluster, {0: 4})
        old, new = cluster.broker, replica_of(cluster)
        new.promote()
        old.kill()
        put(cluster, "e", tag="wanted")

        assert bodies(await polled(consumer, 1)) == ["e"]
        pulls = [each for code in PULLS for each in new.requests_of(code)]
        offsets = {int(each.ext_fields()["queueOffset"]) for each in pulls}
        assert offsets - {5} == {0, 2}  # the first compares the last message that matched


async def test_a_replica_that_is_the_master_before_a_route_says_so_has_its_log_compared(
    cluster: FakeCluster,
) -> None:
    """Its log may be long enough by then, with others at the offsets of lost messages."""
    async with consuming(cluster) as consumer:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        cluster.broker.kill()
        truncate(cluster, 2)
        await until(lambda: pulls_of(replica_of(cluster)) > 0, "a pull at the replica")
        put(cluster, *"ABCDEF")
        pulls = pulls_of(replica_of(cluster))
        await until(lambda: pulls_of(replica_of(cluster)) > pulls, "another pull")
        replica_of(cluster).promote()

        assert bodies(await polled(consumer, 6)) == [*"ABCDEF"]


async def test_messages_that_a_former_expression_excluded_are_not_read_after_a_failover(
    cluster: FakeCluster,
) -> None:
    async with consuming(cluster, "wanted") as consumer:
        put(cluster, "a", tag="wanted")
        put(cluster, *"bcd", tag="other")
        await polled(consumer, 1)
        await until(lambda: pulls_of(cluster.broker) >= 2, "the long poll")
        await consumer.subscribe(TOPIC, "*")
        cluster.broker.kill()
        replica_of(cluster).promote()
        put(cluster, "e")

        assert bodies(await polled(consumer, 1)) == ["e"]


async def test_push_consumers_read_messages_at_offsets_of_lost_ones_that_did_not_match(
    cluster: FakeCluster,
) -> None:
    got: list[str] = []

    async def handle(message: MessageExt) -> None:
        got.append(message.body.decode())

    client = ClientConfig(namesrv=cluster.namesrv)
    config = PushConfig(start_from="earliest", commit_interval_seconds=0.02)
    async with PushConsumer(GROUP, on_message=handle, client=client, config=config) as consumer:
        await consumer.subscribe(TOPIC, "wanted")
        put(cluster, "a", tag="wanted")
        put(cluster, *"bcd", tag="other")
        await committed(cluster, {0: 4})
        cluster.broker.kill()
        truncate(cluster, 1)
        put(cluster, *"ABCDEF", tag="wanted")
        replica_of(cluster).promote()
        await committed(cluster, {0: 7})

    assert got == [*"aABCDEF"]


async def test_a_log_that_ends_earlier_is_followed(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer, noted(consumer) as events:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        cluster.broker.kill()
        truncate(cluster, 2)
        replica_of(cluster).promote()
        await until(lambda: events_of(events), "the correction")
        put(cluster, "C")

        assert bodies(await polled(consumer, 1)) == ["C"]
        assert [each.corrected for each in events_of(events)] == [2]


async def test_the_same_log_is_read_on_without_an_event(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer, noted(consumer) as events:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        cluster.broker.kill()
        replica_of(cluster).promote()
        put(cluster, "e")

        assert bodies(await polled(consumer, 1)) == ["e"]
        assert events_of(events) == []


async def test_a_log_whose_start_was_deleted_is_read_on(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer, noted(consumer) as events:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        cluster.broker.kill()
        put(cluster, "e")
        cluster.broker.topics[TOPIC].queues[0].drop_before(4)
        replica_of(cluster).promote()

        assert bodies(await polled(consumer, 1)) == ["e"]
        assert events_of(events) == []


async def test_messages_stored_since_a_seek_are_read_after_a_failover_and_no_skipped_ones(
    cluster: FakeCluster,
) -> None:
    async with consuming(cluster) as consumer, noted(consumer) as events:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        put(cluster, *"efgh")
        await consumer.seek_to_end(queue())
        await until(lambda: pulls_of(cluster.broker) >= 4, "the long poll")
        cluster.broker.kill()
        truncate(cluster, 6)
        put(cluster, *"GH")
        replica_of(cluster).promote()
        put(cluster, "i")

        assert bodies(await polled(consumer, 3)) == ["G", "H", "i"]
        assert [each.corrected for each in events_of(events)] == [6]


async def test_lost_messages_hold_the_queue_if_offsets_may_not_be_corrected(
    cluster: FakeCluster,
) -> None:
    async with consuming(cluster, offset_illegal="error") as consumer, noted(consumer) as events:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        cluster.broker.kill()
        truncate(cluster, 2)
        put(cluster, *"ABCDEF")
        replica_of(cluster).promote()
        with pytest.raises(OffsetIllegalError, match="log of the master differs"):
            await polled(consumer, 1)
        (held,) = [each for each in events if isinstance(each, QueueHeld)]
        assert (held.requested, held.suggested) == (4, 2)
        await consumer.seek(queue(), held.suggested)

        assert bodies(await polled(consumer, 6)) == [*"ABCDEF"]


# --- topics that are created again ----------------------------------------------------------------


async def create_again(cluster: FakeCluster, consumer: LitePullConsumer) -> None:
    """Delete the topic, and create it when a pull has failed."""
    events = consumer.events()
    cluster.delete_topic(TOPIC)
    async with asyncio.timeout(15):
        async for event in events:
            if isinstance(event, PullFailed):
                break
    cluster.broker.state.store.clock.advance(0.01)
    cluster.create_topic(TOPIC, 1)


@pytest.mark.parametrize("count", [1, 4, 6], ids=lambda count: f"{count} messages")
async def test_messages_of_a_topic_that_is_created_again_are_read(
    cluster: FakeCluster, count: int
) -> None:
    async with consuming(cluster) as consumer:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        await create_again(cluster, consumer)
        put(cluster, *"ABCDEF"[:count])

        assert bodies(await polled(consumer, count)) == [*"ABCDEF"[:count]]


def replace_topic(cluster: FakeCluster, *bodies: str) -> None:
    """Delete the topic and create it with *bodies*, before any request can see that."""
    cluster.delete_topic(TOPIC)
    cluster.broker.state.store.clock.advance(0.01)
    cluster.create_topic(TOPIC, 1)
    put(cluster, *bodies)


async def test_a_log_that_begins_earlier_than_before_is_another_one(cluster: FakeCluster) -> None:
    put(cluster, *"abcd")
    cluster.broker.topics[TOPIC].queues[0].drop_before(2)
    async with consuming(cluster) as consumer:
        await polled(consumer, 2)
        await until(lambda: pulls_of(cluster.broker) >= 2, "the long poll")
        replace_topic(cluster, *"ABCDEF")

        assert bodies(await polled(consumer, 6)) == [*"ABCDEF"]


async def test_a_log_that_ends_earlier_than_before_is_another_one(cluster: FakeCluster) -> None:
    put(cluster, *"abcdefgh")
    async with consuming(cluster, pull_batch_size=1, pull_threshold_per_queue=1) as consumer:
        await until(lambda: pulls_of(cluster.broker) == 2, "a full cache")
        replace_topic(cluster, *"ABCDEF")

        assert bodies(await polled(consumer, 8)) == [*"ab", *"ABCDEF"]


async def delete_and_create(cluster: FakeCluster, consumer: LitePullConsumer) -> None:
    """Delete the topic, and create it when its queue is revoked."""
    cluster.delete_topic(TOPIC)
    for _ in range(routes_module.MISSES_BEFORE_GONE):
        await consumer.client.routes.refresh([TOPIC])
    await until(lambda: consumer.assignment() == [], "the revocation")
    cluster.broker.state.store.clock.advance(0.01)
    cluster.create_topic(TOPIC, 1)


async def test_offsets_of_a_deleted_topic_do_not_count_when_it_is_created_again(
    cluster: FakeCluster,
) -> None:
    """Brokers of 4.9.7 keep them."""
    async with consuming(cluster) as consumer:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        await delete_and_create(cluster, consumer)
        cluster.broker.commit(GROUP, TOPIC, 0, 4)
        put(cluster, *"ABCDEF")

        assert bodies(await polled(consumer, 6)) == [*"ABCDEF"]


async def test_offsets_of_a_topic_that_only_name_servers_forgot_count(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        await consumer.commit()
        with cluster.faults.refuse("route", ResponseCode.TOPIC_NOT_EXIST, topic=TOPIC, times=None):
            for _ in range(routes_module.MISSES_BEFORE_GONE):
                await consumer.client.routes.refresh([TOPIC])
            await until(lambda: consumer.assignment() == [], "the revocation")
        put(cluster, "e")

        assert bodies(await polled(consumer, 1)) == ["e"]


async def test_a_long_outage_of_the_only_broker_ends_no_assignment(cluster: FakeCluster) -> None:
    """Name servers forget its topics at once; another member cannot have the queues either."""
    async with consuming(cluster) as consumer, noted(consumer) as events:
        put(cluster, *"abcd")
        await polled(consumer, 4)
        held = consumer.assignment()
        await cluster.broker.stop()
        cluster.name_server.unregister(cluster.broker)
        routes = consumer.client.routes
        await until(lambda: routes._suspects, "a failure")
        for _ in range(routes_module.MISSES_BEFORE_GONE + 1):
            await routes.refresh([TOPIC])
        assert routes.known(TOPIC) is not None
        put(cluster, "e")
        await cluster.broker.start()
        cluster.name_server.register(cluster.broker)

        assert bodies(await polled(consumer, 1)) == ["e"]
        assert consumer.assignment() == held
        assert [each for each in events if isinstance(each, QueuesRevoked)] == []


async def test_offsets_of_other_members_do_not_count_when_their_topic_is_created_again(
    cluster: FakeCluster,
) -> None:
    put(cluster, *"abcd")
    cluster.broker.commit(GROUP, TOPIC, 0, 4)
    async with consuming(cluster) as consumer:
        await delete_and_create(cluster, consumer)
        cluster.broker.commit(GROUP, TOPIC, 0, 4)
        put(cluster, *"ABCDEF")

        assert bodies(await polled(consumer, 6)) == [*"ABCDEF"]


@pytest.mark.parametrize("stored", ["CDE", "CDEFGHIJ"], ids=["shorter", "longer"])
async def test_messages_stored_since_a_log_was_cut_are_read(
    cluster: FakeCluster, stored: str
) -> None:
    """A machine that fails loses what is not on disk; the log ends before the position, or not."""
    async with consuming(cluster) as consumer, noted(consumer) as events:
        put(cluster, *"abcdefgh")
        await polled(consumer, 8)
        await cluster.broker.stop()
        truncate(cluster, 2)
        put(cluster, *stored)
        await cluster.broker.start()

        assert bodies(await polled(consumer, len(stored))) == [*stored]
        assert [each.corrected for each in events_of(events)] == [2]


def events_of(events: list[ConsumerEvent]) -> list[OffsetCorrected]:
    return [each for each in events if isinstance(each, OffsetCorrected)]
