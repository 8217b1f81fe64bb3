"""Flows: each sends numbered messages with one kind of producer to one kind of consumer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from rocketmq_aio import (
    AutoBatch,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    MessageTrace,
    PopConfig,
    PopConsumer,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RocketMQError,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.consumer.pull.result import PullStatus
from tests.soak.ledger import Ledger

TICK_SECONDS: Final = 0.05
PAUSE_SECONDS: Final = 0.1  # after a failed call
PADDING: Final = b"x" * 192
KEYS: Final = 16
BATCH: Final = 10
REQUEST_SECONDS: Final = 5.0
COMMIT_EVERY: Final = 50  # pulls
INVISIBLE_SECONDS: Final = 20.0  # messages that were popped before a restart return after it

Consumer = LitePullConsumer | PushConsumer | PullConsumer | PopConsumer


def body(number: int) -> bytes:
    return b"%d %b" % (number, PADDING)


def number_of(message: MessageExt) -> int:
    return int(message.body.partition(b" ")[0])


class Flow:
    """Base: sends *rate* messages per second while `sending`, and receives them.

    :ivar clients: producers and consumers, whose tables are sampled
    :ivar config: of producers
    """

    name: str
    share: float  # of the whole rate

    def __init__(self, namesrv: str, rate: float) -> None:
        self.topic = f"soak-{self.name}"
        self.config = ProducerConfig()
        self.ledger = Ledger()
        self.namesrv = namesrv
        self.clients: list[Producer | Consumer] = []
        self.rate = rate * self.share
        self.sending = True
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Start the clients and the load."""
        await self._start()
        self._run(self._pace())

    async def close(self) -> None:
        """Close the clients; may follow a failed start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def check_running(self) -> None:
        """Raise what ended a part of this flow."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _start(self) -> None:
        """Start producer and consumer."""
        await self._start_consumer()
        await self._open(self._make_producer())

    async def _open(self, client: Producer | Consumer) -> None:
        self.clients.append(client)
        await self._stack.enter_async_context(client)

    def _run(self, part: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(part))

    async def _pace(self) -> None:
        loop = asyncio.get_running_loop()
        due, last = 0.0, loop.time()
        while self.sending:
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            due, last = min(due + (now - last) * self.rate, self.rate), now
            count, due = int(due), due - int(due)
            await asyncio.gather(*(self._one() for _ in range(count)))

    async def _one(self) -> None:
        await self._sent(self._send)

    async def _sent(self, send: Callable[[Message, int], Awaitable[object]]) -> None:
        number = self.ledger.begin()
        try:
            await send(Message(self.topic, body(number)), number)
        except RocketMQError as error:
            self.ledger.fail(number, error)
        else:
            self.ledger.succeed(number)

    async def _handle(self, message: MessageExt) -> None:
        self.ledger.receive(number_of(message))

    @property
    def producer(self) -> Producer:
        return next(each for each in self.clients if isinstance(each, Producer))

    def _make_producer(self) -> Producer:
        return Producer(f"{self.topic}-producer", namesrv=self.namesrv, config=self.config)

    async def _send(self, message: Message, number: int) -> object:
        return await self.producer.send(message)

    @abstractmethod
    async def _start_consumer(self) -> None: ...

    async def _start_push(self, config: PushConfig | None = None, *, orderly: bool = False) -> None:
        consumer = PushConsumer(
            f"{self.topic}-group",
            on_message=self._handle,
            orderly=orderly,
            namesrv=self.namesrv,
            config=config or PushConfig(start_from="earliest"),
            hooks=[MessageTrace()] if config is None else [],
        )
        await consumer.subscribe(self.topic)
        await self._open(consumer)


class PlainToPush(Flow):
    """Traced sends, one by one, to a concurrent `PushConsumer`."""

    name, share = "plain", 0.25

    def _make_producer(self) -> Producer:
        return Producer(
            f"{self.topic}-producer",
            namesrv=self.namesrv,
            config=self.config,
            hooks=[MessageTrace()],
        )

    async def _start_consumer(self) -> None:
        await self._start_push()


class OrderedToOrderly(Flow):
    """Sends with sharding keys to an orderly `PushConsumer`."""

    name, share = "ordered", 0.1

    async def _send(self, message: Message, number: int) -> object:
        return await self.producer.send(message, sharding_key=str(number % KEYS))

    async def _handle(self, message: MessageExt) -> None:
        number = number_of(message)
        self.ledger.receive_in_order(number, number % KEYS)

    async def _start_consumer(self) -> None:
        await self._start_push(orderly=True)


