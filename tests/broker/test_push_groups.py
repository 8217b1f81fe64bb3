"""Groups of push consumers on a real broker: joins, departures, deaths."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest
import pytest_asyncio

from rocketmq_aio.testing import Cluster
from tests.broker.push_members import Feeding, PushGroup
from tests.broker.push_worker import Orders

QUEUES = 16
MEMBERS = 4
SETTLED_SECONDS = 15.0  # after a change, where eight processes share two cores; usually 0.5
BUSY = 20  # running handlers per member at a rebalance: the possible duplicates

Recorder = Callable[[str, object], None]


@pytest.fixture
def topic(rocketmq_cluster: Cluster, rocketmq_group: str) -> Iterator[str]:
    name = f"{rocketmq_group[:100]}-16"
    rocketmq_cluster.create_topic(name, queues=QUEUES)
    yield name
    rocketmq_cluster.delete_topic(name)


@pytest.fixture
def orders(namesrv: str, group: str, topic: str) -> Orders:
    return Orders(namesrv=namesrv, group=group, topic=topic)


@pytest_asyncio.fixture
async def members(orders: Orders, tmp_path: Path) -> AsyncIterator[PushGroup]:
    async with PushGroup(orders, tmp_path, QUEUES) as members:
        yield members


async def test_members_join_leave_and_die_under_load_without_loss(
    members: PushGroup, namesrv: str, topic: str, record_property: Recorder
) -> None:
    took: dict[str, float] = {}
    async with Feeding(namesrv, topic) as feeding:
        await members.join(MEMBERS - 1)
        newcomer = await members.join()
        took["join"] = await members.settled(newcomer.joining)
        equal = [QUEUES // MEMBERS] * MEMBERS
        await members.until(lambda: members.shares() == equal, "equal shares")

        began = monotonic()
        await members.present[0].stop()
        took["leave"] = await members.settled(began)
        graceful = members.copies()

        began = monotonic()
        await members.present[0].kill()
        took["kill"] = await members.settled(began)
        await feeding.more(100)
    await members.until(lambda: not feeding.missing(members), "all messages")

    record_property("settled_seconds", took)
    record_property("messages", len(feeding.stored))
    record_property("copies", {"join_leave": graceful, "kill": members.copies() - graceful})
    assert max(took.values()) < SETTLED_SECONDS
    assert graceful <= (MEMBERS + 1) * BUSY
    assert members.early_commits() == []


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_rolling_deploy_under_load_loses_nothing(
    orders: Orders, members: PushGroup, orderly: bool, record_property: Recorder
) -> None:
    orders.orderly = orderly
    if orderly:  # only locks delay the next owner during such a long handler
        orders.slow_seconds = 0.6
    async with Feeding(orders.namesrv, orders.topic) as feeding:
        await members.join(MEMBERS)
        for old in members.present:
            await old.stop()
            await members.join()
        newest = members.members[-1]
        record_property("settled_seconds", await members.settled(newest.joining))
        await feeding.more(100)
    await members.until(lambda: not feeding.missing(members), "all messages")

    record_property("messages", len(feeding.stored))
    record_property("copies", members.copies())
    assert members.early_commits() == []
    assert members.copies() <= MEMBERS * MEMBERS * BUSY
    if orderly:
        assert (members.overlapped(), members.disorder(), members.copies()) == ([], [], 0)
