"""Scripted servers, seen from the connection of a client."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.protocol.codes import BINARY_HEADER, JSON_HEADER, ONEWAY_FLAG, RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.from_broker import GetConsumerRunningInfo
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from tests.fakes.broker import FakeBroker
from tests.fakes.raw_client import RawClient
from tests.fakes.tls import client_context, server_context

MAX_OFFSET = GetMaxOffset(topic="orders", queue_id=0)
CODE = RequestCode.GET_MAX_OFFSET
RUNNING_INFO = GetConsumerRunningInfo(consumer_group="g", client_id="c")


async def test_a_handler_can_wait_and_use_the_default_response() -> None:
    async def handler(command: Command, connection: ServerConnection) -> Outcome:
        await asyncio.sleep(0)
        outcome = broker.process(command, connection)
        assert isinstance(outcome, Response)
        return Response(outcome.code, {**outcome.ext, "offset": "42"})

    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.faults.handle(CODE, handler)

        assert (await client.ask(MAX_OFFSET)).ext_fields() == {"offset": "42"}


async def test_a_none_outcome_sends_no_response() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.faults.drop(CODE, executed=False)
        silent = client.send(MAX_OFFSET)
        answered = client.send(MAX_OFFSET)

        assert (await client.answer(answered)).code == 0
        with pytest.raises(TimeoutError):
            await client.answer(silent, seconds=0.05)


async def test_a_stalled_connection_reads_nothing_until_it_resumes() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        await broker.wait_for_connections(1)
        (connection,) = broker.connections.values()
        connection.freeze()
        opaque = client.send(MAX_OFFSET)
        with pytest.raises(TimeoutError):
            await broker.wait_for(CODE, seconds=0.05)
        connection.unfreeze()

        assert (await client.answer(opaque)).code == 0


async def test_a_pushed_request_returns_the_response_of_the_client() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        await broker.wait_for_connections(1)
        answer = asyncio.ensure_future(broker.push(RUNNING_INFO))
        client.respond(await client.request(RUNNING_INFO.code), code=1)
        answered = await answer

        assert answered is not None
        assert answered.code == 1


async def test_a_pushed_request_fails_when_the_client_disconnects() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        await broker.wait_for_connections(1)
        answer = asyncio.ensure_future(broker.push(RUNNING_INFO))
        await client.request(RUNNING_INFO.code)
        await client.close()

        with pytest.raises(ConnectionResetError):
            await answer


async def test_a_pushed_oneway_request_does_not_wait() -> None:
    notice = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, ONEWAY_FLAG)
    notice.ext = {"consumerGroup": "g"}
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        await broker.wait_for_connections(1)
        answer = await broker.push(notice)
        received = await client.request(notice.code)

        assert answer is None
        assert received.is_oneway
        assert received.ext_fields() == {"consumerGroup": "g"}


@pytest.mark.parametrize(
    ("response_headers", "encoding"), [("request", BINARY_HEADER), ("json", JSON_HEADER)]
)
async def test_response_headers_are_encoded_as_configured(
    response_headers: str, encoding: int
) -> None:
    broker = FakeBroker(response_headers=response_headers)
    async with broker, RawClient(broker.address, binary=True) as client:
        await client.ask(MAX_OFFSET)

        assert client.encoding == encoding


async def test_a_response_repeats_the_nonce() -> None:
    fields = {"topic": "orders", "queueId": "0", "nonce": "n1"}
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        answer = await client.answer(client.send_fields(CODE, fields))

        assert answer.ext_fields() == {"offset": "0", "nonce": "n1"}


async def test_requests_and_responses_are_recorded() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        await client.ask(MAX_OFFSET)

        assert [(f.connection, f.sent, f.command.code, f.request_code) for f in broker.wire] == [
            (1, False, CODE, CODE),
            (1, True, 0, CODE),
        ]
        assert len(broker.connects) == 1


async def test_a_stopped_broker_refuses_connections_until_it_restarts() -> None:
    async with FakeBroker() as broker:
        broker.put("TBW102", b"kept")
        address = broker.address
        await broker.stop()
        with pytest.raises(ConnectionRefusedError):
            await RawClient(address).__aenter__()
        await broker.start()
        async with RawClient(address) as client:
            answer = await client.ask(GetMaxOffset(topic="TBW102", queue_id=0))

        assert answer.ext_fields() == {"offset": "1"}


async def test_stop_closes_connections_and_cancels_waiting_handlers() -> None:
    async def for_ever(_command: Command, _connection: ServerConnection) -> Outcome:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("never reached")

    async with FakeBroker() as broker, RawClient(broker.address) as client:
        broker.faults.handle(CODE, for_ever)
        client.send(MAX_OFFSET)
        await broker.wait_for(CODE)
        await broker.stop()

        assert len(asyncio.all_tasks()) == 1
        assert not broker.connections
        assert await client.end() == b""


async def test_an_error_in_a_handler_fails_the_test() -> None:
    def broken(_command: Command, _connection: ServerConnection) -> Outcome:
        raise LookupError("a mistake in a test")

    async def run() -> None:
        async with FakeBroker() as broker, RawClient(broker.address) as client:
            broker.faults.handle(CODE, broken)
            client.send(MAX_OFFSET)
            await client.end()

    with pytest.raises(ExceptionGroup, match="handler failed"):
        await run()


async def test_a_timeout_names_the_awaited_change() -> None:
    async with FakeBroker() as broker:
        with pytest.raises(TimeoutError, match=r"1 request.s. of code 34"):
            await broker.wait_for(RequestCode.HEART_BEAT, seconds=0.01)


async def test_a_tls_server_rejects_plain_clients() -> None:
    async with FakeBroker(tls=server_context()) as broker, RawClient(broker.address) as client:
        client.send(MAX_OFFSET)
        await client.end()

        assert broker.requests == []


async def test_a_tls_server_accepts_clients_that_trust_it() -> None:
    broker = FakeBroker(tls=server_context())
    async with broker, RawClient(broker.address, tls=client_context()) as client:
        assert (await client.ask(MAX_OFFSET)).code == 0


@pytest.mark.parametrize(
    ("shown", "trusted"),
    [("localhost", "expired"), ("elsewhere", "elsewhere"), ("expired", "expired")],
    ids=["unknown authority", "another host", "expired"],
)
async def test_a_certificate_can_be_wrong_in_three_ways(shown: str, trusted: str) -> None:
    async with FakeBroker(tls=server_context(shown)) as broker:
        with pytest.raises(ssl.SSLCertVerificationError):
            await RawClient(broker.address, tls=client_context(trusted)).__aenter__()
