"""PushConsumer life cycle: `run`, signals, close, failures."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.group.group_engine import EXPIRED_SECONDS
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.errors import ClosedError, NotRunningError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.producer.producer import Producer
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import BugError, break_down, queue
from tests.unit.consumer.pushing import Notes, push_consumer, pushing
from tests.unit.consumer.worker_env import Gate, forever
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until


@asynccontextmanager
async def running(consumer: PushConsumer) -> AsyncIterator[asyncio.Task[None]]:
    """A consumer inside `run`, with its queues."""
    await consumer.subscribe(TOPIC)
    task = asyncio.ensure_future(consumer.run())
    await until(lambda: not consumer._can_prepare() and consumer._running, "the start")
    await consumer.ready(15)
    yield task
    await asyncio.wait([task], timeout=15)
    assert task.done()


async def test_run_starts_consumes_and_returns_when_it_is_closed_elsewhere(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(3))
    handled = Notes()
    consumer = push_consumer(cluster, handled)
    async with nothing_left():
        async with running(consumer) as task:
            await handled.have(3)
            await consumer.close()
        task.result()

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 3


async def test_messages_processed_by_others_during_a_long_outage_are_not_handled_again(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(10))
    gate, handled = asyncio.Event(), Notes()

    async def handle(message: MessageExt) -> None:
        await handled(message)
        if message.body == b"3":
            await gate.wait()

    async with pushing(cluster, handle, concurrency=1) as consumer:
        await handled.have(4)
        engine = consumer._engine
        assigned = engine.table[queue(0)]
        assigned.failing_since = asyncio.get_running_loop().time() - EXPIRED_SECONDS - 1
        engine.on_cut_off(assigned)
        cluster.broker.commit(GROUP, TOPIC, 0, 8)
        engine.on_recovered(assigned)
        gate.set()
        await handled.have(6)

    assert handled.bodies() == ["0", "1", "2", "3", "8", "9"]
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 10


async def test_run_serves_a_consumer_that_is_started(cluster: FakeCluster) -> None:
    async with pushing(cluster, Notes()) as consumer:
        task = asyncio.ensure_future(consumer.run())
        await asyncio.sleep(0)
        assert not task.done()
        await consumer.close()
        await task


async def test_cancelled_run_closes_the_consumer(cluster: FakeCluster) -> None:
    put(cluster, "a")
    gate = Gate()
    consumer = push_consumer(cluster, gate)
    async with nothing_left(), running(consumer) as task:
        await gate.reached.wait()
        task.cancel()
        await until(lambda: consumer._engine.table[queue()].dropped, "the hand-over")
        gate.open.set()

    assert task.cancelled()
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 1


@pytest.fixture
def program() -> Iterator[list[int]]:
    """The signals that a program has handled with its own handlers."""
    handled: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {n: signal.signal(n, lambda number, _: handled.append(number)) for n in numbers}
    yield handled
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_ends_on_a_signal_and_puts_handlers_back(
    cluster: FakeCluster, number: signal.Signals, program: list[int]
) -> None:
    async with nothing_left(), running(push_consumer(cluster, Notes())) as task:
        os.kill(os.getpid(), number)
    task.result()
    assert program == []

    os.kill(os.getpid(), number)
    assert program == [number]


async def test_one_signal_ends_every_run(cluster: FakeCluster, program: list[int]) -> None:
    put(cluster, "a")
    go = asyncio.Event()
    started: list[str] = []

    async def handle(message: MessageExt) -> None:
        started.append(message.body.decode())
        await go.wait()

    consumers = [push_consumer(cluster, handle, group=group) for group in ("first", "second")]
    async with nothing_left(), running(consumers[0]) as one, running(consumers[1]) as other:
        await until(lambda: len(started) == 2, "both handlers")
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: all(each._engine.table[queue()].dropped for each in consumers))
        go.set()
    one.result()
    other.result()

    assert [cluster.broker.committed(group, TOPIC, 0) for group in ("first", "second")] == [1, 1]


async def test_signal_ends_a_run_after_another_run_has_ended(
    cluster: FakeCluster, program: list[int]
) -> None:
    first, second = (push_consumer(cluster, Notes(), group=g) for g in ("first", "second"))
    async with nothing_left(), running(second) as other:
        async with running(first) as one:
            await first.close()
        one.result()
        os.kill(os.getpid(), signal.SIGTERM)
    other.result()

    assert program == []


async def test_handlers_of_the_event_loop_work_after_a_run(cluster: FakeCluster) -> None:
    events = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, events.set)
    try:
        async with nothing_left(), running(push_consumer(cluster, Notes())) as task:
            task.cancel()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(events.wait(), 15)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_run_needs_no_signal_handlers_of_the_event_loop(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Event loops of Windows have none."""

    def missing(*_: object) -> None:
        raise NotImplementedError

    for kind in (asyncio.AbstractEventLoop, type(asyncio.get_running_loop())):
        with suppress(TypeError):  # uvloop's cannot be changed
            monkeypatch.setattr(kind, "add_signal_handler", missing)
    async with nothing_left(), running(push_consumer(cluster, Notes())) as task:
        os.kill(os.getpid(), signal.SIGTERM)
    task.result()


