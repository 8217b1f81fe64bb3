"""Embedded clusters in a thread of their own."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading

import pytest

from rocketmq_aio.embedded import loop_thread
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.loop_thread import LoopThread
from rocketmq_aio.embedded.server import EmbeddedServer
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from tests.fakes.raw_client import RawClient

MAX_OFFSET = GetMaxOffset(topic="orders", queue_id=0)


def send(cluster: EmbeddedCluster, body: bytes) -> bool:
    async def run() -> bool:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            return (await producer.send(Message("orders", body))).ok

    return asyncio.run(run())


def ask(address: str) -> int:
    async def run() -> int:
        async with RawClient(address) as client:
            return (await client.ask(MAX_OFFSET)).code

    return asyncio.run(run())


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if "embedded" in each.name]


def test_a_cluster_in_a_with_block_serves_clients_of_any_loop() -> None:
    with EmbeddedCluster(topics={"orders": 4}) as cluster:
        assert send(cluster, b"one")
        assert threads() == ["rocketmq-embedded"]

        assert [each.body for each in cluster.broker.messages("orders")] == [b"one"]
    assert threads() == []


def test_public_methods_run_in_the_thread_of_the_cluster() -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", 2)
        cluster.create_group("billing")
        cluster.broker.put("orders", b"one")
        cluster.clock.advance(3600)
        fault = cluster.faults.refuse(30, 14)
        refused = ask(cluster.broker.address)
        fault.wait()
        cluster.faults.clear()
        cluster.delete_topic("orders")

        assert refused == 14
        assert "orders" not in cluster.broker.topics


def test_brokers_stop_and_start_without_await() -> None:
    with EmbeddedCluster(topics={"orders": 4}) as cluster:
        address = cluster.broker.address
        cluster.broker.kill()
        with pytest.raises(ConnectionRefusedError):
            ask(address)
        cluster.broker.start()
        first = ask(address)
        cluster.broker.restart()
        cluster.broker.stop()
        cluster.broker.start()

        assert (first, ask(address)) == (0, 0)


async def test_waiting_for_a_fault_does_not_block_the_loop_of_the_client() -> None:
    with EmbeddedCluster(topics={"orders": 4}) as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            held = cluster.faults.hold("send")
            sending = asyncio.create_task(producer.send(Message("orders", b"one")))
            await held.wait()
            held.release()

            assert (await sending).ok
        with pytest.raises(TimeoutError, match=r"waited 0\.1 s for 1 request"):
            await cluster.faults.drop("send").wait(seconds=0.1)


def test_waiting_for_connections_works_from_the_loop_of_the_client() -> None:
    async def run(cluster: EmbeddedCluster) -> bool:
        waiting = asyncio.ensure_future(cluster.broker.wait_for_connections(1, seconds=60))
        await asyncio.sleep(0)
        async with RawClient(cluster.broker.address):
            done, _ = await asyncio.wait([waiting], timeout=10)
        waiting.cancel()
        return bool(done)

    with EmbeddedCluster() as cluster:
        assert asyncio.run(run(cluster))


def test_several_clusters_run_at_once() -> None:
    with EmbeddedCluster(topics={"orders": 4}) as one, EmbeddedCluster() as other:
        assert send(one, b"one")
        assert one.namesrv != other.namesrv
        assert len(threads()) == 2

        assert "orders" not in other.broker.topics


def test_a_start_that_fails_leaves_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster = EmbeddedCluster(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            cluster.__enter__()

    assert threads() == []
    assert not any(server.is_running for server in cluster.servers)


async def test_brokers_use_the_ports_after_that_of_the_name_server_if_they_are_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = EmbeddedCluster(3, port=port - 1)
        assert [each._preferred_port for each in cluster.brokers] == [port, port + 3, port + 6]

        async with EmbeddedServer("5.5.0", preferred_port=port) as server:
            assert server.port != port
    async with EmbeddedServer("5.5.0", preferred_port=port) as server:
        assert server.port == port


def test_an_exception_in_the_thread_is_raised_by_the_caller() -> None:
    thread = LoopThread()
    thread.start()
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    thread.stop()
    with pytest.raises(RuntimeError, match="does not run"):
        thread.run(asyncio.sleep(0))


FORK = """
import os, sys, socket
from rocketmq_aio.embedded import loop_thread
from rocketmq_aio.embedded.cluster import EmbeddedCluster

