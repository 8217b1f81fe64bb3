"""LitePullConsumer on a scripted cluster: polling and iteration."""

from __future__ import annotations

import asyncio

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pull_loop.puller import Puller
from rocketmq_aio.errors import ClosedError, ConfigError, NotRunningError, OffsetIllegalError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import (
    TOPIC,
    bodies,
    consumer_of,
    consuming,
    numbers,
    polled,
    put,
)
from tests.unit.consumer.parts import queue
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import settle, until


async def cached(consumer: LitePullConsumer, count: int) -> None:
    """Return once so many messages wait in the consumer."""
    await until(lambda: held(consumer) == count, f"{count} cached messages")


def held(consumer: LitePullConsumer) -> int:
    return sum(each.process_queue.count for each in consumer._engine.table.values())


async def test_poll_returns_an_empty_list_without_messages(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        loop = asyncio.get_running_loop()
        began = loop.time()

        assert await consumer.poll(0.05) == []
        assert loop.time() - began >= 0.04  # a loop may count in whole milliseconds


async def test_poll_returns_at_the_first_message(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        polling = asyncio.create_task(consumer.poll(60))
        await wait_all_tasks_blocked()
        put(cluster, "a")

        assert bodies(await asyncio.wait_for(polling, 15)) == ["a"]


async def test_poll_returns_up_to_max_messages(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with consuming(cluster) as consumer:
        await cached(consumer, 10)

        assert bodies(await consumer.poll(5, max_messages=3)) == ["0", "1", "2"]
        assert bodies(await consumer.poll(5, max_messages=1)) == ["3"]
        assert bodies(await consumer.poll(5)) == numbers(6, first=4)


async def test_messages_of_a_queue_are_in_order_and_queues_take_turns(cluster: FakeCluster) -> None:
    for number in range(4):
        put(cluster, *numbers(100), queue_id=number)
    async with consuming(cluster) as consumer:
        taken = await polled(consumer, 400, max_messages=10)

    for number in range(4):
        assert bodies(m for m in taken if m.queue.queue_id == number) == numbers(100)
    assert len({message.queue.queue_id for message in taken[:80]}) == 4


async def test_a_poll_with_invalid_arguments_marks_nothing_as_processed(
    cluster: FakeCluster,
) -> None:
    put(cluster, "a")
    async with consuming(cluster) as consumer:
        await polled(consumer, 1)
        with pytest.raises(ConfigError):
            await consumer.poll(-1)

        assert consumer._engine.table[queue()].committable == 0


async def test_polling_without_a_timeout_yields_to_other_tasks(cluster: FakeCluster) -> None:
    put(cluster, *numbers(100))
    async with consuming(cluster, pull_batch_size=8) as consumer:
        taken: list[MessageExt] = []
        async with asyncio.timeout(15):
            while len(taken) < 100:
                taken += await consumer.poll(0)

        assert bodies(taken) == numbers(100)


async def test_other_calls_do_not_wait_for_a_poll(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    async with consuming(cluster) as consumer:
        await polled(consumer, 5)
        polling = asyncio.create_task(consumer.poll(60))
        await wait_all_tasks_blocked()
        async with asyncio.timeout(15):
            await consumer.commit()
            assert await consumer.committed(queue()) == 5
            assert await consumer.position(queue()) == 5
            assert sum((await consumer.lag()).values()) == 0
            consumer.pause([queue(1)])
            consumer.resume([queue(1)])
            assert not polling.done()
            await consumer.seek(queue(), 3)
            assert bodies(await polling) == ["3", "4"]


@pytest.mark.parametrize("awaited", ["nothing", "messages"])
async def test_a_poll_cancelled_at_any_step_loses_nothing(
    cluster: FakeCluster, awaited: str
) -> None:
    async with consuming(cluster) as consumer:
        taken: list[MessageExt] = []
        for steps in range(40):
            polling = asyncio.create_task(consumer.poll(60))
            await asyncio.sleep(0)
            if awaited == "messages":
                put(cluster, str(steps))
            await settle(turns=steps)
            polling.cancel()
            await asyncio.wait([polling])
            if not polling.cancelled():
                taken += polling.result()
        if awaited == "nothing":
            put(cluster, *numbers(40))

        taken += await polled(consumer, 40 - len(taken)) if len(taken) < 40 else []
        assert bodies(taken) == numbers(40)


async def test_a_poll_under_a_deadline_loses_nothing(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        taken: list[MessageExt] = []
        for number in range(40):
            put(cluster, str(number))
            try:
                async with asyncio.timeout(0.0001 * number):
                    taken += await consumer.poll(60)
            except TimeoutError:
                continue

        taken += await polled(consumer, 40 - len(taken)) if len(taken) < 40 else []
        assert bodies(taken) == numbers(40)


async def test_two_polling_tasks_get_different_messages(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        taken: list[list[MessageExt]] = [[], []]

        async def poll_on(into: list[MessageExt]) -> None:
            while True:
                into += await consumer.poll(60, max_messages=3)
                await asyncio.sleep(0)

        pollers = [asyncio.create_task(poll_on(each)) for each in taken]
        await wait_all_tasks_blocked()
        for number in range(4):
            put(cluster, *numbers(25, first=25 * number), queue_id=number)
        await until(lambda: len(taken[0]) + len(taken[1]) == 100)
        for poller in pollers:
            poller.cancel()

    assert sorted(map(int, bodies(taken[0] + taken[1]))) == list(range(100))
    assert all(taken)


async def test_a_poll_ends_with_an_error_when_the_consumer_is_closed(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        polling = [asyncio.create_task(consumer.poll(60)) for _ in range(3)]
        await wait_all_tasks_blocked()
    ended = await asyncio.wait_for(asyncio.gather(*polling, return_exceptions=True), 15)

    assert [type(each) for each in ended] == [ClosedError] * 3


async def test_iteration_returns_all_messages(cluster: FakeCluster) -> None:
    for number in range(4):
        put(cluster, *numbers(50), queue_id=number)
    taken: list[MessageExt] = []
    async with consuming(cluster) as consumer:
        async for message in consumer:
            taken.append(message)
            if len(taken) == 200:
                break

    for number in range(4):
        assert bodies(m for m in taken if m.queue.queue_id == number) == numbers(50)


async def test_iteration_waits_for_messages(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        reading = asyncio.create_task(consumer.__anext__())
        await wait_all_tasks_blocked()
        put(cluster, "late")

        assert (await asyncio.wait_for(reading, 15)).body == b"late"


async def test_iteration_ends_when_the_consumer_is_closed(cluster: FakeCluster) -> None:
    put(cluster, "a", "b")

    async def read() -> list[MessageExt]:
        return [message async for message in consumer]

    consumer = consumer_of(cluster)
    await consumer.subscribe(TOPIC)
    await consumer.start()
    reading = asyncio.create_task(read())
    await until(lambda: consumer._engine.table and consumer._engine.table[queue()].delivered == 2)
    await consumer.close()

    assert bodies(await asyncio.wait_for(reading, 15)) == ["a", "b"]
    assert await asyncio.wait_for(read(), 15) == []


async def test_iteration_can_be_resumed(cluster: FakeCluster) -> None:
    put(cluster, *numbers(6))
    async with consuming(cluster) as consumer:
        first = [await anext(consumer) for _ in range(3)]
        second = await polled(consumer, 1, max_messages=1)
        third = [await anext(consumer) for _ in range(2)]

    assert bodies(first + second + third) == numbers(6)


async def test_iteration_cancelled_at_any_step_loses_nothing(cluster: FakeCluster) -> None:
    async with consuming(cluster) as consumer:
        taken: list[MessageExt] = []
        for steps in range(40):
            reading = asyncio.create_task(consumer.__anext__())
            await asyncio.sleep(0)
            put(cluster, str(steps))
            await settle(turns=steps)
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                taken.append(reading.result())

        taken += await polled(consumer, 40 - len(taken)) if len(taken) < 40 else []
        assert bodies(taken) == numbers(40)


async def test_an_illegal_offset_is_raised_until_a_seek(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    cluster.broker.topics[TOPIC].queues[0].drop_before(4)
    cluster.broker.commit("billing", TOPIC, 0, 1)
    async with consuming(cluster, offset_illegal="error") as consumer:
        with pytest.raises(OffsetIllegalError):
            await consumer.poll(5)
        with pytest.raises(OffsetIllegalError):
            await consumer.__anext__()
        depths = []
        for _ in range(2):
            with pytest.raises(OffsetIllegalError) as caught:
                await consumer.poll(0)
            depths.append(len(caught.traceback))
        await consumer.seek_to_begin(queue())

        assert depths[0] == depths[1], "each poll adds its frames to the error"

        assert bodies(await polled(consumer, 6)) == numbers(6, first=4)


async def test_an_unexpected_error_ends_the_consumer(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nothing_left():
        consumer = consumer_of(cluster)
        await consumer.subscribe(TOPIC)
        await consumer.start()
        await consumer.ready(5)
        events = consumer.events()
        polling = asyncio.create_task(consumer.poll(60))
        reading = asyncio.create_task(consumer.__anext__())
        await wait_all_tasks_blocked()

        def bug(*_: object) -> None:
            raise LookupError("a bug")

        monkeypatch.setattr(Puller, "_found", bug)
        put(cluster, "a")
        ended = await asyncio.wait_for(asyncio.gather(polling, reading, return_exceptions=True), 15)

        for error in ended:
            assert isinstance(error, NotRunningError)
            assert isinstance(error.__cause__, LookupError)
        with pytest.raises(NotRunningError, match="a bug"):
            await consumer.ready()
        assert [event async for event in events] == []
        assert "background_task_failed" in caplog.text
        await consumer.close()


async def test_closing_a_shared_client_ends_polls(cluster: FakeCluster) -> None:
    async with nothing_left():
        async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
            consumer = consumer_of(cluster, client=client)
            await consumer.subscribe(TOPIC)
            await consumer.start()
            await consumer.ready(5)
            polling = asyncio.create_task(consumer.poll(3600))
            reading = asyncio.create_task(consumer.__anext__())
            await wait_all_tasks_blocked()
        await asyncio.wait({polling, reading}, timeout=15)
        for ended in (polling, reading):
            with pytest.raises(NotRunningError, match="was closed"):
                ended.result()
        await consumer.close()
