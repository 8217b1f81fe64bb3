"""A worker that ends well: on SIGTERM or SIGINT it finishes its batch, commits and closes.

python examples/worker.py --namesrv 127.0.0.1:9876 --topic jobs
"""

import argparse
import asyncio
import signal

from rocketmq_aio import CommitError, LitePullConfig, LitePullConsumer, MessageExt

BATCH = 16  # small enough to be finished before whoever sent the signal loses patience


async def work_on(message: MessageExt) -> None:
    await asyncio.sleep(0.01)
    print(f"done {message.body.decode()}", flush=True)


async def commit(consumer: LitePullConsumer) -> None:
    try:
        await consumer.commit()
    except CommitError as error:
        # A queue moved to another member, or its broker is away: these messages come again.
        print(f"not committed: {error}", flush=True)


async def main(namesrv: str | None, topic: str, group: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    config = LitePullConfig(start_from="earliest", auto_commit=False)
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        print("ready", flush=True)
        done = 0
        while not stop.is_set():
            messages = await consumer.poll(timeout_seconds=1, max_messages=BATCH)
            for message in messages:
                await work_on(message)
            if messages:
                await commit(consumer)
                done += len(messages)
    print(f"stopped, {done} done and committed", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="jobs")
    parser.add_argument("--group", default="workers")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic, arguments.group))
