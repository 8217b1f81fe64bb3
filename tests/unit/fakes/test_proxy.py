"""Every fault the proxy can make, seen from both of its ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset, GetMinOffset
from tests.fakes.broker import FakeBroker
from tests.fakes.frame_rules import (
    FrameCutter,
    PassingFrame,
    corrupt,
    drop,
    duplicate,
    truncate,
    with_code,
)
from tests.fakes.proxy import FaultProxy
from tests.fakes.raw_client import RawClient
from tests.fakes.stopwatch import Stopwatch
from tests.fakes.tls import client_context, server_context

MAX_OFFSET = GetMaxOffset(topic="TBW102", queue_id=0)
MIN_OFFSET = GetMinOffset(topic="TBW102", queue_id=0)
MAX_CODE = RequestCode.GET_MAX_OFFSET
MIN_CODE = RequestCode.GET_MIN_OFFSET
FRAME = encode_command(Command(MAX_CODE, 1), {"topic": "TBW102", "queueId": "0"})


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[FakeBroker, FaultProxy, RawClient]]:
    """Yield a broker, a proxy before it, and a client of the proxy."""
    async with (
        FakeBroker() as broker,
        FaultProxy(broker.address) as proxy,
        RawClient(proxy.address) as client,
    ):
        yield broker, proxy, client


async def test_without_faults_everything_is_forwarded_and_recorded() -> None:
    async with proxied() as (_, proxy, client):
        answer = await client.ask(MAX_OFFSET)

        assert answer.ext_fields() == {"offset": "0"}
        assert [(f.upward, f.command.code, f.request_code) for f in proxy.frames] == [
            (True, MAX_CODE, MAX_CODE),
            (False, 0, MAX_CODE),
        ]


async def test_delayed_data_arrives_later() -> None:
    async with proxied() as (_, proxy, client):
        proxy.down.delay_seconds = 0.1
        began = asyncio.get_running_loop().time()
        opaques = [client.send(MAX_OFFSET) for _ in range(5)]
        with Stopwatch() as passed:
            for opaque in opaques:
                await client.answer(opaque)

        # Later, but not one after the other.
        assert asyncio.get_running_loop().time() - began >= 0.1
        assert passed.seconds < 0.45


async def test_a_lane_keeps_its_rate_limit() -> None:
    async with proxied() as (_, proxy, client):
        proxy.up.bytes_per_second = len(FRAME) * 10
        began = asyncio.get_running_loop().time()
        with Stopwatch() as passed:
            client.write(FRAME)
            await client.answer(1)

        assert asyncio.get_running_loop().time() - began > 0.09
        assert passed.seconds < 2


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes that the broker has received."""
    found: list[bytes] = []
    receive = ServerConnection.data_received

    def received(connection: ServerConnection, data: bytes) -> None:
        found.append(data)
        receive(connection, data)

    monkeypatch.setattr(ServerConnection, "data_received", received)
    return found


async def test_frames_may_come_byte_by_byte(chunks: list[bytes]) -> None:
    async with proxied() as (_, proxy, client):
        proxy.up.slice_bytes = proxy.down.slice_bytes = 1
        answer = await client.ask(MAX_OFFSET)

        assert answer.code == 0
        assert len(chunks) > len(b"".join(chunks)) / 2


async def test_frames_may_come_in_one_piece(chunks: list[bytes]) -> None:
    async with proxied() as (broker, proxy, client):
        proxy.up.merge_seconds = 0.4
        for _ in range(3):
            client.send(MAX_OFFSET)
            await client.flush()
        await broker.wait_for(MAX_CODE, 3)

        assert len(chunks) == 1


async def test_a_stalled_direction_forwards_nothing_until_it_flows() -> None:
    async with proxied() as (broker, proxy, client):
        proxy.down.stall()
        opaque = client.send(MAX_OFFSET)
        await broker.wait_for(MAX_CODE)
        with pytest.raises(TimeoutError):
            await client.answer(opaque, seconds=0.05)
        proxy.down.flow()

        assert (await client.answer(opaque)).code == 0


