"""Worker that stops cleanly: on SIGTERM or SIGINT it finishes running handlers and commits.

python examples/worker.py --namesrv 127.0.0.1:9876 --topic jobs
"""

import argparse
import asyncio

from rocketmq_aio import MessageExt, PushConfig, PushConsumer

CLOSE_TIMEOUT_SECONDS = (
    20.0  # for running handlers; less than the stop timeout of the process manager
)


class Worker:
    def __init__(self) -> None:
        self.done = 0

    async def work_on(self, message: MessageExt) -> None:
        await asyncio.sleep(0.01)
        self.done += 1
        print(f"done {message.body.decode()}", flush=True)


async def main(namesrv: str | None, topic: str, group: str) -> None:
    worker = Worker()
    config = PushConfig(
        start_from="earliest", concurrency=4, close_timeout_seconds=CLOSE_TIMEOUT_SECONDS
    )
    consumer = PushConsumer(group, on_message=worker.work_on, namesrv=namesrv, config=config)
    await consumer.subscribe(topic)
    await consumer.run()  # starts, and returns after a signal when all is committed
    print(f"stopped, {worker.done} done and committed", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="jobs")
    parser.add_argument("--group", default="workers")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic, arguments.group))
