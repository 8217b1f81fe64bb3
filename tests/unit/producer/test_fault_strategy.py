"""Fault strategy: faults, durations, restores."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from rocketmq_aio.errors import (
    BrokerError,
    BusyError,
    CodecError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer import fault_strategy as faults_module
from rocketmq_aio.producer.fault_strategy import BrokerFault, FaultStrategy
from rocketmq_aio.producer.topic_publish_info import SendTarget
from rocketmq_aio.remoting.backoff import BackoffError
from tests.unit.remoting.until import until

A, B = "127.0.0.1:1", "127.0.0.1:2"
LATE = RequestTimeoutError(A, 310, 1.5)
DISK_FULL = BrokerError(14, "service not available now: the broker's disk is full", A)
NOW = 1000.0


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_module, "FIRST_PROBE_SECONDS", 0.001)
    monkeypatch.setattr(faults_module, "PROBE_SECONDS", 0.001)


def target(address: str = A) -> SendTarget:
    queue = MessageQueue("orders", f"broker-{address[-1]}", 0)
    return cast(
        SendTarget, SimpleNamespace(address=address, broker_name=queue.broker_name, queue=queue)
    )


class Watch:
    """A fault strategy with recorded exclusions, and probes that a test answers."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.excluded_calls: list[frozenset[str]] = []
        self.probed: list[str] = []
        self.alive: set[str] = set()
        self.starts = 0
        self.faults = FaultStrategy(
            self.excluded_calls.append, self._probe, self._start, enabled=enabled
        )

    async def _probe(self, held: BrokerFault) -> None:
        self.probed.append(held.address)
        if held.address not in self.alive:
            raise NotConnectedError(held.address, "refused")

    def _start(self) -> None:
        self.starts += 1

    def fail(self, cause: RocketMQError = LATE, *, at: float = NOW, address: str = A) -> None:
        self.faults.on_failure(target(address), cause, at - 1, at)

    def answer(self, seconds: float = 0.01, *, at: float = NOW, address: str = A) -> None:
        self.faults.on_response(target(address), at - seconds, at)

    @property
    def excluded(self) -> set[str]:
        return set(self.faults.excluded)

    def until(self, address: str = A) -> float:
        return self.faults._faults[address].until


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the probes."""
    now = [NOW]
    monkeypatch.setattr(faults_module, "monotonic", lambda: now[0])
    return now


# --- evidence ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "held"),
    [
        (LATE, True),
        (RequestTimeoutError(A, 310, 0.05), False),  # the caller had no patience
        (NotConnectedError(A, "refused"), True),
        (BackoffError(A, "left alone"), False),  # nothing was sent
        (ConnectionLostError(A, 310, "reset"), True),
        (BusyError(2, "busy", A), False),
        (DISK_FULL, True),
        (BrokerError(13, "illegal", A), False),
        (CodecError("msgId", 0, "missing"), False),
    ],
)
def test_causes_that_exclude_a_broker(watch: Watch, cause: RocketMQError, held: bool) -> None:
    watch.fail(cause)

    assert watch.excluded == ({A} if held else set())
    assert watch.starts == int(held)


@pytest.mark.parametrize(("seconds", "held"), [(0.4, False), (0.6, True)])
def test_a_slow_response_excludes_a_broker(watch: Watch, seconds: float, held: bool) -> None:
    watch.answer(seconds)

    assert watch.excluded == ({A} if held else set())


def test_disabled_it_excludes_no_broker() -> None:
    watch = Watch(enabled=False)
    watch.faults.forget({A})  # a route has changed
    watch.fail()

    assert watch.faults.bound == float("inf")
    assert watch.excluded == set()


def test_concurrent_failures_are_one_exclusion(watch: Watch) -> None:
    for _ in range(64):
        watch.fail()

    assert watch.until() == NOW + 1.0
    assert watch.starts == 1
    assert watch.excluded_calls == [{A}]


def test_exclude_is_called_with_every_change(watch: Watch) -> None:
    watch.fail()
    watch.fail(at=NOW + 1, address=B)
    watch.answer(at=NOW + 2)

    assert watch.excluded_calls == [{A}, {A, B}, {B}]


def test_exclusions_are_logged_with_their_reason(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rocketmq_aio")
    watch.fail()
    watch.answer(at=NOW + 0.5)

    first, second = caplog.messages
    assert "event='broker_isolated' broker='broker-1'" in first
    assert "no response to request 310 within 1.5 s" in first
    assert "seconds=1.0 times=1" in first
    assert "event='broker_restored'" in second
    assert "shown_by='a send' after_seconds=0.5" in second


def test_a_restore_is_logged_once(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rocketmq_aio")
    watch.fail()
    watch.fail(address=B)
    for second in range(1, 4):  # all responses are recorded while the other one is excluded
        watch.answer(at=NOW + second)

    assert watch.excluded == {B}
    assert sum("broker_restored" in each for each in caplog.messages) == 1


# --- how long ------------------------------------------------------------------------------------


def test_a_repeated_fault_doubles_the_exclusion(watch: Watch) -> None:
    lengths = []
    for number in range(7):
        now = NOW + 10 * number
        watch.fail(at=now)
        lengths.append(watch.until() - now)
        watch.answer(at=now + 2)

    assert lengths == [1, 2, 4, 8, 16, 30, 30]


def test_the_exclusion_time_is_reset_after_a_while(watch: Watch) -> None:
    watch.fail()
    watch.answer(at=NOW + 2)
    watch.fail(at=NOW + 40)

    assert watch.until() == NOW + 41


def test_a_failure_begun_before_the_restore_is_ignored(watch: Watch) -> None:
    watch.fail()
    watch.answer(at=NOW + 2)
    watch.faults.on_failure(target(), LATE, NOW + 1, NOW + 2.5)

    assert watch.excluded == set()


def test_while_a_broker_is_excluded_every_response_is_recorded(watch: Watch) -> None:
    bounds = [watch.faults.bound]
    watch.fail()
    bounds.append(watch.faults.bound)
    watch.answer(at=NOW + 2)
    bounds.append(watch.faults.bound)

    assert bounds == [0.5, 0.0, 0.5]


def test_a_response_begun_before_the_exclusion_does_not_restore(watch: Watch) -> None:
    watch.fail()
    watch.faults.on_response(target(), NOW - 0.1, NOW + 0.1)

    assert watch.excluded == {A}


def test_brokers_outside_all_routes_are_dropped(watch: Watch) -> None:
    watch.fail()
    watch.fail(address=B)
    watch.faults.forget({B})

    assert watch.excluded == {B}
    assert watch.excluded_calls[-1] == {B}


# --- probes --------------------------------------------------------------------------------------


async def test_a_successful_probe_ends_a_first_exclusion(watch: Watch, clock: list[float]) -> None:
    watch.fail()
    watch.alive = {A}
    await watch.faults.probe_while_excluded()

    assert watch.probed == [A]
    assert watch.excluded == set()


async def test_a_long_outage_ends_with_the_first_successful_probe(
    watch: Watch, clock: list[float]
) -> None:
    watch.fail()
    probing = asyncio.create_task(watch.faults.probe_while_excluded())
    for second in range(1, 60):
        clock[0] = NOW + second
        watch.probed.clear()
        await until(lambda: bool(watch.probed))
        assert watch.excluded == {A}
    watch.alive = {A}
    await until(lambda: not watch.excluded)
    await probing


def flap(watch: Watch) -> None:
    """Fail, respond, and fail again soon afterwards."""
    watch.fail()
    watch.answer(at=NOW + 0.1)
    watch.fail(at=NOW + 2)


async def test_a_flapping_broker_stays_excluded_for_its_time(
    watch: Watch, clock: list[float]
) -> None:
    flap(watch)
    watch.alive = {A}
    clock[0] = NOW + 3
    probing = asyncio.create_task(watch.faults.probe_while_excluded())
    await until(lambda: len(watch.probed) >= 3)
    assert watch.excluded == {A}
    clock[0] = NOW + 4
    await probing

    assert watch.excluded == set()


async def test_a_flapping_broker_stays_excluded_for_its_time_after_a_failed_probe(
    watch: Watch, clock: list[float]
) -> None:
    flap(watch)
    clock[0] = NOW + 10
    probing = asyncio.create_task(watch.faults.probe_while_excluded())
    await until(lambda: len(watch.probed) >= 2)
    watch.alive = {A}
    await until(lambda: len(watch.probed) >= 5)
    assert watch.excluded == {A}
    clock[0] = NOW + 12
    await probing

    assert watch.excluded == set()


async def test_a_broker_that_cannot_store_stays_excluded_despite_probes(
    watch: Watch, clock: list[float]
) -> None:
    watch.fail(DISK_FULL)
    watch.alive = {A}
    probing = asyncio.create_task(watch.faults.probe_while_excluded())
    await until(lambda: len(watch.probed) >= 3)
    assert watch.excluded == {A}
    clock[0] = NOW + 1
    await probing
    assert watch.excluded == set()
    watch.fail(DISK_FULL, at=NOW + 2)

    assert watch.until() == NOW + 4  # a relapse doubles its time


def test_after_close_no_broker_is_excluded(watch: Watch) -> None:
    watch.fail()
    watch.faults.close()
    watch.fail(at=NOW + 2)

    assert watch.excluded_calls == [{A}, set()]
    assert watch.starts == 1


def test_one_task_probes_all_brokers(watch: Watch) -> None:
    watch.faults.forget({A, B})  # a route has changed
    assert watch.starts == 0
    watch.fail()
    watch.fail(address=B)

    assert watch.starts == 1


async def test_probing_restarts_with_the_next_fault(watch: Watch, clock: list[float]) -> None:
    watch.alive = {A}
    for number in range(3):
        watch.fail(at=NOW + 100 * number)
        clock[0] = NOW + 100 * number + 50
        await watch.faults.probe_while_excluded()

    assert watch.starts == 3
    assert watch.excluded == set()


async def test_a_probe_that_outlasts_the_exclusion_does_not_move_its_end(
    watch: Watch, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe(held: BrokerFault) -> None:
        watch.faults.on_response(target(), NOW + 1, NOW + 1.1)  # of a send, which restores
        clock[0] = NOW + 1.4

    monkeypatch.setattr(watch.faults, "_probe", probe)
    watch.fail()
    await watch.faults.probe_while_excluded()
    assert watch.excluded == set()
    watch.faults.on_failure(target(), LATE, NOW + 1.2, NOW + 1.7)

    assert watch.excluded == {A}


async def test_brokers_dropped_before_their_probe_are_not_probed() -> None:
    probed = []

    async def probe(fault: BrokerFault) -> None:
        probed.append(fault.address)
        faults.forget(set())

    faults = FaultStrategy(lambda _: None, probe, lambda: None)
    for address in (A, B):
        faults.on_failure(target(address), LATE, NOW - 1, NOW)
    await faults.probe_while_excluded()

    assert len(probed) == 1


async def test_a_probe_that_times_out_is_a_failure(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults_module, "PROBE_TIMEOUT", 0.001)
    hanging = asyncio.Event()
    probes = 0

    async def probe(_held: BrokerFault) -> None:
        nonlocal probes
        probes += 1
        if probes < 3:
            await hanging.wait()

    faults = FaultStrategy(lambda _: None, probe, lambda: None)
    faults.on_failure(target(), LATE, NOW - 1, NOW)
    await faults.probe_while_excluded()

    assert probes == 3
