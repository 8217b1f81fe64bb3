"""PullConsumer on a scripted cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from anyio import wait_all_tasks_blocked

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullStatus
from rocketmq_aio.embedded.responses import Close, Outcome, Response
from rocketmq_aio.errors import (
    BusyError,
    ClosedError,
    CodecError,
    CommitError,
    ConfigError,
    NotRunningError,
    RocketMQError,
    RouteNotFoundError,
    SubscriptionError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.pull import PullMessage
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, bodies, numbers, put
from tests.unit.consumer.parts import message, queue
from tests.unit.consumer.puller_env import found, moved
from tests.unit.remoting.until import until
from tests.unit.stored import Stored

GROUP = "tools"
QUICK = 0.001


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={TOPIC: 4}) as cluster:
        cluster.broker.create_group(GROUP)
        yield cluster


@pytest_asyncio.fixture
async def puller(cluster: FakeCluster) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(GROUP, namesrv=cluster.namesrv) as consumer:
        yield consumer


def pulls(cluster: FakeCluster) -> list[PullMessage]:
    """Return the headers of the pulls."""
    requests: list[Command] = cluster.broker.requests_of(RequestCode.PULL_MESSAGE)
    return [read_header(command, PullMessage) for command in requests]


async def test_a_queue_is_read_from_offset_to_offset(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, *numbers(50))
    first = await puller.pull(queue(), 0)
    second = await puller.pull(queue(), first.next_offset, 10)
    back = await puller.pull(queue(), 3, 2)

    assert (first.status, bodies(first.messages)) == (PullStatus.FOUND, numbers(32))
    assert (first.next_offset, first.min_offset, first.max_offset) == (32, 0, 50)
    assert bodies(second.messages) == numbers(10, first=32)
    assert bodies(back.messages) == ["3", "4"]


async def test_at_its_end_a_queue_has_nothing_new(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, *numbers(5))
    result = await puller.pull(queue(), 5)

    assert (result.status, result.messages, result.next_offset) == (PullStatus.NO_NEW, [], 5)
    assert pulls(cluster)[0].suspend_timeout_millis == 0


async def test_waiting_ends_with_the_first_message(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    waiting = asyncio.ensure_future(puller.pull(queue(), 0, wait_seconds=60))
    await cluster.broker.wait_for(RequestCode.PULL_MESSAGE)
    assert not waiting.done()
    put(cluster, "late")

    assert bodies((await waiting).messages) == ["late"]
    assert pulls(cluster)[0].suspend_timeout_millis == 60_000


async def test_waiting_ends_without_one_after_its_time(puller: PullConsumer) -> None:
    result = await puller.pull(queue(), 0, wait_seconds=QUICK)

    assert result.status is PullStatus.NO_NEW


async def test_an_offset_that_does_not_exist_is_a_result(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, *numbers(5))
    result = await puller.pull(queue(), 99)

    assert result.status is PullStatus.OFFSET_ILLEGAL
    assert (result.messages, result.next_offset, result.max_offset) == ([], 5, 5)


async def test_a_reset_by_an_administrator_is_returned_as_status(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    response = moved(3)
    cluster.faults.handle(
        RequestCode.PULL_MESSAGE, Response(response.code, response.ext, remark="OFFSET_RESET")
    )
    result = await puller.pull(queue(), 9)

    assert (result.status, result.next_offset) == (PullStatus.OFFSET_RESET, 3)


async def test_only_wanted_tags_are_returned(cluster: FakeCluster, puller: PullConsumer) -> None:
    put(cluster, "a", tag="Aa")
    put(cluster, "b", tag="BB")  # the same hash, so the broker sends it
    put(cluster, "c", tag="other")
    both = await puller.pull(queue(), 0, selector="Aa || more")
    none = await puller.pull(queue(), 1, 1, selector="Aa")
    late = await puller.pull(queue(), 2, selector=MessageSelector.by_tag("Aa"))

    assert (bodies(both.messages), both.next_offset) == (["a"], 3)
    for result, next_offset in ((none, 2), (late, 3)):
        assert (result.status, result.messages) == (PullStatus.NO_MATCH, [])
        assert result.next_offset == next_offset


async def test_sql_is_checked_once_and_evaluated_by_the_broker(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, *numbers(4), tag="a")
    put(cluster, "other", tag="b")
    for _ in range(3):
        result = await puller.pull(queue(), 0, selector=MessageSelector.by_sql("TAGS = 'a'"))
        assert len(result.messages) == 4

    assert len(cluster.broker.requests_of(RequestCode.CHECK_CLIENT_CONFIG)) == 1
    assert pulls(cluster)[0].expression_type == "SQL92"


async def test_sql_that_no_broker_accepts_is_not_pulled_with(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    refused = Response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark="no expression")
    cluster.faults.handle(RequestCode.CHECK_CLIENT_CONFIG, refused)
    with pytest.raises(SubscriptionError):
        await puller.pull(queue(), 0, selector=MessageSelector.by_sql("a >"))

    assert pulls(cluster) == []


async def test_a_raw_pull_returns_the_stored_records(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, *numbers(5), tag="new")
    raw = await puller.pull_raw(queue(), 1, 3, "new", max_bytes=65_536)
    messages, fault = decode_messages(raw.body, queue())

    assert fault is None
    assert bodies(messages) == ["1", "2", "3"]
    assert (raw.status, raw.next_offset, raw.offset_delta) == (PullStatus.FOUND, 4, 0)
    assert (raw.min_offset, raw.max_offset) == (0, 5)
    assert pulls(cluster)[0].max_msg_bytes == 65_536


async def test_the_offset_delta_of_a_static_topic_is_added(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    record = Stored(topic=TOPIC.encode(), queue_offset=7).to_bytes()
    response = found(108, record)
    shifted = Response(response.code, {**response.ext, "offsetDelta": "100"}, response.body)
    cluster.faults.handle(RequestCode.PULL_MESSAGE, shifted, times=2)
    raw = await puller.pull_raw(queue(), 107)
    result = await puller.pull(queue(), 107)

    assert (raw.body, raw.offset_delta, raw.next_offset) == (record, 100, 108)
    assert [each.queue_offset for each in result.messages] == [107]


async def test_messages_before_an_unreadable_one_are_returned_first(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    good = Stored(topic=TOPIC.encode(), queue_offset=7).to_bytes()
    bad = Stored(topic=TOPIC.encode(), queue_offset=8).to_bytes()[:-3]
    cluster.faults.handle(RequestCode.PULL_MESSAGE, found(9, good + bad))
    result = await puller.pull(queue(), 7)
    cluster.faults.handle(RequestCode.PULL_MESSAGE, found(9, bad))

    assert (len(result.messages), result.next_offset) == (1, 8)
    with pytest.raises(CodecError):
        await puller.pull(queue(), result.next_offset)


async def test_an_earlier_next_offset_is_an_error(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    record = Stored(topic=TOPIC.encode(), queue_offset=7).to_bytes()
    cluster.faults.handle(RequestCode.PULL_MESSAGE, found(3, record))
    with pytest.raises(CodecError, match="nextBeginOffset"):
        await puller.pull(queue(), 7)


async def test_an_error_of_the_broker_is_raised(cluster: FakeCluster, puller: PullConsumer) -> None:
    cluster.faults.refuse(RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_BUSY, "busy")
    with pytest.raises(BusyError):
        await puller.pull(queue(), 0)


async def test_a_topic_that_does_not_exist_is_an_error(puller: PullConsumer) -> None:
    with pytest.raises(RouteNotFoundError):
        await puller.pull(queue(topic="nowhere"), 0)
    with pytest.raises(RouteNotFoundError):
        await puller.message_queues("nowhere")
    assert list(puller.topics()) == []


def note_replicas(puller: PullConsumer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list in which the broker ids of pulls will be noted."""
    requests: list[int] = []
    replica_of = puller.client.routes.replica_of

    def note(queue: MessageQueue, broker_id: int) -> tuple[str, int] | None:
        requests.append(broker_id)
        return replica_of(queue, broker_id)

    monkeypatch.setattr(puller.client.routes, "replica_of", note)
    return requests


