"""Invalid input and clients that do not read: servers go on, with bounded memory."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
from base64 import b64encode
from collections.abc import AsyncIterator

import msgspec
import pytest
from msgspec.structs import replace

from rocketmq_aio.embedded import connection as connection_module
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.connection import (
    HIGH_WATER_BYTES,
    MAX_FRAME_BYTES,
    MAX_UNSENT_BYTES,
    ServerConnection,
)
from rocketmq_aio.embedded.faults import GARBAGE
from rocketmq_aio.model.address import parse_address
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.bodies import BatchAck, BatchAckRequest
from rocketmq_aio.protocol.codes import RESPONSE_FLAG, RequestCode
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.protocol.frame import LENGTH
from rocketmq_aio.protocol.receipt import ORDER_REVIVE_QUEUE
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from rocketmq_aio.protocol.requests.pop import BatchAckMessage
from tests.fakes.conformance.case_env import CaseEnv, eventually, pull_header, send_header
from tests.fakes.raw_client import RawClient

CASE_ENV = CaseEnv("", "", "5.5.0", "orders", "billing")
MAX_OFFSET = GetMaxOffset(topic="orders", queue_id=0)
REQUEST = encode_command(Command(30, 7), {"topic": "orders", "queueId": "0"})
BOUND = MAX_UNSENT_BYTES + 2 * HIGH_WATER_BYTES
CONNECTIONS = 1000


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(topics={"orders": 4}) as cluster:
        yield cluster


async def test_batch_acks_of_what_was_never_popped_cost_nothing(cluster: EmbeddedCluster) -> None:
    ack = BatchAck(
        group="billing",
        topic="orders",
        marker="0",
        start_offset=0,
        queue_id=0,
        revive_queue_id=ORDER_REVIVE_QUEUE,
        pop_time=1,
        invisible_time=1000,
        bits=b64encode(b"\xff" * 2**20).decode(),
    )
    short = [replace(ack, topic=f"topic-{number}", bits="AQ==") for number in range(100)]
    body = msgspec.json.encode(BatchAckRequest(broker_name="broker-a", acks=[ack, *short]))
    async with RawClient(cluster.broker.address) as client:
        assert (await client.ask(BatchAckMessage(), body)).code == 0

    assert not cluster.broker.pops._orders


async def responds(cluster: EmbeddedCluster) -> bool:
    for server in cluster.servers:
        async with RawClient(server.address) as client:
            await client.answer(client.send_fields(30, {"topic": "orders", "queueId": "0"}))
    return True


@pytest.mark.parametrize(
    "data",
    [
        GARBAGE,
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(MAX_FRAME_BYTES + 1) + bytes(60),
        b"\x7f\xff\xff\xff" + bytes(60),
        b"\x00\x00\x00\x0c\x00\x00\x00\x08not json",
        b"\x00\x00\x00\x0c\x01\x00\x00\x08too long",
        bytes(64),
    ],
    ids=["garbage", "HTTP", "over the limit", "2 GiB", "no JSON", "binary header", "zeros"],
)
async def test_data_that_is_no_frame_closes_only_its_connection(
    cluster: EmbeddedCluster, data: bytes
) -> None:
    for server in cluster.servers:
        async with RawClient(server.address) as client:
            client.write(data)
            assert await client.end() == b""

    assert await responds(cluster)


async def test_half_a_frame_waits_for_its_rest_and_is_dropped_with_its_connection(
    cluster: EmbeddedCluster,
) -> None:
    async with RawClient(cluster.broker.address) as client:
        client.write(REQUEST[:20])
        await client.flush()
        client.write(REQUEST[20:])
        assert (await client.answer(7)).code == 0
        client.write(REQUEST[:20])
        await client.flush()
    await cluster.broker.wait_for_connections(0)

    assert await responds(cluster)


async def test_a_response_with_an_unknown_opaque_is_ignored(cluster: EmbeddedCluster) -> None:
    async with RawClient(cluster.broker.address) as client:
        client.write(encode_command(Command(0, 4711, RESPONSE_FLAG), {}))

        assert (await client.ask(MAX_OFFSET)).code == 0


async def test_requests_without_their_fields_get_an_error_response(
    cluster: EmbeddedCluster,
) -> None:
    codes = sorted(cluster.broker._handlers)
    async with RawClient(cluster.broker.address) as client:
        for code in codes:
            for body in (b"", b"[]", b"\xff"):
                client.send_fields(code, {}, body)
        assert (await client.ask(MAX_OFFSET)).code == 0

    assert await responds(cluster)


async def test_a_thousand_connections_are_served(cluster: EmbeddedCluster) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    clients = [RawClient(cluster.broker.address) for _ in range(CONNECTIONS)]
    try:
        for client in clients:
            await client.__aenter__()
        pull = pull_header(CASE_ENV, 0, suspend_timeout_millis=60_000)
        opaques = [client.send(pull) for client in clients]
        await cluster.broker.wait_for_connections(CONNECTIONS)
        async with RawClient(cluster.broker.address) as producer:
            await producer.ask(send_header(CASE_ENV), b"body")
        pulled = [
            await client.answer(opaque) for client, opaque in zip(clients, opaques, strict=True)
        ]
    finally:
        await asyncio.gather(*(client.close() for client in clients))
        await cluster.broker.wait_for_connections(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert {each.code for each in pulled} == {0}
    assert await responds(cluster)


async def test_unsent_bytes_of_a_client_that_does_not_read_are_bounded(
    cluster: EmbeddedCluster,
) -> None:
    cluster.broker.put("orders", bytes(200_000))
    frame = encode_command(
        Command(11, 1),
        {
            "consumerGroup": "billing",
            "topic": "orders",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        },
    )

    async def is_paused() -> bool:
        return bool(connection._paused) or not connection.is_open

    with socket.socket() as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, parse_address(cluster.broker.address))
        await cluster.broker.wait_for_connections(1)
        (connection,) = cluster.broker.connections.values()
        await loop.sock_sendall(client, frame * 500)  # 100 MB of responses

        assert await eventually(is_paused)
        assert connection._transport.get_write_buffer_size() <= BOUND
        assert await responds(cluster)
    await cluster.broker.wait_for_connections(0)


async def test_a_client_with_too_many_unsent_bytes_is_dropped(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_UNSENT_BYTES", 2_000_000)
    async with RawClient(cluster.broker.address) as client:
        client.send(MAX_OFFSET)
        await cluster.broker.wait_for_connections(1)
        (connection,) = cluster.broker.connections.values()
        connection.freeze()
        for _ in range(3):
            connection.write(bytes(1_000_000))
        await cluster.broker.wait_for_connections(0)

    assert await responds(cluster)


def test_a_held_pull_leaves_no_coroutine_when_its_broker_is_killed(
    recwarn: pytest.WarningsRecorder,
) -> None:
    # The event loop ends in the turn in which the task of the request is cancelled.
    loop = asyncio.new_event_loop()
    killed = loop.create_future()

    class KilledByPull(EmbeddedBroker):
        def received(self, connection: ServerConnection, encoding: int, command: Command) -> None:
            super().received(connection, encoding, command)
            self.kill()
            killed.set_result(None)

    async def pull() -> None:
        broker = KilledByPull()
        await broker.start()
        broker.create_topic("orders", queues=1)
        client = RawClient(broker.address)
        await client.__aenter__()
        client.send(pull_header(CASE_ENV, 0, suspend_timeout_millis=60_000))

    loop.run_until_complete(pull())
    loop.run_until_complete(killed)
    loop.close()
    gc.collect()

    assert [str(each.message) for each in recwarn if "never awaited" in str(each.message)] == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"groupName":"billing","retryQueueNums":1000000000}', "has at most 65536 queues"),
        ('{"groupName":"billing","retryQueueNums":"many"}', "JSONException"),
    ],
    ids=["many", "text"],
)
async def test_groups_with_impossible_settings_are_refused(
    cluster: EmbeddedCluster, config: str, reason: str
) -> None:
    async with RawClient(cluster.broker.address) as client:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        answer = await client.answer(client.send_fields(code, {}, config.encode()))

    assert answer.code == 1
    assert reason in (answer.remark or "")
    assert "billing" not in cluster.broker.state.groups


async def test_a_number_beyond_long_stores_nothing(cluster: EmbeddedCluster) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": "tills", "CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 400}
    async with RawClient(cluster.broker.address) as client:
        header = send_header(CASE_ENV, properties=encode_properties(half))
        answer = await client.ask(header, b"half")

    assert "NumberFormatException" in (answer.remark or "")
    assert cluster.broker.transactions.open == []


async def test_an_impossible_permission_of_a_broker_is_ignored(cluster: EmbeddedCluster) -> None:
    async with RawClient(cluster.broker.address) as client, RawClient(cluster.namesrv) as names:
        code = RequestCode.UPDATE_BROKER_CONFIG
        await client.answer(client.send_fields(code, {}, b"brokerPermission=abc"))
        answer = await names.ask(GetRouteInfo(topic="orders"))

    assert answer.code == 0
