"""Light message queues of brokers with the default store; those with RocksDB: test_rocksdb."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from rocketmq_aio import (
    AdminClient,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RetryLater,
    RouteNotFoundError,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading_light_queues import read_by_every_kind_of_consumer
from tests.fakes.conformance.case_env import QUEUES, Case, CaseEnv
from tests.fakes.conformance.light_queues import CASES
from tests.unit.remoting.until import until_done

SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    return fresh_cluster(broker_properties={"enableLmq": "true", "enableMultiDispatch": "true"})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_real_broker_responds_like_the_fake(
    case: Case, cluster: Cluster, rocketmq_group: str
) -> None:
    topic = f"light-{rocketmq_group[-12:]}"
    cluster.create_topic(topic, queues=QUEUES)
    address = cluster.brokers[0].address
    env = CaseEnv(cluster.namesrvs[0].address, address, cluster.version, topic, rocketmq_group)

    await case(env)


async def test_every_kind_of_consumer_reads_a_light_message_queue(
    cluster: Cluster, rocketmq_group: str
) -> None:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await read_by_every_kind_of_consumer(cluster, admin, rocketmq_group)


@pytest.mark.parametrize("orderly", [False, True])
async def test_retries_and_dead_letters_do_not_return_to_light_message_queues(
    cluster: Cluster, rocketmq_group: str, *, orderly: bool
) -> None:
    group, parent, light = rocketmq_group, f"{rocketmq_group}-p", f"%LMQ%{rocketmq_group}"
    handled: list[tuple[bytes, int]] = []

    async def fail(message: MessageExt) -> None:
        handled.append((message.body, message.reconsume_times))
        raise RetryLater(1 if message.reconsume_times == 0 else -1)

    async def send(body: bytes) -> None:
        await producer.send(Message(parent, body, properties={"INNER_MULTI_DISPATCH": light}))

    async def are_dead(count: int) -> bool:
        with suppress(RouteNotFoundError):
            (dead,) = await reader.message_queues(f"%DLQ%{group}")
            return await reader.max_offset(dead) >= count
        return False

    config = PushConfig(start_from="earliest", suspend_seconds=0.1)
    async with (
        AdminClient(namesrv=cluster.namesrv) as admin,
        Producer("light", namesrv=cluster.namesrv) as producer,
        PullConsumer(group, namesrv=cluster.namesrv) as reader,
        PushConsumer(
            group, namesrv=cluster.namesrv, config=config, on_message=fail, orderly=orderly
        ) as consumer,
    ):
        await admin.topics.create(parent, queues=1)
        await consumer.subscribe(light)
        await send(b"1")
        await until_done(lambda: are_dead(1), "the first dead letter", SECONDS)
        await send(b"2")  # behind a letter that returned
        await until_done(lambda: are_dead(2), "the second dead letter", SECONDS)
        (queue,) = await reader.message_queues(light)

        assert await reader.max_offset(queue) == 2
    assert handled == [(b"1", 0), (b"1", 1), (b"2", 0), (b"2", 1)]
