"""Start of embedded servers; times are CPU times, which a busy machine does not change."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from rocketmq_aio import ConfigError, Message, Producer
from rocketmq_aio.embedded import EmbeddedBroker, EmbeddedCluster, EmbeddedNameServer
from tests.unit.remoting.until import settle


async def test_a_cluster_starts_within_100_ms() -> None:
    used = []
    for _ in range(3):
        began = process_time()
        async with EmbeddedCluster():
            used.append(process_time() - began)

    assert min(used) < 0.1


def test_a_cluster_in_a_thread_starts_within_100_ms() -> None:
    used = []
    for _ in range(3):
        began = process_time()
        with EmbeddedCluster():
            used.append(process_time() - began)

    assert min(used) < 0.1


class FailingBroker(EmbeddedBroker):
    """A broker that fails after it has begun to listen."""

    failing = False

    async def _start(self) -> None:
        await super()._start()
        if self.failing:
            raise RuntimeError("the start failed")


@pytest.mark.parametrize("method", ["start", "restart"])
async def test_a_failed_start_or_restart_stops_listening(method: str) -> None:
    async with FailingBroker() as broker:
        if method == "start":
            await broker.stop()
        broker.failing = True

        with pytest.raises(RuntimeError, match="the start failed"):
            await getattr(broker, method)()

        assert not broker.is_running
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port), timeout=5).close()


async def test_a_cancelled_start_stops_listening() -> None:
    broker = EmbeddedBroker()
    async with broker:
        pass  # it has its port now
    for turns in range(100):
        start = asyncio.ensure_future(broker.start())
        await settle(turns=turns)
        start.cancel()
        await asyncio.wait([start])

        if broker.is_running:
            assert not start.cancelled()
            break
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port), timeout=5).close()

    await broker.stop()


@pytest.mark.parametrize("host", ["localhost", "::1"])
async def test_a_cluster_listens_on_names_and_ipv6_addresses(host: str) -> None:
    async with (
        EmbeddedCluster(host=host, topics={"orders": 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
    ):
        await producer.send(Message("orders", b"order 42"))

        [stored] = cluster.broker.messages("orders")
    assert stored.body == b"order 42"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"brokers": -1}, "brokers=-1: expected a whole number from 0"),
        ({"version": "5.0.0"}, "version='5.0.0': choose from 4.9.7, 5.5.0"),
        ({"brokers": 2, "broker_versions": ["5.5.0"]}, "broker_versions has 1 entries: expected"),
        ({"replicas": -1}, "replicas=-1: expected a whole number from 0"),
        ({"replicas": 10**9}, "replicas=1000000000: expected 0 to 702"),
        ({"topics": "orders"}, "topics='orders': expected a mapping of"),
        ({"accounts": [1]}, "accounts=.1.: expected a list of AccountLike objects"),
        ({"port": 70_000}, "port=70000: expected 0"),
        ({"topics": {"a b": 1}}, "topic='a b': only letters, digits"),
        ({"topics": {"a" * 128: 1}}, "128 characters, at most 127"),
        ({"topics": {"orders": 10**9}}, "topic orders: queues=1000000000: expected 0 to 65536"),
    ],
)
def test_a_wrong_setting_raises_with_what_is_expected(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        EmbeddedCluster(**settings)


@pytest.mark.parametrize("server", [EmbeddedBroker, EmbeddedNameServer])
@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"host": 5}, ConfigError, "host=5: expected a non-empty string"),
        ({"idle_seconds": "5"}, ConfigError, "idle_seconds='5': expected a number"),
        ({"idle": 5}, TypeError, "idle: servers have no such argument; they have .*idle_seconds"),
    ],
)
def test_a_wrong_setting_of_a_single_server_raises(
    server: Callable[..., object], settings: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        server(**settings)


def test_queues_that_a_broker_does_not_have_are_named_in_the_error() -> None:
    with EmbeddedCluster(topics={"orders": 4}) as cluster:
        with pytest.raises(ConfigError, match=r"topic='bills': broker-a has .*orders"):
            cluster.broker.messages("bills")
        with pytest.raises(ConfigError, match="queue_id=4: topic orders has 4 queues"):
            cluster.broker.put("orders", b"x", queue_id=4)
        with pytest.raises(ConfigError, match="body='text'"):
            cluster.broker.put("orders", "text")  # type: ignore[arg-type]
