"""PushConsumer on a real broker, in each mode."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketmq_aio import (
    AdminClient,
    BatchContext,
    ConsumerEvent,
    JSONCodec,
    LocalFileOffsetStore,
    Message,
    MessageDeadLettered,
    MessageDropped,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageUndecodable,
    Producer,
    PushConfig,
    PushConsumer,
    RetryLater,
    SuspendQueue,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading import Stored, wait_for_messages
from tests.broker.reading_groups import in_thread, numbers, send
from tests.unit.remoting.until import until, until_done


class Notes:
    """A handler that records its calls; *react* decides the result."""

    def __init__(self, react: Callable[[MessageExt], None] | None = None) -> None:
        self.seen: list[MessageExt] = []
        self.react = react

    async def __call__(self, message: MessageExt) -> None:
        self.seen.append(message)
        if self.react is not None:
            self.react(message)

    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.seen]

    async def have(self, count: int, seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            await until(lambda: len(self.seen) >= count, f"{count} messages", seconds)


@asynccontextmanager
async def pushing(
    namesrv: str,
    group: str,
    topic: str,
    handler: Any = None,  # noqa: ANN401
    *,
    selector: str = "*",
    arguments: dict[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401
) -> AsyncIterator[PushConsumer]:
    """A started consumer with `start_from="earliest"` and assigned queues."""
    config = PushConfig(**{"start_from": "earliest", **settings})
    extra = arguments or {}
    async with PushConsumer(
        group, on_message=handler, namesrv=namesrv, config=config, **extra
    ) as consumer:
        await consumer.subscribe(topic, selector)
        await consumer.ready(10)
        yield consumer


async def dead_letter(cluster: Cluster, group: str) -> Stored:
    """Wait for the only dead letter of *group*."""

    def read() -> list[Stored]:
        return wait_for_messages(cluster, f"%DLQ%{group}", 1, queues=1)

    (dead,) = await asyncio.to_thread(read)
    return dead


# --- concurrent ----------------------------------------------------------------------------------


async def test_messages_are_handled_once_and_committed(
    namesrv: str, topic: str, group: str
) -> None:
    await send(namesrv, topic, numbers(500))
    first, second = Notes(), Notes()
    async with pushing(namesrv, group, topic, first):
        await first.have(500)
    async with pushing(namesrv, group, topic, second):
        await send(namesrv, topic, ["new"])
        await second.have(1)

    assert sorted(first.bodies()) == sorted(numbers(500))
    assert second.bodies() == ["new"]


async def test_only_subscribed_messages_are_handled(namesrv: str, topic: str, group: str) -> None:
    await send(namesrv, topic, ["Aa"], tags="Aa")
    await send(namesrv, topic, ["BB"], tags="BB")  # the broker sees the same hash
    handled = Notes()
    async with pushing(namesrv, group, topic, handled, selector="BB"):
        await handled.have(1)
        await send(namesrv, topic, ["more"], tags="BB")
        await handled.have(2)

    assert handled.bodies() == ["BB", "more"]


async def test_plain_functions_can_be_handlers(namesrv: str, topic: str, group: str) -> None:
    await send(namesrv, topic, numbers(50))
    seen: list[bytes] = []
    async with pushing(namesrv, group, topic, lambda message: seen.append(message.body)):
        await until(lambda: len(seen) == 50, "all messages", 60)


async def test_failed_message_is_redelivered_unchanged(
    namesrv: str, topic: str, group: str
) -> None:
    (where,) = await send(namesrv, topic, ["bad"], tags="new", keys="7")

    def react(message: MessageExt) -> None:
        if message.reconsume_times == 0:
            raise RetryLater(1)

    handled = Notes(react)
    async with pushing(namesrv, group, topic, handled):
        await handled.have(2)

    first, again = handled.seen
    assert (first.topic, again.topic) == (topic, topic)
    assert first.queue == where
    assert again.queue.topic == f"%RETRY%{group}"
    assert (again.body, again.tags, again.keys) == (b"bad", "new", ("7",))
    assert (again.reconsume_times, again.message_id) == (1, first.message_id)


async def test_message_goes_to_the_dlq_after_its_retries(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    await send(namesrv, topic, ["bad"])

    def react(_: MessageExt) -> None:
        raise RetryLater(1)

    events: list[object] = []
    handled = Notes(react)
    async with pushing(
        namesrv, group, topic, handled, arguments={"on_event": events.append}, max_reconsume_times=1
    ):
        await until(lambda: any(isinstance(e, MessageDeadLettered) for e in events), "event", 60)
        dead = await dead_letter(rocketmq_cluster, group)

    assert [each.reconsume_times for each in handled.seen] == [0, 1]
    assert dead.body == b"bad"


async def test_a_batch_handler_sends_back_what_it_does_not_acknowledge(
    namesrv: str, topic: str, group: str
) -> None:
    await send(namesrv, topic, numbers(40))
    done: list[str] = []
    again: list[str] = []
    mixed: list[MessageQueue] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        mixed.extend({message.queue for message in messages} - {messages[0].queue})
        for index, message in enumerate(messages):
            if message.reconsume_times:
                again.append(message.body.decode())
            elif message.body in (b"3", b"30"):
                context.ack_index, context.delay_level = index - 1, 1
                return
            else:
                done.append(message.body.decode())

    async with pushing(
        namesrv, group, topic, arguments={"on_batch": handle}, consume_batch_size=10
    ):
        await until(lambda: {*done, *again} == {*numbers(40)}, "all messages", 60)

    assert not {*done} & {*again}
    assert {"3", "30"} <= {*again}
    assert mixed == []


async def test_undecodable_messages_follow_the_policy(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    await send(namesrv, topic, ['{"id": 1}', "no JSON", '{"id": 2}'])
    values: list[Any] = []
    events: list[object] = []

    async def handle(message: MessageExt) -> None:
        values.append(message.value)

    async with pushing(
        namesrv,
        group,
        topic,
        handle,
        arguments={"on_event": events.append},
        codec=JSONCodec(dict[str, int]),
        undecodable="dead_letter",
    ):
        # The broker makes the topic of dead letters with the first one.
        await until(lambda: any(isinstance(e, MessageDeadLettered) for e in events), "event", 60)
        dead = await dead_letter(rocketmq_cluster, group)
        await until(lambda: len(values) == 2, "two values", 60)

    assert sorted(each["id"] for each in values) == [1, 2]
    assert dead.body == b"no JSON"
    assert any(isinstance(each, MessageUndecodable) for each in events)


async def test_suspend_holds_back_cached_messages(namesrv: str, topic: str, group: str) -> None:
    handled = Notes()
    async with pushing(namesrv, group, topic, handled) as consumer:
        consumer.suspend()
        await send(namesrv, topic, numbers(20))
        assert consumer.is_suspended()
        consumer_queues = consumer.assignment()
        assert handled.seen == []
        consumer.resume()
        await handled.have(20)
        assert consumer.assignment() == consumer_queues


async def test_lag_counts_unsettled_messages(namesrv: str, topic: str, group: str) -> None:
    handled = Notes()
    async with pushing(namesrv, group, topic, handled) as consumer:

        async def has_lag(lag: int) -> bool:  # brokers index messages a moment after the send
            return sum((await consumer.lag()).values()) == lag

        consumer.suspend()
        await send(namesrv, topic, numbers(20))
        await until_done(lambda: has_lag(20), "the lag")
        consumer.resume()
        await handled.have(20)
        await until_done(lambda: has_lag(0), "the end of the lag")


async def test_topics_can_be_changed_at_run_time(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    other = f"{topic}-other"
    await in_thread(rocketmq_cluster.create_topic, other)
    handled = Notes()
    async with pushing(namesrv, group, topic, handled) as consumer:
        await send(namesrv, topic, ["1"])
        await handled.have(1)
        await consumer.subscribe(other)
        await consumer.unsubscribe(topic)
        await send(namesrv, topic, ["not for us"])
        await send(namesrv, other, ["2"])
        await handled.have(2)
        assert {queue.topic for queue in consumer.assignment()} <= {other, f"%RETRY%{group}"}

    assert handled.bodies() == ["1", "2"]


async def test_consumption_waits_while_a_topic_may_not_be_read(
    namesrv: str, topic: str, group: str
) -> None:
    handled, events = Notes(), list[str]()

    def note(event: ConsumerEvent) -> None:
        events.append(type(event).__name__)

    async with (
        AdminClient(namesrv=namesrv) as admin,
        pushing(namesrv, group, topic, handled, arguments={"on_event": note}),
    ):
        await send(namesrv, topic, ["1"])
        await handled.have(1)
        await admin.topics.update(topic, perm="W")
        await send(namesrv, topic, ["2"])
        await until(lambda: "PullFailed" in events, "a refused pull", 30)
        assert handled.bodies() == ["1"]
        await admin.topics.update(topic, perm="RW")
        await handled.have(2)

    assert handled.bodies() == ["1", "2"]


# --- in order ------------------------------------------------------------------------------------


async def test_orderly_queues_are_retried_in_place(namesrv: str, topic: str, group: str) -> None:
    where = await send(namesrv, topic, numbers(200))
    failed: set[str] = set()

    def react(message: MessageExt) -> None:
        body = message.body.decode()
        if body.endswith("7") and body not in failed:
            failed.add(body)
            raise SuspendQueue(0.02)

    handled = Notes(react)
    async with pushing(namesrv, group, topic, handled, arguments={"orderly": True}):
        await handled.have(220)

    expected: dict[MessageQueue, list[str]] = defaultdict(list)
    for body, queue in zip(numbers(200), where, strict=True):
        expected[queue] += [body, body] if body.endswith("7") else [body]
    found: dict[MessageQueue, list[str]] = defaultdict(list)
    for message in handled.seen:
        found[message.queue].append(message.body.decode())
    assert found == expected


async def test_reassigned_orderly_queues_are_never_handled_concurrently(
    namesrv: str, topic: str, group: str
) -> None:
    running: set[MessageQueue] = set()
    shared: set[MessageQueue] = set()  # of which two handlers ran at once
    seen: dict[MessageQueue, list[int]] = defaultdict(list)

    async def handle(message: MessageExt) -> None:
        shared.update(running & {message.queue})
        running.add(message.queue)
        await asyncio.sleep(0.001)
        seen[message.queue].append(message.queue_offset)
        running.discard(message.queue)

    total = 0
    async with pushing(namesrv, group, topic, handle, arguments={"orderly": True}) as first:
        sending = asyncio.ensure_future(send(namesrv, topic, numbers(600)))
        await until(lambda: bool(seen), "the first message", 60)
        async with pushing(namesrv, group, topic, handle, arguments={"orderly": True}) as second:
            await until(
                lambda: len(first.assignment()) and len(second.assignment()) >= 2, "sharing", 30
            )
            total = len(await sending)
            await until(lambda: sum(map(len, map(set, seen.values()))) == total, "all", 60)

    assert shared == set()
    for offsets in seen.values():
        assert sorted(set(offsets)) == list(range(len(set(offsets))))
        assert offsets == sorted(offsets)


async def test_orderly_message_goes_to_the_dlq_at_its_limit(
    namesrv: str, topic: str, group: str, rocketmq_cluster: Cluster
) -> None:
    queue = (await send(namesrv, topic, ["bad"]))[0]
    async with Producer("p", namesrv=namesrv) as producer:
        await producer.send(Message(topic, b"good"), queue=queue)

    def react(message: MessageExt) -> None:
        if message.body == b"bad":
            raise ValueError("bad")

    handled = Notes(react)
    async with pushing(
        namesrv,
        group,
        topic,
        handled,
        arguments={"orderly": True},
        max_reconsume_times=2,
        suspend_seconds=0.01,
    ):
        await handled.have(4)
        dead = await dead_letter(rocketmq_cluster, group)

    assert handled.bodies() == ["bad", "bad", "bad", "good"]
    assert dead.body == b"bad"


# --- broadcasting --------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_broadcasting_delivers_everything_to_every_member(
    namesrv: str, topic: str, group: str, tmp_path: Path, orderly: bool
) -> None:
    await send(namesrv, topic, numbers(50))

    def member(number: int, handled: Notes) -> Any:  # noqa: ANN401
        return pushing(
            namesrv,
            group,
            topic,
            handled,
            arguments={"orderly": orderly},
            message_model=MessageModel.BROADCASTING,
            offset_store=LocalFileOffsetStore(tmp_path / str(number)),
        )

    first, second, later = Notes(), Notes(), Notes()
    async with member(1, first), member(2, second):
        await first.have(50)
        await second.have(50)
    async with member(1, later):
        await send(namesrv, topic, ["new"])
        await later.have(1)

    assert sorted(first.bodies()) == sorted(second.bodies()) == sorted(numbers(50))
    assert later.bodies() == ["new"]


async def test_a_failed_broadcast_message_is_reported(
    namesrv: str, topic: str, group: str, tmp_path: Path
) -> None:
    await send(namesrv, topic, ["bad"])

    def react(_: MessageExt) -> None:
        raise ValueError("bad")

    events: list[object] = []
    async with pushing(
        namesrv,
        group,
        topic,
        Notes(react),
        arguments={"on_event": events.append},
        message_model=MessageModel.BROADCASTING,
        offset_store=LocalFileOffsetStore(tmp_path),
    ):
        await until(lambda: any(isinstance(e, MessageDropped) for e in events), "event", 60)
