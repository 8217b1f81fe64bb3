"""PushConsumer with a silent or refusing broker: bounded rates, no outdated results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from time import monotonic

import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.events import LeaseLost, OffsetCorrected, PullFailed
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import DLQ_PREFIX
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.faults.proxied import QUICK, proxied_config, shorten_timeout
from tests.faults.pushing import SOON, Group, QuickLocks, group_of, let_time_pass
from tests.history.recording import request_times
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

PULL, LOCK = RequestCode.PULL_MESSAGE, RequestCode.LOCK_BATCH_MQ
WATCH_SECONDS = 1.2  # long enough to measure a rate per second


@pytest_asyncio.fixture(params=[False, True], ids=["concurrent", "orderly"])
async def group(cluster: FakeCluster, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    async with group_of(cluster, orderly=request.param) as group:
        yield group


# --- silence -------------------------------------------------------------------------------------


async def test_silent_connection_loss_loses_nothing(
    cluster: FakeCluster, proxy: FaultProxy, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.pull_loop.pull_request.HOLD_SLACK_SECONDS", QUICK)
    client = proxied_config(proxy, cluster)
    consumer = await group.join(client=client, long_poll_seconds=QUICK)
    put(cluster, *numbers(20))
    await group.have("19")
    shorten_timeout(consumer.client)
    proxy.stall()
    put(cluster, *numbers(20, first=20))
    await until(lambda: group.events_of(PullFailed), "the silence to be noticed")
    proxy.flow()
    await group.have(*numbers(40))
    await group.drained()
    group.history.epochs.clear()  # delayed requests arrived late, for any owner


async def test_lease_that_expires_in_silence_stops_delivery_and_commits(
    cluster: FakeCluster, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.push.push_engine.QueueLocks", QuickLocks)
    async with group_of(cluster, orderly=True) as group:
        reached, let_go = asyncio.Event(), asyncio.Event()

        async def behave(message: MessageExt) -> None:
            if message.body == b"3":
                reached.set()
                await let_go.wait()

        put(cluster, *numbers(10))
        client = proxied_config(proxy, cluster)
        consumer = await group.join(behave, client=client, commit_interval_seconds=60.0)
        await reached.wait()
        shorten_timeout(consumer.client)
        proxy.stall()
        let_time_pass(consumer)
        await until(lambda: len(group.events_of(LeaseLost)) >= 2, "the leases to end")
        let_go.set()
        await group.have("3")
        assert "4" not in group.handled()
        proxy.refuse()
        proxy.cut(reset=True)  # a broker removes members after a minute or two of silence
        cluster.broker.locks.owners.clear()
        other = await group.join()
        await group.have(*numbers(10))
        await other.close()
        assert cluster.broker.committed(GROUP, TOPIC, 0) == 10
        proxy.flow()
        await proxy.accept()
        await group.at_rest()
        await group.drained()
        assert cluster.broker.committed(GROUP, TOPIC, 0) == 10


async def test_after_a_stall_the_lease_is_checked_before_delivery(cluster: FakeCluster) -> None:
    async with group_of(cluster, orderly=True) as group:
        reached, let_go = asyncio.Event(), asyncio.Event()

        async def behave(message: MessageExt) -> None:
            if message.body == b"3":
                reached.set()
                await let_go.wait()

        put(cluster, *numbers(10))
        consumer = await group.join(behave)
        await reached.wait()
        locks = consumer._engine.locks
        assert locks is not None
        refused = cluster.faults.refuse("lock", times=None)
        locks._clock = lambda: monotonic() + 100  # as after a stall of that length
        let_go.set()
        await until(lambda: group.events_of(LeaseLost), "the event")
        begun = len(group.history.handled)
        locks._clock = monotonic
        refused.remove()
        assert begun == 4, "a handler began without a lock"
        await group.drained()


# --- repeated rejections -------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, 999])
async def test_refused_pulls_keep_their_rate(cluster: FakeCluster, group: Group, code: int) -> None:
    await group.join()
    put(cluster, "a")
    await group.have("a")
    refused = cluster.faults.refuse("pull", code, times=None)
    began = asyncio.get_running_loop().time()
    put(cluster, "b")
    put(cluster, "c", queue_id=1)
    await asyncio.sleep(WATCH_SECONDS)  # the rate over real time is tested
    refused.remove()
    pulled = [at for at in request_times(PULL, cluster.broker) if at > began]
    group.history.paced["pulls of three queues"] = pulled
    group.history.most_per_second = 30
    await group.drained()


async def test_refused_locks_keep_their_rate(cluster: FakeCluster) -> None:
    async with group_of(cluster, orderly=True) as group:
        refused = cluster.faults.refuse("lock", times=None)
        put(cluster, "a")
        await group.join()
        await asyncio.sleep(WATCH_SECONDS)  # the rate over real time is tested
        group.history.paced["locks"] = request_times(LOCK, cluster.broker)
        assert group.history.paced["locks"]
        refused.remove()
        await group.drained()


# --- other faults --------------------------------------------------------------------------------


async def test_an_offset_correction_waits_for_the_running_handler(cluster: FakeCluster) -> None:
    async with group_of(cluster, orderly=True) as group:
        reached, let_go = asyncio.Event(), asyncio.Event()

        async def behave(message: MessageExt) -> None:
            if message.body == b"7":
                reached.set()
                await let_go.wait()

        put(cluster, *numbers(10))
        await group.join(behave, long_poll_seconds=0.1)
        await reached.wait()
        del cluster.broker.topics[TOPIC].queues[0].messages[8:]  # it lost its last messages
        await until(lambda: group.events_of(OffsetCorrected), "the event")
        put(cluster, "new 8", "new 9")
        assert group.handled() == numbers(7)
        let_go.set()
        await group.drained()

        runs = [run.body.decode() for run in group.history.handled]
        assert runs[:8] == numbers(8)
        assert runs[-2:] == ["new 8", "new 9"]


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_lost_response_duplicates_a_dead_letter_without_blocking(
    cluster: FakeCluster, reset: bool
) -> None:
    async def behave(message: MessageExt) -> None:
        if message.body == b"3":
            raise ValueError("poison")

    async with group_of(cluster, orderly=True) as group:
        (cluster.faults.reset if reset else cluster.faults.close)("send_back")
        put(cluster, *numbers(6))
        await group.join(behave, max_reconsume_times=0)
        await group.drained()

        dead = cluster.broker.messages(DLQ_PREFIX + GROUP)
        assert [each.body for each in dead] == [b"3", b"3"]
        assert group.handled() == ["0", "1", "2", "4", "5"]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_result_of_a_thread_after_the_timeout_is_ignored(
    cluster: FakeCluster, orderly: bool
) -> None:
    cluster.broker.delays.seconds = [SOON] * len(cluster.broker.delays.seconds)
    running, most, calls = 0, 0, 0
    guard, let_go = threading.Lock(), threading.Event()

    def behave(_message: MessageExt) -> None:
        nonlocal running, most, calls
        with guard:
            running, calls = running + 1, calls + 1
            first, most = calls == 1, max(most, running)
        if first:
            let_go.wait(10)
        with guard:
            running -= 1

    put(cluster, "a")
    async with PushConsumer(
        GROUP,
        on_message=behave,
        orderly=orderly,
        client=ClientConfig(namesrv=cluster.namesrv),
        config=PushConfig(
            start_from="earliest",
            consume_timeout_seconds=0.1,
            commit_interval_seconds=0.02,
            suspend_seconds=SOON,
        ),
    ) as consumer:
        await consumer.subscribe(TOPIC)
        await until(lambda: any(w.expired for w in consumer._engine.workers.busy), "its time")
        assert cluster.broker.committed(GROUP, TOPIC, 0) in (None, 0)
        let_go.set()
        await until(lambda: calls == 2, "the message to come again")
        await committed(cluster, {0: 1})

    assert most == 1, "it was handled twice at once"
    assert cluster.broker.committed(GROUP, queue().topic, 0) == 1
