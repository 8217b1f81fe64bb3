"""Request-reply between producers on a scripted cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    ClosedError,
    CodecError,
    ConfigError,
    NotSupportedError,
    ReplyTimeoutError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.instance import heartbeats
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.producer import fault_strategy as faults, request_reply as requests_replies
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol import replies as replies_module
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.record import decode_message
from tests.unit.producer.producer_env import ORDER, SEND, ProducerEnv, open_producer, reached
from tests.unit.remoting.until import succeeds, until

REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def requests_in(env: ProducerEnv) -> list[MessageExt]:
    """Stored requests, by queue."""
    return [
        decode_message(stored.record, broker.name)
        for broker in env.brokers
        for stored in broker.messages("orders")
    ]


@asynccontextmanager
async def responder(env: ProducerEnv) -> AsyncIterator[Producer]:
    at = env.cluster.namesrv
    async with Producer("answers", namesrv=at) as producer:
        yield producer


async def asked(env: ProducerEnv, count: int = 1) -> list[MessageExt]:
    """Return the requests once *count* are stored."""
    await until(lambda: len(env.bodies()) >= count)
    return requests_in(env)


def request_of(body: bytes) -> Message:
    return Message("orders", body)


# --- the usual way -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_reply_reaches_the_requester(version: str) -> None:
    async with open_producer(version=version) as env, responder(env) as answers:
        asking = asyncio.create_task(env.producer.request(request_of(b"ping"), 5))
        (request,) = await asked(env)
        sent = await answers.reply(request, b"pong", tags="t", keys="k", properties={"a": "1"})
        reply = await asking

        assert (reply.body, reply.tags, reply.keys) == (b"pong", "t", ("k",))
        assert reply.property("a") == "1"
        assert reply.topic == "DefaultCluster_REPLY_TOPIC"
        assert reply.message_id == sent.message_id
        assert reply.property("CORRELATION_ID") == request.property("CORRELATION_ID")
        assert reply.property("TTL") == request.property("TTL")
        assert reply.property("MSG_TYPE") == "reply"
        assert reply.born_host.startswith("127.0.0.1:")
        assert reply.store_host == env.broker.address
        assert abs(reply.store_time.timestamp() - reply.born_time.timestamp()) < 60
        assert sent.ok
        assert len(env.producer.client.replies) == 0


async def test_a_proxy_is_refused_before_a_request_is_sent(env: ProducerEnv) -> None:
    env.cluster.name_server.is_proxy = True
    with pytest.raises(NotSupportedError, match="does not forward replies"):
        await env.producer.request(ORDER, 5)

    assert env.bodies() == []


async def test_a_proxy_is_refused_before_a_reply_is_sent() -> None:
    async with open_producer() as env, responder(env) as answers:
        asking = asyncio.create_task(env.producer.request(ORDER, 30))
        (request,) = await asked(env)
        env.cluster.name_server.is_proxy = True
        with pytest.raises(NotSupportedError, match="does not forward replies"):
            await answers.reply(request, b"pong")
        assert not any(broker.requests_of(REPLY) for broker in env.brokers)
        env.cluster.name_server.is_proxy = False
        await answers.client.routes.fetch("orders")
        await answers.reply(request, b"pong")
        await asking


async def test_a_request_has_reply_properties_and_ttl(env: ProducerEnv) -> None:
    await reached(env)
    asking = asyncio.create_task(env.producer.request(ORDER, 30))
    (request,) = await asked(env)
    asking.cancel()

    assert request.property("REPLY_TO_CLIENT") == env.producer.client.client_id
    assert 0 < int(request.property("TTL") or "") <= 30_000
    assert len(request.property("CORRELATION_ID") or "") == 32


async def test_a_large_reply_is_sent_compressed() -> None:
    async with open_producer() as env, responder(env) as answers:
        asking = asyncio.create_task(env.producer.request(ORDER, 30))
        (request,) = await asked(env)
        await answers.reply(request, b"pong " * 10_000)

        assert (await asking).body == b"pong " * 10_000


async def test_a_reply_that_cannot_be_read_raises_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of a Java client in a format whose library is not installed."""

    def inflate(*_: object) -> bytes:
        raise CodecError("body", 0, "it is compressed with zstd")

    monkeypatch.setattr(replies_module, "inflate", inflate)
    async with open_producer() as env, responder(env) as answers:
        asking = asyncio.create_task(env.producer.request(request_of(b"ping"), 60))
        (request,) = await asked(env)
        await succeeds(answers.reply(request, b"pong" * 5000, timeout_seconds=1))

        with pytest.raises(CodecError, match="compressed with zstd"):
            await asyncio.wait_for(asking, 15)
        assert len(env.producer.client.replies) == 0


async def test_many_replies_in_any_order_find_their_requests() -> None:
    async with open_producer() as env, responder(env) as answers:
        asking = [
            asyncio.create_task(env.producer.request(request_of(b"%d" % n), 60)) for n in range(200)
        ]
        requests = await asked(env, 200)
        await asyncio.gather(*(answers.reply(each, each.body) for each in reversed(requests)))
        replies = await asyncio.gather(*asking)

        assert [each.body for each in replies] == [b"%d" % n for n in range(200)]