def suggest_replica(cluster: FakeCluster) -> None:
    """Let the next pull find nothing and suggest the replica."""
    response = found(0, code=ResponseCode.PULL_NOT_FOUND)
    elsewhere = Response(response.code, {**response.ext, "suggestWhichBrokerId": "1"})
    cluster.faults.handle(RequestCode.PULL_MESSAGE, elsewhere)


async def test_the_suggested_replica_is_pulled_from_next(
    cluster: FakeCluster, puller: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = note_replicas(puller, monkeypatch)
    suggest_replica(cluster)
    for _ in range(3):
        await puller.pull(queue(), 0)

    assert requests == [0, 1, 0]


async def test_a_suggested_replica_is_forgotten_with_its_topic(
    cluster: FakeCluster, puller: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    suggest_replica(cluster)
    await puller.pull(queue(), 0)
    puller.client._topics()
    assert puller._pulls._replicas == {queue(): 1}
    monkeypatch.setattr("rocketmq_aio.consumer.pull.raw_pulls.RECENT_SECONDS", 0.0)
    puller.client._topics()

    assert puller._pulls._replicas == {}


@pytest.mark.parametrize("response", [Close(), Response(ResponseCode.SYSTEM_ERROR)], ids=str)
async def test_a_pull_that_failed_at_a_replica_goes_to_the_master_next(
    cluster: FakeCluster, puller: PullConsumer, monkeypatch: pytest.MonkeyPatch, response: Outcome
) -> None:
    requests = note_replicas(puller, monkeypatch)
    suggest_replica(cluster)
    await puller.pull(queue(), 0)
    cluster.faults.handle(RequestCode.PULL_MESSAGE, response)
    with pytest.raises(RocketMQError):
        await puller.pull(queue(), 0)
    await puller.pull(queue(), 0)

    assert requests == [0, 1, 0]


async def test_an_offset_beyond_the_end_of_a_replica_is_judged_by_the_master(
    cluster: FakeCluster, puller: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.broker.put(TOPIC, b"one", queue_id=0)
    requests: list[int] = []
    replica_of = puller.client.routes.replica_of

    def note(queue: MessageQueue, broker_id: int) -> tuple[str, int] | None:
        requests.append(broker_id)
        replica = replica_of(queue, broker_id)
        return replica and (replica[0], broker_id)

    monkeypatch.setattr(puller.client.routes, "replica_of", note)
    suggest_replica(cluster)
    await puller.pull(queue(), 0)
    cluster.faults.handle(RequestCode.PULL_MESSAGE, found(0, code=ResponseCode.PULL_OFFSET_MOVED))
    result = await puller.pull(queue(), 1)

    assert (result.status, result.next_offset) == (PullStatus.NO_NEW, 1)
    assert requests == [0, 1, 0]


async def test_a_pull_cancelled_at_a_replica_goes_to_the_master_next(
    cluster: FakeCluster, puller: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = note_replicas(puller, monkeypatch)
    suggest_replica(cluster)
    await puller.pull(queue(), 0)
    held = cluster.faults.hold(RequestCode.PULL_MESSAGE)
    pulling = asyncio.create_task(puller.pull(queue(), 0))
    await cluster.broker.wait_for(RequestCode.PULL_MESSAGE, 2)
    pulling.cancel()
    await asyncio.wait([pulling])
    held.release()
    await puller.pull(queue(), 0)

    assert requests == [0, 1, 0]


@pytest.mark.parametrize(
    ("setting", "value", "call"),
    [
        ("queue", "orders", lambda p: p.pull("orders", 0)),
        ("offset", -1, lambda p: p.pull(queue(), -1)),
        ("offset", 2**63, lambda p: p.pull_raw(queue(), 2**63)),
        ("offset", 1.0, lambda p: p.pull(queue(), 1.0)),
        ("max_messages", 0, lambda p: p.pull(queue(), 0, 0)),
        ("max_messages", True, lambda p: p.pull(queue(), 0, True)),
        ("max_messages", 2**31, lambda p: p.pull_raw(queue(), 0, 2**31)),
        ("selector", 5, lambda p: p.pull(queue(), 0, selector=5)),
        ("selector", "||", lambda p: p.pull(queue(), 0, selector="||")),
        ("wait_seconds", -1, lambda p: p.pull(queue(), 0, wait_seconds=-1)),
        ("wait_seconds", True, lambda p: p.pull(queue(), 0, wait_seconds=True)),
        ("wait_seconds", "5", lambda p: p.pull_raw(queue(), 0, wait_seconds="5")),
        ("max_bytes", 0, lambda p: p.pull(queue(), 0, max_bytes=0)),
        ("queue", None, lambda p: p.commit(None, 0)),
        ("offset", -5, lambda p: p.commit(queue(), -5)),
        ("queue", 3, lambda p: p.committed(3)),
        ("queue", 3, lambda p: p.min_offset(3)),
        ("queue", 3, lambda p: p.max_offset(3)),
        ("when", 5, lambda p: p.offset_for_time(queue(), 5)),
        ("message", "one", lambda p: p.send_back("one")),
        ("delay_level", 2**31, lambda p: p.send_back(message(0), 2**31)),
        ("delay_level", -2, lambda p: p.send_back(message(0), -2)),
        ("topic", "no good", lambda p: p.message_queues("no good")),
    ],
)
async def test_invalid_arguments_are_refused_before_any_request(
    cluster: FakeCluster,
    puller: PullConsumer,
    setting: str,
    value: object,
    call: Callable[[Any], Awaitable[object]],
) -> None:
    with pytest.raises(ConfigError) as caught:
        await call(puller)

    assert (caught.value.setting, caught.value.value) == (setting, value)
    assert pulls(cluster) == []


async def test_commits_may_go_backwards(cluster: FakeCluster, puller: PullConsumer) -> None:
    put(cluster, *numbers(9))
    assert await puller.committed(queue()) is None
    for offset in (7, 2, 2):
        await puller.commit(queue(), offset)
        assert await puller.committed(queue()) == offset
        assert cluster.broker.committed(GROUP, TOPIC, 0) == offset

    assert len(cluster.broker.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 3


async def test_an_unknown_group_cannot_commit_until_it_has_pulled(cluster: FakeCluster) -> None:
    async with PullConsumer("newcomers", namesrv=cluster.namesrv) as consumer:
        with pytest.raises(CommitError, match="does not exist"):
            await consumer.commit(queue(), 0)
        await consumer.pull(queue(), 0)
        await consumer.commit(queue(), 0)


async def test_of_concurrent_commits_the_last_one_wins(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    await asyncio.gather(*[puller.commit(queue(), offset) for offset in range(1, 20)])

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 19


async def test_a_failed_commit_is_raised_and_the_next_one_is_sent(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    cluster.faults.refuse("commit", 1, "full")
    with pytest.raises(CommitError, match="full"):
        await puller.commit(queue(), 5)
    await puller.commit(queue(), 5)

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 5


async def test_offsets_of_the_ends_and_of_times_are_returned(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, *numbers(3))
    now = datetime.now(UTC)

    assert [each.queue_id for each in await puller.message_queues(TOPIC)] == [0, 1, 2, 3]
    assert (await puller.min_offset(queue()), await puller.max_offset(queue())) == (0, 3)
    assert await puller.offset_for_time(queue(), now - timedelta(hours=1)) == 0
    assert await puller.offset_for_time(queue(), now + timedelta(hours=1)) == 3


@pytest.mark.parametrize(("level", "prefix"), [(1, "%RETRY%"), (-1, "%DLQ%")])
async def test_send_back_stores_in_the_retry_topic_or_the_dlq(
    cluster: FakeCluster, puller: PullConsumer, level: int, prefix: str
) -> None:
    put(cluster, "one")
    (pulled,) = (await puller.pull(queue(), 0)).messages
    await puller.send_back(pulled, level)
    (header,) = cluster.broker.requests_of(RequestCode.CONSUMER_SEND_MSG_BACK)

    assert read_header(header, ConsumerSendMsgBack).delay_level == level
    await until(lambda: f"{prefix}{GROUP}" in cluster.broker.topics)


@pytest.mark.parametrize("level", [0, -1])
async def test_a_message_of_a_group_without_retry_queues_is_not_sent_back(
    cluster: FakeCluster, puller: PullConsumer, level: int
) -> None:
    """Brokers confirm it, and drop the message."""
    retry_topic = f"%RETRY%{GROUP}"
    cluster.create_topic(retry_topic, 1)
    retries = cluster.broker.topics[retry_topic]
    retries.read_queues = retries.write_queues = 0
    put(cluster, "one")
    (pulled,) = (await puller.pull(queue(), 0)).messages

    with pytest.raises(RouteNotFoundError, match="retryQueueNums"):
        await puller.send_back(pulled, level)
    assert cluster.broker.requests_of(RequestCode.CONSUMER_SEND_MSG_BACK) == []


async def test_a_pull_consumer_does_not_register_with_brokers(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, "one")
    await puller.pull(queue(), 0)
    await puller.client.heartbeats.send_all()

    assert cluster.broker.requests_of(RequestCode.HEART_BEAT) == []


async def test_several_of_one_group_may_share_a_client(cluster: FakeCluster) -> None:
    put(cluster, "one")
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        one, other = (PullConsumer(GROUP, client=client) for _ in range(2))
        for consumer in (one, other):
            await consumer.start()
            assert bodies((await consumer.pull(queue(), 0)).messages) == ["one"]
        await other.close()

        assert bodies((await one.pull(queue(), 0)).messages) == ["one"]
        with pytest.raises(ClosedError):
            await other.pull(queue(), 0)
        await one.close()


async def test_routes_of_pulled_topics_are_refreshed(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    await puller.pull(queue(), 0)
    assert puller.client._topics() == {TOPIC}

    puller.client.routes._routes.clear()
    puller.on_route_changed(TOPIC)
    assert puller.client._topics() == set()
    await puller.pull(queue(), 0)
    assert puller.client._topics() == {TOPIC}


async def test_routes_of_topics_that_were_not_read_lately_are_not_refreshed(
    cluster: FakeCluster, puller: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await puller.pull(queue(), 0)
    monkeypatch.setattr("rocketmq_aio.consumer.pull.raw_pulls.RECENT_SECONDS", 0.0)

    assert puller.client._topics() == set()


async def test_closing_ends_waiting_pulls(cluster: FakeCluster) -> None:
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        consumer = PullConsumer(GROUP, client=client)
        await consumer.start()
        waiting = asyncio.ensure_future(consumer.pull(queue(), 0, wait_seconds=60))
        await cluster.broker.wait_for(RequestCode.PULL_MESSAGE)
        await consumer.close()
        with pytest.raises(ClosedError):
            await waiting


async def test_a_failure_of_the_client_ends_waiting_pulls(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    waiting = asyncio.ensure_future(puller.pull(queue(), 0, wait_seconds=60))
    await cluster.broker.wait_for(RequestCode.PULL_MESSAGE)
    puller.client._fail(ValueError("a bug"))
    with pytest.raises(NotRunningError, match="a bug"):
        await waiting


async def test_a_pull_that_is_cancelled_leaves_nothing_behind(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    waiting = asyncio.ensure_future(puller.pull(queue(), 0, wait_seconds=60))
    await cluster.broker.wait_for(RequestCode.PULL_MESSAGE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    put(cluster, "one")

    assert puller._running_pulls == set()
    assert bodies((await puller.pull(queue(), 0)).messages) == ["one"]


async def test_it_works_between_start_and_close_only(cluster: FakeCluster) -> None:
    consumer = PullConsumer(GROUP, namesrv=cluster.namesrv)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: consumer.pull(queue(), 0),
        lambda: consumer.commit(queue(), 0),
        lambda: consumer.committed(queue()),
        lambda: consumer.message_queues(TOPIC),
    ]
    for call in calls:
        with pytest.raises(NotRunningError):
            await call()
    async with consumer:
        await wait_all_tasks_blocked()
    for call in calls:
        with pytest.raises(ClosedError):
            await call()


async def test_pulls_go_on_when_the_broker_comes_back(
    cluster: FakeCluster, puller: PullConsumer
) -> None:
    put(cluster, "one")
    await puller.pull(queue(), 0)
    await cluster.broker.stop()
    await until(lambda: not puller.client.remoting.is_connected(cluster.broker.address))
    await cluster.broker.start()

    assert bodies((await puller.pull(queue(), 0)).messages) == ["one"]
