"""Route table: fetching, sharing, refreshing."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import anyio
import pytest

from rocketmq_aio.errors import (
    CodecError,
    ConfigError,
    NameServerUnavailableError,
    NotConnectedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance import routes as routes_module
from rocketmq_aio.instance.routes import RouteTable, TopicRoute, is_refresh_due, read_route
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import BrokerData, TopicRouteData
from tests.unit.instance.route_data import A, B, broker, queues, route, static
from tests.unit.remoting.until import settle, until

C = "127.0.0.1:10941"
BOTH = route(queues(), queues("broker-b"), broker(master=A), broker("broker-b", master=B))
LACKING = route(queues(), broker(master=A))  # broker-b
NEVER = 1e9  # seconds between regular refreshes


class Names:
    """A name server that answers what it was told, when it was told."""

    def __init__(self) -> None:
        self.known: dict[str, TopicRouteData] = {}
        self.failure: RocketMQError | None = None
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None

    async def route(self, topic: str) -> TopicRouteData:
        self.asked.append(topic)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if topic not in self.known:
            raise RouteNotFoundError(topic, "the name server knows no such topic")
        return self.known[topic]


class Table:
    """A route table, its name server, and what it told its owner."""

    def __init__(self) -> None:
        self.names = Names()
        self.wanted = {"orders"}
        self.changed: list[str] = []
        self.alive: set[str] = set()
        self.replaced: list[str] = []
        self.routes = RouteTable(
            self.names,  # type: ignore[arg-type]  # it answers the one question that is asked
            topics_in_use=lambda: self.wanted,
            on_changed=self.changed.append,
            on_replaced=self.replaced.append,
            received_since=lambda address, _since: address in self.alive,
        )

    def consumes_as(self, former: TopicRoute) -> bool:
        """Whether consumers find the queues and brokers of *former*."""
        known = self.routes.known(former.topic)
        return known is not None and (
            known.subscribe_queues == former.subscribe_queues
            and known.brokers == former.brokers
            and known.owners == former.owners
        )

    def knows(self, topic: str = "orders", count: int = 2, address: str = A) -> None:
        self.names.known[topic] = route(queues(read=count, write=count), broker(master=address))


@pytest.fixture
def table() -> Table:
    made = Table()
    made.knows()
    return made


async def test_a_route_is_fetched_once(table: Table) -> None:
    first = await table.routes.get("orders")
    second = await table.routes.get("orders")

    assert first is second
    assert table.names.asked == ["orders"]
    assert table.changed == ["orders"]


async def test_concurrent_callers_share_one_query(table: Table) -> None:
    table.names.gate = asyncio.Event()
    asked = [asyncio.create_task(table.routes.get("orders")) for _ in range(100)]
    await settle()
    table.names.gate.set()
    found = await asyncio.gather(*asked)

    assert len({id(each) for each in found}) == 1
    assert table.names.asked == ["orders"]


async def test_concurrent_callers_share_a_failure(table: Table) -> None:
    table.names.gate = asyncio.Event()
    asked = [asyncio.create_task(table.routes.get("nowhere")) for _ in range(100)]
    await settle()
    table.names.gate.set()
    await asyncio.wait(asked)

    assert {type(each.exception()) for each in asked} == {RouteNotFoundError}
    assert table.names.asked == ["nowhere"]


async def test_a_refresh_that_changes_nothing_is_shared_too(table: Table) -> None:
    await table.routes.get("orders")
    table.names.gate = asyncio.Event()
    asked = [asyncio.create_task(table.routes.fetch("orders")) for _ in range(10)]
    await settle()
    table.names.gate.set()
    await asyncio.gather(*asked)

    assert table.names.asked == ["orders"] * 2


async def test_a_cancelled_fetch_is_taken_over_by_a_waiting_caller(table: Table) -> None:
    table.names.gate = asyncio.Event()
    asked = [asyncio.create_task(table.routes.get("orders")) for _ in range(3)]
    await settle()
    asked[0].cancel()
    await settle()
    table.names.gate.set()

    assert [type(each).__name__ for each in await asyncio.gather(*asked[1:])] == ["TopicRoute"] * 2
    assert table.names.asked == ["orders"] * 2


async def test_a_cancelled_waiter_does_not_affect_the_others(table: Table) -> None:
    table.names.gate = asyncio.Event()
    asked = [asyncio.create_task(table.routes.get("orders")) for _ in range(3)]
    await settle()
    asked[1].cancel()
    await settle()
    table.names.gate.set()

    assert await asked[0] is await asked[2]
    assert table.names.asked == ["orders"]


async def test_route_listeners_are_called_for_changed_routes_only(table: Table) -> None:
    await table.routes.get("orders")
    await table.routes.fetch("orders")
    table.knows(count=4)
    await table.routes.fetch("orders")

    assert table.changed == ["orders"] * 2


async def test_a_broker_that_moved_is_a_change(table: Table) -> None:
    await table.routes.get("orders")
    table.knows(address=B)
    await table.routes.fetch("orders")

    assert table.changed == ["orders"] * 2
    assert table.routes.master("broker-a") == B


async def test_one_answer_no_such_topic_is_doubted_and_two_are_believed(table: Table) -> None:
    await table.routes.get("orders")
    del table.names.known["orders"]
    await table.routes.refresh(["orders"])
    assert table.routes.known("orders") is not None
    await table.routes.refresh(["orders"])

    assert table.routes.known("orders") is None
    assert table.routes.is_gone("orders")
    assert table.changed == ["orders"] * 2


async def test_a_topic_is_not_given_up_while_all_its_masters_fail(table: Table) -> None:
    """Name servers forget it with its last broker, which may come back."""
    await table.routes.get("orders")
    known = table.names.known.pop("orders")
    table.routes.suspect(A)
    for _ in range(5):
        await table.routes.refresh(["orders"])
    kept = table.routes.known("orders")
    table.names.known["orders"] = known
    await table.routes.refresh(["orders"])

    assert kept is not None
    assert table.routes.known("orders") is kept
    assert table.changed == ["orders"]


async def test_a_topic_is_given_up_when_its_broker_responds_without_it(table: Table) -> None:
    await table.routes.get("orders")
    del table.names.known["orders"]
    table.routes.suspect(A)
    await table.routes.refresh(["orders"])
    table.alive.add(A)
    table.routes._drop_cleared_suspects(asyncio.get_running_loop().time())
    for _ in range(2):
        await table.routes.refresh(["orders"])

    assert table.routes.is_gone("orders")


async def test_a_topic_that_was_never_known_is_reported_with_its_second_miss(table: Table) -> None:
    for reported in ([], ["typo"], ["typo"]):
        await table.routes.refresh(["typo"])
        assert table.changed == reported


async def test_only_the_regular_refresh_gives_a_topic_up(table: Table) -> None:
    await table.routes.get("orders")
    del table.names.known["orders"]
    for _ in range(5):
        with pytest.raises(RouteNotFoundError):
            await table.routes.fetch("orders")

    assert table.routes.known("orders") is not None
    assert not table.routes.is_gone("orders")


async def test_listeners_are_called_when_a_topic_comes_back(table: Table) -> None:
    await table.routes.get("orders")
    known = table.names.known.pop("orders")
    for _ in range(2):
        await table.routes.refresh(["orders"])
    table.names.known["orders"] = known
    await table.routes.get("orders")

    assert not table.routes.is_gone("orders")
    assert table.changed == ["orders"] * 3


@pytest.mark.parametrize(
    "failure",
    [
        NameServerUnavailableError({}),
        CodecError("TopicRouteData", 0, "damaged"),
        ConfigError("address", "no-port", "expected host:port"),
    ],
)
async def test_a_failed_refresh_keeps_the_known_list(
    table: Table, failure: RocketMQError, caplog: pytest.LogCaptureFixture
) -> None:
    await table.routes.get("orders")
    table.names.failure = failure
    with caplog.at_level(logging.WARNING, "rocketmq_aio"):
        await table.routes.refresh(["orders"])

    assert table.routes.known("orders") is not None
    assert "route_refresh_failed" in caplog.text


async def test_malformed_addresses_are_logged_once_until_the_route_changes(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.names.known["orders"] = route(queues(), broker(master="no-port", replica=B))
    for _ in range(3):
        await table.routes.fetch("orders")

    events = [each for each in caplog.messages if "route_addresses_malformed" in each]
    assert len(events) == 1
    assert "no-port" in events[0]


# --- keeping fresh -------------------------------------------------------------------------------


class Keeping:
    """The loop that keeps routes fresh, for as long as a block lasts."""

    def __init__(self, table: Table, interval: float) -> None:
        self._running = asyncio.create_task(table.routes.run(interval))

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        assert self._running.cancelled(), self._running.exception()


@pytest.mark.parametrize(("interval", "warns"), [(0.001, True), (NEVER, False)])
async def test_a_missing_route_that_cannot_be_fetched_is_a_warning_once_per_interval(
    table: Table,
    interval: float,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.001)
    table.names.failure = NameServerUnavailableError({})
    with caplog.at_level(logging.WARNING, "rocketmq_aio"):
        async with Keeping(table, interval):
            await until(lambda: len(table.names.asked) > 5)

    assert ("route_refresh_failed" in caplog.text) is warns


async def test_an_address_that_fails_for_minutes_has_its_routes_refreshed_by_the_interval(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a replica that this client cannot reach, while name servers can."""
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.001)
    await table.routes.get("orders")
    table.wanted.add("missing")
    table.routes.suspect(A)
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("orders") > 2)
        table.routes._suspects[A].since -= routes_module.LONGEST_SUSPECT_SECONDS
        table.routes.suspect(A)
        table.names.asked.clear()
        await until(lambda: table.names.asked.count("missing") > 5)

    assert table.names.asked.count("orders") <= 1  # was under way


