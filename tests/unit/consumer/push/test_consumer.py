"""PushConsumer on a fake cluster: delivery, suspension, concurrency, retries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rocketmq_aio.consumer.common.events import MessageDeadLettered, OffsetCorrected, QueueHeld
from rocketmq_aio.consumer.push.handlers import RetryLater
from rocketmq_aio.hooks import ConsumeContext
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.consumer.pushing import DEAD, RETRIES, Events, Notes, push_consumer, pushing
from tests.unit.remoting.until import until

SOON: dict[str, Any] = {"commit_interval_seconds": 0.01}


class Gate:
    """A handler that waits until it may go on, and counts who is inside."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.done = 0
        self.go = asyncio.Event()

    async def __call__(self, _: MessageExt) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.go.wait()
        self.inside -= 1
        self.done += 1


async def test_no_handler_is_called_while_suspended(cluster: FakeCluster) -> None:
    handled = Notes()
    async with pushing(cluster, handled) as consumer:
        held = consumer._engine.table[queue()]
        await cluster.broker.wait_for(RequestCode.PULL_MESSAGE, 5)
        consumer.suspend()
        assert consumer.is_suspended()
        put(cluster, *numbers(3))  # the pull that is under way brings them
        await until(lambda: held.process_queue.count == 3, "the messages")
        put(cluster, "later")
        await until(lambda: held.wake is not None, "the pull loop to wait")
        assert held.next_offset == 3
        assert handled.seen == []

        consumer.resume()
        assert not consumer.is_suspended()
        await handled.have(4)

    assert sorted(handled.bodies()) == ["0", "1", "2", "later"]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_running_handler_finishes_while_suspended(
    cluster: FakeCluster, orderly: bool
) -> None:
    put(cluster, *numbers(3))
    gate = Gate()
    kind = {"orderly": orderly}
    async with pushing(cluster, gate, arguments=kind, concurrency=1, **SOON) as consumer:
        await until(lambda: gate.inside == 1, "a handler")
        consumer.suspend()
        gate.go.set()
        await committed(cluster, {0: 1})
        assert gate.done == 1

        consumer.resume()
        await committed(cluster, {0: 3})


async def test_queue_assigned_while_suspended_is_suspended(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 1)
    put(cluster, "invoice", topic="invoices")
    handled = Notes()
    async with pushing(cluster, handled) as consumer:
        consumer.suspend()
        await consumer.subscribe("invoices")
        await consumer.ready(5)
        held = consumer._engine.table[queue(topic="invoices")]
        await until(lambda: held.wake is not None, "the pull loop to wait")
        assert (held.paused, held.process_queue.count) == (True, 0)

        consumer.resume()
        await handled.have(1)


async def test_concurrency_can_be_changed_under_load(cluster: FakeCluster) -> None:
    put(cluster, *numbers(40))
    gate = Gate()
    async with pushing(cluster, gate, concurrency=2, **SOON) as consumer:
        await until(lambda: gate.inside == 2, "two handlers")
        consumer.set_concurrency(10)
        await until(lambda: gate.inside == 10, "ten handlers")
        consumer.set_concurrency(1)
        gate.go.set()
        await committed(cluster, {0: 40})
        gate.go.clear()
        put(cluster, *numbers(5))
        await until(lambda: gate.inside == 1, "one handler")
        consumer.set_concurrency(4)
        await until(lambda: gate.inside == 4, "four handlers")
        gate.go.set()
        await committed(cluster, {0: 45})

    assert gate.most == 10


async def test_threads_are_limited_by_concurrency(cluster: FakeCluster) -> None:
    put(cluster, *numbers(20))
    together, go, done = threading.Barrier(3), threading.Event(), threading.Semaphore(0)
    first = iter(range(3))

    def handle(_: MessageExt) -> None:
        if next(first, None) is not None:
            together.wait(15)  # breaks unless three are here at once
            go.wait(15)
        done.release()

    async with pushing(cluster, handle, concurrency=1, **SOON) as consumer:
        consumer.set_concurrency(3)
        await until(lambda: together.n_waiting == 0 and len(consumer._engine.workers.busy) == 3)
        consumer.set_concurrency(2)
        go.set()
        await committed(cluster, {0: 20})

    assert not together.broken


