"""A producer and a consumer under load while a test breaks their servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from types import TracebackType
from typing import Self

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.errors import ClosedError, RocketMQError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.producer.producer import Producer
from tests.broker.reading_groups import consumer_of
from tests.unit.remoting.until import until

Place = tuple[str, int, int]  # broker, queue id, offset
SENDERS = 4


class Load:
    """Sends and reads during its block; *stored* is every send that returned ok, with its body."""

    def __init__(self, namesrv: str, group: str, topic: str) -> None:
        self.stored: dict[Place, bytes] = {}
        self.read: list[tuple[Place, bytes]] = []
        self.read_at: list[float] = []
        self.failed = 0
        self._others: list[MessageExt] = []
        self.consumer: LitePullConsumer = consumer_of(namesrv, group, commit_interval_seconds=0.5)
        self._producer = Producer(
            group, namesrv=namesrv, config=ProducerConfig(send_timeout_seconds=2.0)
        )
        self._topic = topic
        self._sending = True
        self._senders: list[asyncio.Task[None]] = []
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._producer.start()
        await self.consumer.subscribe(self._topic)
        await self.consumer.start()
        self._senders = [asyncio.create_task(self._send(number)) for number in range(SENDERS)]
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop_sending()
        await self.consumer.close()
        await self._producer.close()
        assert self._reader is not None
        await self._reader

    async def stop_sending(self) -> None:
        self._sending = False
        await asyncio.gather(*self._senders)

    async def until_read(self, more: int, seconds: float = 30.0) -> None:
        """Wait until *more* messages were read."""
        target = len(self.read) + more
        await until(lambda: len(self.read) >= target, f"{more} more messages", seconds)

    async def until_all_read(self, seconds: float = 30.0) -> None:
        """Stop sending and wait until all stored messages are read."""
        await self.stop_sending()
        await until(lambda: not self._missing(), "what is in the log", seconds)

    def bodies_of(self, topic: str) -> list[str]:
        """Return the messages read from another topic."""
        return [each.body.decode() for each in self._others if each.topic == topic]

    def first_read_after(self, moment: float) -> float:
        """Return how long after *moment* reading resumed."""
        return next(at for at in self.read_at if at > moment) - moment

    def wrong(self) -> list[object]:
        """Return messages that differ from the sent ones, and queues read out of order."""
        wrong: list[object] = [
            place for place, body in self.read if self.stored.get(place, body) != body
        ]
        seen: dict[tuple[str, int], int] = {}
        for (broker, number, offset), _ in self.read:
            if offset > seen.get((broker, number), -1) + 1:
                wrong.append((broker, number, offset))
            seen[broker, number] = max(offset, seen.get((broker, number), -1))
        return wrong

    def copies(self) -> int:
        """Return the number of duplicates."""
        return sum(count - 1 for count in Counter(place for place, _ in self.read).values())

    def _missing(self) -> set[Place]:
        return self.stored.keys() - {place for place, _ in self.read}

    async def _send(self, sender: int) -> None:
        number = 0
        while self._sending:
            number += 1
            body = f"{sender}/{number}".encode()
            try:
                result = await self._producer.send(Message(self._topic, body))
            except RocketMQError:
                self.failed += 1
                await asyncio.sleep(0.05)
                continue
            queue = result.queue
            self.stored[queue.broker_name, queue.queue_id, result.queue_offset] = body
            await asyncio.sleep(0.002)

    async def _read(self) -> None:
        try:
            while True:
                self._note(await self.consumer.poll(60, 50))
        except ClosedError:
            return

    def _note(self, taken: list[MessageExt]) -> None:
        if taken:
            self.read_at.append(monotonic())
        for message in taken:
            if message.topic != self._topic:
                self._others.append(message)
                continue
            place = (message.queue.broker_name, message.queue.queue_id, message.queue_offset)
            self.read.append((place, message.body))
