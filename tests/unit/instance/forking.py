"""Programs that fork, run as ``python -W error -m tests.unit.instance.forking CASE NAMESRV``.

Each writes lines of JSON; what the tests assert is in `test_fork`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from rocketmq_aio import (
    ClientConfig,
    LitePullConsumer,
    Message,
    MessageTrace,
    MQClientInstance,
    Producer,
    RocketMQError,
)

ORDER = Message("orders", b"hello")
WORKERS = 2


def tell(**said: object) -> None:
    # One write per line: parent and children share the pipe.
    os.write(1, (json.dumps(said) + "\n").encode())


def in_child(work: Callable[[], None]) -> int:
    """Run *work* in a forked process and return its id; the child never returns."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not reach the parent's code
        tell(failed=repr(error))
    finally:
        os._exit(0)


def wait_for(*pids: int) -> None:
    for pid in pids:
        os.waitpid(pid, 0)


def preload(namesrv: str) -> None:
    """Objects made before the fork and started in the children, as with ``gunicorn --preload``."""
    client = MQClientInstance(ClientConfig(namesrv=namesrv))
    producer = Producer("shop", client=client, hooks=[MessageTrace()])
    consumer = LitePullConsumer("billing", namesrv=namesrv)

    async def serve() -> None:
        await consumer.subscribe("orders")
        async with client, producer, consumer:
            result = await producer.send(ORDER)
            tell(
                client=client.client_id,
                consumer=consumer.client.client_id,
                message=result.message_id,
            )
            await asyncio.to_thread(sys.stdin.read)  # until the test has looked at the group

    def work() -> None:
        asyncio.run(serve())

    wait_for(*[in_child(work) for _ in range(WORKERS)])


async def refusals(producer: Producer, consumer: LitePullConsumer) -> list[str]:
    """Return what calls in a child say."""
    return [
        await refusal(producer.send(ORDER)),
        await refusal(producer.send_oneway(ORDER)),
        await refusal(producer.start()),
        await refusal(consumer.poll(timeout_seconds=0.01)),
        await refusal(producer.client.routes.fetch("orders")),
    ]


async def refusal(call: Coroutine[Any, Any, object]) -> str:
    try:
        return f"returned {await call!r}"
    except RocketMQError as error:
        return f"{type(error).__name__}: {error}"


async def started(namesrv: str) -> None:
    """A process that forks while its producer and consumer are running."""
    async with (
        Producer("shop", namesrv=namesrv) as producer,
        LitePullConsumer("billing", client=producer.client) as consumer,
    ):
        await producer.send(ORDER)

        def new_loop() -> None:
            async def use() -> None:
                tell(where="new loop", refusals=await refusals(producer, consumer))
                await producer.close()
                await consumer.close()
                async with Producer("shop", namesrv=namesrv) as own:
                    await own.send(Message("orders", b"child"))
                tell(closed=True)

            asyncio.run(use())

        wait_for(in_child(new_loop))
        await producer.send(ORDER)
        tell(parent=True)


async def same_loop(namesrv: str) -> None:
    """A child that goes on inside the coroutine of its parent, on the loop of its parent."""
    async with Producer("shop", namesrv=namesrv) as producer:
        await producer.send(ORDER)

        def step() -> None:
            try:
                producer.send(Message("orders", b"child")).send(None)
            except RocketMQError as error:
                tell(refusal=f"{type(error).__name__}: {error}")
            else:
                tell(refusal=None)

        wait_for(in_child(step))
        await producer.send(ORDER)


async def writing(namesrv: str) -> None:
    """A child that writes to all connections of its parent, below everything that refuses."""
    async with Producer("shop", namesrv=namesrv) as producer:
        await producer.send(ORDER)
        connections = list(producer.client.remoting._connections.values())
        transports = [each._transport for each in connections]

        def write() -> None:
            for transport in transports:
                assert transport is not None
                transport.write(b"\xff" * 64)
            for connection in connections:
                connection._write(b"\xff" * 64)
            tell(written=len(transports))

        wait_for(in_child(write))
        for _ in range(3):
            await producer.send(ORDER)
        tell(connected=[each.loss for each in connections])


CASES: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
    "started": started,
    "same_loop": same_loop,
    "writing": writing,
}


def main(case: str, loop: str, namesrv: str) -> None:
    if case == "preload":
        preload(namesrv)
        return
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(CASES[case](namesrv))


if __name__ == "__main__":
    main(*sys.argv[1:])
