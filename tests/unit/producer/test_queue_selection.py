"""Ordered sends: one queue for a key whatever fails, and one send of a key after another."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from enum import StrEnum

import pytest

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    ConfigError,
    InvalidMessageError,
    RouteNotFoundError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.keyed_lock import KeyedLock
from rocketmq_aio.producer.queue_selection import KEYS_CACHED
from rocketmq_aio.producer.queue_selectors import SelectByMachineRoom, SelectByRandom
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.script import Close, Reply
from tests.unit.producer.producer_env import ORDER, SEND, Shop, connected, open_shop, stopped
from tests.unit.remoting.until import until

KEYS = [f"order-{number}" for number in range(20)]
READ_ONLY = 4


def keyed(key: str, body: bytes = b"x") -> Message:
    return Message("orders", body, sharding_key=key)


async def queues_of_keys(shop: Shop) -> dict[str, MessageQueue]:
    results = await asyncio.gather(*(shop.producer.send(keyed(key)) for key in KEYS))
    return {key: result.queue for key, result in zip(KEYS, results, strict=True)}


async def renewed(shop: Shop) -> None:
    await shop.producer.client.routes.fetch("orders")


# --- which queue ---------------------------------------------------------------------------------


async def test_a_key_has_one_queue_however_it_is_given() -> None:
    async with open_shop(brokers=2) as shop:
        of_message = await queues_of_keys(shop)
        for key in KEYS:
            result = await shop.producer.send(ORDER, sharding_key=key)

            assert result.queue == of_message[key]
        assert len(set(of_message.values())) > 4


async def test_a_key_may_be_a_member_of_a_string_enum() -> None:
    class Customer(StrEnum):
        GOLD = "order-3"

    async with open_shop() as shop:
        expected = await shop.producer.send(keyed("order-3"))
        given = await shop.producer.send(ORDER, sharding_key=Customer.GOLD)
        own = await shop.producer.send(keyed(Customer.GOLD))
        found = {each.properties["__SHARDINGKEY"] for each in shop.broker.messages("orders")}

        assert given.queue == own.queue == expected.queue
        assert found == {"order-3"}


async def test_more_keys_than_are_remembered_keep_their_queues() -> None:
    async with open_shop() as shop:
        before = await shop.producer.queues_of_keys("orders", KEYS)
        many = [f"k{number}" for number in range(KEYS_CACHED + 1)]
        await shop.producer.queues_of_keys("orders", many)

        assert await shop.producer.queues_of_keys("orders", KEYS) == before
        assert shop.producer._selection.by_key.cache_info().currsize == KEYS_CACHED


async def test_the_queue_is_the_one_that_java_clients_choose() -> None:
    async with open_shop(brokers=2) as shop:
        result = await shop.producer.send(keyed("orders"))

        # "orders".hashCode() is -1008770331, over 8 queues sorted by broker and number
        assert result.queue == shop.queue(3, "broker-a")


async def test_the_key_is_stored_with_the_message_however_it_is_given() -> None:
    async with open_shop() as shop:
        await shop.producer.send(keyed("k 1"))
        await shop.producer.send(ORDER, sharding_key="k 1")
        await shop.producer.send(keyed("k 1"), sharding_key="k 1")
        found = [each.properties["__SHARDINGKEY"] for each in shop.broker.messages("orders")]

        assert found == ["k 1"] * 3


async def test_a_broker_that_leaves_the_route_keeps_its_keys() -> None:
    async with open_shop(brokers=2, config=ProducerConfig(retries=0)) as shop:
        before = await queues_of_keys(shop)
        gone = shop.brokers[1]
        await stopped(shop, gone)
        shop.cluster.name_server.unregister(gone)
        await renewed(shop)

        for key in KEYS:
            if before[key].broker_name == gone.name:
                with pytest.raises(SendError):
                    await shop.producer.send(keyed(key), timeout_seconds=0.3)
            else:
                assert (await shop.producer.send(keyed(key))).queue == before[key]
        await gone.start()
        shop.cluster.name_server.register(gone)
        await renewed(shop)

        assert await queues_of_keys(shop) == before


async def test_new_queues_do_not_move_keys() -> None:
    async with open_shop(queues=4) as shop:
        before = await queues_of_keys(shop)
        shop.cluster.create_topic("orders", 16)
        await renewed(shop)

        assert len(await shop.producer.publish_queues("orders")) == 16
        assert await queues_of_keys(shop) == before


async def test_keys_are_spread_anew_when_one_of_their_queues_is_taken_away() -> None:
    async with open_shop(queues=4) as shop:
        await queues_of_keys(shop)
        del shop.broker.topics["orders"].queues[2:]
        await renewed(shop)

        assert {queue.queue_id for queue in (await queues_of_keys(shop)).values()} == {0, 1}


async def test_a_read_only_broker_gets_nothing_and_keeps_its_keys() -> None:
    async with open_shop(brokers=2) as shop:
        before = await queues_of_keys(shop)
        shop.brokers[1].create_topic("orders", 4, READ_ONLY)
        await renewed(shop)
        stored = len(shop.brokers[1].messages("orders"))
        key = next(key for key in KEYS if before[key].broker_name == "broker-b")

        with pytest.raises(RouteNotFoundError, match="may not be written to"):
            await shop.producer.send(keyed(key))
        assert len(shop.brokers[1].messages("orders")) == stored


async def test_a_retry_stays_on_the_queue() -> None:
    async with open_shop(brokers=2) as shop:
        before = await queues_of_keys(shop)
        key = KEYS[0]
        broker = next(b for b in shop.brokers if b.name == before[key].broker_name)
        broker.on(SEND, Reply(2, remark="busy"), times=2)

        assert (await shop.producer.send(keyed(key))).queue == before[key]


# --- one after another ---------------------------------------------------------------------------


async def test_sends_of_a_key_wait_for_each_other_and_keys_do_not() -> None:
    async with open_shop() as shop:
        await connected(shop)
        held = shop.broker.hold(SEND)
        first = [asyncio.create_task(shop.producer.send(keyed("a", b"%d" % n))) for n in range(3)]
        other = asyncio.create_task(shop.producer.send(keyed("b", b"b")))
        await held.wait(2)

        assert sorted(shop.bodies()[1:]) == [b"0", b"b"]
        for _ in range(3):
            await held.wait(1)
            held.release()
        await asyncio.gather(*first, other)
        assert [body for body in shop.bodies()[1:] if body != b"b"] == [b"0", b"1", b"2"]
        assert len(shop.producer._order) == 0


async def test_many_keys_keep_their_order_on_a_broker_that_answers_in_any_order() -> None:
    async with open_shop(brokers=2) as shop:
        sends = [
            shop.producer.send(keyed(f"k{key}", b"%d/%d" % (key, number)))
            for number in range(5)
            for key in range(64)
        ]
        await asyncio.gather(*sends)
        seen = defaultdict(list)
        for body in shop.bodies():
            key, number = body.split(b"/")
            seen[key].append(int(number))

        assert len(seen) == 64
        assert all(numbers == [0, 1, 2, 3, 4] for numbers in seen.values())


async def test_a_send_goes_on_when_the_one_before_has_failed() -> None:
    async with open_shop(config=ProducerConfig(retries=0)) as shop:
        await connected(shop)
        shop.broker.on(SEND, Reply(13, remark="illegal"))
        outcomes = await asyncio.gather(
            shop.producer.send(keyed("a", b"1")),
            shop.producer.send(keyed("a", b"2")),
            return_exceptions=True,
        )

        assert isinstance(outcomes[0], BrokerError)
        assert shop.bodies()[1:] == [b"2"]


async def test_an_unknown_outcome_is_waited_for() -> None:
    async with open_shop(config=ProducerConfig(retries=0)) as shop:
        await connected(shop)
        shop.broker.on(SEND, Close())
        outcomes = await asyncio.gather(
            shop.producer.send(keyed("a", b"1")),
            shop.producer.send(keyed("a", b"2")),
            return_exceptions=True,
        )

        assert isinstance(outcomes[0], SendUnknownError)
        assert shop.bodies()[1:] == [b"2"]


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_cancelled_send_hands_its_turn_on(which: int) -> None:
    async with open_shop() as shop:
        await connected(shop)
        held = shop.broker.hold(SEND)
        tasks = [asyncio.create_task(shop.producer.send(keyed("a", b"%d" % n))) for n in range(3)]
        await held.wait(1)
        tasks[which].cancel()
        await asyncio.wait([tasks[which]])
        shop.broker.off(SEND)
        held.release()
        await asyncio.gather(*tasks, return_exceptions=True)

        assert [task.cancelled() for task in tasks] == [n == which for n in range(3)]
        assert len(shop.producer._order) == 0
        assert shop.producer._in_flight.count == 0


async def test_a_turn_that_comes_in_the_moment_of_the_cancellation_is_handed_on() -> None:
    turns = KeyedLock()
    assert turns.try_acquire(("t", "k"))
    second = asyncio.create_task(turns.wait_and_acquire(("t", "k")))
    third = asyncio.create_task(turns.wait_and_acquire(("t", "k")))
    await asyncio.sleep(0)
    turns.release(("t", "k"))
    second.cancel()
    await asyncio.wait([second])
    await third
    turns.release(("t", "k"))

    assert len(turns) == 0


async def test_waiting_for_a_turn_ends_at_the_deadline() -> None:
    async with open_shop() as shop:
        await connected(shop)
        held = shop.broker.hold(SEND)
        first = asyncio.create_task(shop.producer.send(keyed("a")))
        await held.wait(1)
        with pytest.raises(SendError, match="same sharding key") as caught:
            await shop.producer.send(keyed("a"), timeout_seconds=0.05)
        held.release()
        await first

        assert not isinstance(caught.value, SendUnknownError)


async def test_sends_that_wait_for_their_turn_end_with_the_producer() -> None:
    async with open_shop() as shop:
        await connected(shop)
        held = shop.broker.hold(SEND, times=1)
        tasks = [asyncio.create_task(shop.producer.send(keyed("a", b"%d" % n))) for n in range(3)]
        await held.wait(1)
        closing = asyncio.create_task(shop.producer.close())
        await until(shop.producer._is_closed)
        held.release()
        await closing
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

        assert [type(each) for each in outcomes[1:]] == [ClosedError] * 2
        assert shop.bodies()[1:] == [b"0"]


# --- arguments -----------------------------------------------------------------------------------


async def test_a_queue_or_selector_wins_over_the_key_of_the_message() -> None:
    async with open_shop() as shop:
        for number in range(4):
            queue = shop.queue(number)
            by_queue = await shop.producer.send(keyed("a"), queue=queue)
            by_selector = await shop.producer.send(keyed("a"), selector=lambda _q, _m, at=queue: at)  # type: ignore[misc]  # a bound loop variable

            assert (by_queue.queue, by_selector.queue) == (queue, queue)


async def test_two_ways_of_choosing_are_refused() -> None:
    async with open_shop() as shop:
        with pytest.raises(ConfigError):
            await shop.producer.send(ORDER, sharding_key="a", queue=shop.queue())
        with pytest.raises(ConfigError):
            await shop.producer.send(ORDER, sharding_key="a", selector=SelectByRandom())
        with pytest.raises(ConfigError, match="another one"):
            await shop.producer.send(keyed("a"), sharding_key="b")


@pytest.mark.parametrize("key", ["", " ", 5, "a\x01b", "a\x02", b"a"])
async def test_a_bad_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidMessageError):
        Message("orders", b"x", sharding_key=key)
    async with open_shop() as shop:
        with pytest.raises(ConfigError):
            await shop.producer.send(ORDER, sharding_key=key)


async def test_a_key_that_does_not_fit_the_properties_is_refused() -> None:
    async with open_shop() as shop:
        with pytest.raises(InvalidMessageError, match="bytes"):
            await shop.producer.send(ORDER, sharding_key="k" * 33_000)


async def test_values_and_oneway_sends_take_a_key() -> None:
    async with open_shop() as shop:
        expected = (await shop.producer.send(keyed("a"))).queue
        await shop.producer.send_oneway(ORDER, sharding_key="a")
        await until(lambda: len(shop.broker.messages("orders", expected.queue_id)) == 2)

        frames = shop.broker.requests_of(RequestCode.SEND_MESSAGE_V2)
        assert len(frames) == 2


async def test_a_batch_with_keys_needs_a_queue() -> None:
    async with open_shop() as shop:
        with pytest.raises(InvalidMessageError, match="queue="):
            await shop.producer.send_batch([keyed("a"), keyed("b")])
        await shop.producer.send_batch([keyed("a"), keyed("b")], queue=shop.queue(1))

        assert len(shop.broker.messages("orders", 1)) == 2


# --- selectors -----------------------------------------------------------------------------------

ROOMS = [MessageQueue("t", f"{room}@broker", n) for room in ("east", "west") for n in range(3)]


def test_rooms_take_turns_inside() -> None:
    select = SelectByMachineRoom(["west"])

    assert {select(ROOMS, ORDER) for _ in range(3)} == set(ROOMS[3:])


def test_rooms_have_an_inner_selector() -> None:
    select = SelectByMachineRoom(["east"], lambda queues, _message: queues[-1])

    assert select(ROOMS, ORDER) == ROOMS[2]


def test_a_room_without_a_broker_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there are east@broker, west@broker"):
        SelectByMachineRoom(["north"])(ROOMS, ORDER)


@pytest.mark.parametrize("rooms", ["east", [], [""], [5]])
def test_rooms_are_names(rooms: list[str]) -> None:
    with pytest.raises(ConfigError):
        SelectByMachineRoom(rooms)


def test_a_random_queue_is_one_of_the_queues() -> None:
    chosen = {SelectByRandom()(ROOMS, ORDER) for _ in range(300)}

    assert chosen == set(ROOMS)
