"""Pop mode of PushConsumer on a fake cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.common.events import MessageDeadLettered
from rocketmq_aio.consumer.pop import ack_service as pop_acks, renewal
from rocketmq_aio.consumer.pop.ack_service import BackgroundAcks
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.push import pop_mode as push_pops
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.consumer.push.dispatch_queue import InFlight
from rocketmq_aio.consumer.push.handlers import RetryLater
from rocketmq_aio.consumer.push.pop_mode import PoppedQueue
from rocketmq_aio.embedded.broker.store import NewMessage
from rocketmq_aio.embedded.responses import Close, Outcome, Response
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, numbers, put
from tests.unit.consumer.parts import break_down, queue
from tests.unit.consumer.pop_env import RETRY_TOPIC, hold_acks, invisible, popped
from tests.unit.consumer.pushing import DEAD, Events, Notes, last_heartbeat, pushing, topics_of
from tests.unit.consumer.worker_env import Gate, WorkerEnv
from tests.unit.remoting.short_timeout import shorten_next_timeout
from tests.unit.remoting.until import until

POP = RequestCode.POP_MESSAGE
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


@asynccontextmanager
async def push_popping(
    cluster: FakeCluster,
    handler: Any,  # noqa: ANN401 - as the constructor takes it
    **arguments: Any,  # noqa: ANN401 - those of `pushing`
) -> AsyncIterator[PushConsumer]:
    """A started consumer whose queues every broker wants popped."""
    for broker in cluster.brokers:
        broker.assignments.modes[TOPIC, GROUP] = MessageRequestMode.POP
    async with pushing(cluster, handler, client_rebalance=False, **arguments) as consumer:
        yield consumer


def put_retried(cluster: FakeCluster, body: str, times: int, *, topic: str = RETRY_TOPIC) -> None:
    """Store a message that was retried *times* already."""
    store = cluster.broker.state.store
    store.create_topic(topic, 1)
    again = NewMessage(
        topic=topic,
        queue_id=0,
        body=body.encode(),
        born_ms=store.clock.now_ms(),
        reconsume_times=times,
    )
    store.append(again)


def redeliver_all(cluster: FakeCluster) -> None:
    """Let the invisible time of all messages end now."""
    cluster.clock.advance(60)


def waiting(consumer: PushConsumer) -> list[MessageExt]:
    """Return the messages that no handler has taken yet."""
    queues = consumer._engine.table.values()
    return [m for each in queues if isinstance(each, PoppedQueue) for m in each.waiting]


def popped_of(messages: Iterable[MessageExt]) -> list[PoppedMessage]:
    return [each for each in messages if isinstance(each, PoppedMessage)]


class Blocked(Notes):
    """A handler that ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        await super().__call__(message)
        await self.let_go.wait()


@pytest.mark.parametrize("outcome", [None, Close(reset=True), Response(1, remark="no")], ids=str)
async def test_failed_send_to_dlq_is_repeated_when_the_message_is_redelivered(
    cluster: FakeCluster, outcome: Outcome
) -> None:
    handled, events = Notes(), Events()
    cluster.faults.handle("send_back", outcome)
    async with push_popping(
        cluster, handled, max_reconsume_times=0, arguments={"on_event": events}
    ) as consumer:
        shorten_next_timeout(consumer.client, SEND_BACK)
        put_retried(cluster, "dead", 1)
        await cluster.broker.wait_for(SEND_BACK)
        put(cluster, "next")
        await handled.have(1)
        await until(lambda: invisible(cluster) == 1, "the acknowledgement of the handled message")
        assert DEAD not in cluster.broker.topics
        redeliver_all(cluster)
        [event] = await events.have(MessageDeadLettered)

    assert event.reconsume_times == 2
    assert [each.body for each in cluster.broker.messages(DEAD)] == [b"dead"]
    assert handled.bodies() == ["next"]