def rounds_that_refresh(topic: str, started_at: float, interval: float) -> list[float]:
    """Return which of a client's rounds, a second apart for five minutes, refresh *topic*."""
    rounds = pairwise(started_at + second for second in range(300))
    return [until for since, until in rounds if is_refresh_due(topic, since, until, interval)]


@pytest.mark.parametrize("interval", [10.0, 30.0, 45.5])
def test_clients_refresh_a_topic_at_the_same_time_whenever_they_started(interval: float) -> None:
    """Members that learn of new queues one after another would compute different assignments."""
    phases = set()
    for number in range(50):
        one, other = (rounds_that_refresh(f"t-{number}", at, interval) for at in (1e9, 1e9 - 7.3))

        assert all(after - before <= interval + 1.0 for before, after in pairwise(one))
        assert all(min(abs(at - each) for each in other) <= 1.0 for at in one[:-1])
        phases.add(one[0])
    assert len(phases) > 5  # name servers do not get all requests at once


async def test_routes_in_use_are_refreshed_every_interval(table: Table) -> None:
    await table.routes.get("orders")
    async with Keeping(table, 0.01):
        table.knows(count=8)
        await until(lambda: len(table.changed) == 2)

    known = table.routes.known("orders")
    assert known is not None
    assert len(known.publish_queues) == 8


