"""The trace of a client on a scripted cluster: what is written, and what is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketmq_aio.admin.client import AdminClient
from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.consumer import LitePullConfig, PopConfig, PushConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.consumer.push.handlers import RetryLater
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.batching.pre_encoded import Encoded
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.remoting.background_tasks import TaskFunction
from rocketmq_aio.trace.message_trace import MessageTrace
from rocketmq_aio.trace.records import StoredSend
from rocketmq_aio.trace.trace_dispatcher import TraceDispatcher
from tests.fakes.cluster import FakeCluster
from tests.unit.remoting.until import until

TRACE = "RMQ_SYS_TRACE_TOPIC"
SEND = RequestCode.SEND_MESSAGE_V2
ORDER = Message("orders", b"hello", tags="new", keys=["42", "43"])


@asynccontextmanager
async def shop(
    trace: MessageTrace, config: ProducerConfig | None = None
) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    async with (
        FakeCluster(topics={"orders": 4, TRACE: 1, "mine": 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv, hooks=[trace], config=config) as producer,
    ):
        yield cluster, producer
        await producer.close()


def records(cluster: FakeCluster, topic: str = TRACE) -> list[list[str]]:
    texts = [each.body.decode() for each in cluster.broker.messages(topic)]
    return [each.split("\x01") for text in texts for each in text.split("\x02") if each]


def keys(cluster: FakeCluster) -> list[str]:
    return [key for m in cluster.broker.messages(TRACE) for key in m.properties["KEYS"].split(" ")]


async def test_a_send_is_written_down_when_the_client_closes() -> None:
    trace = MessageTrace(flush_seconds=3600)
    async with shop(trace) as (cluster, producer):
        result = await producer.send(ORDER)
        address = cluster.broker.address

    ((kind, born, *rest, offset_id, good),) = records(cluster)
    assert (kind, good, offset_id) == ("Pub", "true", result.offset_message_id)
    region, group, topic, message_id, tags, found, host, size, cost, type_ = rest
    assert (region, group, topic, message_id) == (
        "DefaultRegion", "shop", "orders", result.message_id,
    )  # fmt: skip
    assert (tags, found, host, size, type_) == ("new", "42 43", address, "5", "0")
    assert int(born) > 10**12
    assert int(cost) >= 0
    assert keys(cluster) == [result.message_id, "42", "43"]
    assert (trace.sent, trace.dropped) == (1, 0)


async def test_a_record_is_sent_after_a_while_by_itself() -> None:
    trace = MessageTrace(flush_seconds=0.01)
    async with shop(trace) as (_, producer):
        await producer.send(ORDER)
        await until(lambda: trace.sent == 1)
        await producer.send(ORDER)
        await until(lambda: trace.sent == 2)


async def test_records_travel_together() -> None:
    async with shop(MessageTrace(flush_seconds=3600)) as (cluster, producer):
        await asyncio.gather(*[producer.send(ORDER) for _ in range(250)])

    assert len(records(cluster)) == 250
    assert len(cluster.broker.messages(TRACE)) == 2


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Message("orders", b"x"), "0"),
        (Message("orders", b"x", delay_level=3), "3"),
        (Message("orders", b"x", delay_seconds=5), "3"),
        (Message("orders", b"x", sharding_key="ann"), "4"),
        (Message("orders", b"x", properties={"MYDELAY": "1", "MYKEYS": "2"}), "0"),
    ],
)
async def test_records_have_the_message_type(message: Message, kind: str) -> None:
    async with shop(MessageTrace()) as (cluster, producer):
        await producer.send(message)

    ((*_, tags, found, _, _, _, type_, _, _),) = records(cluster)
    assert (type_, tags, found) == (kind, "null", "null")


async def test_each_message_of_a_batch_has_its_record() -> None:
    async with shop(MessageTrace()) as (cluster, producer):
        results = await producer.send_batch([ORDER, Message("orders", b"second")])

    found = records(cluster)
    assert [each[5] for each in found] == [each.message_id for each in results]
    assert [each[12] for each in found] == [each.offset_message_id for each in results]
    assert [(each[6], each[9]) for each in found] == [("new", "5"), ("null", "6")]


async def test_encoded_sends_have_records() -> None:
    encoded = Encoded(
        topic="orders", body=b"x", message_id="1A", properties=b"KEYS\x01k\x02UNIQ_KEY\x011A\x02"
    )
    async with shop(MessageTrace()) as (cluster, producer):
        await producer.send_encoded(encoded)

    (found,) = records(cluster)
    assert (found[5], found[7]) == ("1A", "k")


async def test_encoded_entries_that_cannot_be_read_do_not_fail_their_send() -> None:
    """Brokers ignore the size of an entry."""
    trace = MessageTrace()
    encoded = Encoded(topic="orders", body=b"no entries", message_id="1A", batch=True)
    stored = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}
    async with shop(trace) as (cluster, producer):
        cluster.faults.handle(RequestCode.SEND_BATCH_MESSAGE, Response(ext=stored))

        assert (await producer.send_encoded(encoded)).ok
    assert (trace.sent, trace.dropped) == (0, 1)


async def test_a_failed_send_leaves_no_record() -> None:
    async with shop(MessageTrace(), ProducerConfig(retries=0)) as (cluster, producer):
        cluster.faults.refuse(SEND, 1, "no")
        with pytest.raises(Exception, match="no"):
            await producer.send(ORDER)

    assert records(cluster) == []


async def test_a_retried_send_has_one_record() -> None:
    trace = MessageTrace(flush_seconds=3600)
    async with shop(trace) as (cluster, producer):
        cluster.faults.handle(SEND, Response(2, remark="system busy"))
        result = await producer.send(ORDER)

    ((kind, *_, offset_id, good),) = records(cluster)
    assert (kind, good, offset_id) == ("Pub", "true", result.offset_message_id)


async def test_a_waiting_record_does_not_keep_the_body_of_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting: list[StoredSend] = []
    monkeypatch.setattr(TraceDispatcher, "add", lambda _, entry: waiting.append(entry))
    async with shop(MessageTrace()) as (_, producer):
        await producer.send(ORDER)

    [(sent, _, _, size)] = waiting
    assert (sent.body, size) == (b"", len(ORDER.body))


async def test_no_trace_is_sent_to_a_broker_that_switched_it_off() -> None:
    async with shop(MessageTrace()) as (cluster, producer):
        ext = {"msgId": "7F" * 16, "queueId": "0", "queueOffset": "0", "TRACE_ON": "false"}
        cluster.faults.handle(SEND, Response(0, ext))
        result = await producer.send(ORDER)

    assert not result.trace_on
    assert records(cluster) == []


async def test_traces_are_not_traced() -> None:
    trace = MessageTrace()
    async with shop(trace) as (cluster, producer):
        await producer.send(Message(TRACE, b"x"))

    assert (trace.sent, trace.dropped) == (0, 0)
    assert [each.body for each in cluster.broker.messages(TRACE)] == [b"x"]


async def test_another_topic_may_be_chosen() -> None:
    async with shop(MessageTrace("mine")) as (cluster, producer):
        await producer.send(ORDER)

    assert len(records(cluster, "mine")) == 1
    assert records(cluster) == []


async def test_a_topic_whose_name_begins_like_the_trace_topic_is_traced() -> None:
    async with shop(MessageTrace("mine")) as (cluster, producer):
        cluster.create_topic("mine2", 1)
        await producer.send(Message("mine2", b"x"))

    assert len(records(cluster, "mine")) == 1


async def test_two_traces_record_the_same() -> None:
    async with (
        FakeCluster(topics={"orders": 4, TRACE: 1, "mine": 1}) as cluster,
        Producer(
            "shop", namesrv=cluster.namesrv, hooks=[MessageTrace(), MessageTrace("mine")]
        ) as producer,
    ):
        await producer.send(ORDER)
        await producer.close()

        assert records(cluster) == records(cluster, "mine") != []


async def test_the_trace_topic_is_in_no_namespace() -> None:
    async with FakeCluster(topics={"shop%orders": 4, "mine": 1}) as cluster:
        client = ClientConfig(namesrv=cluster.namesrv, namespace="shop")
        trace = MessageTrace("mine", flush_seconds=0.01)
        async with Producer("shop", client=client, hooks=[trace]) as producer:
            result = await producer.send(ORDER)
        [record] = records(cluster, "mine")
        assert record[4] == "orders"

        async with AdminClient(client=client) as admin:
            [event] = await admin.messages.trace(result.message_id, trace_topic="mine")
        assert event.topic == "orders"


async def test_in_a_cloud_the_topic_is_that_of_the_region() -> None:
    trace = MessageTrace(cloud=True)
    cloud = "rmq_sys_TRACE_DATA_north"
    async with (
        FakeCluster(topics={"orders": 1, cloud: 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv, hooks=[trace]) as producer,
    ):
        ext = {"msgId": "7F" * 16, "queueId": "0", "queueOffset": "0", "MSG_REGION": "north"}
        cluster.faults.handle(SEND, Response(0, ext))
        await producer.send(ORDER)
        await producer.close()

        ((_, _, region, *_),) = records(cluster, cloud)
        assert region == "north"


# --- consumers, transactions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"), [(None, "0"), (ValueError("no"), "2"), (RetryLater(), "4")]
)
async def test_a_handler_is_traced_before_and_after(error: Exception | None, code: str) -> None:
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message)
        if error is not None:
            raise error

    trace = MessageTrace()
    async with (
        FakeCluster(topics={"orders": 1, TRACE: 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
    ):
        await producer.send(ORDER)
        consumer = PushConsumer(
            "billing",
            on_message=handle,
            namesrv=cluster.namesrv,
            config=PushConfig(start_from="earliest"),
            hooks=[trace],
        )
        async with consumer:
            await consumer.subscribe("orders")
            await until(lambda: bool(seen))
        before, after = records(cluster)[:2]

    message = seen[0]
    assert before[0] == "SubBefore"
    assert before[2:] == [
        "DefaultRegion", "billing", before[4], message.message_id, "0", "42 43",
    ]  # fmt: skip
    good = "true" if code == "0" else "false"
    assert after[:2] == ["SubAfter", before[4]]
    assert after[2:] == [message.message_id, after[3], good, "42 43", code, after[7], "billing"]


async def polled(consumer: LitePullConsumer | PopConsumer) -> MessageExt:
    if isinstance(consumer, PopConsumer):
        return (await consumer.receive(wait_seconds=5))[0]
    return (await consumer.poll(5))[0]


async def iterated(consumer: LitePullConsumer | PopConsumer) -> MessageExt:
    return await anext(aiter(consumer))


@pytest.mark.parametrize("take", [polled, iterated])
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (LitePullConsumer, LitePullConfig(start_from="earliest")),
        (PopConsumer, PopConfig(start_from="earliest")),
    ],
)
async def test_polled_messages_are_traced(kind: Any, config: Any, take: Any) -> None:  # noqa: ANN401
    async with (
        FakeCluster(topics={"orders": 1, TRACE: 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
        kind("billing", namesrv=cluster.namesrv, config=config, hooks=[MessageTrace()]) as consumer,
    ):
        await consumer.subscribe("orders")
        await producer.send(ORDER)
        message = await take(consumer)
        await consumer.close()
        before, after = records(cluster)

    assert before[:1] + before[2:] == [
        "SubBefore", "DefaultRegion", "billing", before[4], message.message_id, "0", "42 43",
    ]  # fmt: skip
    assert after[:7] == ["SubAfter", before[4], message.message_id, "0", "true", "42 43", "0"]


async def test_two_traces_of_a_consumer_record_the_same() -> None:
    async with (
        FakeCluster(topics={"orders": 1, TRACE: 1, "mine": 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
        LitePullConsumer(
            "billing",
            namesrv=cluster.namesrv,
            config=LitePullConfig(start_from="earliest"),
            hooks=[MessageTrace(), MessageTrace("mine")],
        ) as consumer,
    ):
        await consumer.subscribe("orders")
        await producer.send(ORDER)
        await polled(consumer)
        await consumer.close()
        found = [records(cluster), records(cluster, "mine")]

    for before, after in found:
        assert (before[0], after[0]) == ("SubBefore", "SubAfter")
        assert before[4] == after[1]  # the id of the request
        assert before[5] == after[2]


async def test_a_transaction_is_traced_from_half_message_to_end() -> None:
    async def check(message: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async with (
        FakeCluster(topics={"orders": 1, TRACE: 1}) as cluster,
        TransactionProducer(
            "till", check=check, namesrv=cluster.namesrv, hooks=[MessageTrace()]
        ) as producer,
    ):
        async with producer.transaction(ORDER) as running:
            pass
        await producer.close()
        half, end = records(cluster)

    assert (half[0], half[5], half[11]) == ("Pub", running.message_id, "1")
    assert end[0] == "EndTransaction"
    assert end[2:] == [
        "DefaultRegion", "till", "orders", running.message_id, "new", "42 43",
        cluster.broker.address, "2", running.transaction_id, "COMMIT_MESSAGE", "false",
    ]  # fmt: skip


async def test_a_recalled_message_is_traced() -> None:
    async with (
        FakeCluster(topics={"orders": 1, TRACE: 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv, hooks=[MessageTrace()]) as producer,
    ):
        cluster.broker.state.update_settings({"recallMessageEnable": "true"})
        result = await producer.send(Message("orders", b"later", delay_seconds=30))
        message_id = await producer.recall("orders", result.recall_handle)
        await producer.close()
        _, recalled = records(cluster)

    assert recalled[:1] + recalled[2:] == [
        "Recall", "DefaultRegion", "shop", "orders", message_id, "true",
    ]  # fmt: skip
    assert message_id == result.message_id


# --- bounds and secrets --------------------------------------------------------------------------


async def test_records_over_the_limit_are_dropped_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trace = MessageTrace(flush_seconds=3600, max_waiting=10)
    async with shop(trace) as (cluster, producer):
        for _ in range(25):
            await producer.send(ORDER)

    assert len(records(cluster)) == trace.sent == 10
    assert trace.dropped == 15
    reported = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [("trace_dropped" in each, "trace_incomplete" in each) for each in reported] == [
        (True, False),
        (False, True),
    ]


async def test_a_record_that_cannot_be_made_fails_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such record")

    trace = MessageTrace(flush_seconds=0.01)
    async with shop(trace) as (_, producer):
        with monkeypatch.context() as patched:
            patched.setattr("rocketmq_aio.trace.trace_dispatcher.messages_of", broken)
            await producer.send(ORDER)
            await until(lambda: trace.dropped == 1)
        await producer.send(ORDER)
        await until(lambda: trace.sent == 1)


async def test_each_record_counts_as_sent_or_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two messages with records fails in a way that is not expected."""
    trace, send = MessageTrace(flush_seconds=3600), Producer.send_encoded

    async def send_one(self: Producer, encoded: Encoded, **arguments: Any) -> Any:  # noqa: ANN401
        if trace.sent:
            raise RuntimeError("a bug")
        return await send(self, encoded, **arguments)

    async with shop(trace) as (cluster, producer):
        for topic in ("orders", "mine", "orders", "mine"):
            await producer.send(Message(topic, b"1"))
        monkeypatch.setattr(Producer, "send_encoded", send_one)

    assert len(records(cluster)) == 2
    assert (trace.sent, trace.dropped) == (2, 2)


