"""PushConsumer with broker assignment, pulled or popped."""

from __future__ import annotations

from typing import Literal

import pytest

from rocketmq_aio import (
    AdminClient,
    ConfigError,
    MessageDeadLettered,
    MessageExt,
    MessageModel,
    MessageQueue,
    NotSupportedError,
    PushConfig,
    PushConsumer,
    RetryLater,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import is_5, numbers, send
from tests.broker.test_push import Notes, dead_letter, pushing
from tests.unit.remoting.until import until


async def set_mode(cluster: Cluster, topic: str, group: str, mode: Literal["pop", "pull"]) -> None:
    """Set the request mode of the group on 5.x brokers."""
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        if is_5(cluster):
            await admin.groups.set_mode(group, topic, mode)
        else:
            with pytest.raises(NotSupportedError):
                await admin.groups.set_mode(group, topic, mode)


async def test_brokers_assign_the_queues(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    first, second = Notes(), Notes()
    async with pushing(namesrv, group, topic, first, client_rebalance=False) as one:
        async with pushing(namesrv, group, topic, second, client_rebalance=False) as two:
            await until(lambda: len(of(one, topic)) == len(of(two, topic)) == 2, "equal shares", 60)
            await send(namesrv, topic, numbers(100))
            await until(lambda: len(first.seen) + len(second.seen) >= 100, "all messages", 60)
        await until(lambda: len(of(one, topic)) == 4, "all queues", 60)

    assert sorted(first.bodies() + second.bodies()) == sorted(numbers(100))


def of(consumer: PushConsumer, topic: str) -> list[MessageQueue]:
    return [queue for queue in consumer.assignment() if queue.topic == topic]


@pytest.mark.mqadmin("setConsumeMode")
async def test_popped_messages_are_handled_once_and_acknowledged(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    await set_mode(rocketmq_cluster, topic, group, "pop")
    await send(namesrv, topic, numbers(300), tags="new")
    first, second = Notes(), Notes()
    async with pushing(namesrv, group, topic, first, selector="new", client_rebalance=False) as one:
        await first.have(300)
        expected = [-1] if is_5(rocketmq_cluster) else [0, 1, 2, 3]
        assert [queue.queue_id for queue in of(one, topic)] == expected
        info = one._engine.running_info()
        assert (b"waitAckCount" in bytes(info.mq_pop_table)) == is_5(rocketmq_cluster)
    async with pushing(namesrv, group, topic, second, selector="new", client_rebalance=False):
        await send(namesrv, topic, ["last"], tags="new")
        await second.have(1)

    assert sorted(first.bodies()) == sorted(numbers(300))
    assert second.bodies() == ["last"]


async def test_failed_popped_messages_are_redelivered_and_go_to_the_dlq(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    await set_mode(rocketmq_cluster, topic, group, "pop")
    await send(namesrv, topic, ["bad", "good"])

    def react(message: MessageExt) -> None:
        if message.body == b"bad":
            raise RetryLater(1)

    events: list[object] = []
    handled = Notes(react)
    async with pushing(
        namesrv,
        group,
        topic,
        handled,
        arguments={"on_event": events.append},
        client_rebalance=False,
        max_reconsume_times=1,
    ):
        await until(lambda: any(isinstance(e, MessageDeadLettered) for e in events), "event", 60)
        dead = await dead_letter(rocketmq_cluster, group)

    assert dead.body == b"bad"
    assert sorted(handled.bodies()) == ["bad", "bad", "good"]
    assert {message.topic for message in handled.seen} == {topic}


async def test_switching_between_pull_and_pop_loses_no_message(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    handled = Notes()
    async with pushing(
        namesrv, group, topic, handled, client_rebalance=False, rebalance_interval_seconds=0.3
    ) as consumer:

        async def change(cluster: Cluster, mode: Literal["pop", "pull"], queues: int) -> None:
            await set_mode(cluster, topic, group, mode)
            if is_5(cluster):
                await until(lambda: len(of(consumer, topic)) == queues, mode, 30)

        await send(namesrv, topic, numbers(50))
        await handled.have(50)
        await change(rocketmq_cluster, "pop", 1)
        await send(namesrv, topic, numbers(50, 50))
        await until(lambda: {*numbers(100)} <= {*handled.bodies()}, "what was popped", 60)
        await change(rocketmq_cluster, "pull", 4)
        await send(namesrv, topic, numbers(50, 100))
        await until(lambda: {*numbers(150)} <= {*handled.bodies()}, "what was pulled", 60)


@pytest.mark.parametrize(
    ("orderly", "model"), [(True, MessageModel.CLUSTERING), (False, MessageModel.BROADCASTING)]
)
def test_broker_assignment_requires_concurrent_consumption(
    *, orderly: bool, model: MessageModel
) -> None:
    config = PushConfig(client_rebalance=False, message_model=model)
    with pytest.raises(ConfigError, match="client_rebalance"):
        PushConsumer(
            "billing", on_message=Notes(), orderly=orderly, config=config, namesrv="127.0.0.1:1"
        )
