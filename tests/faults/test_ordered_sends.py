"""Keyed sends under faults: keys keep their queue and order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import RocketMQError, SendError
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.patience import PATIENCE_SECONDS
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until

SEND = RequestCode.SEND_MESSAGE_V2
KEYS = 16


@dataclass
class Run:
    """A producer with one task per key; brokers are behind proxies."""

    cluster: FakeCluster
    proxies: list[FaultProxy]
    producer: Producer
    ok: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    refused: set[str] = field(default_factory=set)
    stopped: bool = False

    async def keep_sending(self, key: str) -> None:
        number = 0
        while not self.stopped:
            number += 1
            message = Message("orders", f"{key}/{number}".encode(), sharding_key=key)
            try:
                await self.producer.send(message, timeout_seconds=1)
            except RocketMQError as error:
                if isinstance(error, SendError) and error.outcome.endswith("not stored"):
                    self.refused.add(f"{key}/{number}")
                await asyncio.sleep(0.005)
            else:
                self.ok[key].append(number)

    async def go_on(self, more: int = 10, keys: int = KEYS) -> None:
        """Wait until *keys* keys have *more* messages."""
        goal = {f"k{n}": len(self.ok[f"k{n}"]) + more for n in range(KEYS)}
        await until(
            lambda: sum(len(self.ok[key]) >= most for key, most in goal.items()) >= keys,
            "more sends",
            10.0,
        )

    def check(self) -> None:
        places: dict[str, set[tuple[str, int]]] = defaultdict(set)
        stored: dict[str, dict[int, None]] = defaultdict(dict)
        for broker in self.cluster.brokers:
            for queue_id, log in enumerate(broker.topics["orders"].queues):
                for each in log.messages:
                    key, _, number = each.body.decode().partition("/")
                    places[key].add((broker.name, queue_id))
                    stored[key].setdefault(int(number))
                    assert each.body.decode() not in self.refused
        for key, sent in self.ok.items():
            assert len(places[key]) == 1
            assert [number for number in stored[key] if number in set(sent)] == sent


TOGETHER = ProducerConfig(
    auto_batch=AutoBatch(linger_seconds=0), send_timeout_seconds=PATIENCE_SECONDS
)


@pytest.fixture(params=[None, TOGETHER], ids=["alone", "together"])
def config(request: pytest.FixtureRequest) -> ProducerConfig | None:
    """Unbatched and batched sends."""
    given: ProducerConfig | None = request.param
    return given


@asynccontextmanager
async def sending(producer_config: ProducerConfig | None) -> AsyncIterator[Run]:
    """Send with all keys during the block; then check all guarantees."""
    async with nothing_left(), AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(FakeCluster(2, topics={"orders": 4}))
        proxies = [
            await stack.enter_async_context(FaultProxy(each.address)) for each in cluster.brokers
        ]
        ways = {proxy.target: proxy.address for proxy in proxies}
        config = ClientConfig(
            namesrv=cluster.namesrv, address_mapper=lambda address: ways.get(address, address)
        )
        async with Producer("shop", client=config, config=producer_config) as producer:
            run = Run(cluster, proxies, producer)
            tasks = [asyncio.create_task(run.keep_sending(f"k{n}")) for n in range(KEYS)]
            await run.go_on()
            yield run
            run.stopped = True
            await asyncio.gather(*tasks)
            assert (len(producer._order), producer._in_flight.count) == (0, 0)
        run.check()


@pytest.mark.parametrize("reset", [False, True])
async def test_cut_connections_keep_the_order(reset: bool, config: ProducerConfig | None) -> None:
    async with sending(config) as run:
        for _ in range(5):
            for proxy in run.proxies:
                proxy.cut(reset=reset)
            await run.go_on()


async def test_a_broker_flaps_and_leaves_the_route(config: ProducerConfig | None) -> None:
    async with sending(config) as run:
        flapping = run.cluster.brokers[1]
        for _ in range(3):
            await flapping.stop()
            run.cluster.name_server.unregister(flapping)
            await run.producer.client.routes.fetch("orders")
            await run.go_on(keys=1)
            await flapping.start()
            run.cluster.name_server.register(flapping)
            await run.producer.client.routes.fetch("orders")
            await run.go_on()


async def test_lost_responses_and_errors(config: ProducerConfig | None) -> None:
    async with sending(config) as run:
        for broker in run.cluster.brokers:
            for _ in range(5):
                for code in (SEND, RequestCode.SEND_BATCH_MESSAGE):
                    broker.faults.close(code, executed=False, broker=broker.name)
                    broker.faults.refuse(code, times=3, broker=broker.name)
                await run.go_on()


async def test_a_topic_that_grows_and_shrinks_under_load(config: ProducerConfig | None) -> None:
    async with sending(config) as run:
        for queues in (16, 4):
            for broker in run.cluster.brokers:
                del broker.topics["orders"].queues[max(queues, 4) :]
                broker.create_topic("orders", queues)
            await run.producer.client.routes.fetch("orders")
            await run.go_on()
