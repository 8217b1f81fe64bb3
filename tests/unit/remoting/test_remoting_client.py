"""Remoting client: connections by address, against a scripted broker."""

from __future__ import annotations

import asyncio
import socket
import time
import traceback
from collections.abc import Callable
from functools import partial

import pytest

from rocketmq_aio.config.client import ClientConfig, HeaderEncoding
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Raw, Response
from rocketmq_aio.errors import (
    ClosedError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
)
from rocketmq_aio.protocol.codes import BINARY_HEADER, CLIENT_VERSION, JSON_HEADER, RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.groups import UnregisterClient
from rocketmq_aio.remoting import dial, remoting_client as client_module
from rocketmq_aio.remoting.backoff import LONGEST_SECONDS, NO_MASTER_SECONDS, Backoff, NoMasterError
from rocketmq_aio.remoting.connection import Connection, Frame
from tests.fakes.broker import FakeBroker
from tests.fakes.misbehaviour import HTTP_PAGE, NO_JSON
from tests.unit.remoting.clients import ASK, CODE, open_client
from tests.unit.remoting.until import succeeds, until, until_done

GO_AWAY = Response(1500, remark="shutting down")


async def a_dead_address() -> str:
    async with FakeBroker() as broker:
        return broker.address


# --- connections ---------------------------------------------------------------------------------


async def test_concurrent_callers_share_one_connection() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.create_topic("orders")
        answers = await asyncio.gather(*(opened.ask(broker.address) for _ in range(50)))

        assert {answer.code for answer in answers} == {0}
        assert len(broker.connects) == 1
        assert opened.connected == [broker.address]


async def test_a_lost_connection_is_made_again_for_the_next_request() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)
        await opened.ask(broker.address)
        await broker.restart()
        await broker.wait_for_connections(0)
        await until(lambda: not opened.client.is_connected(broker.address))

        assert (await opened.ask(broker.address)).code == 0
        assert opened.connected == [broker.address] * 2


async def test_a_lost_connection_fails_pending_requests() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.reset(CODE, executed=False)

        with pytest.raises(ConnectionLostError):
            await opened.ask(broker.address)


