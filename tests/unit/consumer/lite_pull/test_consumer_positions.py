"""LitePullConsumer on a scripted cluster: positions, seeks and pauses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.events import PullFailed
from rocketmq_aio.consumer.pull_loop import puller as puller_module
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    ConfigError,
    ConnectionLostError,
    NotConnectedError,
    PermissionDeniedError,
    RouteNotFoundError,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import (
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
from tests.unit.remoting.until import until


async def test_the_position_is_where_the_next_poll_begins(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        assert await consumer.position(queue()) == 0
        await polled(consumer, 4, max_messages=4)
        assert await consumer.position(queue()) == 4
        await consumer.__anext__()
        assert await consumer.position(queue()) == 5


async def test_the_position_passes_filtered_messages_and_is_committed(cluster: FakeCluster) -> None:
    put(cluster, *numbers(40), tag="other")
    async with consuming(cluster, "mine", commit_interval_seconds=0.01) as consumer:
        await committed(cluster, {0: 40})

        assert await consumer.position(queue()) == 40
        assert (await consumer.lag())[queue()] == 0


async def test_the_lag_counts_what_was_not_returned(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    put(cluster, *numbers(3), queue_id=2)
    async with consuming(cluster) as consumer:
        assert await consumer.lag() == {queue(0): 10, queue(1): 0, queue(2): 3, queue(3): 0}
        await polled(consumer, 4, max_messages=4)
        assert sum((await consumer.lag()).values()) == 9


async def test_lag_raises_the_error_of_a_broker_that_is_down(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        await cluster.broker.stop()
        for requests in (
            consumer.lag(),
            consumer.seek(queue(), 0),
            consumer.seek_to_end(queue()),
            consumer.offset_for_time(queue(), datetime.now(UTC)),
        ):
            with pytest.raises((NotConnectedError, ConnectionLostError)):
                await requests
        await cluster.broker.start()


async def test_an_unknown_position_raises_within_the_request_timeout() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        refused = cluster.faults.refuse("query_offset", 1, "down", times=None)
        async with consumer_of(cluster) as consumer:
            await consumer.assign([queue()])
            object.__setattr__(consumer.client.config, "request_timeout_seconds", 0.05)
            for requests in (consumer.position(queue()), consumer.lag()):
                with pytest.raises(Exception, match="down"):
                    await asyncio.wait_for(requests, 15)
            refused.remove()


async def test_offset_for_time_returns_the_offset(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with consuming(cluster) as consumer:
        now = datetime.now(UTC)
        assert await consumer.offset_for_time(queue(), now - timedelta(hours=1)) == 0
        assert await consumer.offset_for_time(queue(), now + timedelta(hours=1)) == 3


async def test_a_topic_that_does_not_exist_has_no_queues(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        with pytest.raises(RouteNotFoundError):
            await consumer.message_queues("invoices")


async def test_a_seek_goes_back_and_forth(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        await polled(consumer, 10)
        await consumer.seek(queue(), 7)
        assert bodies(await polled(consumer, 3)) == ["7", "8", "9"]
        await consumer.seek_to_begin(queue())
        assert bodies(await polled(consumer, 2, max_messages=2)) == ["0", "1"]
        await consumer.seek(queue(), 8)
        assert bodies(await polled(consumer, 2)) == ["8", "9"]
        await consumer.seek_to_begin(queue())
        await consumer.seek_to_end(queue())
        put(cluster, "new")
        assert bodies(await polled(consumer, 1)) == ["new"]


@pytest.mark.parametrize("offset", [-1, 11, 10**12, "3", 2.0, None])
async def test_a_seek_out_of_range_is_refused(
    cluster: FakeCluster,
    offset: Any,  # noqa: ANN401
) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        with pytest.raises(ConfigError) as caught:
            await consumer.seek(queue(), offset)
        assert (caught.value.setting, caught.value.value) == ("offset", offset)
        assert bodies(await polled(consumer, 10)) == numbers(10)


async def test_only_own_queues_can_be_sought_and_paused(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        foreign = queue(9)
        for requests in (
            consumer.seek(foreign, 0),
            consumer.seek_to_begin(foreign),
            consumer.seek_to_end(foreign),
            consumer.position(foreign),
        ):
            with pytest.raises(ConfigError, match="not assigned") as caught:
                await requests
            assert (caught.value.setting, caught.value.value) == ("queue", foreign)
        for act in (consumer.pause, consumer.resume):
            with pytest.raises(ConfigError, match="not assigned"):
                act([queue(0), foreign])
        assert not consumer._engine.table[queue(0)].paused


async def test_nothing_from_before_a_seek_is_returned_after_it(cluster: FakeCluster) -> None:
    put(cluster, *numbers(200))
    async with consuming(cluster, pull_batch_size=8) as consumer:
        for target in (150, 20, 199, 0, 60):
            polling = asyncio.create_task(consumer.poll(0.001, max_messages=5))
            await consumer.seek(queue(), target)
            await asyncio.wait([polling])
            taken = polling.result()  # before the seek or after it
            first = (await polled(consumer, 1, max_messages=1))[0].queue_offset
            assert first in (target, *(m.queue_offset + 1 for m in taken[-1:]))


async def test_a_seek_while_the_broker_holds_the_pull_is_not_lost(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        await polled(consumer, 10)
        await cluster.broker.wait_for(RequestCode.LITE_PULL_MESSAGE, 5)  # all queues wait now
        held = cluster.faults.hold(RequestCode.LITE_PULL_MESSAGE, times=3)
        for count, target in enumerate((3, 5, 7), start=1):
            await consumer.seek(queue(), target)
            await held.wait(count)
        held.release()

        assert bodies(await polled(consumer, 3)) == ["7", "8", "9"]


async def test_a_seek_is_committed_even_backwards(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, commit_interval_seconds=0.01) as consumer:
        await polled(consumer, 10)
        await consumer.commit()
        await consumer.seek(queue(), 3)

        await committed(cluster, {0: 3})


async def test_a_paused_queue_returns_no_messages_not_even_cached_ones(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(5))
    put(cluster, "other", queue_id=1)
    async with consuming(cluster) as consumer:
        await until(lambda: consumer._engine.table[queue()].process_queue.count == 5)
        consumer.pause([queue()])
        assert bodies(await polled(consumer, 1)) == ["other"]
        assert await consumer.poll(0.02) == []
        assert await consumer.position(queue()) == 0
        consumer.resume([queue()])

        assert bodies(await polled(consumer, 5)) == numbers(5)


async def test_a_resume_wakes_a_waiting_poll(cluster: FakeCluster) -> None:
    put(cluster, "a")
    async with consuming(cluster) as consumer:
        await until(lambda: consumer._engine.table[queue()].process_queue.count == 1)
        consumer.pause([queue()])
        polling = asyncio.create_task(consumer.poll(60))
        await wait_all_tasks_blocked()
        consumer.resume([queue()])

        assert bodies(await asyncio.wait_for(polling, 15)) == ["a"]


async def test_a_paused_queue_can_be_sought(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    async with consuming(cluster) as consumer:
        consumer.pause([queue()])
        await consumer.seek(queue(), 3)
        assert await consumer.poll(0.02) == []
        consumer.resume([queue()])

        assert bodies(await polled(consumer, 2)) == ["3", "4"]


async def test_the_next_consumer_starts_at_the_committed_offsets(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        await polled(consumer, 6, max_messages=6)
    async with consuming(cluster) as consumer:
        assert bodies(await polled(consumer, 4)) == numbers(4, first=6)


async def test_assignments_are_sorted(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        assigned = consumer.assignment()

    assert assigned == sorted(assigned) == [MessageQueue(TOPIC, "broker-a", n) for n in range(4)]


DENIED: Final = Response(16, remark="User:app has no permission to access Topic:orders")


async def test_ready_raises_permission_denied_and_reading_starts_once_allowed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "START_PAUSE_SECONDS", 0.01)
    denied = cluster.faults.handle(RequestCode.GET_MAX_OFFSET, DENIED, times=None)
    async with consumer_of(cluster, start_from="latest") as consumer:
        events = consumer.events()
        await consumer.subscribe(TOPIC)
        for _ in range(2):
            with pytest.raises(PermissionDeniedError, match="no permission") as caught:
                await consumer.ready(20)
            assert "give it the action Get on Topic:orders" in caught.value.__notes__[0]
        failed = await anext(each async for each in events if isinstance(each, PullFailed))
        assert "action Get on Topic:orders" in failed.reason

        denied.remove()
        await consumer.ready(20)
        put(cluster, "1")
        assert bodies(await polled(consumer, 1)) == ["1"]


@pytest.mark.parametrize("by_poll", [True, False], ids=["poll", "async for"])
async def test_poll_raises_permission_denied(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, by_poll: bool
) -> None:
    monkeypatch.setattr(puller_module, "START_PAUSE_SECONDS", 0.01)
    cluster.faults.handle(RequestCode.GET_MAX_OFFSET, DENIED, times=None)
    async with consumer_of(cluster, start_from="latest") as consumer:
        await consumer.subscribe(TOPIC)
        for _ in range(2):
            with pytest.raises(PermissionDeniedError):
                await (consumer.poll(60) if by_poll else anext(consumer))


async def test_a_start_error_of_one_queue_does_not_stop_the_others() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        cluster.faults.handle(RequestCode.GET_MAX_OFFSET, DENIED, times=None, broker="broker-a")
        async with consumer_of(cluster, start_from="latest") as consumer:
            await consumer.subscribe(TOPIC)
            with pytest.raises(PermissionDeniedError):
                await consumer.ready(20)
            await consumer.position(queue(0, "broker-b"))
            assert await consumer.poll(0) == []
            put(cluster, "1", broker=1)
            assert bodies(await polled(consumer, 1)) == ["1"]


async def test_resuming_a_queue_does_not_raise_why_its_start_is_unknown(
    cluster: FakeCluster,
) -> None:
    """The broker is only unreachable: the consumer tries again."""
    unreachable = cluster.faults.close(RequestCode.QUERY_CONSUMER_OFFSET, times=None)
    put(cluster, "1")
    async with consumer_of(cluster) as consumer:
        await consumer.assign([queue(0)])
        await unreachable.wait()
        await until(lambda: consumer._engine.table[queue(0)].start_error)
        consumer.resume([queue(0)])
        assert await consumer.poll(0) == []
        unreachable.remove()
        assert bodies(await polled(consumer, 1)) == ["1"]
