"""Explicit batches, on a scripted cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    BatchError,
    BrokerError,
    ConfigError,
    InvalidMessageError,
    RouteNotFoundError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.send import SendMessage
from tests.fakes.connection import FakeConnection
from tests.fakes.script import Close, Outcome, Reply, resolve
from tests.unit.producer.producer_env import ORDER, SEND_BATCH, open_shop

STEPS = 200  # turns of the loop, far more than a send takes to leave
ONCE = ProducerConfig(retries=0)


def orders(count: int, topic: str = "orders") -> list[Message]:
    return [Message(topic, b"%d" % number, keys=f"k{number}") for number in range(count)]


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize(
    "client",
    [
        ClientConfig(),
        ClientConfig(header_encoding="json"),
        ClientConfig(credentials=Credentials(access_key="admin", secret_key="adminsecret")),
    ],
    ids=["binary", "json", "signed"],
)
async def test_a_batch_is_one_request_and_one_result_per_message(
    version: str, client: ClientConfig
) -> None:
    async with open_shop(version=version, client=client) as shop:
        results = await shop.producer.send_batch(orders(5), queue=shop.queue(1))
        stored = shop.broker.messages("orders", 1)

        assert len(shop.broker.requests_of(SEND_BATCH)) == 1
        assert [each.body for each in stored] == [b"0", b"1", b"2", b"3", b"4"]
        assert [each.queue_offset for each in results] == [0, 1, 2, 3, 4]
        assert [each.message_id for each in results] == [
            each.properties["UNIQ_KEY"] for each in stored
        ]
        assert [each.offset_message_id for each in results] == [each.message_id for each in stored]
        assert {each.status for each in results} == {SendStatus.SEND_OK}
        assert [each.properties["KEYS"] for each in stored] == ["k0", "k1", "k2", "k3", "k4"]


async def test_topics_are_sent_apart_and_results_come_in_the_order_given() -> None:
    async with open_shop() as shop:
        shop.cluster.create_topic("payments", 2)
        mixed = [Message(topic, b"x") for topic in ("orders", "payments", "orders", "payments")]
        results = await shop.producer.send_batch(mixed)

        assert [each.queue.topic for each in results] == [each.topic for each in mixed]
        assert len(shop.broker.requests_of(SEND_BATCH)) == 2


async def test_a_large_batch_is_split_by_size() -> None:
    messages = [Message("orders", b"%04d" % n * 100) for n in range(20)]
    async with open_shop(config=ProducerConfig(max_message_bytes=2048)) as shop:
        results = await shop.producer.send_batch(messages)

        assert len(shop.broker.requests_of(SEND_BATCH)) == 5
        assert all(len(command.body) <= 2048 for command in shop.broker.requests_of(SEND_BATCH))
        assert sorted(shop.bodies()) == sorted(each.body for each in messages)
        assert len({each.message_id for each in results}) == 20


async def test_batches_take_turns_over_queues_and_a_chosen_queue_takes_all() -> None:
    config = ProducerConfig(max_message_bytes=512)
    async with open_shop(config=config) as shop:
        messages = [Message("orders", bytes(300)) for _ in range(4)]
        spread = await shop.producer.send_batch(messages)
        chosen = await shop.producer.send_batch(messages, queue=shop.queue(2))

        assert len({each.queue for each in spread}) == 4
        assert {each.queue for each in chosen} == {shop.queue(2)}


async def test_nothing_to_send_is_nothing_sent() -> None:
    async with open_shop() as shop:
        assert await shop.producer.send_batch([]) == []
        assert shop.sends() == []


@pytest.mark.parametrize("given", [ORDER, "text", b"bytes", None, 5])
async def test_what_is_not_several_messages_is_refused(given: Any) -> None:  # noqa: ANN401
    async with open_shop() as shop:
        with pytest.raises(ConfigError, match=r"send_batch\(\[message\]\)"):
            await shop.producer.send_batch(given)
        assert shop.sends() == []


async def test_one_bad_message_keeps_all_from_being_sent() -> None:
    async with open_shop() as shop:
        for bad in (Message("orders", b"x", delay_level=1), Message("%RETRY%g", b"x"), None):
            with pytest.raises(InvalidMessageError):
                await shop.producer.send_batch([*orders(3), bad])  # type: ignore[list-item]

        assert shop.broker.requests == []


async def test_a_chosen_queue_must_belong_to_every_message() -> None:
    async with open_shop() as shop:
        shop.cluster.create_topic("payments", 2)
        for given, queue in (
            ([*orders(1), *orders(1, "payments")], shop.queue()),
            (orders(2), MessageQueue("payments", "broker-a", 0)),
            (orders(1), "orders/broker-a/0"),
        ):
            with pytest.raises(ConfigError) as caught:
                await shop.producer.send_batch(given, queue=queue)  # type: ignore[arg-type]
            assert caught.value.setting == "queue"

        assert shop.sends() == []


async def test_an_unknown_topic_fails_its_own_messages_only() -> None:
    async with open_shop() as shop:
        shop.producer.client.routes._routes.clear()
        del shop.broker.topics["TBW102"]
        with pytest.raises(BatchError) as caught:
            await shop.producer.send_batch([*orders(1, "nowhere"), *orders(1)])

        lost, stored = caught.value.outcomes
        assert isinstance(lost, RouteNotFoundError)
        assert isinstance(stored, SendResult)


async def test_a_batch_that_fails_fails_as_one_send_does() -> None:
    async with open_shop(config=ONCE) as shop:
        for answer, kind in (
            (Reply(13, remark="illegal"), BrokerError),
            (Reply(2, remark="busy"), SendError),
            (Close(), SendUnknownError),
        ):
            shop.broker.on(SEND_BATCH, answer)
            with pytest.raises(kind):
                await shop.producer.send_batch(orders(3))

        assert shop.bodies() == []


async def test_of_several_requests_each_message_learns_what_became_of_it() -> None:
    def refuse_payments(command: Command, connection: FakeConnection) -> Outcome:
        if read_header(command, SendMessage).topic == "payments":
            return Reply(13, remark="no payments today")
        outcome = shop.broker.answer(command, connection)
        assert isinstance(outcome, Reply)
        return outcome

    async with open_shop() as shop:
        shop.cluster.create_topic("payments", 2)
        shop.broker.on(SEND_BATCH, refuse_payments, times=None)
        mixed = [Message(topic, b"x") for topic in ("orders", "payments", "orders")]
        with pytest.raises(BatchError, match="1 of 3") as caught:
            await shop.producer.send_batch(mixed)

        assert [type(each) for each in caught.value.outcomes] == [
            SendResult,
            BrokerError,
            SendResult,
        ]
        assert len(shop.bodies()) == 2


async def test_requests_of_a_batch_to_one_queue_are_sent_one_after_another() -> None:
    answered: list[Command] = []
    before: list[int] = []  # how many were answered when each request came

    async def answer(command: Command, connection: FakeConnection) -> Outcome:
        before.append(len(answered))
        for _ in range(STEPS):
            await asyncio.sleep(0)
        answered.append(command)
        return await resolve(shop.broker.answer(command, connection))

    async with open_shop(config=ProducerConfig(max_message_bytes=200)) as shop:
        shop.broker.on(SEND_BATCH, answer, times=None)
        results = await shop.producer.send_batch(orders(10), queue=shop.queue(1))

        assert len(answered) > 2
        assert before == list(range(len(answered)))
        assert [each.queue_offset for each in results] == list(range(10))


async def test_a_batch_to_one_queue_keeps_its_order_across_store_settings() -> None:
    messages = [Message("orders", b"%d" % n, wait_store_ok=n % 3 > 0) for n in range(9)]
    async with open_shop() as shop:
        results = await shop.producer.send_batch(messages, queue=shop.queue(1))

        assert [each.queue_offset for each in results] == list(range(9))
        assert [each.body for each in shop.broker.messages("orders", 1)] == [
            each.body for each in messages
        ]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(Reply(13, remark="illegal"), BrokerError), (Close(), SendUnknownError)],
    ids=["refused", "unknown"],
)
async def test_a_failed_request_of_a_batch_to_one_queue_ends_the_batch(
    answer: Outcome, kind: type[Exception]
) -> None:
    async with open_shop(config=ProducerConfig(max_message_bytes=200, retries=0)) as shop:
        first = await shop.producer.send_batch(orders(2), queue=shop.queue(1))
        shop.broker.on(SEND_BATCH, shop.broker.answer)  # the first request is stored
        shop.broker.on(SEND_BATCH, answer)
        with pytest.raises(BatchError) as caught:
            await shop.producer.send_batch(orders(10), queue=shop.queue(1))
        outcomes = caught.value.outcomes
        stored = [each for each in outcomes if isinstance(each, SendResult)]
        failed = [each for each in outcomes if isinstance(each, kind)]
        unsent = outcomes[len(stored) + len(failed) :]

        assert [each.queue_offset for each in stored] == list(range(2, 2 + len(stored)))
        assert stored
        assert failed
        assert unsent
        for each in unsent:
            assert type(each) is SendError
            assert "an earlier request of the batch failed" in str(each)
        assert len(shop.broker.messages("orders", 1)) == len(first) + len(stored)


async def test_a_retried_batch_keeps_the_ids_of_its_messages() -> None:
    async with open_shop() as shop:
        held = shop.broker.hold(SEND_BATCH, times=1)
        sending = asyncio.create_task(shop.producer.send_batch(orders(3), timeout_seconds=5))
        await held.wait(1)
        for connection in list(shop.broker.connections.values()):
            connection.reset()
        results = await sending
        stored = shop.broker.messages("orders")

        assert len(stored) == 6
        assert {each.properties["UNIQ_KEY"] for each in stored} == {
            each.message_id for each in results
        }


async def test_batches_count_against_the_bounds_of_the_producer() -> None:
    config = ProducerConfig(max_message_bytes=600, max_in_flight=1)
    async with open_shop(config=config) as shop:
        held = shop.broker.hold(SEND_BATCH)
        messages = [Message("orders", bytes(400)) for _ in range(3)]
        sending = asyncio.create_task(shop.producer.send_batch(messages))
        for _ in range(3):
            await held.wait(1)
            assert len(held.held) == 1
            held.release()

        assert len(await sending) == 3
        assert (shop.producer._in_flight.count, shop.producer._in_flight.bytes) == (0, 0)


async def test_a_cancelled_batch_gives_its_room_back() -> None:
    async with open_shop(config=ProducerConfig(max_message_bytes=600)) as shop:
        held = shop.broker.hold(SEND_BATCH)
        messages = [Message("orders", bytes(400)) for _ in range(6)]
        sending = asyncio.create_task(shop.producer.send_batch(messages))
        await held.wait(4)
        sending.cancel()
        await asyncio.wait([sending])
        held.release()
        shop.broker.off(SEND_BATCH)

        assert sending.cancelled()
        assert (shop.producer._in_flight.count, shop.producer._in_flight.bytes) == (0, 0)
        assert len(await shop.producer.send_batch(messages)) == 6
