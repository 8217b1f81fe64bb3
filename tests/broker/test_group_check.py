"""Members of a group that do not get along are noticed on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocketmq_aio.config import ClientConfig
from rocketmq_aio.consumer.events import ClientIdNotUnique, ConsumerEvent, SubscriptionsDiffer
from rocketmq_aio.consumer.group_check import GroupCheck
from rocketmq_aio.consumer.lite_pull import LitePullConsumer
from rocketmq_aio.protocol.subscription import subscription

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