@pytest.mark.parametrize(("level", "seconds"), [(1, 1), (18, 7200), (19, 7200)])
async def test_popped_messages_are_retried_after_the_delay_of_their_level(
    level: int, seconds: int, cluster: FakeCluster
) -> None:
    def fail(_: MessageExt) -> None:
        raise RetryLater(level)

    async with push_popping(cluster, Notes(fail)):
        put(cluster, "1")
        await cluster.broker.wait_for(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)

    [request] = cluster.broker.requests_of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert request.ext_fields()["invisibleTime"] == str(seconds * 1000)


async def test_a_popped_message_that_fails_after_its_queue_was_revoked_is_sent_back(
    cluster: FakeCluster,
) -> None:
    """Its queue has no owner that would get it: it is invisible until then."""
    gate = Gate(error=RetryLater(2))
    async with push_popping(cluster, gate, close_timeout_seconds=0) as consumer:
        put(cluster, "1")
        await gate.reached.wait()
        await consumer.unsubscribe(TOPIC)
        assert not cluster.broker.requests_of(CHANGE)
        gate.open.set()
        await cluster.broker.wait_for(CHANGE)

    [request] = cluster.broker.requests_of(CHANGE)
    assert request.ext_fields()["invisibleTime"] == "5000"


async def test_the_next_pop_waits_for_the_dead_letters_of_the_last(cluster: FakeCluster) -> None:
    events = Events()
    with cluster.faults.hold("send_back", times=None) as held:
        async with push_popping(
            cluster,
            Notes(),
            max_reconsume_times=0,
            pop_batch_size=1,
            arguments={"on_event": events},
        ):
            for number in range(3):
                put_retried(cluster, str(number), 1, topic=TOPIC)
            for _ in range(3):
                await held.wait()
                await asyncio.sleep(0.2)  # enough for further pops
                assert len(held.held) == 1
                held.release()
            await events.have(MessageDeadLettered, 3)


async def test_dead_letter_of_a_failing_handler_is_reported_once(cluster: FakeCluster) -> None:
    def fail(_message: MessageExt) -> None:
        raise ZeroDivisionError

    events = Events()
    put(cluster, "1")
    async with push_popping(
        cluster, Notes(fail), max_reconsume_times=0, arguments={"on_event": events}
    ):
        await events.have(MessageDeadLettered)

    assert len(events.of(MessageDeadLettered)) == 1
    assert [each.body for each in cluster.broker.messages(DEAD)] == [b"1"]


async def test_a_message_that_expired_before_its_handler_failed_is_no_dead_letter(
    cluster: FakeCluster,
) -> None:
    """The broker redelivers it, so each delivery would make another one."""

    def fail(message: MessageExt) -> None:
        if isinstance(message, PoppedMessage) and message.body == b"expired":
            message.expires_at = 0.0
        raise ZeroDivisionError

    events = Events()
    put(cluster, "expired", "dead")
    async with push_popping(
        cluster, Notes(fail), max_reconsume_times=0, arguments={"on_event": events}
    ):
        await events.have(MessageDeadLettered)

    assert len(events.of(MessageDeadLettered)) == 1
    assert [each.body for each in cluster.broker.messages(DEAD)] == [b"dead"]


async def test_popping_continues_when_cached_messages_have_expired(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_pops, "CHECK_SECONDS", 0.01)
    handler = Blocked()
    put(cluster, "1", "2", "3")
    async with push_popping(
        cluster, handler, concurrency=1, pop_batch_size=2, pop_threshold_per_queue=1
    ) as consumer:
        await until(lambda: handler.seen and waiting(consumer))
        requests = len(cluster.broker.requests_of(POP))
        [cached] = waiting(consumer)
        assert isinstance(cached, PoppedMessage)
        cached.expires_at = 0.0

        await cluster.broker.wait_for(POP, requests + 1)
        await until(lambda: [each.body for each in waiting(consumer)] == [b"3"])
        handler.let_go.set()


