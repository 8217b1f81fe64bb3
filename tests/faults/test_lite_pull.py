"""LitePullConsumer through faults: nothing is lost or out of order, and reading recovers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.events import MessageUnreadable, PullFailed
from rocketmq_aio.embedded.responses import Close, Raw
from rocketmq_aio.errors import (
    CommitError,
    ConnectionLostError,
    NameServerUnavailableError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.frame_rules import PassingFrame, corrupt, duplicate, truncate, with_code
from tests.fakes.proxy import FaultProxy
from tests.fakes.stopwatch import Stopwatch
from tests.faults.proxied import QUICK, proxied_config, shorten_timeout
from tests.unit.consumer.lite_pull_env import (
    GROUP,
    TOPIC,
    bodies,
    committed,
    consumer_of,
    consuming,
    numbers,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until

PULL: Final = RequestCode.LITE_PULL_MESSAGE
HEAL_SECONDS: Final = 5.0


def offsets_by_queue(taken: list[MessageExt]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for message in taken:
        found.setdefault(message.queue.queue_id, []).append(message.queue_offset)
    return found


# --- outages of brokers and name servers ---------------------------------------------------------


async def test_reading_continues_after_a_broker_restart(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with consuming(cluster) as consumer:
        events = consumer.events()
        await polled(consumer, 3)
        await cluster.broker.stop()
        put(cluster, "stored meanwhile")
        failed = await asyncio.wait_for(anext(events), HEAL_SECONDS)
        assert isinstance(failed, PullFailed)
        assert await consumer.poll(0.3) == []
        await cluster.broker.start()

        assert bodies(await polled(consumer, 1)) == ["stored meanwhile"]
        await until(lambda: GROUP in cluster.broker.members.groups, "the group to be told")
        await consumer.commit()
        assert cluster.broker.committed(GROUP, TOPIC, 0) == 4


async def test_repeated_restarts_lose_and_repeat_nothing(cluster: FakeCluster) -> None:
    put(cluster, *numbers(300))
    put(cluster, *numbers(300), queue_id=1)
    async with consuming(cluster, pull_batch_size=8, pull_threshold_per_queue=8) as consumer:
        taken: list[MessageExt] = []
        for _ in range(5):
            taken += await polled(consumer, 60, max_messages=20)
            await cluster.broker.restart()
        taken += await polled(consumer, 600 - len(taken), max_messages=100)

    assert offsets_by_queue(taken) == {0: list(range(300)), 1: list(range(300))}


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_commit_lost_by_a_killed_broker_is_sent_again(
    cluster: FakeCluster, auto_commit: bool
) -> None:
    put(cluster, *numbers(3))
    async with consuming(
        cluster, auto_commit=auto_commit, commit_interval_seconds=0.05, long_poll_seconds=0.1
    ) as consumer:
        await polled(consumer, 3)
        assert await consumer.poll(0) == []
        if not auto_commit:
            await consumer.commit()
        await committed(cluster, {0: 3})
        await cluster.broker.stop()
        cluster.broker.commit(GROUP, TOPIC, 0, 1)
        await cluster.broker.start()

        await committed(cluster, {0: 3})


async def test_reading_continues_without_a_name_server(cluster: FakeCluster) -> None:
    client = ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=0.02)
    async with consuming(cluster, client=client) as consumer:
        await cluster.name_server.stop()
        put(cluster, "a")
        assert bodies(await polled(consumer, 1)) == ["a"]
        with pytest.raises(NameServerUnavailableError):
            await consumer.message_queues("invoices")
        with pytest.raises(NameServerUnavailableError):
            await consumer.subscribe("invoices")
        await cluster.name_server.start()
        cluster.create_topic("invoices", 1)
        put(cluster, "b", topic="invoices")

        async def subscribed() -> bool:
            with contextlib.suppress(NameServerUnavailableError):
                await consumer.subscribe("invoices")
                return True
            return False

        deadline = monotonic() + HEAL_SECONDS
        while not await subscribed():
            assert monotonic() < deadline
            assert await consumer.poll(0.05) == []
        assert bodies(await polled(consumer, 1)) == ["b"]


async def test_a_broker_that_is_down_at_the_start_is_read_when_it_is_up(
    cluster: FakeCluster,
) -> None:
    put(cluster, "a")
    await cluster.broker.stop()
    async with consumer_of(cluster) as consumer:
        await consumer.subscribe(TOPIC)
        assert await consumer.poll(0.2) == []
        await cluster.broker.start()

        assert bodies(await polled(consumer, 1)) == ["a"]


async def test_the_start_of_a_new_group_waits_for_its_broker(cluster: FakeCluster) -> None:
    async with nothing_left():
        await cluster.broker.stop()
        consumer = consumer_of(cluster, start_from="latest")
        await consumer.subscribe(TOPIC)
        with pytest.raises(NotConnectedError):
            await consumer.start()
    await cluster.broker.start()


async def test_a_dead_broker_does_not_delay_the_others() -> None:
    async with FakeCluster(2, topics={TOPIC: 2}) as cluster, consuming(cluster) as consumer:
        await cluster.brokers[1].stop()
        for number in range(20):
            put(cluster, str(number))
            with Stopwatch() as passed:
                assert bodies(await polled(consumer, 1)) == [str(number)]
            assert passed.seconds < 1
        await cluster.brokers[1].start()
        put(cluster, "again", broker=1)
        assert bodies(await polled(consumer, 1)) == ["again"]


# --- connections and frames ----------------------------------------------------------------------


FAULTS: dict[str, Callable[[FaultProxy], None]] = {
    "an answer is cut in its header": lambda p: p.down.cut(frame=8, byte=10),
    "an answer is cut in its body": lambda p: p.down.cut(frame=8, byte=400),
    "an answer ends in a reset": lambda p: p.down.cut(frame=8, byte=400, reset=True),
    "a request is cut": lambda p: p.up.cut(frame=8, byte=10),
    "a length is spoilt": lambda p: p.down.on(corrupt(0), code=PULL),
    "a header is spoilt": lambda p: p.down.on(corrupt(20), code=PULL),
    "an answer is short": lambda p: p.down.on(truncate(100), code=PULL),
    "an answer comes twice": lambda p: p.down.on(duplicate, code=PULL, times=None),
    "an answer says another code": lambda p: p.down.on(with_code(1, "system error"), code=PULL),
    "byte by byte": lambda p: setattr(p.down, "slice_bytes", 7),
    "in lumps": lambda p: setattr(p.down, "merge_seconds", 0.01),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_broken_connection_loses_and_repeats_nothing(
    cluster: FakeCluster, proxy: FaultProxy, fault: str
) -> None:
    put(cluster, *numbers(60))
    put(cluster, *numbers(60), queue_id=1)
    settings: dict[str, Any] = {"pull_batch_size": 8, "pull_threshold_per_queue": 8}
    async with consumer_of(cluster, client=proxied_config(proxy, cluster), **settings) as consumer:
        FAULTS[fault](proxy)
        await consumer.subscribe(TOPIC)
        taken = await polled(consumer, 120, max_messages=10)

    assert offsets_by_queue(taken) == {0: list(range(60)), 1: list(range(60))}


async def test_repeated_cuts_of_all_connections_lose_and_repeat_nothing(
    cluster: FakeCluster, proxy: FaultProxy
) -> None:
    client = proxied_config(proxy, cluster)
    taken: list[MessageExt] = []
    async with consuming(cluster, client=client) as consumer:
        for round_ in range(10):
            put(cluster, *numbers(20, first=20 * round_), queue_id=round_ % 2)
            proxy.cut(reset=round_ % 2 == 0)
            taken += await polled(consumer, 20)

    assert offsets_by_queue(taken) == {0: list(range(100)), 1: list(range(100))}


async def test_a_pull_without_a_response_is_repeated(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.pull_loop.pull_request.HOLD_SLACK_SECONDS", QUICK)
    async with consumer_of(cluster, long_poll_seconds=QUICK) as consumer:
        cluster.faults.drop("pull", times=4)
        put(cluster, *numbers(3))
        await consumer.subscribe(TOPIC)

        assert bodies(await polled(consumer, 3)) == numbers(3)


async def test_a_corrupt_body_blocks_its_queue_until_it_is_intact(
    cluster: FakeCluster, proxy: FaultProxy
) -> None:
    put(cluster, *numbers(3))
    async with consumer_of(cluster, client=proxied_config(proxy, cluster)) as consumer:
        events = consumer.events()
        # The magic number of the last record: the records before it can be read.
        magic = 4 - len(cluster.broker.messages(TOPIC, 0)[-1].record)

        def spoil(frame: PassingFrame) -> Iterable[bytes]:
            return corrupt(magic)(frame) if frame.command.body else (frame.data,)

        proxy.down.on(spoil, code=PULL, times=3)
        await consumer.subscribe(TOPIC)

        assert bodies(await polled(consumer, 3)) == numbers(3)
    unreadable = [each async for each in events if isinstance(each, MessageUnreadable)]
    assert {(each.queue, each.offset) for each in unreadable} == {(queue(), 2)}


@pytest.mark.parametrize(
    "answer",
    [Close(), Close(reset=True), Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Raw(b"\x7f" * 64)],
    ids=["hangs up", "resets", "speaks HTTP", "sends garbage"],
)
async def test_reading_recovers_from_a_peer_that_is_not_a_broker(
    cluster: FakeCluster, answer: Close | Raw
) -> None:
    put(cluster, *numbers(3))
    async with consumer_of(cluster) as consumer:
        cluster.faults.handle("pull", answer, times=3)
        await consumer.subscribe(TOPIC)

        assert bodies(await polled(consumer, 3)) == numbers(3)


async def test_a_silent_connection_is_detected_and_replaced(
    cluster: FakeCluster, proxy: FaultProxy
) -> None:
    client = proxied_config(proxy, cluster)
    async with consuming(cluster, client=client, auto_commit=False) as consumer:
        shorten_timeout(consumer.client)
        proxy.stall()
        put(cluster, "a")
        for asked in (consumer.lag(), consumer.seek(queue(), 0), consumer.committed(queue())):
            with pytest.raises((RequestTimeoutError, NotConnectedError, ConnectionLostError)):
                await asyncio.wait_for(asked, 14)  # not the 15 s of others
        with pytest.raises(CommitError):
            await asyncio.wait_for(consumer.commit({queue(): 0, queue(1): 0}), 14)
        proxy.flow()

        assert bodies(await polled(consumer, 1)) == ["a"]


# --- error responses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_NOT_FOUND,
        999,
    ],
)
async def test_reading_recovers_from_every_error_code(cluster: FakeCluster, code: int) -> None:
    put(cluster, *numbers(3))
    async with consumer_of(cluster) as consumer:
        cluster.faults.refuse("pull", code, times=4)
        await consumer.subscribe(TOPIC)

        assert bodies(await polled(consumer, 3)) == numbers(3)


async def test_a_denied_topic_emits_an_event_and_is_read_when_allowed(cluster: FakeCluster) -> None:
    client = ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=9e8)
    async with consuming(cluster, client=client) as consumer:
        events = consumer.events()
        cluster.broker.topics[TOPIC].perm = 2
        put(cluster, "a")  # the broker judges a held pull again when it wakes it
        failed = await asyncio.wait_for(anext(events), HEAL_SECONDS)
        assert isinstance(failed, PullFailed)
        assert "forbidden" in failed.reason
        cluster.broker.topics[TOPIC].perm = 6
        put(cluster, "b")

        assert bodies(await polled(consumer, 2)) == ["a", "b"]


async def test_two_clusters_in_one_process_are_separate() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as one, FakeCluster(topics={TOPIC: 1}) as other:
        put(one, "of one")
        put(other, "of the other")
        async with consuming(one) as first, consuming(other) as second:
            assert bodies(await polled(first, 1)) == ["of one"]
            await one.broker.stop()
            assert bodies(await polled(second, 1)) == ["of the other"]
            await second.commit()
            with pytest.raises(RocketMQError):
                await first.commit()
            await one.broker.start()
        await committed(other, {0: 1})
