"""Retries by response code and send method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import cast

import pytest

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Close, Handler, Outcome, Response
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.protocol.command import Command
from tests.fakes.broker import FakeBroker
from tests.patience import PATIENCE_SECONDS
from tests.unit.producer.producer_env import (
    ORDER,
    SEND,
    SEND_BATCH,
    ProducerEnv,
    open_producer,
    reached,
    time_out_sends,
)

pytestmark = pytest.mark.usefixtures("short_pauses")

SECONDS = 15.0  # for a whole send


class Then(Enum):
    """The next step of a send."""

    ELSEWHERE = "tried again at the other broker"
    SAME = "tried again at the same queue"
    RAISED = "raised"
    RETURNED = "returned"


def refused(code: int) -> Outcome:
    return Response(code, remark="not now, or never")


def weaker(code: int) -> Outcome:
    return Response(code, ext={"msgId": "0A", "queueId": "0", "queueOffset": "9"})


RETRIED = {
    "SYSTEM_ERROR": refused(1),
    "SYSTEM_BUSY": refused(2),
    "SERVICE_NOT_AVAILABLE": refused(14),
    "NO_PERMISSION": refused(16),
    "TOPIC_NOT_EXIST": refused(17),
    "NO_BUYER_ID": refused(204),
    "NOT_IN_CURRENT_UNIT": refused(205),
    "FLOW_CONTROL": refused(215),
    "NOT_LEADER_FOR_QUEUE": refused(501),
    "the connection is closed": Close(),
    "the connection is reset": Close(reset=True),
}
RAISED = {
    "REQUEST_CODE_NOT_SUPPORTED": refused(3),
    "MESSAGE_ILLEGAL": refused(13),
    "VERSION_NOT_SUPPORTED": refused(15),
    "SUBSCRIPTION_GROUP_NOT_EXIST": refused(26),
    "INVALID_PARAMETER": refused(29),
    "FILTER_DATA_NOT_LATEST": refused(28),
    "a code that nobody knows": refused(31_999),
    "the account is refused": Response(1, remark="AclException: no accessKey"),
}
WEAKER = {
    "FLUSH_DISK_TIMEOUT": weaker(10),
    "SLAVE_NOT_AVAILABLE": weaker(11),
    "FLUSH_SLAVE_TIMEOUT": weaker(12),
}
BETTER = ProducerConfig(retry_other_broker=True, send_timeout_seconds=PATIENCE_SECONDS)

Send = Callable[[ProducerEnv, float], Awaitable[object]]  # and how many seconds it may take
WAYS: dict[str, tuple[Send, Then]] = {
    "any queue": (
        lambda env, seconds: env.producer.send(ORDER, timeout_seconds=seconds),
        Then.ELSEWHERE,
    ),
    "any queue, a batch": (
        lambda env, seconds: env.producer.send_batch([ORDER, ORDER], timeout_seconds=seconds),
        Then.ELSEWHERE,
    ),
    "a chosen queue": (
        lambda env, seconds: env.producer.send(ORDER, queue=env.queue(), timeout_seconds=seconds),
        Then.SAME,
    ),
    "a selector": (
        lambda env, seconds: env.producer.send(
            ORDER, selector=lambda queues, _: queues[1], timeout_seconds=seconds
        ),
        Then.SAME,
    ),
    "a key": (
        lambda env, seconds: env.producer.send(ORDER, sharding_key="42", timeout_seconds=seconds),
        Then.SAME,
    ),
}


def answer_first(env: ProducerEnv, outcome: Outcome) -> None:
    """Give the first send to any broker *outcome*; all others are stored."""
    left = [outcome]

    def handler(broker: FakeBroker) -> Handler:
        def answer(command: Command, connection: ServerConnection) -> Outcome:
            if left:
                return left.pop()
            stored = broker.process(command, connection)
            assert isinstance(stored, Response)
            return stored

        return answer

    for broker in env.brokers:
        for code in (SEND, SEND_BATCH):
            broker.faults.handle(code, handler(broker), times=None, broker=broker.name)


def results_of(returned: object) -> list[SendResult]:
    return returned if isinstance(returned, list) else [cast(SendResult, returned)]


async def outcome_of(env: ProducerEnv, send: Send, seconds: float = SECONDS) -> Then:
    """Send; return what the requests on the wire say about it."""
    try:
        result = await send(env, seconds)
    except RocketMQError:
        result = None
    tried = [(each.broker_name, each.queue_id) for each in env.sends()]
    if len(tried) == 1:
        return Then.RAISED if result is None else Then.RETURNED
    assert len(tried) == 2
    assert isinstance(result, SendResult | list)
    assert all(each.ok for each in results_of(result))
    if tried[0] == tried[1]:
        return Then.SAME
    assert tried[0][0] != tried[1][0]
    return Then.ELSEWHERE


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", RETRIED)
async def test_retryable_outcomes_are_retried(answer: str, way: str) -> None:
    send, then = WAYS[way]
    async with open_producer(brokers=2) as env:
        answer_first(env, RETRIED[answer])

        assert await outcome_of(env, send) is then


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", RAISED)
async def test_final_outcomes_are_raised_without_retry(answer: str, way: str) -> None:
    send, _ = WAYS[way]
    async with open_producer(brokers=2) as env:
        answer_first(env, RAISED[answer])

        assert await outcome_of(env, send) is Then.RAISED


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", WEAKER)
async def test_a_weaker_status_is_returned(answer: str, way: str) -> None:
    send, _ = WAYS[way]
    async with open_producer(brokers=2) as env:
        answer_first(env, WEAKER[answer])
        first, *_ = results = results_of(await send(env, SECONDS))

        assert {(each.status.name, each.ok) for each in results} == {(answer, False)}
        assert first.queue_offset == 9
        assert len(env.sends()) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", WEAKER)
async def test_retry_other_broker_retries_a_weaker_status(answer: str, way: str) -> None:
    send, then = WAYS[way]
    async with open_producer(brokers=2, config=BETTER) as env:
        answer_first(env, WEAKER[answer])
        expected = then if then is Then.ELSEWHERE else Then.RETURNED

        assert await outcome_of(env, send) is expected


@pytest.mark.parametrize("way", WAYS)
async def test_a_missing_response_leaves_time_for_another_broker(way: str) -> None:
    send, then = WAYS[way]
    async with open_producer(brokers=2) as env:
        await reached(env)
        answer_first(env, None)
        if then is Then.ELSEWHERE:
            given = time_out_sends(env, *env.brokers, times=1)

            assert await outcome_of(env, send) is Then.ELSEWHERE
            assert given[0] <= SECONDS / 2
        else:  # waited for to the end: it would hardly answer a second request sooner
            assert await outcome_of(env, send, 0.3) is Then.RAISED


@pytest.mark.parametrize("way", WAYS)
async def test_go_away_retries_over_a_new_connection(way: str) -> None:
    send, _ = WAYS[way]
    async with open_producer(brokers=2) as env:
        answer_first(env, refused(1500))

        assert await outcome_of(env, send) is Then.SAME


@pytest.mark.parametrize("way", WAYS)
async def test_without_retries_the_first_failure_is_raised(way: str) -> None:
    send, _ = WAYS[way]
    async with open_producer(brokers=2, config=ProducerConfig(retries=0)) as env:
        answer_first(env, RETRIED["SYSTEM_BUSY"])

        assert await outcome_of(env, send) is Then.RAISED