async def test_run_outside_the_main_thread_leaves_signals_alone(cluster: FakeCluster) -> None:
    consumers: list[PushConsumer] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def consume() -> None:
        loops.append(asyncio.get_running_loop())
        consumer = push_consumer(cluster, Notes())
        consumers.append(consumer)
        await consumer.subscribe(TOPIC)
        await consumer.run()

    thread = threading.Thread(target=lambda: asyncio.run(consume()))
    thread.start()
    try:
        await until(lambda: consumers and consumers[0]._running, "the start")
        closing = asyncio.run_coroutine_threadsafe(consumers[0].close(), loops[0])
        await asyncio.wrap_future(closing)
    finally:
        await asyncio.to_thread(thread.join, 15)

    assert not thread.is_alive()


PROGRAM = """
import asyncio, sys
from rocketmq_aio import PushConfig, PushConsumer

async def handle(message):
    print("started", flush=True)
    await asyncio.sleep(0.2)
    print("done", flush=True)

async def main():
    config = PushConfig(start_from="earliest")
    consumer = PushConsumer("billing", on_message=handle, namesrv=sys.argv[1], config=config)
    await consumer.subscribe("orders")
    await consumer.run()
    print("ended", flush=True)

asyncio.run(main())
"""


async def test_sigterm_lets_running_handlers_finish(cluster: FakeCluster) -> None:
    put(cluster, "a")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, cluster.namesrv), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"started\n"
            process.terminate()
            rest = await process.stdout.read()
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()

    assert (rest, code) == (b"done\nended\n", 0)
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 1
    assert GROUP not in cluster.broker.members.groups


async def test_run_raises_the_failure_of_a_background_task(cluster: FakeCluster) -> None:
    consumer = push_consumer(cluster, Notes())
    async with nothing_left(), running(consumer) as task:
        break_down(consumer)

    with pytest.raises(NotRunningError) as caught:
        task.result()
    assert isinstance(caught.value.__cause__, BugError)


async def test_run_raises_when_a_shared_client_is_closed(cluster: FakeCluster) -> None:
    async with nothing_left(), MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        consumer = push_consumer(cluster, Notes(), client=client)
        async with running(consumer) as task:
            await client.close()

    with pytest.raises(NotRunningError, match="was closed"):
        task.result()


async def test_after_a_failure_calls_raise_and_streams_end(cluster: FakeCluster) -> None:
    async with nothing_left(), pushing(cluster, Notes()) as consumer:
        stream = consumer.events()
        break_down(consumer)
        async for _ in stream:
            pass
        for call in (consumer.suspend, consumer.resume, lambda: consumer.set_concurrency(2)):
            with pytest.raises(NotRunningError, match="a bug"):
                call()
        with pytest.raises(NotRunningError, match="a bug"):
            await consumer.ready()


async def test_after_a_failure_close_does_not_wait_for_handlers(cluster: FakeCluster) -> None:
    put(cluster, "a")
    async with asyncio.timeout(15):
        async with pushing(cluster, forever, close_timeout_seconds=3600.0) as consumer:
            await until(lambda: consumer._engine.workers.busy, "a handler")
            stream = consumer.events()
            break_down(consumer)
            async for _ in stream:
                pass


async def test_failed_consumer_leaves_its_group(cluster: FakeCluster) -> None:
    """Without waiting for its close: others are to have its queues."""
    async with pushing(cluster, Notes()) as consumer:
        assert GROUP in cluster.broker.members.groups
        break_down(consumer)
        await until(lambda: GROUP not in cluster.broker.members.groups, "the group to be left")
        await consumer.client.heartbeats.send_all()

        assert GROUP not in cluster.broker.members.groups


@pytest.mark.parametrize("others", [0, 3])
async def test_close_of_a_failed_consumer_does_not_set_back_what_others_committed(
    cluster: FakeCluster, others: int
) -> None:
    put(cluster, *numbers(3))
    async with pushing(cluster, Notes(), commit_interval_seconds=3600.0) as failed:
        await until(lambda: failed._engine.table[queue()].committable == 3, "the messages")
        break_down(failed)
        await until(lambda: GROUP not in cluster.broker.members.groups, "the group to be left")
        if others:
            put(cluster, *numbers(others))
            async with pushing(cluster, Notes(), commit_interval_seconds=0.01):
                await committed(cluster, {0: 3 + others})

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 3 + others


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
async def test_foreign_cancellation_in_a_listener_does_not_end_the_consumer(
    cluster: FakeCluster, error: type[BaseException]
) -> None:
    def listener(*_: object) -> None:
        raise error

    put(cluster, *numbers(3))
    handled = Notes()
    listeners = {"on_assigned": listener, "on_revoked": listener, "on_event": listener}
    async with pushing(cluster, handled, arguments=listeners):
        await handled.have(3)

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 3


