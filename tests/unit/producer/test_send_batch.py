"""Explicit batches, on a scripted cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig, ClientSettings, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Close, Outcome, Response, resolve
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
from tests.patience import PATIENCE_SECONDS
from tests.unit.producer.producer_env import ORDER, SEND_BATCH, ProducerEnv, open_producer
from tests.unit.remoting.until import settle

pytestmark = pytest.mark.usefixtures("each_core")

STEPS = 200  # turns of the loop, far more than a send takes to leave
ONCE = ProducerConfig(retries=0, send_timeout_seconds=PATIENCE_SECONDS)


def orders(count: int, topic: str = "orders") -> list[Message]:
    return [Message(topic, b"%d" % number, keys=f"k{number}") for number in range(count)]


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"header_encoding": "json"},
        {"credentials": Credentials(access_key="admin", secret_key="adminsecret")},
    ],
    ids=["binary", "json", "signed"],
)
async def test_a_batch_is_one_request_and_one_result_per_message(
    version: str, settings: ClientSettings
) -> None:
    async with open_producer(version=version, client=ClientConfig(**settings)) as env:
        results = await env.producer.send_batch(orders(5), queue=env.queue(1))
        stored = env.broker.messages("orders", 1)

        assert len(env.broker.requests_of(SEND_BATCH)) == 1
        assert [each.body for each in stored] == [b"0", b"1", b"2", b"3", b"4"]
        assert [each.queue_offset for each in results] == [0, 1, 2, 3, 4]
        assert [each.message_id for each in results] == [
            each.properties["UNIQ_KEY"] for each in stored
        ]
        assert [each.offset_message_id for each in results] == [each.message_id for each in stored]
        assert {each.status for each in results} == {SendStatus.SEND_OK}
        assert [each.properties["KEYS"] for each in stored] == ["k0", "k1", "k2", "k3", "k4"]


async def test_each_topic_gets_its_own_request_and_results_keep_the_order(env: ProducerEnv) -> None:
    env.cluster.create_topic("payments", 2)
    mixed = [Message(topic, b"x") for topic in ("orders", "payments", "orders", "payments")]
    results = await env.producer.send_batch(mixed)

    assert [each.queue.topic for each in results] == [each.topic for each in mixed]
    assert len(env.broker.requests_of(SEND_BATCH)) == 2


async def test_a_large_batch_is_split_by_size() -> None:
    messages = [Message("orders", b"%04d" % n * 100) for n in range(20)]
    async with open_producer(config=ProducerConfig(max_message_bytes=2048)) as env:
        results = await env.producer.send_batch(messages)

        assert len(env.broker.requests_of(SEND_BATCH)) == 5
        assert all(len(command.body) <= 2048 for command in env.broker.requests_of(SEND_BATCH))
        assert sorted(env.bodies()) == sorted(each.body for each in messages)
        assert len({each.message_id for each in results}) == 20


async def test_batches_are_sent_round_robin_or_to_the_chosen_queue() -> None:
    config = ProducerConfig(max_message_bytes=512)
    async with open_producer(config=config) as env:
        messages = [Message("orders", bytes(300)) for _ in range(4)]
        spread = await env.producer.send_batch(messages)
        chosen = await env.producer.send_batch(messages, queue=env.queue(2))

        assert len({each.queue for each in spread}) == 4
        assert {each.queue for each in chosen} == {env.queue(2)}


async def test_an_empty_list_sends_nothing(env: ProducerEnv) -> None:
    assert await env.producer.send_batch([]) == []
    assert env.sends() == []


@pytest.mark.parametrize("given", [ORDER, "a body", b"a body", None, 5])
async def test_send_batch_rejects_anything_but_a_list_of_messages(
    given: Any,  # noqa: ANN401
    env: ProducerEnv,
) -> None:
    with pytest.raises(ConfigError, match=r"send_batch\(\[message\]\)") as caught:
        await env.producer.send_batch(given)
    assert "a body" not in str(caught.value)
    assert env.sends() == []


async def test_one_invalid_message_sends_nothing(env: ProducerEnv) -> None:
    for bad in (Message("orders", b"x", delay_level=1), Message("%RETRY%g", b"x"), None):
        with pytest.raises(InvalidMessageError):
            await env.producer.send_batch([*orders(3), bad])  # type: ignore[list-item]

    assert env.broker.requests == []


async def test_a_chosen_queue_must_belong_to_every_message(env: ProducerEnv) -> None:
    env.cluster.create_topic("payments", 2)
    for given, queue in (
        ([*orders(1), *orders(1, "payments")], env.queue()),
        (orders(2), MessageQueue("payments", "broker-a", 0)),
        (orders(1), "orders/broker-a/0"),
    ):
        with pytest.raises(ConfigError) as caught:
            await env.producer.send_batch(given, queue=queue)  # type: ignore[arg-type]
        assert caught.value.setting == "queue"

    assert env.sends() == []


async def test_an_unknown_topic_fails_its_own_messages_only(env: ProducerEnv) -> None:
    env.producer.client.routes._routes.clear()
    del env.broker.topics["TBW102"]
    with pytest.raises(BatchError) as caught:
        await env.producer.send_batch([*orders(1, "nowhere"), *orders(1)])

    lost, stored = caught.value.outcomes
    assert isinstance(lost, RouteNotFoundError)
    assert isinstance(stored, SendResult)


async def test_a_failed_single_batch_raises_the_error_of_a_send() -> None:
    async with open_producer(config=ONCE) as env:
        for answer, kind in (
            (Response(13, remark="illegal"), BrokerError),
            (Response(2, remark="busy"), SendError),
            (Close(), SendUnknownError),
        ):
            env.broker.faults.handle(SEND_BATCH, answer)
            with pytest.raises(kind):
                await env.producer.send_batch(orders(3))

        assert env.bodies() == []


async def test_batch_error_has_the_outcome_of_every_message() -> None:
    def refuse_payments(command: Command, connection: ServerConnection) -> Outcome:
        if read_header(command, SendMessage).topic == "payments":
            return Response(13, remark="no payments today")
        outcome = env.broker.process(command, connection)
        assert isinstance(outcome, Response)
        return outcome

    async with open_producer() as env:
        env.cluster.create_topic("payments", 2)
        env.broker.faults.handle(SEND_BATCH, refuse_payments, times=None)
        mixed = [Message(topic, b"x") for topic in ("orders", "payments", "orders")]
        with pytest.raises(BatchError, match="1 of 3") as caught:
            await env.producer.send_batch(mixed)

        assert [type(each) for each in caught.value.outcomes] == [
            SendResult,
            BrokerError,
            SendResult,
        ]
        assert len(env.bodies()) == 2


async def test_requests_to_a_chosen_queue_are_sequential() -> None:
    answered: list[Command] = []
    before: list[int] = []  # how many were answered when each request came

    async def answer(command: Command, connection: ServerConnection) -> Outcome:
        before.append(len(answered))
        await settle(turns=STEPS)
        answered.append(command)
        return await resolve(env.broker.process(command, connection))

    async with open_producer(config=ProducerConfig(max_message_bytes=200)) as env:
        env.broker.faults.handle(SEND_BATCH, answer, times=None)
        results = await env.producer.send_batch(orders(10), queue=env.queue(1))

        assert len(answered) > 2
        assert before == list(range(len(answered)))
        assert [each.queue_offset for each in results] == list(range(10))


async def test_a_chosen_queue_keeps_the_order_across_wait_store_ok() -> None:
    messages = [Message("orders", b"%d" % n, wait_store_ok=n % 3 > 0) for n in range(9)]
    async with open_producer() as env:
        results = await env.producer.send_batch(messages, queue=env.queue(1))

        assert [each.queue_offset for each in results] == list(range(9))
        assert [each.body for each in env.broker.messages("orders", 1)] == [
            each.body for each in messages
        ]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(Response(13, remark="illegal"), BrokerError), (Close(), SendUnknownError)],
    ids=["refused", "unknown"],
)
async def test_a_failed_request_to_a_chosen_queue_stops_the_later_ones(
    answer: Outcome, kind: type[Exception]
) -> None:
    async with open_producer(config=ProducerConfig(max_message_bytes=200, retries=0)) as env:
        first = await env.producer.send_batch(orders(2), queue=env.queue(1))
        env.broker.faults.handle(SEND_BATCH, env.broker.process)  # the first request is stored
        env.broker.faults.handle(SEND_BATCH, answer)
        with pytest.raises(BatchError) as caught:
            await env.producer.send_batch(orders(10), queue=env.queue(1))
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
        assert len(env.broker.messages("orders", 1)) == len(first) + len(stored)


async def test_a_retried_batch_keeps_its_queue_and_the_ids_of_its_messages(
    two_brokers: ProducerEnv,
) -> None:
    env = two_brokers
    held = env.broker.faults.hold(SEND_BATCH, broker=env.broker.name)
    sending = asyncio.create_task(
        env.producer.send_batch(orders(3), queue=env.queue(1), timeout_seconds=5)
    )
    await held.wait(1)
    for connection in list(env.broker.connections.values()):
        connection.reset()
    results = await sending
    stored = env.broker.messages("orders", 1)

    assert len(stored) == 6
    assert {each.properties["UNIQ_KEY"] for each in stored} == {each.message_id for each in results}


async def test_batches_count_as_in_flight() -> None:
    config = ProducerConfig(max_message_bytes=600, max_in_flight=1)
    async with open_producer(config=config) as env:
        held = env.broker.faults.hold(SEND_BATCH, times=None)
        messages = [Message("orders", bytes(400)) for _ in range(3)]
        sending = asyncio.create_task(env.producer.send_batch(messages))
        for _ in range(3):
            await held.wait(1)
            assert len(held.held) == 1
            held.release()

        assert len(await sending) == 3
        assert (env.producer._in_flight.count, env.producer._in_flight.bytes) == (0, 0)


async def test_a_cancelled_batch_is_not_in_flight_any_more() -> None:
    async with open_producer(config=ProducerConfig(max_message_bytes=600)) as env:
        held = env.broker.faults.hold(SEND_BATCH, times=None)
        messages = [Message("orders", bytes(400)) for _ in range(6)]
        sending = asyncio.create_task(env.producer.send_batch(messages))
        await held.wait(4)
        sending.cancel()
        await asyncio.wait([sending])
        held.release()
        held.remove()

        assert sending.cancelled()
        assert (env.producer._in_flight.count, env.producer._in_flight.bytes) == (0, 0)
        assert len(await env.producer.send_batch(messages)) == 6
