"""Send attempts: sends a request to brokers until it is stored, rejected or out of time."""

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
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import SendResult, SendStatus
from rocketmq_aio.producer.compression import CompressionPool
from rocketmq_aio.producer.fault_strategy import FaultStrategy
from rocketmq_aio.producer.retry import RetryState, is_unknown_queue, never_sent
from rocketmq_aio.producer.send_request import SEND, SendRequest
from rocketmq_aio.producer.topic_publish_info import TopicPublishInfo
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.remoting.backoff import BackoffError

LEAST_SECONDS: Final = 0.01  # with less time than this left there is no further attempt
LEAST_FAILOVER_SECONDS: Final = 3.0  # attempts are not shorter because a replica may follow
OK: Final = SendStatus.SEND_OK
EARLY_SECONDS: Final = 0.001  # timers of uvloop may fire this much too early
# Of a former owner of a logical queue, and of a broker that cannot store: it may be a slave now.
MOVED: Final = (ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.SERVICE_NOT_AVAILABLE)


# The last two: seconds taken, size of the body
StoredCall = Callable[[SendRequest, SendResult, float, int], None]
Renew = Callable[[TopicPublishInfo, float], Awaitable[TopicPublishInfo]]


class SendAttempts:
    """Runs sends: each until it is stored, rejected, out of retries or out of time.

    :param renew: returns the newest queues of a topic: (known ones, deadline) -> queues
    :param faults: records how brokers respond
    :param stored: called for each send that was stored; must be fast
    """

    def __init__(
        self,
        instance: MQClientInstance,
        config: ProducerConfig,
        renew: Renew,
        faults: FaultStrategy,
        stored: Sequence[StoredCall] = (),
    ) -> None:
        self._remoting = instance.remoting
        self._routes = instance.routes
        self._renew = renew
        self._faults = faults
        self._retries = config.retries
        # Nothing was stored: these errors use up no retry, only the deadline limits them.
        self._uncounted = (NotConnectedError, BusyError) if config.retries else (BackoffError,)
        self._retries_weaker = config.retry_other_broker
        self._prepared = instance.remoting.takes_prepared
        self.compression = CompressionPool()
        self._closed = False
        self._stored = stored

    async def run(  # noqa: C901 - flat: the first attempt is all that most sends need
        self, request: SendRequest, publish: TopicPublishInfo, deadline: float
    ) -> SendResult:
        """Send *request* to its target, then to others as far as retries go.

        :raises ClosedError: `close` was called; nothing was sent
        :raises SendError: the event loop stalled until *deadline*; nothing was sent
        """
        if request.compression is not None:
            await self.compress(request, deadline)
        if self._closed:
            raise ClosedError("the producer is closed")
        started = publish.used_at = monotonic()
        seconds = deadline - started
        if seconds <= 0:
            reason = "its deadline passed before it was written: the event loop stalled"
            raise never_sent(request.topic, reason, request.message_id)
        try:
            if self._retries and publish.has_alternatives:
                seconds = _share(request, publish, seconds)
            result = request.result(await self._request(request, publish, seconds))
            if (now := monotonic()) - started > self._faults.bound and not request.is_reply:
                self._faults.on_response(request.target, started, now)
            if result.status is OK or not self._retries_weaker:
                if self._stored:
                    self._call_stored(request, result, now - started)
                return result
        except RocketMQError as cause:
            result = await self._retry(request, publish, deadline, cause, started)
        else:
            result = await self._retry(request, publish, deadline, result, started)
        if self._stored:
            self._call_stored(request, result, monotonic() - started)
        return result

    async def compress(self, request: SendRequest, deadline: float) -> None:
        """Compress the body of *request* in a thread.

        :raises SendError: it was not done before *deadline*
        """
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self.compression.compress(request)
        except TimeoutError:
            reason = "its compression took all the time that it had"
            raise never_sent(request.topic, reason, request.message_id) from None

    def close(self) -> None:
        """Start no further attempt, and stop the compression threads."""
        self._closed = True
        self.compression.close()

    async def _retry(
        self,
        request: SendRequest,
        publish: TopicPublishInfo,
        deadline: float,
        outcome: RocketMQError | SendResult,
        started: float,
    ) -> SendResult:
        """Continue after an attempt, begun at *started*, that failed or was stored too weakly."""
        state = RetryState(request)
        attempts_left = self._retries
        while self._should_retry(state, outcome, started, deadline):
            attempts_left -= not isinstance(outcome, self._uncounted)
            if attempts_left < 0:
                break
            if not _select_next(request, publish):
                if state.weaker is not None:
                    break  # the same broker would store it again with the same weakness
                publish = await self._wait_for_target(state, publish, deadline)
            started = monotonic()
            left = deadline - started
            if self._closed or left <= 0:  # meanwhile: the event loop may have stalled
                break
            outcome = await self._attempt(request, publish, left, attempts_left)
            if isinstance(outcome, SendResult) and (outcome.ok or not self._retries_weaker):
                return outcome
        return state.result()

    def _call_stored(self, request: SendRequest, result: SendResult, seconds: float) -> None:
        size = len(request.body)
        if not request.batch:
            request.body = b""  # hooks may keep the request, and it may be large
        for stored in self._stored:
            stored(request, result, seconds, size)

    def _should_retry(
        self,
        state: RetryState,
        outcome: RocketMQError | SendResult,
        started: float,
        deadline: float,
    ) -> bool:
        now = monotonic()
        if _contradicts_route(outcome):
            self._routes.invalidate(state.request.topic)
        # A broker responds to a reply when the requester has: only that may be late.
        is_late_reply = state.request.is_reply and isinstance(outcome, RequestTimeoutError)
        if not isinstance(outcome, SendResult) and not is_late_reply:
            self._faults.on_failure(state.request.target, outcome, started, now)
        should_retry = state.should_retry(outcome, started) and not self._closed
        return should_retry and deadline - now > LEAST_SECONDS

    async def _attempt(
        self, request: SendRequest, publish: TopicPublishInfo, seconds: float, attempts_left: int
    ) -> RocketMQError | SendResult:
        if attempts_left:
            seconds = _share(request, publish, seconds)
        started = monotonic()
        try:
            result = request.result(await self._request(request, publish, seconds))
        except RocketMQError as cause:
            return cause
        if (now := monotonic()) - started > self._faults.bound and not request.is_reply:
            self._faults.on_response(request.target, started, now)
        return result

    def _request(
        self, request: SendRequest, publish: TopicPublishInfo, seconds: float
    ) -> Coroutine[Any, Any, Command]:
        address = request.target.address
        if self._prepared:
            code = request.code if request.batch or request.is_reply else SEND
            return self._remoting.exchange(address, code, request.frame, seconds)
        header = request.header(publish)
        return self._remoting.request(address, header, request.body, timeout=seconds)

    async def _wait_for_target(
        self, state: RetryState, publish: TopicPublishInfo, deadline: float
    ) -> TopicPublishInfo:
        """All known brokers have failed: renew the route, or wait for the most promising broker."""
        request = state.request
        publish = await self._renew(publish, deadline)
        if _select_next(request, publish):
            return publish
        if not request.fixed:
            left = {
                name: self._remoting.backoff_left(publish.send_address(master))
                for name, master in publish.masters().items()
            }
            # A broker that was not really tried may be back; of the others the first that is ready.
            best = min(left, key=lambda name: (name in state.failed, left[name]))
            request.target = publish.next_target_avoiding(frozenset(publish.brokers - {best}))
        pause = self._remoting.backoff_left(request.target.address)
        if request.target.broker_name in state.failed:
            pause = max(pause, state.pause())
        pause = min(pause, deadline - monotonic() - LEAST_SECONDS)
        await asyncio.sleep(pause + EARLY_SECONDS)
        return publish


def _share(request: SendRequest, publish: TopicPublishInfo, seconds: float) -> float:
    """Return the part of *seconds* for one attempt.

    A broker that hangs leaves time for another one, or for a replica that becomes the master.
    """
    if len(publish.brokers) > 1 and not request.fixed:
        return seconds / 2
    if request.target.broker_name in publish.replicated:
        return max(seconds / 2, min(seconds, LEAST_FAILOVER_SECONDS))
    return seconds


def _select_next(request: SendRequest, publish: TopicPublishInfo) -> bool:
    """Select the queue of the next attempt; return whether its broker has not failed yet."""
    request.failed_brokers |= {request.target.broker_name}
    if not request.fixed:
        request.target = publish.next_target_avoiding(request.failed_brokers)
    else:
        with suppress(RouteNotFoundError):  # its broker may have a new address
            request.target = publish.target(request.target.queue)
    return request.target.broker_name not in request.failed_brokers


def _contradicts_route(outcome: RocketMQError | SendResult) -> bool:
    moved = isinstance(outcome, BrokerError) and outcome.code in MOVED
    return moved or is_unknown_queue(outcome)
