"""The pop loop of one broker or queue: one request at a time, and what to do about failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import anyio

from rocketmq_aio.consumer.pop.client import PopClient, Popped, PopRequest
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

LEAST_EMPTY_SECONDS: Final = 0.1  # a broker that does not hold requests is not asked in a storm


class PopLoop:
    """Pops *source*, whose queue id -1 means all queues of its broker, as often as is wished.

    :param wanted: what is subscribed to of the topic now
    :param next_wish: what to ask for next; None is nothing until `wake`
    :param on_popped: called with what every request brought, also when that is nothing
    :param on_failed: called when a request failed, the first time in a row with True
    :param on_idle: called when another wish can be served
    :param orderly: messages of a queue in order, one batch at a time
    """

    def __init__(
        self,
        calls: PopClient,
        source: MessageQueue,
        *,
        wanted: Callable[[], Subscription | None],
        next_wish: Callable[[PopLoop], PopRequest | None],
        on_popped: Callable[[PopLoop, Popped], None],
        on_failed: Callable[[PopLoop, RocketMQError, bool], None],
        on_idle: Callable[[], None],
        orderly: bool = False,
    ) -> None:
        self.source = source
        self.stopped = False
        self.is_busy = False  # with a request, or the pause after a failed one
        self.failure: RocketMQError | None = None  # of the last request
        self._calls = calls
        self._wanted = wanted
        self._next_wish = next_wish
        self._on_popped = on_popped
        self._on_failed = on_failed
        self._on_idle = on_idle
        self._orderly = orderly
        self._attempt: str | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def is_refused(self) -> bool:
        """The broker said no, for a reason that time alone does not change."""
        return isinstance(self.failure, BrokerError) and not isinstance(self.failure, BusyError)

    def wake(self) -> None:
        """There is a wish, or the loop was stopped."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def stop(self) -> None:
        """End after the request that is under way, whose messages still come."""
        self.stopped = True
        self.wake()

    async def run(self) -> None:
        """Pop until stopped."""
        backoff = Backoff()
        while not self.stopped:
            wish, wanted = self._next_wish(self), self._wanted()
            if wish is None or wanted is None:
                await self._sleep()
                continue
            self.is_busy = True
            try:
                await self._pop(wanted, wish, backoff)
            finally:
                self.is_busy = False
            self._on_idle()

    async def _sleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    async def _pop(self, wanted: Subscription, wish: PopRequest, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            popped = await self._calls.pop(self.source, wanted, wish, self._attempt_id())
        except RocketMQError as error:
            await self._failed(error, backoff)
            return
        self._attempt = None
        self.failure = None
        backoff.reset()
        early = LEAST_EMPTY_SECONDS - (loop.time() - began)
        if wish.wait_seconds > LEAST_EMPTY_SECONDS and not popped.messages and early > 0:
            await anyio.sleep(early)
        self._on_popped(self, popped)

    def _attempt_id(self) -> str | None:
        if self._orderly and self._attempt is None:
            self._attempt = str(uuid4())
        return self._attempt

    async def _failed(self, error: RocketMQError, backoff: Backoff) -> None:
        first = self.failure is None
        self.failure = error
        if not isinstance(error, ConnectionLostError | RequestTimeoutError | CodecError):
            # Only a lost answer may have taken messages; with its id they come again.
            self._attempt = None
        self._on_failed(self, error, first)
        await anyio.sleep(backoff.next_pause())
