"""Sends in flight: how many there may be, who comes next, and what leaving them does."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import ClosedError, NotConnectedError, SendError, SendUnknownError
from rocketmq_aio.instance import client_base as member_module
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from tests.fakes.cluster import FakeCluster
from tests.fakes.script import Close
from tests.unit.instance.guests import nothing_left
from tests.unit.producer.producer_env import ORDER, ROUTE, SEND, Shop, open_shop

STEPS = 500  # turns of the loop, far more than a send takes


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def room_taken(shop: Shop) -> tuple[int, int]:
    return shop.producer._in_flight.count, shop.producer._in_flight.bytes


# --- bounds --------------------------------------------------------------------------------------


async def test_no_more_sends_are_unanswered_than_allowed() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight=3)) as shop:
        held = shop.broker.hold(SEND)
        sending = [asyncio.create_task(shop.producer.send(ORDER)) for _ in range(10)]
        for done in range(0, 9, 3):
            await held.wait(3)
            await turns()
            assert len(held.held) == 3
            assert len(shop.sends()) == done + 3
            held.release()
        await held.wait(1)
        held.release()

        assert len(await asyncio.gather(*sending)) == 10


async def test_no_more_bytes_are_unanswered_than_allowed() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight_bytes=2500)) as shop:
        held = shop.broker.hold(SEND)
        message = Message("orders", bytes(1000))
        sending = [asyncio.create_task(shop.producer.send(message)) for _ in range(4)]
        for _ in range(2):
            await held.wait(2)
            await turns()
            assert len(held.held) == 2
            held.release()

        assert len(await asyncio.gather(*sending)) == 4


async def test_a_body_above_the_whole_bound_is_sent_alone() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight_bytes=10)) as shop:
        results = await asyncio.gather(
            *(shop.producer.send(Message("orders", bytes(size))) for size in (5, 1000, 5))
        )

        assert all(each.ok for each in results)


async def test_sends_that_wait_are_served_in_order() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight=1)) as shop:
        bodies = [b"%d" % number for number in range(20)]
        sends = (shop.producer.send(Message("orders", b), queue=shop.queue()) for b in bodies)
        await asyncio.gather(*sends)

        assert shop.bodies() == bodies


async def test_waiting_for_room_ends_with_the_deadline_of_the_send() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight=1)) as shop:
        held = shop.broker.hold(SEND)
        first = asyncio.create_task(shop.producer.send(ORDER))
        await held.wait(1)
        with pytest.raises(SendError, match="no room") as caught:
            await shop.producer.send(ORDER, timeout_seconds=0.05)

        assert type(caught.value) is SendError
        assert isinstance(caught.value.attempts[0].cause, NotConnectedError)
        held.release()
        assert (await first).ok
        assert len(shop.sends()) == 1


async def test_a_cancelled_wait_leaves_its_place_to_the_next() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight=1)) as shop:
        held = shop.broker.hold(SEND)
        sending = [
            asyncio.create_task(shop.producer.send(Message("orders", b"%d" % number)))
            for number in range(4)
        ]
        await held.wait(1)
        sending[1].cancel()
        await turns()
        held.release()
        await held.wait(1)
        sending[2].cancel()  # on its way
        shop.broker.off(SEND)
        await asyncio.wait(sending)

        assert [each.cancelled() for each in sending] == [False, True, True, False]
        assert room_taken(shop) == (0, 0)


async def test_every_way_a_send_can_end_gives_its_room_back() -> None:
    config = ProducerConfig(retries=0, max_message_bytes=1000)
    async with open_shop(config=config) as shop:
        await shop.producer.send(ORDER)
        for broken, seconds in ((Close(), 15), (None, 0.2)):
            shop.broker.on(SEND, broken)
            with pytest.raises(SendUnknownError):
                await shop.producer.send(ORDER, timeout_seconds=seconds)
        with pytest.raises(ValueError, match="max_message_bytes"):
            await shop.producer.send(Message("orders", bytes(1001)))

        assert room_taken(shop) == (0, 0)


# --- cancellation --------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_send_cancelled_at_any_step_harms_no_other(brokers: int) -> None:
    async with FakeCluster(brokers=brokers, topics={"orders": 2}) as cluster, nothing_left():
        steps = 0
        for steps in range(STEPS):
            async with Producer("shop", namesrv=cluster.namesrv) as producer:
                sending = asyncio.create_task(producer.send(ORDER))  # route, connection, answer
                await turns(steps)
                sending.cancel()
                await asyncio.wait([sending])

                assert (await producer.send(ORDER)).ok
                assert producer._in_flight.count == 0
            if not sending.cancelled():
                break

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


async def test_after_many_cancelled_sends_the_next_hundred_succeed() -> None:
    async with open_shop(brokers=2) as shop:
        for steps in range(100):
            sending = [asyncio.create_task(shop.producer.send(ORDER)) for _ in range(5)]
            await turns(steps % 12)
            for task in sending:
                task.cancel()
            await asyncio.wait(sending)
        results = await asyncio.gather(*(shop.producer.send(ORDER) for _ in range(100)))

        assert all(each.ok for each in results)
        assert [len(broker.connects) for broker in shop.brokers] == [1, 1]
        assert room_taken(shop) == (0, 0)
        connections = shop.producer.client.remoting._connections.values()
        assert {each.in_flight for each in connections} == {0}


async def test_a_retry_that_is_cancelled_is_the_end_of_the_send() -> None:
    async with open_shop() as shop:
        shop.broker.on(SEND, Close(), times=None)
        sending = asyncio.create_task(shop.producer.send(ORDER))
        await shop.broker.wait_for(SEND)
        await turns()
        sending.cancel()
        await asyncio.wait([sending])
        attempts = len(shop.sends())
        shop.broker.off(SEND)
        await shop.producer.send(ORDER)

        assert sending.cancelled()
        assert len(shop.sends()) == attempts + 1


# --- closing -------------------------------------------------------------------------------------


async def test_closing_waits_for_sends_that_are_under_way() -> None:
    async with open_shop() as shop:
        held = shop.broker.hold(SEND)
        sending = asyncio.create_task(shop.producer.send(ORDER))
        await held.wait(1)
        closing = asyncio.create_task(shop.producer.close())
        await turns()
        assert not closing.done()
        with pytest.raises(ClosedError):
            await shop.producer.send(ORDER)
        held.release()

        assert (await sending).ok
        await closing


async def test_closing_ends_the_wait_of_those_who_were_not_sent() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight=1)) as shop:
        held = shop.broker.hold(SEND)
        sending = [asyncio.create_task(shop.producer.send(ORDER)) for _ in range(3)]
        await held.wait(1)
        closing = asyncio.create_task(shop.producer.close())
        for waiting in sending[1:]:
            with pytest.raises(ClosedError):
                await waiting
        held.release()

        assert (await sending[0]).ok
        await closing
        assert len(shop.sends()) == 1


async def test_sends_that_outlast_the_close_end_as_unclear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 0.05)
    async with open_shop() as shop:
        shop.broker.on(SEND, None, times=None)
        sending = asyncio.create_task(shop.producer.send(ORDER, timeout_seconds=60))
        await shop.broker.wait_for(SEND)
        await asyncio.wait_for(shop.producer.close(), 15)

        with pytest.raises(SendUnknownError):
            await sending


async def test_a_shared_instance_that_closes_ends_sends_with_closed() -> None:
    async with open_shop() as shop:
        await shop.producer.publish_queues("orders")
        await shop.producer.client.close()

        with pytest.raises(ClosedError):
            await shop.producer.send(ORDER)


async def test_closing_at_any_step_of_a_send_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 50.0)
    async with FakeCluster(topics={"orders": 2}) as cluster, nothing_left():
        steps = 0
        for steps in range(STEPS):
            producer = Producer("shop", namesrv=cluster.namesrv)
            await producer.start()
            sending = asyncio.create_task(producer.send(ORDER))
            await turns(steps)
            ended_before = sending.done()
            await asyncio.wait_for(producer.close(), 15)
            await asyncio.wait([sending], timeout=15)

            assert sending.done()
            if sending.exception() is not None:
                assert isinstance(sending.exception(), ClosedError | SendError)
            if ended_before:
                break

        assert 5 < steps < STEPS - 1, "the sweep did not reach the end"


async def test_a_name_server_that_hangs_does_not_keep_a_producer_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_module, "CLOSE_SECONDS", 50.0)
    client = ClientConfig(request_timeout_seconds=0.3)
    async with open_shop(client=client) as shop:
        shop.cluster.name_server.on(ROUTE, None, times=None)
        sending = asyncio.create_task(shop.producer.send(ORDER, timeout_seconds=0.3))
        await turns()
        await asyncio.wait_for(shop.producer.close(), 15)

        assert sending.done()
        assert sending.exception() is not None
