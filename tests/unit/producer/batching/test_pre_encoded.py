"""Pre-encoded sends."""

from __future__ import annotations

import pytest

from rocketmq_aio.config.client import ClientConfig, ClientSettings, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    ConfigError,
    InvalidMessageError,
    NotSupportedError,
    RouteNotFoundError,
    SendError,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.batching.pre_encoded import Encoded
from rocketmq_aio.producer.send_request import MAX_TIMED_PROPERTIES
from rocketmq_aio.protocol.record import encode_batch_entry
from tests.unit.producer.producer_env import SEND_BATCH, ProducerEnv, open_producer

IDS = [f"{number:032X}" for number in range(3)]


def batch(topic: str = "orders") -> Encoded:
    entries = [
        encode_batch_entry(b"body %d" % place, f"UNIQ_KEY\x01{message_id}\x02".encode(), place)
        for place, message_id in enumerate(IDS)
    ]
    body = b"".join(part for entry in entries for part in entry)
    return Encoded(topic=topic, body=body, message_id=IDS[0], batch=True)


def single(**changes: object) -> Encoded:
    fields = {
        "topic": "orders",
        "body": b"one",
        "message_id": IDS[1],
        "properties": f"UNIQ_KEY\x01{IDS[1]}\x02TAGS\x01new\x02".encode(),
        "flag": 7,
    }
    return Encoded(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{}, {"credentials": Credentials(access_key="a", secret_key="secret1")}],
    ids=["prepared", "signed"],
)
async def test_an_encoded_batch_is_stored_with_its_ids(settings: ClientSettings) -> None:
    async with open_producer(client=ClientConfig(**settings)) as env:
        result = await env.producer.send_encoded(batch(), queue=env.queue(2))
        stored = env.broker.messages("orders", 2)

        assert len(env.broker.requests_of(SEND_BATCH)) == 1
        assert [each.body for each in stored] == [b"body 0", b"body 1", b"body 2"]
        assert [each.properties["UNIQ_KEY"] for each in stored] == IDS
        assert (result.message_id, result.queue_offset) == (IDS[0], 0)


async def test_a_message_is_stored_as_it_was_encoded(env: ProducerEnv) -> None:
    await env.producer.send_encoded(single())
    (stored,) = env.broker.messages("orders")

    assert stored.body == b"one"
    assert env.sends()[0].flag == 7
    assert stored.properties["UNIQ_KEY"] == IDS[1]
    assert stored.properties["TAGS"] == "new"


async def test_every_attempt_has_the_same_ids(two_brokers: ProducerEnv) -> None:
    two_brokers.cluster.faults.refuse(SEND_BATCH, 2, "busy", broker="broker-a")
    two_brokers.cluster.faults.refuse(SEND_BATCH, 2, "busy", broker="broker-b")
    await two_brokers.producer.send_encoded(batch(), timeout_seconds=5)
    stored = [each for broker in two_brokers.brokers for each in broker.messages("orders")]

    assert [each.properties["UNIQ_KEY"] for each in stored] == IDS


async def test_an_encoded_send_uses_the_queue_of_its_key() -> None:
    keys = [f"customer {number}" for number in range(20)]
    async with open_producer(brokers=2) as env:
        queues = await env.producer.queues_of_keys("orders", keys)
        results = [await env.producer.send_encoded(single(), sharding_key=key) for key in keys]

        assert [each.queue for each in results] == queues
        assert len(set(queues)) > 1


async def test_an_encoded_delivery_time_needs_a_broker_from_5() -> None:
    async with open_producer(version="4.9.7") as env:
        with pytest.raises(NotSupportedError):
            await env.producer.send_encoded(single(timed=True))

        assert env.bodies() == []


async def test_an_invalid_encoded_send_is_rejected_before_any_request() -> None:
    async with open_producer(config=ProducerConfig(max_message_bytes=10)) as env:
        with pytest.raises(InvalidMessageError, match="the batch has"):
            await env.producer.send_encoded(batch())
        with pytest.raises(InvalidMessageError, match="the body has 11 bytes"):
            await env.producer.send_encoded(single(body=bytes(11)))
        with pytest.raises(ConfigError, match="sharding_key"):
            await env.producer.send_encoded(single(), sharding_key=" ")
        with pytest.raises(ConfigError, match="only one of queue="):
            await env.producer.send_encoded(single(), queue=env.queue(0), sharding_key="a")
        with pytest.raises(ConfigError, match="topic"):
            await env.producer.queues_of_keys("no topic", ["a"])

        assert env.sends() == []


async def test_an_encoded_delivery_time_leaves_room_for_its_delivery(env: ProducerEnv) -> None:
    most = bytes(MAX_TIMED_PROPERTIES)
    await env.producer.send_encoded(single(properties=most, timed=True))
    await env.producer.send_encoded(single(properties=most + b"v"))
    with pytest.raises(InvalidMessageError, match=f"at most {MAX_TIMED_PROPERTIES} fit"):
        await env.producer.send_encoded(single(properties=most + b"v", timed=True))


async def test_an_encoded_batch_to_a_retry_topic_is_rejected(env: ProducerEnv) -> None:
    with pytest.raises(InvalidMessageError, match="retry topic"):
        await env.producer.send_encoded(batch("%RETRY%group"))


async def test_errors_of_encoded_sends_have_topic_and_id() -> None:
    async with open_producer(config=ProducerConfig(retries=0)) as env:
        env.broker.faults.refuse(SEND_BATCH, 2, "busy")
        with pytest.raises(SendError) as failed:
            await env.producer.send_encoded(batch())
        unknown = MessageQueue("orders", "broker-z", 0)
        with pytest.raises(RouteNotFoundError):
            await env.producer.send_encoded(single(), queue=unknown)

    assert (failed.value.topic, failed.value.message_id) == ("orders", IDS[0])


def test_the_repr_has_neither_body_nor_properties() -> None:
    assert repr(single()) == f"<Encoded 'orders' {IDS[1]} 3 bytes>"


@pytest.mark.parametrize(
    ("name", "value"),
    [("body", "text"), ("body", None), ("properties", "a"), ("message_id", 5), ("flag", "1")],
)
async def test_a_field_of_another_type_is_rejected(
    env: ProducerEnv, name: str, value: object
) -> None:
    with pytest.raises(InvalidMessageError, match=f"Encoded.{name} is {type(value).__name__}"):
        await env.producer.send_encoded(single(**{name: value}))
