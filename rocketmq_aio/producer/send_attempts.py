"""The attempts of one send under one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    BrokerError,
    BusyError,
    ClosedError,
    RocketMQError,
    RouteNotFoundError,
    SendAttempt,
    SendError,
)
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.values import SendResult, SendStatus
from rocketmq_aio.producer.compression import CompressionPool
from rocketmq_aio.producer.fault_strategy import FaultStrategy
from rocketmq_aio.producer.retry import failure, is_retryable
from rocketmq_aio.producer.send_request import SEND, SendRequest
from rocketmq_aio.producer.topic_publish_info import TopicPublishInfo
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.remoting.backoff import Backoff, BackoffError

LEAST_SECONDS: Final = 0.01  # less time than this is no time for another attempt
OK: Final = SendStatus.SEND_OK
EARLY_SECONDS: Final = 0.001  # timers of uvloop may end so much too early


class RetryState:
    """What became of the attempts of one send so far."""

    def __init__(self, sent: SendRequest) -> None:
        self.sent = sent
        self.refused: set[str] = set()  # brokers that were really tried
        self.weaker: SendResult | None = None  # stored, with less than was asked for
        self._tried: list[SendAttempt] = []
        self._backoff = Backoff()
        self._backoff.failures = 1

    def goes_on(self, outcome: RocketMQError | SendResult, started: float) -> bool:
        """Take an outcome down; return whether another attempt could end better."""
        if isinstance(outcome, SendResult):
            self.weaker = outcome
            return True
        if not isinstance(outcome, BackoffError):
            self.refused.add(self.sent.target.broker_name)
        self._tried.append(_attempt(self.sent.target.address, outcome, started))
        return is_retryable(outcome)

    def pause(self) -> float:
        """Return how long a broker that was tried already should be left alone."""
        return self._backoff.next_pause()

    def end(self) -> SendResult:
        """Return or raise what all attempts together amount to."""
        if self.weaker is not None:
            return self.weaker
        raise failure(self.sent.topic, self.sent.message_id, self._tried)


Stored = Callable[[SendRequest, SendResult, float], None]  # and how many seconds it took
Renew = Callable[[TopicPublishInfo, float], Awaitable[TopicPublishInfo]]


class Attempts:
    """Tries a send until it is stored, refused for good, out of attempts or out of time.

    :param renew: returns the newest queues of a topic: (known ones, deadline) -> queues
    :param faults: is told how brokers answer
    :param stored: are told of each send that is stored; they have to be quick
    """

    def __init__(
        self,
        instance: MQClientInstance,
        config: ProducerConfig,
        renew: Renew,
        faults: FaultStrategy,
        stored: Sequence[Stored] = (),
    ) -> None:
        self._remoting = instance.remoting
        self._routes = instance.routes
        self._renew = renew
        self._faults = faults
        self._retries = config.retries
        # Nobody tried; or the broker stored nothing and asks for patience: the deadline bounds it.
        self._uncounted = (BackoffError, BusyError) if config.retries else (BackoffError,)
        self.retries_weaker = config.retry_other_broker
        self._prepared = instance.remoting.takes_prepared
        self.packer = CompressionPool()
        self._closed = False
        self._stored = stored

    async def run(  # noqa: C901 - flat: the first attempt is all that most sends need
        self, sent: SendRequest, publish: TopicPublishInfo, deadline: float
    ) -> SendResult:
        """Send *sent*, which is aimed already.

        :raises ClosedError: `close` was called; nothing was sent
        """
        if sent.packing is not None:
            await self.packer.pack(sent)
        if self._closed:
            raise ClosedError("the producer is closed")
        started = publish.used_at = monotonic()
        try:
            seconds = deadline - started
            if self._retries and len(publish.brokers) > 1 and not sent.fixed:
                seconds /= 2  # a broker that hangs must leave time for another one
            result = sent.result(await self._request(sent, publish, seconds))
            if (now := monotonic()) - started > self._faults.bound:
                self._faults.answered(sent.target, started, now)
            if result.status is OK or not self.retries_weaker:
                for tell in self._stored:
                    tell(sent, result, now - started)
                return result
        except RocketMQError as cause:
            result = await self.go_on(sent, publish, deadline, cause, started)
        else:
            result = await self.go_on(sent, publish, deadline, result, started)
        for tell in self._stored:
            tell(sent, result, monotonic() - started)
        return result

    def close(self) -> None:
        """Begin no attempt any more, and end the threads that compress."""
        self._closed = True
        self.packer.close()

    async def go_on(
        self,
        sent: SendRequest,
        publish: TopicPublishInfo,
        deadline: float,
        outcome: RocketMQError | SendResult,
        started: float,
    ) -> SendResult:
        """Go on after an attempt, begun at *started*, that did not end as it should."""
        course = RetryState(sent)
        attempts_left = self._retries
        while self._goes_on(course, outcome, started, deadline):
            if _has_moved(outcome):
                self._routes.invalidate(sent.topic)
            if not isinstance(outcome, self._uncounted):
                if not attempts_left:
                    break
                attempts_left -= 1
            if not _aimed_elsewhere(sent, publish):
                if course.weaker is not None:
                    break  # the same broker would store it a second time, no better
                publish = await self._aim_anew(course, publish, deadline)
            started = monotonic()
            outcome = await self._once_more(sent, publish, deadline - started, attempts_left)
            if isinstance(outcome, SendResult) and (outcome.ok or not self.retries_weaker):
                return outcome
        return course.end()

    def _goes_on(
        self,
        course: RetryState,
        outcome: RocketMQError | SendResult,
        started: float,
        deadline: float,
    ) -> bool:
        now = monotonic()
        if not isinstance(outcome, SendResult):
            self._faults.failed(course.sent.target, outcome, started, now)
        may_go_on = course.goes_on(outcome, started) and not self._closed
        return may_go_on and deadline - now > LEAST_SECONDS

    async def _once_more(
        self, sent: SendRequest, publish: TopicPublishInfo, seconds: float, attempts_left: int
    ) -> RocketMQError | SendResult:
        if attempts_left and len(publish.brokers) > 1 and not sent.fixed:
            seconds /= 2
        started = monotonic()
        try:
            result = sent.result(await self._request(sent, publish, seconds))
        except RocketMQError as cause:
            return cause
        if (now := monotonic()) - started > self._faults.bound:
            self._faults.answered(sent.target, started, now)
        return result

    def never_sent(self, topic: str, cause: RocketMQError) -> SendError:
        """Return the error of a send that found no room."""
        return SendError(topic, "-", [_attempt("-", cause, monotonic())])

    def _request(
        self, sent: SendRequest, publish: TopicPublishInfo, seconds: float
    ) -> Coroutine[Any, Any, Command]:
        address = sent.target.address
        if self._prepared:
            code = sent.code if sent.batch or sent.reply else SEND
            return self._remoting.exchange(address, code, sent.frame, seconds)
        header = sent.header(publish)
        return self._remoting.request(address, header, sent.body, timeout=seconds)

    async def _aim_anew(
        self, course: RetryState, publish: TopicPublishInfo, deadline: float
    ) -> TopicPublishInfo:
        """Every known broker has failed: look for others, or wait for the most promising one."""
        sent = course.sent
        publish = await self._renew(publish, deadline)
        if _aimed_elsewhere(sent, publish):
            return publish
        if not sent.fixed:
            left = {
                name: self._remoting.pause_left(publish.send_address(master))
                for name, master in publish.masters().items()
            }
            # One that was not really tried may be back; of those that were, who is ready first.
            best = min(left, key=lambda name: (name in course.refused, left[name]))
            sent.target = publish.next_target_avoiding(frozenset(publish.brokers - {best}))
        pause = self._remoting.pause_left(sent.target.address)
        if sent.target.broker_name in course.refused:
            pause = max(pause, course.pause())
        await asyncio.sleep(min(pause + EARLY_SECONDS, deadline - monotonic() - LEAST_SECONDS))
        return publish


def _aimed_elsewhere(sent: SendRequest, publish: TopicPublishInfo) -> bool:
    """Choose the queue of the next attempt; return whether its broker has not failed yet."""
    sent.failed_brokers |= {sent.target.broker_name}
    if not sent.fixed:
        sent.target = publish.next_target_avoiding(sent.failed_brokers)
    else:
        with suppress(RouteNotFoundError):  # its broker may have another address by now
            sent.target = publish.target(sent.target.queue)
    return sent.target.broker_name not in sent.failed_brokers


def _has_moved(outcome: RocketMQError | SendResult) -> bool:
    """Whether a broker says that a logical queue is not its own any more."""
    return isinstance(outcome, BrokerError) and outcome.code == ResponseCode.NOT_LEADER_FOR_QUEUE


def _attempt(address: str, cause: RocketMQError, started: float) -> SendAttempt:
    return SendAttempt(address=address, cause=cause, seconds=monotonic() - started)