async def test_popping_continues_when_a_new_expression_empties_the_cache(
    cluster: FakeCluster,
) -> None:
    handler = Blocked()
    put(cluster, "1", "2", tag="old")
    async with push_popping(
        cluster, handler, selector="old", concurrency=1, pop_batch_size=2, pop_threshold_per_queue=1
    ) as consumer:
        await until(lambda: handler.seen and waiting(consumer))
        put(cluster, "3", tag="new")
        await consumer.subscribe(TOPIC, "new")

        await until(lambda: [each.body for each in waiting(consumer)] == [b"3"])
        handler.let_go.set()


async def test_popping_pauses_while_too_many_acks_are_unconfirmed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_acks, "MAX_UNCONFIRMED", 3)
    handled = Notes()
    release = hold_acks(cluster.broker)
    put(cluster, *numbers(20))
    async with push_popping(cluster, handled, pop_batch_size=2) as consumer:
        [loop] = [q.loop for q in consumer._engine.table.values() if isinstance(q, PoppedQueue)]
        assert loop is not None
        await until(lambda: loop._wake is not None and len(handled.seen) > 3, "the loop to pause")
        assert len(handled.seen) < 8
        release()
        await handled.have(20)


async def test_expired_messages_are_not_put_back_for_a_local_retry() -> None:
    assigned = PoppedQueue(queue(-1), InFlight(), cast(BackgroundAcks, None), lambda _: None)
    now = boottime()
    fresh = popped(2, expires_at=now + 60)
    assigned.put_back([popped(1, expires_at=now), fresh])

    assert list(assigned.waiting) == [fresh]


async def test_failed_consumer_pops_nothing_more(cluster: FakeCluster) -> None:
    async with push_popping(cluster, Notes()) as consumer:
        await cluster.broker.wait_for(POP, 1)
        table = consumer._engine.table
        loops = [each.loop for each in table.values() if isinstance(each, PoppedQueue)]
        break_down(consumer)
        await consumer._engine.stopped.wait()

        assert loops
        assert all(loop is not None and loop.stopped for loop in loops)


async def test_a_switch_from_pulling_to_popping_waits_for_running_handlers(
    cluster: FakeCluster,
) -> None:
    """Otherwise their progress is not committed, and popped again."""
    handled = Blocked()
    put(cluster, "1")
    async with pushing(
        cluster, handled, client_rebalance=False, close_timeout_seconds=60.0
    ) as consumer:
        await handled.have(1)
        pulled = consumer._engine.table[queue()]
        cluster.broker.assignments.modes[TOPIC, GROUP] = MessageRequestMode.POP
        consumer._engine.rebalancer.wake()
        await until(lambda: pulled.dropped, "the revocation")
        handled.let_go.set()
        await until(
            lambda: any(isinstance(each, PoppedQueue) for each in consumer._engine.table.values()),
            "the popped queue",
        )

        assert cluster.broker.committed(GROUP, TOPIC, 0) == 1
        assert handled.bodies() == ["1"]