async def test_a_cut_closes_both_ends_gracefully() -> None:
    async with proxied() as (broker, proxy, client):
        await client.ask(MAX_OFFSET)
        proxy.cut()

        assert await client.end() == b""
        await broker.wait_for_connections(0)


async def test_a_reset_response_is_recognised() -> None:
    async with proxied() as (_, proxy, client):
        await client.ask(MAX_OFFSET)
        proxy.cut(reset=True)

        with pytest.raises(ConnectionResetError):
            await client.answer(99)


async def test_a_connection_may_end_at_a_byte() -> None:
    async with proxied() as (_, proxy, client):
        proxy.down.cut(byte=10)
        client.send(MAX_OFFSET)

        assert len(await client.end()) == 10


async def test_a_connection_may_end_inside_a_frame() -> None:
    async with proxied() as (_, proxy, client):
        proxy.down.cut(frame=1, byte=5)
        first = await client.ask(MAX_OFFSET)
        client.send(MAX_OFFSET)

        assert first.code == 0
        assert len(await client.end()) == 5


async def test_a_connection_may_be_reset_after_a_frame() -> None:
    async with proxied() as (broker, proxy, client):
        proxy.up.cut(frame=2, reset=True)
        await client.ask(MAX_OFFSET)
        opaque = client.send(MAX_OFFSET)

        with pytest.raises(ConnectionResetError):
            await client.answer(opaque)
        assert len(broker.requests) <= 2


async def test_a_point_applies_to_one_connection() -> None:
    async with FakeBroker() as broker, FaultProxy(broker.address) as proxy:
        proxy.down.cut(byte=10)
        async with RawClient(proxy.address) as first:
            first.send(MAX_OFFSET)
            await first.end()
        async with RawClient(proxy.address) as second:
            assert (await second.ask(MAX_OFFSET)).code == 0


async def test_a_stall_may_begin_inside_a_frame() -> None:
    async with proxied() as (_, proxy, client):
        proxy.down.stall_at(byte=10)
        opaque = client.send(MAX_OFFSET)
        with pytest.raises(TimeoutError):
            await client.answer(opaque, seconds=0.05)
        proxy.down.off()

        # A read that was given up in the middle has lost no byte.
        assert (await client.answer(opaque)).code == 0


async def test_a_response_can_be_dropped_after_its_request_was_executed() -> None:
    async with proxied() as (broker, proxy, client):
        proxy.down.on(drop, code=MAX_CODE)
        lost = client.send(MAX_OFFSET)
        other = await client.ask(MIN_OFFSET)

        assert other.code == 0
        assert len(broker.requests_of(MAX_CODE)) == 1
        with pytest.raises(TimeoutError):
            await client.answer(lost, seconds=0.05)


async def test_a_request_can_be_dropped() -> None:
    async with proxied() as (broker, proxy, client):
        proxy.up.on(drop, code=MAX_CODE)
        client.send(MAX_OFFSET)
        await client.ask(MIN_OFFSET)

        assert broker.requests_of(MAX_CODE) == []


async def test_a_request_can_be_duplicated() -> None:
    async with proxied() as (broker, proxy, client):
        proxy.up.on(duplicate)
        opaque = client.send(MAX_OFFSET)
        for _ in range(2):
            assert (await client.answer(opaque)).code == 0

        assert len(broker.requests_of(MAX_CODE)) == 2


async def test_responses_can_be_reordered() -> None:
    async with proxied() as (_, proxy, client):
        held = proxy.down.hold(code=MAX_CODE, times=2)
        opaques = [client.send(MAX_OFFSET) for _ in range(2)]
        await held.wait(2)
        held.release(1, 0)
        codes = [(await client.answer(opaque)).code for opaque in reversed(opaques)]

        assert codes == [0, 0]
        assert held.frames == []


async def test_a_response_can_have_another_code() -> None:
    async with proxied() as (_, proxy, client):
        proxy.down.on(with_code(2, "busy"), times=None)
        answer = await client.ask(MAX_OFFSET)

        assert (answer.code, answer.remark, answer.ext_fields()) == (2, "busy", {"offset": "0"})


