"""Sends while real brokers are killed, frozen and restarted: confirmed messages are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import RocketMQError, SendUnknownError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Broker, Cluster, probe
from tests.fakes.log_reader import read_queue
from tests.history import Fault, History, LogEntry, Outcome, Recorder, check
from tests.history.recording import record_call, watch
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until, until_done

UPDATE_BROKER_CONFIG = 25
READ, WRITE = 4, 2
SENDERS = 4
QUEUES = 2
SEND_SECONDS = 3.0
PACE_SECONDS = 0.002  # between two sends of one task, so that the log stays readable


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Two brokers that tests break and restore."""
    return fresh_cluster(brokers=2)


@pytest.fixture
def topic(cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    """A topic on both brokers."""
    name = f"faults-{rocketmq_group[-12:]}"
    cluster.create_topic(name, queues=QUEUES)
    yield name
    cluster.delete_topic(name)


@pytest.fixture
def lonely_topic(cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    """A topic on the first broker only."""
    name = f"lonely-{rocketmq_group[-12:]}"
    cluster.create_topic(name, queues=QUEUES, brokers=cluster.brokers[:1])
    yield name
    cluster.delete_topic(name)


@dataclass
class Run:
    """A producer under load and a record of its sends."""

    producer: Producer
    topic: str
    history: History
    started: int = 0
    stopped: bool = False

    def count(self, outcome: Outcome) -> int:
        ended = (each for each in self.history.sends if each.ended is not None)
        return sum(each.outcome is outcome for each in ended)

    async def keep_sending(self, name: str) -> None:
        while not self.stopped:
            self.started += 1
            body = f"{name}/{self.started}".encode()
            try:
                sending = self.producer.send(Message(self.topic, body))
                await record_call(self.history, "send", SEND_SECONDS, sending)
            except RocketMQError:
                await asyncio.sleep(0.05)
            else:
                self.history.work.append(asyncio.get_running_loop().time())
            await asyncio.sleep(PACE_SECONDS)

    async def until_ok(self, more: int, seconds: float = 30.0) -> None:
        """Wait until *more* further sends have succeeded."""
        target = self.count(Outcome.OK) + more
        await until(lambda: self.count(Outcome.OK) >= target, f"{more} more sends", seconds)

    @asynccontextmanager
    async def fault(self) -> AsyncIterator[None]:
        """Record the block as an outage; it must have an effect that ends with it."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        yield
        self.history.fault = Fault(started=started, healed=loop.time(), observed=True)


@asynccontextmanager
async def load(
    cluster: Cluster, topic: str, group: str, *, refresh_seconds: float = 30.0
) -> AsyncIterator[Run]:
    """Send from several tasks during the block; then check all guarantees."""
    async with nothing_left():
        config = ClientConfig(
            namesrv=cluster.namesrv, route_refresh_interval_seconds=refresh_seconds
        )
        recorder = Recorder()
        async with recorder.producer(group, client=config) as producer:
            run = Run(producer, topic, recorder.history)
            with watch(run.history):
                senders = [
                    asyncio.create_task(run.keep_sending(f"task-{n}")) for n in range(SENDERS)
                ]
                await run.until_ok(100)
                yield run
                run.stopped = True
                await asyncio.gather(*senders)
    # A broker acknowledges a message a moment before its queue index knows it.
    await until_done(lambda: is_all_there(cluster, run), "all that was ok in the log", 60)
    assert check(run.history) == []


async def is_all_there(cluster: Cluster, run: Run) -> bool:
    """Read the log; return whether it holds as many messages as sends succeeded."""
    run.history.log = [
        entry
        for broker in cluster.brokers
        for number in range(QUEUES)
        for entry in await readable(broker, MessageQueue(run.topic, broker.name, number))
    ]
    return len({entry.body for entry in run.history.log}) >= run.count(Outcome.OK)


async def readable(broker: Broker, queue: MessageQueue) -> list[LogEntry]:
    try:
        return list(await read_queue(broker.address, queue))
    except ValueError as error:
        if "not exist" in str(error):  # a topic of the other broker alone
            return []
        raise


async def test_killing_the_only_broker_loses_no_confirmed_message(
    cluster: Cluster, lonely_topic: str, rocketmq_group: str
) -> None:
    broker = cluster.brokers[0]
    # A topic that two refreshes miss would be created again on the other broker.
    async with load(cluster, lonely_topic, rocketmq_group, refresh_seconds=3600.0) as run:
        async with run.fault():
            await asyncio.to_thread(broker.kill)
            await until(lambda: run.count(Outcome.FAIL), "a send to fail", seconds=60)
            # Only sends in flight: a slowly starting broker may leave others without a response.
            unknown = run.count(Outcome.UNKNOWN)
            await asyncio.to_thread(broker.start)
        await run.until_ok(1, seconds=60)
        await run.until_ok(200)

        assert unknown <= SENDERS


async def test_killing_the_only_broker_loses_no_confirmed_batch(
    cluster: Cluster, lonely_topic: str, rocketmq_group: str
) -> None:
    broker, batches = cluster.brokers[0], Batches()
    config = ClientConfig(namesrv=cluster.namesrv, route_refresh_interval_seconds=3600.0)
    async with Producer(rocketmq_group, client=config) as producer:
        sending = [
            asyncio.create_task(batches.keep_sending(producer, lonely_topic, f"task-{n}"))
            for n in range(SENDERS)
        ]
        await until(lambda: len(batches.stored) > 500, "some batches")
        await asyncio.to_thread(broker.kill)
        await until(lambda: batches.refused, "a batch to fail", seconds=60)
        await asyncio.to_thread(broker.start)
        before = len(batches.stored)
        await until(lambda: len(batches.stored) > before + 500, "more batches", seconds=60)
        batches.stopped = True
        await asyncio.gather(*sending)

    async def are_there() -> bool:
        queues = [MessageQueue(lonely_topic, broker.name, number) for number in range(QUEUES)]
        logs = [await readable(broker, queue) for queue in queues]
        bodies = {entry.body for log in logs for entry in log}
        assert not bodies & batches.refused
        return bodies >= batches.stored

    await until_done(are_there, "all that was ok in the log", 60)


@dataclass
class Batches:
    """The bodies of stored batches, and of batches that were not stored."""

    stored: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    stopped: bool = False

    async def keep_sending(self, producer: Producer, topic: str, name: str) -> None:
        number = 0
        while not self.stopped:
            number += 1
            bodies = [f"{name}/{number}/{part}".encode() for part in range(5)]
            try:
                await producer.send_batch(Message(topic, body) for body in bodies)
            except SendUnknownError:
                pass
            except RocketMQError:
                self.refused.update(bodies)
            else:
                self.stored.update(bodies)
            await asyncio.sleep(PACE_SECONDS)


async def test_killing_one_of_two_brokers_fails_no_send(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    async with load(cluster, topic, rocketmq_group) as run:
        async with run.fault():
            await asyncio.to_thread(cluster.brokers[1].kill)
            await run.until_ok(1000)
            await asyncio.to_thread(cluster.brokers[1].start)
        # A refresh during the outage removed it from the route; the next one restores it.
        again = cluster.brokers[1]
        await until_done(lambda: used(run, again), "the broker to be used again", seconds=60)
        await run.until_ok(300)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_a_read_only_broker_fails_no_send(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    closed = cluster.brokers[1]
    async with load(cluster, topic, rocketmq_group, refresh_seconds=1.0) as run:
        try:
            async with run.fault():
                await asyncio.to_thread(permit, closed, READ)
                await run.until_ok(500)
                await until_done(lambda: unused(run, closed), "it to be left alone", seconds=60)
        finally:
            await asyncio.to_thread(permit, closed, READ | WRITE)
        await until_done(lambda: used(run, closed), "the broker to be used again", seconds=60)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


def permit(broker: Broker, permission: int) -> None:
    """Change the permission of *broker*."""
    body = f"brokerPermission={permission}".encode()
    probe.ask(broker.address, UPDATE_BROKER_CONFIG, {}, body)


async def test_restarting_each_broker_fails_no_send(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    async with load(cluster, topic, rocketmq_group) as run:
        for broker in cluster.brokers:
            async with run.fault():
                await asyncio.to_thread(broker.restart)
            await run.until_ok(300)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_a_frozen_broker_delays_no_send_and_is_used_again(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    frozen = cluster.brokers[0]
    async with load(cluster, topic, rocketmq_group) as run:
        async with run.fault():
            await asyncio.to_thread(frozen.pause)
            try:
                await run.until_ok(20, seconds=60)
            finally:
                await asyncio.to_thread(frozen.resume)
        await until_done(lambda: used(run, frozen), "the broker to be used again", seconds=60)
        await run.until_ok(300)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def used(run: Run, broker: Broker) -> bool:
    await run.until_ok(10)
    return any(
        each.queue and each.queue.broker_name == broker.name for each in run.history.sends[-10:]
    )


async def unused(run: Run, broker: Broker) -> bool:
    return not await used(run, broker)


async def test_a_frozen_only_broker_makes_sends_unknown_in_time(
    cluster: Cluster, lonely_topic: str, rocketmq_group: str
) -> None:
    frozen = cluster.brokers[0]
    async with load(cluster, lonely_topic, rocketmq_group) as run:
        async with run.fault():
            await asyncio.to_thread(frozen.pause)
            try:
                await until(lambda: run.count(Outcome.UNKNOWN) >= SENDERS, "timeouts", 60)
            finally:
                await asyncio.to_thread(frozen.resume)
        await run.until_ok(300)

        assert run.count(Outcome.FAIL) == 0


async def test_a_killed_name_server_fails_no_send(
    cluster: Cluster, topic: str, rocketmq_group: str
) -> None:
    async with load(cluster, topic, rocketmq_group) as run:
        async with run.fault():
            await asyncio.to_thread(cluster.namesrvs[0].kill)
            await run.until_ok(1000)
            await asyncio.to_thread(cluster.namesrvs[0].start)
        await run.until_ok(300)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0
    await asyncio.to_thread(cluster.wait_ready)
