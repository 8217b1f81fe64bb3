"""Sends that do not succeed at the first attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    AuthError,
    BrokerError,
    CodecError,
    ConnectionLostError,
    NotConnectedError,
    PermissionDeniedError,
    RequestTimeoutError,
    RocketMQError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.model.values import SendStatus
from rocketmq_aio.producer import retry as retry_module
from rocketmq_aio.remoting.backoff import Backoff
from tests.fakes.script import Close, Raw, Reply
from tests.unit.producer.producer_env import (
    ORDER,
    SEND,
    connected,
    hurried,
    open_shop,
    reached,
    seconds_given,
    stopped,
)

BUSY = Reply(2, remark="system busy")
DOWN = Reply(14, remark="service not available")
ILLEGAL = Reply(13, remark="the message is illegal")
WEAKER = Reply(10, ext={"msgId": "0A", "queueId": "0", "queueOffset": "9"})
ONCE = ProducerConfig(retries=0)
BETTER = ProducerConfig(retry_other_broker=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is tried once more gets 2 ms instead of 200."""
    monkeypatch.setattr(retry_module, "Backoff", partial(Backoff, first=0.001))


def causes(error: SendError) -> list[type[BaseException]]:
    return [type(attempt.cause) for attempt in error.attempts]


# --- other brokers -------------------------------------------------------------------------------


async def test_with_one_of_two_brokers_dead_no_send_fails() -> None:
    async with open_shop(brokers=2) as shop:
        await connected(shop)
        dead, alive = shop.brokers
        await stopped(shop, dead)
        results = [await shop.producer.send(ORDER) for _ in range(100)]

        assert {each.queue.broker_name for each in results} == {alive.name}


async def test_a_retry_goes_to_another_broker_under_the_same_id() -> None:
    async with open_shop(brokers=2) as shop:
        for broker in shop.brokers:
            broker.on(SEND, Close(reset=True))
        result = await shop.producer.send(ORDER)

        tried = [str(each.broker_name) for each in shop.sends()]
        assert sorted(tried[:2]) == ["broker-a", "broker-b"]
        assert len(tried) == 3
        assert shop.ids() == {result.message_id}


async def test_a_broker_that_hangs_leaves_time_for_the_other() -> None:
    async with open_shop(brokers=2) as shop:
        await reached(shop)
        shop.brokers[0].on(SEND, None, times=None)
        given = hurried(shop, shop.brokers[0])
        results = [await shop.producer.send(ORDER, timeout_seconds=20) for _ in range(8)]

        assert {each.queue.broker_name for each in results} == {"broker-b"}
        assert given
        assert all(5 < each <= 10 for each in given)


async def test_a_message_that_a_hanging_broker_stored_after_all_has_one_id() -> None:
    async with open_shop(brokers=2) as shop:
        await connected(shop)
        sent = shop.ids()
        held = [broker.hold(SEND, times=1) for broker in shop.brokers]
        hurried(shop, *shop.brokers, times=2)
        result = await shop.producer.send(ORDER)

        assert len(shop.bodies()) == 2 + 3  # stored twice without an answer, then with one
        assert shop.ids() - sent == {result.message_id}
        for each in held:
            each.release()


async def test_brokers_that_refuse_for_now_are_passed_over() -> None:
    async with open_shop(brokers=2) as shop:
        shop.brokers[0].on(SEND, BUSY, times=None)
        results = [await shop.producer.send(ORDER) for _ in range(10)]

        assert {each.queue.broker_name for each in results} == {"broker-b"}


# --- the same broker -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 14, 17, 215, 16])
async def test_a_refusal_for_now_is_tried_again(code: int) -> None:
    async with open_shop() as shop:
        shop.broker.on(SEND, Reply(code, remark="not now"), times=2)
        result = await shop.producer.send(ORDER)

        assert result.ok
        assert len(shop.sends()) == 3
        assert shop.ids() == {result.message_id}


@pytest.mark.parametrize("code", [13, 3, 26, 28, 31999])
async def test_a_refusal_for_good_is_raised_as_the_broker_said_it(code: int) -> None:
    async with open_shop() as shop:
        shop.broker.on(SEND, Reply(code, remark="never"))
        with pytest.raises(BrokerError) as caught:
            await shop.producer.send(ORDER)

        assert (caught.value.code, caught.value.remark) == (code, "never")
        assert caught.value.address == shop.broker.address
        assert len(shop.sends()) == 1