async def test_replies_go_to_the_broker_that_has_the_request() -> None:
    async with open_producer(brokers=2) as env, responder(env) as answers:
        for broker in env.brokers:
            asking = asyncio.create_task(
                env.producer.request(ORDER, 5, queue=env.queue(0, broker.name))
            )
            await until(lambda at=broker: len(at.messages("orders")) == 1)  # type: ignore[misc]  # a bound loop variable
            request = decode_message(broker.messages("orders")[0].record, broker.name)
            await answers.reply(request, b"pong")
            await asking

        assert [len(each.requests_of(REPLY)) for each in env.brokers] == [1, 1]


async def test_a_heartbeat_precedes_the_request(env: ProducerEnv) -> None:
    waiting = asyncio.create_task(env.producer.request(ORDER, 60))
    await until(lambda: len(env.broker.requests_of(SEND)) == 1)
    waiting.cancel()
    codes = [frame.command.code for frame in env.broker.requests]

    assert codes.index(RequestCode.HEART_BEAT) < codes.index(SEND)


async def test_a_heartbeat_precedes_requests_over_shared_connections() -> None:
    async with open_producer() as env, responder(env) as answers:
        config = ClientConfig(namesrv=env.cluster.namesrv)
        async with MQClientInstance(config) as client, Producer("first", client=client) as first:
            await first.send(ORDER, queue=env.queue(1))
            async with Producer("second", client=client) as second:
                asking = asyncio.create_task(second.request(ORDER, 5, queue=env.queue(0)))
                await until(lambda: len(env.broker.messages("orders", 0)) == 1)
                (stored,) = env.broker.messages("orders", 0)
                await answers.reply(decode_message(stored.record, "broker-a"), b"pong")

                assert (await asking).body == b"pong"


async def test_a_lost_connection_is_registered_again_at_once_for_a_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats, "CHECK_SECONDS", 60.0)
    async with open_producer() as env, responder(env) as answers:
        asking = asyncio.create_task(env.producer.request(ORDER, 60))
        (request,) = await asked(env)
        (lost,) = members = env.broker.members.producers["shop"]
        env.broker.connections[lost].reset()
        await until(lambda: not members, "the loss")
        await until(lambda: env.broker.members.producers.get("shop"), "another registration")
        await answers.reply(request, b"pong")

        assert (await asking).body == b"pong"


async def test_requests_take_a_sharding_key() -> None:
    async with open_producer() as env, responder(env) as answers:
        expected = (await env.producer.send(ORDER, sharding_key="a")).queue
        asking = asyncio.create_task(env.producer.request(ORDER, 5, sharding_key="a"))
        _, request = await asked(env, 2)
        await answers.reply(request, b"pong")
        await asking

        assert request.queue == expected


async def test_a_requester_that_responds_late_excludes_no_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_producer() as env, responder(env) as answers:
        answers._sender.faults.bound = 0.0
        with monkeypatch.context() as patched:
            patched.setattr(faults, "SLOW_SECONDS", 0.0)
            asking = asyncio.create_task(env.producer.request(ORDER, 30))
            (request,) = await asked(env)
            await answers.reply(request, b"pong")
            await asking
            after_response = dict(answers._sender.faults._faults)
            env.broker.faults.drop(REPLY, executed=False, times=None)
            with pytest.raises(SendUnknownError):
                await answers.reply(request, b"pong", timeout_seconds=0.2)

            assert after_response == answers._sender.faults._faults == {}


# --- no reply ------------------------------------------------------------------------------------


async def test_a_request_without_a_reply_times_out(env: ProducerEnv) -> None:
    with pytest.raises(ReplyTimeoutError, match="may have been worked on") as caught:
        await env.producer.request(ORDER, 1.0)
    (request,) = await asked(env)

    assert isinstance(caught.value, TimeoutError)
    assert caught.value.message_id == request.message_id
    assert len(env.producer.client.replies) == 0
    assert env.producer._request_reply._limiter.count == 0


async def test_a_late_reply_is_dropped_and_counted() -> None:
    async with open_producer() as env, responder(env) as answers:
        with pytest.raises(ReplyTimeoutError):
            await env.producer.request(ORDER, 1.0)
        (request,) = await asked(env)
        assert (await answers.reply(request, b"late")).ok

        assert env.producer.dropped_replies == 1


async def test_the_second_reply_is_dropped() -> None:
    async with open_producer() as env, responder(env) as answers:
        asking = asyncio.create_task(env.producer.request(ORDER, 30))
        (request,) = await asked(env)
        await answers.reply(request, b"first")
        await answers.reply(request, b"second")

        assert (await asking).body == b"first"
        assert env.producer.dropped_replies == 1


async def test_a_cancelled_request_is_forgotten(env: ProducerEnv) -> None:
    asking = asyncio.create_task(env.producer.request(ORDER, 30))
    await asked(env)
    asking.cancel()
    await asyncio.wait([asking])

    assert asking.cancelled()
    assert len(env.producer.client.replies) == 0
    assert env.producer._request_reply._limiter.count == 0


