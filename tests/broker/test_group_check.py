"""SubscriptionCheck on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.checks import filter_matches
from rocketmq_aio.consumer.checks.subscription_check import ENOUGH_RESPONSES
from rocketmq_aio.consumer.common.events import (
    ClientIdNotUnique,
    ConsumerEvent,
    MembersDiffer,
    SubscriptionMatchesNothing,
    SubscriptionsDiffer,
)
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageModel, MessageSelector
from rocketmq_aio.producer.producer import Producer
from tests.unit.remoting.until import until, until_done

MISSED = 50
EVENT_SECONDS = 300  # a loaded machine may need the slow path, which takes 120


class Member:
    """A started consumer and what its checks report."""

    def __init__(self, consumer: LitePullConsumer | PushConsumer) -> None:
        self.consumer = consumer
        self.events: list[ConsumerEvent] = []
        consumer._engine.context.publish = self.note

    def note(self, event: ConsumerEvent) -> None:
        if isinstance(event, SubscriptionsDiffer | MembersDiffer | ClientIdNotUnique):
            self.events.append(event)

    async def has(self, kind: type[ConsumerEvent]) -> ConsumerEvent:
        """Wait for the event of *kind*."""

        def found() -> list[ConsumerEvent]:
            return [each for each in self.events if isinstance(each, kind)]

        await until(found, kind.__name__, EVENT_SECONDS)
        return found()[0]

    async def checked(self, times: int) -> None:
        """Wait until *times* further checks have ended."""
        checks = self.consumer._engine.checks
        for _ in range(times):
            await checks.check()


@asynccontextmanager
async def member(
    namesrv: str,
    group: str,
    topic: str,
    name: str,
    selector: str = "*",
    config: LitePullConfig | None = None,
) -> AsyncIterator[Member]:
    client = ClientConfig(namesrv=namesrv, instance_name=name)
    consumer = LitePullConsumer(group, client=client, config=config)
    joined = Member(consumer)
    async with consumer:
        await consumer.subscribe(topic, selector)
        yield joined


async def test_members_that_agree_have_no_faults(namesrv: str, group: str, topic: str) -> None:
    async with (
        member(namesrv, group, topic, "a", "new || paid") as one,
        member(namesrv, group, topic, "b", "paid||new") as two,
    ):
        for each in (one, two):
            await each.checked(ENOUGH_RESPONSES + 1)
            [peer] = each.consumer._engine.checks._peers.values()
            assert peer.responses == ENOUGH_RESPONSES  # brokers forward the request
            assert each.events == []


async def test_all_members_report_different_expressions(
    namesrv: str, group: str, topic: str
) -> None:
    """Includes the last subscriber, whose expression the brokers keep."""
    async with (
        member(namesrv, group, topic, "a", "new") as one,
        member(namesrv, group, topic, "b", "paid") as two,
    ):
        assert await one.has(SubscriptionsDiffer) == SubscriptionsDiffer(
            topic=topic, ours="new", theirs="paid"
        )
        assert await two.has(SubscriptionsDiffer) == SubscriptionsDiffer(
            topic=topic, ours="paid", theirs="new"
        )


async def test_all_members_report_different_topics(namesrv: str, group: str, topic: str) -> None:
    async with member(namesrv, group, topic, "a") as one, member(namesrv, group, topic, "b") as two:
        await two.consumer.subscribe(f"{topic}-2")
        assert await one.has(SubscriptionsDiffer) == SubscriptionsDiffer(
            topic=f"{topic}-2", ours=None, theirs="*"
        )
        assert await two.has(SubscriptionsDiffer) == SubscriptionsDiffer(
            topic=f"{topic}-2", ours="*", theirs=None
        )


async def test_all_members_report_another_mode(namesrv: str, group: str, topic: str) -> None:
    async with member(namesrv, group, topic, "a") as one, ordered(namesrv, group, topic) as two:
        assert await one.has(MembersDiffer) == MembersDiffer(
            setting="orderly", ours="false", theirs="true"
        )
        assert await two.has(MembersDiffer) == MembersDiffer(
            setting="orderly", ours="true", theirs="false"
        )


async def test_all_members_report_a_broadcasting_one(
    namesrv: str, group: str, topic: str, tmp_path: Path
) -> None:
    broadcasting = LitePullConfig(
        message_model=MessageModel.BROADCASTING, offset_store=LocalFileOffsetStore(tmp_path)
    )
    async with (
        member(namesrv, group, topic, "a") as one,
        member(namesrv, group, topic, "b", config=broadcasting) as two,
    ):
        for each, ours, theirs in (
            (one, "CLUSTERING", "BROADCASTING"),
            (two, "BROADCASTING", "CLUSTERING"),
        ):
            assert await each.has(MembersDiffer) == MembersDiffer(
                setting="message_model", ours=ours, theirs=theirs
            )


@asynccontextmanager
async def ordered(namesrv: str, group: str, topic: str) -> AsyncIterator[Member]:
    client = ClientConfig(namesrv=namesrv, instance_name="ordered")
    consumer = PushConsumer(group, on_message=lambda message: None, orderly=True, client=client)
    joined = Member(consumer)
    async with consumer:
        await consumer.subscribe(topic)
        yield joined


async def test_members_replaced_one_by_one_report_nothing(
    namesrv: str, group: str, topic: str
) -> None:
    """A deployment that changes the subscription of the group."""
    async with AsyncExitStack() as newcomers:
        olds = [AsyncExitStack() for _ in range(2)]
        members = [
            await old.enter_async_context(member(namesrv, group, topic, f"old-{number}", "a"))
            for number, old in enumerate(olds)
        ]
        for each in members:
            await each.checked(1)
        for number, old in enumerate(olds):
            await old.aclose()
            for each in members[number + 1 :]:
                await each.checked(1)  # it detects that a member left
            new = member(namesrv, group, topic, f"new-{number}", "a || b")
            members.append(await newcomers.enter_async_context(new))
            for each in members[number + 1 :]:
                await each.checked(4)
                history = each.consumer._engine.checks._history
                assert history is not None
                assert history.seconds_since_departure(monotonic()) is not None

        assert [each.events for each in members] == [[]] * 4


async def test_all_clients_with_one_id_report_it(namesrv: str, group: str, topic: str) -> None:
    async with (
        member(namesrv, group, topic, "same") as one,
        member(namesrv, group, topic, "same") as two,
    ):
        for each in (one, two):
            event = await each.has(ClientIdNotUnique)
            assert isinstance(event, ClientIdNotUnique)
            assert event.client_id == one.consumer.client.client_id
            assert len(event.addresses) == 2


@pytest.mark.parametrize("by_sql", [False, True], ids=["tags", "sql"])
async def test_filter_without_a_match_is_reported_once(
    namesrv: str, group: str, topic: str, by_sql: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_matches, "NOTHING_SECONDS", 0.0)
    monkeypatch.setattr(filter_matches, "NOTHING_MESSAGES", MISSED)
    async with Producer(f"{group}-till", namesrv=namesrv) as producer:
        await producer.send_batch([Message(topic, b"x", tags="new") for _ in range(MISSED)])
    selector = MessageSelector.by_sql("TAGS = 'piad'") if by_sql else "piad"
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic, selector)
        await consumer.ready()
        events: list[ConsumerEvent] = []
        consumer._engine.context.publish = events.append

        async def noticed() -> bool:
            await consumer._engine.checks.check()
            return bool(events)

        await until_done(noticed, "the event", 60)
        await consumer._engine.checks.check()

    [event] = events
    assert isinstance(event, SubscriptionMatchesNothing)
    assert (event.topic, event.messages) == (topic, MISSED)
    assert "piad" in event.expression
