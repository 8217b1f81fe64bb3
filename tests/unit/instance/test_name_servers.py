"""Name servers: failover, hedging, and the list of addresses."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.embedded.responses import Raw, Response
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    CodecError,
    ConfigError,
    NameServerUnavailableError,
    NotConnectedError,
    NotSupportedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from rocketmq_aio.instance import name_servers as name_servers_module
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.name_servers import NameServers
from rocketmq_aio.protocol.bodies import MAX_BROKERS
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.frame import PREFIX
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.requests.admin import GetClusterInfo
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from tests.fakes.address_server import FakeAddressServer
from tests.fakes.broker import FakeBroker
from tests.fakes.name_server import FakeNameServer
from tests.unit.remoting.clients import open_client
from tests.unit.remoting.until import settle, until

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
NOT_READY = Response(1, remark="name server not ready")


@pytest.fixture(autouse=True)
def order_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is shuffled; these tests want to know who comes first."""
    monkeypatch.setattr(random, "sample", lambda given, _: list(given))
    doubt_after(60.0, monkeypatch)


@pytest.fixture
def doubtful(order_kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer at once is doubted."""
    doubt_after(0.01, monkeypatch)


def doubt_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_servers_module, "HEDGE_SECONDS", seconds)


@asynccontextmanager
async def asking(namesrv: str, *, timeout: float = 60.0) -> AsyncIterator[NameServers]:
    config = ClientConfig(namesrv=namesrv, request_timeout_seconds=timeout)
    async with open_client(config) as opened:
        name_servers = NameServers(config, opened.client)
        await name_servers.load()
        yield name_servers


@asynccontextmanager
async def servers(count: int = 2) -> AsyncIterator[list[FakeNameServer]]:
    """Name servers that all know the topic ``orders``."""
    broker = FakeBroker()
    broker.create_topic("orders", queues=2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        made = [FakeNameServer() for _ in range(count)]
        for each in made:
            each.register(broker)
            await stack.enter_async_context(each)
        yield made


def joined(made: list[FakeNameServer]) -> str:
    return ";".join(each.address for each in made)


def asked(server: FakeNameServer) -> int:
    return len(server.requests_of(ROUTE))


async def test_a_route_comes_from_the_first_server() -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        route = await name_servers.route("orders")

        assert [each.write_queue_nums for each in route.queue_datas] == [2]
        assert (asked(first), asked(second)) == (1, 0)


async def test_closing_the_client_ends_a_waiting_request_with_closed_error() -> None:
    async with servers(1) as (server,), asking(server.address) as name_servers:
        server.faults.hold("route")
        waiting = asyncio.ensure_future(name_servers.route("orders"))
        await server.wait_for(ROUTE)
        name_servers._remoting.close()
        with pytest.raises(ClosedError):
            await waiting


async def test_any_broker_may_have_a_light_message_queue() -> None:
    async with servers(1) as (server,), asking(server.address) as name_servers:
        route = await name_servers.route("%LMQ%jobs")
        (known,) = (await name_servers.route("orders")).broker_datas

        assert [(q.read_queue_nums, q.write_queue_nums) for q in route.queue_datas] == [(1, 1)]
        assert [b.broker_addrs for b in route.broker_datas] == [known.broker_addrs]


async def test_the_route_of_a_light_message_queue_has_the_limits_of_others() -> None:
    brokers = {f"b{n}": {"brokerName": f"b{n}", "brokerAddrs": {}} for n in range(MAX_BROKERS + 1)}
    body = msgspec.json.encode({"brokerAddrTable": brokers})
    async with servers(1) as (server,), asking(server.address) as name_servers:
        server.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, Response(body=body))
        with pytest.raises(CodecError, match=f"more than {MAX_BROKERS} brokers"):
            await name_servers.route("%LMQ%jobs")


async def test_without_a_broker_there_is_no_light_message_queue() -> None:
    async with FakeNameServer() as server, asking(server.address) as name_servers:
        with pytest.raises(RouteNotFoundError, match="no brokers"):
            await name_servers.route("%LMQ%jobs")


async def test_a_proxy_is_known_by_its_routes_and_its_unknown_topics() -> None:
    async with servers(1) as (server,), asking(server.address) as name_servers:
        assert not await name_servers.find_proxies("orders")
        server.is_proxy = True
        assert await name_servers.find_proxies("orders")
        server.is_proxy = False
        assert not await name_servers.find_proxies("nothing")
        server.is_proxy = True
        assert await name_servers.find_proxies("nothing")
        await name_servers.request(GetClusterInfo())  # its response has no region
        assert name_servers.are_proxies


async def test_a_dead_server_is_passed_over_at_once_and_the_next_one_stays_chosen() -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        await first.stop()
        await asyncio.wait_for(name_servers.route("orders"), 15)
        assert name_servers.backoff_left() == 0.0
        await first.start()
        await name_servers.route("orders")

        assert (asked(first), asked(second)) == (0, 2)


@pytest.mark.usefixtures("doubtful")
async def test_a_silent_server_becomes_suspect_and_the_next_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        first.faults.drop("route", executed=False, times=None)
        await asyncio.wait_for(name_servers.route("orders"), 15)  # not the request timeout

        assert asked(first) == 1
        doubt_after(60.0, monkeypatch)
        await name_servers.route("orders")
        assert (asked(first), asked(second)) == (1, 2)


@pytest.mark.usefixtures("doubtful")
async def test_a_slow_server_that_answers_first_after_all_stays_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        held = first.faults.hold("route")
        second.faults.drop("route", executed=False)
        asking_now = asyncio.create_task(name_servers.route("orders"))
        await held.wait(1)
        await second.wait_for(ROUTE)
        held.release()
        await asking_now
        doubt_after(60.0, monkeypatch)
        await name_servers.route("orders")

        assert (asked(first), asked(second)) == (2, 1)


@pytest.mark.usefixtures("doubtful")
async def test_each_wait_for_silent_servers_is_followed_by_as_many_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers(1) as (last,):
        listed = [f"127.0.0.1:{port}" for port in range(1, 12)]
        async with asking(";".join([*listed, last.address])) as name_servers:
            request, wait = name_servers._remoting.request, name_servers._wait
            pending: list[int] = []

            async def answer_late(address: str, header: RequestHeader) -> Command:
                if address != last.address:
                    await asyncio.Event().wait()
                return await request(address, header)

            async def count(poll: Any, seconds: float | None) -> None:  # noqa: ANN401 - private
                pending.append(len(poll.pending))
                await wait(poll, seconds)

            monkeypatch.setattr(name_servers._remoting, "request", answer_late)
            monkeypatch.setattr(name_servers, "_wait", count)
            await name_servers.route("orders")

    assert pending[:4] == [1, 2, 4, 8]
    assert len(pending) <= 6


async def test_a_server_that_is_not_ready_is_passed_over() -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        first.faults.handle("route", NOT_READY)
        await name_servers.route("orders")

        assert (asked(first), asked(second)) == (1, 1)


@pytest.mark.usefixtures("doubtful")
async def test_no_server_left_names_the_cause_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    async with servers(3) as made, asking(joined(made)) as name_servers:
        dead, silent, unready = made
        request = name_servers._remoting.request

        async def impatient(address: str, header: RequestHeader) -> Command:
            timeout = 0.05 if address == silent.address else None
            return await request(address, header, timeout=timeout)

        await request(silent.address, GetRouteInfo(topic="orders"))  # so that it is connected
        monkeypatch.setattr(name_servers._remoting, "request", impatient)
        await dead.stop()
        silent.faults.drop("route", executed=False, times=None)
        unready.faults.handle("route", NOT_READY, times=None)
        with pytest.raises(NameServerUnavailableError) as caught:
            await name_servers.route("orders")

        causes = caught.value.addresses
        assert {address: type(cause) for address, cause in causes.items()} == {
            dead.address: NotConnectedError,
            silent.address: RequestTimeoutError,
            unready.address: BrokerError,
        }
        assert "not ready" in str(caught.value)


async def test_a_topic_is_unknown_if_every_server_reports_it_missing() -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        with pytest.raises(RouteNotFoundError) as caught:
            await name_servers.route("nowhere")

        assert caught.value.topic == "nowhere"
        assert (asked(first), asked(second)) == (1, 1)


async def test_a_server_with_the_topic_wins_over_a_restarted_one() -> None:
    async with servers(3) as made, asking(joined(made)) as name_servers:
        made[0].forget_brokers()
        made[1].forget_brokers()
        for _ in range(2):
            assert (await name_servers.route("orders")).queue_datas

        assert [asked(each) for each in made] == [1, 1, 2]  # the third one stays first


async def test_a_dead_server_does_not_make_an_unknown_topic_an_outage() -> None:
    async with servers(3) as made, asking(joined(made)) as name_servers:
        await made[0].stop()
        await made[2].stop()
        with pytest.raises(RouteNotFoundError):
            await asyncio.wait_for(name_servers.route("nowhere"), 15)

        assert asked(made[1]) == 1


@pytest.mark.usefixtures("doubtful")
@pytest.mark.parametrize("silent_at", [0, 1])
async def test_a_silent_server_does_not_delay_route_not_found(
    silent_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with servers() as made, asking(joined(made)) as name_servers:
        silent = made[silent_at]
        silent.faults.drop("route", executed=False, times=None)
        for _ in range(3):
            with pytest.raises(RouteNotFoundError):
                await asyncio.wait_for(name_servers.route("nowhere"), 15)
            doubt_after(60.0, monkeypatch)  # so that a slow machine does not doubt the other

        # Passed over from then on, while others answer; a slow machine may not connect in time.
        assert asked(silent) <= 1


@pytest.mark.usefixtures("doubtful")
async def test_a_suspect_is_requested_if_no_other_server_answers() -> None:
    async with servers() as made, asking(joined(made)) as name_servers:
        silent, other = made
        silent.faults.drop("route", executed=False)
        with pytest.raises(RouteNotFoundError):
            await name_servers.route("nowhere")
        await other.stop()

        assert (await asyncio.wait_for(name_servers.route("orders"), 15)).queue_datas
        assert not name_servers._is_suspect(silent.address)  # it answers again


async def test_servers_that_need_not_know_the_same_are_all_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubt_after(60.0, monkeypatch)
    async with servers(3) as made, asking(joined(made)) as name_servers:
        await made[0].stop()
        held = made[1].faults.hold("route")
        routes = asyncio.create_task(name_servers.routes("orders"))
        await held.wait(1)
        await made[2].wait_for(ROUTE)
        await name_servers._remoting.request(made[2].address, GetClusterInfo())  # after the route
        held.release()

        assert len(await routes) == 2
        assert len(await name_servers.request_all(GetClusterInfo())) == 2


@pytest.mark.usefixtures("doubtful")
async def test_a_slow_server_with_the_topic_wins_over_an_early_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers() as (empty, slow), asking(joined([empty, slow])) as name_servers:
        doubt_after(60.0, monkeypatch)
        empty.forget_brokers()
        held = slow.faults.hold("route")
        asking_now = asyncio.create_task(name_servers.route("orders"))
        await held.wait(1)
        held.release()

        assert (await asking_now).queue_datas


async def test_a_rejected_request_is_not_an_outage() -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        for server in (first, second):
            server.faults.handle(
                GetClusterInfo.code, server.not_supported(Command(GetClusterInfo.code, 0))
            )

        with pytest.raises(NotSupportedError, match="106 not supported"):
            await name_servers.request(GetClusterInfo())


async def test_a_broker_given_as_name_server_is_named_as_such() -> None:
    async with FakeBroker() as broker, asking(broker.address) as name_servers:
        with pytest.raises(NameServerUnavailableError, match="this is a broker"):
            await name_servers.route("orders")


async def test_a_route_that_no_server_returns_in_readable_form_names_the_cause() -> None:
    async with servers(1) as (server,), asking(server.address) as name_servers:
        server.faults.handle("route", Response(body=b"<html>"))

        with pytest.raises(NameServerUnavailableError) as raised:
            await name_servers.route("orders")
        assert isinstance(raised.value.addresses[server.address], CodecError)


async def test_an_unreadable_route_is_requested_from_the_next_server() -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        first.faults.handle("route", Response(body=b"<html>"), times=None)

        assert (await name_servers.route("orders")).queue_datas
        assert len(await name_servers.routes("orders")) == 1
        assert asked(second) == 2


@pytest.mark.parametrize("topic", ["orders", "nowhere"])
async def test_a_route_with_unreadable_fields_is_requested_from_the_next_server(topic: str) -> None:
    def with_fields(command: Command, _: object) -> Raw:
        code, body = (0, b"{}") if topic == "orders" else (17, b"")
        header = b'{"code":%d,"opaque":%d,"flag":1,"extFields":[1]}' % (code, command.opaque)
        length = 4 + len(header) + len(body)
        return Raw(PREFIX.pack(length, len(header)) + header + body)

    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        first.faults.handle("route", with_fields, times=None)

        assert (await name_servers.route("orders")).queue_datas
        assert (asked(first), asked(second)) == (1, 1)
        await second.stop()
        with pytest.raises(NameServerUnavailableError) as raised:
            await name_servers.route(topic)
        assert isinstance(raised.value.addresses[first.address], CodecError)


async def test_a_request_cut_in_the_middle_goes_to_the_next_server() -> None:
    async with servers() as (first, second), asking(joined([first, second])) as name_servers:
        first.faults.reset("route", executed=False)
        await name_servers.route("orders")

        assert asked(second) == 1


@pytest.mark.usefixtures("doubtful")
async def test_cancelling_a_call_cancels_all_its_requests() -> None:
    async with servers() as made, asking(joined(made)) as name_servers:
        for each in made:
            each.faults.drop("route", executed=False, times=None)
        asking_now = asyncio.create_task(name_servers.route("orders"))
        await made[1].wait_for(ROUTE)
        asking_now.cancel()
        await asyncio.wait([asking_now])

        assert asking_now.cancelled()
        connections = name_servers._remoting._connections.values()
        assert [each.in_flight for each in connections] == [0, 0]


async def test_missing_name_servers_raise_config_error_with_the_settings() -> None:
    config = ClientConfig()
    async with open_client(config) as opened:
        with pytest.raises(ConfigError, match="ROCKETMQ_NAMESRV"):
            await NameServers(config, opened.client).load()


# --- the address server --------------------------------------------------------------------------


async def test_name_servers_come_from_the_address_server() -> None:
    async with servers() as made, FakeAddressServer(joined(made) + "\r\nmore") as address_server:
        async with asking(address_server.url) as name_servers:
            await name_servers.route("orders")

        assert name_servers.addresses == tuple(each.address for each in made)
        assert address_server.requests == ["GET /rocketmq/nsaddr HTTP/1.0"]


async def test_the_address_server_is_requested_for_the_unit() -> None:
    async with servers() as made, FakeAddressServer(joined(made)) as address_server:
        for url in (address_server.url, f"{address_server.url}?a=b"):
            config = ClientConfig(namesrv=url, unit_name="ea st")
            async with open_client(config) as opened:
                await NameServers(config, opened.client).load()

        assert address_server.requests == [
            "GET /rocketmq/nsaddr-ea%20st?nofix=1 HTTP/1.0",
            "GET /rocketmq/nsaddr-ea%20st?nofix=1&a=b HTTP/1.0",
        ]


async def test_a_changed_list_is_used_and_leaves_no_connection_behind() -> None:
    async with (
        servers() as (old, new),
        FakeAddressServer(old.address) as address_server,
        asking(address_server.url) as name_servers,
    ):
        await name_servers.route("orders")
        address_server.addresses = new.address
        await name_servers.refresh()
        await name_servers.route("orders")

        assert (asked(old), asked(new)) == (1, 1)
        await old.wait_for_connections(0)


async def test_a_list_of_the_same_servers_keeps_the_preferred_one() -> None:
    async with (
        FakeAddressServer("127.0.0.1:10001;127.0.0.1:10002") as address_server,
        asking(address_server.url) as name_servers,
    ):
        before = name_servers.addresses
        address_server.addresses = ";".join(reversed(before))
        await name_servers.refresh()

        assert name_servers.addresses == before


async def test_a_list_is_not_fetched_again_at_once_when_no_server_of_it_responds() -> None:
    async with asking("127.0.0.1:10001") as name_servers:
        name_servers._moved.set()
        waiting = asyncio.create_task(name_servers.wait_until_due(60.0))
        await settle()

        assert not waiting.done()
        waiting.cancel()


async def test_a_list_is_fetched_early_when_no_server_of_it_responds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(name_servers_module, "LEAST_REFRESH_SECONDS", 0.01)
    async with (
        servers() as (old, new),
        FakeAddressServer(old.address) as address_server,
        MQClientInstance(ClientConfig(namesrv=address_server.url)) as client,
    ):
        old.kill()
        address_server.addresses = new.address
        with pytest.raises(NameServerUnavailableError):
            await client.routes.get("orders")
        await until(lambda: client.name_servers.addresses == (new.address,), "the new list")
        await client.routes.get("orders")

        assert len(address_server.requests) == 2


@pytest.mark.usefixtures("doubtful")
async def test_the_server_list_may_shrink_during_a_request() -> None:
    async with (
        servers(3) as made,
        FakeAddressServer(joined(made)) as address_server,
        asking(address_server.url) as name_servers,
    ):
        held = made[0].faults.hold("route")
        asking_now = asyncio.create_task(name_servers.route("orders"))
        await held.wait(1)
        address_server.addresses = made[2].address
        await name_servers.refresh()

        assert (await asking_now).queue_datas
        assert name_servers.addresses == (made[2].address,)
        held.release()


@pytest.mark.parametrize("text", ["", "no address", "a:1;b:99999"])
async def test_an_invalid_list_of_servers_is_ignored(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        servers(1) as (server,),
        FakeAddressServer(server.address) as address_server,
        asking(address_server.url) as name_servers,
    ):
        address_server.addresses = text
        with caplog.at_level(logging.WARNING, "rocketmq_aio"):
            await name_servers.refresh()

        assert name_servers.addresses == (server.address,)
        assert "address_server_failed" in caplog.text


async def test_an_address_server_that_fails_is_an_error_at_the_start() -> None:
    async with FakeAddressServer("127.0.0.1:9876") as address_server:
        address_server.status = "503 Service Unavailable"
        with pytest.raises(NameServerUnavailableError, match="503"):
            async with asking(address_server.url):
                raise AssertionError("it may not start")


async def test_the_endpoint_of_a_cloud_instance_is_a_name_server() -> None:
    async with asking("http://MQ_INST_123_abc.mq.example.com:8080") as servers:
        assert servers.addresses == ("MQ_INST_123_abc.mq.example.com:8080",)

        await servers.refresh()
        assert servers.addresses == ("MQ_INST_123_abc.mq.example.com:8080",)


async def test_an_address_server_without_http_raises_at_start() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x00\x01\x02 not http\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        # As a name server does: ``http://`` in front of its address is a common mistake.
        with pytest.raises(NameServerUnavailableError, match=f"for one, give 127.0.0.1:{port}"):
            async with asking(f"http://127.0.0.1:{port}/rocketmq/nsaddr"):
                raise AssertionError("it may not start")


async def test_an_address_server_that_drips_is_given_up_in_time() -> None:
    given_up = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not given_up.is_set():
            writer.write(b"H")
            await asyncio.wait([asyncio.ensure_future(given_up.wait())], timeout=0.05)
        writer.close()
        with suppress(ConnectionError):  # the client has left
            await writer.wait_closed()

    server = await asyncio.start_server(drip, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NameServerUnavailableError):
            async with asyncio.timeout(15), asking(f"http://127.0.0.1:{port}/", timeout=0.2):
                raise AssertionError("it may not start")

        given_up.set()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


async def test_an_invalid_address_server_fails_the_start() -> None:
    with pytest.raises(NameServerUnavailableError):
        async with asking(f"http://{'x' * 64}.example/"):
            raise AssertionError("it may not start")