@pytest.mark.parametrize(
    "refused",
    [Reply(1, remark="AclException: No accessKey"), Reply(16, remark="check signature failed.")],
)
async def test_a_wrong_account_is_not_tried_again(refused: Reply) -> None:
    account = ClientConfig(credentials=Credentials(access_key="x", secret_key="y"))
    async with open_shop(client=account) as shop:
        shop.broker.on(SEND, refused, times=None)
        with pytest.raises(AuthError):
            await shop.producer.send(ORDER)

        assert len(shop.sends()) == 1


async def test_a_topic_that_may_not_be_written_to_is_told_as_that() -> None:
    async with open_shop(config=ONCE) as shop:
        shop.broker.on(SEND, Reply(16, remark="the broker[broker-a] sending message is forbidden"))
        with pytest.raises(SendError) as caught:
            await shop.producer.send(ORDER)

        assert causes(caught.value) == [PermissionDeniedError]


async def test_a_chosen_queue_is_kept_over_all_attempts() -> None:
    async with open_shop(brokers=2) as shop:
        shop.brokers[1].on(SEND, BUSY, times=2)
        queue = shop.queue(2, "broker-b")
        by_queue = await shop.producer.send(ORDER, queue=queue)
        shop.brokers[1].on(SEND, Close(), times=2)
        by_selector = await shop.producer.send(ORDER, selector=lambda queues, _: queue)

        assert by_queue.queue == by_selector.queue == queue
        assert {(each.broker_name, each.queue_id) for each in shop.sends()} == {("broker-b", 2)}
        assert len(shop.sends()) == 6


async def test_a_chosen_queue_on_a_dead_broker_fails_and_goes_nowhere_else() -> None:
    async with open_shop(brokers=2) as shop:
        await connected(shop)
        await stopped(shop, shop.brokers[0])
        before = len(shop.bodies())
        with pytest.raises(SendError) as caught:
            await shop.producer.send(ORDER, queue=shop.queue(0, "broker-a"))

        assert type(caught.value) is SendError
        assert len(shop.bodies()) == before


# --- how it ends ---------------------------------------------------------------------------------


async def test_with_nobody_there_the_message_is_surely_not_stored() -> None:
    async with open_shop(brokers=2) as shop:
        await connected(shop)
        await stopped(shop, *shop.brokers)
        with pytest.raises(SendError) as caught:
            await shop.producer.send(ORDER)

        assert type(caught.value) is SendError
        assert all(issubclass(each, NotConnectedError) for each in causes(caught.value))
        assert len(caught.value.attempts) >= 3
        tried = {attempt.address for attempt in caught.value.attempts}
        assert tried == {broker.address for broker in shop.brokers}


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Close(), ConnectionLostError),
        (Close(reset=True), ConnectionLostError),
        (Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ConnectionLostError),
        (Raw(b"\x7f\xff\xff\xff"), ConnectionLostError),
        (Raw(b"\x00\x00\x00", close=True), ConnectionLostError),
        (None, RequestTimeoutError),
        (Reply(ext={"msgId": "0A"}), CodecError),
        (Reply(ext={"msgId": "0A", "queueId": "x", "queueOffset": "0"}), CodecError),
    ],
)
async def test_sent_and_not_clearly_answered_it_may_be_stored(
    answer: object, cause: type[RocketMQError]
) -> None:
    async with open_shop(config=ONCE) as shop:
        await connected(shop)
        sent = shop.ids()
        shop.broker.on(SEND, answer)  # type: ignore[arg-type]  # each is an outcome
        if answer is None:
            hurried(shop, shop.broker, times=1)
        with pytest.raises(SendUnknownError, match="may have been stored") as caught:
            await shop.producer.send(ORDER)

        assert causes(caught.value) == [cause]
        assert {caught.value.message_id} == shop.ids() - sent
        assert caught.value.topic == "orders"
        assert (await shop.producer.send(ORDER)).ok


async def test_one_unclear_attempt_makes_the_whole_send_unclear() -> None:
    async with open_shop() as shop:
        shop.broker.on(SEND, Close())
        shop.broker.on(SEND, DOWN, times=2)
        with pytest.raises(SendUnknownError) as caught:
            await shop.producer.send(ORDER)

        assert causes(caught.value) == [ConnectionLostError, BrokerError, BrokerError]


