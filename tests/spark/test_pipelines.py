"""Pipelines on real brokers."""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from os import urandom
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession, functions
from pyspark.sql.protobuf import functions as protobuf

from rocketmq_aio import AdminClient, Message
from rocketmq_aio.cli.failures import format_error
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import (
    BodySchema,
    ExportSettings,
    IngestSettings,
    LoadSettings,
    ReplaySettings,
    Selection,
    Target,
    export,
    ingest,
    load,
    replay,
)
from rocketmq_aio.spark.pipelines.bodies import parse_bodies
from rocketmq_aio.spark.pipelines.dead_letter import with_origin
from rocketmq_aio.spark.pipelines.ingesting import check_targets
from rocketmq_aio.spark.pipelines.loading import map_columns
from rocketmq_aio.spark.pipelines.progress import JOB_ERRORS
from rocketmq_aio.spark.pipelines.sending import send_rows
from rocketmq_aio.spark.pipelines.target import prepare_rows, read_back, write_rows
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.plugin import unique_name
from tests.spark.pipelining import bodies, stored
from tests.spark.support import send_all, wait_until, write_messages

QUEUES = 4


@pytest.fixture
def other(rocketmq_cluster: Cluster, topic: str) -> Iterator[str]:
    """A second topic."""
    name = unique_name(f"{topic[:40]}-other")
    rocketmq_cluster.create_topic(name, queues=QUEUES)
    yield name
    rocketmq_cluster.delete_topic(name)


# --- export and load ----------------------------------------------------------------------------


