"""Delayed messages and recall."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.server import VERSIONS
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    ConfigError,
    InvalidMessageError,
    NotConnectedError,
    NotSupportedError,
    PermissionDeniedError,
    SendError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.patience import PATIENCE_SECONDS
from tests.unit.producer.producer_env import (
    SEND,
    ProducerEnv,
    open_producer,
    record_timeouts,
    stopped,
)
from tests.unit.remoting.until import until

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


def test_no_delay_sets_no_property() -> None:
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
def test_an_invalid_delivery_time_is_rejected(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidMessageError):
        properties_of(**fields)


# --- sends ---------------------------------------------------------------------------------------


async def test_a_delayed_message_is_delivered_at_its_time(env: ProducerEnv) -> None:
    result = await env.producer.send(Message("orders", b"later", delay_seconds=30))
    kept = env.bodies()
    env.broker.state.clock.advance(30)

    assert kept == []
    assert result.recall_handle is not None
    assert env.bodies() == [b"later"]


@pytest.mark.parametrize("when", ["delay_seconds", "deliver_at"])
async def test_brokers_before_5_get_no_delayed_messages(when: str) -> None:
    value = 60 if when == "delay_seconds" else datetime.now(UTC) + timedelta(minutes=1)
    message = Message("orders", b"later", **{when: value})  # type: ignore[arg-type]
    async with open_producer(version="4.9.7") as env:
        with pytest.raises(
            NotSupportedError, match=r"delivery time needs a broker from 5\.0.*delay levels"
        ):
            await env.producer.send(message)
        with pytest.raises(NotSupportedError):
            await env.producer.send(message, queue=env.queue())
        with pytest.raises(NotSupportedError):
            await env.producer.send(message, sharding_key="a")
        with pytest.raises(NotSupportedError):
            await env.producer.send_oneway(message)

        assert env.bodies() == []


async def test_among_mixed_versions_only_brokers_from_5_get_delayed_messages(
    two_brokers: ProducerEnv,
) -> None:
    two_brokers.brokers[0].version = VERSIONS["4.9.7"]
    two_brokers.broker.faults.refuse(SEND, 2, "busy", times=2, broker="broker-b")  # is sent again
    results = await asyncio.gather(*(two_brokers.producer.send(LATER) for _ in range(8)))

    assert {each.queue.broker_name for each in results} == {"broker-b"}
    with pytest.raises(NotSupportedError):
        await two_brokers.producer.send(LATER, queue=two_brokers.queue(0, "broker-a"))
    assert two_brokers.brokers[0].requests_of(RequestCode.SEND_MESSAGE_V2) == []


async def test_a_broker_of_unknown_version_gets_no_delayed_messages(
    two_brokers: ProducerEnv,
) -> None:
    await stopped(two_brokers, two_brokers.brokers[0])
    results = [await two_brokers.producer.send(LATER) for _ in range(4)]

    assert {each.queue.broker_name for each in results} == {"broker-b"}


async def test_a_frozen_broker_leaves_time_to_delay_at_another(two_brokers: ProducerEnv) -> None:
    frozen, other = two_brokers.brokers
    await two_brokers.producer.client.heartbeats.version_of(other.address)
    frozen.freeze()
    timeouts = record_timeouts(two_brokers)
    results = [await two_brokers.producer.send(LATER, timeout_seconds=4) for _ in range(8)]

    assert {each.queue.broker_name for each in results} == {other.name}
    assert min(timeouts) > 0.4  # of the send itself


async def test_a_delayed_send_fails_if_no_version_is_known(env: ProducerEnv) -> None:
    await stopped(env, env.broker)
    with pytest.raises(SendError, match="does not say"):
        await env.producer.send(LATER, timeout_seconds=1)


@pytest.mark.parametrize("chosen", [True, False])
async def test_a_delayed_send_waits_for_a_broker_that_starts(
    chosen: bool, env: ProducerEnv
) -> None:
    await stopped(env, env.broker)
    queue = env.queue() if chosen else None
    sending = asyncio.create_task(
        env.producer.send(LATER, queue=queue, timeout_seconds=PATIENCE_SECONDS)
    )
    await until(lambda: bool(env.producer.client.heartbeats._retries), "a failed heartbeat")
    await env.broker.start()

    assert (await sending).ok


async def test_a_too_late_delivery_time_raises_the_error_of_the_broker(env: ProducerEnv) -> None:
    with pytest.raises(BrokerError, match="max delay") as caught:
        await env.producer.send(Message("orders", b"x", delay_seconds=4 * 24 * 3600))

    assert caught.value.code == 13


async def test_delayed_messages_are_not_batched(env: ProducerEnv) -> None:
    with pytest.raises(InvalidMessageError, match="delayed"):
        await env.producer.send_batch([LATER, LATER])


async def test_closing_the_client_ends_the_wait_for_the_version_of_a_broker() -> None:
    async with open_producer(config=ProducerConfig(send_timeout_seconds=60)) as env:
        held = env.cluster.faults.hold("heartbeat", executed=False)
        sending = asyncio.create_task(env.producer.send(LATER))
        await held.wait(1)
        await env.producer.client.close()

        with pytest.raises(ClosedError):
            await asyncio.wait_for(sending, 15)


# --- recalls -------------------------------------------------------------------------------------


async def test_a_recalled_message_is_not_delivered(env: ProducerEnv) -> None:
    env.broker.state.update_settings({"recallMessageEnable": "true"})
    sent = await env.producer.send(LATER)
    recalled = await env.producer.recall("orders", sent.recall_handle)
    await env.producer.send(Message("orders", b"other", delay_seconds=3600.5))
    env.broker.state.clock.advance(2 * 3600)

    assert recalled == sent.message_id
    assert env.bodies() == [b"other"]
    (asked,) = env.broker.requests_of(RequestCode.RECALL_MESSAGE)
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
        cluster.broker.state.update_settings({"recallMessageEnable": "true"})
        sent = await producer.send(LATER)
        assert await producer.recall(topic, sent.recall_handle) == sent.message_id

        (asked,) = cluster.broker.requests_of(RequestCode.RECALL_MESSAGE)
        assert asked.ext_fields()["topic"] == "shop%orders"
        with pytest.raises(ConfigError, match="about topic 'shop%orders'"):
            await producer.recall("others", sent.recall_handle)
        with pytest.raises(ConfigError, match="about topic 'orders'"):
            await producer.recall("orders", handle("v1 orders broker-a 1 AB"))


async def test_recalls_go_to_the_broker_of_the_message(two_brokers: ProducerEnv) -> None:
    for broker in two_brokers.brokers:
        broker.state.update_settings({"recallMessageEnable": "true"})
    for _ in range(8):
        sent = await two_brokers.producer.send(LATER)
        assert await two_brokers.producer.recall("orders", sent.recall_handle) == sent.message_id

    counts = [len(b.requests_of(RequestCode.RECALL_MESSAGE)) for b in two_brokers.brokers]
    assert counts == [4, 4]


async def test_a_broker_without_recall_permission_raises(env: ProducerEnv) -> None:
    sent = await env.producer.send(LATER)
    with pytest.raises(PermissionDeniedError, match="forbidden"):
        await env.producer.recall("orders", sent.recall_handle)


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
async def test_an_invalid_recall_handle_raises(topic: str, given: str, env: ProducerEnv) -> None:
    with pytest.raises(ConfigError):
        await env.producer.recall(topic, given)

    assert env.broker.requests_of(RequestCode.RECALL_MESSAGE) == []


async def test_a_recall_ends_at_its_deadline_while_it_looks_for_the_broker() -> None:
    config = ProducerConfig(send_timeout_seconds=0.2)
    client = ClientConfig(request_timeout_seconds=60)
    async with open_producer(config=config, client=client) as env:
        env.cluster.faults.drop("route", executed=False, times=None)
        with pytest.raises(NotConnectedError, match="its address is not known"):
            await asyncio.wait_for(
                env.producer.recall("orders", handle("v1 orders broker-z 1 0A")), 15
            )


async def test_closing_the_client_ends_a_recall_that_looks_for_the_broker() -> None:
    async with open_producer() as env:
        held = env.cluster.name_server.faults.hold("route")
        recalling = asyncio.create_task(
            env.producer.recall("orders", handle("v1 orders broker-z 1 0A"))
        )
        await held.wait(1)
        await env.producer.client.close()

        with pytest.raises(ClosedError):
            await recalling


async def test_recall_needs_a_newer_broker() -> None:
    async with open_producer(version="4.9.7") as env:
        with pytest.raises(NotSupportedError):
            await env.producer.recall("orders", handle("v1 orders broker-a 1 id"))


@pytest.mark.parametrize("version", VERSIONS)
async def test_brokers_may_have_more_delay_levels_than_by_default(version: str) -> None:
    async with open_producer(version=version) as env:
        env.broker.delays.seconds += [4 * 3600, 8 * 3600]
        await env.producer.send(Message("orders", b"20", delay_level=20))
        env.cluster.clock.advance(8 * 3600 - 60)
        assert env.bodies() == []

        env.cluster.clock.advance(60)
        assert env.bodies() == [b"20"]
