"""In-flight limits of a producer."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.responses import Close
from rocketmq_aio.errors import ClosedError, NotConnectedError, SendError, SendUnknownError
from rocketmq_aio.instance import client_base as member_module
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from tests.fakes.cluster import FakeCluster
from tests.unit.instance.client_env import nothing_left
from tests.unit.producer.producer_env import ORDER, SEND, ProducerEnv, open_producer
from tests.unit.remoting.until import settle

STEPS = 500  # turns of the loop, far more than a send takes


# --- bounds --------------------------------------------------------------------------------------


async def test_max_in_flight_limits_unanswered_sends() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight=3)) as env:
        held = env.broker.faults.hold(SEND, times=None)
        sending = [asyncio.create_task(env.producer.send(ORDER)) for _ in range(10)]
        for done in range(0, 9, 3):
            await held.wait(3)
            await settle()
            assert len(held.held) == 3
            assert len(env.sends()) == done + 3
            held.release()
        await held.wait(1)
        held.release()

        assert len(await asyncio.gather(*sending)) == 10


async def test_max_in_flight_bytes_limits_unanswered_bytes() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight_bytes=2500)) as env:
        held = env.broker.faults.hold(SEND, times=None)
        message = Message("orders", bytes(1000))
        sending = [asyncio.create_task(env.producer.send(message)) for _ in range(4)]
        for _ in range(2):
            await held.wait(2)
            await settle()
            assert len(held.held) == 2
            held.release()

        assert len(await asyncio.gather(*sending)) == 4


async def test_a_body_above_max_in_flight_bytes_is_sent_alone() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight_bytes=10)) as env:
        results = await asyncio.gather(
            *(env.producer.send(Message("orders", bytes(size))) for size in (5, 1000, 5))
        )

        assert all(each.ok for each in results)


async def test_waiting_sends_are_served_in_order() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight=1)) as env:
        bodies = [b"%d" % number for number in range(20)]
        sends = (env.producer.send(Message("orders", b), queue=env.queue()) for b in bodies)
        await asyncio.gather(*sends)

        assert env.bodies() == bodies


async def test_waiting_for_a_place_in_flight_ends_at_the_deadline() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight=1)) as env:
        held = env.broker.faults.hold(SEND, times=None)
        first = asyncio.create_task(env.producer.send(ORDER))
        await held.wait(1)
        with pytest.raises(SendError, match="no room") as caught:
            await env.producer.send(ORDER, timeout_seconds=0.05)

        assert type(caught.value) is SendError
        assert isinstance(caught.value.attempts[0].cause, NotConnectedError)
        held.release()
        assert (await first).ok
        assert len(env.sends()) == 1


async def test_a_cancelled_waiter_passes_its_place_on() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight=1)) as env:
        held = env.broker.faults.hold(SEND, times=None)
        sending = [
            asyncio.create_task(env.producer.send(Message("orders", b"%d" % number)))
            for number in range(4)
        ]
        await held.wait(1)
        sending[1].cancel()
        await settle()
        held.release()
        await held.wait(1)
        sending[2].cancel()  # on its way
        held.remove()
        await asyncio.wait(sending)

        assert [each.cancelled() for each in sending] == [False, True, True, False]
        assert env.room_taken() == (0, 0)


async def test_every_outcome_of_a_send_releases_its_place() -> None:
    config = ProducerConfig(retries=0, max_message_bytes=1000)
    async with open_producer(config=config) as env:
        for broken, seconds in ((Close(), 15), (None, 0.2)):
            await env.producer.send(ORDER)  # connects
            env.broker.faults.handle(SEND, broken)
            with pytest.raises(SendUnknownError):
                await env.producer.send(ORDER, timeout_seconds=seconds)
        with pytest.raises(ValueError, match="max_message_bytes"):
            await env.producer.send(Message("orders", bytes(1001)))

        assert env.room_taken() == (0, 0)


# --- cancellation --------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_send_cancelled_at_any_step_does_not_affect_others(brokers: int) -> None:
    async with FakeCluster(brokers=brokers, topics={"orders": 2}) as cluster, nothing_left():
        steps = 0
        for steps in range(STEPS):
            async with Producer("shop", namesrv=cluster.namesrv) as producer:
                sending = asyncio.create_task(producer.send(ORDER))  # route, connection, answer
                await settle(turns=steps)
                sending.cancel()
                await asyncio.wait([sending])

                assert (await producer.send(ORDER)).ok
                assert producer._in_flight.count == 0
            if not sending.cancelled():
                break

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


async def test_after_many_cancelled_sends_the_next_hundred_succeed(
    two_brokers: ProducerEnv,
) -> None:
    for steps in range(100):
        sending = [asyncio.create_task(two_brokers.producer.send(ORDER)) for _ in range(5)]
        await settle(turns=steps % 12)
        for task in sending:
            task.cancel()
        await asyncio.wait(sending)
    results = await asyncio.gather(*(two_brokers.producer.send(ORDER) for _ in range(100)))

    assert all(each.ok for each in results)
    assert [len(broker.connects) for broker in two_brokers.brokers] == [1, 1]
    assert two_brokers.room_taken() == (0, 0)
    connections = two_brokers.producer.client.remoting._connections.values()
    assert {each.in_flight for each in connections} == {0}


async def test_a_cancelled_retry_ends_the_send(env: ProducerEnv) -> None:
    closed = env.broker.faults.close(SEND, executed=False, times=None)
    sending = asyncio.create_task(env.producer.send(ORDER))
    await env.broker.wait_for(SEND)
    await settle()
    sending.cancel()
    await asyncio.wait([sending])
    attempts = len(env.sends())
    closed.remove()
    await env.producer.send(ORDER)

    assert sending.cancelled()
    assert len(env.sends()) == attempts + 1


# --- closing -------------------------------------------------------------------------------------


async def test_close_waits_for_sends_in_flight(env: ProducerEnv) -> None:
    held = env.broker.faults.hold(SEND, times=None)
    sending = asyncio.create_task(env.producer.send(ORDER))
    await held.wait(1)
    closing = asyncio.create_task(env.producer.close())
    await settle()
    assert not closing.done()
    with pytest.raises(ClosedError):
        await env.producer.send(ORDER)
    held.release()

    assert (await sending).ok
    await closing


async def test_close_fails_sends_that_wait_for_a_place() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight=1)) as env:
        held = env.broker.faults.hold(SEND, times=None)
        sending = [asyncio.create_task(env.producer.send(ORDER)) for _ in range(3)]
        await held.wait(1)
        closing = asyncio.create_task(env.producer.close())
        for waiting in sending[1:]:
            with pytest.raises(ClosedError):
                await waiting
        held.release()

        assert (await sending[0]).ok
        await closing
        assert len(env.sends()) == 1


async def test_sends_that_outlast_close_raise_send_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 0.05)
    async with open_producer() as env:
        env.broker.faults.drop(SEND, executed=False, times=None)
        sending = asyncio.create_task(env.producer.send(ORDER, timeout_seconds=60))
        await env.broker.wait_for(SEND)
        await asyncio.wait_for(env.producer.close(), 15)

        with pytest.raises(SendUnknownError):
            await sending


async def test_closing_a_shared_instance_fails_sends_with_closed_error(env: ProducerEnv) -> None:
    await env.producer.publish_queues("orders")
    await env.producer.client.close()

    with pytest.raises(ClosedError):
        await env.producer.send(ORDER)


async def test_close_at_any_step_of_a_send_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 50.0)
    async with FakeCluster(topics={"orders": 2}) as cluster, nothing_left():
        steps = 0
        for steps in range(STEPS):
            producer = Producer("shop", namesrv=cluster.namesrv)
            await producer.start()
            sending = asyncio.create_task(producer.send(ORDER))
            await settle(turns=steps)
            ended_before = sending.done()
            await asyncio.wait_for(producer.close(), 15)
            await asyncio.wait([sending], timeout=15)

            assert sending.done()
            if sending.exception() is not None:
                assert isinstance(sending.exception(), ClosedError | SendError)
            if ended_before:
                break

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


async def test_a_hanging_name_server_does_not_block_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 50.0)
    client = ClientConfig(request_timeout_seconds=0.3)
    async with open_producer(client=client) as env:
        env.cluster.faults.drop("route", executed=False, times=None)
        sending = asyncio.create_task(env.producer.send(ORDER, timeout_seconds=0.3))
        await settle()
        await asyncio.wait_for(env.producer.close(), 15)

        assert sending.done()
        assert sending.exception() is not None
