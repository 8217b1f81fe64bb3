"""Push consumers while processes are frozen, servers die and files break."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest
import pytest_asyncio

from rocketmq_aio.testing import Broker, Cluster
from tests.broker.push_members import Feeding, PushGroup, PushMember
from tests.broker.push_worker import Orders

QUEUES = 8
LEASE_SECONDS = 3.0  # of members: less than the two times of the broker
LOCK_SECONDS = 8  # of the broker, which has 60 by default; containers keep that
IDLE_SECONDS = 4  # after which the broker gives a silent member up; 120 by default
TAKEN_OVER_SECONDS = 100.0
RESUME_SECONDS = 10.0

Recorder = Callable[[str, object], None]


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """A broker that forgets members and their locks soon; each test leaves it ready."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "JAVA_TOOL_OPTIONS",
            f"-Drocketmq.broker.rebalance.lockMaxLiveTime={LOCK_SECONDS * 1000}",
        )
        idle = {"serverChannelMaxIdleTimeSeconds": str(IDLE_SECONDS)}
        yield fresh_cluster(broker_properties=idle)


@pytest.fixture
def broker(cluster: Cluster) -> Broker:
    return cluster.brokers[0]


@pytest.fixture
def topic(cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"faults-{rocketmq_group[-12:]}"
    cluster.create_topic(name, queues=QUEUES)
    yield name
    cluster.delete_topic(name)


@pytest_asyncio.fixture
async def members(
    cluster: Cluster, rocketmq_group: str, topic: str, tmp_path: Path
) -> AsyncIterator[PushGroup]:
    orders = Orders(
        namesrv=cluster.namesrv,
        group=rocketmq_group,
        topic=topic,
        handler_seconds=0.005,
        lease_seconds=LEASE_SECONDS,
        client={"heartbeat_interval_seconds": 1.0},
    )
    async with PushGroup(orders, tmp_path, QUEUES) as members:
        yield members


# --- members that stand still --------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_member_that_stood_still_delivers_and_commits_nothing_stale(
    members: PushGroup, orderly: bool, record_property: Recorder
) -> None:
    members.orders.orderly = orderly
    async with Feeding(members.orders.namesrv, members.orders.topic) as feeding:
        last = await members.join(3)
        await members.settled(last.joining)
        stalled = members.members[0]
        stopped = monotonic()
        stalled.signal(signal.SIGSTOP)
        await members.until(
            lambda: taken_over(members, stalled, stopped), "others", TAKEN_OVER_SECONDS
        )
        record_property("taken_over_seconds", round(monotonic() - stopped, 1))
        resumed = monotonic()
        stalled.signal(signal.SIGCONT)
        record_property("settled_seconds", await members.settled(resumed))
        await feeding.more(100)
    await members.until(lambda: not feeding.missing(members), "all messages")

    record_property("copies", members.copies())
    assert stale(stalled, resumed) == []
    assert members.early_commits() == []
    assert members.commits_back() == []
    if orderly:
        in_hands = [
            each for each in stalled.deliveries if each.started < resumed <= (each.ended or 0.0)
        ]
        assert set(members.overlapped()) <= set(in_hands)
        assert len({each.queue for each in in_hands}) == len(in_hands)


def taken_over(members: PushGroup, stalled: PushMember, since: float) -> bool:
    """Whether others have come further in all the queues that *stalled* had."""
    furthest = {queue: stalled.furthest(queue) for queue in stalled.held}
    others = [each for each in members.present if each is not stalled]
    commits = [commit for each in others for commit in each.commits if commit.at > since]
    return all(
        any(c.queue == queue and c.offset > offset + 1 for c in commits)
        for queue, offset in furthest.items()
    )


def stale(stalled: PushMember, resumed: float) -> list[object]:
    """Return what the member delivered or committed of its old tenures after it was resumed."""
    anew = {queue: at for queue, at in stalled.held.items() if at > resumed}
    deliveries = [
        (each.queue, each.offset)
        for each in stalled.deliveries
        if resumed < each.started < anew.get(each.queue, math.inf)
    ]
    commits = [
        each for each in stalled.commits if resumed < each.at < anew.get(each.queue, math.inf)
    ]
    return [*deliveries, *commits]