async def test_an_invalidated_route_is_fetched_once_and_soon(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    await table.routes.get("orders")
    for topic in ("orders", "orders", "of nobody"):
        table.routes.invalidate(topic)
    table.wanted = {"orders", "later"}
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("later") == 3)

    assert table.names.asked.count("orders") == 2
    assert "of nobody" not in table.names.asked


async def test_an_invalidated_route_is_fetched_until_a_name_server_responds(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    await table.routes.get("orders")
    table.routes.invalidate("orders")
    table.names.failure = NameServerUnavailableError({})
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("orders") == 3)
        table.names.failure = None
        table.knows(count=8)
        await until(lambda: len(table.changed) == 2)
        table.wanted = {"orders", "later"}
        fetched = table.names.asked.count("orders")
        await until(lambda: table.names.asked.count("later") == 3)

    assert table.names.asked.count("orders") == fetched


async def test_an_invalidated_route_is_fetched_soon_after_a_regular_refresh_that_failed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = 0.3
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", interval)
    await table.routes.get("orders")
    table.routes.invalidate("orders")
    table.names.failure = NameServerUnavailableError({})
    async with Keeping(table, interval):  # the first round is a regular one
        await asyncio.sleep(interval / 10)  # its pause has begun
        monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
        table.wanted = {"orders", "later"}
        await until(lambda: table.names.asked.count("later") == 4)

    assert table.names.asked.count("orders") > 2


