"""mqadmin with running consumers: running info, offset resets, direct consumption."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple, Protocol

import pytest

from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from tests.broker.official_tool import OfficialTool, mqadmin
from tests.broker.reading_groups import (
    POLL_SECONDS,
    QUEUES,
    bodies,
    consuming,
    numbers,
    polled,
    send,
)
from tests.unit.remoting.until import until, until_done

EXPRESSION: Final = "a || b"


class Subject(Protocol):
    """A running consumer inspected by mqadmin."""

    client_id: str

    async def finish(self, wanted: Collection[str]) -> list[str]:
        """Consume until all bodies of *wanted* are processed and committed; return all."""
        ...


class Choice(NamedTuple):
    """A kind of consumer: its name in mqadmin, and its factory (namesrv, group, topic)."""

    consume_type: str
    open: Callable[[str, str, str], AbstractAsyncContextManager[Subject]]
    orderly: bool = False


class LitePullSubject:
    """Polls and commits."""

    def __init__(self, consumer: LitePullConsumer) -> None:
        self._consumer = consumer
        self.client_id = consumer.client.client_id

    async def finish(self, wanted: Collection[str]) -> list[str]:
        done: list[str] = []
        while not set(wanted) <= set(done):
            done += bodies(await polled(self._consumer, 1))
        await self._consumer.commit()
        return done


@asynccontextmanager
async def lite_pull(namesrv: str, group: str, topic: str) -> AsyncIterator[Subject]:
    async with consuming(namesrv, group, topic, EXPRESSION) as consumer:
        yield LitePullSubject(consumer)


class PushSubject:
    """Records handled messages and commits automatically."""

    def __init__(self, consumer: PushConsumer, seen: list[str]) -> None:
        self._consumer = consumer
        self._seen = seen
        self.client_id = consumer.client.client_id

    async def finish(self, wanted: Collection[str]) -> list[str]:
        await until(lambda: set(wanted) <= set(self._seen), "the messages", POLL_SECONDS)
        await until_done(self._all_committed, "the commits", POLL_SECONDS)
        done, self._seen[:] = self._seen[:], []
        return done

    async def _all_committed(self) -> bool:
        broker, group = self._consumer.client.broker, self._consumer.group
        held = self._consumer.assignment()
        ends = [await broker.max_offset(queue) for queue in held]
        return ends == [await broker.query_offset(group, queue) for queue in held]


def push(*, orderly: bool) -> Callable[[str, str, str], AbstractAsyncContextManager[Subject]]:
    @asynccontextmanager
    async def opened(namesrv: str, group: str, topic: str) -> AsyncIterator[Subject]:
        seen: list[str] = []

        async def handle(message: MessageExt) -> None:
            seen.append(message.body.decode())

        config = PushConfig(start_from="earliest", commit_interval_seconds=0.2)
        async with PushConsumer(
            group, on_message=handle, orderly=orderly, namesrv=namesrv, config=config
        ) as consumer:
            await consumer.subscribe(topic, EXPRESSION)
            await consumer.ready(POLL_SECONDS)
            yield PushSubject(consumer, seen)

    return opened


CHOICES: Final = {
    "lite_pull": Choice("CONSUME_ACTIVELY", lite_pull),
    "push": Choice("CONSUME_PASSIVELY", push(orderly=False)),
    "orderly": Choice("CONSUME_PASSIVELY", push(orderly=True), orderly=True),
}


@pytest.fixture(params=CHOICES)
def choice(request: pytest.FixtureRequest) -> Choice:
    return CHOICES[request.param]


def rows(printed: str, first: str) -> list[list[str]]:
    """Return the cells of lines that begin with *first*, cut to the column width."""
    lines = [line.split() for line in printed.splitlines()]
    return [cells for cells in lines if cells and first.startswith(cells[0]) and len(cells) > 2]


# --- running info --------------------------------------------------------------------------------


async def test_mqadmin_lists_connections_and_subscriptions(
    official_tool: OfficialTool, choice: Choice, namesrv: str, topic: str, group: str
) -> None:
    async with choice.open(namesrv, group, topic) as subject:
        printed = await mqadmin(official_tool, f"consumerConnection -g {group}")

    ((_, _, language, version),) = rows(printed, subject.client_id)
    assert (language, version) == ("PYTHON", "V5_5_0")
    assert re.search(rf"^{re.escape(topic)}\s+a \|\| b", printed, re.M), printed
    assert f"ConsumeType: {choice.consume_type}" in printed
    assert "MessageModel: CLUSTERING" in printed
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in printed


async def test_mqadmin_checks_a_group(
    official_tool: OfficialTool, choice: Choice, namesrv: str, topic: str, group: str
) -> None:
    async with choice.open(namesrv, group, topic) as subject:
        printed = await mqadmin(official_tool, f"consumerStatus -g {group} -s")

    assert "Same subscription in the same group of consumer" in printed
    assert "Rebalance OK" in printed
    (left,) = official_tool.folder.glob(f"*/{subject.client_id}")
    assert "#Consumer jstack#" in left.read_text()


async def test_mqadmin_shows_the_running_info_of_a_member(
    official_tool: OfficialTool, choice: Choice, namesrv: str, topic: str, group: str
) -> None:
    await send(namesrv, topic, numbers(8), tags="a")
    async with choice.open(namesrv, group, topic) as subject:
        await subject.finish(numbers(8))
        printed = await mqadmin(official_tool, f"consumerStatus -g {group} -i {subject.client_id}")
        with_stacks = await mqadmin(
            official_tool, f"consumerStatus -g {group} -i {subject.client_id} -s"
        )

    assert re.search(rf"PROP_CONSUME_TYPE\s+: {choice.consume_type}$", printed, re.M), printed
    assert re.search(rf"PROP_CONSUMEORDERLY\s+: {str(choice.orderly).lower()}$", printed, re.M)
    assert re.search(r"pullThresholdForQueue\s+: 1000$", printed, re.M)
    assert re.search(rf"Topic: {re.escape(topic)}\s.*SubExpression: a \|\| b", printed)
    details = re.findall(r"ProcessQueueInfo \[commitOffset=2, .*cachedMsgCount=0, .*", printed)
    assert len(details) == QUEUES, printed
    assert not any("lastPullTimestamp=1970" in detail for detail in details)
    assert all(f"locked={str(choice.orderly).lower()}" in detail for detail in details)
    _, *figures = rows(printed.split("#Consumer RT&TPS#")[1], topic)[0]
    pull_rt, pull_tps, _, ok_tps, failed_tps, failed = map(float, figures)
    assert pull_rt > 0
    assert pull_tps > 0
    assert (ok_tps > 0) == (choice.consume_type == "CONSUME_PASSIVELY")
    assert (failed_tps, failed) == (0, 0)
    assert "jstack" not in printed
    stacks = with_stacks.split("#Consumer jstack#")[1]
    assert f"task rocketmq:{group}" in stacks
    assert "rocketmq_aio.consumer.pull_loop.puller.Puller" in stacks


async def test_mqadmin_shows_the_progress_of_a_group(
    official_tool: OfficialTool, choice: Choice, namesrv: str, topic: str, group: str
) -> None:
    await send(namesrv, topic, numbers(8), tags="a")
    async with choice.open(namesrv, group, topic) as subject:
        await subject.finish(numbers(8))
        printed = await mqadmin(official_tool, f"consumerProgress -g {group}")
        with_owners = await mqadmin(official_tool, f"consumerProgress -g {group} -s true")

    assert [cells[2:6] for cells in rows(printed, topic)] == [
        [str(queue_id), "2", "2", "0"] for queue_id in range(QUEUES)
    ]
    assert "Diff Total: 0" in printed
    assert [cells[5] for cells in rows(with_owners, topic)] == ["127.0.0.1"] * QUEUES


# --- offset resets -------------------------------------------------------------------------------


async def test_mqadmin_resets_a_running_group_to_earlier_offsets(
    official_tool: OfficialTool, choice: Choice, namesrv: str, topic: str, group: str
) -> None:
    await send(namesrv, topic, numbers(8), tags="a")
    async with choice.open(namesrv, group, topic) as subject:
        await subject.finish(numbers(8))
        printed = await mqadmin(official_tool, f"resetOffsetByTime -g {group} -t {topic} -s 0")
        await send(namesrv, topic, numbers(QUEUES, first=8), tags="a")  # ends the long polls of 5.x
        again = await subject.finish(numbers(8 + QUEUES))
        progress = await mqadmin(official_tool, f"consumerProgress -g {group}")

    assert len(rows(printed.split("#offset")[1], "broker-a")) == QUEUES, printed
    assert set(again) == set(numbers(8 + QUEUES))
    assert "Diff Total: 0" in progress


@pytest.mark.parametrize("when", ["earliest", "now"])
async def test_a_reset_by_mqadmin_discards_cached_messages_and_lasts(
    official_tool: OfficialTool,
    namesrv: str,
    topic: str,
    group: str,
    queue: MessageQueue,
    when: str,
) -> None:
    await send(namesrv, topic, numbers(10), queue=queue)
    async with consuming(namesrv, group, topic, commit_interval_seconds=0.2) as consumer:
        await polled(consumer, 5, max_messages=5)
        await consumer.commit()
        target = "0" if when == "earliest" else "-1"
        await mqadmin(official_tool, f"resetOffsetByTime -g {group} -t {topic} -s {target}")
        position = 0 if when == "earliest" else 10
        await send(namesrv, topic, ["wakes the pull"], queue=queue)
        await until_done(lambda: stands_at(consumer, queue, position), "the move", 60)
        taken = await polled(consumer, 11 - position)
        assert bodies(taken) == [*numbers(10 - position, first=position), "wakes the pull"]
        await until(lambda: consumer.assignment() != [])
        assert await consumer.poll(0.1) == []
        await consumer.commit()
        assert await consumer.committed(queue) == 11


async def stands_at(consumer: LitePullConsumer, queue: MessageQueue, position: int) -> bool:
    return await consumer.position(queue) == position


# --- direct consumption --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orderly", "fails", "expected"),
    [
        (False, False, "CR_SUCCESS"),
        (True, False, "CR_SUCCESS"),
        (False, True, "CR_THROW_EXCEPTION"),
    ],
)
async def test_mqadmin_consumes_a_message_directly(
    official_tool: OfficialTool,
    namesrv: str,
    topic: str,
    group: str,
    queue: MessageQueue,
    orderly: bool,
    fails: bool,
    expected: str,
) -> None:
    tried: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        tried.append(message)
        if fails:
            raise ValueError("no good")

    async with (
        Producer("feeding", namesrv=namesrv) as producer,
        PushConsumer(group, on_message=handle, orderly=orderly, namesrv=namesrv) as consumer,
    ):
        await consumer.subscribe(topic, "b")  # regardless of the subscription
        await consumer.ready(POLL_SECONDS)
        message = Message(topic, b"try me", tags="a", keys="k1")
        stored = await producer.send(message, queue=queue)
        member = consumer.client.client_id
        command = f"queryMsgByUniqueKey -i {stored.message_id} -t {topic} -g {group} -d {member}"
        printed = await mqadmin(official_tool, command)

    assert f"order={str(orderly).lower()}" in printed, printed
    assert f"consumeResult={expected}" in printed
    assert ("no good" in printed) == fails
    ((body, tags, keys, at),) = [(each.body, each.tags, each.keys, each.queue) for each in tried]
    assert (body, tags, keys, at) == (b"try me", "a", ("k1",), queue)
