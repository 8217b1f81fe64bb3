"""Fault strategy: excludes failing brokers from queue selection.

A broker with a timed-out request, a failed or lost connection or a slow response gets no
round-robin sends until a probe or a send succeeds.  A broker that reports that it cannot store
messages stays excluded for its time, whatever probes return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from random import random
from time import monotonic
from typing import Final

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
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

SLOW_SECONDS: Final = 0.5  # a slower response is a fault
LEAST_TIMEOUT: Final = 0.1  # a shorter timeout proves nothing about the broker
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
RELAPSE_SECONDS: Final = 30.0  # a fault this soon after the last one doubles the exclusion
FIRST_PROBE_SECONDS: Final = 0.1
PROBE_SECONDS: Final = 1.0  # between two probes of a broker
PROBE_TIMEOUT: Final = 0.5
MAX_DOUBLINGS: Final = 30


class BrokerFault(msgspec.Struct):
    """The current or last exclusion of one broker."""

    broker_name: str
    address: str
    queue: MessageQueue  # probes request its offset
    since: float
    until: float
    times: int = 1  # in a row
    cannot_store: bool = False  # probes only read: their success does not end it early
    ended: float = inf

    @property
    def is_active(self) -> bool:
        return self.ended == inf


Probe = Callable[[BrokerFault], Awaitable[object]]


class FaultStrategy:
    """Records how brokers respond; calls *exclude* when the excluded addresses change.

    :param exclude: takes the addresses of all excluded brokers
    :param probe: sends a small request; any response counts as success
    :param start_probing: runs `probe_while_excluded` as a task, once for each call
    :param enabled: False excludes no broker
    """

    def __init__(
        self,
        exclude: Callable[[frozenset[str]], None],
        probe: Probe,
        start_probing: Callable[[], None],
        *,
        enabled: bool = True,
    ) -> None:
        # A response within it need not be recorded; 0 while a broker is excluded.
        self.bound = SLOW_SECONDS if enabled else inf
        self.excluded: frozenset[str] = frozenset()  # addresses
        self._exclude = exclude
        self._probe = probe
        self._start_probing = start_probing
        self._probing = False
        self._faults: dict[str, BrokerFault] = {}

    def on_response(self, target: SendTarget, started: float, now: float) -> None:
        """Record a response to an attempt begun at *started*, which took longer than `bound`."""
        if now - started > SLOW_SECONDS:
            self._fault(target, started, now, f"responded after {now - started:.3f} s", False)
            return
        fault = self._faults.get(target.address)
        if fault is not None and fault.is_active and started >= fault.since:
            self._restore(fault, now, "a send")

    def on_failure(
        self, target: SendTarget, cause: RocketMQError, started: float, now: float
    ) -> None:
        """Record that an attempt begun at *started* failed."""
        if self.bound < inf and _is_fault(cause):
            self._fault(target, started, now, str(cause), isinstance(cause, BrokerError))

    async def probe_while_excluded(self) -> None:
        pause = FIRST_PROBE_SECONDS
        try:
            while self.excluded:
                # Jitter: many clients excluded the broker at the same time.
                await anyio.sleep(pause * (0.5 + random() / 2))
                pause = PROBE_SECONDS
                await gather_limited(self._probe_one, self.excluded)
        finally:
            self._probing = False

    def forget(self, known: set[str]) -> None:
        """Drop the faults of all brokers but those at *known* addresses."""
        self._faults = {at: fault for at, fault in self._faults.items() if at in known}
        self._update()

    def close(self) -> None:
        """Exclude no broker from now on, and probe none."""
        self.forget(set())
        self.bound = inf

    def _fault(
        self, target: SendTarget, started: float, now: float, reason: str, cannot_store: bool
    ) -> None:
        fault = self._faults.get(target.address)
        if fault is not None and (fault.is_active or started < fault.ended):
            return  # excluded already, or the attempt began before the last exclusion ended
        times = 1
        if fault is not None and now - fault.ended < RELAPSE_SECONDS:
            times = fault.times + 1
        until = now + _pause(times)
        self._faults[target.address] = BrokerFault(
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
        self._update()

    def _restore(self, fault: BrokerFault, now: float, shown_by: str) -> None:
        fault.ended = now
        logger.info(
            "broker_restored",
            broker=fault.broker_name,
            address=fault.address,
            shown_by=shown_by,
            after_seconds=round(now - fault.since, 3),
        )
        self._update()

    def _update(self) -> None:
        excluded = frozenset(at for at, fault in self._faults.items() if fault.is_active)
        if excluded != self.excluded:
            self.excluded = excluded
            self.bound = 0.0 if excluded else SLOW_SECONDS
            self._exclude(excluded)
        if excluded and not self._probing:
            self._probing = True
            self._start_probing()

    async def _probe_one(self, address: str) -> None:
        fault, alive = self._faults.get(address), True
        if fault is None:
            return
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self._probe(fault)
        except (RocketMQError, TimeoutError):
            alive = False
        now = monotonic()
        if not fault.is_active or self._faults.get(address) is not fault:
            return  # restored or dropped in the meantime
        # After repeated faults one probe proves little: the broker stays excluded for its time.
        early = fault.times == 1 and not fault.cannot_store
        if alive and (early or now >= fault.until):
            self._restore(fault, now, "a probe")
        elif not alive and now >= fault.until:
            # The same outage, however long it is: only a relapse counts as another fault.
            fault.until = now + _pause(fault.times)


def _pause(times: int) -> float:
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(times - 1, MAX_DOUBLINGS))


def _is_fault(cause: RocketMQError) -> bool:
    if isinstance(cause, RequestTimeoutError):
        return cause.seconds >= LEAST_TIMEOUT
    if isinstance(cause, BrokerError):
        return cause.code == ResponseCode.SERVICE_NOT_AVAILABLE  # its disk is full, for example
    # Backoff spares a busy broker: excluding it would overload the others.
    transport = isinstance(cause, NotConnectedError | ConnectionLostError)
    return transport and not isinstance(cause, BackoffError)
