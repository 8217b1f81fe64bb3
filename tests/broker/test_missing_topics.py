"""MissingTopics on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import anyio
import pytest

from rocketmq_aio import (
    AdminClient,
    ConsumerEvent,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageQueue,
    MessageSelector,
    PopConsumer,
    Producer,
    PushConsumer,
    SubscriptionError,
    TopicFound,
    TopicMissing,
)

EVENT_SECONDS: Final = 90

Event = TopicMissing | TopicFound


async def next_event(events: AsyncIterator[ConsumerEvent]) -> Event:
    with anyio.fail_after(EVENT_SECONDS):
        async for event in events:
            if isinstance(event, TopicMissing | TopicFound):
                return event
    raise AssertionError("the stream ended")


async def handle(_message: object) -> None:
    """A handler that does nothing."""


@pytest.mark.parametrize("kind", ["push", "lite", "assigned", "pop"])
async def test_a_missing_topic_is_reported_until_it_appears(
    namesrv: str, group: str, topic: str, kind: str, rocketmq_version: str
) -> None:
    """The fixture's topic exists; the subscribed one has a different last letter."""
    if kind == "pop" and rocketmq_version.startswith("4."):
        kind = "lite"  # these brokers do not support popping
    typo = f"{topic}x"
    consumer: PushConsumer | LitePullConsumer | PopConsumer
    if kind == "push":
        consumer = PushConsumer(group, namesrv=namesrv, on_message=handle)
    elif kind == "pop":
        consumer = PopConsumer(group, namesrv=namesrv)
    else:
        consumer = LitePullConsumer(group, namesrv=namesrv)
    events = consumer.events()
    async with consumer:
        if kind == "assigned":
            assert isinstance(consumer, LitePullConsumer)
            await consumer.assign([MessageQueue(typo, "broker-a", 0)])
        else:
            await consumer.subscribe(typo)
        missing = await next_event(events)
        async with AdminClient(namesrv=namesrv) as admin:
            await admin.create_topic(typo)
            try:
                found = await next_event(events)
            finally:
                await admin.delete_topic(typo)

    assert missing == TopicMissing(topic=typo, namesrv=(namesrv,), nearest=topic)
    assert found == TopicFound(topic=typo)


async def test_an_sql_expression_for_a_missing_topic_is_checked_and_waits_for_it(
    namesrv: str, group: str, topic: str
) -> None:
    missing = f"{topic}x"
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        with pytest.raises(SubscriptionError):
            await consumer.subscribe(missing, MessageSelector.by_sql("price >"))
        await consumer.subscribe(missing, MessageSelector.by_sql("price > 1"))
        async with AdminClient(namesrv=namesrv) as admin, Producer("shop", namesrv=namesrv) as shop:
            await admin.create_topic(missing)
            try:
                for price in range(4):
                    await shop.send(Message(missing, b"tea", properties={"price": str(price)}))
                prices: list[str | None] = []
                with anyio.fail_after(EVENT_SECONDS):
                    while len(prices) < 2:
                        found = await consumer.poll(timeout_seconds=5)
                        prices += [message.property("price") for message in found]
            finally:
                await admin.delete_topic(missing)

    assert sorted(map(str, prices)) == ["2", "3"]
