"""Share work among tasks with a PopConsumer: retries and dead letters, without assigned queues.

python examples/pop.py --namesrv 127.0.0.1:9876 (RocketMQ 5)
"""

import argparse
import asyncio

from rocketmq_aio import Message, PopConfig, PopConsumer, Producer

JOBS = 20
WORKERS = 4
FAILING_JOB = b"job 13"  # always fails


async def send_jobs(namesrv: str | None, topic: str) -> None:
    async with Producer("pop-producer", namesrv=namesrv) as producer:
        for number in range(JOBS):
            await producer.send(Message(topic, f"job {number}".encode()))


async def work(name: int, consumer: PopConsumer, ended: asyncio.Queue[bytes]) -> None:
    async for message in consumer:  # the next iteration acknowledges
        if message.body == FAILING_JOB:
            print(
                f"worker {name}: {FAILING_JOB.decode()} failed, try {message.reconsume_times + 1}"
            )
            await consumer.retry(message, delay_seconds=1)
            continue
        print(f"worker {name}: {message.body.decode()} done")
        ended.put_nowait(message.body)


async def main(namesrv: str | None, topic: str) -> None:
    await send_jobs(namesrv, topic)
    config = PopConfig(start_from="earliest", max_reconsume_times=1)
    ended: asyncio.Queue[bytes] = asyncio.Queue()
    async with (
        asyncio.TaskGroup() as tasks,
        PopConsumer("pop", namesrv=namesrv, config=config) as c,
    ):
        events = c.events()
        await c.subscribe(topic)
        for name in range(WORKERS):
            tasks.create_task(work(name, c, ended))
        for _ in range(JOBS - 1):
            await ended.get()
        dead = await anext(events)
        print(f"the last one: {dead}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="jobs")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic))