async def test_routes_that_name_an_unreachable_address_are_fetched_again_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    table.knows("payments", address=B)
    for topic in ("orders", "payments"):
        await table.routes.get(topic)
    table.wanted = {"orders", "payments", "later"}
    table.knows(address=C)
    for _ in range(3):
        table.routes.suspect(A)
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("later") == 3)

    assert table.names.asked.count("orders") == 2
    assert table.names.asked.count("payments") == 1
    assert table.routes.master("broker-a") == C
    assert table.replaced == [A]


async def test_a_broker_whose_routes_are_dropped_as_unused_is_not_replaced(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    await table.routes.get("orders")
    table.wanted = {"later"}
    table.routes.suspect(A)
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("later") == 4)

    assert table.routes.known("orders") is None
    assert table.replaced == []


async def test_a_replaced_broker_that_responds_keeps_its_connection(table: Table) -> None:
    """A former master, which is a slave now: consumers may be reading from it."""
    await table.routes.get("orders")
    table.routes.suspect(A)
    table.knows(address=B)
    await table.routes.fetch("orders")
    table.alive.add(A)
    table.routes._drop_cleared_suspects(asyncio.get_running_loop().time())

    assert table.replaced == []
    assert not table.routes._suspects


async def test_a_suspect_that_fails_again_stays_one_with_all_topics(table: Table) -> None:
    await table.routes.get("orders")
    table.routes.suspect(A)
    table.routes._suspects[A].failed_at -= routes_module.SUSPECT_SECONDS + 1
    table.knows("payments")
    await table.routes.get("payments")
    table.routes.suspect(A)
    table.routes._drop_cleared_suspects(asyncio.get_running_loop().time())

    assert table.routes._suspects[A].topics == {"orders", "payments"}


