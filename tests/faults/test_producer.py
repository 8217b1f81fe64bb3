"""Sends under faults: confirmed messages are stored, and the producer recovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.notifier import WAIT_SECONDS
from rocketmq_aio.errors import RocketMQError, SendError, SendUnknownError
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.frame_rules import corrupt
from tests.fakes.proxy import FaultProxy
from tests.fakes.stopwatch import Stopwatch
from tests.history import Fault, History, Outcome, Recorder, Sent, check
from tests.history.recording import record_call, stored_log, watch, wire_attempts
from tests.patience import PATIENCE_SECONDS
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.until import until

SEND = RequestCode.SEND_MESSAGE_V2
SENDERS = 8
BRIEF = 2.0  # timeout in seconds of sends without a response
HALF_FOR_ANOTHER = 6.0  # the first attempt ends after half of it; the rest suffices when busy


@dataclass
class Run:
    """A producer with brokers behind proxies, and a record of its sends."""

    cluster: FakeCluster
    proxies: list[FaultProxy]
    producer: Producer
    history: History
    sent: int = 0
    stopped: bool = False

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in self.ended())

    def ended(self) -> list[Sent]:
        """Return the sends that are over."""
        return [each for each in self.history.sends if each.ended is not None]

    async def keep_sending(self, name: str, timeout: float) -> None:
        """Send messages sequentially until stopped."""
        while not self.stopped:
            self.sent += 1
            body = f"{name}/{self.sent}".encode()
            call = self.producer.send(Message("orders", body), timeout_seconds=timeout)
            try:
                await record_call(self.history, "send", timeout, call)
            except RocketMQError:
                await asyncio.sleep(0.005)
            else:
                self.history.work.append(asyncio.get_running_loop().time())

    async def until_ok(self, more: int, seconds: float = WAIT_SECONDS) -> None:
        """Wait until *more* further sends have succeeded."""
        target = self.count(Outcome.OK) + more
        await until(lambda: self.count(Outcome.OK) >= target, f"{more} more sends", seconds)

    def finish(self) -> None:
        self.history.log = stored_log("orders", *self.cluster.brokers)
        self.history.attempts = wire_attempts(*self.cluster.brokers)


@asynccontextmanager
async def sending(
    brokers: int = 1,
    *,
    producer: ProducerConfig | None = None,
    max_seconds: float = PATIENCE_SECONDS,
) -> AsyncIterator[Run]:
    """Send from several tasks during the block; then check all guarantees.

    :param max_seconds: timeout of each send
    """
    async with nothing_left(), AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(FakeCluster(brokers, topics={"orders": 4}))
        proxies = [
            await stack.enter_async_context(FaultProxy(each.address)) for each in cluster.brokers
        ]
        ways = {proxy.target: proxy.address for proxy in proxies}
        config = ClientConfig(
            namesrv=cluster.namesrv, address_mapper=lambda address: ways.get(address, address)
        )
        recorder = Recorder()
        made = recorder.producer("shop", client=config, config=producer)
        run = Run(cluster, proxies, made, recorder.history)
        with watch(run.history):
            async with made:
                senders = [
                    asyncio.create_task(run.keep_sending(f"task-{n}", max_seconds))
                    for n in range(SENDERS)
                ]
                await run.until_ok(50)
                yield run
                run.stopped = True
                await asyncio.gather(*senders)
                assert made._in_flight.count == 0
            for proxy in proxies:
                await proxy.wait_for_connections(0)
        run.finish()
        assert check(run.history) == []


# --- connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
async def test_cut_connections_fail_no_send(reset: bool) -> None:
    async with sending(brokers=2) as run:
        for _ in range(10):
            for proxy in run.proxies:
                proxy.cut(reset=reset)
            await run.until_ok(20)

        assert run.count(Outcome.FAIL) == 0


async def test_an_unreachable_broker_fails_no_send() -> None:
    async with sending(brokers=2) as run:
        run.proxies[0].refuse()
        run.proxies[0].cut()
        await run.until_ok(200)
        await run.proxies[0].accept()
        await run.until_ok(100)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_the_only_broker_restarts() -> None:
    async with sending(max_seconds=BRIEF) as run:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await run.cluster.broker.stop()
        await until(lambda: run.count(Outcome.UNKNOWN) >= SENDERS, "sends to fail")
        await run.cluster.broker.start()
        healed = loop.time()
        await run.until_ok(50)
        run.history.fault = Fault(started=started, healed=healed, observed=True)


async def test_a_hanging_broker_is_avoided() -> None:
    async with sending(brokers=2, max_seconds=HALF_FOR_ANOTHER) as run:
        before = run.count(Outcome.OK)
        run.proxies[0].stall()
        await run.until_ok(20)
        run.proxies[0].flow()
        await run.until_ok(50)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0
        assert run.count(Outcome.OK) > before


# --- frames --------------------------------------------------------------------------------------


async def test_lost_responses_make_copies_with_one_id() -> None:
    async with sending(brokers=2, max_seconds=BRIEF) as run:
        for broker in run.cluster.brokers:
            broker.faults.drop("send", broker=broker.name, times=3)
        await run.until_ok(100)

        assert run.count(Outcome.FAIL) == 0
        stored = run.cluster.brokers
        assert sum(len(each.messages("orders")) for each in stored) > run.count(Outcome.OK)


async def test_duplicate_responses_count_once() -> None:
    async with sending() as run:
        run.cluster.faults.duplicate("send", times=50)
        await run.until_ok(100)

        assert run.count(Outcome.OK) == len(run.ended())


@pytest.mark.parametrize("at", [0, 4, 5, 9, 40])
async def test_damaged_responses_end_the_connection(at: int) -> None:
    async with sending(max_seconds=BRIEF) as run:
        for _ in range(3):
            run.proxies[0].down.on(corrupt(at), code=SEND)
            await run.until_ok(20)

        assert run.count(Outcome.FAIL) == 0


async def test_truncated_responses_end_in_a_timeout_or_a_new_connection() -> None:
    async with sending(max_seconds=BRIEF) as run:
        run.cluster.faults.truncate("send", close=False)
        await run.until_ok(100)


async def test_connections_cut_in_mid_frame() -> None:
    async with sending() as run:
        for direction in (run.proxies[0].up, run.proxies[0].down):
            for byte in (0, 1, 3, 4, 7, 8, 9, 30, 100):
                direction.cut(frame=2, byte=byte, reset=bool(byte % 2))
                run.proxies[0].cut()
                await run.until_ok(10)


@pytest.mark.parametrize("code", [1, 2, 14, 215])
async def test_retryable_errors_under_load_fail_no_send(code: int) -> None:
    async with sending(brokers=2) as run:
        run.cluster.faults.refuse("send", code, broker="broker-a", times=20)
        await run.until_ok(100)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_go_away_reconnects() -> None:
    async with sending() as run:
        for _ in range(3):
            run.cluster.faults.refuse("send", ResponseCode.GO_AWAY, executed=True)
            await run.until_ok(30)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0
        assert len(run.proxies[0].connects) >= 4


# --- slow connections ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7])
async def test_slow_bytes_change_no_result(size: int) -> None:
    async with sending() as run:
        run.proxies[0].up.slice_bytes = run.proxies[0].down.slice_bytes = size
        await run.until_ok(50, seconds=60.0)
        run.proxies[0].up.off()
        run.proxies[0].down.off()

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_a_delay_of_200_ms_causes_no_false_timeouts() -> None:
    async with sending() as run:
        run.proxies[0].up.delay_seconds = run.proxies[0].down.delay_seconds = 0.2
        await run.until_ok(30)
        run.proxies[0].up.off()
        run.proxies[0].down.off()

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_a_silent_cut_ends_every_call_in_time() -> None:
    async with sending(max_seconds=BRIEF) as run:
        loop = asyncio.get_running_loop()
        started = loop.time()
        run.proxies[0].stall()
        await until(lambda: run.count(Outcome.UNKNOWN) >= SENDERS, "sends to time out")
        run.proxies[0].flow()
        healed = loop.time()
        await run.until_ok(50)
        run.history.fault = Fault(started=started, healed=healed, observed=True)


# --- cancellation --------------------------------------------------------------------------------


async def test_cancelled_sends_under_faults_leak_nothing() -> None:
    async with sending(brokers=2) as run:
        for number in range(60):
            victims = [
                asyncio.create_task(
                    run.producer.send(Message("orders", b"victim-%d-%d" % (number, which)))
                )
                for which in range(10)
            ]
            for _ in range(number % 15):
                await asyncio.sleep(0)
            if number % 10 == 0:
                run.proxies[number % 2].cut(reset=True)
            for victim in victims:
                victim.cancel()
            await asyncio.wait(victims)
        await run.until_ok(100)


async def test_close_under_load_ends_all_sends_in_time() -> None:
    async with (
        nothing_left(),
        FakeCluster(topics={"orders": 4}) as cluster,
        FaultProxy(cluster.broker.address) as proxy,
    ):
        config = ClientConfig(
            namesrv=cluster.namesrv,
            address_mapper=proxy.map_address,
            request_timeout_seconds=0.5,  # of the unregister request, which gets no response either
        )
        producer = Producer("shop", client=config)
        await producer.start()
        message = Message("orders", b"x")
        await producer.send(message)
        proxy.stall()
        pending = [
            asyncio.create_task(producer.send(message, timeout_seconds=0.5)) for _ in range(50)
        ]
        await asyncio.sleep(0)
        with Stopwatch() as passed:
            await producer.close()
        assert passed.seconds < 3

        assert all(each.done() for each in pending)
        assert {type(each.exception()) for each in pending} <= {SendError, SendUnknownError}
        proxy.flow()
