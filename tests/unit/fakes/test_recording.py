"""A history is filled from what fakes saw, from calls, and from what was logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rocketmq_aio.errors import NotConnectedError, SendUnknownError
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus
from rocketmq_aio.protocol.codes import PULL_COMMIT, PULL_SUBSCRIPTION
from tests.fakes.broker import FakeBroker
from tests.fakes.conformance.case_env import CaseEnv, pull_header, send_header
from tests.fakes.conformance.offsets import update
from tests.fakes.conformance.sending import batch_of
from tests.fakes.history import History, Outcome, Resources
from tests.fakes.history.recording import (
    echo,
    pull_times,
    record_call,
    record_send,
    request_times,
    stored_log,
    watch,
    wire_attempts,
    wire_commits,
)
from tests.fakes.log_reader import read_queue
from tests.fakes.raw_client import RawClient

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


async def test_commits_in_pulls_are_recorded() -> None:
    flags = PULL_SUBSCRIPTION | PULL_COMMIT
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        await client.ask(pull_header(env, 0, sys_flag=PULL_SUBSCRIPTION, commit_offset=9))
        await client.ask(pull_header(env, 0, sys_flag=flags, commit_offset=3))
        await client.ask(update(env, 4))
        await client.ask(update(env._replace(group="other"), 5))

        commits = wire_commits("billing", broker)
        assert [(commit.queue, commit.offset) for commit in commits] == [(QUEUE, 3), (QUEUE, 4)]
        assert len(request_times(11, broker)) == 2
        assert {name: len(times) for name, times in pull_times(broker).items()} == {
            "pull of orders/broker-a/0": 2
        }


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotConnectedError("a:1", "refused"), Outcome.FAIL),
        (SendUnknownError("orders", "M1", []), Outcome.UNKNOWN),
        (asyncio.CancelledError(), Outcome.UNKNOWN),
        (LookupError("a defect"), Outcome.UNKNOWN),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_only_certain_failures_are_recorded_as_failed(
    error: BaseException, outcome: Outcome
) -> None:
    async def failing() -> SendResult:
        raise error

    history = History()
    with pytest.raises(type(error)):
        await record_send(history, failing(), uid="u1", body=b"body")

    assert [sent.outcome for sent in history.sends] == [outcome]


async def test_a_successful_send_is_recorded_with_its_position() -> None:
    async def returning() -> SendResult:
        return RESULT

    history = History()
    await record_send(history, returning(), uid="u1", body=b"body", task="t1")
    (sent,) = history.sends

    assert (sent.outcome, sent.queue, sent.offset, sent.message_id, sent.task) == (
        Outcome.OK,
        QUEUE,
        7,
        "M1",
        "t1",
    )


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
