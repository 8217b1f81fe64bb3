"""Ingest: start of both queries, and targets allowed for a new checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import msgspec
import pytest
from anyio import to_thread
from pyspark.sql import Row

from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import ingesting
from rocketmq_aio.spark.pipelines.bodies import BodySchema
from rocketmq_aio.spark.pipelines.ingesting import BatchSums, IngestSettings
from rocketmq_aio.spark.pipelines.selection import Selection
from rocketmq_aio.spark.pipelines.summary import no_report
from rocketmq_aio.spark.pipelines.target import Target
from tests.fakes.cluster import FakeCluster
from tests.unit.spark.driving import GROUP, START, TOPIC, driving, put, put_at, queue

SECOND = "1970-01-01T00:00:02Z"  # when the second message is stored

# --- the start of both queries ------------------------------------------------------------------


def settings_of(namesrv: str, start: str, **options: str) -> IngestSettings:
    """Return settings with short retries."""
    short = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"}
    return IngestSettings(
        connection=Connection(name_server=namesrv),
        selection=Selection(topics=(TOPIC,), start=start, options={**short, **options}),
        target=Target(path="/data"),
        checkpoint="/checkpoint",
    )


async def start_of(cluster: FakeCluster, start: str, **options: str) -> str:
    settings = settings_of(cluster.namesrv, start, **options)
    return await to_thread.run_sync(ingesting._start_offsets, settings)


def test_a_start_in_offsets_is_not_looked_up() -> None:
    offsets = '{"orders":{"broker-a":{"0":120}}}'

    assert ingesting._start_offsets(settings_of("127.0.0.1:1", offsets)) == offsets


@pytest.mark.parametrize(("start", "offset"), [("latest", 3), ("earliest", 1), (SECOND, 2)])
async def test_a_start_is_resolved_once(start: str, offset: int) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 500, 1000, 2000)
        cluster.broker.topics[TOPIC].queues[0].drop_before(1)
        found = await start_of(cluster, start)
        put(cluster.broker, 1)
        async with driving(cluster, startingOffsets=found) as driver:
            end = await driver.end_after(START)

            assert driver.ranges(START, end) == {queue(0): (offset, 4)}


@pytest.mark.parametrize("returns_before_the_first_batch", [False, True])
@pytest.mark.parametrize(("start", "at"), [("latest", 2), ("group", 1), (SECOND, 1), ("-1", 2)])
async def test_a_broker_away_at_the_first_run_is_read_from_the_start_of_that_run(
    start: str, at: int, returns_before_the_first_batch: bool
) -> None:
    named = json.dumps({TOPIC: {"broker-a": {"0": -1}, "broker-b": {"0": -1}}})
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        away = cluster.brokers[1]
        put_at(away, 1000, 2000)
        away.commit(GROUP, TOPIC, 0, 1)
        cluster.name_server.unregister(away)
        found = await start_of(cluster, named if start == "-1" else start)
        put(away, 2)
        async with driving(cluster, startingOffsets=found) as driver:
            before = START
            if not returns_before_the_first_batch:
                before = await driver.end_after(START)
            cluster.name_server.register(away)
            end = await driver.end_after(before)

            assert driver.ranges(before, end) == {queue(0, "broker-b"): (at, 4)}


async def test_the_start_is_found_with_options_of_streams() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put(cluster.broker, 3)
        settings = settings_of(cluster.namesrv, "latest", maxOffsetsPerTrigger="2")
        found = await to_thread.run_sync(ingesting._start_offsets, settings)
        earliest = replace(settings, selection=replace(settings.selection, start="earliest"))
        planned = await to_thread.run_sync(
            partial(ingesting.ingest, NO_SPARK, earliest, dry_run=True)
        )

    assert json.loads(found)["end"] == {TOPIC: {"broker-a": {"0": 3}}}
    assert (planned.offsets, planned.dry_run) == (3, True)


# --- existing data in the targets ---------------------------------------------------------------

SETTINGS = IngestSettings(
    connection=Connection(name_server="127.0.0.1:1"),
    selection=Selection(topics=("orders",), start="latest"),
    target=Target(path="/data", mode="append"),
    checkpoint="/checkpoint/",
    body=BodySchema(kind="json", schema="id long"),
    bad_rows="/bad",
)
NO_SPARK: Any = None


class Folders:
    """Fake file system: folders with files, tables, and written texts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: set[str] = set()
        self.logs: set[str] = set()
        self.rows = False
        self.tables: dict[str, dict[str, str]] = {}
        self.texts: dict[str, str] = {}
        self.owners: dict[str, set[str]] = {}
        self.planned: set[str] = set()
        for name in (
            *("has_files", "has_sink_log", "last_batch"),
            *("read_text", "write_text", "claim"),
        ):
            monkeypatch.setattr(ingesting, name, getattr(self, name))
        monkeypatch.setattr(ingesting, "_has_rows", lambda *_: self.rows)
        monkeypatch.setattr(
            ingesting, "_describe_table", lambda _, table: self.tables.get(table, {})
        )

    def has_files(self, _: object, path: str) -> bool:
        return path in self.files

    def has_sink_log(self, _: object, path: str) -> bool:
        return path in self.logs

    def last_batch(self, _: object, path: str) -> int:
        return 0 if path in self.planned else -1

    def read_text(self, _: object, path: str) -> str | None:
        return self.texts.get(path)

    def write_text(self, _: object, path: str, text: str) -> None:
        self.texts[path] = text

    def claim(self, _: object, path: str, owner: str) -> bool:
        self.owners.setdefault(path, set()).add(owner)
        return self.owners[path] == {owner}

    def plan_batch(self, *names: str) -> None:
        """Mark the queries *names* of a run with a schema as having planned a batch."""
        self.texts["/checkpoint/start"] = "{}"
        self.planned |= {f"/checkpoint/{name}/offsets" for name in names}


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Folders:
    return Folders(monkeypatch)


