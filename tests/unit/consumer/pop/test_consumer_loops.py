"""PopConsumer on a scripted cluster: ``async for``, background acks and renewals."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.events import AckFailed
from rocketmq_aio.consumer.pop import ack_service as pop_acks, intake, renewal
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from rocketmq_aio.embedded.notifier import WAIT_SECONDS
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, numbers, put
from tests.unit.consumer.pop_env import RETRY_TOPIC, hold_acks, invisible, popper_of, popping
from tests.unit.remoting.until import until

ACK = RequestCode.ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


async def fail_at_the_first(consumer: PopConsumer) -> None:
    async for _ in consumer:
        raise ZeroDivisionError


async def test_asking_for_the_next_message_acknowledges(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with popping(cluster) as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == 3:
                await until(lambda: invisible(cluster) == 1)
                break

    assert seen == [b"0", b"1", b"2"]
    assert invisible(cluster) == 1


async def test_leaving_by_an_exception_acknowledges_nothing(cluster: FakeCluster) -> None:
    put(cluster, "1")

    async def work() -> None:
        async with popping(cluster) as consumer:
            await fail_at_the_first(consumer)

    with pytest.raises(ZeroDivisionError):
        await work()

    assert invisible(cluster) == 1
    assert cluster.broker.requests_of(ACK) == []


async def test_after_an_exception_that_was_caught_the_message_is_not_acknowledged(
    cluster: FakeCluster,
) -> None:
    put(cluster, "1", "2")
    async with popping(cluster) as consumer:
        with pytest.raises(ZeroDivisionError):
            await fail_at_the_first(consumer)
        async for message in consumer:
            assert message.body == b"2"
            await consumer.ack(message)
            break

    assert invisible(cluster) == 1


async def test_messages_acknowledged_in_the_body_are_not_acknowledged_again(
    cluster: FakeCluster,
) -> None:
    put(cluster, "1", "2")
    async with popping(cluster) as consumer:
        async for message in consumer:
            await consumer.ack(message)
            if message.body == b"2":
                break

    assert len(cluster.broker.requests_of(ACK)) == 2


async def test_a_message_given_back_is_not_acknowledged(cluster: FakeCluster) -> None:
    put(cluster, "1", "2")
    async with popping(cluster) as consumer:
        async for message in consumer:
            await consumer.retry(message, 60)
            if message.body == b"2":
                break

    assert invisible(cluster) == 2
    assert cluster.broker.requests_of(ACK) == []


async def test_several_tasks_share_the_messages(cluster: FakeCluster) -> None:
    put(cluster, *numbers(40))
    seen: list[bytes] = []

    async def work(consumer: PopConsumer) -> None:
        async for message in consumer:
            seen.append(message.body)
            await asyncio.sleep(0)

    async with popping(cluster) as consumer:
        tasks = [asyncio.ensure_future(work(consumer)) for _ in range(4)]
        await until(lambda: invisible(cluster) == 0 and len(seen) == 40)
    await asyncio.gather(*tasks)  # closing ends their loops

    assert sorted(seen) == sorted(each.encode() for each in numbers(40))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are renewed repeatedly, long before their invisible time is over."""
    monkeypatch.setattr(renewal, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(PoppedMessage, "is_due", lambda *_: True)


def renewed(cluster: FakeCluster) -> Counter[str]:
    """Return how often each offset was kept longer."""
    return Counter(each.ext_fields()["offset"] for each in cluster.broker.requests_of(CHANGE))


@pytest.mark.usefixtures("eager")
async def test_messages_in_flight_and_in_the_buffer_are_renewed(cluster: FakeCluster) -> None:
    put(cluster, "1", "2", "3")
    async with popping(cluster) as consumer:
        async for message in consumer:
            if message.body == b"1":
                await until(lambda: min(renewed(cluster)[offset] for offset in "012") >= 3)
            if message.body == b"3":
                await consumer.ack(message)
                break

    assert RETRY_TOPIC not in cluster.broker.topics


async def test_a_renewed_message_has_its_whole_invisible_time_again(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster, invisible_seconds=4) as consumer:
        async for message in consumer:
            before = message.expires_at
            await until(lambda: message.expires_at > before + 1)  # noqa: B023 - of this one message
            await consumer.ack(message)
            break

    assert invisible(cluster) == 0
    assert RETRY_TOPIC not in cluster.broker.topics


async def test_nothing_is_renewed_for_a_loop_that_was_left(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster, invisible_seconds=0.2) as consumer:
        async for _ in consumer:
            break
        gc.collect()
        again = await consumer.receive()

    assert [each.body for each in again] == [b"1"]
    assert again[0].reconsume_times > 0


async def test_renewal_ends_after_renew_seconds(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster, invisible_seconds=0.2, renew_seconds=0.3) as consumer:
        loop = aiter(consumer)
        await anext(loop)
        again = await consumer.receive()

    assert [each.body for each in again] == [b"1"]
    assert again[0].reconsume_times > 0


async def test_buffered_messages_are_renewed_while_a_loop_runs_however_long_they_waited(
    cluster: FakeCluster,
) -> None:
    put(cluster, "1", "2")
    async with popping(cluster, renew_seconds=900.0) as consumer:
        loop, engine = aiter(consumer), consumer._engine
        current = await anext(loop)
        [waiting] = engine._buffer.messages
        current.received_at = waiting.received_at = boottime() - 901
        [worker] = engine.workers
        renewed = set(engine._in_use())
        worker.since -= 901  # its body takes too long

        assert renewed == {current, waiting}
        assert set(engine._in_use()) == set()


@pytest.mark.usefixtures("eager")
async def test_a_failed_renewal_is_repeated_while_there_is_time(cluster: FakeCluster) -> None:
    put(cluster, "1")
    cluster.faults.refuse("change_invisible", times=2)
    async with popping(cluster) as consumer:
        async for message in consumer:
            await cluster.broker.wait_for(CHANGE, 3)
            await consumer.ack(message)
            break

    assert invisible(cluster) == 0
    assert RETRY_TOPIC not in cluster.broker.topics


async def test_a_failed_background_ack_is_an_event(cluster: FakeCluster) -> None:
    put(cluster, "1", "2")
    cluster.faults.refuse(ACK, 13, "queue")
    async with popping(cluster) as consumer:
        events = consumer.events()
        loop = aiter(consumer)
        for _ in range(2):
            await anext(loop)
        event = await anext(events)

    assert isinstance(event, AckFailed)
    assert (event.offset, event.queue.topic) == (0, TOPIC)


async def test_acks_added_during_a_request_share_the_next(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    held = cluster.faults.hold(ACK)
    async with popping(cluster) as consumer:
        async for message in consumer:
            if message.body == b"1":
                await held.wait(1)  # with the first message
            if message.body == b"9":
                held.release()
                await consumer.ack(message)
                break

    [_] = cluster.broker.requests_of(RequestCode.BATCH_ACK_MESSAGE)
    assert invisible(cluster) == 0


async def test_closing_ends_the_loop_and_acknowledges_processed_messages(
    cluster: FakeCluster,
) -> None:
    put(cluster, "1")
    seen = []
    async with popping(cluster) as consumer:

        async def work() -> None:
            seen.extend([message.body async for message in consumer])

        task = asyncio.ensure_future(work())
        await cluster.broker.wait_for(RequestCode.POP_MESSAGE, 2)
    await task

    assert invisible(cluster) == 0


async def test_a_loop_without_a_topic_lets_others_work(cluster: FakeCluster) -> None:
    async with popper_of(cluster, wait_seconds=0) as consumer:
        looping = asyncio.ensure_future(anext(aiter(consumer)))
        await asyncio.sleep(0)
        await consumer.subscribe(TOPIC)
        put(cluster, "1")

        assert (await looping).body == b"1"


@pytest.fixture
def one_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one unconfirmed acknowledgement of a broker is too many."""
    monkeypatch.setattr(pop_acks, "MAX_UNCONFIRMED", 1)


async def collect(consumer: PopConsumer, seen: list[PoppedMessage]) -> None:
    async for message in consumer:
        seen.append(message)  # noqa: PERF401 - seen while it is worked on


def are_done(messages: list[PoppedMessage]) -> bool:
    return len(messages) == 3 and all(each.ack_state is AckState.ACKED for each in messages)


@pytest.mark.usefixtures("one_unconfirmed")
async def test_loops_that_wait_for_confirmations_end_when_the_consumer_is_closed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "FINISH_SECONDS", 0.05)
    put(cluster, *numbers(3))
    hold_acks(cluster.broker)
    async with popping(cluster) as consumer:
        events, seen = consumer.events(), list[PoppedMessage]()
        tasks = [asyncio.ensure_future(collect(consumer, seen)) for _ in range(3)]
        await until(lambda: are_done(seen))
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(*tasks)

    reported = [event.offset async for event in events if isinstance(event, AckFailed)]
    assert sorted(reported) == [0, 1, 2]


@pytest.mark.usefixtures("one_unconfirmed")
async def test_unconfirmed_acks_of_one_broker_do_not_block_messages_of_another() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        put(cluster, *numbers(3), broker=0)
        release = hold_acks(cluster.brokers[0])
        async with popping(cluster) as consumer:
            seen: list[PoppedMessage] = []
            tasks = [asyncio.ensure_future(collect(consumer, seen)) for _ in range(3)]
            await until(lambda: are_done(seen))
            put(cluster, *numbers(5, 3), broker=1)
            await until(lambda: len(seen) == 8 and not cluster.brokers[1].pops.invisible)
            release()
        await asyncio.gather(*tasks)

    assert {each.body.decode() for each in seen} == {*numbers(8)}
