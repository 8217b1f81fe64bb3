"""Routes of the fake name server, the page that lists name servers, and whole clusters."""

from __future__ import annotations

import asyncio

from rocketmq_aio.protocol.bodies import read_route
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from tests.fakes.address_server import FakeAddressServer
from tests.fakes.cluster import FakeCluster
from tests.fakes.raw_client import RawClient


async def test_a_route_lists_all_brokers_of_a_cluster() -> None:
    async with FakeCluster(2, topics={"orders": 3}) as cluster:
        async with RawClient(cluster.namesrv) as client:
            route = read_route((await client.ask(GetRouteInfo(topic="orders"))).body)

        first, second = cluster.brokers
        assert {each.broker_name: each.broker_addrs for each in route.broker_datas} == {
            "broker-a": {0: first.address},
            "broker-b": {0: second.address},
        }
        assert [each.write_queue_nums for each in route.queue_datas] == [3, 3]


async def test_a_topic_can_be_on_some_brokers_only() -> None:
    async with FakeCluster(2) as cluster:
        cluster.brokers[1].create_topic("orders", 1)
        async with RawClient(cluster.namesrv) as client:
            route = read_route((await client.ask(GetRouteInfo(topic="orders"))).body)

        assert [each.broker_name for each in route.broker_datas] == ["broker-b"]


async def test_an_unregistered_broker_is_not_in_routes() -> None:
    async with FakeCluster(1, topics={"orders": 1}) as cluster:
        cluster.name_server.unregister(cluster.broker)
        async with RawClient(cluster.namesrv) as client:
            assert (await client.ask(GetRouteInfo(topic="orders"))).code == 17


async def test_another_address_can_be_advertised() -> None:
    async with FakeCluster(1, topics={"orders": 1}) as cluster:
        cluster.name_server.advertised["broker-a"] = "10.0.0.1:10911"
        async with RawClient(cluster.namesrv) as client:
            route = read_route((await client.ask(GetRouteInfo(topic="orders"))).body)

        assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}


async def test_the_http_endpoint_lists_name_servers() -> None:
    async with FakeAddressServer("10.0.0.1:9876;10.0.0.2:9876\n") as page:
        host, _, port = page.url.removeprefix("http://").partition("/")[0].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /rocketmq/nsaddr HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()

        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n10.0.0.1:9876;10.0.0.2:9876\n")
        assert page.requests == ["GET /rocketmq/nsaddr HTTP/1.1"]
