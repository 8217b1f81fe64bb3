"""Requests and their replies, between producers on a scripted cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    ClosedError,
    ConfigError,
    ReplyTimeoutError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.producer import request_reply as requests_replies
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.record import decode_message
from tests.fakes.script import Close, Reply
from tests.unit.producer.producer_env import ORDER, PATIENT, SEND, Shop, open_shop, reached
from tests.unit.remoting.until import until

REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def requests_in(shop: Shop) -> list[MessageExt]:
    """What responders would be given, queue by queue."""
    return [
        decode_message(stored.record, broker.name)
        for broker in shop.brokers
        for stored in broker.messages("orders")
    ]


@asynccontextmanager
async def responder(shop: Shop) -> AsyncIterator[Producer]:
    at = shop.cluster.namesrv
    async with Producer("answers", namesrv=at, config=PATIENT) as producer:
        yield producer


async def asked(shop: Shop, count: int = 1) -> list[MessageExt]:
    """Return the requests once *count* are stored."""
    await until(lambda: len(shop.bodies()) >= count)
    return requests_in(shop)


def request_of(body: bytes) -> Message:
    return Message("orders", body)


# --- the usual way -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_reply_reaches_who_asked(version: str) -> None:
    async with open_shop(version=version) as shop, responder(shop) as answers:
        asking = asyncio.create_task(shop.producer.request(request_of(b"ping"), 5))
        (request,) = await asked(shop)
        sent = await answers.reply(request, b"pong", tags="t", keys="k", properties={"a": "1"})
        reply = await asking

        assert (reply.body, reply.tags, reply.keys) == (b"pong", "t", ("k",))
        assert reply.property("a") == "1"
        assert reply.topic == "DefaultCluster_REPLY_TOPIC"
        assert reply.message_id == sent.message_id
        assert reply.property("CORRELATION_ID") == request.property("CORRELATION_ID")
        assert reply.property("MSG_TYPE") == "reply"
        assert reply.born_host.startswith("127.0.0.1:")
        assert reply.store_host == shop.broker.address
        assert abs(reply.store_time.timestamp() - reply.born_time.timestamp()) < 60
        assert sent.ok
        assert len(shop.producer.client.replies) == 0


async def test_a_request_says_whom_to_answer_and_for_how_long() -> None:
    async with open_shop() as shop:
        await reached(shop)
        with pytest.raises(ReplyTimeoutError):
            await shop.producer.request(ORDER, 0.2)
        (request,) = await asked(shop)

        assert request.property("REPLY_TO_CLIENT") == shop.producer.client.client_id
        assert 0 < int(request.property("TTL") or "") <= 200
        assert len(request.property("CORRELATION_ID") or "") == 32


async def test_a_large_reply_travels_compressed() -> None:
    async with open_shop() as shop, responder(shop) as answers:
        asking = asyncio.create_task(shop.producer.request(ORDER, 30))
        (request,) = await asked(shop)
        await answers.reply(request, b"pong " * 10_000)

        assert (await asking).body == b"pong " * 10_000


async def test_many_replies_in_any_order_find_their_requests() -> None:
    async with open_shop() as shop, responder(shop) as answers:
        asking = [
            asyncio.create_task(shop.producer.request(request_of(b"%d" % n), 10))
            for n in range(200)
        ]
        requests = await asked(shop, 200)
        await asyncio.gather(*(answers.reply(each, each.body) for each in reversed(requests)))
        replies = await asyncio.gather(*asking)

        assert [each.body for each in replies] == [b"%d" % n for n in range(200)]


async def test_replies_go_to_the_broker_that_has_the_request() -> None:
    async with open_shop(brokers=2) as shop, responder(shop) as answers:
        for broker in shop.brokers:
            asking = asyncio.create_task(
                shop.producer.request(ORDER, 5, queue=shop.queue(0, broker.name))
            )
            await until(lambda at=broker: len(at.messages("orders")) == 1)  # type: ignore[misc]  # a bound loop variable
            request = decode_message(broker.messages("orders")[0].record, broker.name)
            await answers.reply(request, b"pong")
            await asking

        assert [len(each.requests_of(REPLY)) for each in shop.brokers] == [1, 1]


async def test_a_broker_knows_who_asks_before_it_has_the_request() -> None:
    async with open_shop() as shop:
        with pytest.raises(ReplyTimeoutError):
            await shop.producer.request(ORDER, 0.1)
        codes = [frame.command.code for frame in shop.broker.requests]

        assert codes.index(RequestCode.HEART_BEAT) < codes.index(SEND)


async def test_a_producer_on_connections_of_others_is_told_of_too() -> None:
    async with open_shop() as shop, responder(shop) as answers:
        config = ClientConfig(namesrv=shop.cluster.namesrv)
        async with MQClientInstance(config) as client, Producer("first", client=client) as first:
            await first.send(ORDER, queue=shop.queue(1))
            async with Producer("second", client=client) as second:
                asking = asyncio.create_task(second.request(ORDER, 5, queue=shop.queue(0)))
                await until(lambda: len(shop.broker.messages("orders", 0)) == 1)
                (stored,) = shop.broker.messages("orders", 0)
                await answers.reply(decode_message(stored.record, "broker-a"), b"pong")

                assert (await asking).body == b"pong"


async def test_requests_take_a_sharding_key() -> None:
    async with open_shop() as shop, responder(shop) as answers:
        expected = (await shop.producer.send(ORDER, sharding_key="a")).queue
        asking = asyncio.create_task(shop.producer.request(ORDER, 5, sharding_key="a"))
        _, request = await asked(shop, 2)
        await answers.reply(request, b"pong")
        await asking

        assert request.queue == expected


# --- no reply ------------------------------------------------------------------------------------


async def test_without_a_reply_a_request_times_out_and_leaves_nothing() -> None:
    async with open_shop() as shop:
        with pytest.raises(ReplyTimeoutError, match="may have been worked on") as caught:
            await shop.producer.request(ORDER, 0.1)
        (request,) = await asked(shop)

        assert isinstance(caught.value, TimeoutError)
        assert caught.value.message_id == request.message_id
        assert len(shop.producer.client.replies) == 0
        assert shop.producer._request_reply._limiter.count == 0


async def test_a_late_reply_is_dropped_and_counted_and_its_sender_content() -> None:
    async with open_shop() as shop, responder(shop) as answers:
        with pytest.raises(ReplyTimeoutError):
            await shop.producer.request(ORDER, 0.1)
        (request,) = await asked(shop)
        assert (await answers.reply(request, b"late")).ok

        assert shop.producer.dropped_replies == 1


async def test_the_second_reply_is_dropped() -> None:
    async with open_shop() as shop, responder(shop) as answers:
        asking = asyncio.create_task(shop.producer.request(ORDER, 30))
        (request,) = await asked(shop)
        await answers.reply(request, b"first")
        await answers.reply(request, b"second")

        assert (await asking).body == b"first"
        assert shop.producer.dropped_replies == 1


async def test_a_cancelled_request_leaves_nothing() -> None:
    async with open_shop() as shop:
        asking = asyncio.create_task(shop.producer.request(ORDER, 30))
        await asked(shop)
        asking.cancel()
        await asyncio.wait([asking])

        assert asking.cancelled()
        assert len(shop.producer.client.replies) == 0
        assert shop.producer._request_reply._limiter.count == 0


async def test_a_request_that_cannot_be_sent_fails_as_a_send() -> None:
    async with open_shop(config=ProducerConfig(retries=0)) as shop:
        shop.broker.on(SEND, Reply(2, remark="busy"), times=None)
        with pytest.raises(SendError, match="busy"):
            await shop.producer.request(ORDER, 30)

        assert len(shop.producer.client.replies) == 0


async def test_a_reply_that_came_makes_up_for_a_lost_answer() -> None:
    async with open_shop(config=ProducerConfig(retries=0)) as shop, responder(shop) as answers:
        held = shop.broker.hold(SEND)
        asking = asyncio.create_task(shop.producer.request(ORDER, 30))
        await held.wait(1)
        (request,) = await asked(shop)
        await answers.reply(request, b"pong")

        assert (await asking).body == b"pong"
        held.release()


async def test_a_lost_answer_without_a_reply_is_an_unknown_outcome() -> None:
    async with open_shop(config=ProducerConfig(retries=0)) as shop:
        shop.broker.on(SEND, Close())
        with pytest.raises(SendUnknownError):
            await shop.producer.request(ORDER, 30)


async def test_further_requests_wait_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_replies, "MAX_REQUESTS", 1)
    async with open_shop() as shop, responder(shop) as answers:
        first = asyncio.create_task(shop.producer.request(ORDER, 30))
        (request,) = await asked(shop)
        with pytest.raises(ReplyTimeoutError, match="waiting for their replies") as caught:
            await shop.producer.request(ORDER, 0.05)
        await answers.reply(request, b"pong")
        await first

        assert caught.value.message_id is None
        assert len(shop.bodies()) == 1


async def test_requests_end_with_their_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_replies, "MAX_REQUESTS", 1)
    async with open_shop() as shop:
        first = asyncio.create_task(shop.producer.request(ORDER, 30))
        await asked(shop)
        second = asyncio.create_task(shop.producer.request(ORDER, 30))
        await asyncio.sleep(0)
        await shop.producer.close()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)

        assert [type(each) for each in outcomes] == [ClosedError, ClosedError]


# --- replying ------------------------------------------------------------------------------------


async def test_only_requests_can_be_answered() -> None:
    async with open_shop() as shop:
        await shop.producer.send(ORDER)
        (plain,) = requests_in(shop)
        wrong: list[Callable[[], Awaitable[object]]] = [
            lambda: shop.producer.reply(plain, b"x"),
            lambda: shop.producer.reply(ORDER, b"x"),  # type: ignore[arg-type]
        ]
        for call in wrong:
            with pytest.raises(ConfigError, match="request"):
                await call()


async def test_a_reply_to_somebody_who_has_left_fails() -> None:
    async with open_shop() as shop, responder(shop) as answers:
        asking = asyncio.create_task(shop.producer.request(ORDER, 30))
        (request,) = await asked(shop)
        asking.cancel()
        await asyncio.wait([asking])
        await shop.producer.close()
        with pytest.raises(SendError, match="not found"):
            await answers.reply(request, b"pong")


async def test_a_reply_of_nobody_is_answered_all_the_same() -> None:
    async with open_shop() as shop:
        await shop.producer.send(ORDER)
        fields = {
            "producerGroup": "g",
            "topic": "DefaultCluster_REPLY_TOPIC",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1",
            "flag": "0",
            "properties": "CORRELATION_ID\x01guessed\x02",
            "bornHost": "nowhere",
            "storeHost": "[::1]:10911",
            "storeTimestamp": "1",
        }
        push = Command(PUSH, 0, body=b"pong")
        push.ext = fields
        answer = await shop.broker.push(push)

        assert answer is not None
        assert answer.code == 0
        assert shop.producer.dropped_replies == 1