async def test_a_failed_request_raises_the_error_of_a_send() -> None:
    async with open_producer(config=ProducerConfig(retries=0)) as env:
        env.broker.faults.refuse(SEND, 2, "busy", times=None)
        with pytest.raises(SendError, match="busy"):
            await env.producer.request(ORDER, 30)

        assert len(env.producer.client.replies) == 0


async def test_a_reply_replaces_a_lost_response() -> None:
    async with open_producer(config=ProducerConfig(retries=0)) as env, responder(env) as answers:
        held = env.broker.faults.hold(SEND, times=None)
        asking = asyncio.create_task(env.producer.request(ORDER, 30))
        await held.wait(1)
        (request,) = await asked(env)
        await answers.reply(request, b"pong")
        await until(lambda: len(env.producer.client.replies) == 0)
        env.broker.kill()

        assert (await asking).body == b"pong"


async def test_a_lost_response_without_a_reply_raises_send_unknown() -> None:
    async with open_producer(config=ProducerConfig(retries=0)) as env:
        env.broker.faults.close(SEND, executed=False)
        with pytest.raises(SendUnknownError):
            await env.producer.request(ORDER, 30)


async def test_requests_beyond_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_replies, "MAX_REQUESTS", 1)
    async with open_producer() as env, responder(env) as answers:
        first = asyncio.create_task(env.producer.request(ORDER, 30))
        (request,) = await asked(env)
        with pytest.raises(ReplyTimeoutError, match="waiting for their replies") as caught:
            await env.producer.request(ORDER, 0.05)
        await answers.reply(request, b"pong")
        await first

        assert caught.value.message_id is None
        assert len(env.bodies()) == 1


async def test_close_fails_pending_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_replies, "MAX_REQUESTS", 1)
    async with open_producer() as env:
        first = asyncio.create_task(env.producer.request(ORDER, 30))
        await asked(env)
        second = asyncio.create_task(env.producer.request(ORDER, 30))
        await asyncio.sleep(0)
        await env.producer.close()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)

        assert [type(each) for each in outcomes] == [ClosedError, ClosedError]


async def test_close_fails_waiting_requests_before_the_sends_in_flight_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_replies, "MAX_REQUESTS", 1)
    async with open_producer() as env:
        held = env.broker.faults.hold(SEND)
        sending = asyncio.create_task(env.producer.request(ORDER, 30))
        await held.wait()
        waiting = asyncio.create_task(env.producer.request(ORDER, 30))
        await asyncio.sleep(0)
        closing = asyncio.create_task(env.producer.close())
        with pytest.raises(ClosedError):
            await waiting
        assert not sending.done()
        held.release()
        await closing

        with pytest.raises(ClosedError):
            await sending


async def test_close_fails_only_the_requests_of_its_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_replies, "MAX_REQUESTS", 1)
    async with open_producer() as env, Producer("other", client=env.producer.client) as other:
        kept = asyncio.create_task(env.producer.request(ORDER, 30))
        closed = [asyncio.create_task(other.request(ORDER, 30)) for _ in range(2)]  # one waits
        await asked(env, 2)
        await asyncio.wait_for(other.close(), 15)
        outcomes = await asyncio.gather(*closed, return_exceptions=True)

        assert [type(each) for each in outcomes] == [ClosedError, ClosedError]
        assert not kept.done()
        kept.cancel()


# --- replying ------------------------------------------------------------------------------------


async def test_reply_rejects_messages_that_are_not_requests(env: ProducerEnv) -> None:
    await env.producer.send(ORDER)
    (plain,) = requests_in(env)
    wrong: list[Callable[[], Awaitable[object]]] = [
        lambda: env.producer.reply(plain, b"x"),
        lambda: env.producer.reply(ORDER, b"x"),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(ConfigError, match="request"):
            await call()


async def test_closing_a_shared_client_fails_pending_requests() -> None:
    async with open_producer() as env:
        asking = [asyncio.create_task(env.producer.request(request_of(b"x"), 30)) for _ in range(2)]
        await asked(env, 2)
        await until(
            lambda: env.producer.client.remoting._connections[env.broker.address].in_flight == 0
        )
        await env.producer.client.close()

        for waiting in asking:
            with pytest.raises(ClosedError):
                await asyncio.wait_for(waiting, 15)


async def test_a_reply_to_a_closed_requester_fails() -> None:
    async with open_producer() as env, responder(env) as answers:
        asking = asyncio.create_task(env.producer.request(ORDER, 30))
        (request,) = await asked(env)
        asking.cancel()
        await asyncio.wait([asking])
        await env.producer.close()
        with pytest.raises(SendError, match="not found"):
            await answers.reply(request, b"pong")


async def test_an_unexpected_reply_is_acknowledged(env: ProducerEnv) -> None:
    await env.producer.send(ORDER)
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
    answer = await env.broker.push(push)

    assert answer is not None
    assert answer.code == 0
    assert env.producer.dropped_replies == 1