def test_an_export_counts_every_message_in_the_target(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    write_messages(connection.name_server, topic, [f"m{n}" for n in range(100)], tags="t")
    path = str(tmp_path / "out")
    steps: set[str] = set()

    summary = export(
        pipelines,
        ExportSettings(
            connection=connection, selection=Selection(topics=(topic,)), target=Target(path=path)
        ),
        report=lambda what, done, total: steps.add(what),
    )

    assert (summary.rows, summary.offsets, summary.problems) == (100, 100, ())
    assert len(summary.queues) == QUEUES
    rows = pipelines.read.parquet(path)
    assert sorted(bytes(row.body).decode() for row in rows.collect()) == sorted(
        f"m{n}" for n in range(100)
    )
    today = datetime.now(UTC).date()
    assert abs((rows.first()["storeDate"] - today).days) <= 1  # type: ignore[index]
    assert steps == {"writing", "counting"}


def test_an_export_without_messages_replaces_the_target(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    write_messages(connection.name_server, topic, ["m0", "m1", "m2"])
    path, hour = str(tmp_path / "out"), 3600 * 1000
    target = Target(path=path, mode="overwrite")
    later = str(round(time.time() * 1000) + hour)
    settings = ExportSettings(
        connection=connection, selection=Selection(topics=(topic,)), target=target
    )
    export(pipelines, settings)
    rows = pipelines.read.parquet(path)
    before = rows.count()

    summary = export(
        pipelines, replace(settings, selection=Selection(topics=(topic,), start=later))
    )

    assert (before, summary.rows, summary.problems) == (3, 0, ())
    assert pipelines.read.schema(rows.schema).parquet(path).count() == 0


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
@pytest.mark.parametrize("partition_by", [("storeDate",), ()])
def test_an_export_without_messages_is_loaded(
    pipelines: SparkSession,
    connection: Connection,
    topic: str,
    tmp_path: Path,
    kind: str,
    partition_by: tuple[str, ...],
) -> None:
    path = str(tmp_path / "out")
    target = Target(path=path, format=kind, partition_by=partition_by)
    selection = Selection(topics=(topic,))
    export(pipelines, ExportSettings(connection=connection, selection=selection, target=target))

    loaded = load(
        pipelines, LoadSettings(connection=connection, topic=topic, path=path, format=kind)
    )

    assert (loaded.rows, loaded.sent, loaded.problems) == (0, 0, ())


def test_files_below_plain_folders_are_not_taken_for_an_empty_export(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    pipelines.createDataFrame([("a",)], "body string").write.parquet(str(tmp_path / "out" / "may"))
    settings = LoadSettings(connection=connection, topic=topic, path=str(tmp_path / "out"))

    with pytest.raises(PySparkException, match="UNABLE_TO_INFER_SCHEMA"):
        load(pipelines, settings)


def test_missing_and_repeated_rows_are_problems_of_an_export(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    write_messages(connection.name_server, topic, [f"m{n}" for n in range(40)])
    path = str(tmp_path / "out")
    settings = ExportSettings(
        connection=connection,
        selection=Selection(topics=(topic,)),
        target=Target(path=path, mode="append", partition_by=()),
    )
    export(pipelines, settings)

    twice = export(pipelines, settings)

    assert not twice.complete
    assert sum(each.repeated for each in twice.queues) == 40
    assert all("more than once" in problem for problem in twice.problems)


def test_a_csv_export_is_restored_by_load(
    pipelines: SparkSession, connection: Connection, topic: str, other: str, tmp_path: Path
) -> None:
    sent = [b"\xff\x00\x01", 'ünï,"\n'.encode(), b"plain"]
    messages = [
        Message(topic, body, tags="a", keys=["k1", "k2"], properties={"p": "1"}) for body in sent
    ]
    asyncio.run(send_all(connection.name_server, messages))
    target = Target(path=str(tmp_path / "out"), format="csv", partition_by=())
    selection = Selection(topics=(topic,))
    columns = ("body", "tags", "keys", "properties")
    exported = export(
        pipelines,
        ExportSettings(connection=connection, selection=selection, target=target, columns=columns),
    )
    assert exported.complete

    summary = load(
        pipelines,
        LoadSettings(
            connection=connection,
            topic=other,
            path=str(target.path),
            format="csv",
            body="base64",
            columns={"body": "body", "tags": "tags"},
        ),
    )

    assert (summary.rows, summary.sent, summary.problems) == (3, 3, ())
    found = stored(connection.name_server, other)
    assert sorted(message.body for message in found) == sorted(sent)
    assert {message.tags for message in found} == {"a"}


@pytest.mark.parametrize(
    ("kind", "body"), [("csv", "base64"), ("json", "base64"), ("parquet", "plain")]
)
def test_an_export_is_loaded_without_column_settings(
    pipelines: SparkSession,
    connection: Connection,
    topic: str,
    other: str,
    tmp_path: Path,
    kind: str,
    body: str,
) -> None:
    messages = [
        Message(
            topic,
            b"%d" % n,
            tags="a" if n else None,
            keys=["k1", f"k{n}"] if n else None,
            properties={f"p{n}": "1"},
            flag=n,
            sharding_key=f"order-{n}" if n else None,
            priority=None if n else 1,
        )
        for n in range(3)
    ]
    asyncio.run(send_all(connection.name_server, messages))
    target = Target(path=str(tmp_path / "out"), format=kind)
    wanted = ExportSettings(
        connection=connection, selection=Selection(topics=(topic,)), target=target
    )
    assert export(pipelines, wanted).complete

    settings = LoadSettings(
        connection=connection, topic=other, path=str(target.path), format=kind, body=body
    )
    summary = load(pipelines, settings)

    assert (summary.rows, summary.sent, summary.problems) == (3, 3, ())
    found = sorted(stored(connection.name_server, other), key=lambda each: each.body)
    for message, again in zip(messages, found, strict=True):
        for what in ("body", "tags", "keys", "flag", "sharding_key", "priority"):
            assert getattr(again, what) == getattr(message, what)
    assert [each.properties.get(f"p{n}") for n, each in enumerate(found)] == ["1"] * 3


AWKWARD = (" lead and trail ", '{"a": "x \\"y\\""}', '"', "a\nb", "\r\n", "a,b", "\\", "\r")


def test_csv_text_follows_rfc_4180_and_is_restored(
    pipelines: SparkSession, connection: Connection, topic: str, other: str, tmp_path: Path
) -> None:
    write_messages(connection.name_server, topic, AWKWARD)
    target = Target(path=str(tmp_path / "out"), format="csv", partition_by=(), body="text")
    selection = Selection(topics=(topic,))
    exported = export(
        pipelines, ExportSettings(connection=connection, selection=selection, target=target)
    )
    assert (exported.rows, exported.complete) == (len(AWKWARD), True)
    rows = [row for file in (tmp_path / "out").glob("*.csv") for row in csv_rows(file)]
    assert sorted(row["body"] for row in rows) == sorted(AWKWARD)
    with (tmp_path / "again.csv").open("w", newline="", encoding="utf-8") as file:
        again = csv.DictWriter(file, ["queueId", "body"], lineterminator="\n")
        again.writeheader()
        again.writerows({"queueId": row["queueId"], "body": row["body"]} for row in rows)

    summary = load(
        pipelines,
        LoadSettings(
            connection=connection,
            topic=other,
            path=str(tmp_path / "again.csv"),
            format="csv",
            columns={"body": "body"},
        ),
    )

    assert (summary.sent, summary.problems) == (len(AWKWARD), ())
    assert bodies(connection.name_server, other) == sorted(AWKWARD)


def test_csv_restores_missing_and_empty_texts_and_line_breaks(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    rows = [
        (number, first, second)
        for number, (first, second) in enumerate(product((None, "", *AWKWARD, "a\r\nb"), repeat=2))
    ]
    written = pipelines.createDataFrame(rows, "number int, first string, second string")
    target = Target(path=str(tmp_path / "out"), format="csv", partition_by=())
    write_rows(prepare_rows(written.coalesce(1), target), target)

    summary = load(
        pipelines,
        LoadSettings(
            connection=connection,
            topic=topic,
            path=str(target.path),
            format="csv",
            schema="number int, first string, second string",
            columns={"body": "*"},
        ),
    )

    assert (summary.sent, summary.problems) == (len(rows), ())
    sent = [json.loads(body) for body in bodies(connection.name_server, topic)]
    back = sorted((each["number"], each["first"], each["second"]) for each in sent)
    assert back == rows


def test_dead_letters_of_popped_messages_have_their_original_topics(
    pipelines: SparkSession,
) -> None:
    """Brokers from 5.0 keep popped messages that are redelivered in topics of their own."""
    names = ["orders", "%RETRY%a_b_orders", "%RETRY%shop%a_b_shop%orders", "%RETRY%a_b"]
    names += ["%LMQ%chat", "%RETRY%a_b_%LMQ%chat"]  # nothing is sent to light message queues
    letters = pipelines.createDataFrame(
        [({"RETRY_TOPIC": name},) for name in names], "properties map<string,string>"
    )

    found = with_origin(letters, "a_b", "shop").select("originTopic").collect()

    assert [row[0] for row in found] == ["orders", "orders", "orders", *[None] * 3]


def test_csv_rejects_texts_with_nul(pipelines: SparkSession, tmp_path: Path) -> None:
    target = Target(path=str(tmp_path / "out"), format="csv", partition_by=())
    rows = pipelines.createDataFrame([("a\0b",)], "tags string")

    with pytest.raises(PySparkException) as refused:
        write_rows(prepare_rows(rows, target), target)

    assert format_error(refused.value).startswith("a text holds U+0000, which is lost in csv")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_text_that_stands_for_a_missing_value_in_paths_is_rejected(
    pipelines: SparkSession, tmp_path: Path, kind: str
) -> None:
    target = Target(path=str(tmp_path / "out"), format=kind, partition_by=("tags",))
    rows = pipelines.createDataFrame(
        [("a", "new"), ("b", None), ("c", "__HIVE_DEFAULT_PARTITION__")], "keys string, tags string"
    )
    usual = rows.where("keys < 'c'")

    write_rows(prepare_rows(usual, target), target)
    with pytest.raises(PySparkException) as refused:
        write_rows(prepare_rows(rows, target), replace(target, mode="append"))

    assert read_back(pipelines, target, rows.schema).sort("keys").collect() == usual.collect()
    assert format_error(refused.value).startswith(
        "a value of a partition column is __HIVE_DEFAULT_PARTITION__, which is read back as a"
    )


def test_text_bodies_must_be_utf_8(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    asyncio.run(send_all(connection.name_server, [Message(topic, b"\xff\x00")]))
    target = Target(path=str(tmp_path / "out"), format="csv", partition_by=(), body="text")

    with pytest.raises(PySparkException) as refused:
        export(
            pipelines,
            ExportSettings(
                connection=connection, selection=Selection(topics=(topic,)), target=target
            ),
        )

    assert format_error(refused.value) == "a body is not UTF-8: write bodies with --body base64"


def csv_rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_whole_rows_become_json_bodies(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "orders.json").write_text('{"id": 7, "item": "tea"}\n{"id": 8, "item": "milk"}\n')

    summary = load(
        pipelines,
        LoadSettings(
            connection=connection,
            topic=topic,
            path=str(tmp_path),
            format="json",
            columns={"body": "*", "keys": "id"},
        ),
    )

    assert summary.complete
    found = sorted(stored(connection.name_server, topic), key=lambda m: m.body)
    assert [json.loads(m.body) for m in found] == [
        {"id": 7, "item": "tea"},
        {"id": 8, "item": "milk"},
    ]
    assert [m.keys for m in found] == [("7",), ("8",)]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_texts_of_partition_columns_stay_texts(
    pipelines: SparkSession,
    connection: Connection,
    rocketmq_cluster: Cluster,
    other: str,
    tmp_path: Path,
    kind: str,
) -> None:
    number = f"00{time.time_ns()}"
    rocketmq_cluster.create_topic(number, queues=1)
    write_messages(connection.name_server, number, ["a"], tags="007")
    target = Target(path=str(tmp_path), format=kind, mode="append", partition_by=("topic", "tags"))
    wanted = ExportSettings(
        connection=connection, selection=Selection(topics=(number,)), target=target
    )

    exported = export(pipelines, wanted)
    body = "base64" if kind == "csv" else "plain"
    settings = LoadSettings(
        connection=connection, topic=other, path=str(tmp_path), format=kind, body=body
    )
    loaded = load(pipelines, settings)

    rocketmq_cluster.delete_topic(number)
    assert (exported.problems, loaded.problems) == ((), ())
    assert [message.tags for message in stored(connection.name_server, other)] == ["007"]


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(
    ("row", "body", "reason"),
    [
        ({"flag": "many"}, "plain", "flag is no int: many"),
        ({"flag": 3.7}, "plain", "flag is no int: 3.7"),
        ({"flag": 4294967297}, "plain", "flag is no int: 4294967297"),
        ({"deliverTimestamp": "soon"}, "plain", "deliverTimestamp is no timestamp: soon"),
        ({"properties": "{broken"}, "plain", "properties are no JSON object of texts: {broken"),
        ({}, "base64", "a body is no base64: not base64!"),
    ],
    ids=str,
)
def test_values_that_cannot_be_converted_are_not_loaded_as_missing(
    pipelines: SparkSession,
    connection: Connection,
    topic: str,
    tmp_path: Path,
    row: dict[str, object],
    body: str,
    reason: str,
    ansi: str,
) -> None:
    (tmp_path / "row.json").write_text(json.dumps({"body": "not base64!", **row}))
    settings = LoadSettings(
        connection=connection, topic=topic, path=str(tmp_path), format="json", body=body
    )
    pipelines.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        with pytest.raises(PySparkException) as refused:
            load(pipelines, settings)
    finally:
        pipelines.conf.unset("spark.sql.ansi.enabled")

    assert format_error(refused.value) == reason
    assert stored(connection.name_server, topic) == []


def test_whole_numbers_for_the_delivery_time_are_milliseconds(
    pipelines: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "row.json").write_text('{"body": "a", "deliverTimestamp": 1767225600000}')
    files = pipelines.read.json(str(tmp_path))

    rows = map_columns(files, {}).collect()

    assert [row.deliverTimestamp for row in rows] == [1767225600000]


def test_a_filtered_export_has_no_gaps(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    write_messages(connection.name_server, topic, ["a"] * 5, tags="wanted")
    write_messages(connection.name_server, topic, ["b"] * 7, tags="other")
    selection = Selection(topics=(topic,), expression="wanted")

    summary = export(
        pipelines,
        ExportSettings(
            connection=connection, selection=selection, target=Target(path=str(tmp_path / "out"))
        ),
    )

    assert (summary.rows, summary.offsets, summary.filtered) == (5, 12, True)
    assert summary.complete


# --- replay -------------------------------------------------------------------------------------


def test_a_replay_keeps_user_properties_and_adds_the_origin(
    pipelines: SparkSession, connection: Connection, topic: str, other: str
) -> None:
    messages = [
        Message(topic, b"one", tags="t", keys=["a", "b"], properties={"p": "1"}, flag=3),
        Message(topic, b"two", priority=1),
        Message(topic, b"three", sharding_key="s"),
    ]
    asyncio.run(send_all(connection.name_server, messages))
    origin = {m.body: m for m in stored(connection.name_server, topic)}

    summary = replay(
        pipelines,
        ReplaySettings(connection=connection, selection=Selection(topics=(topic,)), to=other),
    )

    assert (summary.sent, summary.offsets, summary.problems) == (3, 3, ())
    copies = {m.body: m for m in stored(connection.name_server, other)}
    assert copies.keys() == origin.keys()
    for body, copy in copies.items():
        first = origin[body]
        place = f"{topic}/{first.queue.broker_name}/{first.queue.queue_id}/{first.queue_offset}"
        assert copy.properties["COPIED_FROM"] == place
        assert copy.properties["COPIED_ID"] == first.message_id
        assert copy.message_id != first.message_id
    one = copies[b"one"]
    assert (one.tags, one.keys, one.flag, one.properties["p"]) == ("t", ("a", "b"), 3, "1")
    assert copies[b"two"].priority == 1
    assert copies[b"three"].properties["__SHARDINGKEY"] == "s"


def test_a_replay_keeps_blank_values_of_properties(
    pipelines: SparkSession, connection: Connection, topic: str, other: str
) -> None:
    rows = pipelines.sql("SELECT 'a' AS body, map('p', ' ') AS properties")
    send_rows(rows, connection, {"topic": topic})

    summary = replay(
        pipelines,
        ReplaySettings(connection=connection, selection=Selection(topics=(topic,)), to=other),
    )

    assert summary.complete
    (copy,) = stored(connection.name_server, other)
    assert copy.properties["p"] == " "


def test_a_replay_skips_messages_without_room_for_the_origin(
    pipelines: SparkSession, connection: Connection, topic: str, other: str
) -> None:
    lengths = range(32_330, 32_530)  # near the limit of properties, which the marks are beyond
    large = [
        Message(topic, b"x", tags="é", keys=["a", "b"], properties={"p": "v" * length})
        for length in lengths
    ]
    asyncio.run(send_all(connection.name_server, large))

    summary = replay(
        pipelines,
        ReplaySettings(connection=connection, selection=Selection(topics=(topic,)), to=other),
    )

    skipped = len(lengths) - summary.sent
    assert 0 < skipped < len(lengths)
    assert len(stored(connection.name_server, other)) == summary.sent
    [problem] = summary.problems
    assert problem.startswith(f"{skipped} messages were not copied, such as {topic}/")


def test_a_replay_with_a_rate_can_be_stopped_between_steps(
    pipelines: SparkSession, connection: Connection, topic: str, other: str
) -> None:
    write_messages(connection.name_server, topic, [f"m{n}" for n in range(30)])
    done: list[int] = []

    first = replay(
        pipelines,
        ReplaySettings(
            connection=connection, selection=Selection(topics=(topic,)), to=other, rate=10
        ),
        stop=lambda: bool(done),
        report=lambda what, n, total: done.append(n),
    )
    rest = replay(
        pipelines,
        ReplaySettings(
            connection=connection,
            selection=Selection(topics=(topic,), start=json.dumps(first.done_up_to)),
            to=other,
        ),
    )

    assert (first.interrupted, first.complete) == (True, False)
    assert done == [10]
    assert (first.sent, rest.sent, rest.complete) == (10, 20, True)
    assert bodies(connection.name_server, other) == sorted(f"m{n}" for n in range(30))


def test_a_replay_into_a_source_topic_needs_a_fixed_end(
    pipelines: SparkSession, connection: Connection, topic: str
) -> None:
    write_messages(connection.name_server, topic, ["a", "b"])
    open_ended = ReplaySettings(connection=connection, selection=Selection(topics=(topic,)))

    with pytest.raises(ConfigError, match="time in the past"):
        replay(pipelines, open_ended)

    assert bodies(connection.name_server, topic) == ["a", "b"]


# --- ingest -------------------------------------------------------------------------------------


@pytest.fixture
def ingesting(connection: Connection, topic: str, tmp_path: Path) -> IngestSettings:
    """Settings of an ingest of the topic to the folder ``out``."""
    return IngestSettings(
        connection=connection,
        selection=Selection(topics=(topic,)),
        target=Target(path=str(tmp_path / "out")),
        checkpoint=str(tmp_path / "checkpoint"),
        once=True,
    )


@pytest.fixture
def decoding(ingesting: IngestSettings, tmp_path: Path) -> IngestSettings:
    """Settings that decode bodies, and write those that cannot be read to the folder ``bad``."""
    body = BodySchema(kind="json", schema="id long")
    return replace(ingesting, body=body, bad_rows=str(tmp_path / "bad"))


def send(settings: IngestSettings, texts: list[str]) -> None:
    """Write messages to the topic that is ingested."""
    write_messages(settings.connection.name_server, settings.selection.topics[0], texts)


def test_an_ingest_continues_and_writes_bad_rows(
    pipelines: SparkSession, decoding: IngestSettings, tmp_path: Path
) -> None:
    send(decoding, [json.dumps({"id": n}) for n in range(20)])
    send(decoding, ["{", '{"id": "x"}'])
    first = ingest(pipelines, decoding)
    send(decoding, [json.dumps({"id": n}) for n in range(20, 30)])

    second = ingest(pipelines, decoding)

    assert (first.rows, first.bad, first.problems) == (22, 2, ())
    assert (second.rows, second.bad, second.offsets, second.problems) == (10, 0, 10, ())
    good = pipelines.read.parquet(str(tmp_path / "out")).select("value.id").collect()
    assert sorted(row.id for row in good) == list(range(30))
    bad = pipelines.read.parquet(str(tmp_path / "bad")).collect()
    assert sorted(bytes(row.body) for row in bad) == [b"{", b'{"id": "x"}']


def test_an_ingest_with_a_new_checkpoint_needs_empty_folders(
    pipelines: SparkSession, decoding: IngestSettings, tmp_path: Path
) -> None:
    settings = replace(
        decoding,
        selection=replace(decoding.selection, start="latest"),
        target=replace(decoding.target, mode="append"),
    )
    ingest(pipelines, settings)  # without a message: there is a log of batches, and no file
    send(settings, ["{"])
    renewed = replace(settings, checkpoint=str(tmp_path / "renewed"))

    for changed, setting in (
        (renewed, "target"),
        (replace(renewed, target=Target(path=str(tmp_path / "empty"))), "bad_rows"),
    ):
        with pytest.raises(ConfigError, match="not empty, and the checkpoint is new") as refused:
            ingest(pipelines, changed)
        assert refused.value.setting == setting

    assert not (tmp_path / "renewed").exists()
    assert ingest(pipelines, settings).bad == 1


def test_two_checkpoints_cannot_claim_one_folder(
    pipelines: SparkSession, ingesting: IngestSettings, tmp_path: Path
) -> None:
    check_targets(pipelines, ingesting)  # as of an ingest that has not planned a batch yet
    send(ingesting, ["a"])

    with pytest.raises(ConfigError, match="another checkpoint began to write"):
        ingest(pipelines, replace(ingesting, checkpoint=str(tmp_path / "other")))

    shutil.rmtree(tmp_path / "out" / "_ingests")
    assert ingest(pipelines, ingesting).rows == 1
    assert ingest(pipelines, ingesting).rows == 0
    assert pipelines.read.parquet(str(tmp_path / "out")).count() == 1


def test_both_queries_start_at_the_start_of_the_first_run(
    pipelines: SparkSession, decoding: IngestSettings, tmp_path: Path
) -> None:
    settings = replace(decoding, selection=replace(decoding.selection, start="latest"))
    ingest(pipelines, settings)
    # As after a kill between the starts of the two queries.
    shutil.rmtree(tmp_path / "checkpoint" / "bad")
    shutil.rmtree(tmp_path / "bad")
    send(settings, ["{"])

    ingest(pipelines, settings)

    bad = pipelines.read.parquet(str(tmp_path / "bad")).collect()
    assert [bytes(row.body) for row in bad] == [b"{"]


def test_a_batch_that_a_killed_run_wrote_is_neither_repeated_nor_missing(
    pipelines: SparkSession, ingesting: IngestSettings, tmp_path: Path
) -> None:
    send(ingesting, ["a", "b"])
    ingest(pipelines, ingesting)
    # As after a kill before Spark noted that the sink has the batch.
    shutil.rmtree(tmp_path / "checkpoint" / "messages" / "commits")
    send(ingesting, ["c"])

    summary = ingest(pipelines, ingesting)

    assert (summary.rows, summary.offsets, summary.problems) == (1, 1, ())
    assert pipelines.read.parquet(str(tmp_path / "out")).count() == 3


def test_a_stopped_ingest_ends_between_two_batches(
    pipelines: SparkSession, ingesting: IngestSettings, tmp_path: Path
) -> None:
    send(ingesting, [f"m{n}" for n in range(25)])
    read: list[int] = []

    summary = ingest(
        pipelines,
        replace(ingesting, once=False, trigger_seconds=0.1),
        stop=lambda: 25 in read,
        report=lambda what, n, total: read.append(n),
    )

    assert (summary.interrupted, summary.rows, summary.complete) == (True, 25, True)
    assert pipelines.read.parquet(str(tmp_path / "out")).count() == 25


@pytest.mark.timeout(600, func_only=True)  # starts a cluster, which has to compact
def test_a_compacted_topic_is_complete_with_fewer_messages_than_offsets(
    pipelines: SparkSession,
    fresh_cluster: Callable[..., Cluster],
    rocketmq_version: str,
    tmp_path: Path,
) -> None:
    if not rocketmq_version.startswith("5"):
        return  # compaction came with 5.0
    topic = "spark-compacted"
    properties = {
        "compactionScheduleInternal": "1000",
        "compactionMappedFileSize": "65536",
        "compactionCqMappedFileSize": "4600",
    }
    with fresh_cluster(backend="jvm", broker_properties=properties) as cluster:
        connection = Connection(name_server=cluster.namesrv)
        asyncio.run(create_compacted_topic(cluster.namesrv, topic))
        messages = [Message(topic, urandom(1000), keys=[f"k{n % 5}"]) for n in range(500)]
        asyncio.run(send_all(cluster.namesrv, messages))
        wait_until(lambda: has_gaps(cluster.namesrv, topic, 500), "the topic is compacted")
        target = Target(path=str(tmp_path / "out"))
        summary = ingest(
            pipelines,
            IngestSettings(
                connection=connection,
                selection=Selection(topics=(topic,)),
                target=target,
                checkpoint=str(tmp_path / "checkpoint"),
                once=True,
            ),
        )

    assert (summary.offsets, summary.problems) == (500, ())
    assert 5 <= summary.rows < 500
    assert all(each.sparse for each in summary.queues)
    rows = pipelines.read.parquet(str(target.path))
    assert rows.count() == summary.rows
    assert {row.keys for row in rows.select("keys").distinct().collect()} == {
        f"k{n}" for n in range(5)
    }


def has_gaps(namesrv: str, topic: str, count: int) -> bool:
    """Whether the brokers have the last of *count* messages, and not all of them any more."""
    found = stored(namesrv, topic)
    ends = {message.queue: message.queue_offset + 1 for message in found}
    return sum(ends.values()) == count > len(found)


async def create_compacted_topic(namesrv: str, topic: str) -> None:
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.topics.create(topic, queues=2, attributes={"cleanup.policy": "COMPACTION"})


def test_bodies_that_are_not_one_json_object_in_utf_8_are_bad_rows(pipelines: SparkSession) -> None:
    good = [b'{"id": 1, "text": "a"}', b" {}\n", b'{"id": null, "other": [1]}']
    several = [b'{"id": 1}\n{"id": 2}', b'{"id": 1},{"id": 2}']
    bad = [*several, b'{"id": 1} x', b'[{"id": 1}]', b"[]", b"null", b"", b'{"text": "\xff"}']
    rows = pipelines.createDataFrame([(body,) for body in [*good, *bad]], "body binary")

    found = parse_bodies(rows, BodySchema(kind="json", schema="id long, text string")).collect()

    values = [row.value.asDict() for row in found if not row.bad]
    assert values == [{"id": 1, "text": "a"}, *[{"id": None, "text": None}] * 2]
    assert [bytes(row.body) for row in found if row.bad] == bad


def test_protobuf_bodies_without_any_field_are_bad_rows(
    pipelines: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark decodes bad bodies to a struct of nulls: by protobuf with its jar, here by json."""

    def decode(body: Column, *_: object, options: dict[str, str]) -> Column:
        return functions.from_json(body.cast("string"), "id long, item string", options)

    monkeypatch.setattr(protobuf, "from_protobuf", decode)
    rows = pipelines.createDataFrame([(b'{"id": 1}',), (b"{",), (None,)], "body binary")

    found = parse_bodies(rows, BodySchema(kind="protobuf", schema="orders.desc", message="Order"))

    assert [row.bad for row in found.collect()] == [False, True, True]


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_a_missing_jar_is_reported(
    pipelines: SparkSession, decoding: IngestSettings, tmp_path: Path, kind: str
) -> None:
    message = "Order" if kind == "protobuf" else None
    descriptor = tmp_path / "orders.desc"
    descriptor.write_bytes(b"")
    schema = str(descriptor) if message else '{"type": "record", "name": "o", "fields": []}'
    body = BodySchema(kind=kind, schema=schema, message=message)

    with pytest.raises(ConfigError, match=rf"org\.apache\.spark:spark-{kind}_2\.13"):
        ingest(pipelines, replace(decoding, body=body))


@pytest.mark.parametrize(
    ("kind", "text", "permitted"),
    [
        ("csv", "body,tags\nx,a\ny,b,lost\n", [b"x", b"y"]),
        ("csv", "body,tags\nx,a\ny\n", [b"x", b"y"]),
        ("json", '{"body":"x"}\n{"body":"y"} {\n{"body":"z"\n', None),
    ],
)
def test_what_is_no_row_of_the_format_fails_a_load(
    pipelines: SparkSession,
    connection: Connection,
    topic: str,
    tmp_path: Path,
    kind: str,
    text: str,
    permitted: list[bytes] | None,
) -> None:
    file = tmp_path / "rows"
    file.write_text(text)
    settings = LoadSettings(
        connection=connection, topic=topic, path=str(file), format=kind, columns={"body": "body"}
    )

    with pytest.raises(JOB_ERRORS) as refused:
        load(pipelines, settings)
    before = stored(connection.name_server, topic)
    if permitted is not None:
        load(pipelines, replace(settings, read_options={"mode": "PERMISSIVE"}))

    assert "alformed" in format_error(refused.value)
    assert before == []
    assert sorted(m.body for m in stored(connection.name_server, topic)) == (permitted or [])


def test_nested_values_are_loaded_as_json_and_columns_have_any_case(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    rows = [
        {"Body": {"id": 1, "item": None}, "KEYS": [7, 8], "a`b": 1, "properties": {"p": 1}},
        {"Body": {"id": 2, "item": "tea"}},
    ]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    settings = LoadSettings(connection=connection, topic=topic, path=str(tmp_path), format="json")

    load(pipelines, settings)
    found = {m.body: (m.keys, m.user_properties) for m in stored(connection.name_server, topic)}
    load(pipelines, replace(settings, columns={"body": "*"}))
    whole = [json.loads(m.body) for m in stored(connection.name_server, topic)]

    assert [each["a`b"] for each in whole if each.get("a`b")] == [1]
    assert found == {
        b'{"id":1,"item":null}': (("7", "8"), {"p": "1"}),
        b'{"id":2,"item":"tea"}': ((), {}),
    }
