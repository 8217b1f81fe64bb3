"""Timed work of the broker: delays, timers, redelivery, transaction checks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.embedded.broker.transactions import DISCARDED_TOPIC, MAX_CHECKS
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.protocol.codes import TRANSACTION_ROLLBACK, RequestCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin import GetBrokerRuntime, GetTopicStats
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack
from tests.fakes.conformance import transactions as halves
from tests.fakes.conformance.case_env import CaseEnv, pull, pull_header, send, send_header
from tests.fakes.conformance.popping import bodies, pop
from tests.fakes.raw_client import RawClient
from tests.unit.remoting.until import until, until_done

MINUTE = 60.0
HOUR = 60 * MINUTE


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(topics={"orders": 4}) as cluster:
        yield cluster


def env_of(cluster: EmbeddedCluster) -> CaseEnv:
    return CaseEnv(cluster.namesrv, cluster.broker.address, "5.5.0", "orders", "billing")


def stored(cluster: EmbeddedCluster, topic: str = "orders") -> list[bytes]:
    return [each.body for each in cluster.broker.messages(topic)]


async def test_a_delay_of_hours_passes_by_advancing_the_clock(cluster: EmbeddedCluster) -> None:
    env = env_of(cluster)
    async with env.client() as client:
        for level in ("18", "3"):
            properties = encode_properties({"DELAY": level})
            await client.ask(send_header(env, properties=properties), level.encode())
    cluster.clock.advance(11)
    early = stored(cluster)
    cluster.clock.advance(2 * HOUR)

    assert early == [b"3"]
    assert stored(cluster) == [b"3", b"18"]


async def test_a_timer_of_days_passes_by_advancing_the_clock(cluster: EmbeddedCluster) -> None:
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        await producer.send(Message("orders", b"later", delay_seconds=48 * HOUR))
        cluster.clock.advance(47 * HOUR)
        early = stored(cluster)
        cluster.clock.advance(HOUR + 1)

    assert (early, stored(cluster)) == ([], [b"later"])


async def test_retries_end_among_the_dead_letters(cluster: EmbeddedCluster) -> None:
    env = env_of(cluster)
    topic = "orders"
    async with env.client() as client:
        await send(client, env, b"body")
        for _ in range(17):
            (*_, message) = cluster.broker.messages(topic)
            back = ConsumerSendMsgBack(
                group="billing", offset=message.log_offset, delay_level=0, origin_topic="orders"
            )
            assert (await client.ask(back)).code == 0
            cluster.clock.advance(2 * HOUR + 1)
            topic = "%RETRY%billing"

    retries = cluster.broker.messages("%RETRY%billing")
    assert [each.reconsume_times for each in retries] == list(range(1, 17))
    assert stored(cluster, "%DLQ%billing") == [b"body"]


async def test_an_invisible_message_comes_again_on_the_clock(cluster: EmbeddedCluster) -> None:
    env = env_of(cluster)
    async with env.client() as client:
        await send(client, env, b"body")
        first = await pop(client, env, invisible_time=5 * 60_000)
        hidden = await pop(client, env, born_time=0)
        cluster.clock.advance(5 * MINUTE + 1)
        again = await pop(client, env, born_time=0)

    assert (bodies(first), hidden, bodies(again)) == ([b"body"], [], [b"body"])
    assert cluster.broker.messages("%RETRY%billing_orders")[0].reconsume_times == 1


async def test_held_requests_end_on_the_clock(cluster: EmbeddedCluster) -> None:
    env = env_of(cluster)
    async with env.client() as client:
        held = client.send(pull_header(env, 0, suspend_timeout_millis=20_000))
        await until(lambda: cluster.broker.state.store.arrivals.waiting)
        cluster.clock.advance(20)

        assert (await client.answer(held)).code == 19


async def test_transactions_are_checked_without_a_request_of_the_test(
    cluster: EmbeddedCluster,
) -> None:
    checked: list[bytes] = []

    def check(message: MessageExt) -> TransactionState:
        checked.append(message.body)
        return TransactionState.COMMIT if len(checked) > 1 else TransactionState.UNKNOWN

    async def committed() -> bool:
        cluster.clock.advance(31)  # the producer may still be at the last check
        return stored(cluster) == [b"sale"]

    async with TransactionProducer("till", check=check, namesrv=cluster.namesrv) as producer:
        await producer.send_in_transaction(
            Message("orders", b"sale"), lambda _: TransactionState.UNKNOWN
        )
        cluster.clock.advance(7)
        await until(lambda: len(checked) == 1)
        await until_done(committed)

    assert checked == [b"sale"] * len(checked)


async def test_transactions_of_a_moved_clock_keep_their_immunity_time(
    cluster: EmbeddedCluster,
) -> None:
    cluster.clock.advance(HOUR)
    env = env_of(cluster)
    async with env.client() as client:
        half = await halves.send_half(client, env, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        decided = await client.ask(halves.end(env, half, TRANSACTION_ROLLBACK))

    assert decided.code == 0


async def test_a_half_message_is_discarded_after_too_many_checks(cluster: EmbeddedCluster) -> None:
    env = env_of(cluster)
    async with env.client() as client:
        await halves.join(client, env)
        half = await halves.send_half(client, env)
        cluster.clock.advance(HOUR)
        for _ in range(MAX_CHECKS):
            await client.request(RequestCode.CHECK_TRANSACTION_STATE)
        decided = await client.ask(halves.end(env, half, TRANSACTION_ROLLBACK))

    assert decided.code == 0
    assert cluster.broker.transactions.open == []
    (discarded,) = cluster.broker.messages(DISCARDED_TOPIC)
    assert discarded.properties["TRANSACTION_CHECK_TIMES"] == str(MAX_CHECKS)


async def test_a_decided_transaction_is_not_checked(cluster: EmbeddedCluster) -> None:
    env = env_of(cluster)
    async with env.client() as client:
        await halves.join(client, env)
        half = await halves.send_half(client, env)
        await client.ask(halves.end(env, half, TRANSACTION_ROLLBACK))
        cluster.clock.advance(HOUR)

    assert len(cluster.broker.messages(halves.HALF_TOPIC)) == 1


async def test_delayed_messages_do_not_outlive_the_limit_of_memory() -> None:
    async with EmbeddedCluster(topics={"orders": 1}, max_bytes=64 * 1024) as cluster:
        env = env_of(cluster)
        properties = encode_properties({"DELAY": "18"})
        async with env.client() as client:
            for number in range(100):
                header = send_header(env, properties=properties)
                await client.ask(header, number.to_bytes(1024, "big"))
        kept = len(cluster.broker.messages("SCHEDULE_TOPIC_XXXX"))
        cluster.clock.advance(2 * HOUR + 1)

        assert kept < 60
        assert 0 < len(stored(cluster)) < 60
        assert int.from_bytes(stored(cluster)[-1], "big") == 99


async def test_a_consumer_goes_on_after_messages_were_deleted() -> None:
    config = LitePullConfig[bytes](start_from="earliest")
    async with EmbeddedCluster(topics={"orders": 1}, max_bytes=64 * 1024) as cluster:
        for number in range(200):
            cluster.broker.put("orders", number.to_bytes(1024, "big"))
        async with LitePullConsumer("late", namesrv=cluster.namesrv, config=config) as consumer:
            await consumer.subscribe("orders")
            numbers: list[int] = []
            while not numbers or numbers[-1] < 199:
                numbers += [int.from_bytes(m.body, "big") for m in await consumer.poll()]

    assert numbers == list(range(200 - len(numbers), 200))
    assert len(numbers) < 60


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_filtered_pull_looks_at_a_limited_number_of_messages(version: str) -> None:
    async with EmbeddedCluster(version=version, topics={"orders": 1}) as cluster:
        for _ in range(2000):
            cluster.broker.put("orders", b"other", properties="TAGS\x01other\x02")
        async with RawClient(cluster.broker.address) as client:
            header = pull_header(env_of(cluster), 0, subscription="wanted")
            answer, fields = await pull(client, header)

    assert (answer.code, fields.next_begin_offset) == (20, 800)


async def test_rates_are_those_of_the_last_minutes(cluster: EmbeddedCluster) -> None:
    for _ in range(6):
        cluster.broker.put("orders", b"")
    cluster.clock.advance(30)
    async with env_of(cluster).client() as client:
        topic = read_body((await client.ask(GetTopicStats(topic="orders"))).body, dict)
        runtime = read_body((await client.ask(GetBrokerRuntime())).body, dict)["table"]

    assert topic["topicPutTps"] == 0.1
    assert runtime["putTps"] == "0.0 0.1 0.01"
