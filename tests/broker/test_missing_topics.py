"""MissingTopics on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import anyio
import pytest

from rocketmq_aio import (
    AdminClient,
    ConsumerEvent,
    LitePullConsumer,
    MessageQueue,
    PopConsumer,
    PushConsumer,
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
