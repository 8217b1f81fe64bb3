"""Damaged connections to brokers, brokers that change their address, and proxies in between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from rocketmq_aio.config.client import ClientConfig, OpenSocket
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Broker, Cluster, probe
from tests.broker.reading_groups import bodies, polled, send
from tests.fakes.frame_rules import with_length
from tests.fakes.proxy import FaultProxy
from tests.unit.remoting.until import succeeds, until_done

UPDATE_BROKER_CONFIG = 25
SEND_MESSAGE_V2 = 310
RECOVERY_SECONDS = 15.0  # request timeouts and some seconds for a busy machine

MOVED_HOST = "127.0.0.2"


async def test_a_wrong_length_prefix_is_recovered_from_within_seconds(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = ProducerConfig(retries=0, send_timeout_seconds=1.0)
    async with FaultProxy(rocketmq_cluster.brokers[0].address) as proxy:
        client = ClientConfig(namesrv=rocketmq_cluster.namesrv, address_mapper=proxy.map_address)
        async with Producer(rocketmq_group, client=client, config=config) as producer:
            await producer.send(Message(rocketmq_topic, b"before"))
            proxy.down.on(with_length(0xFFFFF0), code=SEND_MESSAGE_V2)
            assert not await succeeds(producer.send(Message(rocketmq_topic, b"swallowed")))

            async def sends_again() -> bool:
                await asyncio.sleep(0.2)
                return await succeeds(producer.send(Message(rocketmq_topic, b"after")))

            await until_done(sends_again, "a send to succeed", RECOVERY_SECONDS)

    assert len(proxy.connects) == 2


@asynccontextmanager
async def socks_proxy(connects: list[str]) -> AsyncIterator[tuple[str, int]]:
    """Serve SOCKS 5 (RFC 1928) without authentication; note the addresses it connects to."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(3) == b"\x05\x01\x00"
        writer.write(b"\x05\x00")
        *_, length = await reader.readexactly(5)
        host = (await reader.readexactly(length)).decode()
        port = int.from_bytes(await reader.readexactly(2))
        connects.append(f"{host}:{port}")
        up, down = await asyncio.open_connection(host, port)
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        with suppress(ConnectionError):
            await asyncio.gather(forward(reader, down), forward(up, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()


def through(proxy: tuple[str, int]) -> OpenSocket:
    async def open_socket(host: str, port: int) -> socket.socket:
        loop, opened, name = asyncio.get_running_loop(), socket.socket(), host.encode()
        opened.setblocking(False)
        await loop.sock_connect(opened, proxy)
        await loop.sock_sendall(opened, b"\x05\x01\x00")
        assert await loop.sock_recv(opened, 2) == b"\x05\x00"
        place = bytes([len(name)]) + name + port.to_bytes(2)
        await loop.sock_sendall(opened, b"\x05\x01\x00\x03" + place)
        assert await loop.sock_recv(opened, 10) == b"\x05\x00\x00\x01" + bytes(6)
        return opened

    return open_socket


async def test_clients_connect_through_a_socks_proxy(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    connects: list[str] = []
    async with socks_proxy(connects) as proxy:
        client = ClientConfig(namesrv=rocketmq_cluster.namesrv, open_socket=through(proxy))
        async with Producer("shop", client=client) as producer:
            await producer.send(Message(rocketmq_topic, b"through it"))
        config = LitePullConfig(start_from="earliest")
        async with LitePullConsumer(rocketmq_group, client=client, config=config) as consumer:
            await consumer.subscribe(rocketmq_topic)
            assert bodies(await polled(consumer, 1)) == ["through it"]

    addresses = [rocketmq_cluster.namesrv, *(each.address for each in rocketmq_cluster.brokers)]
    assert sorted(connects) == sorted(addresses * 2)


@pytest.mark.needs_real_broker("it moves a broker to another address of the machine")
async def test_consumers_use_the_new_address_of_a_broker_after_a_lost_connection(
    fresh_cluster: Callable[..., Cluster], rocketmq_group: str
) -> None:
    cluster = fresh_cluster()
    broker, topic = cluster.brokers[0], f"moves-{rocketmq_group[-12:]}"
    cluster.create_topic(topic, queues=2)
    async with FaultProxy(broker.address) as proxy:
        client = ClientConfig(
            namesrv=cluster.namesrv,
            address_mapper=proxy.map_address,
            route_refresh_interval_seconds=3600.0,
        )
        config = LitePullConfig(start_from="earliest", auto_commit=False)
        async with LitePullConsumer(rocketmq_group, client=client, config=config) as consumer:
            await consumer.subscribe(topic)
            await send(cluster.namesrv, topic, ["before"])
            assert bodies(await polled(consumer, 1)) == ["before"]
            await asyncio.to_thread(move, broker, MOVED_HOST)
            proxy.refuse()
            proxy.cut()
            await send(cluster.namesrv, topic, ["after"])

            assert bodies(await polled(consumer, 1)) == ["after"]
            await consumer.commit()


def move(broker: Broker, host: str) -> None:
    """Make *broker* register with *host*; it listens on all interfaces."""
    body = (
        f"brokerIP1={host}\nbrokerPermission=6".encode()
    )  # a permission change registers immediately
    probe.ask(broker.address, UPDATE_BROKER_CONFIG, {}, body)
