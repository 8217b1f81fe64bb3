"""The sends of one write task: some in flight, those of a lane one after another."""

from __future__ import annotations

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
from rocketmq_aio.spark.options.source_options import WriteOptions
from rocketmq_aio.spark.write.write_requests import NO_LANE, WriteRequest

T = TypeVar("T")

FIRST_PAUSE: Final = 0.5  # seconds before the first retry; it doubles
LONGEST_PAUSE: Final = 8.0
HEALS: Final = (SendError, RouteNotFoundError, NameServerUnavailableError)


class WriteError(RocketMQError):
    """Rows could not be sent: the task fails, and what was sent before stays sent."""

    def __init__(self, topic: str, rows: int, broker: str, tries: int, cause: object) -> None:
        super().__init__(
            f"{rows} row(s) for topic {topic!r} were not sent, broker {broker}, "
            f"tries {tries} (options retries, sendTimeoutMs): {type(cause).__name__}: {cause}"
        )
        self.topic = topic
        self.rows = rows
        self.broker = broker


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What tasks sent; *weaker*: requests that the broker stored without its full guarantee."""

    rows: int = 0
    requests: int = 0
    weaker: int = 0

    @classmethod
    def total(cls, messages: Iterable[WriterCommitMessage | None]) -> Self:
        """Return what all tasks together sent; None stands for one that failed."""
        done = [each for each in messages if isinstance(each, Written)]
        return cls(
            sum(each.rows for each in done),
            sum(each.requests for each in done),
            sum(each.weaker for each in done),
        )


class Sending:
    """Sends parcels, at most ``sendWindow`` at once; it lives on the loop."""

    def __init__(self, producer: Producer, options: WriteOptions) -> None:
        self._rows = self._requests = self._weaker = 0
        self._producer = producer
        self._retries = options.retries
        self._seconds = options.send_timeout_ms / 1000
        self._window = anyio.Semaphore(options.send_window)
        self._turns: defaultdict[MessageQueue | None, anyio.Lock] = defaultdict(anyio.Lock)

    async def send(self, parcels: Iterable[WriteRequest]) -> None:
        """Send all *parcels*; those of a later call wait behind these where they share a lane.

        :raises WriteError: one could not be sent, and no more are
        """
        try:
            async with anyio.create_task_group() as tasks:
                lanes = _lanes(parcels)
                anywhere = lanes.pop(None, [])
                for queue, mine in lanes.items():
                    tasks.start_soon(self._send_in_order, queue, mine)
                for parcel in anywhere:
                    await self._window.acquire()
                    tasks.start_soon(self._send_and_make_room, parcel)
        except ExceptionGroup as group:
            raise _first(group) from None

    async def queues_of_keys(self, topic: str, keys: Sequence[str]) -> list[MessageQueue]:
        """Return the queue that each key goes to.

        :raises WriteError: nobody can tell
        """
        ask = partial(self._producer.queues_of_keys, topic, keys, timeout_seconds=self._seconds)
        return await self._persist(ask, topic, len(keys))

    def written(self) -> Written:
        """Return what was stored so far."""
        return Written(self._rows, self._requests, self._weaker)

    # --- inside ---------------------------------------------------------------------------------

    async def _send_in_order(
        self, queue: MessageQueue | None, parcels: Sequence[WriteRequest]
    ) -> None:
        async with self._turns[queue]:
            for parcel in parcels:
                await self._window.acquire()
                await self._send_and_make_room(parcel)

    async def _send_and_make_room(self, parcel: WriteRequest) -> None:
        try:
            lane = parcel.lane or NO_LANE
            queue = None if lane.key is not None else lane.queue
            send = partial(
                self._producer.send_encoded,
                parcel.encoded,
                queue=queue,
                sharding_key=lane.key,
                timeout_seconds=self._seconds,
            )
            result = await self._persist(send, parcel.encoded.topic, parcel.rows)
        finally:
            self._window.release()
        self._rows += parcel.rows
        self._requests += 1
        self._weaker += not result.ok

    async def _persist(self, ask: Callable[[], Awaitable[T]], topic: str, rows: int) -> T:
        """Ask until it is done, refused for good, or tried often enough."""
        pause = FIRST_PAUSE
        for tries in count(1):
            try:
                return await ask()
            except RocketMQError as error:
                if tries > self._retries or not isinstance(error, HEALS):
                    raise WriteError(topic, rows, _broker(error), tries, error) from error
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise AssertionError  # for those who do not know that counting never ends


def _lanes(parcels: Iterable[WriteRequest]) -> dict[MessageQueue | None, list[WriteRequest]]:
    lanes: dict[MessageQueue | None, list[WriteRequest]] = {}
    for parcel in parcels:
        lanes.setdefault((parcel.lane or NO_LANE).queue, []).append(parcel)
    return lanes


def _broker(error: RocketMQError) -> str:
    if isinstance(error, SendError) and error.attempts:
        return error.attempts[-1].address
    return error.address if isinstance(error, BrokerError) else "-"


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
