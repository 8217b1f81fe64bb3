"""Retrying puller: repeats a pull until the response makes progress or the timeout passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio

from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.consumer.pull.result import PullStatus, RawPull
from rocketmq_aio.errors import (
    AuthError,
    ConfigError,
    NotRunningError,
    NotSupportedError,
    PermissionDeniedError,
    RocketMQError,
    SubscriptionError,
)
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.subscription import Subscription, subscription
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import ReadOptions

FIRST_SEGMENT: Final = 32  # a broker's default maximum per pull
MAX_SEGMENT: Final = 65_536
FULL_BEFORE_GROWTH: Final = 64  # full responses in a row before growing beyond a size that was cut
PULL_SECONDS: Final = 15.0  # brokers may read from disk or drop a response
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
FATAL: Final = (
    AuthError,
    ConfigError,
    NotRunningError,
    NotSupportedError,
    PermissionDeniedError,
    SubscriptionError,
)
NO_GROUP: Final = "; the group (option group) must exist where brokers do not create groups"

IsGone = Callable[[MessageQueue, RocketMQError | None], Awaitable[bool]]  # see `is_gone`


class ReadError(RocketMQError):
    """A queue cannot be read; see the cause."""

    def __init__(self, wanted: Range, offset: int, reason: str) -> None:
        super().__init__(
            f"cannot read topic {wanted.topic!r}, broker {wanted.broker!r}, queue "
            f"{wanted.queue_id} at offset {offset}: {reason}"
        )


class QueueGoneError(ReadError):
    """The topic was deleted, or has fewer queues now, and its broker is registered."""


@dataclass(eq=False)
class RangeCursor:
    """A range, the next offset to assign and the size of the next segment."""

    wanted: Range
    queue: MessageQueue
    subscription: Subscription
    position: int
    segment_size: int = FIRST_SEGMENT
    full: int = 0  # full responses in a row
    full_needed: int = 1
    progressed: float = float("-inf")

    def adapt(self, requested: int, returned: int) -> None:
        """Adapt the segment size to the number of offsets that the broker returns."""
        if returned < requested:
            self.segment_size, self.full, self.full_needed = max(1, returned), 0, FULL_BEFORE_GROWTH
        elif returned > self.segment_size:
            self.segment_size = min(returned, MAX_SEGMENT)
        elif requested == self.segment_size:
            self.full += 1
            if self.full >= self.full_needed:
                self.segment_size, self.full = min(2 * self.segment_size, MAX_SEGMENT), 0


class RetryingPuller:
    """Pulls and retries errors that may be temporary."""

    def __init__(self, pulls: RawPulls, options: ReadOptions, is_gone: IsGone) -> None:
        self._pulls = pulls
        self._options = options
        self._is_gone = is_gone

    async def pull(self, cursor: RangeCursor, at: int, count: int) -> RawPull:
        """Return a response that makes progress from *at*.

        :raises ReadError: the queue made no progress for ``pullTimeoutMs``
        :raises QueueGoneError: likewise, because the queue does not exist any more
        """
        loop = asyncio.get_running_loop()
        started, backoff = loop.time(), Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        suggested = self._options.read_from == "suggested"
        cut_pauses = self._options.retry_pauses()
        seconds = self._options.pull_timeout_ms / 1000
        timeout = min(PULL_SECONDS, seconds)
        while True:
            reason, cause = "", None
            try:
                wanted = cursor.queue, at, count, cursor.subscription
                response = await self._pulls.pull(*wanted, timeout=timeout, suggested=suggested)
                # A broker that has just started reports an end that is too low for a while.
                cut = not suggested and is_cut(response, at)
                if cut and (pause := next(cut_pauses, None)) is not None:
                    await anyio.sleep(pause)
                    continue
                if makes_progress(response, at, suggested=suggested):
                    cursor.progressed = loop.time()
                    return response
                reason = (
                    f"the broker returned {response.status.value} with next offset "
                    f"{response.next_offset}, the queue has {response.min_offset} to "
                    f"{response.max_offset}"
                )
            except FATAL as error:
                no_group = getattr(error, "code", None) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                reason = f"{error}{NO_GROUP if no_group else ''}"
                raise ReadError(cursor.wanted, at, reason) from error
            except RocketMQError as error:
                reason, cause = str(error), error
            if loop.time() - max(started, cursor.progressed) > seconds:
                limit = f"no progress for pullTimeoutMs={self._options.pull_timeout_ms}"
                kind = QueueGoneError if await self._is_gone(cursor.queue, cause) else ReadError
                raise kind(cursor.wanted, at, f"{limit}: {reason}") from cause
            if not suggested:
                await anyio.sleep(backoff.next_pause())
            suggested = False  # retry at the master


def cursor_of(wanted: Range, options: ReadOptions) -> RangeCursor:
    """Return a cursor at the start of *wanted*."""
    queue = MessageQueue(wanted.topic, wanted.broker, wanted.queue_id)
    return RangeCursor(wanted, queue, subscription_of(wanted.topic, options), wanted.start)


def subscription_of(topic: str, options: ReadOptions) -> Subscription:
    """Return the filter of *options* for *topic*."""
    selector = MessageSelector(options.sub_expression, options.expression_type)
    return subscription(topic, selector, 0)


def is_filtered(wanted: Subscription) -> bool:
    """Whether brokers filter the messages."""
    return wanted.is_sql or bool(wanted.tags)


def makes_progress(response: RawPull, at: int, *, suggested: bool) -> bool:
    """Whether the response has messages at the offset, another one to continue at, or none.

    :param suggested: it may come from a slave, whose end is not that of the queue
    """
    if response.status in (PullStatus.FOUND, PullStatus.NO_MATCH):
        return response.next_offset > at
    illegal = response.status is PullStatus.OFFSET_ILLEGAL
    return not suggested and (is_cut(response, at) or (illegal and response.next_offset != at))


def is_cut(response: RawPull, at: int) -> bool:
    """Whether the queue ends at the offset or below; only stored offsets are pulled."""
    if response.status is PullStatus.NO_NEW:
        return response.max_offset <= at
    return response.status is PullStatus.OFFSET_ILLEGAL and response.next_offset < at
