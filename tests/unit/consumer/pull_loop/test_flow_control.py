"""Flow control: limits per queue and topic, and wake-ups of pull loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.config.consumer import LitePullConfig, PushConfig
from rocketmq_aio.consumer.pull_loop import flow_control as flow_control_module
from rocketmq_aio.consumer.pull_loop.flow_control import Cache, CacheFlowControl, TopicFlowControl
from rocketmq_aio.consumer.push.dispatch_queue import WAKE_AFTER, DispatchQueue
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, numbers, put
from tests.unit.consumer.parts import assigned_queue, message, queue
from tests.unit.consumer.pushing import pushing
from tests.unit.consumer.worker_env import Gate
from tests.unit.remoting.until import until


def holding(
    count: int, *, size: int = 1, last: int | None = None, queue_id: int = 0
) -> DispatchQueue:
    """A queue with *count* messages cached, the last of them at offset *last*."""
    assigned = DispatchQueue(queue(queue_id))
    assigned.begin(0)
    offsets = [*range(count - 1), count - 1 if last is None else last]
    assigned.put([message(offset, assigned.queue, size) for offset in offsets[:count]])
    return assigned


def limits(
    held: list[MessageQueue] | None = None,
    *,
    orderly: bool = False,
    **settings: Any,  # noqa: ANN401
) -> TopicFlowControl:
    return TopicFlowControl(PushConfig(**settings), held or [queue()], orderly=orderly)


@pytest.mark.parametrize(("count", "room"), [(0, True), (10, True), (11, False)])
def test_the_message_limit_per_queue_pauses_pulling(count: int, room: bool) -> None:
    assert limits(pull_threshold_per_queue=10).may_pull(holding(count)) is room


@pytest.mark.parametrize(("size", "room"), [(50, True), (51, False)])
def test_the_byte_limit_per_queue_pauses_pulling(size: int, room: bool) -> None:
    bound = limits(pull_threshold_bytes_per_queue=100)

    assert bound.may_pull(holding(2, size=size)) is room


@pytest.mark.parametrize(("last", "room"), [(20, True), (21, False)])
def test_the_span_limit_pauses_pulling(last: int, room: bool) -> None:
    assert limits(max_span=20).may_pull(holding(2, last=last)) is room


def test_orderly_queues_have_no_span_limit() -> None:
    assert limits(orderly=True, max_span=1).may_pull(holding(2, last=10**9))


@pytest.mark.parametrize(("count", "room"), [(25, True), (26, False)])
def test_the_topic_limit_is_divided_by_its_queues(count: int, room: bool) -> None:
    held = [queue(number) for number in range(4)] + [queue(0, topic="others")]
    bound = limits(held, pull_threshold_per_topic=100)

    assert bound.may_pull(holding(count)) is room


@pytest.mark.parametrize(("size", "room"), [(25, True), (26, False)])
def test_the_byte_limit_of_a_topic_is_divided_by_its_queues(size: int, room: bool) -> None:
    held = [queue(number) for number in range(4)]
    bound = limits(held, pull_threshold_bytes_per_topic=100)

    assert bound.may_pull(holding(1, size=size)) is room


def test_a_topic_limit_below_the_number_of_queues_allows_one_message_each() -> None:
    held = [queue(number) for number in range(4)]
    bound = limits(held, pull_threshold_per_topic=1)

    assert bound.may_pull(holding(1))
    assert not bound.may_pull(holding(2))


def test_the_share_of_a_queue_grows_when_others_are_revoked() -> None:
    held = [queue(0), queue(1)]
    bound = limits(held, pull_threshold_per_topic=10)
    assert not bound.may_pull(holding(8))

    del held[1]
    assert bound.may_pull(holding(8))


async def blocked(assigned: DispatchQueue) -> asyncio.Future[None]:
    """Let the pull loop of *assigned* wait for room."""
    assigned.wake = asyncio.get_running_loop().create_future()
    assigned.block()
    return assigned.wake


async def test_a_full_queue_is_woken_when_there_is_room_for_a_pull() -> None:
    assigned = holding(1001)
    wake = await blocked(assigned)
    taken = assigned.take(WAKE_AFTER)
    for each in taken[:-1]:
        assigned.mark_done(each)
    assert not wake.done()

    assigned.mark_done(taken[-1])
    assert wake.done()


@pytest.mark.parametrize("limit", [{"pull_threshold_bytes_per_queue": 100}, {"max_span": 5000}])
async def test_room_that_a_single_message_makes_is_noticed(
    monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    monkeypatch.setattr(flow_control_module, "CHECK_SECONDS", 0.01)
    bound = limits(**limit)
    assigned = DispatchQueue(queue())
    assigned.begin(0)
    large = message(0, assigned.queue, 100)
    assigned.put([large, *(message(n, assigned.queue, 1) for n in range(5000, 5063))])
    assert not bound.may_pull(assigned)
    pausing = asyncio.create_task(bound.pause(assigned))
    await asyncio.sleep(0)
    assigned.mark_done(large)
    assert assigned.wake is not None
    assert not assigned.wake.done()

    await pausing
    assert bound.may_pull(assigned)


async def test_a_queue_that_is_revoked_while_it_waits_for_room_is_not_kept() -> None:
    cache = Cache()
    assigned = assigned_queue(cached=2, cache=cache)
    bound = CacheFlowControl(LitePullConfig(pull_threshold_per_queue=1), cache)
    waiting = asyncio.create_task(bound.pause(assigned))
    await wait_all_tasks_blocked()
    assert cache.blocked == {assigned}
    waiting.cancel()
    await asyncio.wait([waiting])

    assert cache.blocked == set()


async def test_few_messages_far_apart_wake_the_pull_loop_one_by_one() -> None:
    """The first message may take long, and there is room for others."""
    assigned = holding(3, last=5000)
    wake = await blocked(assigned)
    first, *_ = assigned.take(3)
    assigned.mark_done(first)

    assert wake.done()


async def test_a_stuck_message_behind_a_gap_does_not_stop_the_queue(cluster: FakeCluster) -> None:
    gate = Gate(30)
    put(cluster, "first", tag="a")
    put(cluster, *numbers(29), tag="b")
    put(cluster, "stuck", tag="a")
    async with pushing(
        cluster, gate, selector="a", max_span=20, close_timeout_seconds=0
    ) as consumer:
        await gate.reached.wait()
        put(cluster, *numbers(5), tag="a")
        held = consumer._engine.table[queue()]
        await until(lambda: held.next_offset == 36, "the pulls to go on")
        await until(lambda: held.process_queue.count == 1, "all others to be done")


async def test_the_cache_stays_within_its_threshold_while_handlers_are_busy(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(500))
    go = asyncio.Event()

    async def handle(_: MessageExt) -> None:
        await go.wait()

    async with pushing(
        cluster, handle, pull_threshold_per_queue=50, pull_batch_size=10
    ) as consumer:
        held = consumer._engine.table[queue()]
        await until(lambda: held.wake is not None, "the pull loop to wait")
        assert 50 < held.process_queue.count <= 60

        go.set()
        await until(lambda: held.committable == 500, "the rest")


async def test_the_topic_limit_holds_in_a_consumer(cluster: FakeCluster) -> None:
    for number in range(4):
        put(cluster, *numbers(200), queue_id=number)
    go, handled = asyncio.Event(), 0

    async def handle(_: MessageExt) -> None:
        nonlocal handled
        await go.wait()
        handled += 1

    async with pushing(cluster, handle, pull_threshold_per_topic=40, pull_batch_size=5) as consumer:
        held = [each for each in consumer._engine.table.values() if each.queue.topic == TOPIC]
        await until(lambda: all(each.wake for each in held), "the pull loops to wait")
        assert all(10 < each.process_queue.count <= 15 for each in held)

        go.set()
        await until(lambda: handled == 800, "the rest")
