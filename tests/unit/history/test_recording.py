"""A history is filled from what fakes saw, from calls, and from what was logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus
from tests.fakes.broker import FakeBroker
from tests.fakes.conformance.case_env import CaseEnv, send_header
from tests.fakes.conformance.sending import batch_of
from tests.fakes.log_reader import read_queue
from tests.fakes.raw_client import RawClient
from tests.history import History, Resources
from tests.history.recording import echo, record_call, stored_log, watch, wire_attempts

QUEUE = MessageQueue("orders", "broker-a", 0)
RESULT = SendResult(SendStatus.SEND_OK, "M1", "O1", QUEUE, 7)


def env_of(broker: FakeBroker) -> CaseEnv:
    broker.create_topic("orders")
    return CaseEnv("", broker.address, broker.version.name, "orders", "billing")


async def test_log_and_attempts_are_recorded_from_the_broker() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        properties = encode_properties({"UNIQ_KEY": "M1"})
        for _ in range(2):
            await client.ask(send_header(env, properties=properties), b"one")
        batch = batch_of((b"two", {"UNIQ_KEY": "M2"}), (b"three", {"UNIQ_KEY": "M3"}))
        await client.ask(send_header(env, batch=True), batch)
        log = stored_log("orders", broker)

        assert [(e.queue, e.offset, e.body, e.message_id) for e in log] == [
            (QUEUE, 0, b"one", "M1"),
            (QUEUE, 1, b"one", "M1"),
            (QUEUE, 2, b"two", "M2"),
            (QUEUE, 3, b"three", "M3"),
        ]
        assert wire_attempts(broker) == {"M1": 2, "M2": 1, "M3": 1}


async def test_a_call_is_recorded_with_its_deadline_even_if_it_fails() -> None:
    async def failing() -> None:
        raise LookupError

    history = History()
    with pytest.raises(LookupError):
        await record_call(history, "commit", 3, failing())
    (call,) = history.calls

    assert call.ended is not None
    assert call.deadline - 3 <= call.ended <= call.deadline


async def test_logged_errors_and_lost_exceptions_are_recorded() -> None:
    history = History()
    with watch(history):
        logging.getLogger("rocketmq_aio.remoting").error("connection table broken")
        logging.getLogger("rocketmq_aio.remoting").warning("connection lost")
        asyncio.get_running_loop().call_exception_handler({"message": "never retrieved"})

    assert history.unexpected == [
        "rocketmq_aio.remoting: connection table broken",
        "{'message': 'never retrieved'}",
    ]


async def test_a_nonce_identifies_the_reply_of_a_call() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        fields = {"topic": "orders", "queueId": "0", "nonce": "n1"}
        reply = await client.answer(client.send_fields(30, fields))

        assert echo("n1", reply).received == "n1"
        assert echo("n1", None).received is None


async def test_resources_count_open_tasks_and_descriptors() -> None:
    async with FakeBroker() as broker:
        before = Resources.now()
        async with RawClient(broker.address):
            await broker.wait_for_connections(1)
            during = Resources.now()
        await broker.wait_for_connections(0)

        assert during.descriptors == before.descriptors + 2
        assert Resources.now() == before


async def test_the_log_reader_reads_a_whole_queue() -> None:
    async with FakeBroker() as broker:
        env_of(broker)
        for number in range(70):
            broker.put("orders", b"body %d" % number, properties=f"UNIQ_KEY\x01M{number}\x02")

        assert await read_queue(broker.address, QUEUE) == stored_log("orders", broker)
        assert await read_queue(broker.address, MessageQueue("orders", "broker-a", 1)) == []
