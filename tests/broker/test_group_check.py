"""Members of a group that do not get along are noticed on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio.config import ClientConfig, LitePullConfig
from rocketmq_aio.consumer import group_check
from rocketmq_aio.consumer.events import (
    ClientIdNotUnique,
    ConsumerEvent,
    SubscriptionMatchesNothing,
    SubscriptionsDiffer,
)
from rocketmq_aio.consumer.group_check import GroupCheck
from rocketmq_aio.consumer.lite_pull import LitePullConsumer
from rocketmq_aio.message import Message, MessageSelector
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.subscription import subscription
from tests.unit.remoting.until import until_done

MISSED = 50
CHECKS = 4  # more than any fault needs


@asynccontextmanager
async def member(
    namesrv: str, group: str, topic: str, name: str, selector: str = "*"
) -> AsyncIterator[LitePullConsumer]:
    client = ClientConfig(namesrv=namesrv, instance_name=name)
    async with LitePullConsumer(group, client=client) as consumer:
        await consumer.subscribe(topic, selector)
        yield consumer


async def told(consumer: LitePullConsumer, topic: str, selector: str = "*") -> list[ConsumerEvent]:
    """Return what the checks of a member tell."""
    events: list[ConsumerEvent] = []
    check = GroupCheck(
        consumer.client,
        consumer.group,
        subscriptions=lambda: [subscription(topic, selector, 1)],
        on_event=events.append,
    )
    for _ in range(CHECKS):
        await check.check()
    assert not check._refused
    return events


async def test_members_that_agree_have_no_faults(namesrv: str, group: str, topic: str) -> None:
    async with (
        member(namesrv, group, topic, "a", "new || paid") as one,
        member(namesrv, group, topic, "b", "paid||new") as two,
    ):
        assert await told(one, topic, "new || paid") == []
        assert await told(two, topic, "paid||new") == []


async def test_members_with_different_expressions_are_told(
    namesrv: str, group: str, topic: str
) -> None:
    async with (
        member(namesrv, group, topic, "a", "new") as one,
        member(namesrv, group, topic, "b", "paid"),
    ):
        assert await told(one, topic, "new") == [
            SubscriptionsDiffer(topic=topic, ours="new", theirs="paid")
        ]


async def test_members_with_different_topics_are_told(namesrv: str, group: str, topic: str) -> None:
    async with (
        member(namesrv, group, topic, "a") as one,
        member(namesrv, group, topic, "b") as two,
    ):
        await one.subscribe(f"{topic}-2")
        await two.client.heartbeats.beat_all(anew=True)
        events = await told(two, topic)
        await one.client.heartbeats.beat_all(anew=True)
        later = await told(two, topic)

    assert events == []  # the table is that of the last heartbeat, and so in turn
    assert later == [SubscriptionsDiffer(topic=f"{topic}-2", ours=None, theirs="*")]


async def test_members_with_the_same_instance_name_are_told(
    namesrv: str, group: str, topic: str
) -> None:
    async with (
        member(namesrv, group, topic, "same") as one,
        member(namesrv, group, topic, "same"),
    ):
        (event,) = await told(one, topic)

    assert isinstance(event, ClientIdNotUnique)
    assert event.client_id == one.client.client_id
    assert len(event.addresses) == 2


@pytest.mark.parametrize("by_sql", [False, True], ids=["tags", "sql"])
async def test_a_filter_that_nothing_comes_through_is_told_once(
    namesrv: str, group: str, topic: str, by_sql: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_check, "NOTHING_SECONDS", 0.0)
    monkeypatch.setattr(group_check, "NOTHING_MESSAGES", MISSED)
    async with Producer(f"{group}-till", namesrv=namesrv) as producer:
        await producer.send_batch([Message(topic, b"x", tags="new") for _ in range(MISSED)])
    selector = MessageSelector.by_sql("TAGS = 'piad'") if by_sql else "piad"
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic, selector)
        await consumer.ready()
        events: list[ConsumerEvent] = []
        consumer._engine._checks._on_event = events.append

        async def noticed() -> bool:
            await consumer._engine._checks.check()
            return bool(events)

        await until_done(noticed, "the event", 60)
        await consumer._engine._checks.check()

    [event] = events
    assert isinstance(event, SubscriptionMatchesNothing)
    assert (event.topic, event.messages) == (topic, MISSED)
    assert "piad" in event.expression
