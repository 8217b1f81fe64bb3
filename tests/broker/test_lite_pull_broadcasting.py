"""Broadcasting groups of lite pull consumers on a real broker."""

from __future__ import annotations

from pathlib import Path

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.model.values import MessageModel
from tests.broker.reading_groups import QUEUES, bodies, numbers, polled, send


async def test_every_broadcasting_member_reads_all_messages_and_resumes(
    namesrv: str, topic: str, group: str, tmp_path: Path
) -> None:
    def member(name: str) -> LitePullConsumer:
        config = LitePullConfig(
            message_model=MessageModel.BROADCASTING,
            start_from="earliest",
            offset_store=LocalFileOffsetStore(tmp_path),
        )
        client = ClientConfig(namesrv=namesrv, instance_name=name)
        return LitePullConsumer(group, client=client, config=config)

    for batch in (numbers(20), numbers(20, first=20)):
        await send(namesrv, topic, batch)
        async with member("one") as one, member("two") as two:
            for consumer in (one, two):
                await consumer.subscribe(topic)
                taken = await polled(consumer, 20)
                assert sorted(map(int, bodies(taken))) == sorted(map(int, batch))
                assert len(consumer.assignment()) == QUEUES
