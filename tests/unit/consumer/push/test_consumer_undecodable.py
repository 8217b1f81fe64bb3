"""PushConsumer: messages that the codec cannot decode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketmq_aio.consumer.common.events import (
    MessageDeadLettered,
    MessageDropped,
    MessageUndecodable,
)
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.consumer.push.handlers import BatchContext, UndecodableError
from rocketmq_aio.errors import PayloadError
from rocketmq_aio.hooks import ConsumeContext
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageModel
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, committed, numbers, put
from tests.unit.consumer.parts import offsets
from tests.unit.consumer.pushing import DEAD, RETRIES, Events, Notes, pushing
from tests.unit.consumer.worker_env import FakeSendBack, WorkerEnv
from tests.unit.remoting.until import until

CODEC = JSONCodec(int)


def _counts(consumer: PushConsumer) -> tuple[int, int]:
    """Return how many messages the statistics count as done and failed."""
    counts = consumer._engine.statistics._topics.get(TOPIC)
    return (0, 0) if counts is None else (counts.sums.ok, counts.sums.failed)


class Values:
    """A batch handler that keeps the values it was given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def __call__(self, messages: list[MessageExt], context: BatchContext) -> None:
        self.batches.append([message.value for message in messages])

    @property
    def values(self) -> list[int]:
        return [value for batch in self.batches for value in batch]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
