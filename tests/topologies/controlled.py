"""Producers and consumers of all kinds that run while masters fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Any, Final

from rocketmq_aio import (
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    OffsetCorrected,
    PopConsumer,
    PoppedMessage,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    SendResult,
    SendStatus,
    SendUnknownError,
    select_by_hash,
)
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.testing import Cluster, ControlledBroker, probe
from tests.unit.remoting.until import until

SEND_SECONDS: Final = 40.0  # longer than a failover takes on a busy machine
KEYS: Final = 4
WAIT_SECONDS: Final = 90.0


def start_controlled(
    version: str,
    backend: str,
    *,
    slaves: int = 2,
    controllers: int = 0,
    sync_replication: bool = True,
) -> Cluster:
    """Start replicas of a broker.

    :param controllers: in processes of their own; default: one in the name server
    :param sync_replication: a message is confirmed when all replicas that are in sync have it
    """
    return Cluster.start(
        version,
        backend=backend,
        slaves=slaves,
        controller=True,
        controllers=controllers,
        sync_replication=sync_replication,
        # On a slow machine a slave may be behind for long, and still become the master.
        broker_properties={"haMaxTimeSlaveNotCatchup": "120000"},
    )


def create_topic(cluster: Cluster, name: str, queues: int = 2) -> str:
    """Create a topic that all replicas have."""
    (broker,) = cluster.brokers
    cluster.create_topic(name, queues=queues)
    wanted = [each for each in broker.replicas if each.pid is not None]
    probe.wait_until(
        lambda: [probe.queues(each.address, name) for each in wanted],
        seconds=60,
        what=f"{name} not copied",
    )
    return name


def in_sync_broker(cluster: Cluster) -> ControlledBroker:
    """Return the broker of the cluster once all its replicas are in sync."""
    (broker,) = cluster.brokers
    assert isinstance(broker, ControlledBroker)
    broker.wait_in_sync()
    return broker


def rejoin(broker: ControlledBroker, number: int) -> None:
    """Start a replica again, and wait until it is in sync."""
    broker.replicas[number].start()
    broker.wait_in_sync()


class Received:
    """Bodies that one kind of consumer received, and their order by queue."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.bodies: Counter[bytes] = Counter()
        self.at: list[float] = []
        self.order: list[tuple[MessageQueue, bytes]] = []

    def first_after(self, number: int, begin: int) -> int | None:
        """Return the index of the first message that was sent after the one with *number*.

        :param begin: count of messages that were received before
        """
        indices = range(begin, len(self.order))
        return next((n for n in indices if int(self.order[n][1].split()[-1]) > number), None)

    async def note(self, message: MessageExt) -> None:
        self.bodies[message.body] += 1
        self.at.append(monotonic())
        self.order.append((message.queue, message.body))


