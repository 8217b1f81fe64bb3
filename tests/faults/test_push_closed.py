"""PushConsumer closed at any time: bounded duration, no false commit, nothing left."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common import listeners as listeners_module
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.errors import ClosedError, NotConnectedError, NotRunningError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.fakes.stopwatch import Stopwatch
from tests.faults.proxied import proxied_config, shorten_timeout
from tests.faults.pushing import Group, accept, group_of, in_both_ways
from tests.history import Outcome
from tests.history.recording import record_call
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, numbers, put
from tests.unit.consumer.pushing import push_consumer
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until


@pytest_asyncio.fixture(params=[False, True], ids=["concurrent", "orderly"])
async def group(cluster: FakeCluster, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    async with group_of(cluster, orderly=request.param) as group:
        yield group


async def for_ever(_message: MessageExt) -> None:
    await asyncio.Event().wait()


def committed(cluster: FakeCluster) -> int | None:
    return cluster.broker.committed(GROUP, TOPIC, 0)


async def test_stuck_handler_is_cancelled_in_time_without_a_commit(
    cluster: FakeCluster, group: Group
) -> None:
    put(cluster, *numbers(10))
    consumer = await group.join(for_ever, close_timeout_seconds=0.2)
    await until(lambda: group.history.handled)
    await record_call(group.history, "close", 0.2, consumer.close())

    assert group.handled(Outcome.UNKNOWN)
    assert group.handled() == []
    assert committed(cluster) in (None, 0)
    assert cluster.broker.members.groups == {}


async def test_close_waits_for_running_handlers(cluster: FakeCluster, group: Group) -> None:
    let_go = asyncio.Event()

    async def behave(_message: MessageExt) -> None:
        await let_go.wait()

    put(cluster, *numbers(10))
    consumer = await group.join(behave, concurrency=3, close_timeout_seconds=30.0)
    running = 1 if group.orderly else 3
    await until(lambda: len(group.history.handled) == running)
    closes = [asyncio.create_task(consumer.close()) for _ in range(3)]
    await until(lambda: consumer.assignment() == [])
    let_go.set()
    await asyncio.gather(*closes, consumer.close())

    assert len(group.handled()) == len(group.history.handled) == running
    assert committed(cluster) == running


async def test_close_during_the_drain_of_a_rebalance_is_bounded(
    cluster: FakeCluster, group: Group
) -> None:
    put(cluster, *numbers(10))
    put(cluster, *numbers(10, first=10), queue_id=1)
    first = await group.join(for_ever, close_timeout_seconds=0.5)
    await until(lambda: len({run.queue for run in group.history.handled}) == 2)
    await group.join()
    held = len(first.assignment())
    await until(lambda: len(first.assignment()) < held, "the drain to begin")
    await record_call(group.history, "close", 2 * 0.5, first.close())

    await group.have(*numbers(20))
    await group.drained()


async def test_a_handler_can_close_its_consumer(cluster: FakeCluster, group: Group) -> None:
    """Its own message is done: redelivered, it would close the next consumer, too."""
    closed = asyncio.Event()

    async def behave(message: MessageExt) -> None:
        if message.body == b"3":
            await consumer.close()
            closed.set()

    put(cluster, *numbers(10))
    consumer = await group.join(behave, concurrency=1, close_timeout_seconds=3600.0)
    await closed.wait()
    await record_call(group.history, "close", 0.2, consumer.close())

    assert group.handled() == numbers(4)
    assert committed(cluster) == 4


async def test_a_task_of_a_handler_can_close_its_consumer(
    cluster: FakeCluster, group: Group
) -> None:
    """Unlike in the handler itself, the call returns when the consumer is closed."""
    tasks: list[asyncio.Task[None]] = []

    async def behave(message: MessageExt) -> None:
        if message.body == b"3":
            tasks.append(asyncio.create_task(consumer.close()))

    put(cluster, *numbers(10))
    consumer = await group.join(behave, concurrency=1)
    await until(lambda: tasks, "the close to begin")
    await tasks[0]

    assert cluster.broker.members.groups == {}
    assert committed(cluster) == len(group.handled()) >= 4


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
async def test_a_listener_can_close_its_consumer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(listeners_module, "LISTENER_SECONDS", 3600)
    called = asyncio.Event()

    async def listener(_queues: tuple[MessageQueue, ...]) -> None:
        await consumer.close()
        called.set()

    arguments: dict[str, Any] = {name: listener}
    consumer = push_consumer(cluster, accept, arguments=arguments, close_timeout_seconds=0.0)
    consumer._close_seconds = 3600
    await consumer.start()
    await consumer.subscribe(TOPIC)
    if name == "on_revoked":
        await consumer.ready(15)
        await consumer.unsubscribe(TOPIC)
    async with asyncio.timeout(15):
        await called.wait()
        await consumer.close()

    assert cluster.broker.members.groups == {}


async def test_pending_local_retry_does_not_delay_close(cluster: FakeCluster, group: Group) -> None:
    async def behave(_message: MessageExt) -> None:
        raise ValueError

    cluster.faults.refuse(("send_back", "send"), times=None)
    put(cluster, "a")
    consumer = await group.join(behave, suspend_seconds=60.0, close_timeout_seconds=60.0)
    await until(lambda: group.handled(Outcome.FAIL))
    await record_call(group.history, "close", 1.0, consumer.close())

    assert committed(cluster) in (None, 0)


@pytest.mark.parametrize("fault", ["dead", "silent", "busy"])
async def test_close_is_bounded_under_every_broker_fault(
    cluster: FakeCluster, proxy: FaultProxy, group: Group, fault: str
) -> None:
    put(cluster, *numbers(3))
    consumer = await group.join(client=proxied_config(proxy, cluster), commit_interval_seconds=60.0)
    await group.have(*numbers(3))
    shorten_timeout(consumer.client)
    faults: dict[str, Callable[[], object]] = {
        "dead": cluster.broker.stop,
        "silent": proxy.stall,
        "busy": lambda: cluster.faults.refuse("commit", times=None),
    }
    outcome = faults[fault]()
    if isinstance(outcome, Awaitable):
        await outcome
    await record_call(group.history, "close", 2.0, consumer.close())
    proxy.flow()
    group.history.epochs.clear()  # delayed requests reach the broker now
    if fault == "dead":
        await cluster.broker.start()


async def test_close_while_suspended_leaves_cached_messages_to_others(
    cluster: FakeCluster, group: Group
) -> None:
    consumer = await group.join()
    put(cluster, "a")
    await group.have("a")
    consumer.suspend()
    put(cluster, "b")
    await until(lambda: any(each.waiting for each in consumer._engine.table.values()))
    await consumer.close()

    assert group.handled() == ["a"]
    assert committed(cluster) == 1


# --- consumers that never ran --------------------------------------------------------------------


def consumer_of(cluster: FakeCluster, *, orderly: bool = False, **settings: float) -> PushConsumer:
    async def accept(_message: MessageExt) -> None: ...

    return PushConsumer(
        GROUP,
        on_message=accept,
        orderly=orderly,
        client=ClientConfig(namesrv=cluster.namesrv),
        config=PushConfig(start_from="earliest", **settings),  # type: ignore[arg-type]
    )


@in_both_ways
async def test_a_consumer_that_never_started_can_be_closed(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with nothing_left():
        consumer = consumer_of(cluster, orderly=orderly)
        await consumer.subscribe(TOPIC)
        await asyncio.gather(consumer.close(), consumer.close())
        with pytest.raises(ClosedError):
            await consumer.start()
        with pytest.raises(ClosedError):
            await consumer.run()
        with pytest.raises(ClosedError):
            consumer.suspend()


@in_both_ways
async def test_a_failed_start_leaves_nothing_and_can_be_closed(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with nothing_left():
        await cluster.broker.stop()
        consumer = PushConsumer(
            GROUP,
            on_message=for_ever,
            orderly=orderly,
            client=ClientConfig(namesrv=cluster.namesrv),
            config=PushConfig(start_from="latest"),
        )
        await consumer.subscribe(TOPIC)
        with pytest.raises(NotConnectedError):
            await consumer.start()
        await consumer.close()
        await cluster.broker.start()


@in_both_ways
async def test_failed_consumer_raises_and_can_be_closed(
    cluster: FakeCluster, orderly: bool
) -> None:
    async with nothing_left():
        consumer = consumer_of(cluster, orderly=orderly)
        await consumer.subscribe(TOPIC)
        running = asyncio.create_task(consumer.run())
        await until(lambda: consumer.assignment(), "it to run")

        async def fail() -> None:
            raise RuntimeError("a bug")

        consumer._engine._tasks.spawn(fail, name="bug")
        with pytest.raises(NotRunningError, match="a bug"):
            await asyncio.wait_for(running, 15)
        await consumer.close()
        with pytest.raises(NotRunningError, match="a bug"):
            await consumer.ready()


# --- run -----------------------------------------------------------------------------------------


async def test_run_ends_after_running_handlers_on_a_signal(
    cluster: FakeCluster, group: Group
) -> None:
    reached = asyncio.Event()

    async def behave(_message: MessageExt) -> None:
        reached.set()
        await asyncio.sleep(0.02)

    put(cluster, "a")
    consumer = group.member(behave)
    await consumer.subscribe(TOPIC)
    before = signal.getsignal(signal.SIGTERM)
    running = asyncio.create_task(consumer.run())
    await reached.wait()
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(running, 15)

    assert group.handled() == ["a"]
    assert committed(cluster) == 1
    assert signal.getsignal(signal.SIGTERM) is before


async def test_cancelled_run_closes_first(cluster: FakeCluster, group: Group) -> None:
    put(cluster, *numbers(5))
    consumer = group.member()
    await consumer.subscribe(TOPIC)
    running = asyncio.create_task(consumer.run())
    await group.have(*numbers(5))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert committed(cluster) == 5
    assert cluster.broker.members.groups == {}


# --- threads -------------------------------------------------------------------------------------


@in_both_ways
async def test_threads_of_sync_handlers_end_with_the_consumer(
    cluster: FakeCluster, orderly: bool
) -> None:
    def mine() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if GROUP in thread.name]

    let_go = threading.Event()
    async with nothing_left():
        put(cluster, *numbers(10))
        consumer = PushConsumer(
            GROUP,
            on_message=lambda _message: let_go.wait(10),
            orderly=orderly,
            client=ClientConfig(namesrv=cluster.namesrv),
            config=PushConfig(start_from="earliest", close_timeout_seconds=0.1),
        )
        await consumer.subscribe(TOPIC)
        await consumer.start()
        await until(mine, "a thread")
        with Stopwatch() as passed:
            await consumer.close()
        assert passed.seconds < 3
        assert committed(cluster) in (None, 0)
        let_go.set()
        await until(lambda: not mine(), "the threads to end")
    assert committed(cluster) in (None, 0), "a result that came too late was committed"