class PlainToPopMode(Flow):
    """Sends to a `PushConsumer` that its broker tells to pop."""

    name, share = "popmode", 0.05

    async def _start_consumer(self) -> None:
        config = PushConfig(
            start_from="earliest", client_rebalance=False, pop_invisible_seconds=INVISIBLE_SECONDS
        )
        await self._start_push(config)


class BatchedToLitePull(Flow):
    """Sends that share requests to a `LitePullConsumer`."""

    name, share = "batched", 0.4

    def _make_producer(self) -> Producer:
        config = replace(self.config, auto_batch=AutoBatch())
        return Producer(f"{self.topic}-producer", namesrv=self.namesrv, config=config)

    async def _start_consumer(self) -> None:
        consumer = LitePullConsumer(
            f"{self.topic}-group",
            namesrv=self.namesrv,
            config=LitePullConfig(start_from="earliest"),
            hooks=[MessageTrace()],
        )
        await consumer.subscribe(self.topic)
        await self._open(consumer)
        self._run(self._poll(consumer))

    async def _poll(self, consumer: LitePullConsumer) -> None:
        while True:
            for message in await consumer.poll():
                self.ledger.receive(number_of(message))


class BatchesToPop(Flow):
    """Batches of the application to a `PopConsumer`."""

    name, share = "pop", 0.1

    async def _one(self) -> None:
        numbers = [self.ledger.begin() for _ in range(BATCH)]
        try:
            await self.producer.send_batch([Message(self.topic, body(each)) for each in numbers])
        except RocketMQError as error:
            for number in numbers:
                self.ledger.fail(number, error)
        else:
            for number in numbers:
                self.ledger.succeed(number)

    def __init__(self, namesrv: str, rate: float) -> None:
        super().__init__(namesrv, rate / BATCH)

    async def _start_consumer(self) -> None:
        consumer = PopConsumer(
            f"{self.topic}-group",
            namesrv=self.namesrv,
            config=PopConfig(start_from="earliest", invisible_seconds=INVISIBLE_SECONDS),
        )
        await consumer.subscribe(self.topic)
        await self._open(consumer)
        self._run(self._receive(consumer))

    async def _receive(self, consumer: PopConsumer) -> None:
        async for message in consumer:
            self.ledger.receive(number_of(message))


class TransactionsToPull(Flow):
    """Transactions, one of ten decided by a check, to a `PullConsumer`."""

    name, share = "transactions", 0.05

    def _make_producer(self) -> Producer:
        return TransactionProducer(
            f"{self.topic}-producer",
            check=lambda message: TransactionState.COMMIT,
            namesrv=self.namesrv,
            config=self.config,
        )

    async def _send(self, message: Message, number: int) -> object:
        def decide(_: object) -> TransactionState:
            return TransactionState.UNKNOWN if number % 10 == 0 else TransactionState.COMMIT

        producer = self.producer
        assert isinstance(producer, TransactionProducer)
        return await producer.send_in_transaction(message, decide)

    async def _start_consumer(self) -> None:
        consumer = PullConsumer(f"{self.topic}-group", namesrv=self.namesrv)
        await self._open(consumer)
        for queue in await consumer.message_queues(self.topic):
            self._run(self._pull(consumer, queue))

    async def _pull(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        offset = pulls = 0
        while True:
            pulls += 1
            try:
                if pulls % COMMIT_EVERY == 0:
                    await consumer.commit(queue, offset)
                result = await consumer.pull(queue, offset)
            except RocketMQError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for message in result.messages:
                self.ledger.receive(number_of(message))
            offset = result.next_offset
            if result.status is not PullStatus.FOUND:
                await asyncio.sleep(PAUSE_SECONDS)


class Requests(Flow):
    """Requests whose handler replies."""

    name, share = "requests", 0.05

    async def _start(self) -> None:
        name = f"{self.topic}-replies"
        self._replying = Producer(name, namesrv=self.namesrv, config=self.config)
        await self._stack.enter_async_context(self._replying)
        await super()._start()
        self.clients.append(self._replying)

    async def _send(self, message: Message, number: int) -> object:
        seconds = max(REQUEST_SECONDS, self.config.send_timeout_seconds)
        reply = await self.producer.request(message, seconds)
        assert number_of(reply) == number
        return reply

    async def _handle(self, message: MessageExt) -> None:
        self.ledger.receive(number_of(message))
        try:
            await self._replying.reply(message, message.body)
        except RocketMQError as error:
            self.ledger.errors[f"reply: {type(error).__name__}"] += 1
            raise

    async def _start_consumer(self) -> None:
        await self._start_push()


FLOWS: Final[tuple[type[Flow], ...]] = (
    PlainToPush,
    OrderedToOrderly,
    PlainToPopMode,
    BatchedToLitePull,
    BatchesToPop,
    TransactionsToPull,
    Requests,
)