def failing(_: MessageExt) -> None:
    raise RetryLater(1)


async def test_without_retries_the_first_failure_goes_to_the_dlq(cluster: FakeCluster) -> None:
    put(cluster, "bad")
    handled, events = Notes(failing), Events()
    async with pushing(cluster, handled, arguments={"on_event": events}, max_reconsume_times=0):
        await events.have(MessageDeadLettered)

    assert handled.bodies() == ["bad"]
    assert [stored.body for stored in cluster.broker.messages(DEAD)] == [b"bad"]


async def test_concurrent_consumer_retries_16_times_by_default(cluster: FakeCluster) -> None:
    cluster.broker.delays.seconds[0] = 0.0
    put(cluster, "bad")
    handled, events = Notes(failing), Events()
    async with pushing(cluster, handled, arguments={"on_event": events}):
        await events.have(MessageDeadLettered)

    assert [message.reconsume_times for message in handled.seen] == list(range(17))
    assert {message.topic for message in handled.seen} == {TOPIC}


@pytest.mark.parametrize(("times", "tries"), [(0, 1), (3, 4)])
async def test_orderly_consumer_retries_in_place_up_to_the_limit(
    cluster: FakeCluster, times: int, tries: int
) -> None:
    put(cluster, "bad", "good")
    handled = Notes(lambda message: failing(message) if message.body == b"bad" else None)
    async with pushing(
        cluster,
        handled,
        arguments={"orderly": True},
        max_reconsume_times=times,
        suspend_seconds=0.001,
    ):
        await handled.have(tries + 1)

    assert handled.bodies() == ["bad"] * tries + ["good"]
    assert [stored.body for stored in cluster.broker.messages(DEAD)] == [b"bad"]
    assert RETRIES not in cluster.broker.topics or not cluster.broker.messages(RETRIES)


async def test_orderly_consumer_retries_without_limit_by_default(cluster: FakeCluster) -> None:
    put(cluster, "bad", "good")
    tries: list[tuple[bytes, int]] = []

    def react(message: MessageExt) -> None:
        tries.append((message.body, message.reconsume_times))
        failing(message)

    handled = Notes(react)
    async with pushing(cluster, handled, arguments={"orderly": True}, suspend_seconds=0.001):
        await handled.have(30)

    assert tries[:30] == [(b"bad", number) for number in range(30)]