async def test_routes_of_a_suspect_are_fetched_until_it_responds(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    await table.routes.get("orders")
    table.wanted = {"orders", "later"}
    async with Keeping(table, NEVER):
        table.routes.suspect(A)
        await until(lambda: table.names.asked.count("orders") == 4)
        table.alive.add(A)
        await until(lambda: not table.routes._suspects)
        fetched, rounds = table.names.asked.count("orders"), table.names.asked.count("later")
        await until(lambda: table.names.asked.count("later") == rounds + 3)

    assert table.names.asked.count("orders") == fetched


async def test_routes_of_a_suspect_are_fetched_by_the_regular_refresh_in_the_end(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(routes_module, "SUSPECT_SECONDS", 0.0)
    await table.routes.get("orders")
    table.wanted = {"orders", "later"}
    async with Keeping(table, NEVER):
        table.routes.suspect(A)
        await until(lambda: table.names.asked.count("later") == 4)

    assert table.names.asked.count("orders") == 2


async def test_a_broker_or_topic_that_is_away_for_a_moment_is_kept_by_routes_in_doubt(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    table.names.known = {"orders": BOTH, "payments": BOTH}
    orders, payments = [await table.routes.get(topic) for topic in ("orders", "payments")]
    table.wanted = {"orders", "payments"}
    table.knows()  # without broker-b
    del table.names.known["payments"]
    async with Keeping(table, NEVER):
        for count in range(2, 2 + 2 * routes_module.MISSES_BEFORE_GONE):
            table.routes.suspect(B)
            await until(lambda: table.names.asked.count("payments") == count)  # noqa: B023 - at once

    assert table.consumes_as(orders)
    assert table.routes.known("payments") is payments


async def test_a_broker_that_the_regular_refresh_lacks_is_kept_and_looked_for(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    table.names.known["orders"] = BOTH
    known = await table.routes.get("orders")
    table.wanted = {"orders", "later"}
    table.knows()  # without broker-b: a name server has restarted, say
    await table.routes.refresh(["orders"])
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("orders") == 5)
        assert table.consumes_as(known)

        table.names.known["orders"] = BOTH
        fetched = table.names.asked.count("orders")
        await until(lambda: table.names.asked.count("later") > fetched + 3)

    assert table.names.asked.count("orders") <= fetched + 2
    assert table.routes.known("orders") == known


async def test_a_broker_that_is_missing_for_long_is_dropped_by_any_refresh(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(routes_module, "MISSING_SECONDS", 0.05)
    table.names.known["orders"] = BOTH
    await table.routes.get("orders")
    table.knows()
    async with Keeping(table, NEVER):
        table.routes.suspect(B)
        await until(lambda: table.routes.known("orders") == read_route("orders", LACKING))

    assert table.routes._missing == {}


async def lose_broker(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have broker-b dropped from the routes of two topics."""
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(routes_module, "MISSING_SECONDS", 0.0)
    table.wanted = {"orders", "payments", "later"}  # "later" is missing: a clock of the rounds
    for data in BOTH, LACKING:
        table.names.known = {"orders": data, "payments": data}
        await table.routes.refresh(["orders", "payments"])


async def test_the_return_of_a_dropped_broker_is_noticed_by_one_topic_for_all(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lose_broker(table, monkeypatch)
    table.names.asked.clear()
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("later") == 5)
        assert table.names.asked.count("payments") == 0
        assert table.names.asked.count("orders") in (4, 5)

        table.names.known = {"orders": BOTH, "payments": BOTH}
        await until(lambda: table.routes.known("payments") == read_route("payments", BOTH))
        fetched = table.names.asked.count("later")
        await until(lambda: table.names.asked.count("later") == fetched + 5)

    assert table.routes.known("orders") == read_route("orders", BOTH)
    assert table.names.asked.count("payments") == 1


@pytest.mark.parametrize("cause", ["time", "topics"])
async def test_a_broker_is_not_looked_for_without_end(
    table: Table, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    if cause == "time":
        monkeypatch.setattr(routes_module, "AWAITED_SECONDS", 0.0)
    await lose_broker(table, monkeypatch)
    if cause == "topics":  # neither is used any more
        table.wanted = {"later"}
    table.names.asked.clear()
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("later") == 5)

    assert set(table.names.asked) == {"later"}


async def test_a_broker_that_comes_back_may_be_missing_for_the_whole_time_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    table.names.known["orders"] = BOTH
    known = await table.routes.get("orders")
    longest = routes_module.MISSING_SECONDS
    for now, data in ((1.0, LACKING), (longest, BOTH), (longest + 1, LACKING)):  # noqa: B007 - the clock
        table.names.known["orders"] = data
        await table.routes.refresh(["orders"])
    now = longest * 2
    await table.routes.refresh(["orders"])
    assert table.consumes_as(known)

    now = longest * 2 + 1
    await table.routes.refresh(["orders"])
    assert not table.consumes_as(known)


async def test_producers_leave_a_missing_broker_at_once_and_consumers_keep_it(table: Table) -> None:
    table.names.known["orders"] = BOTH
    former = await table.routes.get("orders")
    table.names.known["orders"] = LACKING
    await table.routes.fetch("orders")  # as a send does that failed
    assert table.consumes_as(former)

    known = table.routes.known("orders")
    assert known is not None
    assert {queue.broker_name for queue in known.publish_queues} == {"broker-a"}
    assert {queue.broker_name for queue in known.ordered_queues} == {"broker-a", "broker-b"}


async def test_other_changes_do_not_wait_for_a_missing_broker(table: Table) -> None:
    table.names.known["orders"] = BOTH
    before = await table.routes.get("orders")
    table.knows(count=8, address=C)
    await table.routes.refresh(["orders"], regular=False)

    known = table.routes.known("orders")
    assert known is not None
    assert (table.routes.master("broker-a"), table.routes.master("broker-b")) == (C, B)
    kept = [queue for queue in before.subscribe_queues if queue.broker_name == "broker-b"]
    assert [queue for queue in known.subscribe_queues if queue.broker_name == "broker-b"] == kept
    assert len(known.subscribe_queues) == 8 + len(kept)


async def test_a_logical_queue_is_kept_with_its_missing_owner(table: Table) -> None:
    owned = static({0: "broker-a", 1: "broker-b"}, total=2)
    table.names.known["orders"] = owned
    known = await table.routes.get("orders")
    assert owned.topic_queue_mapping_by_broker is not None
    table.names.known["orders"] = TopicRouteData(
        queue_datas=owned.queue_datas[:1],
        broker_datas=owned.broker_datas[:1],
        topic_queue_mapping_by_broker={"broker-a": owned.topic_queue_mapping_by_broker["broker-a"]},
    )
    await table.routes.refresh(["orders"])

    assert table.consumes_as(known)


async def test_a_route_without_the_master_of_a_queue_is_fetched_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    table.names.known["orders"] = route(queues(), broker(replica=B))
    await table.routes.get("orders")
    queue = MessageQueue("orders", "broker-a", 0)
    with pytest.raises(NotConnectedError):
        table.routes.master_of(queue)
    table.knows(address=C)
    async with Keeping(table, NEVER):
        await until(lambda: len(table.changed) == 2)

    assert table.routes.master_of(queue) == C


async def test_a_missing_topic_is_looked_for_more_often_than_the_interval(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    table.wanted = {"orders", "later", "TBW102"}
    await table.routes.get("orders")
    async with Keeping(table, NEVER):
        await until(lambda: table.names.asked.count("later") >= 3)
        table.knows("later")
        await until(lambda: "later" in table.changed)

    assert table.names.asked.count("orders") == 1
    assert "TBW102" not in table.names.asked


def test_a_missing_topic_is_looked_for_within_a_second_or_two() -> None:
    assert routes_module.MISSING_RETRY_SECONDS <= 1.0


async def test_an_unused_route_is_dropped_at_the_second_refresh(table: Table) -> None:
    for _ in range(2):
        await table.routes.fetch("orders")
    table.wanted = set()
    table.routes._drop_unused(table.wanted)
    after_one_look = table.routes.known("orders")
    table.routes._drop_unused(table.wanted)

    assert after_one_look is not None
    assert table.routes.known("orders") is None
    assert table.routes.addresses() == set()
    assert not table.routes._fetched_at


async def test_a_missing_topic_that_is_unused_is_forgotten(table: Table) -> None:
    for _ in range(2):
        await table.routes.refresh(["missing"])
    assert table.routes.is_gone("missing")
    table.routes._drop_unused(table.wanted)

    assert not table.routes.is_gone("missing")


async def test_a_route_is_kept_until_its_last_pin_ends(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks() -> int:
        return table.names.asked.count("missing")

    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.001)
    table.wanted = {"missing"}  # every look asks for it
    async with Keeping(table, NEVER):
        with table.routes.pin("orders"):
            with table.routes.pin("orders"):
                await table.routes.get("orders")
            before = looks()
            await until(lambda: looks() > before + 3)
            assert table.routes.known("orders") is not None
        await until(lambda: table.routes.known("orders") is None)

    assert not table.routes._pinned


async def test_the_refresh_survives_any_response(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.01)
    await table.routes.get("orders")
    table.names.failure = NameServerUnavailableError({})
    async with Keeping(table, 0.01):
        asked = len(table.names.asked)
        await until(lambda: len(table.names.asked) > asked + 3)
        table.names.failure = None
        table.knows(count=8)
        await until(lambda: len(table.changed) == 2)


# --- addresses -----------------------------------------------------------------------------------


async def test_addresses_come_from_all_routes_in_use(table: Table) -> None:
    data = route(queues("broker-b"), broker("broker-b", master=B, replica="127.0.0.1:10931"))
    table.names.known["other"] = data
    await table.routes.get("orders")
    await table.routes.get("other")

    assert table.routes.addresses() == {A, B, "127.0.0.1:10931"}
    assert table.routes.addresses(masters_only=True) == {A, B}


async def test_addresses_are_those_of_the_current_routes(table: Table) -> None:
    replicated = broker(master=A, replica=C)
    table.names.known["orders"] = route(queues(), replicated)
    table.names.known["payments"] = route(queues(), replicated)
    for topic in ("orders", "payments"):
        await table.routes.get(topic)
    before = table.routes.addresses()
    table.knows("payments", address=B)
    await table.routes.fetch("payments")
    moved = table.routes.addresses()
    del table.names.known["orders"]
    for _ in range(2):
        await table.routes.refresh(["orders"])

    assert before == {A, C}
    assert moved == {A, B, C}
    assert table.routes.addresses() == table.routes.addresses(masters_only=True) == {B}


async def test_the_latest_answer_of_a_name_server_decides_where_a_broker_is(table: Table) -> None:
    await table.routes.get("orders")
    table.knows("payments", address=B)
    await table.routes.get("payments")
    moved = table.routes.master("broker-a")
    await table.routes.fetch("orders")  # confirmed, though unchanged

    assert moved == B
    assert table.routes.master("broker-a") == A


async def test_an_address_belongs_to_the_broker_that_a_route_gives_it(table: Table) -> None:
    table.names.known["orders"] = BOTH
    await table.routes.get("orders")

    assert [table.routes.broker_at(each) for each in (A, B, C)] == ["broker-a", "broker-b", None]


async def test_the_latest_route_decides_which_broker_has_an_address(table: Table) -> None:
    await table.routes.get("orders")
    table.names.known["payments"] = route(queues("broker-b"), broker("broker-b", master=A))
    await table.routes.get("payments")

    assert table.routes.broker_at(A) == "broker-b"


async def test_a_queue_whose_broker_has_no_route_raises(table: Table) -> None:
    await table.routes.get("orders")

    assert table.routes.master_of(MessageQueue("orders", "broker-a", 0)) == A
    with pytest.raises(NotConnectedError, match="broker-z"):
        table.routes.master_of(MessageQueue("orders", "broker-z", 0))


async def test_the_last_master_of_a_dropped_topic_is_reached_for_a_while(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queues are revoked, and committed once more: the broker may still have them."""
    monkeypatch.setattr(routes_module, "FORMER_SECONDS", 0.0)
    monkeypatch.setattr(routes_module, "MISSING_RETRY_SECONDS", 0.001)
    await table.routes.get("orders")
    del table.names.known["orders"]
    for _ in range(2):
        await table.routes.refresh(["orders"])
    queue = MessageQueue("orders", "broker-a", 0)

    assert table.routes.master_of(queue) == A
    assert table.routes.master("broker-a") is None
    assert table.routes._invalid == {"orders"}
    async with Keeping(table, NEVER):
        await until(lambda: not table.routes._former)
    with pytest.raises(NotConnectedError):
        table.routes.master_of(queue)


async def test_the_last_master_does_not_stand_in_for_one_that_a_route_lacks(table: Table) -> None:
    await table.routes.get("orders")
    table.names.known["orders"] = route(queues(), broker(replica=B))
    await table.routes.fetch("orders")

    with pytest.raises(NotConnectedError):
        table.routes.master_of(MessageQueue("orders", "broker-a", 0))


@pytest.mark.parametrize(
    ("ids", "asked", "found"),
    [
        ({0: A, 1: B}, 0, (A, 0)),
        ({0: A, 1: B}, 1, (B, 1)),
        ({0: A, 2: B}, 1, (B, 2)),
        ({0: A}, 1, (A, 0)),
        ({1: B}, 0, (B, 1)),
        ({}, 0, None),
    ],
)
async def test_a_replica_that_is_missing_is_stood_in_for(
    table: Table, ids: dict[int, str], asked: int, found: tuple[str, int] | None
) -> None:
    data = BrokerData(broker_name="broker-a", broker_addrs=ids)
    table.names.known["orders"] = route(queues(), data)
    await table.routes.get("orders")

    assert table.routes.replica_of(MessageQueue("orders", "broker-a", 0), asked) == found


@pytest.mark.parametrize(
    ("ids", "reason"),
    [({0: A, 1: B}, "it has a master"), ({1: B}, None), ({}, "no route names this broker")],
)
async def test_only_a_slave_without_a_master_is_used_instead_of_it(
    table: Table, ids: dict[int, str], reason: str | None
) -> None:
    data = BrokerData(broker_name="broker-a", broker_addrs=ids)
    table.names.known["orders"] = route(queues(), data)
    await table.routes.get("orders")
    queue = MessageQueue("orders", "broker-a", 0)

    if reason is None:
        assert table.routes.slave_of(queue) == B
    else:
        with pytest.raises(NotConnectedError, match=reason):
            table.routes.slave_of(queue)


LOGICAL = MessageQueue("orders", "__syslo__global__", 0)


async def test_a_logical_queue_is_reached_at_its_owner(table: Table) -> None:
    table.names.known["orders"] = static({0: "broker-b"}, total=2)
    await table.routes.get("orders")

    assert table.routes.master_of(LOGICAL) == B
    assert table.routes.replica_of(LOGICAL, 0) == (B, 0)
    assert table.routes.replica_of(MessageQueue("orders", "broker-a", 0), 0) == (A, 0)


@pytest.mark.parametrize("known", [True, False])
async def test_a_logical_queue_without_an_owner_cannot_be_reached(
    table: Table, known: bool
) -> None:
    table.names.known["orders"] = static({}, total=2)
    if known:
        await table.routes.get("orders")

    assert table.routes.replica_of(LOGICAL, 0) is None
    with pytest.raises(NotConnectedError, match="__syslo__none__"):
        table.routes.master_of(LOGICAL)


async def test_a_logical_queue_that_moves_is_a_change(table: Table) -> None:
    table.names.known["orders"] = static({0: "broker-a"}, total=1)
    await table.routes.get("orders")
    table.names.known["orders"] = static({0: "broker-b"}, total=1)
    await table.routes.refresh(["orders"])

    assert table.changed == ["orders", "orders"]
    assert table.routes.master_of(LOGICAL) == B


async def test_the_refresh_is_cancelled_between_any_two_steps(table: Table) -> None:
    table.names.gate = asyncio.Event()
    table.wanted = {f"topic-{number}" for number in range(30)}
    with anyio.move_on_after(0.01):
        await table.routes.refresh(table.wanted)

    assert len(table.names.asked) <= routes_module.REFRESH_AT_ONCE
    assert table.routes._fetching == {}
