"""LitePullConsumer on a scripted cluster: automatic and manual commits."""

from __future__ import annotations

import asyncio

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.events import CommitFailed, OffsetCorrected
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import CommitError, ConnectionLostError, NotConnectedError
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.offsets import UpdateConsumerOffset
from rocketmq_aio.protocol.requests.pull import PullMessage
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import (
    GROUP,
    TOPIC,
    bodies,
    committed,
    consuming,
    numbers,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until


def stored(cluster: FakeCluster, queue_id: int = 0) -> int | None:
    return cluster.broker.committed(GROUP, TOPIC, queue_id)


def commits(cluster: FakeCluster, queue_id: int = 0) -> list[int]:
    """Return every commit of a queue that went over the wire."""
    requests = [
        read_header(command, UpdateConsumerOffset)
        for command in cluster.broker.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)
    ]
    return [each.commit_offset for each in requests if each.queue_id == queue_id]


async def test_only_messages_of_earlier_polls_are_committed_automatically(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, commit_interval_seconds=0.01) as consumer:
        await polled(consumer, 3, max_messages=3)
        await polled(consumer, 4, max_messages=4)
        await committed(cluster, {0: 3})
        await until(lambda: len(cluster.broker.requests_of(RequestCode.HEART_BEAT)) >= 1)
        assert stored(cluster) == 3
        await polled(consumer, 3, max_messages=3)
        await committed(cluster, {0: 7})
        assert await consumer.poll(0) == []
        await committed(cluster, {0: 10})

    assert commits(cluster) == sorted(set(commits(cluster)))


async def test_iteration_commits_earlier_messages(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, commit_interval_seconds=0.01) as consumer:
        for _ in range(4):
            await consumer.__anext__()

        await committed(cluster, {0: 3})


async def test_leaving_the_block_normally_commits_the_last_batch(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        await polled(consumer, 4, max_messages=4)

    assert stored(cluster) == 4


async def test_leaving_the_block_through_an_error_does_not(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))

    async def work() -> None:
        async with consuming(cluster) as consumer:
            await polled(consumer, 4, max_messages=4)
            await polled(consumer, 3, max_messages=3)
            raise LookupError

    with pytest.raises(LookupError):
        await work()

    assert stored(cluster) == 4


async def test_leaving_does_not_commit_the_batch_of_another_task(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))

    async with consuming(cluster) as consumer:

        async def read() -> None:
            await polled(consumer, 4, max_messages=4)
            await asyncio.sleep(3600)

        reading = asyncio.create_task(read())
        await cluster.broker.wait_for(RequestCode.LITE_PULL_MESSAGE)
        await wait_all_tasks_blocked()
        reading.cancel()
        await asyncio.wait([reading])

    assert not stored(cluster)


async def test_leaving_the_block_by_cancellation_does_not(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))

    async def work() -> None:
        async with consuming(cluster) as consumer:
            await polled(consumer, 4, max_messages=4)
            await asyncio.sleep(3600)

    working = asyncio.create_task(work())
    await cluster.broker.wait_for(RequestCode.LITE_PULL_MESSAGE)
    await wait_all_tasks_blocked()
    working.cancel()
    await asyncio.wait([working])

    assert not stored(cluster)


