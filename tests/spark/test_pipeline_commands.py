"""Dead letters, lag, and the pipelines as commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from pyarrow.parquet import read_table
from pyspark.sql import SparkSession

from rocketmq_aio import Message, MessageQueue, PullConsumer
from rocketmq_aio.cli.app import run
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import (
    DeadLetterSettings,
    LagSettings,
    TagCount,
    Target,
    dead_letters,
    lag,
)
from rocketmq_aio.spark.pipelines.sending import end_offsets
from rocketmq_aio.spark.write.writer import PREFIX_BYTES
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.plugin import unique_name
from tests.spark.pipelining import read_queue, stored
from tests.spark.support import send_all, settings_in, wait_until, write_batches, write_messages

MANY: Final = 50_000
SPARK_AVRO: Final = "org.apache.spark:spark-avro_2.13:4.2.0"  # fits newer versions of Spark, too
AVRO: Final = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": ["long", "null"]}]}
)
# What pyspark 4.2 prints for a worker whose task was cancelled; each frame is its own.
WORKER_TRACE: Final = re.compile(
    r"Traceback \(most recent call last\):\n"
    r'(  File "[^"\n]*/pyspark/\w+\.py", line .*\n(    .*\n)+)+'
    r"EOFError\n"
)
GOOD_AVRO, NULL_AVRO, BAD_AVRO = b"\x00\x02", b"\x02", b"\x09 no such branch"

# --- dead letters -------------------------------------------------------------------------------


def bury(namesrv: str, group: str, topic: str) -> None:
    """Make dead letters of all messages of a topic."""

    async def send_back() -> None:
        async with PullConsumer(group, namesrv=namesrv) as consumer:
            for queue in await consumer.message_queues(topic):
                for message in await read_queue(consumer, queue):
                    await consumer.send_back(message, delay_level=-1)

    asyncio.run(send_back())


def test_dead_letters_are_counted_written_and_resent_once(
    pipelines: SparkSession,
    rocketmq_cluster: Cluster,
    connection: Connection,
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    rocketmq_cluster.create_group(group)
    messages = [
        Message(topic, f"m{n}".encode(), tags="ab"[n % 2], properties={"p": "1"}) for n in range(5)
    ]
    asyncio.run(send_all(connection.name_server, messages))
    bury(connection.name_server, group, topic)
    target = Target(path=str(tmp_path / "dead"), mode="overwrite")
    settings = DeadLetterSettings(connection=connection, group=group, target=target, resend=True)

    planned = dead_letters(pipelines, settings, dry_run=True)
    pipelines.conf.set("spark.sql.shuffle.partitions", "16")
    first = dead_letters(pipelines, settings)
    pipelines.conf.unset("spark.sql.shuffle.partitions")
    second = dead_letters(pipelines, settings)

    tags = (TagCount(topic=topic, tag="a", letters=3), TagCount(topic=topic, tag="b", letters=2))
    assert planned.tags == first.tags == tags
    assert [each.resent for each in (planned, first, second)] == [5, 5, 0]
    assert [each.resent_before for each in (planned, first, second)] == [0, 0, 5]
    assert first.problems == second.problems == ()
    rows = pipelines.read.parquet(str(tmp_path / "dead")).collect()
    assert {row.originTopic for row in rows} == {topic}
    found = stored(connection.name_server, topic)
    copies = [m for m in found if "COPIED_FROM" in m.properties]
    assert len(found) == 10
    assert sorted(m.body for m in copies) == sorted(m.body for m in messages)
    assert {m.properties["COPIED_FROM"].split("/")[0] for m in copies} == {f"%DLQ%{group}"}
    assert {m.properties["p"] for m in copies} == {"1"}
    assert len({m.message_id[: 2 * PREFIX_BYTES] for m in copies}) == 1  # sent by one task


def test_dead_letters_of_a_deleted_topic_do_not_stop_the_others(
    pipelines: SparkSession,
    rocketmq_cluster: Cluster,
    connection: Connection,
    topic: str,
    group: str,
) -> None:
    rocketmq_cluster.create_group(group)
    other = unique_name(f"{topic[:40]}-other")
    rocketmq_cluster.create_topic(other, queues=1)
    for name in (topic, other):
        write_messages(connection.name_server, name, [name])
        bury(connection.name_server, group, name)
    rocketmq_cluster.delete_topic(other)

    found = dead_letters(
        pipelines, DeadLetterSettings(connection=connection, group=group, resend=True)
    )

    assert (found.resent, found.resent_before) == (1, 0)
    assert [other in problem for problem in found.problems] == [True]


# --- lag ----------------------------------------------------------------------------------------


def test_lag_counts_unconsumed_messages(
    rocketmq_cluster: Cluster, connection: Connection, topic: str, group: str
) -> None:
    rocketmq_cluster.create_group(group)
    write_messages(connection.name_server, topic, [f"m{n}" for n in range(20)])
    found = stored(connection.name_server, topic)
    ends = {m.queue: m.queue_offset + 1 for m in found}
    done = min(ends)

    async def consume() -> None:
        async with PullConsumer(group, namesrv=connection.name_server) as consumer:
            await consumer.commit(done, ends[done])

    asyncio.run(consume())
    summary = lag(
        LagSettings(
            connection=Connection(name_server=connection.name_server, group=group), topics=(topic,)
        )
    )

    assert summary.lag == 20 - ends[done]
    for each in summary.lags:
        queue = MessageQueue(each.topic, each.broker, each.queue_id)
        assert each.maximum == ends.get(queue, 0)
        assert each.lag == (0 if queue == done else each.maximum)
        assert (each.next_time is not None) == (each.lag > 0)
        assert each.behind(summary.at) >= 0.0


# --- the command --------------------------------------------------------------------------------


def test_the_export_command_prints_its_summary_as_json(
    pipelines: SparkSession,
    connection: Connection,
    topic: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_messages(connection.name_server, topic, [f"m{n}" for n in range(10)])
    arguments = ["pipeline", "export", topic, "-n", connection.name_server, "--json", "-q"]
    target = ["--path", str(tmp_path / "out"), "--format", "json", "--body", "text"]

    assert run([*arguments, *target, "--dry-run"]) == 0
    assert json.loads(capfd.readouterr().out)["offsets"] == 10
    assert not (tmp_path / "out").exists()
    assert run([*arguments, *target]) == 0
    summary = json.loads(capfd.readouterr().out)
    again = run([*arguments, *target])

    assert (summary["complete"], sum(queue["rows"] for queue in summary["queues"])) == (True, 10)
    files = [*(tmp_path / "out").rglob("*.json")]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(row["body"] for row in rows) == [f"m{n}" for n in range(10)]
    failed = capfd.readouterr()
    assert (again, failed.out) == (3, "")
    assert "already exists" in failed.err.splitlines()[-1].lower()


@pytest.mark.timeout(400, func_only=True)  # it starts a JVM of its own, on a busy machine
def test_sigterm_to_the_process_group_stops_an_ingest_gracefully(
    rocketmq_cluster: Cluster, connection: Connection, topic: str, tmp_path: Path
) -> None:
    write_messages(connection.name_server, topic, [f"m{n}" for n in range(10)])
    arguments = ["pipeline", "ingest", topic, "-n", connection.name_server, "--json", "-q"]
    places = ["--path", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")]
    commits = tmp_path / "checkpoint" / "messages" / "commits" / "0"
    running = started(tmp_path / "spark", *arguments, *places, "--every", "0.2")
    try:
        wait_until(
            lambda: commits.exists() or running.poll() is not None,
            "a batch is written",
            seconds=300,
        )
        os.killpg(running.pid, signal.SIGTERM)
        out, _ = running.communicate(timeout=60)
    finally:
        running.kill()

    assert running.returncode == 0
    summary = json.loads(out)
    assert (summary["rows"], summary["offsets"], summary["interrupted"]) == (10, 10, True)


# A record of nulls is no bad body, though Spark decodes bad bodies to records of nulls.
@pytest.mark.timeout(400, func_only=True)
def test_avro_bodies_that_do_not_match_are_bad_rows(
    connection: Connection, topic: str, tmp_path: Path
) -> None:
    messages = [Message(topic, body) for body in (GOOD_AVRO, NULL_AVRO, BAD_AVRO)]
    asyncio.run(send_all(connection.name_server, messages))
    arguments = ["pipeline", "ingest", topic, "-n", connection.name_server, "--json", "-q"]
    places = ["--path", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")]
    schema = ["--body-format", "avro", "--body-schema", AVRO, "--bad-rows", str(tmp_path / "bad")]
    more = ["--once", "--packages", SPARK_AVRO]
    running = started(tmp_path / "spark", *arguments, *places, *schema, *more)
    try:
        out, errors = running.communicate(timeout=300)
    finally:
        running.kill()

    assert running.returncode == 0, errors
    assert (json.loads(out)["rows"], json.loads(out)["bad"]) == (3, 1)
    values = read_table(tmp_path / "out").column("value").to_pylist()
    assert sorted(values, key=str) == [{"id": 1}, {"id": None}]
    assert read_table(tmp_path / "bad").column("body").to_pylist() == [BAD_AVRO]


# Both signals take the same way in all commands.
@pytest.mark.timeout(400, func_only=True)
def test_sigint_to_the_process_group_cancels_an_export_and_shows_its_summary(
    connection: Connection, topic: str, tmp_path: Path
) -> None:
    write_batches(connection.name_server, topic, MANY, b"x" * 100)
    arguments = ["pipeline", "export", topic, "-n", connection.name_server, "--json", "-q"]
    target = tmp_path / "out"
    running = started(tmp_path / "spark", *arguments, "--path", str(target))

    summary, errors = ended_by(running, signal.SIGINT, lambda: (target / "_temporary").exists())

    assert running.returncode == 130, errors
    assert (summary["interrupted"], summary["complete"]) == (True, False)
    assert summary["problems"][0] == "stopped while writing: the target is not complete"
    assert "Traceback" not in without_worker_traces(errors)
    assert not [*target.rglob("*.parquet")]


@pytest.mark.timeout(400, func_only=True)
def test_sigterm_to_the_process_group_cancels_a_load_and_shows_its_summary(
    connection: Connection, topic: str, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    line = json.dumps({"body": "x" * 100}) + "\n"
    for name in range(4):
        (files / f"{name}.json").write_text(line * (3 * MANY))
    arguments = ["pipeline", "load", topic, str(files), "-f", "json", "--json", "-q"]
    running = started(tmp_path / "spark", *arguments, "-n", connection.name_server)

    summary, errors = ended_by(
        running, signal.SIGTERM, lambda: any(end_offsets(connection, [topic]).values())
    )

    stored = sum(end_offsets(connection, [topic]).values())
    assert running.returncode == 130, errors
    assert (summary["interrupted"], summary["rows"]) == (True, 12 * MANY)
    assert 0 < summary["sent"] <= stored < 12 * MANY
    assert summary["problems"][0].startswith("stopped while sending: ")
    assert "Traceback" not in without_worker_traces(errors)


def without_worker_traces(errors: str) -> str:
    """Return *errors* without the traces that pyspark 4.2 itself prints; newer ones print none."""
    return WORKER_TRACE.sub("", errors) if pyspark.__version__.startswith("4.2.") else errors


def ended_by(
    running: subprocess.Popen[str], number: signal.Signals, ready: Callable[[], bool]
) -> tuple[dict[str, Any], str]:
    """Signal the process group when *ready*; return the summary and the errors."""
    try:
        wait_until(lambda: ready() or running.poll() is not None, "work is under way", seconds=300)
        os.killpg(running.pid, number)
        out, errors = running.communicate(timeout=120)
    finally:
        running.kill()
    return json.loads(out or "{}"), errors


def test_a_command_in_another_thread_reuses_the_session_and_does_not_stop_it(
    pipelines: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    write_messages(connection.name_server, topic, ["a"])
    arguments = ["pipeline", "export", topic, "-n", connection.name_server, "--json", "-q"]

    with ThreadPoolExecutor(1) as threads:
        code = threads.submit(run, [*arguments, "--path", str(tmp_path / "out")]).result()

    assert code == 0
    assert pipelines.read.parquet(str(tmp_path / "out")).count() == 1


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start ``rmq`` with a process group of its own and a small Spark in *folder*."""
    small = [f"--conf={name}={value}" for name, value in settings_in(folder).items()]
    line = [sys.executable, "-m", "rocketmq_aio.cli", *arguments, "--master", "local[2]", *small]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
