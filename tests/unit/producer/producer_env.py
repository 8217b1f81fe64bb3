"""Test environment: a producer on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer import fault_strategy as faults
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from rocketmq_aio.protocol.requests.send import SendMessage
from rocketmq_aio.remoting.connection import MakeFrame, OnLate
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.remoting.until import until

SEND: Final = RequestCode.SEND_MESSAGE_V2
SEND_BATCH: Final = RequestCode.SEND_BATCH_MESSAGE
ROUTE: Final = RequestCode.GET_ROUTEINFO_BY_TOPIC
ORDER: Final = Message("orders", b"hello")


@dataclass
class ProducerEnv:
    """A producer and its cluster."""

    cluster: FakeCluster
    producer: Producer

    @property
    def broker(self) -> FakeBroker:
        return self.cluster.broker

    @property
    def brokers(self) -> list[FakeBroker]:
        return self.cluster.brokers

    def queue(self, number: int = 0, broker: str = "broker-a") -> MessageQueue:
        return MessageQueue("orders", broker, number)

    def bodies(self, topic: str = "orders") -> list[bytes]:
        """The bodies that all brokers stored."""
        held = [each for each in self.brokers if topic in each.topics]
        return [stored.body for broker in held for stored in broker.messages(topic)]

    def sends(self) -> list[SendMessage]:
        """The headers of all sends that reached a broker, in the order of their arrival."""
        frames = sorted(
            (frame for broker in self.brokers for frame in broker.requests),
            key=lambda frame: frame.at,
        )
        return [
            read_header(each.command, SendMessage)
            for each in frames
            if each.command.code in (SEND, SEND_BATCH)
        ]

    def room_taken(self) -> tuple[int, int]:
        """The messages and bytes in flight."""
        return self.producer._in_flight.count, self.producer._in_flight.bytes

    def ids(self) -> set[str]:
        """The message ids of all sends that reached a broker."""
        return {
            parse_properties((each.properties or "").encode())["UNIQ_KEY"] for each in self.sends()
        }


@asynccontextmanager
async def open_producer(
    *,
    brokers: int = 1,
    queues: int = 4,
    version: str = "5.5.0",
    config: ProducerConfig | None = None,
    client: ClientConfig | None = None,
) -> AsyncIterator[ProducerEnv]:
    """Yield a started producer whose cluster has the topic ``orders``."""
    topics = {"orders": queues}
    async with FakeCluster(brokers=brokers, version=version, topics=topics) as cluster:
        given = client or ClientConfig()
        at = ClientConfig(
            namesrv=cluster.namesrv,
            **{name: value for name, value in vars(given).items() if name != "namesrv"},
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(faults, "SLOW_SECONDS", 60.0)  # no broker is excluded on a slow machine
            async with Producer("shop", client=at, config=config) as producer:
                yield ProducerEnv(cluster, producer)


async def connected(env: ProducerEnv) -> ProducerEnv:
    """Send once to every broker, so that the route and all connections exist."""
    for broker in env.brokers:
        await env.producer.send(ORDER, queue=env.queue(0, broker.name))
    return env


async def reached(env: ProducerEnv) -> ProducerEnv:
    """Create the route and a connection to every broker, without a send."""
    await env.producer.publish_queues("orders")
    for broker in env.brokers:
        header = GetMaxOffset(topic="orders", queue_id=0)
        await env.producer.client.remoting.request(broker.address, header)
    return env


async def stopped(env: ProducerEnv, *brokers: FakeBroker) -> None:
    """Stop brokers and wait until the client has noticed."""
    for broker in brokers:
        await broker.stop()
        await until(lambda at=broker.address: not env.producer.client.remoting.is_connected(at))  # type: ignore[misc]  # a bound loop variable


def record_timeouts(env: ProducerEnv) -> list[float]:
    """Return a list that gets the timeout of each send from now on."""
    return _noted(env, env.brokers, None, inf)


def time_out_sends(env: ProducerEnv, *brokers: FakeBroker, times: int | None = None) -> list[float]:
    """Shorten the timeout of sends to brokers that do not respond.

    The client must be connected to these brokers, so that the sends are written.

    :param times: number of sends; None: all
    :return: a list that gets the original timeout of each
    """
    return _noted(env, brokers, times, 0.05)


def _noted(
    env: ProducerEnv, brokers: Collection[FakeBroker], times: int | None, seconds: float
) -> list[float]:
    remoting, given = env.producer.client.remoting, list[float]()
    exchange = remoting.exchange
    addresses = {each.address for each in brokers}

    def noted(
        address: str, code: int, frame: MakeFrame, timeout: float, on_late: OnLate | None = None
    ) -> Coroutine[Any, Any, Command]:
        wanted = address in addresses and code in (SEND, SEND_BATCH)
        if wanted and (times is None or len(given) < times):
            given.append(timeout)
            timeout = min(timeout, seconds)
        return exchange(address, code, frame, timeout, on_late)

    remoting.exchange = noted  # type: ignore[method-assign]
    return given
