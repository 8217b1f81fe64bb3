"""PushConsumer with frozen processes, killed servers and damaged files."""

from __future__ import annotations

import asyncio
import math
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio

from rocketmq_aio import (
    ClientConfig,
    ConsumerEvent,
    CorruptOffsetFile,
    HandlerStuck,
    LocalFileOffsetStore,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
    RetryLater,
)
from rocketmq_aio.consumer.push import concurrent
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Broker, Cluster
from tests.broker.push_members import Feeding, PushGroup, PushMember
from tests.broker.push_worker import Orders
from tests.broker.reading_groups import numbers, send
from tests.fakes.proxy import FaultProxy
from tests.unit.remoting.until import until

QUEUES = 8
LEASE_SECONDS = 3.0  # of members: less than the two times of the broker
LOCK_SECONDS = 6  # of the broker, which has 60 by default; containers keep that
IDLE_SECONDS = 4  # after which the broker removes a silent member; 120 by default
TAKEN_OVER_SECONDS = 100.0
RESUME_SECONDS = 20.0
EACH = 150  # messages a queue
STUCK_AT = 20
CONCURRENCY = PushConfig().concurrency
CACHED = 32  # messages of a queue before pulling pauses

pytestmark = pytest.mark.needs_real_broker("it shortens timeouts of members and locks by settings")

Recorder = Callable[[str, object], None]


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """A broker with short member and lock timeouts; each test leaves it running."""
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


@asynccontextmanager
async def pushing(
    cluster: Cluster,
    group: str,
    topic: str,
    handler: Callable[[MessageExt], object],
    *,
    on_event: Callable[[ConsumerEvent], object] | None = None,
    mapper: Callable[[str], str] | None = None,
    **settings: Any,  # noqa: ANN401 - those of PushConfig
) -> AsyncIterator[PushConsumer]:
    """A started consumer in this process with `start_from="earliest"` and assigned queues."""
    client = ClientConfig(
        namesrv=cluster.namesrv, address_mapper=mapper, heartbeat_interval_seconds=1.0
    )
    config = PushConfig(start_from="earliest", **settings)
    async with PushConsumer(
        group, on_message=handler, client=client, config=config, on_event=on_event
    ) as consumer:
        await consumer.subscribe(topic)
        await consumer.ready(10)
        yield consumer


# --- stalled members -----------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_stalled_member_delivers_and_commits_nothing_outdated(
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
    detected = resumed
    if not orderly:  # the lock of an orderly queue is checked before each delivery
        assert stalled.stalled is not None
        assert (detected := stalled.stalled) > resumed
    # The signal stops the event loop anywhere; the turn that it was in goes on first.
    assert len(stale(stalled, resumed, detected)) <= CONCURRENCY
    assert stale(stalled, detected) == []
    assert members.early_commits() == []
    assert members.commits_back(stalled, resumed) == []
    if orderly:
        in_flight = [
            each for each in stalled.deliveries if each.started < resumed <= (each.ended or 0.0)
        ]
        assert set(members.overlapped()) <= set(in_flight)
        assert len({each.queue for each in in_flight}) == len(in_flight)


def taken_over(members: PushGroup, stalled: PushMember, since: float) -> bool:
    """Whether other members advanced all queues of *stalled*."""
    furthest = {queue: stalled.furthest(queue) for queue in stalled.held}
    others = [each for each in members.present if each is not stalled]
    commits = [commit for each in others for commit in each.commits if commit.at > since]
    return all(
        any(c.queue == queue and c.offset > offset + 1 for c in commits)
        for queue, offset in furthest.items()
    )


def stale(stalled: PushMember, since: float, until: float = math.inf) -> list[object]:
    """Return deliveries and commits of earlier assignments between two times."""
    anew = {queue: at for queue, at in stalled.held.items() if at > since}

    def is_stale(queue: int, at: float) -> bool:
        return since < at < min(until, anew.get(queue, math.inf))

    return [
        *(each for each in stalled.deliveries if is_stale(each.queue, each.started)),
        *(each for each in stalled.commits if is_stale(each.queue, each.at)),
    ]