@pytest.mark.parametrize("what", ["files", "logs"])
@pytest.mark.parametrize(("path", "setting"), [("/data", "target"), ("/bad", "bad_rows")])
def test_a_new_checkpoint_needs_an_empty_folder(
    folders: Folders, what: str, path: str, setting: str
) -> None:
    getattr(folders, what).add(path)

    with pytest.raises(ConfigError, match="not empty, and the checkpoint is new") as refused:
        ingesting.check_targets(NO_SPARK, SETTINGS)

    assert (refused.value.setting, refused.value.value) == (setting, path)


def test_a_query_with_a_planned_batch_continues_in_its_folder(folders: Folders) -> None:
    folders.files |= {"/data", "/bad"}
    folders.plan_batch("messages", "bad")
    ingesting.check_targets(NO_SPARK, SETTINGS)
    folders.planned.remove("/checkpoint/bad/offsets")

    with pytest.raises(ConfigError) as refused:
        ingesting.check_targets(NO_SPARK, SETTINGS)

    assert refused.value.setting == "bad_rows"


@pytest.mark.parametrize("began", ["with", "without"])
def test_a_checkpoint_continues_with_or_without_a_schema_as_it_began(
    folders: Folders, began: str
) -> None:
    """The query of bad rows would start elsewhere than the query of good rows continues."""
    plain = replace(SETTINGS, body=None, bad_rows=None)
    folders.plan_batch("messages")
    if began == "without":
        folders.texts.clear()
    same, other = (SETTINGS, plain) if began == "with" else (plain, SETTINGS)
    ingesting.check_targets(NO_SPARK, same)

    with pytest.raises(ConfigError, match=f"began {began} a schema of bodies") as refused:
        ingesting.check_targets(NO_SPARK, other)

    assert (refused.value.setting, refused.value.value) == ("checkpoint", "/checkpoint/")


@pytest.mark.parametrize(("path", "setting"), [("/data", "target"), ("/bad", "bad_rows")])
def test_two_checkpoints_cannot_claim_one_folder(folders: Folders, path: str, setting: str) -> None:
    apart = {"/data": "/else", "/bad": "/else-bad"}
    del apart[path]
    other = replace(
        SETTINGS,
        checkpoint="/other",
        target=Target(path=apart.get("/data", "/data"), mode="append"),
        bad_rows=apart.get("/bad", "/bad"),
    )
    ingesting.check_targets(NO_SPARK, SETTINGS)
    ingesting.check_targets(NO_SPARK, replace(SETTINGS, checkpoint="/checkpoint"))

    with pytest.raises(ConfigError, match="another checkpoint began to write") as refused:
        ingesting.check_targets(NO_SPARK, other)

    assert (refused.value.setting, refused.value.value) == (setting, path)


