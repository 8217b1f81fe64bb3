"""Worker pool and consume service, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakValueDictionary

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.redelivery import SendBack
from rocketmq_aio.consumer.push.concurrent import ConcurrentService
from rocketmq_aio.consumer.push.consume_service import ConsumeService
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight
from rocketmq_aio.consumer.push.handlers import Handler, RetryLater, SuspendQueue
from rocketmq_aio.consumer.push.orderly import OrderlyService
from rocketmq_aio.consumer.push.workers import Workers
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.parts import messages, queue
from tests.unit.remoting.until import until


class FakeSendBack(SendBack):
    """Notes what is sent back; fails the next *down* calls."""

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


class WorkerEnv:
    """The workers and the service of one push consumer; the test plays the pull loop."""

    def __init__(
        self,
        on_message: Callable[[MessageExt], Any] | None = None,
        *,
        on_batch: Callable[..., Any] | None = None,
        orderly: bool = False,
        broadcasting: bool = False,
        send_back: FakeSendBack | None = None,
        **settings: Any,  # noqa: ANN401 - those of PushConfig
    ) -> None:
        self.events: list[ConsumerEvent] = []
        self.send_back = send_back or FakeSendBack()
        self.lost: set[MessageQueue] = set()  # queues without a lock
        self.failures: list[BaseException] = []
        self.handler = Handler(on_message, on_batch, name="workers")
        self.queues: dict[int, DispatchQueue] = {}
        config = PushConfig(**{"concurrency": 4, "suspend_seconds": 0.001, **settings})
        self.context = ConsumerContext(
            cast(MQClientInstance, None),
            "billing",
            config,
            on_failed=self.failures.append,
            on_event=self.events.append,
        )
        self.statistics = self.context.statistics
        sends_back = None if broadcasting else self.send_back
        self.service: ConsumeService
        if orderly:
            self.service = OrderlyService(
                self.context, sends_back, holds=lambda queue: queue not in self.lost
            )
        else:
            self.service = ConcurrentService(self.context, sends_back)
        self.orderly = orderly
        self.in_flight: WeakValueDictionary[MessageQueue, InFlight] = WeakValueDictionary()
        self.workers = Workers(self.context, self.service, self.handler)

    async def __aenter__(self) -> WorkerEnv:
        await self.context.tasks.start()
        self.workers.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.context.tasks.close()
        if self.handler.threads is not None:
            self.handler.threads.shutdown(wait=False, cancel_futures=True)
        assert self.failures == []

    def queue(self, queue_id: int = 0) -> DispatchQueue:
        """Return the assignment of a queue, which begins at 0; the same one until it is revoked."""
        if queue_id not in self.queues:
            name = queue(queue_id)
            new = InFlight(None if self.orderly else self.service.add)
            self.queues[queue_id] = DispatchQueue(name, self.in_flight.setdefault(name, new))
            self.queues[queue_id].begin(0)
        return self.queues[queue_id]

    def revoke(self, queue_id: int = 0) -> DispatchQueue:
        """End the assignment of a queue at once; the next use of the queue makes another."""
        assigned = self.queues.pop(queue_id)
        assigned.drop()
        assigned.release()
        return assigned

    def reset(self) -> None:
        """Let an administrator reset the offset of queue 0."""
        self.queue().move(100)

    def pull(self, *offsets: int, queue_id: int = 0) -> DispatchQueue:
        """Let a pull bring these messages."""
        assigned = self.queue(queue_id)
        assigned.put(messages(*offsets, of=assigned.queue))
        assigned.advance(offsets[-1] + 1)
        self.service.add(assigned)
        return assigned

    async def until_committable(self, offset: int, queue_id: int = 0) -> None:
        """Wait until everything below *offset* may be committed."""
        assigned = self.queue(queue_id)
        await until(lambda: assigned.committable == offset, f"offset {offset}")


class Broken(RetryLater, SuspendQueue):
    """A request for a retry whose attributes cannot be read."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __getattribute__(self, name: str) -> object:
        if name in ("delay_level", "seconds"):
            raise LookupError(name)
        return super().__getattribute__(name)


async def forever(_: object = None) -> None:
    """Handle a message without ever coming to an end."""
    await asyncio.Event().wait()


class Gate:
    """A handler that keeps its offsets, and waits when it first gets a message.

    :param offset: waits only at this one
    :param error: raised after the wait
    """

    def __init__(self, offset: int | None = None, *, error: Exception | None = None) -> None:
        self.offset = offset
        self.error = error
        self.seen: list[int] = []
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        offset = message.queue_offset
        self.seen.append(offset)
        if self.offset in (None, offset) and self.seen.count(offset) == 1:
            self.reached.set()
            await self.open.wait()
            if self.error is not None:
                raise self.error


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
