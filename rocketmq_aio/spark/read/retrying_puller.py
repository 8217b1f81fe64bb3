"""Asks for what is at an offset until there is an answer that leads on, or patience ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

import anyio

from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.consumer.pull.result import PullStatus, RawPull
from rocketmq_aio.errors import (
    AuthError,
    ConfigError,
    NameServerUnavailableError,
    NotRunningError,
    NotSupportedError,
    PermissionDeniedError,
    RocketMQError,
    RouteNotFoundError,
    SubscriptionError,
)
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.subscription import Subscription, subscription
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import ReadOptions

FIRST_STEP: Final = 32  # what a broker hands out at once by default
LONGEST_STEP: Final = 65_536
PATIENCE: Final = 64  # whole answers in a row before more is asked for than was given once
PULL_SECONDS: Final = 15.0  # a broker that reads from disk, or drops an answer, takes long
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
HOPELESS: Final = (
    AuthError,
    ConfigError,
    NotRunningError,
    NotSupportedError,
    PermissionDeniedError,
    SubscriptionError,
)
NO_GROUP: Final = int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

Brokers = Callable[[], Awaitable[Collection[str]]]  # the names of those that are registered now


class ReadError(RocketMQError):
    """A queue cannot be read; the cause says why."""

    def __init__(self, wanted: Range, offset: int, reason: str) -> None:
        super().__init__(
            f"cannot read topic {wanted.topic!r}, broker {wanted.broker!r}, queue "
            f"{wanted.queue_id} at offset {offset}: {reason}"
        )
        self.wanted = wanted
        self.offset = offset


class TopicDeletedError(ReadError):
    """No name server knows the topic, though the broker that had it is there."""


@dataclass(eq=False)
class Part:
    """A range, and how far it has been shared out."""

    wanted: Range
    queue: MessageQueue
    subscription: Subscription
    cursor: int
    step: int = FIRST_STEP
    whole: int = 0  # answers in a row that were as long as they could be
    patience: int = 1
    progressed: float = float("-inf")

    def learn(self, asked: int, passed: int) -> None:
        """Follow what the broker really returns."""
        if passed < asked:
            self.step, self.whole, self.patience = max(1, passed), 0, PATIENCE
        elif passed > self.step:
            self.step = min(passed, LONGEST_STEP)
        elif asked == self.step:
            self.whole += 1
            if self.whole >= self.patience:
                self.step, self.whole = min(2 * self.step, LONGEST_STEP), 0


class RetryingPuller:
    """Pulls, repeated as long as that may help.

    :param registered: asks a name server which brokers there are
    """

    def __init__(self, pulls: RawPulls, options: ReadOptions, registered: Brokers) -> None:
        self._pulls = pulls
        self._options = options
        self._timeout = options.pull_timeout_ms / 1000
        self._registered = registered

    async def progress(self, part: Part, at: int, count: int) -> RawPull:
        """Return an answer that leads on from *at*.

        :raises ReadError: none came in ``pullTimeoutMs`` without progress on the queue
        :raises TopicDeletedError: and that is because there is no such topic any more
        """
        loop = asyncio.get_running_loop()
        begun, backoff = loop.time(), Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        suggested = self._options.read_from == "suggested"
        while True:
            reason, cause = "", None
            try:
                answer = await self._pulls.pull(
                    part.queue,
                    at,
                    count,
                    part.subscription,
                    timeout=min(PULL_SECONDS, self._timeout),
                    suggested=suggested,
                )
                if leads_on(answer, at) and (not suggested or is_sure(answer)):
                    part.progressed = loop.time()
                    return answer
                reason = said(answer)
            except HOPELESS as error:
                raise ReadError(part.wanted, at, hopeless(error)) from error
            except RocketMQError as error:
                reason, cause = str(error), error
            if loop.time() - max(begun, part.progressed) > self._timeout:
                limit = f"no progress for pullTimeoutMs={self._options.pull_timeout_ms}"
                deleted = isinstance(cause, RouteNotFoundError) and await self._is_up(part)
                kind = TopicDeletedError if deleted else ReadError
                raise kind(part.wanted, at, f"{limit}: {reason}") from cause
            if not suggested:
                await anyio.sleep(backoff.next_pause())
            suggested = False  # the master knows

    async def _is_up(self, part: Part) -> bool:
        """Whether the broker is registered: one that is away takes its topics along."""
        try:
            return part.wanted.broker in await self._registered()
        except NameServerUnavailableError:
            return False


def part_of(wanted: Range, options: ReadOptions) -> Part:
    """Return *wanted*, of which nothing has been shared out yet."""
    queue = MessageQueue(wanted.topic, wanted.broker, wanted.queue_id)
    return Part(wanted, queue, expression(wanted.topic, options), wanted.start)


def expression(topic: str, options: ReadOptions) -> Subscription:
    """Return what is wanted of *topic*."""
    selector = MessageSelector(options.sub_expression, options.expression_type)
    return subscription(topic, selector, 0)


def filters(wanted: Subscription) -> bool:
    """Whether brokers leave messages out that are not wanted."""
    return wanted.is_sql or bool(wanted.tags)


def leads_on(answer: RawPull, at: int) -> bool:
    """Whether there is an answer to what is at the offset, be it that it is gone."""
    if answer.status in (PullStatus.FOUND, PullStatus.NO_MATCH):
        return answer.next_offset > at
    return answer.status is PullStatus.OFFSET_ILLEGAL and answer.next_offset != at


def is_sure(answer: RawPull) -> bool:
    """Whether a slave can know that: it may be behind its master."""
    return answer.status in (PullStatus.FOUND, PullStatus.NO_MATCH)


def said(answer: RawPull) -> str:
    """Return an answer that leads nowhere, in words."""
    return (
        f"the broker answers {answer.status.value} with next offset {answer.next_offset}, "
        f"the queue has {answer.min_offset} to {answer.max_offset}"
    )


def hopeless(error: RocketMQError) -> str:
    """Return what cannot be helped by asking again, and what can be done."""
    if getattr(error, "code", None) == NO_GROUP:
        return f"{error}; the group (option group) must exist where brokers do not create groups"
    return str(error)