@pytest.mark.parametrize(("mode", "refused"), [("error", True), ("append", False)])
def test_delta_tables_with_rows_need_mode_append(
    folders: Folders, mode: str, refused: bool
) -> None:
    folders.rows = True
    settings = replace(SETTINGS, target=Target(path="/data", format="delta", mode=mode))

    if not refused:
        ingesting.check_targets(NO_SPARK, settings)
        return
    with pytest.raises(ConfigError, match="give mode append"):
        ingesting.check_targets(NO_SPARK, settings)


@pytest.mark.parametrize(("provider", "refused"), [("parquet", True), ("iceberg", False)])
def test_the_provider_of_a_table_decides_whether_it_must_be_empty(
    folders: Folders, provider: str, refused: bool
) -> None:
    folders.tables["orders"] = {"Provider": provider, "Location": "file:/warehouse/orders"}
    folders.logs.add("file:/warehouse/orders")
    settings = replace(SETTINGS, target=Target(table="orders", mode="append"))

    if not refused:
        ingesting.check_targets(NO_SPARK, settings)
        return
    with pytest.raises(ConfigError, match="not empty"):
        ingesting.check_targets(NO_SPARK, settings)


def test_the_start_of_the_first_run_is_stored(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = iter(["first", "second"])
    monkeypatch.setattr(ingesting, "_start_offsets", lambda _: next(starts))

    first = ingesting._stored_start(NO_SPARK, SETTINGS)
    again = ingesting._stored_start(NO_SPARK, SETTINGS)

    assert first == again == "first"


OLD_STARTS = [  # of versions before `since` and before the store times
    '{"v":1,"end":{"orders":{"broker-a":{"0":1}}}}',
    '{"orders":{"broker-a":{"0":1}}}',
]


@pytest.mark.parametrize("stored", OLD_STARTS)
async def test_a_start_of_an_older_version_reads_later_queues_from_their_first_message(
    folders: Folders, stored: str
) -> None:
    folders.texts["/checkpoint/start"] = stored.replace("orders", TOPIC)
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        for broker in cluster.brokers:
            put(broker, 3)
        settings = replace(settings_of(cluster.namesrv, "latest"))
        start = ingesting._stored_start(NO_SPARK, settings)
        async with driving(cluster, startingOffsets=start) as driver:
            end = await driver.end_after(START)

            found = driver.ranges(START, end)
            assert found == {queue(0): (1, 3), queue(0, "broker-b"): (0, 3)}


def test_each_query_has_its_own_dataframe(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.texts["/checkpoint/start"] = "{}"
    loaded: list[object] = []
    started: list[object] = []

    def load(*_: object) -> MagicMock:
        frame = MagicMock()
        frame.where.return_value.drop.return_value = frame
        frame.observe.return_value = frame
        loaded.append(frame)
        return frame

    monkeypatch.setattr(ingesting, "F", MagicMock())
    monkeypatch.setattr(ingesting, "_read_stream", load)
    monkeypatch.setattr(ingesting, "parse_bodies", lambda frame, _: frame)
    monkeypatch.setattr(ingesting, "_start_query", lambda frame, *_: started.append(frame))

    ingesting._start_queries(NO_SPARK, SETTINGS)

    assert started == loaded
    assert len(loaded) == 2


@pytest.mark.parametrize("path", ["/data", "/data/", "/data/bad", "/"])
def test_the_folder_of_bad_rows_must_not_overlap_the_target(path: str) -> None:
    with pytest.raises(ConfigError, match="overlaps the target"):
        replace(SETTINGS, bad_rows=path)


class Query:
    """A streaming query that is in a batch until *idle* returns True."""

    def __init__(self, idle: Callable[[], bool] = lambda: True) -> None:
        self.isActive = True
        self.recentProgress: list[Any] = []
        self.stop = MagicMock(side_effect=self._stop)
        self.awaitTermination = MagicMock()
        self.exception = MagicMock(return_value=None)
        self._idle = idle

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": not self._idle()}

    def _stop(self) -> None:
        self.isActive = False


def wait_for_end(*queries: Query) -> bool:
    found = cast("Any", list(queries))
    return ingesting._wait_for_end(found, BatchSums(), lambda: True, no_report)


@pytest.mark.parametrize("place", [0, 1])
def test_an_interrupted_stop_stops_the_other_query(place: int) -> None:
    queries = [Query(), Query()]
    queries[place].stop.side_effect = KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_for_end(*queries)

    queries[1 - place].stop.assert_called_once()


@pytest.mark.parametrize("place", [0, 1])
def test_an_interrupt_during_a_stop_stops_the_queries_in_their_batches(place: int) -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    queries = [Query(lambda: False), Query(lambda: False)]
    queries[place]._idle = interrupted

    with pytest.raises(KeyboardInterrupt):
        wait_for_end(*queries)

    assert [each.isActive for each in queries] == [False, False]


def test_queries_are_stopped_after_their_own_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "POLL_SECONDS", 0.0)
    slow = Query()
    quick = Query()
    slow._idle = lambda: not quick.isActive  # its batch ends after the other one was stopped

    assert wait_for_end(slow, quick)

    assert [each.stop.call_count for each in (slow, quick)] == [1, 1]


def test_a_signal_after_the_end_of_the_queries_does_not_stop_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = Query()
    monkeypatch.setattr(time, "sleep", lambda _: query._stop())

    assert not wait_for_end(query)


def test_a_report_that_raises_does_not_end_an_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(*_: object) -> None:
        raise BrokenPipeError

    query: Any = Query()
    monkeypatch.setattr(time, "sleep", lambda _: query._stop())

    assert not ingesting._wait_for_end([query], BatchSums(), bool, report)


def test_all_queries_have_one_deadline_for_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(ingesting, "STOP_SECONDS", 0.0)
    queries = [Query(lambda: False), Query(lambda: False)]

    assert wait_for_end(*queries)

    assert [each.isActive for each in queries] == [False, False]


@pytest.mark.parametrize("once", [False, True])
def test_an_ingest_of_what_is_stored_is_not_complete_when_it_was_stopped(once: bool) -> None:
    settings = replace(SETTINGS, once=once)

    summary = ingesting._summarize(settings, BatchSums(), 0.0, interrupted=True)

    assert summary.complete is not once


@pytest.mark.parametrize(
    ("policy", "rows", "problem"),
    [
        ("COMPACTION", 3, None),
        ("COMPACTION", 6, "6 messages were read from 5 offsets: some are repeated"),
        ("DELETE", 3, "3 messages were read from 5 offsets: some are missing"),
        ("DELETE", 5, None),
    ],
)
async def test_a_compacted_topic_has_fewer_messages_than_offsets(
    policy: str, rows: int, problem: str | None
) -> None:
    config = {
        "topicName": TOPIC,
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "attributes": {"cleanup.policy": policy},
    }
    answer = Response(body=msgspec.json.encode(config))
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        cluster.broker.faults.handle(RequestCode.GET_TOPIC_CONFIG, answer, times=None)
        settings, sums = settings_of(cluster.namesrv, "earliest"), BatchSums()
        end = {
            "v": 1,
            "end": {TOPIC: {"broker-a": {"0": 5}}},
            "from": {TOPIC: {"broker-a": {"0": 0}}},
        }
        sums.add([progress(0, {"v": 1, "at": "start"}, end, rows, 0)])
        summary = await to_thread.run_sync(
            partial(ingesting._summarize, settings, sums, 0.0, interrupted=False)
        )

    assert summary.problems == (() if problem is None else (problem,))


# --- sums over micro-batches --------------------------------------------------------------------


def progress(batch: int, start: object, end: object, rows: int, bad: int) -> SimpleNamespace:
    """Return Spark's progress of a batch."""

    def text(offset: object) -> str | None:
        return None if offset is None else json.dumps(offset)

    source = SimpleNamespace(startOffset=text(start), endOffset=text(end), numInputRows=rows)
    counts = SimpleNamespace(asDict=lambda: {"rows": rows, "bad": bad})
    return SimpleNamespace(
        batchId=batch,
        sources=[source],
        observedMetrics={"ingest": counts},
        durationMs={"addBatch": 5, "triggerExecution": 9},
    )


def idle(batch: int, end: object) -> SimpleNamespace:
    """Return the progress of an idle query: its id is that of the next batch."""
    found = progress(batch, end, end, 0, 0)
    found.observedMetrics, found.durationMs = {}, {"latestOffset": 3, "triggerExecution": 3}
    return found


def at(offset: int) -> dict[str, dict[str, dict[str, int]]]:
    return {"t": {"b": {"0": offset}}}


def test_each_batch_is_added_once() -> None:
    first = progress(0, {"v": 1, "at": "start"}, {"v": 1, "end": at(7), "from": at(2)}, 5, 1)
    second = progress(1, {"v": 1, "end": at(7)}, {"v": 1, "end": at(9)}, 2, 0)
    sums = BatchSums()

    sums.add([first])
    sums.add([first, second])

    assert (sums.rows, sums.bad) == (7, 1)
    assert sums.ranges == [Range("t", "b", 0, 2, 9)]


def test_bad_rows_are_counted_in_progress_of_spark_connect() -> None:
    fields = [{"name": "rows", "type": "long"}, {"name": "bad", "type": "long"}]
    batch = progress(0, {"v": 1, "at": "start"}, {"v": 1, "end": at(7), "from": at(2)}, 5, 0)
    batch.observedMetrics = {"ingest": Row(values=[5, 2], schema={"fields": fields})}
    sums = BatchSums()

    sums.add([batch])

    assert (sums.rows, sums.bad) == (5, 2)


def test_a_batch_that_the_target_had_before_the_run_is_not_counted() -> None:
    again = progress(4, {"v": 1, "end": at(2)}, {"v": 1, "end": at(7)}, 0, 0)
    later = progress(5, {"v": 1, "end": at(7)}, {"v": 1, "end": at(9)}, 2, 0)
    sums = BatchSums(planned=4)

    sums.add([again, later])

    assert (sums.rows, sums.ranges) == (2, [Range("t", "b", 0, 7, 9)])


def test_a_batch_that_is_written_again_is_counted() -> None:
    again = progress(4, {"v": 1, "end": at(2)}, {"v": 1, "end": at(7)}, 3, 0)
    sums = BatchSums(planned=4)

    sums.add([again])

    assert (sums.rows, sums.ranges) == (3, [Range("t", "b", 0, 2, 7)])


def test_a_new_batch_without_rows_is_counted() -> None:
    sums = BatchSums(planned=4)

    sums.add([progress(5, {"v": 1, "end": at(2)}, {"v": 1, "end": at(7)}, 0, 0)])

    assert (sums.rows, sums.ranges) == (0, [Range("t", "b", 0, 2, 7)])


def test_a_batch_after_idle_progress_is_counted() -> None:
    first = progress(0, {"v": 1, "at": "start"}, {"v": 1, "end": at(7), "from": at(2)}, 5, 1)
    waited = idle(1, {"v": 1, "end": at(7)})
    second = progress(1, {"v": 1, "end": at(7)}, {"v": 1, "end": at(9)}, 2, 0)
    sums = BatchSums()

    sums.add([first, waited])
    sums.add([first, waited, second])

    assert (sums.rows, sums.ranges) == (7, [Range("t", "b", 0, 2, 9)])


def test_a_recreated_queue_has_a_range_for_each_log() -> None:
    first = progress(0, {"v": 1, "at": "start"}, {"v": 1, "end": at(40), "from": at(30)}, 10, 0)
    anew = progress(1, {"v": 1, "end": at(40)}, {"v": 1, "end": at(3), "from": at(0)}, 3, 0)
    later = progress(2, {"v": 1, "end": at(3)}, {"v": 1, "end": at(9)}, 6, 0)
    sums = BatchSums()

    sums.add([first, anew, later])

    assert sums.ranges == [Range("t", "b", 0, 30, 40), Range("t", "b", 0, 0, 9)]
    assert sum(each.size for each in sums.ranges) == sums.rows


def test_a_first_batch_may_have_no_start_offset() -> None:
    sums = BatchSums()

    sums.add([progress(0, None, {"v": 1, "end": at(3), "from": at(3)}, 0, 0)])

    assert sums.ranges == [Range("t", "b", 0, 3, 3)]