class Chooser:
    """A filter hook; *fails* is raised for every pull."""

    def __init__(self, left_out: Sequence[bytes] = (), fails: bool = False) -> None:
        self.left_out = left_out
        self.fails = fails
        self.saw: list[list[bytes]] = []

    def filter(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        self.saw.append([each.body for each in messages])
        if self.fails:
            raise ValueError("a bad hook")
        return [each for each in messages if each.body not in self.left_out]


class Watcher:
    """A consume hook."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.events: list[tuple[str, int, str | None]] = []

    def before(self, context: ConsumeContext) -> None:
        self._hear("before", context)

    def after(self, context: ConsumeContext) -> None:
        self._hear("after", context)

    def _hear(self, what: str, context: ConsumeContext) -> None:
        self.events.append((what, context.messages[0].queue_offset, context.status))
        if self.fails:
            raise ValueError("a bad hook")


async def test_filtered_messages_are_settled_and_failing_hooks_are_ignored(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(4))
    bad, first, second = Chooser(fails=True), Chooser([b"1"]), Chooser([b"2", b"3"])
    watcher, bad_watcher = Watcher(), Watcher(fails=True)
    handled = Notes()
    hooks = [bad, first, second, bad_watcher, watcher]
    async with pushing(cluster, handled, arguments={"hooks": hooks}, **SOON):
        await committed(cluster, {0: 4})

    assert handled.bodies() == ["0"]
    assert bad.saw == first.saw == [[b"0", b"1", b"2", b"3"]]
    assert second.saw == [[b"0", b"2", b"3"]]
    assert watcher.events == bad_watcher.events == [("before", 0, None), ("after", 0, "ok")]


async def test_queue_with_an_illegal_offset_is_held_until_seek(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    put(cluster, "other", queue_id=1)
    cluster.broker.commit(GROUP, TOPIC, 0, 3)
    cluster.broker.topics[TOPIC].queues[0].drop_before(4)
    handled, events = Notes(), Events()
    async with pushing(
        cluster, handled, arguments={"on_event": events}, offset_illegal="error"
    ) as consumer:
        (held,) = await events.have(QueueHeld)
        await handled.have(1)
        assert handled.bodies() == ["other"]
        await consumer.seek(held.queue, held.suggested)
        await handled.have(2)

    assert (held.queue, held.requested, held.suggested) == (queue(), 3, 4)
    assert "OFFSET_TOO_SMALL" in held.remark
    assert handled.bodies() == ["other", "4"]
    assert events.of(OffsetCorrected) == []


async def test_resume_does_not_release_a_held_queue(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    cluster.broker.commit(GROUP, TOPIC, 0, 9)
    handled, events = Notes(), Events()
    async with pushing(
        cluster, handled, arguments={"on_event": events}, offset_illegal="error"
    ) as consumer:
        await events.have(QueueHeld)
        pulls = len(cluster.broker.requests_of(RequestCode.PULL_MESSAGE))
        consumer.suspend()
        consumer.resume()
        put(cluster, "other", queue_id=1)
        await handled.have(1)

        assert len(events.of(QueueHeld)) == 1
        await cluster.broker.wait_for(RequestCode.PULL_MESSAGE, pulls + 1)
        assert consumer._engine.table[queue()].next_offset == 9


async def test_retry_topic_is_read_from_its_start_whatever_start_from_is(
    cluster: FakeCluster,
) -> None:
    put(cluster, "old")
    cluster.create_topic(RETRIES, 1)
    put(cluster, "retried before", topic=RETRIES)
    handled = Notes()
    async with pushing(cluster, handled, start_from="latest", **SOON):
        put(cluster, "new")
        await handled.have(2)
        await committed(cluster, {0: 1}, topic=RETRIES)

    assert sorted(handled.bodies()) == ["new", "retried before"]


async def test_a_listener_that_raises_changes_nothing(cluster: FakeCluster) -> None:
    put(cluster, "a")
    published: list[object] = []

    def listen(event: object) -> None:
        published.append(event)
        raise ValueError("a bad listener")

    handled = Notes()
    async with pushing(cluster, handled, arguments={"on_event": listen}):
        await handled.have(1)

    assert len(published) >= 2


async def test_every_event_stream_ends_with_the_consumer(cluster: FakeCluster) -> None:
    consumer = push_consumer(cluster, Notes())
    stream = consumer.events()
    async with consumer:
        await consumer.subscribe(TOPIC)
        await consumer.ready(5)
        late = consumer.events()
    kinds = [type(event).__name__ async for event in stream]

    assert kinds[0] == "QueuesAssigned"
    assert kinds[-1] == "QueuesRevoked"
    assert [type(event).__name__ async for event in late] == ["QueuesRevoked"]


async def test_ready_returns_when_all_start_offsets_are_known(cluster: FakeCluster) -> None:
    held_back = cluster.faults.hold("query_offset", times=None)
    async with push_consumer(cluster, Notes()) as consumer:
        await consumer.subscribe(TOPIC)
        with pytest.raises(TimeoutError):
            await consumer.ready(0.05)
        assert _unknown(consumer)
        held_back.release()
        held_back.remove()
        await consumer.ready(5)

        assert not _unknown(consumer)
        assert [q for q in consumer.assignment() if q.topic == TOPIC] == [
            queue(number) for number in range(4)
        ]


def _unknown(consumer: Any) -> bool:  # noqa: ANN401
    table = consumer._engine.table
    return not table or any(not each.started.is_set() for each in table.values())