@pytest.mark.parametrize("namespace", [None, "shop"])
async def test_retried_messages_are_handled_after_a_switch_from_popping_to_pulling(
    namespace: str | None,
) -> None:
    """With their topic, also when they fail again."""

    def fail(message: MessageExt) -> None:
        if message.reconsume_times < 2:
            raise RetryLater(1)

    handled = Notes(fail)
    prefix = "" if namespace is None else f"{namespace}%"
    topic, group = prefix + TOPIC, prefix + GROUP
    async with FakeCluster(topics={topic: 1}) as cluster:
        cluster.broker.delays.seconds[0] = 0.0
        put_retried(cluster, "1", 1, topic=f"%RETRY%{group}_{topic}")
        client = ClientConfig(namesrv=cluster.namesrv, namespace=namespace)
        async with pushing(
            cluster, handled, client=client, client_rebalance=False, rebalance_interval_seconds=0.05
        ):
            await handled.have(2)

    assert [each.topic for each in handled.seen] == [TOPIC, TOPIC]
    assert [each.reconsume_times for each in handled.seen] == [1, 2]


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_retry_topics_are_followed_where_brokers_assign_queues_to_be_pulled(
    version: str,
) -> None:
    own, other = f"%RETRY%{GROUP}", "%RETRY%shipping"
    of_popped = {f"{own}{joint}{TOPIC}" for joint in "_+"}
    async with (
        FakeCluster(topics={TOPIC: 1, other: 1}, version=version) as cluster,
        pushing(cluster, Notes(), client_rebalance=False) as consumer,
    ):
        await consumer.subscribe(other)
        await consumer.ready(5)
        await until(lambda: queue(topic=other) in consumer.assignment())

        followed = topics_of(last_heartbeat(cluster.broker)).keys() - {TOPIC, own, other}
        assert followed == (of_popped if version == "5.5.0" else set())
        assert other in consumer._engine._subscriptions


async def test_messages_are_renewed_while_cached_or_handled_however_long_they_waited(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "LONGEST_PAUSE_SECONDS", 0.01)
    handler = Blocked()
    put(cluster, "1", "2")
    async with push_popping(
        cluster, handler, concurrency=1, consume_timeout_seconds=900.0
    ) as consumer:
        await until(lambda: handler.seen and waiting(consumer))
        now = boottime()
        for each in popped_of([*handler.seen, *waiting(consumer)]):
            each.received_at = now - 901
            each.expires_at = now + 20  # less than half of its time is left
        held = popped_of([*handler.seen, *waiting(consumer)])
        await until(lambda: all(message.expires_at > now + 30 for message in held))

        changed = [each.ext_fields()["offset"] for each in cluster.broker.requests_of(CHANGE)]
        assert sorted(changed) == ["0", "1"]
        handler.let_go.set()


@pytest.mark.parametrize("reason", ["stuck", "suspended"])
async def test_cached_messages_are_renewed_for_the_handler_timeout_if_no_handler_can_start(
    cluster: FakeCluster, reason: str
) -> None:
    handler = Blocked()
    put(cluster, "1", "2", "3")
    async with push_popping(
        cluster, handler, concurrency=1, consume_timeout_seconds=900.0
    ) as consumer:
        await until(lambda: handler.seen and len(waiting(consumer)) == 2)
        old, new = popped_of(waiting(consumer))
        old.received_at = boottime() - 901
        pops, [busy] = consumer._engine._pops, consumer._engine.workers.busy
        assert pops is not None
        assert {old, new} <= set(pops._in_use())
        if reason == "stuck":
            busy.expired = True
        else:
            consumer.suspend()

        assert {old, new} & set(pops._in_use()) == {new}
        handler.let_go.set()


async def test_messages_are_not_renewed_when_their_handler_takes_too_long() -> None:
    gate = Gate(offset=0)
    async with WorkerEnv(gate) as env:
        env.pull(0)
        await gate.reached.wait()
        [in_flight] = env.workers.messages_in_flight()
        [busy] = env.workers.busy
        busy.expired = True

        assert in_flight.queue_offset == 0
        assert env.workers.messages_in_flight() == []
        gate.open.set()


class Even:
    """Keeps messages with even numbers."""

    def filter(self, messages: tuple[MessageExt, ...]) -> list[MessageExt]:
        return [each for each in messages if int(each.body) % 2 == 0]


async def test_messages_that_a_filter_hook_drops_are_acknowledged(cluster: FakeCluster) -> None:
    handled = Notes()
    async with push_popping(cluster, handled, arguments={"hooks": [Even()]}):
        put(cluster, *numbers(6))
        await handled.have(3)
        await until(lambda: not invisible(cluster), "the acknowledgements")

    assert sorted(handled.bodies()) == ["0", "2", "4"]
