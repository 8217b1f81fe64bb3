"""Pop loop of a broker or queue: one request at a time, and backoff after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import anyio

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.pop.intake import PopIntake
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import Popped, PopRequest
from rocketmq_aio.errors import (
    BrokerError,
    BusyError,
    CodecError,
    ConnectionLostError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.backoff import Backoff

# Between pops of a broker that does not hold requests, or whose messages are expired when they
# arrive: each pop counts as a delivery.
MIN_INTERVAL_SECONDS: Final = 0.1


class PopLoop:
    """Pops *source*, whose queue id -1 means all queues of its broker.

    :param next_request: returns the next request; None makes the loop wait for `wake`
    :param on_idle: called when the loop can serve another request, also after a failure
    :param on_full: called after a pop without a wait that returned as many messages as it was to,
        with the request and the seconds that it took
    """

    def __init__(
        self,
        intake: PopIntake,
        source: MessageQueue,
        *,
        next_request: Callable[[PopLoop], PopRequest | None],
        deliver: Callable[[list[PoppedMessage]], None],
        on_idle: Callable[[], object] = lambda: None,
        on_full: Callable[[PopLoop, PopRequest, float], None] | None = None,
    ) -> None:
        self.source = source
        self.stopped = False
        self.is_busy = False  # with a request, or the pause after a failed one
        self.failure: RocketMQError | None = None  # of the last request
        self.had_messages = False  # in the last response
        self.ahead = 0  # pops of `pop_ahead` in flight
        self._intake = intake
        self._next_request = next_request
        self._deliver = deliver
        self._on_idle = on_idle
        self._on_full = on_full
        self._attempt: str | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def is_rejected(self) -> bool:
        """Whether the broker returned an error that will not pass by itself."""
        return isinstance(self.failure, BrokerError) and not isinstance(self.failure, BusyError)

    def wake(self) -> None:
        """Make the loop ask for the next request, or end."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def stop(self) -> None:
        """End after the running request, whose messages are given back."""
        self.stopped = True
        self.wake()

    async def run(self) -> None:
        backoff = Backoff()
        while not self.stopped:
            request = self._next_request(self)
            wanted = self._intake.subscription_of(self.source.topic)
            if request is None or wanted is None:
                await self._sleep()
                continue
            self.is_busy = True
            try:
                await self._pop(wanted, request, backoff)
            finally:
                self.is_busy = False
            self._on_idle()

    async def pop_ahead(self, request: PopRequest) -> None:
        """Pop once more, concurrently with `run`; the caller has counted it in `ahead`."""
        clock = asyncio.get_running_loop().time
        began = clock()
        wanted = self._intake.subscription_of(self.source.topic)
        try:
            if wanted is None or self.stopped:
                return
            popped = await self._intake.client.pop(self.source, wanted, request, None)
        except RocketMQError:
            return  # the next request of `run` fails, too, and is reported
        finally:
            self.ahead -= 1
        await self._accept(wanted, request, popped, clock() - began)

    async def _sleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    async def _pop(self, wanted: Subscription, request: PopRequest, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._intake.is_orderly and self._attempt is None:
            self._attempt = str(uuid4())
        try:
            popped = await self._intake.client.pop(self.source, wanted, request, self._attempt)
        except RocketMQError as error:
            await self._fail(error, backoff)
            return
        self._attempt = None
        self.failure = None
        backoff.reset()
        seconds = loop.time() - began
        now, early = boottime(), MIN_INTERVAL_SECONDS - seconds
        idle = all(each.is_expired(now) for each in popped.messages)
        if request.wait_seconds > MIN_INTERVAL_SECONDS and idle and early > 0:
            await anyio.sleep(early)
        await self._accept(wanted, request, popped, seconds)

    async def _accept(
        self, wanted: Subscription, request: PopRequest, popped: Popped, seconds: float
    ) -> None:
        self.had_messages = bool(popped.messages)
        stopped = self.stopped
        accepted, exhausted = self._intake.accept(self.source, wanted, popped, stopped=stopped)
        if accepted:
            self._deliver(accepted)
            full = not request.wait_seconds and len(popped.messages) >= request.most
            if full and self._on_full is not None:
                self._on_full(self, request, seconds)
        if exhausted:  # waits: a broker that stores no dead letters would fill the memory
            await self._intake.send_to_dlq(exhausted)

    async def _fail(self, error: RocketMQError, backoff: Backoff) -> None:
        first = self.failure is None
        self.failure = error
        if not isinstance(error, ConnectionLostError | RequestTimeoutError | CodecError):
            # Only a lost response may have taken messages; with its id they are returned again.
            self._attempt = None
        if first and not self.stopped:  # closing ends running requests
            self._intake.on_pop_failed(self.source, error)
        self._on_idle()
        await anyio.sleep(backoff.next_pause())
