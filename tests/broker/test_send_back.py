"""SendBack on real brokers: redelivery and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from struct import pack

import msgspec
import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.redelivery import DEAD_LETTER, RetryTopics, SendBack
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.push.locks import QueueLocks
from rocketmq_aio.errors import RouteNotFoundError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import COMPRESSED
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.testing import Cluster
from tests.fakes.conformance.case_env import CaseEnv, eventually, pull_header
from tests.fakes.conformance.membership import heartbeat
from tests.fakes.raw_client import RawClient
from tests.unit.consumer.lock_members import Losses

READ_NOW = 4  # sysFlag of a pull that does not wait
UPDATE_GROUP = 200
LATE_SECONDS = 30.0
LOG_OFFSET_AT = 28


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A broker whose delay levels are all one second."""
    return fresh_cluster(broker_properties={"messageDelayLevel": " ".join(["1s"] * 18)})


class Desk:
    """A group member and access to the messages the broker stores for it."""

    def __init__(self, cluster: Cluster, group: str, instance: MQClientInstance) -> None:
        self.cluster = cluster
        self.group = group
        self.instance = instance
        self.client = RawClient(cluster.brokers[0].address)
        self.env = CaseEnv(
            namesrv=cluster.namesrv,
            broker=cluster.brokers[0].address,
            version=cluster.version,
            topic=f"sent-{group[-12:]}",
            group=group,
        )

    @property
    def retries(self) -> str:
        return f"%RETRY%{self.group}"

    @property
    def dead_letters(self) -> str:
        return f"%DLQ%{self.group}"

    def back(self, limit: int = 16) -> SendBack:
        return SendBack(self.instance, self.group, max_reconsume_times=limit)

    async def sent(self, body: bytes = b"body") -> MessageExt:
        """Send a message and return it as stored."""
        async with Producer("shop", client=self.instance) as producer:
            message = Message(
                self.env.topic, body, tags="t", keys="k", properties={"own": "x"}, flag=5
            )
            result = await producer.send(message)
        assert result.ok
        return (await self.found(self.env.topic))[0]

    async def found(self, topic: str, count: int = 1, queues: int = 1) -> list[MessageExt]:
        """Return the messages of a topic when it holds *count*."""
        messages: list[MessageExt] = []

        async def are_there() -> bool:
            messages[:] = [m for n in range(queues) for m in await self._read(topic, n)]
            return len(messages) >= count

        assert await eventually(are_there, LATE_SECONDS), topic
        assert len(messages) == count
        for message in messages:
            RetryTopics(self.group, None).restore_topic(message)
        return messages

    async def _read(self, topic: str, number: int) -> list[MessageExt]:
        header = pull_header(self.env, 0, topic=topic, queue_id=number, sys_flag=READ_NOW)
        answer = await self.client.ask(header)
        queue = MessageQueue(topic, "broker-a", number)
        return decode_messages(answer.body, queue)[0] if answer.code == 0 else []

    async def set_retry_queues(self, count: int) -> None:
        config = msgspec.json.encode({"groupName": self.group, "retryQueueNums": count})
        answer = await self.client.answer(self.client.send_fields(UPDATE_GROUP, {}, config))
        assert answer.code == 0
        await heartbeat(self.client, self.env, "c@1")

        async def route_is_known() -> bool:
            try:
                route = await self.instance.routes.fetch(self.retries)
            except RouteNotFoundError:
                return False
            return len(route.publish_queues) == count

        assert await eventually(route_is_known)


@pytest_asyncio.fixture
async def desk(cluster: Cluster, rocketmq_group: str) -> AsyncIterator[Desk]:
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as instance:
        desk = Desk(cluster, rocketmq_group, instance)
        cluster.create_topic(desk.env.topic, queues=1)
        await instance.routes.get(desk.env.topic)
        async with desk.client:
            yield desk


def astray(message: MessageExt) -> MessageExt:
    """Return *message* with an offset without a message, so the broker rejects the send back."""
    head, at = message.head, LOG_OFFSET_AT
    wrong = pack(">q", message.commit_log_offset + (1 << 40))
    return msgspec.structs.replace(message, head=head[:at] + wrong + head[at + 8 :])


def assert_same(again: MessageExt, message: MessageExt) -> None:
    """Check that *again* is a stored copy of *message*."""
    assert (again.body, again.flag) == (message.body, message.flag)
    assert (again.message_id, again.tags, again.keys) == (message.message_id, "t", ("k",))
    assert again.property("own") == "x"
    assert again.property("RETRY_TOPIC") == message.topic


