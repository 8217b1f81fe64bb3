"""Request sender: sends the requests of a write task concurrently, in order for each queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Self, TypeVar

import anyio
from pyspark.sql.datasource import WriterCommitMessage

from rocketmq_aio.errors import (
    BrokerError,
    NameServerUnavailableError,
    RocketMQError,
    RouteNotFoundError,
    SendError,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.remoting.background_tasks import first_cause
from rocketmq_aio.spark.options.source_options import WriteOptions
from rocketmq_aio.spark.write.write_requests import WriteRequest

T = TypeVar("T")

FIRST_PAUSE: Final = 0.5  # seconds before the first retry; it doubles
LONGEST_PAUSE: Final = 8.0
RETRYABLE: Final = (SendError, RouteNotFoundError, NameServerUnavailableError)


class WriteError(RocketMQError):
    """Rows could not be sent: the task fails; rows sent before are not withdrawn."""

    def __init__(self, topic: str, rows: int, broker: str, tries: int, cause: object) -> None:
        super().__init__(
            f"{rows} row(s) for topic {topic!r} were not sent, broker {broker}, "
            f"tries {tries} (options retries, sendTimeoutMs): {type(cause).__name__}: {cause}"
        )


@dataclass(frozen=True)
class WriteSummary(WriterCommitMessage):
    """Counts of a write; *degraded* requests were stored with less replication than required."""

    rows: int = 0
    requests: int = 0
    degraded: int = 0

    @classmethod
    def total(cls, messages: Iterable[WriterCommitMessage | None]) -> Self:
        """Return the sums over all tasks; None stands for a failed task."""
        done = [each for each in messages if isinstance(each, WriteSummary)]
        return cls(*map(sum, zip(*((d.rows, d.requests, d.degraded) for d in done), strict=True)))


class RequestSender:
    """Sends requests, up to ``sendWindow`` concurrently; runs on the loop."""

    def __init__(self, producer: Producer, options: WriteOptions) -> None:
        self._rows = self._requests = self._weaker = 0
        self._producer = producer
        self._retries = options.retries
        self._seconds = options.send_timeout_ms / 1000
        self._permits = anyio.Semaphore(options.send_window)
        self._queue_locks: defaultdict[MessageQueue | None, anyio.Lock] = defaultdict(anyio.Lock)
        self._failure: WriteError | None = None

    async def send(self, requests: Sequence[WriteRequest]) -> None:
        """Send *requests* behind earlier ones of their queues.

        :raises WriteError: one of them, or of an earlier call, was not sent; no more are sent
        """
        sent: list[WriteRequest] = []
        try:
            async with anyio.create_task_group() as tasks:
                by_queue = defaultdict(list)
                for request in requests:
                    by_queue[request.destination.queue].append(request)
                anywhere = by_queue.pop(None, [])
                for queue, mine in by_queue.items():
                    tasks.start_soon(self._send_in_order, queue, mine, sent)
                for request in anywhere:
                    await self._permits.acquire()
                    tasks.start_soon(self._send, request, sent)
        except ExceptionGroup as group:
            raise first_cause(group) from None
        if len(sent) < len(requests):  # the group swallows a cancellation by foreign code
            raise asyncio.CancelledError

    async def queues_of_keys(self, topic: str, keys: Sequence[str]) -> list[MessageQueue]:
        """Return the queue of each key; raise `WriteError` without a route of the topic."""
        queues_of_keys = self._producer.queues_of_keys
        find_queues = partial(queues_of_keys, topic, keys, timeout_seconds=self._seconds)
        return await self._retry(find_queues, topic, len(keys))

    def summary(self) -> WriteSummary:
        """Return the counts so far."""
        return WriteSummary(self._rows, self._requests, self._weaker)

    async def _send_in_order(
        self, queue: MessageQueue | None, requests: list[WriteRequest], sent: list[WriteRequest]
    ) -> None:
        async with self._queue_locks[queue]:
            for request in requests:
                await self._permits.acquire()
                await self._send(request, sent)

    async def _send(self, request: WriteRequest, sent: list[WriteRequest]) -> None:
        try:
            if self._failure is not None:
                raise self._failure  # rows of a queue are never stored before earlier ones
            destination = request.destination
            queue = None if destination.key is not None else destination.queue
            send = partial(
                self._producer.send_encoded,
                request.encoded,
                queue=queue,
                sharding_key=destination.key,
                timeout_seconds=self._seconds,
            )
            result = await self._retry(send, request.encoded.topic, request.rows)
        finally:
            self._permits.release()
        sent.append(request)
        self._rows += request.rows
        self._requests += 1
        self._weaker += not result.ok

    async def _retry(self, send: Callable[[], Awaitable[T]], topic: str, rows: int) -> T:
        """Call *send* until it succeeds, fails permanently or has used up its retries."""
        pause = FIRST_PAUSE
        for tries in count(1):
            try:
                return await send()
            except RocketMQError as error:
                if tries > self._retries or not isinstance(error, RETRYABLE):
                    self._failure = WriteError(topic, rows, _broker(error), tries, error)
                    raise self._failure from error
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise AssertionError  # unreachable


def _broker(error: RocketMQError) -> str:
    if isinstance(error, SendError) and error.attempts:
        return error.attempts[-1].address
    return error.address if isinstance(error, BrokerError) else "-"
