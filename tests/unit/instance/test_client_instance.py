"""MQClientInstance: life cycle, registration, background work."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import ClassVar, Self

import anyio
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import (
    ClosedError,
    ConfigError,
    NameServerUnavailableError,
    NotConnectedError,
    NotRunningError,
)
from rocketmq_aio.instance import client_instance as instance_module, routes as routes_module
from rocketmq_aio.instance.client_instance import ANYWHERE, MQClientInstance
from rocketmq_aio.instance.routes import read_route
from rocketmq_aio.model.address import vip_address
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from tests.fakes.address_server import FakeAddressServer
from tests.fakes.cluster import FakeCluster
from tests.unit.costs import cpu_seconds
from tests.unit.instance.client_env import ConsumerClient, PlainClient, nothing_left
from tests.unit.instance.route_data import broker, route
from tests.unit.remoting.until import until

HEART_BEAT = RequestCode.HEART_BEAT
UNREGISTER = RequestCode.UNREGISTER_CLIENT
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def config_of(cluster: FakeCluster, **settings: float) -> ClientConfig:
    return ClientConfig(namesrv=cluster.namesrv, **settings)  # type: ignore[arg-type]  # numbers


# --- life ----------------------------------------------------------------------------------------


async def test_start_opens_no_connection() -> None:
    async with nothing_left(), FakeCluster(topics={"orders": 2}) as cluster:
        async with MQClientInstance(config_of(cluster)):
            await asyncio.sleep(0)

        assert cluster.name_server.connects == []


async def test_closing_leaves_no_task_and_no_socket() -> None:
    async with FakeCluster(brokers=2, topics={"orders": 2}) as cluster:
        async with nothing_left(), MQClientInstance(config_of(cluster)) as client:
            await client.routes.get("orders")
            async with ConsumerClient(client):
                pass

        for server in (cluster.name_server, *cluster.brokers):
            assert len(server.connects) == 1
            await server.wait_for_connections(0)


async def test_closing_before_the_start_and_twice_and_at_once_is_fine() -> None:
    async with nothing_left(), FakeCluster() as cluster:
        never = MQClientInstance(config_of(cluster))
        await never.close()
        await never.close()
        client = MQClientInstance(config_of(cluster))
        await client.start()
        await asyncio.gather(client.close(), client.close(), client.close())
        await client.close()

        with pytest.raises(NotRunningError):
            await never.start()


async def test_a_request_of_a_closed_client_does_not_wait_for_a_connection() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster:
        async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
            pass
        with pytest.raises(ClosedError):
            await client.remoting.request(
                cluster.broker.address, GetMaxOffset(topic="orders", queue_id=0), timeout=60
            )


async def test_it_says_why_it_cannot_be_used() -> None:
    async with FakeCluster() as cluster:
        client = MQClientInstance(config_of(cluster))
        with pytest.raises(NotRunningError, match="not started"):
            client.check_running()
        await client.start()
        client.check_running()
        with pytest.raises(NotRunningError, match="started once"):
            await client.start()
        await client.close()
        with pytest.raises(ClosedError):
            client.check_running()
        with pytest.raises(ClosedError, match="make a new one"):
            await client.start()


async def test_it_belongs_to_one_event_loop() -> None:
    async def use_elsewhere() -> None:
        with pytest.raises(NotRunningError, match="another event loop"):
            client.check_running()
        with pytest.raises(NotRunningError, match="another event loop"):
            await client.close()

    async with MQClientInstance(ClientConfig(namesrv="127.0.0.1:9876")) as client:
        await asyncio.to_thread(asyncio.run, use_elsewhere())


async def test_two_instances_on_two_clusters_do_not_meet() -> None:
    async with (
        FakeCluster(topics={"orders": 1}) as one,
        FakeCluster(topics={"orders": 5}) as other,
        MQClientInstance(config_of(one)) as first,
        MQClientInstance(config_of(other)) as second,
    ):
        routes = [await client.routes.get("orders") for client in (first, second)]

        assert [len(each.publish_queues) for each in routes] == [1, 5]
        assert first.client_id != second.client_id


async def test_a_start_that_fails_leaves_nothing() -> None:
    async with nothing_left(), FakeAddressServer("127.0.0.1:9876") as address_server:
        address_server.status = "500 Internal Server Error"
        client = MQClientInstance(ClientConfig(namesrv=address_server.url))
        with pytest.raises(NameServerUnavailableError):
            await client.start()

        with pytest.raises(ClosedError):
            client.check_running()
        await client.close()


async def test_closing_while_it_starts_ends_the_start() -> None:
    release = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n127.0.0.1:9876")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with nothing_left(), server:
        port = server.sockets[0].getsockname()[1]
        client = MQClientInstance(ClientConfig(namesrv=f"http://127.0.0.1:{port}/"))
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0)
        await client.close()
        release.set()

        with pytest.raises(ClosedError, match="while it started"):
            await starting


async def test_every_call_raises_after_a_background_task_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with nothing_left(), FakeCluster(topics={"orders": 2}) as cluster:
        client = MQClientInstance(config_of(cluster, route_refresh_interval_seconds=0.01))
        async with client, PlainClient(client) as member:

            async def fail(*_: object, **_options: object) -> None:
                raise LookupError("a bug")

            reply = client.replies.expect("id", monotonic() + 60)
            with caplog.at_level(logging.ERROR, "rocketmq_aio"):
                monkeypatch.setattr(client.routes, "refresh", fail)
                await until(lambda: client.failure)

            for use in (client.check_running, member.work, member.work):
                with pytest.raises(NotRunningError, match="a bug") as caught:
                    use()
                assert isinstance(caught.value.__cause__, LookupError)
            with pytest.raises(NotRunningError, match="a bug"):
                await PlainClient(client, "late").start()
            with pytest.raises(ClosedError, match=r"the client failed: LookupError\('a bug'\)"):
                await client.name_servers.route("orders")  # as one that waits
            with pytest.raises(ClosedError, match="the client failed"):
                await reply
            client.replies.forget("id")

        assert "background_task_failed" in caplog.text


# --- members -------------------------------------------------------------------------------------


async def test_a_group_has_one_member_per_instance() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        MQClientInstance(config_of(cluster)) as client,
    ):
        async with PlainClient(client):
            with pytest.raises(ConfigError, match="shop"):
                await PlainClient(client).start()
            assert client._producers.keys() == {"shop"}
        async with PlainClient(client):
            pass


async def test_members_leave_on_every_broker_they_are_connected_to() -> None:
    async with FakeCluster(brokers=2, topics={"orders": 2}) as cluster:
        async with (
            MQClientInstance(config_of(cluster)) as client,
            ConsumerClient(client, "billing"),
        ):
            for broker in cluster.brokers:
                assert list(broker.members.groups["billing"].members.values()) == [client.client_id]

        for broker in cluster.brokers:
            (left,) = broker.requests_of(UNREGISTER)
            assert left.ext_fields()["consumerGroup"] == "billing"
            assert broker.members.groups == {}


async def test_a_member_leaves_although_the_time_of_its_close_is_over() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        MQClientInstance(config_of(cluster)) as client,
        ConsumerClient(client, "billing") as member,
    ):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.unregister_consumer(member)

        assert cluster.broker.members.groups == {}


async def test_a_member_leaves_after_the_heartbeat_in_flight_which_would_register_it() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        MQClientInstance(config_of(cluster)) as client,
    ):
        member = ConsumerClient(client, "billing")
        await member.start()
        held = cluster.faults.hold(HEART_BEAT)
        beating = asyncio.create_task(client.heartbeats.send_all("billing"))
        await held.wait(1)
        lock = client.heartbeats.lock(cluster.broker.address)
        before = lock.statistics().tasks_waiting
        leaving = asyncio.create_task(member.close())
        await until(
            lambda: (
                lock.statistics().tasks_waiting > before or cluster.broker.requests_of(UNREGISTER)
            )
        )

        assert cluster.broker.requests_of(UNREGISTER) == []
        held.release()
        await asyncio.wait([beating, leaving])
        assert cluster.broker.members.groups == {}


@asynccontextmanager
async def beside_a_hanging_broker() -> AsyncIterator[tuple[FakeCluster, ConsumerClient]]:
    """Open two brokers, and a member that cannot unregister at the first one."""
    async with nothing_left(), FakeCluster(brokers=2, topics={"orders": 2}) as cluster:
        cluster.faults.drop(UNREGISTER, executed=False, broker="broker-a")
        member = ConsumerClient(config_of(cluster, request_timeout_seconds=60.0), "billing")
        await member.start()
        yield cluster, member


async def test_a_broker_that_hangs_does_not_keep_a_member_from_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instance_module, "UNREGISTER_SECONDS", 0.05)
    async with beside_a_hanging_broker() as (_, member):
        await asyncio.wait_for(member.close(), 15)


async def test_a_broker_that_hangs_delays_no_unregistration_at_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instance_module, "UNREGISTER_SECONDS", 60.0)
    async with beside_a_hanging_broker() as (cluster, member):
        closing = asyncio.ensure_future(member.close())
        await cluster.brokers[1].wait_for(UNREGISTER)
        assert not closing.done()
        cluster.brokers[0].kill()
        await closing


async def test_unregistering_opens_no_connection() -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        async with MQClientInstance(config_of(cluster)) as client, PlainClient(client):
            await client.routes.get("orders")

        assert cluster.broker.connects == []


async def test_brokers_of_topics_that_are_no_longer_used_are_told_of_the_end() -> None:
    """They list the member until its connection is closed, and others do not get its queues."""
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        MQClientInstance(config_of(cluster, route_refresh_interval_seconds=0.02)) as client,
    ):
        async with ConsumerClient(client, "billing") as member:
            member.wanted = set()
            await until(lambda: not client.routes.addresses())
            assert client.remoting.is_connected(cluster.broker.address)

        assert len(cluster.broker.requests_of(UNREGISTER)) == 1


async def test_on_route_changed_is_called_for_members() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        MQClientInstance(config_of(cluster, route_refresh_interval_seconds=0.02)) as client,
        PlainClient(client) as member,
    ):
        await until(lambda: "orders" in member.changed)
        before = len(member.changed)
        cluster.create_topic("orders", 4)
        await until(lambda: member.changed.count("orders") > 1)

        assert before <= 2


async def test_changed_routes_are_offered_to_the_consumers_that_use_the_topic() -> None:
    async with (
        FakeCluster(topics={"orders": 2, "refunds": 2}) as cluster,
        MQClientInstance(config_of(cluster, route_refresh_interval_seconds=9e8)) as client,
        ConsumerClient(client, "billing") as billing,
        ConsumerClient(client, "archive") as archive,
    ):
        archive.wanted = {"refunds"}
        client.use_topic(archive, "refunds")
        assert set(client._topics()) == {"orders", "refunds"}
        billing.changed.clear()
        archive.changed.clear()
        for topic in ("orders", "refunds"):
            cluster.create_topic(topic, 4)
            await client.routes.fetch(topic)
        assert (billing.changed, archive.changed) == (["orders"], ["refunds"])

        await client.unregister_consumer(archive)
        cluster.create_topic("refunds", 5)
        await client.routes.fetch("refunds")
        assert archive.changed == ["refunds"]


# --- heartbeats ----------------------------------------------------------------------------------


async def test_producers_register_with_masters_and_consumers_with_all() -> None:
    async with FakeCluster(topics={"orders": 2}, replicas=1) as cluster:
        async with MQClientInstance(config_of(cluster)) as client:
            await client.routes.get("orders")
            async with PlainClient(client):
                producers = client._heartbeat_addresses()
                client.register_consumer(ConsumerClient(client, "billing"))
                both = client._heartbeat_addresses()

        assert producers == {cluster.broker.address}
        assert both == {cluster.broker.address, cluster.broker.replicas[0].address}


async def test_a_starting_consumer_registers_only_its_own_group() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        MQClientInstance(config_of(cluster)) as client,
        ConsumerClient(client, "billing-0"),
    ):
        await cluster.broker.wait_for(HEART_BEAT, 2)  # its own, and that of the connection
        async with AsyncExitStack() as stack:
            for number in range(1, 20):
                await stack.enter_async_context(ConsumerClient(client, f"billing-{number}"))
                assert f"billing-{number}" in cluster.broker.members.groups

            beats = cluster.broker.requests_of(HEART_BEAT)[2:]
            said = [read_body(each.body, HeartbeatData).consumer_data_set for each in beats]
            assert [[c.group_name for c in each] for each in said] == [
                [f"billing-{number}"] for number in range(1, 20)
            ]
            assert len(cluster.broker.members.groups) == 20


async def test_a_broker_that_comes_back_gets_a_heartbeat_at_once() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        ConsumerClient(config_of(cluster), "billing") as member,
    ):
        await cluster.broker.restart()
        assert cluster.broker.members.groups == {}
        address = cluster.broker.address
        await until(lambda: not member.client.remoting.is_connected(address))
        await member.client.heartbeats.send_all()  # or any other request: it connects anew
        await until(lambda: "billing" in cluster.broker.members.groups)

        said = cluster.broker.requests_of(HEART_BEAT)
        assert len(said) >= 2


async def test_the_first_heartbeat_of_a_connection_is_full() -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, heartbeat_v2=True)
        async with ConsumerClient(config, "billing") as member:
            client, address = member.client, cluster.broker.address
            for _ in range(2):
                await client.heartbeats.send_all()
            assert short_forms(cluster)[-1]
            await cluster.broker.restart()
            await until(lambda: not client.remoting.is_connected(address))
            reported = len(short_forms(cluster))
            await client.heartbeats.send_all()

            assert not short_forms(cluster)[reported]


async def test_heartbeat_is_full_on_a_connection_made_by_other_requests() -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, heartbeat_v2=True)
        async with ConsumerClient(config, "billing") as member:
            client, address = member.client, cluster.broker.address
            await client.heartbeats.send_all()
            (queue, *_) = (await client.routes.get("orders")).subscribe_queues
            await cluster.broker.restart()
            await until(lambda: not client.remoting.is_connected(address))
            reported = len(short_forms(cluster))
            await client.broker.max_offset(queue)
            await cluster.broker.wait_for(HEART_BEAT, reported + 1)

            assert not short_forms(cluster)[reported]


def short_forms(cluster: FakeCluster) -> list[bool]:
    """Which heartbeats that the broker got were short, in their order."""
    commands = cluster.broker.requests_of(HEART_BEAT)
    return [read_body(command.body, HeartbeatData).without_sub for command in commands]


async def test_any_new_connection_is_followed_by_a_heartbeat() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        MQClientInstance(config_of(cluster)) as client,
        PlainClient(client),
    ):
        route = await client.routes.get("orders")
        assert cluster.broker.requests == []
        await client.broker.max_offset(route.publish_queues[0])
        await cluster.broker.wait_for(HEART_BEAT)


OFTEN_AND_PATIENT = {
    "heartbeat_interval_seconds": 0.02,
    "route_refresh_interval_seconds": 0.02,
    "request_timeout_seconds": 60.0,  # whoever waits for a silent server waits too long
}


async def test_a_slow_name_server_delays_no_heartbeat() -> None:
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        ConsumerClient(config_of(cluster, **OFTEN_AND_PATIENT), "billing"),
    ):
        cluster.faults.drop("route", executed=False, times=None)
        await cluster.name_server.wait_for(ROUTE, len(cluster.name_server.requests) + 1)
        reported = len(cluster.broker.requests_of(HEART_BEAT))

        await cluster.broker.wait_for(HEART_BEAT, reported + 5)


async def test_a_broker_that_hangs_delays_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "UNREGISTER_SECONDS", 0.05)
    async with (
        FakeCluster(topics={"orders": 2}) as cluster,
        ConsumerClient(config_of(cluster, **OFTEN_AND_PATIENT), "billing") as member,
    ):
        reported = len(cluster.broker.requests_of(HEART_BEAT))
        cluster.faults.drop("heartbeat", executed=False, times=None)
        await cluster.broker.wait_for(HEART_BEAT, reported + 1)
        cluster.create_topic("orders", 7)

        await until(lambda: "orders" in member.changed[1:])


# --- connections ---------------------------------------------------------------------------------


async def test_a_broker_that_no_route_names_any_more_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_SECONDS", 0.1)
    config = {"route_refresh_interval_seconds": 0.02, "namesrv_refresh_interval_seconds": 0.02}
    async with (
        FakeCluster(brokers=2, topics={"orders": 2}) as cluster,
        ConsumerClient(config_of(cluster, **config), "billing"),
    ):
        leaving, staying = cluster.brokers
        assert len(leaving.connections) == 1
        cluster.name_server.unregister(leaving)

        await leaving.wait_for_connections(0)
        assert len(staying.connections) == 1
        assert len(cluster.name_server.connections) == 1


class RoutedSocket:
    """A socket of a host with two networks; sends nothing."""

    routes: ClassVar = {"127.0.0.1": "127.0.0.1", "10.1.0.1": "10.1.0.7", ANYWHERE[0]: "10.2.0.7"}

    def __init__(self, _family: int, _kind: int) -> None:
        self._name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def connect(self, address: tuple[str, int]) -> None:
        if address[0] not in self.routes:
            raise OSError(errno.ENETUNREACH, "no route")
        self._name = self.routes[address[0]]

    def getsockname(self) -> tuple[str, int]:
        return self._name, 40_000


@pytest.mark.parametrize(
    ("namesrv", "address"),
    [
        ("10.1.0.1:9876", "10.1.0.7"),
        ("10.1.0.1:9876,10.1.0.2:9876", "10.1.0.7"),
        ("127.0.0.1:9876", "127.0.0.1"),
        ("namesrv:9876", "10.2.0.7"),
        ("namesrv:9876;10.1.0.1:9876", "10.1.0.7"),
        ("[2001:db8::2]:9876", "10.2.0.7"),
        ("http://servers.example/names", "10.2.0.7"),
    ],
)
def test_the_client_address_is_that_of_the_route_to_the_name_servers(
    namesrv: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", RoutedSocket)

    assert MQClientInstance(ClientConfig(namesrv=namesrv)).address == address


def test_a_client_without_a_network_has_the_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", RoutedSocket)
    monkeypatch.setattr(RoutedSocket, "routes", {})

    assert MQClientInstance(ClientConfig(namesrv="namesrv:9876")).address == "127.0.0.1"


async def test_the_unit_is_in_the_client_id_and_in_heartbeats() -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        config = ClientConfig(
            namesrv=cluster.namesrv, instance_name="one", unit_name="east", unit_mode=True
        )
        async with MQClientInstance(config) as client:
            await client.routes.get("orders")
            async with ConsumerClient(client):
                await client.heartbeats.send_all()
                beat = read_body(cluster.brokers[0].requests_of(HEART_BEAT)[-1].body, HeartbeatData)

        assert client.client_id == "127.0.0.1@one@east"
        assert beat.client_id == client.client_id
        assert [each.unit_mode for each in beat.consumer_data_set] == [True]


async def test_connections_to_second_ports_are_kept_while_a_route_names_the_broker() -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        real = cluster.brokers[0].address
        config = ClientConfig(
            namesrv=cluster.namesrv,
            vip_channel=True,
            address_mapper=lambda at: real if at == vip_address(real) else at,
            namesrv_refresh_interval_seconds=0.01,
        )
        async with MQClientInstance(config) as client, ConsumerClient(client):
            await client.routes.get("orders")
            second = vip_address(real)
            await client.remoting.request(second, GetMaxOffset(topic="orders", queue_id=0))
            await client.remoting.request(real, GetMaxOffset(topic="orders", queue_id=0))
            looks: list[str] = []
            refresh = client.name_servers.refresh

            async def looked() -> None:
                looks.append("look")
                await refresh()

            client.name_servers.refresh = looked  # type: ignore[method-assign]
            await until(lambda: len(looks) >= 3, "the addresses are looked at")

            assert client.send_addresses() == {second}
            assert {real, second} <= client.remoting._connections.keys()


@pytest.mark.parametrize("vip_channel", [False, True])
async def test_a_broker_that_moved_is_found_when_its_connection_is_lost(
    vip_channel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    async with FakeCluster(topics={"orders": 2}) as cluster:
        broker = cluster.broker
        ports = {vip_address(broker.address): broker.address}
        config = ClientConfig(
            namesrv=cluster.namesrv,
            vip_channel=vip_channel,
            address_mapper=lambda at: ports.get(at, at),
        )
        async with MQClientInstance(config) as client, PlainClient(client):
            await client.routes.get("orders")
            (used,) = client.send_addresses()
            await client.remoting.request(used, GetMaxOffset(topic="orders", queue_id=0))
            await broker.stop()
            broker.port = 0
            await broker.start()
            await until(lambda: client.routes.master(broker.name) == broker.address, "its address")


async def test_a_malformed_address_in_a_route_does_not_end_a_client_with_vip_channel() -> None:
    async with FakeCluster(brokers=2, topics={"orders": 2}) as cluster:
        cluster.name_server.advertised[cluster.brokers[1].name] = "no-port"
        config = ClientConfig(
            namesrv=cluster.namesrv, vip_channel=True, namesrv_refresh_interval_seconds=0.01
        )
        async with MQClientInstance(config) as client, PlainClient(client):
            await client.routes.refresh(["orders"])
            asked = client.name_servers.refresh
            looks: list[str] = []

            async def looked() -> None:
                looks.append("look")
                await asked()

            client.name_servers.refresh = looked  # type: ignore[method-assign]
            await until(lambda: len(looks) >= 3, "the addresses to be looked at")

            client.check_running()
            assert client.send_addresses() == {vip_address(cluster.brokers[0].address)}


async def test_tables_by_address_keep_only_addresses_in_use() -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        broker = cluster.broker
        config = ClientConfig(
            namesrv=cluster.namesrv, heartbeat_v2=True, namesrv_refresh_interval_seconds=0.01
        )
        async with MQClientInstance(config) as client, ConsumerClient(client):
            numbers: list[int] = []
            for _ in range(3):
                await client.routes.refresh(list(client.routes._routes))
                assert await client.heartbeats.send_all() == {}
                numbers.append(client.connection_number(broker.address))
                await broker.stop()
                await until(lambda: not client.remoting.is_connected(broker.address))
                with pytest.raises(NotConnectedError):
                    await client.remoting.request(
                        broker.address, GetMaxOffset(topic="orders", queue_id=0)
                    )
                broker.port = 0
                await broker.start()
            await client.routes.refresh(list(client.routes._routes))
            in_use = {broker.address, cluster.name_server.address}
            heartbeats, remoting = client.heartbeats, client.remoting
            for table in (
                client._connection_numbers,
                heartbeats.broker_versions,
                heartbeats._locks,
                heartbeats._next,
                heartbeats._accepted,
                heartbeats._v2,
                heartbeats._registered,
                heartbeats._retries,
                remoting._backoff,
                remoting._retry_at,
            ):
                await until(lambda kept=table: set(kept) <= in_use, f"{table} to shrink")  # type: ignore[misc]  # bound now

            assert len(set(numbers)) == 3  # a connection's number is never used again


@pytest.mark.parametrize("vip_channel", [False, True])
async def test_a_failed_connection_costs_the_same_with_many_brokers(vip_channel: bool) -> None:
    """All of them may fail together: a pass over all routes for each would block the loop."""

    def cost(count: int) -> float:
        client = MQClientInstance(ClientConfig(namesrv="127.0.0.1:1", vip_channel=vip_channel))
        masters = [f"10.0.{n >> 8}.{n & 255}:10911" for n in range(count)]
        brokers = [broker(f"broker-{n}", master=each) for n, each in enumerate(masters)]
        client.routes._store("orders", read_route("orders", route(*brokers)))
        now = asyncio.get_running_loop().time()

        def fail() -> None:
            for each in masters[:100]:
                client._unreachable(client.send_address(each))
                assert client._advice(client.send_address(each))
            client.routes._drop_cleared_suspects(now)

        seconds = cpu_seconds(fail)
        assert len(client.routes._suspects) == 100
        return seconds

    assert cost(3000) < 5 * cost(100)


# --- advice --------------------------------------------------------------------------------------


async def test_an_advertised_address_that_cannot_be_reached_names_the_settings() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.name_server.advertised["broker-a"] = "127.0.0.1:1"
        async with MQClientInstance(config_of(cluster)) as client:
            (queue,) = (await client.routes.get("orders")).publish_queues
            for _ in range(2):  # also while the address is left alone
                with pytest.raises(
                    NotConnectedError, match=r"advertises .*brokerIP1.*address_mapper"
                ):
                    await client.broker.max_offset(queue)


async def test_a_broker_that_could_be_reached_before_is_down_and_not_misconfigured() -> None:
    async with (
        FakeCluster(topics={"orders": 1}) as cluster,
        MQClientInstance(config_of(cluster)) as client,
    ):
        (queue,) = (await client.routes.get("orders")).publish_queues
        await client.broker.max_offset(queue)
        await cluster.broker.stop()
        await until(lambda: not client.remoting.is_connected(cluster.broker.address))
        with pytest.raises(NotConnectedError) as caught:
            await client.broker.max_offset(queue)

    assert "brokerIP1" not in caught.value.reason