# --- servers that die ----------------------------------------------------------------------------


async def test_killed_broker_under_load_loses_nothing(
    members: PushGroup, broker: Broker, record_property: Recorder
) -> None:
    async with Feeding(members.orders.namesrv, members.orders.topic) as feeding:
        await members.join(2)
        await feeding.more(100)
        await asyncio.to_thread(broker.kill)
        await until(lambda: feeding.failed, "a send to fail", 60)
        await asyncio.to_thread(broker.start)
        back = monotonic()
        await feeding.more(100)
        await members.until(
            lambda: min(m.deliveries[-1].started for m in members.members) > back, "all members"
        )
        firsts = [m.first_start(queue, back) for m in members.members for queue in m.held]
    await members.until(lambda: not feeding.missing(members), "all messages")

    resumed = min(first for first in firsts if first is not None) - back
    record_property("resumed_seconds", round(resumed, 2))
    # Commits of the last five seconds are gone with the broker, and until all are back in their
    # group each sees only itself: a new owner of a queue starts at an older offset.
    record_property("copies", members.copies())
    assert resumed < RESUME_SECONDS
    assert members.early_commits() == []


async def test_orderly_queues_go_on_where_they_stopped_after_an_outage_longer_than_their_locks(
    members: PushGroup, broker: Broker
) -> None:
    members.orders.orderly = True
    async with Feeding(members.orders.namesrv, members.orders.topic) as feeding:
        member = await members.join()
        await feeding.more(100)
        await asyncio.to_thread(broker.kill)  # it loses the commits of its last seconds
        await members.until(lambda: member.lost.keys() == member.held.keys(), "expired locks")
        await asyncio.to_thread(broker.start)
        await feeding.more(100)
    await members.until(lambda: not feeding.missing(members), "all messages")

    # Not bodies: a message whose send failed with the broker may be stored twice.
    handled = Counter((each.queue, each.offset) for each in member.deliveries)
    assert handled.total() == len(handled), "nothing is repeated"
    assert members.disorder() == []


async def test_consumption_continues_without_a_name_server(
    cluster: Cluster, members: PushGroup, record_property: Recorder
) -> None:
    async with FaultProxy(cluster.namesrv) as names:
        members.orders.namesrv = names.address
        async with Feeding(names.address, members.orders.topic) as feeding:
            await members.join(2)
            names.refuse()
            names.cut()
            await feeding.more(200)
            await members.present[0].kill()  # the other member still takes over its queues
            await members.until(lambda: not feeding.missing(members), "all messages")
            await names.accept()
            await members.join()
            await feeding.more(100)
        await members.until(lambda: not feeding.missing(members), "all messages")

    record_property("copies", members.copies())
    assert feeding.failed == 0
    assert members.early_commits() == []


async def test_broker_that_dies_during_send_back_loses_nothing(
    cluster: Cluster,
    broker: Broker,
    rocketmq_group: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent, "LOCAL_RETRY_SECONDS", 0.1)
    tries: list[int] = []

    async def handle(message: MessageExt) -> None:
        tries.append(message.reconsume_times)
        if len(tries) == 1:
            raise RetryLater(1)

    async with FaultProxy(broker.address) as proxy:
        mapper = proxy.map_address
        async with pushing(cluster, rocketmq_group, topic, handle, mapper=mapper) as consumer:
            taken_back = proxy.down.hold(code=RequestCode.CONSUMER_SEND_MSG_BACK)
            await send(cluster.namesrv, topic, ["bad"])
            await taken_back.wait(1)
            await asyncio.to_thread(broker.kill)
            await until(lambda: len(tries) == 2, "the try without a broker", 60)
            await asyncio.to_thread(broker.start)
            await until(lambda: len(tries) == 3, "what the broker had taken back", 60)
            settled = await consumer._engine.consumed_offsets(topic)

    assert tries == [0, 1, 1]
    assert sum(settled.values()) == 1


# --- handlers that hang --------------------------------------------------------------------------


