"""``python -m benchmarks.subject.cold TASK NAMESRV TOPIC LOOP``: start, do one thing, say so.

As little as possible is imported beside the client: the time runs from the start of the process.
"""

import asyncio
import sys
import time

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer

BODY = b"a" * 1024


async def send_first(namesrv: str, topic: str) -> None:
    async with Producer("bench-producer", namesrv=namesrv) as producer:
        await producer.send(Message(topic, BODY, tags="TagA"))
        print("FIRST", flush=True)


async def receive_first(namesrv: str, topic: str) -> None:
    config = LitePullConfig(start_from="earliest")
    group = f"bench-cold-{time.time_ns()}"
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        while not await consumer.poll(timeout_seconds=1):
            continue
        print("FIRST", flush=True)


def main(task: str, namesrv: str, topic: str, loop: str) -> None:
    work = send_first if task == "first-send" else receive_first
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work(namesrv, topic))


if __name__ == "__main__":
    main(*sys.argv[1:])
