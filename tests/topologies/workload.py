"""Producers and consumers of several kinds that run while a test breaks their servers.

Every message is sent once, by its sender and number.  A send that raises may have been stored, so
only the others must arrive.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from rocketmq_aio import (
    AutoBatch,
    ClosedError,
    ConsumerEvent,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    RocketMQError,
    TransactionProducer,
    TransactionState,
)
from tests.unit.remoting.until import until

KEYS: Final = 8
BATCH: Final = 5
PAUSE_SECONDS: Final = 0.02  # between the sends of a sender
KEYED_SECONDS: Final = 120.0  # a key waits for its broker
DRAIN_SECONDS: Final = 120.0
GROUPS: Final = ("push", "orderly", "lite-pull")

Send = Callable[[Message], Awaitable[object]]


class Workload:
    """Sends and reads during its block.

    :ivar stored: bodies of the sends that returned, by sender
    :ivar failed: errors of the others, by kind of sender
    :ivar read: bodies by group, in the order of delivery
    :ivar events: those of all consumers
    """

    def __init__(self, namesrv: str, topic: str, *, transactions: bool = True) -> None:
        self.stored: defaultdict[str, list[int]] = defaultdict(list)
        self.failed: defaultdict[str, list[Exception]] = defaultdict(list)
        self.read: dict[str, list[str]] = {group: [] for group in GROUPS}
        self.events: list[ConsumerEvent] = []
        self._namesrv = namesrv
        self._topic = topic
        self._transactions = transactions
        self._sending = True
        self._stack = AsyncExitStack()
        self._senders: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start_consumers(stack)
            await self._start_producers(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop_sending()
        await self._stack.aclose()
        await asyncio.gather(*self._readers)

    async def stop_sending(self) -> None:
        self._sending = False
        await asyncio.gather(*self._senders)

    async def until_more(self, each: int = 20, seconds: float = 60.0) -> None:
        """Wait until every sender has sent and every group has read *each* more messages."""
        sent = {name: len(self.stored[name]) + each for name in self._names}
        read = {group: len(seen) + each for group, seen in self.read.items()}

        def lacking() -> list[str]:
            return [
                *(name for name, goal in sent.items() if len(self.stored[name]) < goal),
                *(group for group, goal in read.items() if len(self.read[group]) < goal),
            ]

        try:
            await until(lambda: not lacking(), "progress", seconds)
        except BaseException as error:
            error.add_note(f"no progress of {lacking()}; failed: {dict(self.failed)}")
            raise

    async def finish(self) -> None:
        """Stop sending; wait until every group has read all that was stored."""
        await self.stop_sending()
        try:
            await until(lambda: not any(self.missing().values()), "all messages", DRAIN_SECONDS)
        except BaseException as error:
            error.add_note(f"missing: {self.missing()}")
            raise

    def missing(self) -> dict[str, list[str]]:
        """Return what was stored and not read, by group."""
        stored = {f"{name}/{number}" for name, sent in self.stored.items() for number in sent}
        return {group: sorted(stored.difference(seen)) for group, seen in self.read.items()}

    def disorder(self, group: str) -> list[str]:
        """Return messages of keys that were first read after a later one of their key."""
        wrong, last, seen = [], Counter[str](), set[str]()
        for body in self.read[group]:
            sender, _, number = body.rpartition("/")
            if sender.startswith("key") and body not in seen:
                seen.add(body)
                if int(number) < last[sender]:
                    wrong.append(body)
                last[sender] = max(last[sender], int(number))
        return wrong

    def copies(self) -> dict[str, int]:
        """Return the number of repeated deliveries, by group."""
        return {group: len(seen) - len(set(seen)) for group, seen in self.read.items()}

    @property
    def _names(self) -> list[str]:
        keys = [f"key{number}" for number in range(KEYS)]
        return ["single", "together", "batch", *keys, *(["transaction"] * self._transactions)]

    # --- producers ------------------------------------------------------------------------------

    async def _start_producers(self, stack: AsyncExitStack) -> None:
        single = await stack.enter_async_context(Producer("single", namesrv=self._namesrv))
        config = ProducerConfig(auto_batch=AutoBatch())
        together = Producer("together", namesrv=self._namesrv, config=config)
        await stack.enter_async_context(together)
        sends: dict[str, Send] = {"single": single.send, "together": together.send}
        sends |= {f"key{n}": self._keyed(single, f"key{n}") for n in range(KEYS)}
        if self._transactions:
            transactions = TransactionProducer(
                "transaction", check=commit, topics=[self._topic], namesrv=self._namesrv
            )
            await stack.enter_async_context(transactions)
            sends["transaction"] = self._in_transaction(transactions)
        self._senders = [asyncio.create_task(self._send(*each)) for each in sends.items()]
        self._senders.append(asyncio.create_task(self._send_batches(single)))

    async def _send(self, name: str, send: Send) -> None:
        number = 0
        while self._sending:
            number += 1
            try:
                await send(Message(self._topic, f"{name}/{number}".encode()))
            except RocketMQError as error:
                self.failed[name].append(error)
                await asyncio.sleep(0.1)
            else:
                self.stored[name].append(number)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _send_batches(self, producer: Producer) -> None:
        number = 0
        while self._sending:
            numbers = range(number + 1, number + BATCH + 1)
            number += BATCH
            messages = [Message(self._topic, f"batch/{each}".encode()) for each in numbers]
            try:
                await producer.send_batch(messages)
            except RocketMQError as error:
                self.failed["batch"].append(error)
                await asyncio.sleep(0.1)
            else:
                self.stored["batch"] += numbers
                await asyncio.sleep(PAUSE_SECONDS * BATCH)

    def _keyed(self, producer: Producer, key: str) -> Send:
        async def send(message: Message) -> None:
            await producer.send(message, sharding_key=key, timeout_seconds=KEYED_SECONDS)

        return send

    def _in_transaction(self, producer: TransactionProducer) -> Send:
        async def send(message: Message) -> None:
            async with producer.transaction(message):
                await asyncio.sleep(0)

        return send

    # --- consumers ------------------------------------------------------------------------------

    async def _start_consumers(self, stack: AsyncExitStack) -> None:
        config = PushConfig(start_from="earliest")
        for group in ("push", "orderly"):
            push = PushConsumer(
                f"{group}-{self._topic}",
                on_message=self._note(group),
                orderly=group == "orderly",
                namesrv=self._namesrv,
                config=config,
            )
            await push.subscribe(self._topic)
            await stack.enter_async_context(push)
            self._readers.append(asyncio.create_task(self._follow(push)))
        lite = LitePullConsumer(
            f"lite-pull-{self._topic}",
            namesrv=self._namesrv,
            config=LitePullConfig(start_from="earliest"),
        )
        await lite.subscribe(self._topic)
        await stack.enter_async_context(lite)
        self._readers.append(asyncio.create_task(self._follow(lite)))
        self._readers.append(asyncio.create_task(self._poll(lite)))

    def _note(self, group: str) -> Callable[[MessageExt], Awaitable[None]]:
        seen = self.read[group]

        async def note(message: MessageExt) -> None:
            seen.append(message.body.decode())

        return note

    async def _poll(self, consumer: LitePullConsumer) -> None:
        seen = self.read["lite-pull"]
        try:
            while True:
                seen += [each.body.decode() for each in await consumer.poll(60)]
        except ClosedError:
            return

    async def _follow(self, consumer: PushConsumer | LitePullConsumer) -> None:
        async for event in consumer.events():
            self.events.append(event)


async def commit(_message: MessageExt) -> TransactionState:
    """Return the decision about every transaction."""
    return TransactionState.COMMIT
