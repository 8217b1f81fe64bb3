"""Name servers that are down, silent, disconnected or missing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.embedded.faults import CONNECT, GARBAGE, Fault
from rocketmq_aio.embedded.responses import Close, Outcome, Raw
from rocketmq_aio.errors import (
    NameServerUnavailableError,
    NotConnectedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.fakes.misbehaviour import GRPC_SETTINGS, HTTP_PAGE, TWO_GIBIBYTES
from tests.fakes.name_server import FakeNameServer
from tests.fakes.stopwatch import Stopwatch
from tests.faults.proxied import shorten_timeout
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import succeeds, until, until_done

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
ORDER = Message("orders", b"hello")


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that never accepts or refuses connections: its backlog is full."""
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        yield f"127.0.0.1:{deaf.getsockname()[1]}"


def nobody() -> str:
    """An address without a listener."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[FakeBroker, list[FakeNameServer]]]:
    broker = FakeBroker()
    broker.create_topic("orders")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        servers = [FakeNameServer(), FakeNameServer()]
        for each in servers:
            each.register(broker)
            await stack.enter_async_context(each)
        yield broker, servers


def joined(*servers: FakeNameServer) -> str:
    return ";".join(each.address for each in servers)


async def seconds_of(work: asyncio.Task[object]) -> float:
    with Stopwatch() as passed:
        await asyncio.wait([work])
    return passed.seconds


# --- no name server ------------------------------------------------------------------------------


async def test_start_fails_soon_if_connections_are_refused() -> None:
    first, second = nobody(), nobody()
    async with nothing_left():
        starting = asyncio.create_task(Producer("shop", namesrv=f"{first};{second}").start())

        assert await seconds_of(starting) < 1.5
        error = starting.exception()
        assert isinstance(error, NameServerUnavailableError)
        assert {at: type(cause) for at, cause in error.addresses.items()} == {
            first: NotConnectedError,
            second: NotConnectedError,
        }


async def test_start_fails_by_its_deadline_without_responses() -> None:
    with black_hole() as deaf:
        async with nothing_left(), FakeNameServer() as mute:
            mute.faults.drop("route", executed=False, times=None)
            config = ClientConfig(
                namesrv=f"{deaf};{mute.address}",
                request_timeout_seconds=0.5,
                connect_timeout_seconds=0.5,
            )
            starting = asyncio.create_task(Producer("shop", client=config).start())

            assert await seconds_of(starting) < 2.5
            error = starting.exception()
            assert isinstance(error, NameServerUnavailableError)
            assert set(error.addresses) == {deaf, mute.address}


KINDS: dict[str, Outcome] = {
    "HTTP server": HTTP_PAGE,
    "gRPC server": GRPC_SETTINGS,
    "2 GiB frame": TWO_GIBIBYTES,
    "garbage": Raw(GARBAGE),
    "hang up": Close(),
    "reset": Close(reset=True),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_start_raises_for_a_wrong_port(kind: str) -> None:
    async with nothing_left(), FakeNameServer() as server:
        server.faults.handle(CONNECT, KINDS[kind], times=None)
        server.faults.drop("route", executed=False, times=None)
        config = ClientConfig(namesrv=server.address, request_timeout_seconds=0.5)
        starting = asyncio.create_task(Producer("shop", client=config).start())

        assert await seconds_of(starting) < 2.0
        error = starting.exception()
        assert isinstance(error, NameServerUnavailableError)
        if kind == "HTTP server":
            assert "HTTP" in str(error)


# --- one of several ------------------------------------------------------------------------------


async def test_one_dead_name_server_of_two_costs_almost_no_time() -> None:
    async with nothing_left(), two_servers() as (_, servers):
        await servers[0].stop()
        async with Producer("shop", namesrv=joined(*servers)) as producer:
            sending = asyncio.create_task(producer.send(ORDER))

            assert await seconds_of(sending) < 0.5
            assert sending.result().ok


async def test_one_silent_server_of_two_costs_one_hedge() -> None:
    async with nothing_left(), two_servers() as (_, servers):
        servers[0].faults.drop("route", executed=False, times=None)
        elapsed: list[float] = []
        async with Producer("shop", namesrv=joined(*servers)) as producer:
            for topic in ("orders", "payments", "refunds"):
                sending = asyncio.create_task(producer.send(Message(topic, b"x")))
                elapsed.append(await seconds_of(sending))
                assert sending.result().ok

        assert max(elapsed) < 1.2
        assert sum(elapsed) < 1.5
        assert len(servers[0].requests) <= 1  # none if the other one came first


async def test_one_unreachable_name_server_of_two_costs_half_a_second() -> None:
    with black_hole() as deaf:
        async with nothing_left(), two_servers() as (_, (server, _other)):
            producer = Producer("shop", namesrv=f"{deaf};{server.address}")
            starting = asyncio.create_task(producer.start())

            assert await seconds_of(starting) < 1.2
            starting.result()
            assert (await producer.send(ORDER)).ok
            await producer.close()


async def test_a_server_that_becomes_silent_is_replaced_by_the_other() -> None:
    async with (
        nothing_left(),
        two_servers() as (_, servers),
        Producer("shop", namesrv=joined(*servers)) as producer,
    ):
        asked = next(each for each in servers if each.requests)
        asked.faults.drop("route", executed=False, times=None)
        sending = asyncio.create_task(producer.send(ORDER))

        assert await seconds_of(sending) < 1.2
        assert sending.result().ok
        assert producer.client.name_servers.addresses[0] != asked.address


# --- outages -------------------------------------------------------------------------------------


async def test_known_topics_work_without_a_name_server() -> None:
    config = {"route_refresh_interval_seconds": 0.05}
    async with nothing_left(), FakeCluster(topics={"orders": 4}) as cluster:
        client = ClientConfig(namesrv=cluster.namesrv, **config)  # type: ignore[arg-type]
        async with Producer("shop", client=client) as producer:
            await producer.send(ORDER)
            await cluster.name_server.stop()
            for _ in range(100):
                assert (await producer.send(ORDER)).ok
                await asyncio.sleep(0.002)

            with pytest.raises(NameServerUnavailableError):
                await producer.send(Message("unheard-of", b"x"), timeout_seconds=0.3)


async def test_a_recovered_name_server_is_used_again_soon() -> None:
    async with nothing_left(), FakeCluster(topics={"orders": 4}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=0.05)
        async with Producer("shop", client=config) as producer:
            await producer.send(ORDER)
            await cluster.name_server.stop()
            assert not await succeeds(producer.send(Message("later", b"x"), timeout_seconds=0.3))
            cluster.create_topic("orders", 9)
            await cluster.name_server.start()

            await until_done(lambda: succeeds(producer.send(Message("later", b"x"))))
            await until(lambda: len(queues_of(producer)) == 9)


def queues_of(producer: Producer) -> tuple[object, ...]:
    route = producer.client.routes.known("orders")
    return route.publish_queues if route is not None else ()


async def test_a_restarted_name_server_without_routes_removes_no_route() -> None:
    async with nothing_left(), FakeCluster(topics={"orders": 4}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=0.05)
        async with Producer("shop", client=config) as producer:
            await producer.send(ORDER)
            unknown = ResponseCode.TOPIC_NOT_EXIST
            cluster.faults.refuse("route", unknown, times=2)  # one of the two topics, or each once
            await cluster.name_server.restart()
            asked = len(cluster.name_server.requests)
            await until(lambda: len(cluster.name_server.requests) > asked + 4)

            assert (await producer.send(ORDER)).ok


@pytest.mark.parametrize("kind", ["closed", "reset", "half", "wrong opaque", "garbage"])
async def test_a_failed_refresh_keeps_the_route_and_recovers(kind: str) -> None:
    async with nothing_left(), FakeCluster(topics={"orders": 4}) as cluster:
        server = cluster.name_server
        add_fault: dict[str, Callable[..., Fault]] = {
            "closed": server.faults.close,
            "reset": server.faults.reset,
            "half": server.faults.truncate,
            "wrong opaque": server.faults.wrong_opaque,
            "garbage": server.faults.garbage,
        }
        config = ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=0.05)
        async with Producer("shop", client=config) as producer:
            await producer.send(ORDER)
            asked = len(server.requests)
            shorten_timeout(producer.client)
            await until(lambda: len(server.requests) > asked + 4)  # those before wait for long
            add_fault[kind](ROUTE, times=4)
            asked = len(server.requests)
            await until(lambda: len(server.requests) > asked + 2)
            assert (await producer.send(ORDER, timeout_seconds=15)).ok
            cluster.create_topic("orders", 9)

            await until(lambda: len(queues_of(producer)) == 9)


async def test_a_topic_created_later_is_found_within_two_seconds() -> None:
    async with nothing_left(), FakeCluster() as cluster:
        del cluster.broker.topics["TBW102"]
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            with pytest.raises(RouteNotFoundError):
                await producer.send(ORDER)
            cluster.create_topic("orders", 4)

            with Stopwatch() as passed:
                await until_done(lambda: succeeds(producer.send(ORDER)))
            assert passed.seconds < 2.0


async def test_concurrent_sends_to_an_unknown_topic_share_route_queries() -> None:
    async with nothing_left(), FakeCluster() as cluster:
        del cluster.broker.topics["TBW102"]
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            asked = len(cluster.name_server.requests)
            errors = await asyncio.gather(
                *(producer.send(ORDER) for _ in range(500)), return_exceptions=True
            )

        assert {type(error) for error in errors} == {RouteNotFoundError}
        assert len(cluster.name_server.requests) - asked <= 4
        assert all(isinstance(error, RocketMQError) for error in errors)
