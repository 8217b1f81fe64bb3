"""SubscriptionCheck: different subscriptions, shared client ids."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.checks import filter_matches, subscription_check as check_module
from rocketmq_aio.consumer.checks.subscription_check import (
    ENOUGH_RESPONSES,
    MAX_OWN_QUERIES,
    PENDING_SECONDS,
    SETTLING_SECONDS,
    UNSUBSCRIBED_SECONDS,
    SubscriptionCheck,
    differences,
    namesakes,
)
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import (
    ClientIdNotUnique,
    ConsumerEvent,
    MembersDiffer,
    SubscriptionMatchesNothing,
    SubscriptionsDiffer,
)
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.embedded.responses import Close, Outcome, Response
from rocketmq_aio.model.values import MessageModel, MessageSelector
from rocketmq_aio.protocol.bodies import SubscriptionData
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.requests.groups import ConnectionBody, ConsumerConnections
from rocketmq_aio.protocol.subscription import Subscription, subscription
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, consumer_of
from tests.unit.consumer.parts import queue
from tests.unit.consumer.pop_env import popper_of
from tests.unit.consumer.pushing import push_consumer
from tests.unit.remoting.until import until

LIST_CONNECTIONS = RequestCode.GET_CONSUMER_CONNECTION_LIST
QUERY_MEMBER = RequestCode.GET_CONSUMER_RUNNING_INFO
Selector = str | MessageSelector
SQL = MessageSelector.by_sql("price > 3")


def by_topic(*wanted: Subscription) -> dict[str, Subscription]:
    return {each.topic: each for each in wanted}


def table(*wanted: Subscription) -> dict[str, SubscriptionData]:
    return {each.topic: each.to_body() for each in wanted}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("*", "*"), ("a || b", "b||a"), (SQL, MessageSelector.by_sql(" price > 3 ")), ("", "*")],
)
def test_equivalent_expressions_do_not_differ(
    ours: str | MessageSelector, theirs: str | MessageSelector
) -> None:
    wanted = by_topic(subscription("orders", ours, 1))

    assert differences(wanted, table(subscription("orders", theirs, 2))) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "reported"),
    [
        ("a", "b", ("a", "b")),
        ("a", "a || b", ("a", "a || b")),
        ("a", "*", ("a", "*")),
        ("*", SQL, ("*", "SQL92: price > 3")),
        (MessageSelector.by_sql("a"), "a", ("SQL92: a", "a")),
    ],
)
def test_different_expressions_are_reported(
    ours: str | MessageSelector, theirs: str | MessageSelector, reported: tuple[str, str]
) -> None:
    wanted = by_topic(subscription("orders", ours, 1))

    assert differences(wanted, table(subscription("orders", theirs, 2))) == [
        SubscriptionsDiffer(topic="orders", ours=reported[0], theirs=reported[1])
    ]


def test_topics_of_one_side_are_reported() -> None:
    wanted = by_topic(subscription("a", "*", 1), subscription("b", "new", 1))
    held = table(subscription("a", "*", 1), subscription("c", SQL, 1))

    assert differences(wanted, held) == [
        SubscriptionsDiffer(topic="b", ours="new", theirs=None),
        SubscriptionsDiffer(topic="c", ours=None, theirs="SQL92: price > 3"),
    ]


def test_retry_topic_is_ignored() -> None:
    wanted = by_topic(subscription("orders", "*", 1))
    held = table(subscription("orders", "*", 1), subscription("%RETRY%billing", "*", 1))

    assert differences(wanted, held) == []


def test_client_id_at_several_addresses_is_reported() -> None:
    assert namesakes("c@1", ["a:1"]) == namesakes("c@1", ["a:1", "a:1"]) == []
    assert namesakes("c@1", ["b:1", "a:1"]) == [
        ClientIdNotUnique(client_id="c@1", addresses=("a:1", "b:1"))
    ]


@asynccontextmanager
async def member(
    cluster: FakeCluster, selector: Selector = "*", name: str = "a", **arguments: object
) -> AsyncIterator[Check]:
    """A member of the group, and its check."""
    client = ClientConfig(namesrv=cluster.namesrv, instance_name=name)
    consumer = consumer_of(cluster, client=client)
    check = Check(consumer, selector, **arguments)
    consumer._engine.checks = check  # queries of other members return its id
    async with consumer:
        await consumer.subscribe(TOPIC, selector)
        yield check


@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_consumer_without_topics_is_reported_once(
    subscribed: bool, caplog: pytest.LogCaptureFixture, cluster: FakeCluster
) -> None:
    consumer = consumer_of(cluster)
    check = Check(consumer, "*")
    retries = subscription(f"%RETRY%{GROUP}", "*", 1)
    check.wanted = []
    check.topics.update({retries.topic: retries})
    if subscribed:
        check.topics[TOPIC] = subscription(TOPIC, "*", 1)
    for seconds in (UNSUBSCRIBED_SECONDS, UNSUBSCRIBED_SECONDS - 1, 1.0, 1.0):  # starts late
        check.now += seconds
        await check.check()

    reports = [each.message for each in caplog.records if "not_subscribed" in each.message]
    assert len(reports) == (0 if subscribed else 1)


class Check(SubscriptionCheck):
    """A check that keeps its events, with a clock that tests move."""

    def __init__(
        self,
        consumer: LitePullConsumer,
        selector: Selector,
        **arguments: Any,  # noqa: ANN401
    ) -> None:
        self.wanted = [subscription(TOPIC, selector, 1)]
        self.events: list[ConsumerEvent] = []
        self.now = 1000.0
        context = ConsumerContext(
            consumer.client, GROUP, LitePullConfig(), on_failed=consumer.on_failed
        )
        context.publish = self.events.append
        self.topics = context.subscriptions
        super().__init__(
            context, subscriptions=lambda: self.wanted, clock=lambda: self.now, **arguments
        )

    async def keep_checking(self, interval_seconds: float = 60.0) -> None:
        """Check when tests say so."""

    async def checked(self, seconds: float = 10.0) -> list[ConsumerEvent]:
        """Return what checks report in so many seconds, with one each two seconds."""
        self.events.clear()
        for _ in range(int(seconds / 2)):
            self.now += 2
            await self.check()
        return list(self.events)


async def differing(*checks: Check, seconds: float = 10.0) -> list[list[ConsumerEvent]]:
    """Return what each of *checks* reports, with samples in turn."""
    reported: list[list[ConsumerEvent]] = [[] for _ in checks]
    for _ in range(int(seconds / 2)):
        for events, check in zip(reported, checks, strict=True):
            events += await check.checked(2)
    return reported


async def test_a_group_that_agrees_has_no_faults(cluster: FakeCluster) -> None:
    async with member(cluster, "new") as one, member(cluster, "new", "b") as two:
        assert await differing(one, two, seconds=400) == [[], []]


async def test_both_members_report_different_expressions_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(cluster, "new") as one, member(cluster, "paid", "b") as two:
        with caplog.at_level(logging.WARNING, "rocketmq_aio"):
            reported = await differing(one, two)

    assert reported == [
        [SubscriptionsDiffer(topic=TOPIC, ours="new", theirs="paid")],
        [SubscriptionsDiffer(topic=TOPIC, ours="paid", theirs="new")],
    ]
    assert [r.message.count("subscriptions_differ") for r in caplog.records] == [1, 1]


async def test_both_members_report_different_topics(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices")
    async with member(cluster) as one, member(cluster, name="b") as two:
        two.wanted = [*two.wanted, subscription("invoices", "*", 1)]
        engine = two._instance._consumers[GROUP]
        await engine.subscribe("invoices", "*")  # type: ignore[attr-defined]
        reported = await differing(one, two)

    assert reported == [
        [SubscriptionsDiffer(topic="invoices", ours=None, theirs="*")],
        [SubscriptionsDiffer(topic="invoices", ours="*", theirs=None)],
    ]


MODES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"message_model": MessageModel.BROADCASTING}, "message_model", "CLUSTERING", "BROADCASTING"),
    ({"orderly": True}, "orderly", "false", "true"),
]


@pytest.mark.parametrize(("mode", "setting", "ours", "theirs"), MODES)
async def test_both_members_report_another_mode(
    mode: dict[str, Any],
    setting: str,
    ours: str,
    theirs: str,
    cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check_when_told(check: SubscriptionCheck) -> None:
        pass

    monkeypatch.setattr(SubscriptionCheck, "keep_checking", check_when_told)
    monkeypatch.setenv("ROCKETMQ_OFFSET_FOLDER", str(tmp_path))
    now = [0.0]
    events: list[list[ConsumerEvent]] = [[], []]
    async with pusher(cluster, "a") as one, pusher(cluster, "b", **mode) as two:
        for consumer, reported in ((one, events[0]), (two, events[1])):
            consumer._engine.checks._clock = lambda: now[0]
            monkeypatch.setattr(consumer._engine.context, "publish", reported.append)
        for now[0] in range(0, 100, 2):
            await one._engine.checks.check()
            await two._engine.checks.check()

    assert events == [
        [MembersDiffer(setting=setting, ours=ours, theirs=theirs)],
        [MembersDiffer(setting=setting, ours=theirs, theirs=ours)],
    ]


@asynccontextmanager
async def pusher(
    cluster: FakeCluster,
    name: str,
    *,
    orderly: bool = False,
    **settings: Any,  # noqa: ANN401 - those of PushConfig
) -> AsyncIterator[PushConsumer]:
    """A started consumer of the topic."""
    client = ClientConfig(namesrv=cluster.namesrv, instance_name=name)
    arguments = {"orderly": orderly}
    async with push_consumer(
        cluster, lambda _: None, client=client, arguments=arguments, **settings
    ) as consumer:
        await consumer.subscribe(TOPIC)
        yield consumer


async def test_members_replaced_one_by_one_report_nothing(cluster: FakeCluster) -> None:
    """Each new member sees in the lists of the others that members have just left."""
    async with AsyncExitStack() as newcomers:
        olds = [AsyncExitStack() for _ in range(3)]
        checks = [
            await old.enter_async_context(member(cluster, "old", f"old-{number}"))
            for number, old in enumerate(olds)
        ]
        assert await differing(*checks, seconds=300) == [[]] * 3
        for number, old in enumerate(olds):
            await old.aclose()
            del checks[0]
            for check in checks:
                await check.checked(2)
            new = member(cluster, "new", f"new-{number}")
            checks.append(await newcomers.enter_async_context(new))
            assert await differing(*checks, seconds=40) == [[]] * 3
        assert await differing(*checks, seconds=400) == [[]] * 3


async def test_closing_member_is_not_a_fault(cluster: FakeCluster) -> None:
    """It may finish its handlers for a while when its replacement is here already."""
    async with member(cluster, "old") as old, member(cluster, "new", "b") as new:
        old._instance._consumers[GROUP]._running = False  # type: ignore[attr-defined]

        assert await new.checked(100) == []


async def test_expression_of_a_departed_member_is_not_a_fault(cluster: FakeCluster) -> None:
    async with member(cluster, "new") as one:
        async with member(cluster, "paid", "b"):
            await one.check()
        connections = await one._instance.broker.consumer_connections(GROUP, cluster.broker.address)
        assert connections.subscription_table[TOPIC].sub_string == "paid"

        assert await one.checked(400) == []


async def test_empty_table_is_not_a_fault(cluster: FakeCluster) -> None:
    """Members that assign queues by hand subscribe to nothing."""
    async with member(cluster, "new") as one, consumer_of(cluster) as two:
        await two.assign([queue()])

        assert await one.checked(400) == []


async def test_both_clients_with_one_id_report_it_once(cluster: FakeCluster) -> None:
    async with member(cluster) as one, member(cluster) as two:
        for events in await differing(one, two, seconds=100):
            [event] = events
            assert isinstance(event, ClientIdNotUnique)
            assert event.client_id.endswith("@a")
            assert len(event.addresses) == 2


async def test_clients_with_one_id_may_differ_in_their_subscriptions(cluster: FakeCluster) -> None:
    async with member(cluster, "new") as one, member(cluster, "paid") as two:
        reported = await differing(one, two)

    assert {type(each) for each in reported[0]} == {ClientIdNotUnique, SubscriptionsDiffer}


async def test_pop_consumers_may_share_a_client_id(cluster: FakeCluster) -> None:
    async with member(cluster, unique_ids=False) as one, member(cluster, unique_ids=False):
        assert await one.checked(400) == []


async def test_old_connection_of_this_client_is_not_a_fault(cluster: FakeCluster) -> None:
    """Brokers list a connection that was cut without a word for two minutes more."""
    async with member(cluster) as one:
        members = cluster.broker.members.groups[GROUP]
        [known] = members.connections.values()
        lingering = msgspec.structs.replace(known, client_addr="127.0.0.1:1")
        members.connections[-1] = lingering
        members.members[-1] = known.client_id
        assert await one.checked(150) == []
        del members.connections[-1], members.members[-1]

        assert await one.checked(400) == []
        queries = cluster.broker.requests_of(QUERY_MEMBER)
        assert len(queries) <= MAX_OWN_QUERIES


async def test_members_send_no_queries_after_a_reconnection(cluster: FakeCluster) -> None:
    """After a partition brokers list dead connections of all members."""
    async with member(cluster, "new") as one, member(cluster, "new", "b"):
        await one.check()
        before = len(cluster.broker.requests_of(QUERY_MEMBER))
        one._instance._connection_numbers[cluster.broker.address] += 1
        await one.checked(100)

        assert len(cluster.broker.requests_of(QUERY_MEMBER)) == before


async def test_agreeing_or_silent_members_are_not_queried_again(cluster: FakeCluster) -> None:
    async with member(cluster, "new") as one, member(cluster, "new", "b"):
        cluster.faults.refuse(QUERY_MEMBER, ResponseCode.SYSTEM_ERROR, "not online")
        await one.checked(100)
        assert len(cluster.broker.requests_of(QUERY_MEMBER)) == 1
    async with member(cluster, "new", "c") as one, member(cluster, "new", "d"):
        await one.checked(100)
        assert len(cluster.broker.requests_of(QUERY_MEMBER)) == 1 + ENOUGH_RESPONSES


async def test_members_with_old_clients_are_compared_by_the_table_of_the_broker(
    cluster: FakeCluster,
) -> None:
    async with member(cluster, "new") as one, member(cluster, "paid", "b"):
        for each in list(cluster.broker.members.groups[GROUP].connections.items()):
            number, known = each
            cpp = msgspec.structs.replace(known, language="CPP")
            cluster.broker.members.groups[GROUP].connections[number] = cpp

        assert len(await one.checked()) == 1
        assert cluster.broker.requests_of(QUERY_MEMBER) == []


async def test_consumer_reports_a_filter_without_a_match(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_matches, "NOTHING_SECONDS", 0.0)
    async with member(cluster, "new") as check:
        check.matches.note(TOPIC, filter_matches.NOTHING_MESSAGES, 0)
        (event,) = await check.checked()

    assert isinstance(event, SubscriptionMatchesNothing)


async def test_broker_that_does_not_list_this_member_is_ignored(cluster: FakeCluster) -> None:
    others = ConsumerConnections(
        connection_set=[ConnectionBody(client_id="c@b", client_addr="127.0.0.1:1")],
        subscription_table=table(subscription(TOPIC, "paid", 1)),
    )
    cluster.faults.handle(LIST_CONNECTIONS, Response(body=msgspec.json.encode(others)), times=None)
    async with member(cluster, "new") as check:
        assert await check.checked() == []


REFUSED = [
    Response(ResponseCode.NO_PERMISSION, remark="not allowed"),
    Response(ResponseCode.SYSTEM_ERROR, remark="org.apache.rocketmq.acl.common.AclException: no"),
    Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
]


@pytest.mark.parametrize("response", REFUSED, ids=lambda response: str(response.code))
async def test_broker_that_denies_is_not_queried_again(
    cluster: FakeCluster, response: Response, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.faults.handle(LIST_CONNECTIONS, response, times=None)
    async with member(cluster) as check:
        with caplog.at_level(logging.INFO, "rocketmq_aio.consumer.checks.subscription_check"):
            assert await check.checked() == []

    assert len(cluster.broker.requests_of(LIST_CONNECTIONS)) == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    "response",
    [
        Close(),
        Response(ResponseCode.CONSUMER_NOT_ONLINE, remark="not online"),
        Response(ResponseCode.SYSTEM_BUSY),
        Response(body=b"{"),
        Response(body=b"{}"),
    ],
    ids=repr,
)
async def test_failed_request_is_repeated_at_the_next_check(
    cluster: FakeCluster, response: Outcome
) -> None:
    async with member(cluster, "new") as check, member(cluster, "paid", "b"):
        cluster.faults.handle(LIST_CONNECTIONS, response)
        await check.check()
        await until(lambda: check._instance.remoting.is_connected(cluster.broker.address), "again")
        await check._instance.heartbeats.send_all()

        assert len(await check.checked()) == 1


async def test_the_same_broker_is_always_queried() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 4}) as cluster, member(cluster) as check:
        await check.checked(8)

        assert [len(broker.requests_of(LIST_CONNECTIONS)) for broker in cluster.brokers] == [4, 0]


async def test_consumer_without_subscriptions_sends_nothing(cluster: FakeCluster) -> None:
    async with member(cluster) as check:
        check.wanted = []
        await check.checked()

        assert cluster.broker.requests_of(LIST_CONNECTIONS) == []


@pytest.mark.parametrize("make", [consumer_of, popper_of], ids=["lite", "pop"])
async def test_consumers_check_when_a_member_joins(
    cluster: FakeCluster,
    make: Callable[..., LitePullConsumer | PopConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between regular checks, which are an hour apart here."""
    monkeypatch.setattr(check_module, "LEAST_SECONDS", 0.001)
    monkeypatch.setattr(SubscriptionCheck, "_pause", lambda *_: 3600.0)
    async with make(cluster) as one:
        await one.subscribe(TOPIC)
        await cluster.broker.wait_for(LIST_CONNECTIONS, 1)
        before = len(cluster.broker.requests_of(LIST_CONNECTIONS))
        async with make(cluster) as two:
            await two.subscribe(TOPIC)
            await cluster.broker.wait_for(LIST_CONNECTIONS, before + 2)