async def test_decodable_messages_of_a_batch_are_handled_once_in_order(
    cluster: FakeCluster, policy: str, orderly: bool
) -> None:
    put(cluster, "0", "1", "two", "3", "four", "5")
    handled, events = Values(), Events()
    async with pushing(
        cluster,
        arguments={"on_batch": handled, "orderly": orderly, "on_event": events},
        consume_batch_size=6,
        codec=CODEC,
        undecodable=policy,
        commit_interval_seconds=0.01,
    ) as consumer:
        await committed(cluster, {0: 6})
        await until(lambda: _counts(consumer) == (4, 2), "4 done and 2 failed messages")

    assert handled.values == [0, 1, 3, 5]
    published = events.of(MessageUndecodable)
    assert [(each.offset, each.policy) for each in published] == [(2, policy), (4, policy)]
    dead = [] if policy == "skip" else [b"two", b"four"]
    topics = cluster.broker.topics
    assert [m.body for m in (cluster.broker.messages(DEAD) if DEAD in topics else [])] == dead
    assert len(events.of(MessageDeadLettered)) == len(dead)
    if policy == "skip":
        assert not cluster.broker.requests_of(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_decodable_messages_are_handled_while_others_are_sent_back() -> None:
    going, go = asyncio.Event(), asyncio.Event()
    handled: list[int] = []

    class SlowSendBack(FakeSendBack):
        async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
            going.set()
            await go.wait()

    async def handle(messages: list[MessageExt], _: BatchContext) -> None:
        bad = [each for each in messages if each.queue_offset == 1]
        if bad:
            await until(lambda: len(env.service.idle) == 1, "another worker to find nothing")
            raise UndecodableError([(each, PayloadError("codec", "bad")) for each in bad])
        handled.extend(offsets(messages))

    async with WorkerEnv(
        on_batch=handle, consume_batch_size=3, concurrency=2, send_back=SlowSendBack()
    ) as env:
        env.pull(0, 1, 2)
        await going.wait()
        await until(lambda: handled == [0, 2], "the others")
        go.set()
        await env.until_committable(3)


async def test_concurrent_consumer_sends_undecodable_messages_back(cluster: FakeCluster) -> None:
    cluster.broker.delays.seconds[2] = 0.0
    put(cluster, "0", "one", "2")
    handled, events = Values(), Events()
    async with pushing(
        cluster,
        arguments={"on_batch": handled, "on_event": events},
        consume_batch_size=3,
        codec=CODEC,
        max_reconsume_times=1,
        commit_interval_seconds=0.01,
    ):
        await committed(cluster, {0: 3})
        await events.have(MessageDeadLettered)

    assert handled.values == [0, 2]
    assert [m.body for m in cluster.broker.messages(RETRIES)] == [b"one"]
    assert [m.body for m in cluster.broker.messages(DEAD)] == [b"one"]
    assert len(events.of(MessageUndecodable)) == 2


async def test_orderly_consumer_holds_the_queue_while_retrying(cluster: FakeCluster) -> None:
    put(cluster, "0", "one", "2")
    put(cluster, *numbers(3), queue_id=1)
    handled, events = Notes(), Events()
    async with pushing(
        cluster,
        handled,
        arguments={"orderly": True, "on_event": events},
        codec=CODEC,
        suspend_seconds=0.001,
    ):
        await events.have(MessageUndecodable, 3)
        await until(lambda: len([m for m in handled.seen if m.queue.queue_id == 1]) == 3)

    assert [m.value for m in handled.seen if m.queue.queue_id == 0] == [0]


async def test_orderly_consumer_stops_retrying_at_the_limit(cluster: FakeCluster) -> None:
    put(cluster, "0", "one", "2")
    handled = Notes()
    async with pushing(
        cluster,
        handled,
        arguments={"orderly": True},
        codec=CODEC,
        suspend_seconds=0.001,
        max_reconsume_times=2,
        commit_interval_seconds=0.01,
    ):
        await committed(cluster, {0: 3})

    assert [m.value for m in handled.seen] == [0, 2]
    assert [m.body for m in cluster.broker.messages(DEAD)] == [b"one"]


async def test_orderly_consumer_retries_only_undecodable_messages_of_a_batch(
    cluster: FakeCluster,
) -> None:
    put(cluster, "0", "1", "two", "3", "four", "5")
    handled, events = Values(), Events()
    async with pushing(
        cluster,
        arguments={"on_batch": handled, "orderly": True, "on_event": events},
        consume_batch_size=6,
        codec=CODEC,
        suspend_seconds=0.001,
        max_reconsume_times=2,
        commit_interval_seconds=0.01,
    ) as consumer:
        await committed(cluster, {0: 6})
        await until(lambda: _counts(consumer) == (4, 6), "4 done messages and 6 failures")

    assert handled.values == [0, 1, 3, 5]
    assert sorted(m.body for m in cluster.broker.messages(DEAD)) == [b"four", b"two"]
    assert [e.reconsume_times for e in events.of(MessageDeadLettered)] == [2, 2]


async def test_orderly_consumer_handles_what_is_before_an_undecodable_message(
    cluster: FakeCluster,
) -> None:
    put(cluster, "0", "1", "two", "3")
    handled, events = Values(), Events()
    async with pushing(
        cluster,
        arguments={"on_batch": handled, "orderly": True, "on_event": events},
        consume_batch_size=4,
        codec=CODEC,
        suspend_seconds=0.001,
        commit_interval_seconds=0.01,
    ):
        await committed(cluster, {0: 2})
        await events.have(MessageUndecodable, 3)

    assert handled.batches == [[0, 1]]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("policy", ["retry", "dead_letter"])
async def test_broadcasting_drops_messages_instead_of_dead_letters(
    cluster: FakeCluster, tmp_path: Path, policy: str, orderly: bool
) -> None:
    put(cluster, "0", "one", "2")
    handled, events = Notes(), Events()
    async with pushing(
        cluster,
        handled,
        arguments={"orderly": orderly, "on_event": events},
        codec=CODEC,
        undecodable=policy,
        message_model=MessageModel.BROADCASTING,
        offset_store=LocalFileOffsetStore(tmp_path),
        suspend_seconds=0.001,
        max_reconsume_times=1,
    ):
        await handled.have(2)
        (dropped,) = await events.have(MessageDropped)

    assert [m.value for m in handled.seen] == [0, 2]
    assert dropped.offset == 1
    tries = 2 if orderly and policy == "retry" else 1
    assert len(events.of(MessageUndecodable)) == tries


async def test_hooks_run_only_around_handler_calls(cluster: FakeCluster) -> None:
    put(cluster, "0", "one", "2")
    seen: list[list[bytes]] = []

    class Hook:
        def before(self, context: ConsumeContext) -> None:
            seen.append([message.body for message in context.messages])

        def after(self, context: ConsumeContext) -> None: ...

    handled = Notes()
    async with pushing(
        cluster, handled, arguments={"hooks": [Hook()]}, codec=CODEC, undecodable="skip"
    ):
        await handled.have(2)

    assert seen == [[b"0"], [b"2"]]


async def test_error_without_a_message_is_handled_like_any_other(cluster: FakeCluster) -> None:
    class MuteError(Exception):
        def __repr__(self) -> str:
            raise ValueError("no words")

    def react(_: MessageExt) -> None:
        raise MuteError

    put(cluster, "0")
    events = Events()
    async with pushing(
        cluster, Notes(react), arguments={"on_event": events}, max_reconsume_times=0
    ):
        (dead,) = await events.have(MessageDeadLettered)

    assert dead.reason == "MuteError"


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("policy", ["retry", "skip", "dead_letter"])
@pytest.mark.parametrize("end", [WorkerEnv.revoke, WorkerEnv.reset], ids=["released", "reset"])
async def test_undecodable_messages_of_a_queue_that_was_released_or_reset_are_ignored(
    end: Callable[[WorkerEnv], object], policy: str, orderly: bool
) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def handle(message: MessageExt) -> None:
        started.set()
        await go.wait()
        raise UndecodableError([(message, PayloadError("codec", "bad"))])

    async with WorkerEnv(handle, orderly=orderly, undecodable=policy) as env:
        assigned = env.pull(0)
        await started.wait()
        end(env)
        go.set()
        await until(lambda: not assigned.has_in_flight, "the handler's end")

    assert (env.events, env.send_back.sent, env.send_back.dead) == ([], [], [])