async def test_a_byte_may_be_corrupted() -> None:
    async with proxied() as (broker, proxy, client):
        proxy.up.on(corrupt(0))
        client.send(MAX_OFFSET)

        assert await client.end() == b""
        await broker.wait_for_connections(0)


async def test_a_frame_may_be_truncated() -> None:
    async with proxied() as (_, proxy, client):
        proxy.down.on(truncate(7))
        proxy.down.cut(frame=1)
        client.send(MAX_OFFSET)

        assert len(await client.end()) == 7


async def test_a_refusing_proxy_keeps_open_connections_and_its_port() -> None:
    async with proxied() as (_, proxy, client):
        await client.ask(MAX_OFFSET)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await RawClient(proxy.address).__aenter__()
        still = await client.ask(MAX_OFFSET)
        await proxy.accept()
        async with RawClient(proxy.address) as second:
            again = await second.ask(MAX_OFFSET)

        assert (still.code, again.code) == (0, 0)


async def test_a_stopped_target_is_seen_as_a_reset() -> None:
    async with proxied() as (broker, proxy, _):
        await proxy.wait_for_connections(1)
        await broker.stop()
        async with RawClient(proxy.address) as client:
            with pytest.raises(ConnectionResetError):
                await client.answer(1)


async def test_data_that_is_not_a_frame_passes_unchanged() -> None:
    async with proxied() as (broker, _, client):
        client.write(b"GET / HTTP/1.1\r\n\r\n")

        assert await client.end() == b""
        await broker.wait_for_connections(0)


async def test_a_disconnect_of_the_client_reaches_the_server() -> None:
    async with proxied() as (broker, _, client):
        await client.ask(MAX_OFFSET)
        await client.close()

        await broker.wait_for_connections(0)


async def test_a_proxy_leaves_no_task_behind() -> None:
    async with proxied() as (_, proxy, client):
        proxy.stall()
        client.send(MAX_OFFSET)
        await proxy.wait_for_connections(1)

    assert len(asyncio.all_tasks()) == 1


async def test_an_error_in_a_rule_fails_the_test() -> None:
    def broken(_frame: PassingFrame) -> list[bytes]:
        raise LookupError("a mistake in a test")

    async def run() -> None:
        async with proxied() as (_, proxy, client):
            proxy.up.on(broken)
            client.send(MAX_OFFSET)
            await client.end()

    with pytest.raises(ExceptionGroup, match="rule of the proxy failed"):
        await run()


def test_the_advertised_address_is_mapped_to_the_proxy() -> None:
    proxy = FaultProxy("10.0.0.1:10911")
    proxy.port = 7

    assert proxy.map_address("10.0.0.1:10911") == "127.0.0.1:7"
    assert proxy.map_address("10.0.0.2:10911") == "10.0.0.2:10911"


@pytest.mark.parametrize("step", [1, 3, 7, len(FRAME), 10 * len(FRAME)])
def test_the_cutter_returns_whole_frames(step: int) -> None:
    stream, cutter = FRAME * 5, FrameCutter()
    pieces = [p for at in range(0, len(stream), step) for p in cutter.feed(stream[at : at + step])]

    assert pieces == [FRAME] * 5
    assert cutter.rest() == []


def test_the_cutter_returns_a_partial_frame_only_at_the_end() -> None:
    cutter = FrameCutter()

    assert cutter.feed(FRAME[:20]) == []
    assert cutter.rest() == [FRAME[:20]]


async def test_tls_passes_and_its_bytes_can_be_cut() -> None:
    async with (
        FakeBroker(tls=server_context()) as broker,
        FaultProxy(broker.address) as proxy,
        RawClient(proxy.address, tls=client_context()) as client,
    ):
        passed = await client.ask(MAX_OFFSET)
        proxy.down.slice_bytes = 1
        sliced = await client.ask(MAX_OFFSET)
        proxy.cut(reset=True)

        assert (passed.code, sliced.code) == (0, 0)
        with pytest.raises(ConnectionResetError):
            await client.answer(99)
