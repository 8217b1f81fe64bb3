"""Compression pool."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import ClosedError, SendError, SendUnknownError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer import send_request as outgoing
from rocketmq_aio.producer.compression import CompressionPool
from rocketmq_aio.protocol import compression
from rocketmq_aio.protocol.compression import inflate
from tests.unit.producer.producer_env import ProducerEnv, open_producer
from tests.unit.producer.test_send_request import made

LARGE = b"orders and payments " * 5000


class Held:
    """Stands for a compression that takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.thread = ""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held, real = Held(), compression.compress

    def compress(body: bytes, kind: str, level: int) -> bytes:
        held.thread = threading.current_thread().name
        held.begun.set()
        assert held.go_on.wait(10)
        return real(body, kind, level)

    monkeypatch.setattr(outgoing, "compress", compress)
    return held


async def test_compression_does_not_block_other_sends(held: Held, env: ProducerEnv) -> None:
    large = asyncio.ensure_future(env.producer.send(Message("orders", LARGE)))
    await asyncio.to_thread(held.begun.wait, 10)
    await env.producer.send(Message("orders", b"small"))

    assert not large.done()
    assert held.thread.startswith("rocketmq-compress")

    held.go_on.set()
    await large
    (packed,) = (each for each in env.bodies() if each != b"small")
    *_, header = env.sends()

    assert inflate(packed, header.sys_flag) == LARGE


async def test_a_send_cancelled_during_compression_is_not_sent(
    held: Held, env: ProducerEnv
) -> None:
    large = asyncio.ensure_future(env.producer.send(Message("orders", LARGE)))
    await asyncio.to_thread(held.begun.wait, 10)
    large.cancel()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await large
    await env.producer.send(Message("orders", b"small"))

    assert env.bodies() == [b"small"]


@pytest.mark.parametrize("oneway", [False, True])
async def test_a_send_that_is_compressed_at_its_deadline_is_not_sent(
    oneway: bool, held: Held
) -> None:
    """Bodies before it can take all the time that it has."""
    config = ProducerConfig(send_timeout_seconds=0.2)
    async with open_producer(config=config) as env:
        send = env.producer.send_oneway if oneway else env.producer.send
        with pytest.raises(SendError, match="compression took all the time") as failed:
            await asyncio.wait_for(send(Message("orders", LARGE)), 10)
        held.go_on.set()
        await env.producer.send(Message("orders", b"small"), timeout_seconds=15)

        assert not isinstance(failed.value, SendUnknownError)
        assert env.bodies() == [b"small"]
        assert env.producer._in_flight.bytes == 0


async def test_the_threads_end_with_the_producer() -> None:
    async with open_producer() as env:
        for _ in range(2):
            await env.producer.send(Message("orders", LARGE), timeout_seconds=10)
        threads = _threads()
        assert threads
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


async def test_a_compression_error_is_raised_by_its_send(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compression.compress

    def compress(body: bytes, kind: str, level: int) -> bytes:
        if body.startswith(b"bad"):
            raise MemoryError
        return real(body, kind, level)

    monkeypatch.setattr(outgoing, "compress", compress)
    async with open_producer() as env:
        bodies = [b"bad" + LARGE, LARGE] * 4
        sends = [env.producer.send(Message("orders", body)) for body in bodies]
        ended = await asyncio.gather(*sends, return_exceptions=True)

        assert [type(each) for each in ended] == [MemoryError, SendResult] * 4
        assert len(env.bodies()) == 4


async def test_a_result_after_the_loop_was_closed_is_ignored(
    held: Held, recwarn: pytest.WarningsRecorder
) -> None:
    pool = CompressionPool()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        pool.compress(made(Message("orders", LARGE)))

    def run_and_close() -> None:
        loop.run_until_complete(begin())
        held.begun.wait(10)
        loop.close()

    await asyncio.to_thread(run_and_close)
    threads = _threads()
    held.go_on.set()
    pool.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)

    assert not any(thread.is_alive() for thread in threads)
    assert not recwarn.list


async def test_with_auto_batch_a_compression_that_fails_does_not_end_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compress(body: bytes, kind: str, level: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr(outgoing, "compress", compress)
    async with open_producer(config=ProducerConfig(auto_batch=AutoBatch())) as env:
        with pytest.raises(MemoryError):
            await env.producer.send(Message("orders", LARGE), queue=env.queue())
        await env.producer.send(Message("orders", b"small"), queue=env.queue())

        assert env.bodies() == [b"small"]


class NoThreads:
    """Stands for a system that starts no more threads than allowed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: int = 0) -> None:
        self.allowed = allowed
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if thread.name.startswith("rocketmq-compress"):
                if not self.allowed:
                    raise RuntimeError("can't start new thread")
                self.allowed -= 1
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


async def test_without_threads_a_body_is_sent_uncompressed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads = NoThreads(monkeypatch)
    async with open_producer() as env:
        for _ in range(2):
            await env.producer.send(Message("orders", LARGE))
        assert env.bodies() == [LARGE, LARGE]
        assert caplog.text.count("compression_without_threads") == 1

        threads.allowed = 1
        await env.producer.send(Message("orders", LARGE))
        packed = min(env.bodies(), key=len)
        *_, header = env.sends()
        assert len(packed) < len(LARGE)
        assert inflate(packed, header.sys_flag) == LARGE


async def test_one_thread_is_enough_when_no_more_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    NoThreads(monkeypatch, allowed=1)
    async with open_producer() as env:
        sends = [env.producer.send(Message("orders", LARGE)) for _ in range(8)]
        await asyncio.gather(*sends)

        assert len(_threads()) == 1
        assert all(len(body) < len(LARGE) for body in env.bodies())


async def test_the_result_of_a_cancelled_send_does_not_keep_those_of_others() -> None:
    pool, loop = CompressionPool(), asyncio.get_running_loop()
    cancelled, other = loop.create_future(), loop.create_future()
    cancelled.cancel()
    pool._done.extend([(cancelled, None), (other, None)])
    pool._set_results()

    assert other.done()


async def test_a_closed_pool_starts_no_threads() -> None:
    before = _threads()  # those of closed pools may still be ending
    pool = CompressionPool()
    pool.close()
    with pytest.raises(ClosedError):
        pool.compress(made(Message("orders", LARGE)))

    assert set(_threads()) <= set(before)


def _threads() -> list[threading.Thread]:
    named = [each for each in threading.enumerate() if each.name.startswith("rocketmq-compress")]
    return [each for each in named if each.is_alive()]