async def test_checks_run_until_cancelled(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "LEAST_SECONDS", 0.001)
    async with member(cluster, "new") as check:
        checking = asyncio.create_task(SubscriptionCheck.keep_checking(check, 0.01))
        await cluster.broker.wait_for(LIST_CONNECTIONS, 5)
        checking.cancel()


async def test_notifications_are_merged_for_longer_in_large_groups(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    async def check_large_group(check: SubscriptionCheck) -> None:
        nonlocal checks
        checks += 1
        check._peers = cast(Any, range(16_000_000))

    monkeypatch.setattr(SubscriptionCheck, "check", check_large_group)
    monkeypatch.setattr(check_module, "LEAST_SECONDS", 0.001)
    async with member(cluster) as check:
        checking = asyncio.create_task(SubscriptionCheck.keep_checking(check, 3600))
        for _ in range(100):
            check.wake()
            await asyncio.sleep(0.002)
        checking.cancel()

    assert checks == 1


async def test_pauses_are_short_while_members_join_and_faults_are_pending(
    cluster: FakeCluster,
) -> None:
    async with member(cluster, "new") as one:
        assert one._pause(60) >= 60  # nothing is known
        await one.check()
        assert one._pause(60) <= SETTLING_SECONDS
        await one.checked(100)
        assert one._pause(60) >= 60
        async with member(cluster, "new", "b") as two:
            await one.checked(100)
            engine = two._instance._consumers[GROUP]
            await engine.subscribe(TOPIC, "paid")  # type: ignore[attr-defined]
            await one.checked(4)
            assert one._pause(60) <= PENDING_SECONDS
