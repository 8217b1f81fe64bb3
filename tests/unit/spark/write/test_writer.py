"""Writers: rejected schemas, message ids and tasks on a scripted cluster."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import ConfigError, InvalidMessageError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.batching.pre_encoded import Encoded
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.spark.arrow.row_schema import check_columns
from rocketmq_aio.spark.options.source_options import Connection, WriteOptions
from rocketmq_aio.spark.runtime import Runtime
from rocketmq_aio.spark.write.request_sender import RequestSender, WriteError, WriteSummary
from rocketmq_aio.spark.write.write_requests import Destination, WriteRequest
from rocketmq_aio.spark.write.writer import (
    RocketMQStreamWriter,
    RocketMQWriter,
    WriteTask,
    id_prefix,
)
from tests.fakes.cluster import FakeCluster

SEND = RequestCode.SEND_MESSAGE_V2
SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE
TEXT_MAP = MapType(StringType(), StringType())
BODY = StructType([StructField("body", BinaryType())])
NOWHERE = Connection(name_server="127.0.0.1:1")


def schema(**kinds: Any) -> StructType:  # noqa: ANN401
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


# --- rejected schemas -----------------------------------------------------------------------------


def test_all_column_types_are_accepted_in_any_case_and_order() -> None:
    check_columns(
        schema(
            QUEUEID=IntegerType(),
            brokername=StringType(),
            shardingKey=StringType(),
            deliverTimestamp=TimestampType(),
            delayLevel=LongType(),
            flag=IntegerType(),
            PRIORITY=ShortType(),
            properties=TEXT_MAP,
            keys=ArrayType(StringType()),
            tags=StringType(),
            topic=StringType(),
            Body=StringType(),
        ),
        None,
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"body": BinaryType(), "tag": StringType()},
            "'tag': unknown column; .*tags.*drop or rename",
        ),
        (
            {"body": BinaryType(), "queueOffset": LongType(), "storeTimestamp": TimestampType()},
            "'queueOffset': unknown column; .*name those to write in CREATE TABLE",
        ),
        ({"body": BinaryType(), "BODY": BinaryType()}, "duplicate"),
        ({"tags": StringType()}, "'body': missing"),
        ({}, "'body': missing"),
        ({"body": IntegerType()}, "its type is int, expected binary or string: cast it"),
        ({"body": NullType()}, "its type is void"),
        ({"body": BinaryType(), "topic": IntegerType()}, "'topic': its type is int"),
        ({"body": BinaryType(), "tags": ArrayType(StringType())}, "'tags': its type is array"),
        ({"body": BinaryType(), "keys": ArrayType(LongType())}, r"string or array<string>"),
        ({"body": BinaryType(), "properties": StringType()}, r"expected map<string,string>"),
        (
            {"body": BinaryType(), "properties": MapType(StringType(), LongType())},
            r"map<string,big",
        ),
        ({"body": BinaryType(), "flag": DoubleType()}, "'flag': its type is double"),
        ({"body": BinaryType(), "delayLevel": StringType()}, "'delayLevel': its type is string"),
        ({"body": BinaryType(), "priority": StringType()}, "'priority': its type is string"),
        ({"body": BinaryType(), "deliverTimestamp": TimestampNTZType()}, "timestamp_ntz"),
        ({"body": BinaryType(), "shardingKey": LongType()}, "'shardingKey': its type is bigint"),
        ({"body": BinaryType(), "brokerName": StringType()}, "needs the column queueId"),
        ({"body": BinaryType(), "queueId": LongType()}, "needs the column brokerName"),
    ],
)
def test_an_invalid_column_is_rejected_before_any_send(columns: dict[str, Any], words: str) -> None:
    options = WriteOptions(connection=NOWHERE, topic="orders")
    for kind in (RocketMQWriter, RocketMQStreamWriter):
        with pytest.raises(ConfigError, match=words):
            kind(options, schema(**columns), False)


def test_rows_need_a_topic() -> None:
    with pytest.raises(ConfigError, match="set the option, or add a column topic"):
        RocketMQWriter(WriteOptions(connection=NOWHERE), BODY, False)
    with pytest.raises(ConfigError, match="reserved by the broker"):
        check_columns(BODY, "SCHEDULE_TOPIC_XXXX")


def test_overwrite_is_rejected() -> None:
    options = WriteOptions(connection=NOWHERE, topic="orders")
    for kind in (RocketMQWriter, RocketMQStreamWriter):
        with pytest.raises(ConfigError, match="never replaced: use mode"):
            kind(options, BODY, True)


# --- ids, counts, pickle --------------------------------------------------------------------------


def test_id_prefixes_are_unique_and_repeatable() -> None:
    parts = [("q", "1", "0"), ("q", "1", "1"), ("q", "2", "0"), ("p", "1", "0"), ("q1", "", "0")]
    prefixes = [id_prefix(*each) for each in parts]

    assert prefixes == [id_prefix(*each) for each in parts]
    assert len(set(prefixes)) == len(parts)
    assert all(len(each) == 20 and set(each) <= set("0123456789ABCDEF") for each in prefixes)


@pytest.mark.parametrize("kind", [RocketMQWriter, RocketMQStreamWriter])
def test_a_writer_can_be_pickled(kind: type[RocketMQWriter]) -> None:
    writer = kind(WriteOptions(connection=NOWHERE, topic="orders"), BODY, False)
    arrived = pickle.loads(pickle.dumps(writer))

    assert vars(arrived) == vars(writer)


def test_commit_and_abort_log_their_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rocketmq_aio")
    options = WriteOptions(connection=NOWHERE, topic="orders")
    batch = RocketMQWriter(options, BODY, False)
    stream = RocketMQStreamWriter(options, BODY, False)

    batch.commit([WriteSummary(3, 1), WriteSummary(4, 2)])
    stream.commit([WriteSummary(5, 1, degraded=1)], 8)
    batch.abort([WriteSummary(3, 1), None])
    stream.abort([None], 9)

    text = caplog.text
    assert "rows_written" in text
    assert "rows=7" in text
    assert "rows_stored_with_less_than_asked" in text
    assert "write_failed_rows_stay_sent" in text
    assert "unfinished_tasks=1" in text


# --- tasks ----------------------------------------------------------------------------------------


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={"orders": 4}) as running:
        yield running


def batches(count: int, size: int = 10, **columns: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
    for first in range(0, count * size, size):
        bodies = pa.array([b"%d" % number for number in range(first, first + size)])
        yield pa.RecordBatch.from_pydict({"body": bodies, **columns})


async def run(
    cluster: FakeCluster,
    rows: Iterator[pa.RecordBatch],
    **settings: Any,  # noqa: ANN401
) -> WriteSummary:
    settings = {"topic": "orders", "retries": 1, **settings}
    connection = Connection(name_server=cluster.namesrv)
    task = WriteTask(WriteOptions(connection=connection, **settings), "A" * 20)
    return await to_thread.run_sync(task.run, rows)


def stored(cluster: FakeCluster) -> list[bytes]:
    return sorted((each.body for each in cluster.broker.messages("orders")), key=int)


def requests(cluster: FakeCluster) -> int:
    return sum(len(cluster.broker.requests_of(code)) for code in (SEND, SEND_BATCH))


async def test_rows_are_sent_in_batches_of_the_configured_size(cluster: FakeCluster) -> None:
    written = await run(cluster, batches(5), batch_records=4)

    assert stored(cluster) == [b"%d" % number for number in range(50)]
    assert written == WriteSummary(rows=50, requests=15)
    assert len(cluster.broker.requests_of(SEND_BATCH)) == 15


async def test_requests_have_the_configured_bytes(cluster: FakeCluster) -> None:
    assert await run(cluster, batches(1), batch_bytes=1) == WriteSummary(rows=10, requests=10)


async def test_tags_with_a_bar_are_stored_without_the_check(cluster: FakeCluster) -> None:
    tags = pa.array(["new|paid"] * 10)

    with pytest.raises(InvalidMessageError, match="without a bar"):
        await run(cluster, batches(1, tags=tags))
    assert (await run(cluster, batches(1, tags=tags), check_tags=False)).rows == 10


async def test_a_task_without_rows_sends_no_request() -> None:
    empty = pa.RecordBatch.from_pydict({"body": pa.array([], pa.binary())})
    task = WriteTask(WriteOptions(connection=NOWHERE, topic="orders"), "A" * 20)

    assert task.run(iter([])) == WriteSummary()
    assert task.run(iter([empty])) == WriteSummary()


async def test_ids_continue_across_batches_and_are_repeatable(cluster: FakeCluster) -> None:
    await run(cluster, batches(3))
    first = {each.body: each.properties["UNIQ_KEY"] for each in cluster.broker.messages("orders")}
    await run(cluster, batches(3), batch_records=7)
    again = [(each.body, each.properties["UNIQ_KEY"]) for each in cluster.broker.messages("orders")]

    assert sorted(first.values()) == ["A" * 20 + f"{number:012X}" for number in range(30)]
    assert sorted(again) == sorted([*first.items(), *first.items()])


async def test_writes_with_different_timeouts_share_a_producer(cluster: FakeCluster) -> None:
    for milliseconds in (1000, 2000, 3000):
        await run(cluster, batches(1), send_timeout_ms=milliseconds)

    assert len(cluster.broker.connections) == 1


async def test_a_send_fails_after_its_timeout(cluster: FakeCluster) -> None:
    cluster.faults.drop(SEND_BATCH, executed=False, times=None)

    with pytest.raises(WriteError, match=r"tries 1 .*within 0\."):
        await run(cluster, batches(1), send_timeout_ms=200, retries=0)


async def test_a_temporary_error_is_retried(cluster: FakeCluster) -> None:
    refusals = [Response(code=2, remark="busy")] * 4
    for each in refusals:
        cluster.faults.handle(SEND_BATCH, each)
    written = await run(cluster, batches(1))

    assert written.rows == 10
    assert stored(cluster) == [b"%d" % number for number in range(10)]


async def test_a_task_that_starts_while_no_name_server_responds_retries() -> None:
    options = WriteOptions(connection=NOWHERE, topic="orders", send_timeout_ms=1, retries=1)
    task = WriteTask(options, "A" * 20)

    with pytest.raises(WriteError, match=r"10 row.*tries 2 .*NameServerUnavailableError"):
        await to_thread.run_sync(task.run, batches(1))


async def test_a_failed_send_names_topic_broker_and_tries(cluster: FakeCluster) -> None:
    cluster.faults.refuse(SEND_BATCH, 2, "too busy", times=None)
    # The deadline may end while an attempt is unanswered: then its outcome is unknown.
    with pytest.raises(
        WriteError, match=r"10 row.*'orders'.*tries 2.*Send(Unknown)?Error.*too busy"
    ) as failed:
        await run(cluster, batches(1), send_timeout_ms=2000)

    assert f"broker {cluster.broker.address}, " in str(failed.value)
    assert stored(cluster) == []


async def test_requests_stored_with_less_replication_than_required_are_counted(
    cluster: FakeCluster,
) -> None:
    cluster.faults.refuse(SEND_BATCH, ResponseCode.FLUSH_DISK_TIMEOUT, executed=True)

    assert await run(cluster, batches(1)) == WriteSummary(rows=10, requests=1, degraded=1)


async def test_a_permanent_error_is_not_retried(cluster: FakeCluster) -> None:
    cluster.faults.refuse(SEND_BATCH, 13, "illegal", times=None)
    with pytest.raises(WriteError, match=r"tries 1 .*code 13: illegal"):
        await run(cluster, batches(1))

    assert requests(cluster) == 1


@pytest.mark.parametrize("columns", [{}, {"shardingKey": pa.array(["k"] * 10)}])
async def test_a_send_cancelled_by_foreign_code_fails_the_task(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, columns: dict[str, Any]
) -> None:
    async def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Producer, "send_encoded", cancelled)

    with pytest.raises(CancelledError):
        await run(cluster, batches(1, **columns))


async def test_an_invalid_row_fails_the_task(cluster: FakeCluster) -> None:
    bad = pa.RecordBatch.from_pydict({"body": pa.array([b"x", None])})
    with pytest.raises(InvalidMessageError, match="row 11 of the task: its body is null; filter"):
        await run(cluster, iter([*batches(1), bad]))


async def test_rows_of_a_key_are_stored_in_order(cluster: FakeCluster) -> None:
    keys = pa.array([f"k{number % 3}" for number in range(10)])
    await run(cluster, batches(20, shardingKey=keys), batch_records=2)
    by_key: dict[str, list[int]] = {}
    for queue in range(4):
        for each in cluster.broker.messages("orders", queue):
            by_key.setdefault(each.properties["__SHARDINGKEY"], []).append(int(each.body))

    assert sum(map(len, by_key.values())) == 200
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_a_destination_has_one_request_in_flight(cluster: FakeCluster) -> None:
    cluster.faults.drop(SEND_BATCH, executed=False)
    named = {"brokerName": pa.array(["broker-a"] * 10), "queueId": pa.array([2] * 10)}
    written = await run(
        cluster, batches(3, **named), batch_records=5, send_timeout_ms=200, retries=3
    )

    assert written.rows == 30
    assert [int(each.body) for each in cluster.broker.messages("orders", 2)] == list(range(30))


@pytest.mark.parametrize("queue", [None, MessageQueue("orders", "broker-a", 2)])
async def test_no_request_is_sent_after_a_failed_one(
    cluster: FakeCluster, queue: MessageQueue | None
) -> None:
    cluster.faults.refuse(SEND, 13, "illegal")
    options = WriteOptions(connection=NOWHERE, send_window=1)
    async with Producer("writers", client=ClientConfig(namesrv=cluster.namesrv)) as producer:
        sender = RequestSender(producer, options)
        rows = [
            WriteRequest(Encoded(topic="orders", body=b"1", message_id=name), 1, Destination(queue))
            for name in "ABC"
        ]
        sends = [sender.send(rows[:1]), sender.send(rows[1:])]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)

    assert [type(each) for each in outcomes] == [WriteError] * 2
    assert requests(cluster) == 1


def test_record_batches_in_flight_are_cancelled_from_the_last_to_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled: list[int] = []

    class Sending(Future[None]):
        def cancel(self) -> bool:
            cancelled.append(sendings.index(self))
            return True

    sendings: list[Sending] = []

    def submit(*_: object) -> Sending:
        sendings.append(Sending())
        return sendings[-1]

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(2)
        raise RuntimeError("the upstream task failed")

    runtime = SimpleNamespace(producer=lambda: None, submit=submit, call=None)
    monkeypatch.setattr(Runtime, "get", lambda _: runtime)
    task = WriteTask(WriteOptions(connection=NOWHERE, topic="orders"), "A" * 20)

    with pytest.raises(RuntimeError, match="upstream"):
        task.run(broken())
    assert cancelled == [1, 0]