async def test_a_final_refusal_after_an_unclear_attempt_leaves_it_unclear() -> None:
    async with open_shop() as shop:
        shop.broker.on(SEND, Close())
        shop.broker.on(SEND, ILLEGAL)

        with pytest.raises(SendUnknownError):
            await shop.producer.send(ORDER)


async def test_the_number_of_attempts_is_bounded() -> None:
    async with open_shop(config=ProducerConfig(retries=4)) as shop:
        shop.broker.on(SEND, DOWN, times=None)
        with pytest.raises(SendError) as caught:
            await shop.producer.send(ORDER, timeout_seconds=10)

        assert len(shop.sends()) == len(caught.value.attempts) == 5


async def test_a_busy_broker_is_given_the_whole_deadline() -> None:
    async with open_shop() as shop:
        shop.broker.on(SEND, BUSY, times=6)
        result = await shop.producer.send(ORDER)

        assert result.ok
        assert len(shop.sends()) == 7


async def test_without_retries_busy_is_final() -> None:
    async with open_shop(config=ONCE) as shop:
        shop.broker.on(SEND, BUSY, times=None)
        with pytest.raises(SendError) as caught:
            await shop.producer.send(ORDER)

        assert len(shop.sends()) == len(caught.value.attempts) == 1


async def test_the_deadline_holds_over_all_attempts_and_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_module, "Backoff", Backoff)
    config = ProducerConfig(send_timeout_seconds=0.5)
    async with open_shop(config=config) as shop:
        shop.broker.on(SEND, BUSY, times=None)
        given = seconds_given(shop)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(SendError):
            await asyncio.wait_for(shop.producer.send(ORDER), 15)

        assert loop.time() - started > 0.3
        assert given == sorted(given, reverse=True)
        assert all(each <= 0.5 for each in given)
        assert len(shop.sends()) < 10  # a busy broker is not hammered


async def test_a_send_with_its_own_deadline_keeps_it() -> None:
    async with open_shop() as shop:
        await connected(shop)
        shop.broker.on(SEND, None, times=None)
        given = seconds_given(shop)
        with pytest.raises(SendUnknownError):
            await asyncio.wait_for(shop.producer.send(ORDER, timeout_seconds=0.2), 14)

        assert all(each <= 0.2 for each in given)


# --- weaker guarantees ---------------------------------------------------------------------------


async def test_stored_with_less_another_broker_is_tried_if_that_is_wanted() -> None:
    async with open_shop(brokers=2, config=BETTER) as shop:
        shop.brokers[0].on(SEND, WEAKER, times=None)
        results = [await shop.producer.send(ORDER) for _ in range(4)]

        assert {each.status for each in results} == {SendStatus.SEND_OK}
        assert {each.queue.broker_name for each in results} == {"broker-b"}


async def test_stored_with_less_everywhere_is_stored_with_less() -> None:
    async with open_shop(brokers=2, config=BETTER) as shop:
        for broker in shop.brokers:
            broker.on(SEND, WEAKER, times=None)
        result = await shop.producer.send(ORDER)

        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert Counter(each.broker_name for each in shop.sends()) == {"broker-a": 1, "broker-b": 1}


@pytest.mark.parametrize("chosen", [False, True])
async def test_the_only_broker_is_not_asked_to_store_it_twice(chosen: bool) -> None:
    async with open_shop(config=BETTER) as shop:
        shop.broker.on(SEND, WEAKER, times=None)
        result = await shop.producer.send(ORDER, queue=shop.queue() if chosen else None)

        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(shop.sends()) == 1


async def test_a_failure_after_it_was_stored_with_less_is_no_failure() -> None:
    async with open_shop(brokers=2, config=BETTER) as shop:
        first = await shop.producer.send(ORDER)
        shop.brokers[0].on(SEND, WEAKER, times=None)
        shop.brokers[1].on(SEND, ILLEGAL, times=None)
        results = []
        for _ in range(8):  # each queue comes first once
            try:
                results.append((await shop.producer.send(ORDER)).status)
            except BrokerError:
                results.append(SendStatus.SEND_OK)  # the other broker came first

        assert first.ok
        assert SendStatus.FLUSH_DISK_TIMEOUT in results
