"""What can be wrong with a group is noticed, told once, and told again when it comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from rocketmq_aio.config import ClientConfig
from rocketmq_aio.consumer import group_check
from rocketmq_aio.consumer.events import (
    ClientIdNotUnique,
    ConsumerEvent,
    SubscriptionMatchesNothing,
    SubscriptionsDiffer,
)
from rocketmq_aio.consumer.group_check import (
    NOTHING_MESSAGES,
    NOTHING_SECONDS,
    GroupCheck,
    MatchWatch,
    Recurring,
    differences,
    namesakes,
)
from rocketmq_aio.consumer.lite_pull import LitePullConsumer
from rocketmq_aio.message import MessageSelector
from rocketmq_aio.protocol.bodies import SubscriptionData
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.requests.connections import Connection, ConsumerConnections
from rocketmq_aio.protocol.subscription import Subscription, subscription
from tests.fakes.cluster import FakeCluster
from tests.fakes.script import Close, Outcome, Reply
from tests.unit.consumer.consuming import GROUP, TOPIC, consumer_of
from tests.unit.remoting.until import until

ASKED = RequestCode.GET_CONSUMER_CONNECTION_LIST
SQL = MessageSelector.by_sql("price > 3")


def by_topic(*wanted: Subscription) -> dict[str, Subscription]:
    return {each.topic: each for each in wanted}


def table(*wanted: Subscription) -> dict[str, SubscriptionData]:
    return {each.topic: each.to_body() for each in wanted}


# --- differences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("*", "*"),
        ("a || b", "b||a"),
        (SQL, MessageSelector.by_sql(" price > 3 ")),
        ("", "*"),
    ],
)
def test_what_means_the_same_is_no_difference(
    ours: str | MessageSelector, theirs: str | MessageSelector
) -> None:
    wanted = by_topic(subscription("orders", ours, 1))

    assert differences(wanted, table(subscription("orders", theirs, 2))) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ("a", "b", ("a", "b")),
        ("a", "a || b", ("a", "a || b")),
        ("a", "*", ("a", "*")),
        ("*", SQL, ("*", "SQL92: price > 3")),
        (MessageSelector.by_sql("a"), "a", ("SQL92: a", "a")),
    ],
)
def test_expressions_that_differ_are_told(
    ours: str | MessageSelector, theirs: str | MessageSelector, told: tuple[str, str]
) -> None:
    wanted = by_topic(subscription("orders", ours, 1))

    assert differences(wanted, table(subscription("orders", theirs, 2))) == [
        SubscriptionsDiffer(topic="orders", ours=told[0], theirs=told[1])
    ]


def test_topics_that_only_one_side_has_are_told() -> None:
    wanted = by_topic(subscription("a", "*", 1), subscription("b", "new", 1))
    held = table(subscription("a", "*", 1), subscription("c", SQL, 1))

    assert differences(wanted, held) == [
        SubscriptionsDiffer(topic="b", ours="new", theirs=None),
        SubscriptionsDiffer(topic="c", ours=None, theirs="SQL92: price > 3"),
    ]


def test_the_retry_topic_is_nobodys_choice() -> None:
    wanted = by_topic(subscription("orders", "*", 1))
    held = table(subscription("orders", "*", 1), subscription("%RETRY%billing", "*", 1))

    assert differences(wanted, held) == []


def test_one_client_id_at_several_addresses_is_told() -> None:
    assert namesakes("c@1", ["a:1"]) == namesakes("c@1", ["a:1", "a:1"]) == []
    assert namesakes("c@1", ["b:1", "a:1"]) == [
        ClientIdNotUnique(client_id="c@1", addresses=("a:1", "b:1"))
    ]


# --- what lasts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "seen", "told"),
    [
        (2, "1", "0"),
        (2, "11", "01"),
        (2, "111111", "010000"),
        (2, "1001", "0001"),
        (2, "10001", "00000"),
        (3, "11011", "00010"),
        (2, "1100001", "0100000"),
        (2, "11000011", "01000001"),
    ],
)
def test_a_fault_is_told_when_several_of_the_last_checks_saw_it(
    times: int, seen: str, told: str
) -> None:
    recurring: Recurring[str] = Recurring(times)
    found = [recurring.seen(["fault"] if each == "1" else []) for each in seen]

    assert "".join("1" if each else "0" for each in found) == told


def test_faults_are_told_apart() -> None:
    recurring: Recurring[str] = Recurring(2)
    recurring.seen(["a"])

    assert recurring.seen(["a", "b"]) == ["a"]
    assert recurring.seen(["b"]) == ["b"]


# --- filters that nothing comes through ----------------------------------------------------------


def watched(
    watch: MatchWatch, now: float, selector: str | MessageSelector = "new"
) -> list[SubscriptionMatchesNothing]:
    return watch.barren([subscription("orders", selector, 1)], now)


def test_a_filter_that_nothing_comes_through_for_long_is_told_once() -> None:
    watch = MatchWatch()
    watch.note("orders", NOTHING_MESSAGES, 0)
    began = watched(watch, 0.0)
    told = watched(watch, NOTHING_SECONDS)

    assert began == watched(watch, NOTHING_SECONDS + 1) == []
    assert told == [
        SubscriptionMatchesNothing(topic="orders", expression="new", messages=NOTHING_MESSAGES)
    ]


def test_few_messages_or_a_short_time_say_nothing() -> None:
    few, short = MatchWatch(), MatchWatch()
    few.note("orders", NOTHING_MESSAGES - 1, 0)
    short.note("orders", NOTHING_MESSAGES, 0)

    for watch, seconds in ((few, NOTHING_SECONDS), (short, NOTHING_SECONDS - 1)):
        assert watched(watch, 0.0) == watched(watch, seconds) == []


def test_a_match_begins_anew() -> None:
    watch = MatchWatch()
    for offset in (0.0, 1000.0):
        watch.note("orders", NOTHING_MESSAGES, 0)
        watch.note("orders", 32, 1)
        assert watched(watch, offset) == watched(watch, offset + NOTHING_SECONDS) == []
        watch.note("orders", NOTHING_MESSAGES, 0)
        assert watched(watch, offset + 100) == []
        assert len(watched(watch, offset + 100 + NOTHING_SECONDS)) == 1


def test_another_expression_begins_anew() -> None:
    watch = MatchWatch()
    watch.note("orders", NOTHING_MESSAGES, 0)
    watched(watch, 0.0)

    assert watched(watch, NOTHING_SECONDS, SQL) == watched(watch, 3 * NOTHING_SECONDS, SQL) == []
    watch.note("orders", NOTHING_MESSAGES, 0)
    (told,) = watched(watch, 3 * NOTHING_SECONDS, SQL)
    assert told.expression == "SQL92: price > 3"


def test_who_wants_everything_has_no_filter() -> None:
    watch = MatchWatch()
    watch.note("orders", NOTHING_MESSAGES, 0)

    assert watched(watch, 0.0, "*") == watched(watch, NOTHING_SECONDS, "*") == []


# --- asking --------------------------------------------------------------------------------------


@asynccontextmanager
async def member(
    cluster: FakeCluster, selector: str = "*", name: str = "a"
) -> AsyncIterator[Check]:
    """A member of the group, and its check."""
    client = ClientConfig(namesrv=cluster.namesrv, instance_name=name)
    async with consumer_of(cluster, client=client) as consumer:
        await consumer.subscribe(TOPIC, selector)
        yield Check(consumer, selector)


class Check(GroupCheck):
    """A check that keeps its events."""

    def __init__(self, consumer: LitePullConsumer, selector: str) -> None:
        self.wanted = [subscription(TOPIC, selector, 1)]
        self.events: list[ConsumerEvent] = []
        super().__init__(
            consumer.client,
            GROUP,
            subscriptions=lambda: self.wanted,
            on_event=self.events.append,
        )

    async def checked(self, times: int = 3) -> list[ConsumerEvent]:
        """Return what so many checks tell."""
        self.events.clear()
        for _ in range(times):
            await self.check()
        return list(self.events)


async def test_a_group_that_agrees_has_no_faults(cluster: FakeCluster) -> None:
    async with member(cluster, "new"), member(cluster, "new", "b") as check:
        assert await check.checked() == []
        assert len(cluster.broker.requests_of(ASKED)) == 3


async def test_a_difference_is_told_once_and_as_a_warning(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(cluster, "new") as check, member(cluster, "paid", "b"):
        with caplog.at_level(logging.WARNING, "rocketmq_aio"):
            first = await check.checked(1)
            later = await check.checked(5)

    assert first == []
    assert later == [SubscriptionsDiffer(topic=TOPIC, ours="new", theirs="paid")]
    assert [r.message.count("subscriptions_differ") for r in caplog.records] == [1]


async def test_a_client_id_that_another_has_is_told_once(cluster: FakeCluster) -> None:
    async with member(cluster) as check, member(cluster):
        (event,) = await check.checked(6)

    assert isinstance(event, ClientIdNotUnique)
    assert event.client_id.endswith("@a")
    assert len(event.addresses) == 2


async def test_a_filter_that_nothing_comes_through_is_told(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_check, "NOTHING_SECONDS", 0.0)
    async with member(cluster, "new") as check:
        check.matches.note(TOPIC, NOTHING_MESSAGES, 0)
        (event,) = await check.checked(5)

    assert isinstance(event, SubscriptionMatchesNothing)


async def test_a_broker_that_does_not_know_this_member_knows_nothing(cluster: FakeCluster) -> None:
    others = ConsumerConnections(
        connection_set=[Connection(client_id="c@b", client_addr="127.0.0.1:1")],
        subscription_table=table(subscription(TOPIC, "paid", 1)),
    )
    cluster.broker.on(ASKED, Reply(body=msgspec.json.encode(others)), times=None)
    async with member(cluster, "new") as check:
        assert await check.checked() == []


REFUSED = [
    Reply(ResponseCode.NO_PERMISSION, remark="not allowed"),
    Reply(ResponseCode.SYSTEM_ERROR, remark="org.apache.rocketmq.acl.common.AclException: no"),
    Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
]


@pytest.mark.parametrize("answer", REFUSED, ids=lambda answer: str(answer.code))
async def test_a_broker_that_refuses_is_not_asked_again(
    cluster: FakeCluster, answer: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker.on(ASKED, answer, times=None)
    async with member(cluster) as check:
        with caplog.at_level(logging.INFO, "rocketmq_aio.consumer.group_check"):
            assert await check.checked() == []

    assert len(cluster.broker.requests_of(ASKED)) == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    "answer",
    [
        Close(),
        Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark="not online"),
        Reply(ResponseCode.SYSTEM_BUSY),
        Reply(body=b"{"),
        Reply(body=b"{}"),
    ],
    ids=repr,
)
async def test_a_broker_that_cannot_tell_now_is_asked_the_next_time(
    cluster: FakeCluster, answer: Outcome
) -> None:
    async with member(cluster, "new") as check, member(cluster, "paid", "b"):
        cluster.broker.on(ASKED, answer)
        await check.check()
        await until(lambda: check._instance.remoting.is_connected(cluster.broker.address), "again")
        await check._instance.heartbeats.beat_all(anew=True)

        assert len(await check.checked(2)) == 1


async def test_always_the_same_broker_is_asked() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 4}) as cluster, member(cluster) as check:
        await check.checked(4)

        assert [len(broker.requests_of(ASKED)) for broker in cluster.brokers] == [4, 0]


async def test_who_reads_nothing_asks_nothing(cluster: FakeCluster) -> None:
    async with member(cluster) as check:
        check.wanted = []
        await check.checked()

        assert cluster.broker.requests_of(ASKED) == []


async def test_checks_go_on_for_ever(cluster: FakeCluster) -> None:
    async with member(cluster, "new") as check, member(cluster, "paid", "b"):
        checking = asyncio.create_task(check.keep_checking(0.01))
        await until(lambda: check.events != [], "an event")
        await cluster.broker.wait_for(ASKED, 5)
        checking.cancel()

        assert len(check.events) == 1
