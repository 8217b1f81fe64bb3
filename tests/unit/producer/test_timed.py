"""Messages with a delivery time: only to brokers that keep it; and recalls."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import (
    BrokerError,
    ConfigError,
    InvalidMessageError,
    NotSupportedError,
    PermissionDeniedError,
    SendError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.server import VERSIONS
from tests.unit.producer.producer_env import open_shop, stopped

LATER = Message("orders", b"later", delay_seconds=3600)


def properties_of(**fields: object) -> dict[str, str]:
    return Message("orders", b"x", **fields).properties  # type: ignore[arg-type]


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"delay_seconds": 5}, "TIMER_DELAY_MS", "5000"),
        ({"delay_seconds": 0.0001}, "TIMER_DELAY_MS", "1"),
        ({"delay_seconds": 1.5}, "TIMER_DELAY_MS", "1500"),
        ({"delay_level": 3}, "DELAY", "3"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "TIMER_DELIVER_MS", "1893456000000"),
        ({"deliver_at": datetime(1960, 1, 1, tzinfo=UTC)}, "TIMER_DELIVER_MS", "0"),
    ],
)
def test_a_delivery_time_is_a_property(fields: dict[str, object], name: str, value: str) -> None:
    message = Message("orders", b"x", **fields)  # type: ignore[arg-type]

    assert message.properties[name] == value
    assert f"{name}\x01{value}\x02" in message.encoded_properties
    assert message.delayed
    assert message.timed == (name != "DELAY")


def test_no_delay_is_no_property() -> None:
    for message in (Message("orders", b"x"), Message("orders", b"x", delay_seconds=0)):
        assert message.properties.keys() == {"WAIT"}
        assert not message.delayed


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_seconds": -1},
        {"delay_seconds": float("nan")},
        {"delay_seconds": float("inf")},
        {"delay_seconds": True},
        {"delay_seconds": "5"},
        {"delay_seconds": 5, "delay_level": 1},
        {"delay_seconds": 5, "deliver_at": datetime.now(UTC)},
        {"deliver_at": datetime(2030, 1, 1)},
        {"deliver_at": 1893456000},
    ],
)
def test_a_bad_delivery_time_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidMessageError):
        properties_of(**fields)


# --- sends ---------------------------------------------------------------------------------------


async def test_a_timed_message_is_kept_until_its_time() -> None:
    async with open_shop() as shop:
        shop.broker.timers.hurry = 1000
        result = await shop.producer.send(Message("orders", b"later", delay_seconds=30))
        kept = shop.bodies()
        await shop.broker.state.store.changed.until(lambda: shop.bodies() != [], "the message")

        assert kept == []
        assert result.recall_handle is not None
        assert shop.bodies() == [b"later"]


@pytest.mark.parametrize("when", ["delay_seconds", "deliver_at"])
async def test_brokers_before_5_never_get_one(when: str) -> None:
    value = 60 if when == "delay_seconds" else datetime.now(UTC) + timedelta(minutes=1)
    message = Message("orders", b"later", **{when: value})  # type: ignore[arg-type]
    async with open_shop(version="4.9.7") as shop:
        with pytest.raises(NotSupportedError, match=r"from 5\.0"):
            await shop.producer.send(message)
        with pytest.raises(NotSupportedError):
            await shop.producer.send(message, queue=shop.queue())
        with pytest.raises(NotSupportedError):
            await shop.producer.send(message, sharding_key="a")
        with pytest.raises(NotSupportedError):
            await shop.producer.send_oneway(message)

        assert shop.bodies() == []


async def test_of_mixed_brokers_only_those_from_5_get_one() -> None:
    async with open_shop(brokers=2) as shop:
        shop.brokers[0].version = VERSIONS["4.9.7"]
        results = await asyncio.gather(*(shop.producer.send(LATER) for _ in range(8)))

        assert {each.queue.broker_name for each in results} == {"broker-b"}
        with pytest.raises(NotSupportedError):
            await shop.producer.send(LATER, queue=shop.queue(0, "broker-a"))
        assert shop.brokers[0].requests_of(RequestCode.SEND_MESSAGE_V2) == []


async def test_a_broker_that_cannot_be_asked_gets_none() -> None:
    async with open_shop(brokers=2) as shop:
        await stopped(shop, shop.brokers[0])
        results = [await shop.producer.send(LATER) for _ in range(4)]

        assert {each.queue.broker_name for each in results} == {"broker-b"}


async def test_without_a_broker_to_ask_the_send_fails() -> None:
    async with open_shop() as shop:
        await stopped(shop, shop.broker)
        with pytest.raises(SendError, match="does not say"):
            await shop.producer.send(LATER, timeout_seconds=1)


async def test_a_time_too_far_away_is_refused_in_the_brokers_words() -> None:
    async with open_shop() as shop:
        with pytest.raises(BrokerError, match="max delay") as caught:
            await shop.producer.send(Message("orders", b"x", delay_seconds=4 * 24 * 3600))

        assert caught.value.code == 13


async def test_delayed_messages_travel_alone() -> None:
    async with open_shop() as shop:
        with pytest.raises(InvalidMessageError, match="delayed"):
            await shop.producer.send_batch([LATER, LATER])


# --- recalls -------------------------------------------------------------------------------------


async def test_a_recalled_message_is_not_delivered() -> None:
    async with open_shop() as shop:
        shop.broker.timers.recall_enabled = True
        shop.broker.timers.hurry = 10_000
        sent = await shop.producer.send(LATER)
        recalled = await shop.producer.recall("orders", sent.recall_handle)
        await shop.producer.send(Message("orders", b"other", delay_seconds=3600.5))
        await shop.broker.state.store.changed.until(lambda: shop.bodies() != [], "the other")

        assert recalled == sent.message_id
        assert shop.bodies() == [b"other"]
        (asked,) = shop.broker.requests_of(RequestCode.RECALL_MESSAGE)
        assert asked.ext_fields()["bname"] == "broker-a"
        assert asked.ext_fields()["producerGroup"] == "shop"


@pytest.mark.parametrize("topic", ["orders", "shop%orders"])
async def test_a_message_of_a_namespace_can_be_recalled(topic: str) -> None:
    async with (
        FakeCluster(topics={"shop%orders": 1, "orders": 1}) as cluster,
        Producer(
            "till", client=ClientConfig(namesrv=cluster.namesrv, namespace="shop")
        ) as producer,
    ):
        cluster.broker.timers.recall_enabled = True
        sent = await producer.send(LATER)
        assert await producer.recall(topic, sent.recall_handle) == sent.message_id

        (asked,) = cluster.broker.requests_of(RequestCode.RECALL_MESSAGE)
        assert asked.ext_fields()["topic"] == "shop%orders"
        with pytest.raises(ConfigError, match="about topic 'shop%orders'"):
            await producer.recall("others", sent.recall_handle)
        with pytest.raises(ConfigError, match="about topic 'orders'"):
            await producer.recall("orders", handle("v1 orders broker-a 1 AB"))


async def test_recalls_go_to_the_broker_of_the_message() -> None:
    async with open_shop(brokers=2) as shop:
        for broker in shop.brokers:
            broker.timers.recall_enabled = True
        for _ in range(8):
            sent = await shop.producer.send(LATER)
            assert await shop.producer.recall("orders", sent.recall_handle) == sent.message_id

        counts = [len(b.requests_of(RequestCode.RECALL_MESSAGE)) for b in shop.brokers]
        assert counts == [4, 4]


async def test_a_broker_that_allows_no_recalls_says_so() -> None:
    async with open_shop() as shop:
        sent = await shop.producer.send(LATER)
        with pytest.raises(PermissionDeniedError, match="forbidden"):
            await shop.producer.recall("orders", sent.recall_handle)


def handle(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("topic", "given"),
    [
        ("orders", None),
        ("orders", ""),
        ("orders", "no base64 at all"),
        ("orders", 5),
        ("orders", handle("v1 orders broker-a 1")),
        ("orders", handle("v2 orders broker-a 1 id")),
        ("orders", handle("v1 other broker-a 1 id")),
        ("%RETRY%g", handle("v1 %RETRY%g broker-a 1 id")),
        ("%DLQ%g", handle("v1 %DLQ%g broker-a 1 id")),
    ],
)
async def test_what_cannot_be_recalled_is_refused_here(topic: str, given: str) -> None:
    async with open_shop() as shop:
        with pytest.raises(ConfigError):
            await shop.producer.recall(topic, given)

        assert shop.broker.requests_of(RequestCode.RECALL_MESSAGE) == []


async def test_a_broker_before_5_knows_no_recalls() -> None:
    async with open_shop(version="4.9.7") as shop:
        with pytest.raises(NotSupportedError):
            await shop.producer.recall("orders", handle("v1 orders broker-a 1 id"))
