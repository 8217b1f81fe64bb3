"""Dead letters: planning, resending, stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import to_thread

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.spark.options.source_options import Connection, read_options
from rocketmq_aio.spark.pipelines import dead_letter
from rocketmq_aio.spark.pipelines.dead_letter import (
    DeadLetterSettings,
    DeadLetterSummary,
    TagCount,
    _Job,
    dead_letters,
    plan_dead_letters,
)
from rocketmq_aio.spark.pipelines.progress import StoppedError
from rocketmq_aio.spark.pipelines.sending import CopyCounts
from tests.fakes.cluster import FakeCluster
from tests.unit.spark.reading import script_brokers

NO_SPARK: Any = None


def settings_of(cluster: FakeCluster) -> DeadLetterSettings:
    return DeadLetterSettings(connection=Connection(name_server=cluster.namesrv), group="billing")


async def test_a_group_without_dead_letters_needs_no_spark() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster:
        script_brokers(cluster, "broker-a")
        summary = await to_thread.run_sync(dead_letters, NO_SPARK, settings_of(cluster))

    assert (summary.offsets, summary.queues, summary.complete) == (0, (), True)


async def test_dead_letters_are_planned() -> None:
    async with FakeCluster(topics={"%DLQ%billing": 1}) as cluster:
        cluster.broker.put("%DLQ%billing", b"letter")
        ranges = await to_thread.run_sync(plan_dead_letters, settings_of(cluster))

    assert [each.size for each in ranges] == [1]


async def test_planning_fails_without_brokers() -> None:
    async with FakeCluster() as cluster:
        cluster.name_server.unregister(cluster.broker)
        settings = settings_of(cluster)
        assert not await to_thread.run_sync(
            dead_letter.has_route, settings.connection, settings.topic
        )
        with pytest.raises(RocketMQError):
            await to_thread.run_sync(plan_dead_letters, settings)


class PartlyResent(_Job):
    """Four dead letters of which one was resent before."""

    def not_resent(self, topics: list[str]) -> Any:  # noqa: ANN401 - a DataFrame
        assert topics == ["orders"]
        rows = SimpleNamespace(count=lambda: 3, unpersist=lambda: None, coalesce=lambda n: n)
        return SimpleNamespace(persist=lambda: rows)

    def send(self, rows: Any) -> CopyCounts:  # noqa: ANN401
        assert rows == 1  # the number of tasks
        with self.watch("resending"):
            return CopyCounts(sent=3)


@contextmanager
def unwatched(_: str) -> Iterator[None]:
    yield


@contextmanager
def stopping(step: str) -> Iterator[None]:
    if step == "resending":
        raise StoppedError(step, started=True)
    yield


FOUND = DeadLetterSummary(
    tags=(
        TagCount(topic="orders", tag="a", letters=3),
        TagCount(topic="orders", tag="b", letters=1),
        TagCount(topic="gone", tag="a", letters=2),
        TagCount(topic=None, tag=None, letters=5),
    )
)
NOT_RESENT = (
    "2 dead letters came from topic 'gone', which is gone: create it to resend them",
    "5 dead letters name no original topic, or a light message queue, which gets them by a topic: "
    "rmq dlq resend --to-topic TOPIC sends them",
)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_dead_letters_of_a_deleted_topic_do_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    monkeypatch.setattr(
        dead_letter, "TopicGrowth", lambda *_: SimpleNamespace(problems=lambda _: [])
    )
    async with FakeCluster(topics={"orders": 1}) as cluster:
        job = PartlyResent(NO_SPARK, settings_of(cluster), [], unwatched)
        found = await to_thread.run_sync(job.resend, replace(FOUND, dry_run=dry_run))

    assert (found.resent, found.resent_before, found.problems) == (3, 1, NOT_RESENT)


async def test_a_stopped_resend_counts_the_stored_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = SimpleNamespace(count=lambda: (2, "2 are stored"))
    monkeypatch.setattr(dead_letter, "TopicGrowth", lambda *_: grown)
    async with FakeCluster(topics={"orders": 1}) as cluster:
        job = PartlyResent(NO_SPARK, settings_of(cluster), [], stopping)
        found = await to_thread.run_sync(job.resend, FOUND)

    assert (found.resent, found.interrupted) == (2, True)
    assert found.problems == (
        *NOT_RESENT,
        "stopped while resending: 2 are stored; run it again for the rest",
    )


@pytest.mark.parametrize("allowed", [False, True])
def test_fail_on_data_loss_applies_to_the_original_topics(allowed: bool) -> None:
    settings = DeadLetterSettings(
        connection=Connection(name_server="a:1"), group="billing", fail_on_data_loss=not allowed
    )

    options = settings.origin_options(["orders", "bills"], 10**12)

    assert options["subscribe"] == "orders,bills"
    assert options["startingTimestamp"] == "999999400000"
    assert read_options(options, streaming=False).fail_on_data_loss is not allowed