async def test_a_plain_close_does_not_commit_the_last_batch(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        await polled(consumer, 4, max_messages=4)
        await polled(consumer, 3, max_messages=3)
        await consumer.close()

    assert stored(cluster) == 4


async def test_without_auto_commit_nothing_is_committed(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, auto_commit=False, commit_interval_seconds=0.001) as consumer:
        await polled(consumer, 4, max_messages=4)
        await polled(consumer, 3, max_messages=3)
        await consumer.poll(0.02, max_messages=1)

    assert stored(cluster) is None


async def test_a_failed_commit_is_an_event_and_retried(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with consuming(cluster, commit_interval_seconds=0.01) as consumer:
        events = consumer.events()
        cluster.faults.refuse("commit", 1, "full", times=4)
        await polled(consumer, 3)
        await consumer.poll(0)
        event = await asyncio.wait_for(anext(events), 15)
        assert isinstance(event, CommitFailed)
        assert "full" in event.reason

        await committed(cluster, {0: 3})


async def test_an_offset_is_sent_once(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with consuming(cluster, commit_interval_seconds=0.001) as consumer:
        await polled(consumer, 3)
        await consumer.poll(0)
        await committed(cluster, {0: 3})
        await consumer.poll(0.02)

    assert commits(cluster) in ([0, 3], [3])


async def test_no_commit_rides_on_a_pull(cluster: FakeCluster) -> None:
    put(cluster, *numbers(100))
    async with consuming(cluster, pull_batch_size=8) as consumer:
        for _ in range(50):
            await polled(consumer, 2, max_messages=2)
            await consumer.commit()

    pulls = [
        read_header(command, PullMessage)
        for command in cluster.broker.requests_of(RequestCode.LITE_PULL_MESSAGE)
    ]
    assert len(pulls) > 10
    assert {(each.sys_flag & 1, each.commit_offset) for each in pulls} == {(0, 0)}


async def test_returned_messages_can_be_committed_at_once(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    put(cluster, *numbers(2), queue_id=1)
    async with consuming(cluster, auto_commit=False) as consumer:
        await polled(consumer, 12)
        await consumer.seek(queue(), 4)
        await polled(consumer, 3, max_messages=3)
        await consumer.commit()
        assert (stored(cluster, 0), stored(cluster, 1)) == (7, 2)
        await consumer.commit({queue(0): 5})
        assert (stored(cluster, 0), stored(cluster, 1)) == (5, 2)
        await consumer.commit([queue(0)])
        assert stored(cluster, 0) == 7


async def test_commits_of_one_queue_do_not_touch_another(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    put(cluster, *numbers(5), queue_id=1)
    async with consuming(cluster, auto_commit=False) as consumer:
        await polled(consumer, 10)
        await consumer.commit([queue(0)])
        assert stored(cluster, 1) is None
        await consumer.commit([queue(1)])
        assert (stored(cluster, 0), stored(cluster, 1)) == (5, 5)


async def test_commit_error_has_the_unassigned_queues(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    async with consuming(cluster) as consumer:
        await polled(consumer, 5)
        foreign = queue(0, topic="invoices")
        with pytest.raises(CommitError) as caught:
            await consumer.commit({queue(0): 5, foreign: 1})

        assert set(caught.value.lost) == {foreign}
        assert stored(cluster) == 5


async def test_commit_error_has_the_queues_of_a_dead_broker() -> None:
    async with FakeCluster(2, topics={TOPIC: 1}) as cluster:
        put(cluster, "a")
        put(cluster, "b", broker=1)
        async with consuming(cluster, auto_commit=False) as consumer:
            await polled(consumer, 2)
            await cluster.brokers[1].stop()
            with pytest.raises(CommitError) as caught:
                await consumer.commit()

            assert set(caught.value.lost) == {queue(0, "broker-b")}
            assert cluster.broker.committed(GROUP, TOPIC, 0) == 1


async def test_a_refused_commit_is_raised(cluster: FakeCluster) -> None:
    put(cluster, "a")
    async with consuming(cluster, auto_commit=False) as consumer:
        await polled(consumer, 1)
        cluster.faults.refuse("commit", 1, "full", times=None)
        with pytest.raises(CommitError, match="full"):
            await consumer.commit([queue(0)])


async def test_committed_returns_the_committed_offset(cluster: FakeCluster) -> None:
    put(cluster, *numbers(40), queue_id=1)
    cluster.broker.commit(GROUP, TOPIC, 1, 33)
    async with consuming(cluster) as consumer:
        assert await consumer.committed(queue(0)) is None
        assert await consumer.committed(queue(1)) == 33
        assert await consumer.committed(queue(0, topic="TBW102")) is None


async def test_committed_raises_if_the_broker_cannot_be_reached(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        await cluster.broker.stop()
        with pytest.raises((NotConnectedError, ConnectionLostError)):
            await consumer.committed(queue(0))
        await cluster.broker.start()


async def lose_tail(cluster: FakeCluster, consumer: LitePullConsumer, first_lost: int) -> None:
    """Restart the broker without its last messages; return when the consumer has corrected."""
    events = consumer.events()
    await cluster.broker.stop()
    cluster.broker.state.committed.clear()  # brokers write offsets down every few seconds
    del cluster.broker.topics[TOPIC].queues[0].messages[first_lost:]
    await cluster.broker.start()
    async with asyncio.timeout(15):
        async for event in events:
            if isinstance(event, OffsetCorrected):
                return


@pytest.mark.parametrize("done", [0, 3])
async def test_a_correction_after_a_lost_tail_commits_no_message_that_was_not_committed(
    cluster: FakeCluster, done: int
) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, auto_commit=False) as consumer:
        if done:
            await polled(consumer, done, max_messages=done)
            await consumer.commit()
        await polled(consumer, 4, max_messages=4)  # in hands ...
        await polled(consumer, 3, max_messages=3)  # ... though another poll came after it
        await lose_tail(cluster, consumer, 9)
        put(cluster, "new")
        while "new" not in bodies(await polled(consumer, 1)):
            pass
        await consumer.close()

    assert (stored(cluster) or 0) == done
    async with consuming(cluster) as consumer:  # after a crash nothing is missing
        assert bodies(await polled(consumer, 10 - done)) == [*numbers(9 - done, done), "new"]


async def test_a_correction_lowers_a_commit_beyond_the_new_end(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, auto_commit=False) as consumer:
        await polled(consumer, 10)
        await consumer.commit()
        await lose_tail(cluster, consumer, 6)
        await committed(cluster, {0: 6})
        put(cluster, *numbers(4, 6))
        await polled(consumer, 4)

    async with consuming(cluster) as consumer:
        assert bodies(await polled(consumer, 4)) == numbers(4, 6)


async def test_a_broker_that_lost_its_tail_is_not_sent_positions_that_were_never_committed(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(10))
    put(cluster, *numbers(2), queue_id=1)
    async with consuming(cluster, auto_commit=False, commit_interval_seconds=0.01) as consumer:
        await polled(consumer, 12)
        await consumer.commit([queue(0)])
        await lose_tail(cluster, consumer, 6)
        await committed(cluster, {0: 6})

    assert commits(cluster, 1) == []


async def test_a_correction_does_not_commit_a_seek_that_was_not_committed(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster, auto_commit=False) as consumer:
        await polled(consumer, 2, max_messages=2)
        await consumer.commit()
        await consumer.seek(queue(), 8)
        await lose_tail(cluster, consumer, 6)
        put(cluster, "new")
        assert bodies(await polled(consumer, 1)) == ["new"]

    assert stored(cluster) == 2


async def test_a_start_commit_that_failed_is_repeated_without_auto_commit(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(5))
    full = Response(1, remark="full")
    cluster.faults.handle("commit", full, times=4)  # one of each queue
    async with consuming(
        cluster, start_from="latest", auto_commit=False, commit_interval_seconds=0.01
    ) as consumer:
        await committed(cluster, {0: 5, 1: 0, 2: 0, 3: 0})
        put(cluster, "a", "b")
        await polled(consumer, 1, max_messages=1)
        await polled(consumer, 1, max_messages=1)
        await consumer.close()

    assert stored(cluster) == 5


async def test_a_start_commit_that_failed_is_repeated_on_close(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    full = Response(1, remark="full")
    cluster.faults.handle("commit", full, times=4)
    async with consuming(cluster, start_from="latest", auto_commit=False) as consumer:
        await cluster.broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 4)
        put(cluster, "a")
        await polled(consumer, 1)

    assert stored(cluster) == 5


async def test_a_failed_start_commit_is_not_repeated_over_a_manual_commit(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(5))
    full = Response(1, remark="full")
    cluster.faults.handle("commit", full, times=4)
    async with consuming(cluster, start_from="latest", auto_commit=False) as consumer:
        await cluster.broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 4)
        put(cluster, "a", "b")
        await polled(consumer, 1, max_messages=1)
        await consumer.commit([queue()])

    assert commits(cluster) == [5, 6]