with EmbeddedCluster() as cluster:
    child = os.fork()
    if not child:
        try:
            cluster.create_topic("orders")
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(3)  # leaves the block
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
    child = os.fork()
    if not child:
        import time
        time.sleep(60)
        os._exit(0)
    cluster.broker.stop()
    try:
        socket.create_connection(("127.0.0.1", cluster.broker.port), 5)
    except ConnectionRefusedError:
        print("refused", flush=True)
    os.kill(child, 9)
    os.waitpid(child, 0)
print("ended")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_forked_child_ends_and_keeps_no_port_open() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.split("\n")[:4] == [
        "the cluster does not run in this process",
        "3",
        "refused",
        "ended",
    ], done


def test_the_cluster_cannot_start_twice_at_once() -> None:
    with EmbeddedCluster() as cluster, pytest.raises(RuntimeError, match="runs already"):
        cluster.__enter__()


def test_a_client_error_is_no_error_of_the_cluster() -> None:
    with EmbeddedCluster(auto_create_topics=False) as cluster, pytest.raises(RocketMQError):
        send(cluster, b"one")


def test_a_wait_may_take_longer_than_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "CALL_SECONDS", 0.05)
    with EmbeddedCluster() as cluster:
        fault = cluster.faults.drop("send")

        with pytest.raises(TimeoutError, match=r"waited 0\.5 s for 1 request"):
            fault.wait(seconds=0.5)


def test_a_call_ends_when_the_thread_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    resume = threading.Event()
    thread = LoopThread()
    thread.start()
    monkeypatch.setattr(loop_thread, "CALL_SECONDS", 0.05)
    try:
        with pytest.raises(TimeoutError, match="does not respond"):
            thread.call(resume.wait, 60)
    finally:
        resume.set()
        monkeypatch.undo()
        thread.stop()


def test_a_thread_that_does_not_end_fails_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, resume = threading.Event(), threading.Event()
    thread = LoopThread()
    thread.start()

    def hang() -> None:
        begun.set()
        resume.wait(60)

    thread.call(lambda: asyncio.get_running_loop().call_later(0.01, hang))
    begun.wait(60)
    [hanging] = [each for each in threading.enumerate() if "embedded" in each.name]
    monkeypatch.setattr(loop_thread, "CALL_SECONDS", 0.05)

    with pytest.raises(TimeoutError, match="thread has not ended"):
        thread.stop()
    resume.set()
    hanging.join()


def test_calls_raise_with_the_exception_that_ended_the_thread() -> None:
    thread = LoopThread()
    thread.start()
    [ending] = [each for each in threading.enumerate() if "embedded" in each.name]
    thread.call(lambda: asyncio.get_running_loop().call_soon(sys.exit, 3))
    ending.join()

    with pytest.raises(RuntimeError, match="an exception has ended the cluster's thread") as caught:
        thread.call(int)
    thread.stop()
    assert isinstance(caught.value.__cause__, SystemExit)


def test_a_loop_that_cannot_be_made_is_an_error_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_descriptors() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    cluster = EmbeddedCluster()
    with monkeypatch.context() as patched:
        patched.setattr("asyncio.events.new_event_loop", without_descriptors)
        patched.setattr("rocketmq_aio.embedded.loop_thread.CALL_SECONDS", 5.0)
        with pytest.raises(OSError, match="Too many open files"):
            cluster.__enter__()

    with cluster:
        assert cluster.thread.elsewhere
