"""Producer on a scripted cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig, ClientSettings, Credentials
from rocketmq_aio.config.producer import Compression, ProducerConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import BrokerError, ConfigError, InvalidMessageError, PayloadError
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendStatus
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.queue_selectors import select_by_hash
from rocketmq_aio.producer.send_request import MAX_OWN_PROPERTIES, PLACEHOLDER_ID, encode_with_id
from rocketmq_aio.protocol.codes import BINARY_HEADER, JSON_HEADER
from rocketmq_aio.protocol.compression import inflate
from tests.fakes.cluster import FakeCluster
from tests.unit.producer.producer_env import ORDER, SEND, ProducerEnv, open_producer

ANY_ENCODING: list[ClientSettings] = [
    {},
    {"header_encoding": "json"},
    {"credentials": Credentials(access_key="admin", secret_key="adminsecret")},
]


# --- what arrives --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("settings", ANY_ENCODING, ids=["binary", "json", "signed"])
async def test_a_message_is_stored_as_it_was_sent(version: str, settings: ClientSettings) -> None:
    message = Message(
        "orders",
        "訂單".encode(),
        tags="new",
        keys=["42", "43"],
        properties={"color": "röt"},
        flag=7,
        wait_store_ok=False,
    )
    async with open_producer(version=version, client=ClientConfig(**settings)) as env:
        result = await env.producer.send(message)
        (stored,) = env.broker.messages("orders")

        assert stored.body == message.body
        expected = {"TAGS": "new", "KEYS": "42 43", "color": "röt"}
        assert stored.properties.items() >= expected.items()
        assert stored.properties["UNIQ_KEY"] == result.message_id
        (header,) = env.sends()
        assert "WAIT\x01false\x02" in str(header.properties)  # 4.9.7 does not store it
        assert (header.producer_group, header.topic, header.flag) == ("shop", "orders", 7)
        assert (header.batch, header.reconsume_times, header.unit_mode) == (False, 0, False)
        assert header.default_topic == "TBW102"


async def test_the_result_has_queue_offset_and_ids(env: ProducerEnv) -> None:
    results = [await env.producer.send(ORDER, queue=env.queue(2)) for _ in range(3)]
    stored = env.broker.messages("orders", 2)

    assert [each.queue_offset for each in results] == [0, 1, 2]
    assert {each.queue for each in results} == {env.queue(2)}
    assert [each.offset_message_id for each in results] == [each.message_id for each in stored]
    assert {each.status for each in results} == {SendStatus.SEND_OK}
    assert len({each.message_id for each in results}) == 3
    assert all(each.ok for each in results)


async def test_round_robin_covers_all_brokers() -> None:
    async with open_producer(brokers=2, queues=3) as env:
        results = [await env.producer.send(ORDER) for _ in range(12)]

        assert set(Counter(each.queue for each in results).values()) == {2}
        assert [len(broker.messages("orders")) for broker in env.brokers] == [6, 6]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_a_large_body_is_sent_compressed(kind: Compression) -> None:
    body = b"orders and payments " * 1000
    async with open_producer(config=ProducerConfig(compression=kind)) as env:
        await env.producer.send(Message("orders", body))
        (header,) = env.sends()
        (stored,) = env.broker.messages("orders")

        assert len(stored.body) < len(body)
        assert inflate(stored.body, header.sys_flag) == body


async def test_the_same_message_can_be_sent_again_and_gets_another_id(env: ProducerEnv) -> None:
    results = await asyncio.gather(*(env.producer.send(ORDER) for _ in range(10)))

    assert len({each.message_id for each in results}) == 10
    assert env.bodies() == [b"hello"] * 10


async def test_concurrent_sends_share_writes_and_all_arrive() -> None:
    bodies = [b"%d" % number for number in range(500)]
    async with open_producer() as env:
        await asyncio.gather(*(env.producer.send(Message("orders", body)) for body in bodies))

        assert sorted(env.bodies()) == sorted(bodies)
        assert len(env.broker.connects) == 1


async def test_sends_of_one_task_to_one_queue_keep_their_order(env: ProducerEnv) -> None:
    for number in range(50):
        await env.producer.send(Message("orders", b"%d" % number), queue=env.queue(1))

    stored = env.broker.messages("orders", 1)
    assert [each.body for each in stored] == [b"%d" % number for number in range(50)]


async def test_the_queue_id_of_the_response_is_used(env: ProducerEnv) -> None:
    answer = {"msgId": "0A", "queueId": "3", "queueOffset": "9"}
    env.broker.faults.handle(SEND, Response(ext=answer))
    result = await env.producer.send(ORDER, queue=env.queue(1))

    assert (result.queue, result.queue_offset) == (env.queue(3), 9)


# --- the choice of the queue ---------------------------------------------------------------------


async def test_a_selector_chooses_the_queue() -> None:
    seen: list[tuple[int, Message]] = []

    def last(queues: object, message: Message) -> MessageQueue:
        assert isinstance(queues, tuple)
        seen.append((len(queues), message))
        return queues[-1]  # type: ignore[no-any-return]

    async with open_producer() as env:
        result = await env.producer.send(ORDER, selector=last)

        assert result.queue == env.queue(3)
        assert seen == [(4, ORDER)]


async def test_one_key_goes_to_one_queue(env: ProducerEnv) -> None:
    results = [
        await env.producer.send(ORDER, selector=select_by_hash("customer-7")) for _ in range(5)
    ]

    assert len({each.queue for each in results}) == 1


async def test_an_error_of_the_selector_is_raised_and_releases_the_place() -> None:
    def broken(queues: object, message: Message) -> MessageQueue:
        raise LookupError("no choice")

    async with open_producer() as env:
        with pytest.raises(LookupError):
            await env.producer.send(ORDER, selector=broken)

        assert env.sends() == []
        assert (env.producer._in_flight.count, env.producer._in_flight.bytes) == (0, 0)


async def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    return queues[0]


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (choose, r"test_producer.choose': expected a plain function"),
        (lambda queues, message: None, "it returned None: expected one of the queues"),
        (lambda queues, message: 0, "it returned 0: expected one of the queues"),
        (lambda queues: queues[0], r"called with \(queues, message\), and takes \(queues\)"),
        ("first", "expected a function"),
    ],
)
async def test_a_selector_without_a_queue_raises_config_error(
    selector: Any,  # noqa: ANN401 - what somebody may give
    words: str,
    env: ProducerEnv,
) -> None:
    for send in (env.producer.send, env.producer.send_oneway):
        with pytest.raises(ConfigError, match=words) as caught:
            await send(ORDER, selector=selector)
        assert caught.value.setting == "selector"
    assert env.sends() == []
    assert (env.producer._in_flight.count, env.producer._in_flight.bytes) == (0, 0)


async def test_queue_and_selector_exclude_each_other(env: ProducerEnv) -> None:
    with pytest.raises(ConfigError, match="either"):
        await env.producer.send(ORDER, queue=env.queue(), selector=select_by_hash("x"))


async def test_a_queue_of_another_topic_is_rejected(env: ProducerEnv) -> None:
    with pytest.raises(ConfigError, match="payments"):
        await env.producer.send(ORDER, queue=MessageQueue("payments", "broker-a", 0))

    assert env.sends() == []


async def test_the_broker_rejects_an_unknown_queue() -> None:
    config = ProducerConfig(retries=0)
    async with open_producer(version="5.5.0", config=config) as env:
        with pytest.raises(BrokerError, match="illegal"):
            await env.producer.send(ORDER, queue=env.queue(99))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", bytes(1001)),
        Message("orders", b"x", properties={"p": "v" * 40_000}),
        Message("unheard-of", bytes(1001)),
    ],
)
async def test_an_invalid_message_is_rejected_before_any_request(message: Message) -> None:
    async with open_producer(config=ProducerConfig(max_message_bytes=1000)) as env:
        asked = len(env.cluster.name_server.requests)
        for send in (env.producer.send, env.producer.send_oneway):
            with pytest.raises(InvalidMessageError):
                await send(message)

        assert env.broker.requests == []
        assert len(env.cluster.name_server.requests) == asked


@pytest.mark.parametrize("message", [None, b"bytes", "text", {"topic": "orders"}])
async def test_anything_but_a_message_is_rejected(message: Message, env: ProducerEnv) -> None:
    for send in (env.producer.send, env.producer.send_oneway):
        with pytest.raises(InvalidMessageError, match=r"expected Message\(topic, body\), got"):
            await send(message)


@pytest.mark.parametrize("seconds", [0, -1, True, "3", float("nan"), float("inf")])
async def test_an_invalid_timeout_is_rejected(seconds: float, env: ProducerEnv) -> None:
    with pytest.raises(ConfigError) as caught:
        await env.producer.send(ORDER, timeout_seconds=seconds)

    assert caught.value.setting == "timeout_seconds"
    assert env.sends() == []


def test_invalid_arguments_are_rejected_by_the_constructor() -> None:
    with pytest.raises(ConfigError, match="ProducerConfig"):
        Producer("shop", namesrv="127.0.0.1:9876", config=ClientConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="namesrv"):
        Producer("shop", namesrv="no address")


# --- values --------------------------------------------------------------------------------------


async def test_send_value_encodes_with_the_codec() -> None:
    async with open_producer(config=ProducerConfig(codec=JSONCodec(dict[str, int]))) as env:
        result = await env.producer.send_value(
            "orders", {"id": 7}, queue=env.queue(2), tags="new", keys="7"
        )
        (stored,) = env.broker.messages("orders", 2)

        assert stored.body == b'{"id":7}'
        assert stored.properties.items() >= {"TAGS": "new", "KEYS": "7"}.items()
        assert stored.properties["UNIQ_KEY"] == result.message_id


async def test_a_value_that_the_codec_rejects_is_not_sent() -> None:
    async with open_producer(config=ProducerConfig(codec=JSONCodec())) as env:
        with pytest.raises(PayloadError):
            await env.producer.send_value("orders", object())
        assert env.sends() == []


async def test_send_value_needs_a_codec(env: ProducerEnv) -> None:
    with pytest.raises(ConfigError, match="ProducerConfig"):
        await env.producer.send_value("orders", {"id": 7})


async def test_properties_up_to_the_limit_fit_with_the_longest_namespace() -> None:
    namespace, properties = "n" * 64, {"p": "v"}
    length = len(encode_with_id(Message("orders", b"x", properties=properties), PLACEHOLDER_ID))
    properties["p"] = "v" * (MAX_OWN_PROPERTIES - length + 1)
    message = Message("orders", b"x", properties=properties)
    async with FakeCluster(topics={f"{namespace}%orders": 1}) as cluster:
        client = ClientConfig(namesrv=cluster.namesrv, namespace=namespace)
        async with Producer("till", client=client) as producer:
            await producer.send(message)
            await producer.send_batch([message, message])

        stored = cluster.broker.messages(f"{namespace}%orders")
        assert [each.properties["p"] for each in stored] == [properties["p"]] * 3
        assert stored[0].properties["INSTANCE_ID"] == namespace


# --- settings that change every frame ------------------------------------------------------------


class TeamHook:
    """Adds a field to every request."""

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        ext_fields["team"] = "billing"

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None: ...


@pytest.mark.parametrize(
    ("settings", "added", "encoding"),
    [
        (ClientConfig(rpc_hooks=(TeamHook(),)), {"team": "billing"}, BINARY_HEADER),
        (
            ClientConfig(namespace="unit1", namespace_version=2),
            {"nsd": "true", "ns": "unit1"},
            BINARY_HEADER,
        ),
        (ClientConfig(header_encoding="json"), {}, JSON_HEADER),
    ],
    ids=["RPC hooks", "namespace", "JSON headers"],
)
async def test_settings_of_requests_apply_to_sends(
    settings: ClientConfig, added: dict[str, str], encoding: int
) -> None:
    async with open_producer(client=settings) as env:
        await env.producer.send(ORDER)
        (frame,) = [each for each in env.broker.requests if each.command.code == SEND]

    assert frame.encoding == encoding
    assert added.items() <= frame.command.ext_fields().items()