class Load:
    """Sends numbered messages, and receives them with each kind of consumer.

    :ivar acknowledged: results of sends by body; *unknown* may be stored
    :ivar acknowledged_at: times of acknowledgements
    """

    def __init__(self, namesrv: str, topic: str, ordered: str) -> None:
        self.namesrv = namesrv
        self.topic, self.ordered = topic, ordered
        self.acknowledged: dict[bytes, SendResult] = {}
        self.acknowledged_at: list[float] = []
        self.unknown: set[bytes] = set()
        self.failed: list[RocketMQError] = []
        self.events: list[Any] = []
        kinds = ("concurrent", "orderly", "pop", "lite pull", "pull")
        self.received = {kind: Received(kind) for kind in kinds}
        self._sent = 0

    @property
    def sent(self) -> int:
        """Number of the last message of which the send has begun."""
        return self._sent

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run producer and consumers for the duration of the block."""
        received, topic = self.received, self.topic
        group = f"g-{topic}"
        push = PushConfig(start_from="earliest")
        config = ProducerConfig(send_timeout_seconds=SEND_SECONDS, retries=100)
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            producer = await enter(Producer("sales", namesrv=self.namesrv, config=config))
            concurrent = PushConsumer(
                f"{group}-c",
                on_message=received["concurrent"].note,
                namesrv=self.namesrv,
                config=push,
                on_event=self.events.append,
            )
            orderly = PushConsumer(
                f"{group}-o",
                on_message=received["orderly"].note,
                orderly=True,
                namesrv=self.namesrv,
                config=push,
                on_event=self.events.append,
            )
            lite = LitePullConsumer(
                f"{group}-l", namesrv=self.namesrv, config=LitePullConfig(start_from="earliest")
            )
            pop = PopConsumer(f"{group}-p", namesrv=self.namesrv)
            pull = PullConsumer(f"{group}-r", namesrv=self.namesrv)
            for consumer, name in (
                (concurrent, topic),
                (orderly, self.ordered),
                (lite, topic),
                (pop, topic),
            ):
                await enter(consumer)
                await consumer.subscribe(name)
            await enter(pull)
            for member in (concurrent, orderly, lite):
                await member.ready()
            loops: list[Awaitable[None]] = [
                self._poll(lite),
                self._follow(lite),
                self._pop(pop),
                self._send(producer, topic),
                self._send(producer, self.ordered),
            ]
            loops += [self._pull(pull, queue) for queue in await pull.message_queues(topic)]
            tasks = [asyncio.ensure_future(each) for each in loops]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [each for each in ended if isinstance(each, Exception)]
        assert not errors, errors

    async def _send(self, producer: Producer, topic: str) -> None:
        while True:
            number = self._sent = self._sent + 1
            key = b"%d" % (number % KEYS)
            body = b"%s %s %d" % (topic.encode(), key, number)
            selector = select_by_hash(key.decode()) if topic == self.ordered else None
            try:
                result = await producer.send(Message(topic, body), selector=selector)
            except SendUnknownError:
                self.unknown.add(body)
            except RocketMQError as error:
                self.failed.append(error)
            else:
                self.acknowledged[body] = result
                self.acknowledged_at.append(monotonic())
            await asyncio.sleep(0.02)

    async def _poll(self, consumer: LitePullConsumer) -> None:
        while True:
            for message in await consumer.poll(0.5):
                await self.received["lite pull"].note(message)

    async def _follow(self, consumer: LitePullConsumer) -> None:
        async for event in consumer.events():
            self.events.append(event)

    async def _pop(self, consumer: PopConsumer) -> None:
        async for message in consumer:
            await self.received["pop"].note(message)
            await self._acknowledge(consumer, message)

    async def _pull(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        offset = 0
        while True:
            try:
                result = await consumer.pull(queue, offset)
            except RocketMQError:
                await asyncio.sleep(0.1)
                continue
            for message in result.messages:
                await self.received["pull"].note(message)
            offset = result.next_offset
            await asyncio.sleep(0.02)

    async def _acknowledge(self, consumer: PopConsumer, message: PoppedMessage) -> None:
        while True:
            try:
                await consumer.ack(message)
                return
            except RocketMQError:
                await asyncio.sleep(0.1)

    def stored(self, topic: str) -> set[bytes]:
        """Return the bodies in *topic* that brokers acknowledged as stored by all replicas."""
        return {
            body
            for body, result in self.acknowledged.items()
            if result.status is SendStatus.SEND_OK and body.startswith(topic.encode() + b" ")
        }

    def missing(self) -> dict[str, set[bytes]]:
        """Return acknowledged messages that a kind of consumer has not received."""
        return {
            kind: lost
            for kind, got in self.received.items()
            if (lost := self._stored_for(kind) - set(got.bodies))
        }

    def _stored_for(self, kind: str) -> set[bytes]:
        return self.stored(self.ordered if kind == "orderly" else self.topic)

    async def progress(self) -> None:
        """Wait until a send begun from now on is acknowledged, and received by each consumer."""
        before = self._sent
        await until(lambda: self._seen_after(before), "progress of all clients", WAIT_SECONDS)

    def _seen_after(self, number: int) -> bool:
        def later(bodies: Collection[bytes]) -> bool:
            return any(int(body.split()[-1]) > number for body in bodies)

        return later(self.acknowledged) and all(later(got.bodies) for got in self.received.values())

    def corrections(self) -> list[OffsetCorrected]:
        """Return the changes of offsets that new masters did not have."""
        return [each for each in self.events if isinstance(each, OffsetCorrected)]

    def disordered(self) -> list[bytes]:
        """Return messages of a key whose first delivery came after that of a later one."""
        last: dict[bytes, int] = {}
        seen: set[bytes] = set()
        found: list[bytes] = []
        for _, body in self.received["orderly"].order:
            _, key, number = body.split()
            if body in seen:
                continue
            seen.add(body)
            if int(number) < last.get(key, 0):
                found.append(body)
            last[key] = max(last.get(key, 0), int(number))
        return found