async def test_stuck_handler_is_reported_and_blocks_only_its_queue(
    cluster: Cluster, rocketmq_group: str, topic: str
) -> None:
    free, stuck = asyncio.Event(), Counter[MessageQueue]()
    done: Counter[MessageQueue] = Counter()
    events: list[ConsumerEvent] = []

    async def handle(message: MessageExt) -> None:
        if message.queue.queue_id == 0 and message.queue_offset == STUCK_AT:
            stuck[message.queue] += 1
            await free.wait()
        await asyncio.sleep(0.01)
        done[message.queue] += 1

    async with pushing(
        cluster,
        rocketmq_group,
        topic,
        handle,
        on_event=events.append,
        stuck_seconds=0.5,
        pull_threshold_per_queue=CACHED,
        max_span=CACHED,
        pull_batch_size=CACHED,
    ) as consumer:
        await feed_all(cluster.namesrv, topic, EACH)
        first, *others = (q for q in consumer.assignment() if q.topic == topic)
        cached: list[int] = []

        def look() -> bool:
            held = consumer._engine.table.values()
            cached.append(max(each.process_queue.count for each in held))
            return all(done[queue] == EACH for queue in others)

        await until(look, "the other queues", 60)
        await until(lambda: any(isinstance(e, HandlerStuck) for e in events), "the report", 60)
        behind = done[first]
        free.set()
        await until(lambda: done[first] == EACH, "the stuck queue", 60)

    named = [(e.queue, e.offset) for e in events if isinstance(e, HandlerStuck)]
    assert named == [(first, STUCK_AT)]
    assert stuck[first] == 1
    assert behind <= STUCK_AT + 2 * CACHED
    assert max(cached) <= 2 * CACHED  # a pull begins below the threshold


async def feed_all(namesrv: str, topic: str, count: int) -> None:
    """Send *count* messages to each queue of the topic."""
    async with Producer("feeding", namesrv=namesrv) as producer:

        async def fill(number: int) -> None:
            for _ in range(count):
                queue = MessageQueue(topic, "broker-a", number)
                await producer.send(Message(topic, b"x"), queue=queue)

        await asyncio.gather(*(fill(number) for number in range(QUEUES)))


# --- files that break ----------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [1, 2], ids=["with a backup", "without"])
async def test_truncated_offset_file_is_reported_and_set_aside(
    cluster: Cluster, rocketmq_group: str, topic: str, tmp_path: Path, broken: int
) -> None:
    seen: list[str] = []
    events: list[ConsumerEvent] = []

    def run() -> AbstractAsyncContextManager[PushConsumer]:
        return pushing(
            cluster,
            rocketmq_group,
            topic,
            lambda message: seen.append(message.body.decode()),
            on_event=events.append,
            message_model=MessageModel.BROADCASTING,
            offset_store=LocalFileOffsetStore(tmp_path),
            commit_interval_seconds=0.05,
        )

    async with run():
        await send(cluster.namesrv, topic, numbers(10))
        await until(lambda: len(seen) == 10, "the first messages", 60)
        await until(lambda: [*tmp_path.rglob("offsets.json")], "a commit", 60)
        await send(cluster.namesrv, topic, numbers(10, 10))
        await until(lambda: len(seen) == 20, "all messages", 60)
        await until(lambda: [*tmp_path.rglob("offsets.json.bak")], "a second commit", 60)
    assert not any(isinstance(each, CorruptOffsetFile) for each in events)
    for path in sorted(tmp_path.rglob("offsets.json*"))[:broken]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    seen.clear()
    async with run():
        await send(cluster.namesrv, topic, ["new"])
        await until(lambda: "new" in seen, "the new message", 60)
        if broken == 2:  # no offset is left: the group is new and starts at `start_from`
            await until(lambda: len(seen) == 21, "all messages again", 60)

    reported = [each for each in events if isinstance(each, CorruptOffsetFile)]
    assert [each.recovered for each in reported] == [broken == 1] * broken
    assert all(each.kept_as.exists() for each in reported)
    assert len(seen) == len(set(seen))