async def test_run_raises_when_a_background_task_is_cancelled_by_others(
    cluster: FakeCluster,
) -> None:
    consumer = push_consumer(cluster, Notes())
    async with nothing_left(), running(consumer) as task:
        [commits] = [each for each in asyncio.all_tasks() if each.get_name().endswith(":commits")]
        commits.cancel()

    with pytest.raises(NotRunningError, match="commits was cancelled"):
        task.result()


async def test_close_waits_for_running_handlers_and_commits(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    gate = Gate()
    async with (
        nothing_left(),
        pushing(cluster, gate, concurrency=1, close_timeout_seconds=60.0) as consumer,
    ):
        await gate.reached.wait()
        closing = asyncio.ensure_future(consumer.close())
        held = consumer._engine.table[queue()]
        await until(lambda: held.drained is not None, "the wait for the handler")
        gate.open.set()
        await closing

    assert cluster.broker.committed(GROUP, TOPIC, 0) == 1  # those that had not begun come again


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_stuck_handler_is_cancelled_at_close_without_a_commit(
    cluster: FakeCluster, seconds: float
) -> None:
    put(cluster, "a")
    cancelled = asyncio.Event()

    async def handle(_: MessageExt) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with (
        nothing_left(),
        asyncio.timeout(15),
        pushing(cluster, handle, close_timeout_seconds=seconds) as consumer,
    ):
        await until(lambda: consumer._engine.workers.busy, "a handler")

    assert cancelled.is_set()
    assert cluster.broker.committed(GROUP, TOPIC, 0) in (None, 0)


async def test_close_that_runs_out_of_time_leaves_the_group(cluster: FakeCluster) -> None:
    put(cluster, "a")
    at = ClientConfig(namesrv=cluster.namesrv)

    async with nothing_left(), asyncio.timeout(15), MQClientInstance(at) as client:
        stuck = push_consumer(cluster, forever, client=client, close_timeout_seconds=60.0)
        await stuck.start()
        await stuck.subscribe(TOPIC)
        await until(lambda: stuck._engine.workers.busy, "a handler")
        stuck._close_seconds = 0.05
        await stuck.close()

        assert cluster.broker.members.groups == {}
        async with push_consumer(cluster, forever, client=client):  # the group is free
            pass


async def test_stuck_thread_does_not_block_close(cluster: FakeCluster) -> None:
    put(cluster, "a")
    started, go = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def handle(_: MessageExt) -> None:
        threads.append(threading.current_thread())
        started.set()
        go.wait()

    try:
        async with (
            nothing_left(),
            asyncio.timeout(15),
            pushing(cluster, handle, close_timeout_seconds=0.05),
        ):
            await until(started.is_set, "a handler")
        assert threads[0].is_alive()
    finally:
        go.set()
    await until(lambda: not threads[0].is_alive(), "the end of the thread")

    assert cluster.broker.committed(GROUP, TOPIC, 0) in (None, 0)


async def test_threads_end_with_the_consumer(cluster: FakeCluster) -> None:
    put(cluster, *numbers(20))
    threads: set[threading.Thread] = set()

    def handle(_: MessageExt) -> None:
        threads.add(threading.current_thread())

    async with pushing(cluster, handle) as consumer:
        await until(lambda: consumer._engine.table[queue()].committable == 20, "all messages")
    await until(lambda: not any(thread.is_alive() for thread in threads), "their end")


async def test_close_is_idempotent(cluster: FakeCluster) -> None:
    async with pushing(cluster, Notes()) as consumer:
        pass

    calls: list[Callable[[], object]] = [consumer.suspend, consumer.resume]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(ClosedError):
        await consumer.run()
    await consumer.close()


async def test_ready_raises_when_the_consumer_closes(cluster: FakeCluster) -> None:
    cluster.faults.hold("query_offset", times=None)
    async with push_consumer(cluster, Notes()) as consumer:
        await consumer.subscribe(TOPIC)
        waiting = asyncio.ensure_future(consumer.ready())
        await until(lambda: consumer._engine.table, "queues")
        await consumer.close()

        with pytest.raises(ClosedError):
            await waiting


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_program_that_a_handler_ends_waits_for_no_handler(
    kind: type[BaseException], is_async: bool
) -> None:
    def handle(message: MessageExt) -> None:
        raise kind

    async def handle_async(message: MessageExt) -> None:
        raise kind

    async def main(namesrv: str) -> None:
        async with Producer("shop", namesrv=namesrv) as producer:
            await producer.send_batch([Message("orders", b"42")] * 20)
        consumer = PushConsumer(
            "billing",
            on_message=handle_async if is_async else handle,
            namesrv=namesrv,
            config=PushConfig(start_from="earliest", concurrency=1, close_timeout_seconds=1e6),
        )
        async with consumer:
            await consumer.subscribe("orders")
            await asyncio.Event().wait()

    with EmbeddedCluster() as cluster, pytest.raises(kind):
        asyncio.run(main(cluster.namesrv))
