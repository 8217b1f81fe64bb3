"""Brokers that are left out for a while: by evidence, for longer each time, forgiven early.

A broker that let a request time out, could not be reached, lost its connection or answered slowly
gets no sends of free choice until a probe or a send has shown that it answers again.  One that
answers that it cannot store messages now stays out for its time, whatever it answers to probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from random import random
from time import monotonic
from typing import Final, Protocol

import anyio
import msgspec

from rocketmq_aio.errors import (
    BrokerError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.topic_publish_info import SendTarget
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.remoting.backoff import BackoffError

logger = get_logger(__name__)

SLOW_SECONDS: Final = 0.5  # an answer that takes longer is evidence
LEAST_TIMEOUT: Final = 0.1  # a caller with less patience than this says nothing about the broker
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
RELAPSE_SECONDS: Final = 30.0  # evidence so soon after the last isolation doubles the pause
FIRST_PROBE_SECONDS: Final = 0.1
PROBE_SECONDS: Final = 1.0  # between two probes of a broker
PROBE_TIMEOUT: Final = 0.5


class BrokerFault(msgspec.Struct):
    """What is held against one broker."""

    broker_name: str
    address: str
    queue: MessageQueue  # asked about by probes
    since: float
    until: float
    times: int = 1  # in a row
    cannot_store: bool = False  # probes read, so their success does not end the isolation early
    ended: float = inf  # when it was forgiven

    @property
    def lasts(self) -> bool:
        """Whether it is left out."""
        return self.ended == inf


class LeavesOut(Protocol):
    """What chooses among brokers."""

    def leave_out(self, addresses: frozenset[str]) -> None:
        """Choose none at *addresses*, as long as there are others."""


Probe = Callable[[BrokerFault], Awaitable[object]]


class FaultStrategy:
    """Watches how brokers answer, and tells the choosers whom to leave out.

    Choosing costs nothing here: choosers are told when something changes.

    :param choosers: those that choose, now
    :param probe: asks a broker for something small; whatever it answers will do
    :param start_probing: runs `probe_while_isolated` as a task, once for each call
    :param enabled: False holds nothing against anybody
    """

    def __init__(
        self,
        choosers: Callable[[], Iterable[LeavesOut]],
        probe: Probe,
        start_probing: Callable[[], None],
        *,
        enabled: bool = True,
    ) -> None:
        # A faster answer needs no look; 0 while somebody is left out.
        self.bound = SLOW_SECONDS if enabled else inf
        self.left_out: frozenset[str] = frozenset()  # addresses
        self._choosers = choosers
        self._probe = probe
        self._start_probing = start_probing
        self._probing = False
        self._held: dict[str, BrokerFault] = {}

    def answered(self, target: SendTarget, started: float, now: float) -> None:
        """An attempt begun at *started* was answered, and took longer than `bound`."""
        if now - started > SLOW_SECONDS:
            self._hold(target, started, now, f"answered after {now - started:.3f} s")
            return
        held = self._held.get(target.address)
        if held is not None and held.lasts and started >= held.since:
            self._forgive(held, now, "a send")

    def failed(self, target: SendTarget, cause: RocketMQError, started: float, now: float) -> None:
        """An attempt begun at *started* failed; not everything speaks against the broker."""
        if self.bound < inf and _speaks_against_broker(cause):
            cannot_store = isinstance(cause, BrokerError)
            self._hold(target, started, now, str(cause), cannot_store=cannot_store)

    async def probe_while_isolated(self) -> None:
        """Probe those that are left out, until nobody is."""
        pause = FIRST_PROBE_SECONDS
        try:
            while self.left_out:
                # Not all clients at once: they have isolated it together.
                await anyio.sleep(pause * (0.5 + random() / 2))
                pause = PROBE_SECONDS
                async with anyio.create_task_group() as tasks:
                    for held in [each for each in self._held.values() if each.lasts]:
                        tasks.start_soon(self._probe_one, held)
        finally:
            self._probing = False

    def forget(self, known: set[str]) -> None:
        """Forget whom no route names any more: only *known* addresses can be sent to."""
        self._held = {at: held for at, held in self._held.items() if at in known}
        self._tell()

    # --- inside ---------------------------------------------------------------------------------

    def _hold(
        self,
        target: SendTarget,
        started: float,
        now: float,
        reason: str,
        *,
        cannot_store: bool = False,
    ) -> None:
        held = self._held.get(target.address)
        if held is not None and (held.lasts or started < held.ended):
            return  # known already, or older than what it was forgiven for
        times = 1
        if held is not None and now - held.ended < RELAPSE_SECONDS:
            times = held.times + 1
        until = now + _pause(times)
        self._held[target.address] = BrokerFault(
            target.broker_name, target.address, target.queue, now, until, times, cannot_store
        )
        logger.warning(
            "broker_isolated",
            broker=target.broker_name,
            address=target.address,
            reason=reason,
            seconds=round(until - now, 3),
            times=times,
        )
        self._tell()

    def _forgive(self, held: BrokerFault, now: float, why: str) -> None:
        held.ended = now
        logger.info(
            "broker_restored",
            broker=held.broker_name,
            address=held.address,
            shown_by=why,
            after_seconds=round(now - held.since, 3),
        )
        self._tell()

    def _tell(self) -> None:
        left_out = frozenset(at for at, held in self._held.items() if held.lasts)
        if left_out != self.left_out:
            self.left_out = left_out
            self.bound = 0.0 if left_out else SLOW_SECONDS
            for chooser in self._choosers():
                chooser.leave_out(left_out)
        if left_out and not self._probing:
            self._probing = True
            self._start_probing()

    async def _probe_one(self, held: BrokerFault) -> None:
        alive = await self._is_alive(held)
        now = monotonic()
        if not held.lasts or self._held.get(held.address) is not held:
            return  # settled meanwhile
        # Of one that comes and goes a probe says little: it stays out for its time.
        early = held.times == 1 and not held.cannot_store
        if alive and (early or now >= held.until):
            self._forgive(held, now, "a probe")
        elif not alive and now >= held.until:
            held.times += 1
            held.until = now + _pause(held.times)

    async def _is_alive(self, held: BrokerFault) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self._probe(held)
        except (RocketMQError, TimeoutError):
            return False
        return True


def _pause(times: int) -> float:
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(times - 1, 30))


def _speaks_against_broker(cause: RocketMQError) -> bool:
    if isinstance(cause, RequestTimeoutError):
        return cause.seconds >= LEAST_TIMEOUT
    if isinstance(cause, BrokerError):
        return cause.code == ResponseCode.SERVICE_NOT_AVAILABLE  # its disk is full, for example
    # A busy broker is left alone by backoff: leaving it out would make the others busy.
    transport = isinstance(cause, NotConnectedError | ConnectionLostError)
    return transport and not isinstance(cause, BackoffError)
