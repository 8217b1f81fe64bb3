"""Workers and a service beside them, without any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.statistics import ConsumeStatistics
from rocketmq_aio.consumer.push.concurrent import ConcurrentService
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlightTable
from rocketmq_aio.consumer.push.handlers import Handler
from rocketmq_aio.consumer.push.orderly import OrderlyService
from rocketmq_aio.consumer.push.workers import Workers
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from tests.unit.consumer.parts import messages, queue
from tests.unit.remoting.until import until


class Back:
    """Takes messages back, or is out of reach."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.dead: list[int] = []
        self.down = 0  # how many calls will fail

    async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
        self._fail()
        self.sent.append((message.queue_offset, delay_level))

    async def dead_letter(self, message: MessageExt, reason: str) -> None:
        self._fail()
        self.dead.append(message.queue_offset)

    def _fail(self) -> None:
        if self.down:
            self.down -= 1
            raise NotConnectedError("127.0.0.1:1", "down")


class Shop:
    """Workers of one consumer; *seen* are the offsets handlers were called with, in order."""

    def __init__(
        self,
        on_message: Callable[[MessageExt], Any] | None = None,
        *,
        on_batch: Callable[..., Any] | None = None,
        orderly: bool = False,
        broadcasting: bool = False,
        size: int = 4,
        batch_size: int = 1,
        max_reconsume_times: int | None = None,
        timeout_seconds: float = 60.0,
        stuck_seconds: float = 60.0,
        suspend_seconds: float = 0.001,
        undecodable: str = "retry",
        back: Back | None = None,
    ) -> None:
        self.events: list[ConsumerEvent] = []
        self.back = back or Back()
        self.lost: set[MessageQueue] = set()
        self.failures: list[BaseException] = []
        self.statistics = ConsumeStatistics()
        self.host = BackgroundTasks("shop", on_failure=self.failures.append)
        self.handler = Handler(on_message, on_batch, name="shop")
        self.queues: dict[int, DispatchQueue] = {}
        sends_back = None if broadcasting else self.back
        self.service: ConcurrentService | OrderlyService
        if orderly:
            self.service = OrderlyService(
                self.host,
                sends_back,
                batch_size=batch_size,
                max_reconsume_times=max_reconsume_times,
                suspend_seconds=suspend_seconds,
                undecodable=undecodable,
                holds=lambda queue: queue not in self.lost,
                wake=lambda: self.workers.wake(),
                on_event=self.events.append,
            )
        else:
            self.service = ConcurrentService(
                self.host,
                sends_back,
                batch_size=batch_size,
                max_reconsume_times=16 if max_reconsume_times is None else max_reconsume_times,
                undecodable=undecodable,
                wake=lambda: self.workers.wake(),
                on_event=self.events.append,
            )
        self.in_flight = InFlightTable(withholds=not orderly, on_ready=self.service.add)
        self.workers = Workers(
            self.host,
            self.service,
            self.handler.call,
            self.statistics,
            queues=self.service if isinstance(self.service, ConcurrentService) else None,
            one=self.handler.one,
            size=size,
            can_cancel=self.handler.threads is None,
            timeout_seconds=timeout_seconds,
            stuck_seconds=stuck_seconds,
            on_event=self.events.append,
        )

    async def __aenter__(self) -> Shop:
        await self.host.start()
        self.workers.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.host.close()
        if self.handler.threads is not None:
            self.handler.threads.shutdown(wait=False, cancel_futures=True)
        assert self.failures == []

    def queue(self, queue_id: int = 0) -> DispatchQueue:
        """Return the assignment of a queue, which begins at 0; the same one until it is revoked."""
        if queue_id not in self.queues:
            name = queue(queue_id)
            self.queues[queue_id] = DispatchQueue(name, self.in_flight.of(name))
            self.queues[queue_id].begin(0)
        return self.queues[queue_id]

    def revoke(self, queue_id: int = 0) -> DispatchQueue:
        """End the assignment of a queue at once; the next use of the queue makes another."""
        assigned = self.queues.pop(queue_id)
        assigned.drop()
        assigned.release()
        return assigned

    def pull(self, *offsets: int, queue_id: int = 0) -> DispatchQueue:
        """Let a pull bring these messages."""
        assigned = self.queue(queue_id)
        assigned.put(messages(*offsets, of=assigned.queue))
        assigned.advance(offsets[-1] + 1)
        self.service.add(assigned)
        return assigned

    async def settled(self, offset: int, queue_id: int = 0) -> None:
        """Wait until everything below *offset* may be committed."""
        assigned = self.queue(queue_id)
        await until(lambda: assigned.committable == offset, f"offset {offset}")


async def forever(_: object = None) -> None:
    """Handle a message without ever coming to an end."""
    await asyncio.Event().wait()


@contextmanager
def handling(
    on_message: Any = None,  # noqa: ANN401 - as the class takes it
    on_batch: Any = None,  # noqa: ANN401 - likewise
) -> Iterator[Handler]:
    """A handler whose threads end with the block."""
    handler = Handler(on_message, on_batch, name="test")
    try:
        yield handler
    finally:
        if handler.threads is not None:
            handler.threads.shutdown()
