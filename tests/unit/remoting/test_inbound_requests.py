"""Inbound requests: replies, order, bounds."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.errors import NotSupportedError
from rocketmq_aio.protocol.codes import ONEWAY_FLAG
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.remoting import inbound_requests
from rocketmq_aio.remoting.inbound_requests import MAX_QUEUED, STREAK, WORKERS, Reply
from tests.fakes.broker import FakeBroker
from tests.unit.remoting.clients import MuteError, open_client
from tests.unit.remoting.until import until

ASKED = 307


def asking(code: int = ASKED, *, oneway: bool = False, body: bytes = b"") -> Command:
    return Command(code, 0, ONEWAY_FLAG if oneway else 0, body=body)


async def pushed(broker: FakeBroker, code: int = ASKED, body: bytes = b"") -> Command:
    answer = await broker.push(asking(code, body=body))
    assert answer is not None
    return answer


async def test_the_answer_of_the_handler_goes_back_under_the_same_opaque() -> None:
    async def answer(address: str, command: Command) -> Reply:
        return 0, "fine", b"to " + command.body

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        answers = await asyncio.gather(*(pushed(broker, body=b"%d" % n) for n in range(5)))

        assert [each.body for each in answers] == [b"to %d" % n for n in range(5)]
        assert {(each.code, each.remark) for each in answers} == {(0, "fine")}


async def test_the_handler_gets_the_address_of_the_peer() -> None:
    addresses: list[str] = []

    async def answer(address: str, command: Command) -> Reply:
        addresses.append(address)
        return 0, None, b""

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        await pushed(broker)

        assert addresses == [broker.address]


async def test_not_supported_errors_become_a_response() -> None:
    async def answer(address: str, command: Command) -> Reply:
        raise NotSupportedError(3, "code 9999 is unknown")

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        reply = await pushed(broker, 9999)

        assert (reply.code, reply.remark) == (3, "code 9999 is unknown")


@pytest.mark.parametrize(
    ("error", "remark"),
    [(LookupError("no such thing"), "LookupError: no such thing"), (MuteError(), "MuteError")],
)
async def test_a_handler_that_fails_is_answered_with_a_system_error(
    error: Exception, remark: str
) -> None:
    async def answer(address: str, command: Command) -> Reply:
        raise error

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        reply = await pushed(broker)

        assert (reply.code, reply.remark) == (1, remark)
        assert (await pushed(broker)).code == 1  # the worker is still there


async def test_each_kind_of_failed_request_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(address: str, command: Command) -> Reply:
        raise KeyError("no such thing") if command.body else LookupError("no such thing")

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        for _ in range(3):
            await pushed(broker)
            await pushed(broker, body=b"another")

    events = [each for each in caplog.records if "broker_request_failed" in each.getMessage()]
    assert len(events) == 2


async def test_a_oneway_request_is_served_and_not_answered() -> None:
    served: list[int] = []

    async def answer(address: str, command: Command) -> Reply:
        served.append(command.code)
        return 0, None, b""

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        await broker.push(asking(40, oneway=True))
        await until(lambda: served == [40])
        await opened.ask(broker.address)  # what was answered before has arrived before

        assert [each for each in broker.wire if each.command.is_response and not each.sent] == []


async def test_a_flood_is_bounded_and_does_not_delay_the_clients_own_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()
    started = 0

    async def answer(address: str, command: Command) -> None:
        nonlocal started
        started += 1
        await release.wait()

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        server = opened.client.server
        for _ in range(3 * MAX_QUEUED):
            await broker.push(asking(40, oneway=True))
        await opened.ask(broker.address)
        await until(lambda: server.dropped)
        await opened.ask(broker.address)

        assert started <= WORKERS
        assert len(server._requests) <= MAX_QUEUED
        assert server.dropped >= 3 * MAX_QUEUED - MAX_QUEUED - WORKERS
        events = [each for each in caplog.messages if "broker_requests_dropped" in each]
        assert len(events) == 1  # not one for each
        assert f"address='{broker.address}' code=40" in events[0]
        release.set()
        await until(lambda: not server._requests)


async def test_a_flood_of_requests_lets_other_tasks_run() -> None:
    served, before = 0, list[int]()

    async def answer(address: str, command: Command) -> None:
        nonlocal served
        served += 1
        if served == 1:
            asyncio.get_running_loop().call_soon(lambda: before.append(served))

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        connection = opened.client._connections[broker.address]
        for _ in range(20 * STREAK):
            opened.client.server.receive(connection, asking(oneway=True), 0)
        await until(lambda: served == 20 * STREAK)

    assert before[0] <= WORKERS * STREAK


async def test_a_response_without_its_connection_is_dropped() -> None:
    release = asyncio.Event()

    async def answer(address: str, command: Command) -> Reply:
        await release.wait()
        return 0, None, b""

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        asked = asyncio.create_task(pushed(broker))
        await until(lambda: any(each.command.code == ASKED for each in broker.wire))
        await broker.restart()
        await asyncio.wait([asked])
        assert isinstance(asked.exception(), ConnectionResetError)
        await until(lambda: not opened.client.is_connected(broker.address))
        release.set()
        await opened.ask(broker.address)

        assert (await pushed(broker)).code == 0


async def test_an_error_text_that_fits_no_header_is_shortened() -> None:
    async def answer(address: str, command: Command) -> Reply:
        if command.body:
            raise ValueError("\x80" * 9_000_000)  # 18 MB in a header of 16 MiB at most
        return 0, "fine", b""

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        replies = [await pushed(broker, body=b"long") for _ in range(WORKERS)]
        last = await pushed(broker)

        assert {each.code for each in replies} == {1}
        assert (last.code, last.remark) == (0, "fine")


@pytest.mark.parametrize("part", ["header", "body"])
async def test_the_bytes_of_queued_requests_are_bounded(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbound_requests, "MAX_QUEUED_BYTES", 5000)  # fewer than five have
    release = asyncio.Event()
    started = 0

    async def answer(address: str, command: Command) -> None:
        nonlocal started
        started += 1
        await release.wait()

    def large(size: int = 1024) -> Command:
        command = asking(39, oneway=True)
        if part == "header":
            command.ext = {"text": "x" * size}
        else:
            command.body = bytes(size)
        return command

    async with FakeBroker() as broker, open_client(on_request=answer) as opened:
        await opened.ask(broker.address)
        server = opened.client.server
        for number in range(WORKERS):
            await broker.push(large())
            await until(lambda at=number: started > at)  # type: ignore[misc]  # a bound loop variable
        for _ in range(6):
            await broker.push(large())
        await opened.ask(broker.address)

        assert len(server._requests) == 4
        assert server.dropped == 2
        release.set()
        await until(lambda: not server._requests)
        await broker.push(large(4096))
        await until(lambda: started == WORKERS + 5)

        assert server.dropped == 2  # there is room again
