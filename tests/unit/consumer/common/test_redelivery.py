"""SendBack: to the broker of a message, or as a copy to another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.redelivery import COPY_ATTEMPTS, RetryTopics, SendBack, copy_of
from rocketmq_aio.embedded.broker.store import NewMessage, StoredMessage
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    BrokerError,
    BusyError,
    NameServerUnavailableError,
    NotConnectedError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import COMPRESSED, COMPRESSION_BITS, INNER_BATCH, RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.compression import compress, inflate
from rocketmq_aio.protocol.header import to_ext_fields
from rocketmq_aio.protocol.namespaces import Namespace
from rocketmq_aio.protocol.record import decode_messages
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.remoting.until import until

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
GROUP = "billing"
RETRIES, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
RETRY_TOPICS = RetryTopics(GROUP, None)
LIMIT = 16
REFUSED = Response(1, remark="look message by offset failed")
PROPERTIES = "KEYS\x01k\x02TAGS\x01t\x02UNIQ_KEY\x01ID\x02own\x01x\x02"


class RetryEnv:
    """A cluster without delays, and a member of the group in it."""

    def __init__(self, cluster: FakeCluster, instance: MQClientInstance) -> None:
        self.cluster = cluster
        self.broker = cluster.broker
        self.instance = instance
        self.send_back = SendBack(instance, GROUP, max_reconsume_times=LIMIT)

    def message(self, topic: str = "orders", **stored: Any) -> MessageExt:  # noqa: ANN401
        """Return a message of the first broker."""
        fields: dict[str, Any] = {"body": b"body", "properties": PROPERTIES, "flag": 5} | stored
        fields["properties"] = parse_properties(fields["properties"].encode())
        now_ms = self.broker.state.clock.now_ms()
        incoming = NewMessage(topic=topic, queue_id=0, born_ms=now_ms, **fields)
        record = self.broker.state.store.append(incoming).record
        (message,), fault = decode_messages(record, MessageQueue(topic, self.broker.name, 0))
        assert fault is None
        return message

    async def arrived(self, topic: str, broker: FakeBroker | None = None) -> list[StoredMessage]:
        """Return what *topic* holds, once it holds anything."""
        place = broker or self.broker
        await until(lambda: topic in place.topics and place.messages(topic), topic)
        return place.messages(topic)


@pytest_asyncio.fixture
async def shops() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def open_shop(
            brokers: int = 1, *, version: str = "5.5.0", unit_mode: bool = False
        ) -> RetryEnv:
            cluster = FakeCluster(brokers, version=version, topics={"orders": 1})
            for broker in cluster.brokers:
                broker.delays.seconds = [0.0] * 18
                broker.state.make_retry_topic(GROUP)
            await stack.enter_async_context(cluster)
            config = ClientConfig(
                namesrv=cluster.namesrv, request_timeout_seconds=5, unit_mode=unit_mode
            )
            instance = await stack.enter_async_context(MQClientInstance(config))
            await instance.routes.get("orders")
            await instance.routes.get(RETRIES)
            return RetryEnv(cluster, instance)

        yield open_shop


@pytest_asyncio.fixture
async def env(shops: Callable[..., Any]) -> RetryEnv:
    opened: RetryEnv = await shops()
    return opened


def fields(command: Command) -> dict[str, str]:
    return dict(command.ext_fields())


async def test_send_back_goes_to_the_broker_that_stored_the_message(env: RetryEnv) -> None:
    env.message()
    message = env.message()
    await env.send_back.send_back(message, 4)
    (again,) = await env.arrived(RETRIES)

    assert fields(env.broker.requests_of(BACK)[0]) == {
        "offset": str(message.commit_log_offset),
        "group": GROUP,
        "delayLevel": "4",
        "originMsgId": message.offset_message_id,
        "originTopic": "orders",
        "unitMode": "false",
        "maxReconsumeTimes": str(LIMIT),
        "bname": "broker-a",
    }
    assert (again.body, again.properties["RETRY_TOPIC"]) == (b"body", "orders")
    assert env.broker.requests_of(SEND) == []


async def test_send_back_and_copies_set_unit_mode(shops: Callable[..., Any]) -> None:
    env = await shops(unit_mode=True)
    await env.send_back.send_back(env.message())
    await env.send_back.send_back(env.message(sys_flag=INNER_BATCH))

    (back,), (copy,) = env.broker.requests_of(BACK), env.broker.requests_of(SEND)
    assert (fields(back)["unitMode"], fields(copy)["k"]) == ("true", "true")


async def test_retry_is_sent_back_under_its_stored_topic(env: RetryEnv) -> None:
    message = env.message(RETRIES, properties=f"{PROPERTIES}RETRY_TOPIC\x01orders\x02")
    RETRY_TOPICS.restore_topic(message)
    await env.send_back.send_back(message)

    assert message.topic == "orders"
    assert fields(env.broker.requests_of(BACK)[0])["originTopic"] == RETRIES


@pytest.mark.parametrize(
    ("topic", "properties", "shown"),
    [
        (RETRIES, "RETRY_TOPIC\x01orders\x02", "orders"),
        (RETRIES, "TAGS\x01t\x02", RETRIES),
        ("orders", "RETRY_TOPIC\x01other\x02", "orders"),
        (f"{RETRIES}_orders", PROPERTIES, "orders"),
        (RETRIES, f"RETRY_TOPIC\x01{RETRIES}+orders\x02", "orders"),
        (f"{RETRIES}s", PROPERTIES, f"{RETRIES}s"),
    ],
)
async def test_only_messages_of_retry_topics_change_their_topic(
    env: RetryEnv, topic: str, properties: str, shown: str
) -> None:
    env.broker.state.store.ensure_topic(topic, 1)
    message = env.message(topic, properties=properties)
    RETRY_TOPICS.restore_topic(message)

    assert (message.topic, message.queue.topic) == (shown, topic)


@pytest.mark.parametrize("joint", ["_", "+"])
def test_retry_topics_of_popped_messages_contain_the_namespace_twice(joint: str) -> None:
    namespace = Namespace("shop")
    retry_topics = RetryTopics("billing", namespace)
    named = retry_topics.of_popped("orders")
    assert {namespace.outer(name) for name in named} == {
        f"%RETRY%shop%billing{each}shop%orders" for each in "_+"
    }

    for topic, properties in (
        (f"%RETRY%billing{joint}shop%orders", b""),
        ("%RETRY%billing", f"RETRY_TOPIC\x01%RETRY%shop%billing{joint}shop%orders\x02".encode()),
    ):
        of = MessageQueue(topic, "broker-a", 0)
        message = MessageExt(topic, b"x", of, 0, bytes(88), properties)
        retry_topics.restore_topic(message)
        assert (message.topic, message.queue) == ("orders", of)


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_dead_letter_keeps_everything(shops: Callable[..., Any], version: str) -> None:
    env = await shops(version=version)
    await env.send_back.dead_letter(env.message(), "no JSON")
    (dead,) = await env.arrived(DEAD)

    assert dead.body == b"body"
    sent = parse_properties(PROPERTIES.encode())
    assert dead.properties.items() >= (sent | {"RETRY_TOPIC": "orders"}).items()


async def test_group_without_retry_queues_loses_no_message(env: RetryEnv) -> None:
    retries = env.broker.topics[RETRIES]
    retries.read_queues = retries.write_queues = 0
    env.instance.routes._routes.clear()  # as those of topics that are not subscribed

    with pytest.raises(RouteNotFoundError, match="retryQueueNums"):
        await env.send_back.send_back(env.message())
    with pytest.raises(RouteNotFoundError, match="retryQueueNums"):
        await env.send_back.dead_letter(env.message(), "no JSON")
    assert env.broker.requests_of(BACK) == []


async def test_copy_of_a_refused_message_is_complete(env: RetryEnv) -> None:
    env.broker.faults.handle("send_back", REFUSED)
    message = env.message(reconsume_times=2)
    await env.send_back.send_back(message)
    (copy,) = await env.arrived(RETRIES)

    sent = fields(env.broker.requests_of(SEND)[0])
    added = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": message.offset_message_id, "DELAY": "5"}
    assert copy.body == b"body"
    assert copy.properties.items() >= (message.properties | added).items()
    assert {sent[letter] for letter in "ab"} == {"CLIENT_INNER_PRODUCER", RETRIES}
    assert (sent["h"], sent["j"]) == ("5", "3")


async def test_copy_of_a_retry_keeps_its_origin(env: RetryEnv) -> None:
    env.broker.faults.handle("send_back", REFUSED)
    origin = "RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01FIRST\x02"
    await env.send_back.send_back(env.message(RETRIES, properties=origin, reconsume_times=1))
    _, copy = await env.arrived(RETRIES)

    wanted = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "FIRST", "DELAY": "4"}
    assert copy.properties.items() >= wanted.items()


async def test_a_copy_has_the_requested_delay(env: RetryEnv) -> None:
    env.broker.faults.handle("send_back", REFUSED)
    await env.send_back.send_back(env.message(reconsume_times=2), 9)
    (copy,) = await env.arrived(RETRIES)

    assert copy.properties["DELAY"] == "9"


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize(("times", "level"), [(0, -1), (3, -1), (LIMIT, 0), (LIMIT + 1, 2)])
async def test_dead_letter_copies_exceed_the_retry_limit(
    shops: Callable[..., Any], version: str, times: int, level: int
) -> None:
    env = await shops(version=version)
    env.broker.faults.handle("send_back", REFUSED)
    await env.send_back.send_back(env.message(reconsume_times=times), level)
    (dead,) = await env.arrived(DEAD)

    assert dead.body == b"body"
    assert dead.properties.get("DELAY", "0") == "0"
    assert env.broker.messages(RETRIES) == []


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("times", [0, LIMIT - 1])
async def test_retry_copies_stay_below_the_retry_limit(
    shops: Callable[..., Any], version: str, times: int
) -> None:
    env = await shops(version=version)
    env.broker.faults.handle("send_back", REFUSED)
    await env.send_back.send_back(env.message(reconsume_times=times))

    assert len(await env.arrived(RETRIES)) == 1
    assert DEAD not in env.broker.topics


@pytest.mark.parametrize("bits", [0, *COMPRESSION_BITS.values()])
async def test_compressed_body_is_sent_compressed(env: RetryEnv, bits: int) -> None:
    kind = next((name for name, value in COMPRESSION_BITS.items() if value == bits), "zlib")
    body, flag = b"much of the same " * 1000, COMPRESSED | bits
    message = env.message(body=compress(body, kind, 5), sys_flag=flag)
    header, sent = copy_of(message, RETRIES, 3)

    assert message.body == body
    assert header.sys_flag == flag
    assert len(sent) < len(body)
    assert inflate(sent, flag) == body


async def test_a_copy_is_neither_delayed_twice_nor_half_of_a_transaction(env: RetryEnv) -> None:
    names = ["TRAN_MSG", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DELAY"]
    message = env.message(properties="".join(f"{name}\x01true\x02" for name in names))
    header, _ = copy_of(message, RETRIES, None)

    assert parse_properties((header.properties or "").encode()).keys().isdisjoint(names)


@pytest.mark.parametrize("level", [1, -1])
async def test_a_message_of_light_queues_is_copied_without_their_names(
    env: RetryEnv, level: int
) -> None:
    """A dead letter that its broker stored would go to the light queues, and fail again."""
    light = {
        "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b",
        "INNER_MULTI_QUEUE_OFFSET": "0,4",
        "__LITE_TOPIC": "chat",
    }
    stored = "".join(f"{name}\x01{value}\x02" for name, value in light.items())
    await env.send_back.send_back(env.message(properties=PROPERTIES + stored), level)
    (copy,) = await env.arrived(DEAD if level < 0 else RETRIES)

    assert env.broker.requests_of(BACK) == []
    assert copy.properties.keys().isdisjoint(light)
    assert copy.properties["own"] == "x"


async def test_entry_of_an_inner_batch_is_sent_alone(env: RetryEnv) -> None:
    message = env.message()
    batched = bytearray(message.head)
    batched[36:40] = (INNER_BATCH | COMPRESSED).to_bytes(4, "big")
    message.head = bytes(batched)
    await env.send_back.send_back(message)
    (copy,) = await env.arrived(RETRIES)

    assert copy.body == b"body"
    assert fields(env.broker.requests_of(SEND)[0])["f"] == "0"
    assert env.broker.requests_of(BACK) == []


async def test_messages_of_static_topics_are_copied_at_once(env: RetryEnv) -> None:
    message = env.message()
    message.queue = MessageQueue("orders", "__syslo__global", 0)
    route = await env.instance.routes.get("orders")
    route.owners[message.queue] = env.broker.name
    await env.send_back.send_back(message)

    assert len(await env.arrived(RETRIES)) == 1
    assert env.broker.requests_of(BACK) == []


async def test_copy_counts_local_retries(env: RetryEnv) -> None:
    message = env.message(reconsume_times=1)
    message.local_retries = 4
    await env.send_back.send_back(message)
    (copy,) = await env.arrived(RETRIES)

    assert fields(env.broker.requests_of(SEND)[0])["j"] == "6"
    assert copy.properties["DELAY"] == "8"
    assert env.broker.requests_of(BACK) == []


async def test_a_copy_goes_to_another_broker_if_there_is_one(shops: Callable[..., Any]) -> None:
    env = await shops(2)
    message = env.message()
    await env.broker.stop()
    await env.send_back.send_back(message)

    assert len(await env.arrived(RETRIES, env.cluster.brokers[1])) == 1


async def test_the_messages_own_broker_is_the_last_to_be_tried(shops: Callable[..., Any]) -> None:
    env = await shops(2)
    env.broker.faults.handle("send_back", REFUSED, broker="broker-a")
    env.cluster.faults.refuse(SEND, broker="broker-b")
    await env.send_back.send_back(env.message())

    assert len(env.cluster.brokers[1].requests_of(SEND)) == 1
    assert len(await env.arrived(RETRIES)) == 1


async def test_a_broker_without_the_retry_topic_makes_it_if_need_be(
    shops: Callable[..., Any],
) -> None:
    env = await shops(2)
    del env.broker.topics[RETRIES]
    await env.instance.routes.fetch(RETRIES)
    env.broker.faults.handle("send_back", REFUSED, broker="broker-a")
    env.cluster.faults.refuse(SEND, broker="broker-b")
    await env.send_back.send_back(env.message())

    assert len(env.broker.requests_of(BACK)) == 1
    assert len(await env.arrived(RETRIES)) == 1


async def test_only_a_few_brokers_are_tried(shops: Callable[..., Any]) -> None:
    env = await shops(COPY_ATTEMPTS + 2)
    for broker in env.cluster.brokers:
        broker.faults.handle("send_back", REFUSED, broker=broker.name)
        broker.faults.refuse(SEND, broker=broker.name)

    with pytest.raises(BusyError):
        await env.send_back.send_back(env.message())
    tried = sum(len(broker.requests_of(SEND)) for broker in env.cluster.brokers)
    assert tried == COPY_ATTEMPTS


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_flush_timeouts_count_as_stored(env: RetryEnv, code: int) -> None:
    env.broker.faults.handle("send_back", REFUSED)
    env.broker.faults.refuse(SEND, code)
    await env.send_back.send_back(env.message())

    assert len(env.broker.requests_of(SEND)) == 1


async def test_copy_goes_to_the_origin_without_a_retry_topic(env: RetryEnv) -> None:
    del env.broker.topics[RETRIES]
    env.instance.routes._routes.pop(RETRIES)
    env.broker.faults.handle("send_back", REFUSED)
    await env.send_back.send_back(env.message())

    assert len(await env.arrived(RETRIES)) == 1


async def test_message_that_no_broker_stores_raises_and_is_unchanged(env: RetryEnv) -> None:
    env.broker.faults.handle("send_back", REFUSED)
    env.broker.faults.refuse(SEND, 13, "too long")
    message = env.message()
    assert message.properties["own"] == "x"
    before = msgspec.structs.astuple(message)

    with pytest.raises(BrokerError, match="too long"):
        await env.send_back.send_back(message)
    assert msgspec.structs.astuple(message) == before


async def test_copy_ignores_properties_changed_by_handlers(env: RetryEnv) -> None:
    message = env.message()
    message.properties["own"] = "changed"
    message.properties["more"] = "y"
    header, _ = copy_of(message, RETRIES, 3)

    copied = parse_properties((header.properties or "").encode())
    assert (copied["own"], "more" in copied) == ("x", False)


async def test_unknown_broker_is_an_error(env: RetryEnv) -> None:
    env.cluster.name_server.unregister(env.broker)
    env.instance.routes._routes.clear()

    with pytest.raises(NotConnectedError):
        await env.send_back.send_back(env.message())


async def test_without_a_route_of_the_retry_topic_nothing_is_sent(env: RetryEnv) -> None:
    """The group may have no retry queues: its brokers would drop the message."""
    message = env.message()
    del env.instance.routes._routes[RETRIES]
    await env.cluster.name_server.stop()

    with pytest.raises(NameServerUnavailableError):
        await env.send_back.send_back(message)
    assert env.broker.requests_of(BACK) == []


async def test_a_copy_has_the_fields_of_a_send(env: RetryEnv) -> None:
    header, _ = copy_of(env.message(), RETRIES, 3)

    assert to_ext_fields(header).keys() == set("abcdefghijklm")
