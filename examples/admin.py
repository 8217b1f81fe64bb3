"""Create a topic and a group, show the lag of the group, reset its offsets, delete both.

    python examples/admin.py --namesrv 127.0.0.1:9876

It deletes all that it creates, so it can be run repeatedly.
"""

import argparse
import asyncio
import json

from rocketmq_aio import AdminClient, LitePullConfig, LitePullConsumer, Message, Producer

COUNT = 20


async def produce(namesrv: str, topic: str) -> str:
    """Send some orders; return the id of the last one."""
    async with Producer("admin-example-producer", namesrv=namesrv) as producer:
        orders = [Message(topic, b"order %d" % n, keys=str(n)) for n in range(COUNT)]
        results = [await producer.send(order) for order in orders]
    return results[-1].offset_message_id


async def consume_half(namesrv: str, topic: str, group: str) -> None:
    config = LitePullConfig(start_from="earliest", auto_commit=False, pull_batch_size=1)
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        seen = 0
        while seen < COUNT // 2:
            seen += len(await consumer.poll(max_messages=1))
            await consumer.commit()


async def main(namesrv: str | None, topic: str, group: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        address = admin.client.config.namesrv or ""
        for broker in await admin.broker_stats():
            print(f"{broker.broker_name} at {broker.address} is {broker.version}")

        await admin.create_topic(topic, queues=4)
        await admin.create_group(group, max_retries=5)
        last = await produce(address, topic)
        print(f"{(await admin.topic_stats(topic)).count} messages in {topic}")

        message = await admin.view_message(last)
        print(f"the last one is {message.body.decode()!r} in queue {message.queue.queue_id}")

        await consume_half(address, topic, group)
        progress = await admin.group_progress(group, topic)
        print(f"{group} has {progress.lag} of {COUNT} messages before it")

        await admin.reset_offsets(group, topic, "latest")
        moved = await admin.group_progress(group, topic)
        print(json.dumps({"group": group, "lag": moved.to_dict()["lag"]}))

        await admin.delete_group(group, delete_topics=True)
        await admin.delete_topic(topic)
        print(f"{topic} is gone: {topic not in await admin.list_topics()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--namesrv", help="default: ROCKETMQ_NAMESRV")
    parser.add_argument("--topic", default="admin-example")
    parser.add_argument("--group", default="admin-example-group")
    options = parser.parse_args()
    asyncio.run(main(options.namesrv, options.topic, options.group))