async def test_sent_back_message_is_redelivered_with_one_more_try(desk: Desk) -> None:
    message = await desk.sent()
    await desk.back().send_back(message)
    (second,) = await desk.found(desk.retries)
    await desk.back().send_back(second, 7)
    _, third = await desk.found(desk.retries, 2)

    for times, level, again in ((1, "3", second), (2, "7", third)):
        assert_same(again, message)
        assert again.topic == message.topic
        assert (again.reconsume_times, again.property("DELAY")) == (times, level)
        assert again.property("ORIGIN_MESSAGE_ID") == message.offset_message_id
        assert again.born_time == message.born_time


async def test_message_at_its_limit_goes_to_the_dlq(desk: Desk) -> None:
    message = await desk.sent()
    await desk.back(limit=1).send_back(message)
    (second,) = await desk.found(desk.retries)
    await desk.back(limit=1).send_back(second)
    (dead,) = await desk.found(desk.dead_letters)

    assert_same(dead, message)
    assert dead.reconsume_times == 2
    assert len(await desk.found(desk.retries)) == 1


async def test_a_dead_letter_equals_the_sent_message(desk: Desk) -> None:
    message = await desk.sent()
    await desk.back().dead_letter(message, "no JSON")
    (dead,) = await desk.found(desk.dead_letters)

    assert_same(dead, message)


async def test_copy_is_redelivered_after_a_refused_send_back(desk: Desk) -> None:
    message = await desk.sent()
    await desk.back().send_back(astray(message))
    (second,) = await desk.found(desk.retries)
    await desk.back().send_back(astray(second), 7)
    _, third = await desk.found(desk.retries, 2)

    for times, level, again in ((1, "3", second), (2, "7", third)):
        assert_same(again, message)
        assert (again.reconsume_times, again.property("DELAY")) == (times, level)
    assert third.property("ORIGIN_MESSAGE_ID") == second.property("ORIGIN_MESSAGE_ID")


@pytest.mark.parametrize(("limit", "level"), [(16, DEAD_LETTER), (0, 0)])
async def test_copy_goes_to_the_dlq_after_a_refused_send_back(
    desk: Desk, limit: int, level: int
) -> None:
    message = await desk.sent()
    await desk.back(limit).send_back(astray(message), level)
    (dead,) = await desk.found(desk.dead_letters)

    assert_same(dead, message)
    assert dead.reconsume_times == 1


async def test_the_last_copy_before_the_limit_is_retried(desk: Desk) -> None:
    message = await desk.sent()
    await desk.back(limit=1).send_back(astray(message))

    assert len(await desk.found(desk.retries)) == 1


async def test_a_copy_of_a_compressed_body_can_be_read(desk: Desk) -> None:
    message = await desk.sent(b"much of the same " * 1000)
    await desk.back().send_back(astray(message))
    (again,) = await desk.found(desk.retries)

    assert message.sys_flag & COMPRESSED
    assert_same(again, message)
    assert again.store_size < len(message.body)


@pytest.mark.parametrize(("refused", "local_retries"), [(False, 0), (True, 0), (False, 3)])
async def test_a_group_that_holds_locks_gets_dead_letters(
    desk: Desk, refused: bool, local_retries: int
) -> None:
    message = await desk.sent()
    given = astray(message) if refused else message
    given.local_retries = local_retries
    locks = QueueLocks(desk.instance, desk.group, Losses())
    assert await locks.acquire([message.queue]) == {message.queue}
    await desk.back(limit=3).dead_letter(given, "over the limit")
    (dead,) = await desk.found(desk.dead_letters)
    await locks.release([message.queue])

    assert_same(dead, message)
    assert dead.reconsume_times == local_retries + 1


async def test_a_group_with_several_retry_queues_uses_them(desk: Desk) -> None:
    message = await desk.sent()
    await desk.set_retry_queues(3)
    await desk.back().send_back(message)
    await desk.back().send_back(astray(message))

    for again in await desk.found(desk.retries, 2, queues=3):
        assert_same(again, message)


async def test_group_without_retry_queues_raises_and_loses_nothing(desk: Desk) -> None:
    message = await desk.sent()
    await desk.set_retry_queues(0)

    with pytest.raises(RouteNotFoundError, match="retryQueueNums"):
        await desk.back().send_back(message)
    async with PullConsumer(desk.group, namesrv=desk.cluster.namesrv) as puller:
        with pytest.raises(RouteNotFoundError, match="retryQueueNums"):
            await puller.send_back(message)
