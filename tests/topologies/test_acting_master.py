"""While a master is down its slave acts for it: groups of every kind go on there, and return.

With ``enableSlaveActingMaster`` of brokers and ``supportActingMaster`` of name servers (5.x) routes
name the slave as a master that cannot be written to: it takes commits, locks queues, and serves
pops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from rocketmq_aio import (
    LitePullConsumer,
    Message,
    PopConsumer,
    Producer,
    ProducerConfig,
    RouteNotFoundError,
)
from rocketmq_aio.testing import Broker, Cluster, Slave, probe
from tests.broker.reading_groups import bodies, polled
from tests.topologies.test_slaves import Pushed, committed, ends, lite_pull
from tests.unit.remoting.until import until

QUEUES = 4
BACKLOG = 120
FIRST = 12  # messages that are handled before the kill
WAIT_SECONDS = 90.0
PROPERTIES = {"enableSlaveActingMaster": "true"}


@pytest.fixture
def acting(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """A master whose slave can act for it."""
    with Cluster.start(
        rocketmq_version, backend=rocketmq_backend, slaves=1, broker_properties=PROPERTIES
    ) as cluster:
        yield cluster


async def popped(consumer: PopConsumer, taken: list[str], count: int) -> None:
    """Pop and acknowledge until *taken* holds *count* different bodies."""
    async for message in consumer:
        taken.append(message.body.decode())
        await consumer.ack(message)
        if has(taken, count):
            return


async def send(cluster: Cluster, topic: str, numbers: range) -> None:
    """Send to the queues in turn."""
    config = ProducerConfig(send_timeout_seconds=WAIT_SECONDS, retries=50)
    async with Producer("feeding", namesrv=cluster.namesrv, config=config) as producer:
        for number in numbers:
            body = f"{number % QUEUES}/{number}".encode()
            await producer.send(Message(topic, body), sharding_key=str(number % QUEUES))


def disordered(taken: list[str]) -> list[str]:
    last: dict[str, int] = {}
    wrong = []
    for body in taken:
        key, number = body.split("/")
        if int(number) < last.get(key, 0):
            wrong.append(body)
        last[key] = int(number)
    return wrong


async def test_groups_go_on_at_an_acting_master_and_repeat_nothing_at_the_returned_one(
    acting: Cluster, rocketmq_group: str
) -> None:
    (master,), topic = acting.brokers, f"acting-{rocketmq_group[-12:]}"
    (slave,) = master.slaves
    await asyncio.to_thread(acting.create_topic, topic, queues=QUEUES)
    await send(acting, topic, range(BACKLOG))
    await asyncio.to_thread(slave.wait_copied, topic)
    names = {kind: f"{kind}-{topic}" for kind in ("concurrent", "orderly", "lite", "pop")}
    pushed = {
        kind: Pushed(acting.namesrv, names[kind], first=FIRST, orderly=kind == "orderly")
        for kind in ("concurrent", "orderly")
    }
    lite, pop = lite_pull(acting, names["lite"]), PopConsumer(names["pop"], namesrv=acting.namesrv)
    seen: dict[str, list[str]] = {"lite": [], "pop": []}
    seen |= {kind: each.bodies for kind, each in pushed.items()}
    async with pushed["concurrent"].consumer, pushed["orderly"].consumer, lite, pop:
        for each in pushed.values():
            await each.consumer.subscribe(topic)
        await lite.subscribe(topic)
        await pop.subscribe(topic)
        seen["lite"] += bodies(await polled(lite, FIRST))
        await popped(pop, seen["pop"], FIRST)
        for kind in pushed:
            await until(partial(has, seen[kind], FIRST), kind, WAIT_SECONDS)

        await asyncio.to_thread(master.kill)
        for each in pushed.values():
            each.go_on.set()
        await everything(seen, lite, pop, BACKLOG)
        assert probe.masters(acting.namesrvs[0].address, topic) == {master.name: slave.address}
        for kind in ("concurrent", "orderly", "lite"):
            await committed_at(slave, names[kind], topic, kind)
        async with Producer("writing", namesrv=acting.namesrv) as producer:
            with pytest.raises(RouteNotFoundError, match="or the topic is read-only"):
                await producer.send(Message(topic, b"not now"), timeout_seconds=2)

        await asyncio.to_thread(master.start)
        await send(acting, topic, range(BACKLOG, BACKLOG + 2 * QUEUES))
        await everything(seen, lite, pop, BACKLOG + 2 * QUEUES)
        for kind in ("concurrent", "orderly", "lite"):
            await committed_at(master, names[kind], topic, kind)

    assert disordered(seen["orderly"]) == []
    copies = {kind: len(each) - len(set(each)) for kind, each in seen.items()}
    # Of pops the slave may lack acknowledgements of the last seconds.
    assert {kind: count for kind, count in copies.items() if kind != "pop"} == {
        "lite": 0,
        "concurrent": 0,
        "orderly": 0,
    }


async def everything(
    seen: dict[str, list[str]], lite: LitePullConsumer, pop: PopConsumer, count: int
) -> None:
    """Wait until each group has *count* messages."""
    seen["lite"] += bodies(await polled(lite, count - len(seen["lite"])))
    assert await lite.poll(0.1) == []  # it commits the last batch
    async with asyncio.timeout(WAIT_SECONDS):
        await popped(pop, seen["pop"], count)
    for kind in ("concurrent", "orderly"):
        await until(partial(has, seen[kind], count), kind, WAIT_SECONDS)


def has(taken: list[str], count: int) -> bool:
    return len(set(taken)) >= count


async def committed_at(broker: Broker | Slave, group: str, topic: str, kind: str) -> None:
    await until(
        lambda: committed(broker.address, group, topic) == ends(broker.address, topic),
        f"the commits of {kind} at {broker.address}",
        WAIT_SECONDS,
    )