async def test_a_refused_connection_fails_the_request_at_once() -> None:
    address = await a_dead_address()
    async with open_client() as opened:
        with pytest.raises(NotConnectedError, match="cannot connect") as caught:
            await opened.ask(address)

        assert caught.value.address == address
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute after the first failure, so that no test sees a second attempt."""
    monkeypatch.setattr(client_module, "Backoff", partial(Backoff, 120.0, 120.0))


@pytest.mark.usefixtures("long_pauses")
async def test_a_dead_address_is_not_tried_again_before_its_backoff_ends() -> None:
    address = await a_dead_address()
    async with open_client() as opened:
        errors: list[str] = []
        for _ in range(100):
            with pytest.raises(NotConnectedError) as caught:
                await opened.ask(address)
            errors.append(caught.value.reason)

        assert all("next attempt in" in each for each in errors[1:])


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize(
    "response", [HTTP_PAGE, NO_JSON, Raw(b"\x00\x00\x00", close=True)], ids=["page", "text", "part"]
)
async def test_a_peer_that_never_sends_a_frame_is_not_tried_again_at_once(response: Raw) -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, response, times=None)
        with pytest.raises(ConnectionLostError):
            await opened.ask(broker.address)
        with pytest.raises(NotConnectedError, match="next attempt in"):
            await opened.ask(broker.address)

        assert len(broker.connects) == 1


async def test_a_broker_without_a_master_has_a_backoff_until_routes_are_refreshed() -> None:
    async with open_client() as opened:
        with pytest.raises(NoMasterError):
            await opened.ask("broker-a")

        assert opened.client.backoff_left("broker-a") == NO_MASTER_SECONDS


async def test_lost_and_refused_connections_are_reported_as_unreachable() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)
        await opened.ask(broker.address)
        await broker.stop()
        await until(lambda: opened.unreachable == [broker.address])
        with pytest.raises(NotConnectedError):
            await opened.ask(broker.address)

        assert opened.unreachable == [broker.address] * 2


async def test_connections_that_the_client_closes_are_not_reported_as_unreachable() -> None:
    async with FakeBroker() as broker, FakeBroker() as other, open_client() as opened:
        for each in (broker, other):
            each.faults.handle(CODE, Response(), times=None)
            await opened.ask(each.address)
        opened.client.forget({broker.address})
        await broker.wait_for_connections(0)
        opened.client.close()
        await other.wait_for_connections(0)

        assert opened.unreachable == []


@pytest.mark.usefixtures("long_pauses")
async def test_a_server_that_accepts_and_hangs_up_causes_no_storm_of_connections() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.connect(times=None)
        for _ in range(300):
            with pytest.raises((NotConnectedError, ConnectionLostError)):
                await opened.ask(broker.address)

        assert len(broker.connects) == 1


@pytest.mark.usefixtures("long_pauses")
async def test_a_server_that_hangs_up_while_it_is_connected_to_counts_as_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialed = 0

    async def dial_in_vain(address: str, make: Callable[[], Connection]) -> Connection:
        nonlocal dialed
        dialed += 1
        connection = make()
        connection.loss = "closed by the peer"
        return connection

    async with open_client() as opened:
        monkeypatch.setattr(opened.client._dialer, "dial", dial_in_vain)
        for _ in range(20):
            with pytest.raises(NotConnectedError, match="closed by the peer"):
                await opened.ask("127.0.0.1:10911")

        assert dialed == 1
        assert opened.connected == []


async def test_a_server_that_comes_back_is_used_again_soon() -> None:
    broker = FakeBroker()
    await broker.start()
    await broker.stop()
    broker.faults.handle(CODE, Response(), times=None)
    async with open_client() as opened:
        with pytest.raises(NotConnectedError):
            await opened.ask(broker.address)
        async with broker:
            await until_done(lambda: succeeds(opened.ask(broker.address)))
        await until(lambda: not opened.client.is_connected(broker.address))
        assert opened.client._backoff == {}  # the next failure is a first one
    assert LONGEST_SECONDS <= 2


async def test_callers_of_one_connection_attempt_share_its_failure() -> None:
    address = await a_dead_address()
    async with open_client() as opened:
        errors = await asyncio.gather(
            *(opened.ask(address) for _ in range(20)), return_exceptions=True
        )

        assert {type(error) for error in errors} == {NotConnectedError}
        (shared,) = set(errors)
        assert isinstance(shared, NotConnectedError)
        assert len(traceback.extract_tb(shared.__traceback__)) < 10


async def test_a_caller_cancelled_while_connecting_does_not_stop_the_others() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)
        leaving = asyncio.create_task(opened.ask(broker.address))
        staying = asyncio.create_task(opened.ask(broker.address))
        await asyncio.sleep(0)
        leaving.cancel()

        assert (await staying).code == 0
        assert len(broker.connects) == 1


@pytest.mark.parametrize("ended", ["client", "tasks"])
async def test_closing_ends_the_wait_for_a_connection(ended: str) -> None:
    opening, release = asyncio.Event(), asyncio.Event()
    async with FakeBroker() as broker:

        async def stalled(host: str, port: int) -> socket.socket:
            opening.set()
            await release.wait()
            return socket.create_connection((broker.host, broker.port))

        async with open_client(ClientConfig(open_socket=stalled)) as opened:
            asked = asyncio.create_task(opened.ask("10.1.2.3:10911"))
            await opening.wait()
            if ended == "client":
                opened.client.close()
            else:  # as after a failure of one of them
                await opened.tasks.close()
            with pytest.raises(ClosedError):
                await asked

            release.set()
            await until(lambda: len(broker.connects) == (ended == "client"))
            await broker.wait_for_connections(0)


@pytest.mark.parametrize("retired", [False, True])
async def test_close_fails_pending_requests_and_rejects_new_ones(retired: bool) -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.drop(CODE, executed=False)
        asked = asyncio.create_task(opened.ask(broker.address))
        await broker.wait_for(CODE)
        if retired:
            opened.client.forget({broker.address})
        opened.client.close()

        with pytest.raises(ClosedError, match="unanswered: the client was closed") as caught:
            await asked
        assert isinstance(caught.value, ConnectionLostError)  # the broker may have executed it
        with pytest.raises(ClosedError):
            await opened.ask(broker.address)
        await broker.wait_for_connections(0)
        assert len(broker.connects) == 1


async def test_close_ends_the_wait_for_room_with_closed_error() -> None:
    async with FakeBroker() as broker, open_client(ClientConfig(max_in_flight=1)) as opened:
        broker.faults.drop(CODE, executed=False)
        first = asyncio.create_task(opened.ask(broker.address))
        await broker.wait_for(CODE)
        waiting = asyncio.create_task(opened.ask(broker.address))
        await asyncio.sleep(0)
        opened.client.close()

        with pytest.raises(ClosedError) as caught:
            await waiting
        assert isinstance(caught.value, NotConnectedError)  # the broker did not get it
        with pytest.raises(ClosedError):
            await first


async def test_an_unused_address_keeps_neither_connection_nor_backoff() -> None:
    dead = await a_dead_address()
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)
        await opened.ask(broker.address)
        with pytest.raises(NotConnectedError):
            await opened.ask(dead)
        opened.client.retain({broker.address})
        assert opened.client.is_connected(broker.address)
        assert opened.client.backoff_left(dead) == 0
        assert opened.client._backoff == {}
        opened.client.retain(set())

        await broker.wait_for_connections(0)
        assert opened.client._connections == {}


async def test_a_request_whose_new_connection_is_forgotten_before_it_is_sent_gets_another() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, Response(), times=None)
        connected = opened.connected

        def forget_the_first(address: str) -> None:
            connected.append(address)
            if len(connected) == 1:
                opened.client.forget({address})

        opened.client._on_connected = forget_the_first

        assert (await opened.ask(broker.address)).code == 0
        assert connected == [broker.address] * 2
        await broker.wait_for_connections(1)


async def test_a_forgotten_address_completes_its_pending_requests() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.create_topic("orders")
        held = broker.faults.hold(CODE, times=None)
        asked = asyncio.create_task(opened.ask(broker.address))
        await held.wait(1)
        opened.client.forget({broker.address})
        held.release()

        assert (await asked).code == 0
        await broker.wait_for_connections(0)


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["json", "rocketmq"])
@pytest.mark.parametrize("response_headers", ["json", "request"])
async def test_both_header_encodings_are_written_and_read(
    setting: HeaderEncoding, response_headers: str
) -> None:
    async with (
        FakeBroker(response_headers=response_headers) as broker,
        open_client(ClientConfig(header_encoding=setting)) as opened,
    ):
        broker.create_topic("orders")
        answer = await opened.ask(broker.address)

        assert answer.ext_fields()["offset"] == "0"
        expected = JSON_HEADER if setting == "json" else BINARY_HEADER
        assert broker.requests[0].encoding == expected
        assert broker.requests[0].command.version == CLIENT_VERSION


async def test_a_broker_that_never_answers_ends_in_a_timeout() -> None:
    config = ClientConfig(request_timeout_seconds=60)
    async with FakeBroker() as broker, open_client(config) as opened:
        broker.faults.handle(CODE, Response())
        broker.faults.drop(CODE, executed=False)
        await opened.ask(broker.address)  # so that it is connected
        with pytest.raises(RequestTimeoutError) as caught:
            await asyncio.wait_for(opened.ask(broker.address, timeout=0.05), 15)

        assert caught.value.code == CODE
        assert opened.unreachable == [broker.address]


async def test_the_default_deadline_is_the_configured_one() -> None:
    config = ClientConfig(request_timeout_seconds=0.05)
    async with FakeBroker() as broker, open_client(config) as opened:
        broker.faults.handle(CODE, Response())
        broker.faults.drop(CODE, executed=False)
        await opened.ask(broker.address)  # so that it is connected
        with pytest.raises(RequestTimeoutError) as caught:
            await opened.client.request(broker.address, ASK)

        assert 0.0 < caught.value.seconds < 0.06


async def test_connecting_counts_against_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: dial.Resolver, host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(dial.Resolver, "resolve", never)
    async with open_client() as opened:
        with pytest.raises(NotConnectedError, match=r"within 0\.05 s"):
            await opened.ask("broker.example:10911", timeout=0.05)


async def test_a_request_whose_deadline_has_passed_once_it_is_connected_is_not_sent() -> None:
    def stall(address: str) -> None:
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)

    async with FakeBroker() as broker, open_client() as opened:
        opened.client._on_connected = stall
        with pytest.raises(NotConnectedError, match=r"within 0\.2 s"):
            await opened.ask(broker.address, timeout=0.2)


async def test_a_oneway_request_is_written_and_waits_for_nothing() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        await opened.client.oneway(broker.address, UnregisterClient(client_id="me"))
        (request,) = await broker.wait_for(RequestCode.UNREGISTER_CLIENT)

        assert request.is_oneway


async def test_a_oneway_request_to_an_unreachable_address_raises() -> None:
    address = await a_dead_address()
    async with open_client() as opened:
        with pytest.raises(NotConnectedError):
            await opened.client.oneway(address, UnregisterClient(client_id="me"))


# --- GO_AWAY -------------------------------------------------------------------------------------


async def test_a_request_answered_go_away_is_resent_on_a_new_connection() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, GO_AWAY)
        broker.faults.handle(CODE, Response(remark="here"))
        answer = await opened.ask(broker.address)

        assert answer.remark == "here"
        assert len(broker.connects) == 2
        await broker.wait_for_connections(1)


async def test_the_late_response_to_a_resent_request_goes_to_its_function() -> None:
    late: list[int] = []
    async with FakeBroker() as broker, open_client() as opened:
        broker.create_topic("orders")
        broker.faults.handle(CODE, GO_AWAY)
        held = broker.faults.hold(CODE)
        request = opened.client.request(broker.address, ASK, on_late=lambda r: late.append(r.code))
        asked = asyncio.create_task(request)
        await held.wait(1)
        asked.cancel()
        await asyncio.wait([asked])
        held.release()
        await until(lambda: late == [0])


async def test_go_away_twice_raises_not_connected() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, GO_AWAY, times=None)
        with pytest.raises(NotConnectedError, match="GO_AWAY"):
            await opened.ask(broker.address)

        await broker.wait_for_connections(0)


async def test_a_request_with_no_time_left_after_go_away_is_not_resent() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        await opened.ask(broker.address)
        retired = opened.client._connections[broker.address]
        broker.faults.handle(CODE, GO_AWAY)
        await opened.ask(broker.address)  # there is a new connection now
        await until(lambda: not opened.client._retiring)
        with pytest.raises(NotConnectedError, match="no time was left"):
            await opened.client._resend(retired, CODE, never_made, 0.0, None)

        assert opened.client.is_connected(broker.address)
        assert opened.client._retiring == set()


def never_made(opaque: int) -> Frame:
    raise AssertionError("it was sent once more")


@pytest.mark.usefixtures("long_pauses")
async def test_going_away_is_no_reason_for_a_storm_of_connections() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, GO_AWAY, times=None)
        for _ in range(100):
            with pytest.raises(NotConnectedError):
                await opened.ask(broker.address)

        assert len(broker.connects) <= 6


async def test_requests_in_flight_complete_after_go_away() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.create_topic("orders")
        held = broker.faults.hold(CODE)
        slow = asyncio.create_task(opened.ask(broker.address))
        await held.wait(1)
        broker.faults.handle(CODE, GO_AWAY)
        broker.faults.handle(CODE, Response(remark="on the new one"))
        moved = await opened.ask(broker.address)
        held.release()

        assert moved.remark == "on the new one"
        assert (await slow).code == 0
        await broker.wait_for_connections(1)


# --- cancellation --------------------------------------------------------------------------------


async def test_a_cancelled_request_frees_its_slot_and_keeps_the_connection() -> None:
    async with FakeBroker() as broker, open_client() as opened:
        broker.create_topic("orders")
        held = broker.faults.hold(CODE, times=None)
        asked = [asyncio.create_task(opened.ask(broker.address)) for _ in range(10)]
        await held.wait(10)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        held.release()
        held.remove()

        assert (await opened.ask(broker.address)).code == 0
        connection = opened.client._connections[broker.address]
        assert (connection.in_flight, connection.stray_replies) == (0, 10)
        assert len(broker.connects) == 1


async def test_every_response_reaches_its_caller() -> None:
    """The broker answers in any order, late and to nobody; a nonce tells the calls apart."""

    def echo(command: Command, _connection: ServerConnection) -> Outcome:
        return Response(remark=command.body.decode())

    async with FakeBroker() as broker, open_client() as opened:
        broker.faults.handle(CODE, echo, times=None)

        async def ask(number: int) -> bool:
            body = b"%d" % number
            asking = asyncio.create_task(opened.client.request(broker.address, ASK, body))
            if number % 3 == 0:
                await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                return asking.cancelled()
            return (await asking).remark == str(number)

        assert all(await asyncio.gather(*(ask(number) for number in range(300))))