async def test_close_does_not_wait_for_a_sender_that_never_began_in_a_client_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail() -> None:
        raise RuntimeError("of the test")

    monkeypatch.setattr("rocketmq_aio.trace.trace_dispatcher.CLOSE_SECONDS", 3600)
    trace = MessageTrace(flush_seconds=0.01)
    async with shop(trace) as (_, producer):
        instance, spawn = producer.client, producer.client.tasks.spawn

        def fail_instead(function: TaskFunction, *args: object, name: str) -> bool:
            if name == "trace":
                function, args = fail, ()
            return spawn(function, *args, name=name)

        monkeypatch.setattr(instance.tasks, "spawn", fail_instead)
        await producer.send(ORDER)
        await until(lambda: instance.has_ended)
        async with asyncio.timeout(15):
            await producer.close()

    assert (trace.sent, trace.dropped) == (0, 1)


async def test_credentials_are_never_in_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("canary-access-1", "canary-secret-2", "canary-token-3")
    credentials = Credentials(
        access_key=secrets[0], secret_key=secrets[1], security_token=secrets[2]
    )
    trace = MessageTrace()
    async with FakeCluster(topics={"orders": 4, TRACE: 1}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, credentials=credentials)
        async with Producer("shop", client=config, hooks=[trace]) as producer:
            await producer.send(ORDER)
        stored = cluster.broker.messages(TRACE)

    shown = f"{[(each.body, each.properties) for each in stored]} {trace!r} {caplog.text}"
    assert len(stored) == 1
    assert not [secret for secret in secrets if secret in shown]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "a b"},
        {"cloud": 1},
        {"cloud": True, "topic": "mine"},
        {"flush_seconds": 0},
        {"flush_seconds": True},
        {"flush_seconds": "1"},
        {"max_waiting": 0},
        {"max_waiting": 1.5},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        MessageTrace(**wrong)  # type: ignore[arg-type]  # that is the point
