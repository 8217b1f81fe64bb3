"""Read tasks with brokers that return few messages, are slow, fail or lost messages."""

from __future__ import annotations

import asyncio
import itertools
import logging
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import msgspec
import pytest
from anyio import create_task_group, fail_after, to_thread, wait_all_tasks_blocked

from rocketmq_aio import AdminClient, ClientConfig, Message, MQClientInstance, Producer
from rocketmq_aio.consumer.pull.result import PullStatus, RawPull
from rocketmq_aio.embedded.broker import pull as pull_processor
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Close, Outcome, Response, resolve
from rocketmq_aio.errors import AuthError
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.spark.offsets import LogMark, Range
from rocketmq_aio.spark.options.source_options import Connection, ReadOptions
from rocketmq_aio.spark.read import fetcher as fetcher_module
from rocketmq_aio.spark.read.batch_reader import read
from rocketmq_aio.spark.read.data_loss import DataLossError
from rocketmq_aio.spark.read.fetcher import FetchedMessages, Fetcher
from rocketmq_aio.spark.read.retrying_puller import ReadError
from rocketmq_aio.spark.runtime import Runtime
from tests.fakes.broker import FakeBroker
from tests.fakes.static_topics import share_out
from tests.unit.remoting.until import settle
from tests.unit.spark.driving import put_at
from tests.unit.spark.reading import (
    PLACES,
    TOPIC,
    Reading,
    pull_header,
    pull_response,
    reading,
    script_brokers,
    within,
)
from tests.unit.stored import COMPRESSED, Stored

FOUND, NOTHING = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
AGAIN, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


@pytest.fixture
def here() -> Iterator[Reading]:
    with reading() as mine:
        yield mine


def records(*offsets: int, **fields: Any) -> bytes:  # noqa: ANN401 - those of Stored
    return b"".join([Stored(queue_offset=each, **fields).to_bytes() for each in offsets])


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "data_loss" in each.getMessage()]


class Instant:
    """A `RawPulls` that returns messages immediately."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._size = size

    async def pull(self, _queue: object, offset: int, count: int, *_: object, **__: object) -> Any:  # noqa: ANN401
        await asyncio.sleep(0)
        self.count += 1
        return RawPull(
            status=PullStatus.FOUND,
            body=bytes(self._size),
            offset_delta=0,
            next_offset=offset + min(count, 32),
            min_offset=0,
            max_offset=10**9,
        )


def instant_fetcher(pulls: Instant, wanted: Range, **settings: Any) -> Fetcher:  # noqa: ANN401
    connection = Connection(name_server="127.0.0.1:1")
    options = ReadOptions(connection=connection, subscribe=(TOPIC,), **settings)

    async def is_gone(*_: object) -> bool:
        return False

    return Fetcher(pulls, [wanted], options, is_gone)  # type: ignore[arg-type]


# --- order and concurrency ------------------------------------------------------------------------


def test_ranges_are_read_in_order(here: Reading) -> None:
    here.put_numbers(300)
    here.put_numbers(100, queue_id=1)
    got = here.read(within(10, 300), within(0, 0), within(7, 77, queue_id=1))
    assert got == [
        *((0, number, str(number).encode()) for number in range(10, 300)),
        *((1, number, str(number).encode()) for number in range(7, 77)),
    ]


def test_pulls_run_concurrently(here: Reading) -> None:
    here.put_numbers(400)
    waiting = 0
    all_here: asyncio.Event | None = None

    async def together(command: Command, connection: ServerConnection) -> Outcome:
        nonlocal waiting, all_here
        all_here = all_here or asyncio.Event()
        waiting += 1
        if waiting == 8:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 10)
        return await resolve(here.broker.process(command, connection))

    here.on(together, times=8)
    assert here.offsets(0, 400, pull_window=8) == [*range(400)]


def test_responses_out_of_order_are_reordered(here: Reading) -> None:
    here.put_numbers(256)
    order = itertools.count()

    async def late(command: Command, connection: ServerConnection) -> Outcome:
        await settle(turns=50 if next(order) % 2 == 0 else 0)
        return await resolve(here.broker.process(command, connection))

    here.on(late, times=None)
    assert here.offsets(0, 256) == [*range(256)]


@pytest.mark.parametrize("most", [1, 8, 256])
def test_segments_follow_the_size_of_responses(
    here: Reading, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(pull_processor, "MAX_MESSAGES", most)
    count = 200 * most
    here.put_numbers(count)
    assert here.offsets(0, count, pull_window=4) == [*range(count)]
    # Full responses, except the first ones and those during growth.
    assert len(here.pulls()) <= 1.3 * (count / most) + 20


def test_the_broker_version_selects_the_request_code() -> None:
    with reading(version="4.9.7") as old:
        old.put_numbers(100)
        assert old.offsets(0, 100) == [*range(100)]
        refused = old.broker.requests_of(RequestCode.LITE_PULL_MESSAGE)
        assert len(refused) <= 4 < len(old.pulls()) + 4
        before = len(refused)
        assert old.offsets(0, 100) == [*range(100)]
        assert len(old.broker.requests_of(RequestCode.LITE_PULL_MESSAGE)) == before


def test_a_broker_that_denies_lite_pull_gets_pull_requests(here: Reading) -> None:
    here.put_numbers(50)
    here.on(
        Response(ResponseCode.NO_PERMISSION, remark="for lite pull consumer is forbidden"), None
    )
    assert here.offsets(0, 50) == [*range(50)]


# --- ranges and filters ---------------------------------------------------------------------------


def test_messages_outside_the_range_are_dropped(here: Reading) -> None:
    here.on(pull_response(FOUND, 40, body=records(*range(3, 40))))
    assert here.offsets(10, 20) == [*range(10, 20)]


def test_tags_are_compared_by_text(here: Reading) -> None:
    here.put("yes", tag="Aa")
    here.put("no", tag="BB")  # has the same hash
    here.put("other", "none", tag="C")
    here.put("yes again", tag="Aa")
    got = here.read(within(0, 5), sub_expression="Aa || D")
    assert [body for _, _, body in got] == [b"yes", b"yes again"]


def test_a_selective_filter_needs_few_pulls(here: Reading) -> None:
    for number in range(60):
        here.put(*["x"] * 99, tag="B")
        here.put(str(number), tag="A")
    got = here.read(within(0, 6000), sub_expression="A", pull_window=2)
    assert [body for _, _, body in got] == [b"%d" % number for number in range(60)]
    assert len(here.pulls()) < 40


def test_the_first_batch_is_small(here: Reading) -> None:
    here.put(*["x" * 4000] * 600)
    sizes = [len(batch) for batch in here.batches([within(0, 600)])]
    assert sum(sizes) == 600
    assert 16 <= sizes[0] <= 100 < sizes[1]


# --- data loss ------------------------------------------------------------------------------------


def drop_before(here: Reading, offset: int) -> None:
    here.broker.topics[TOPIC].queues[0].drop_before(offset)


def test_deleted_messages_fail_the_task(here: Reading) -> None:
    here.put_numbers(500)
    drop_before(here, 400)
    with pytest.raises(DataLossError, match="wanted offset 5, the queue has 400 to 500") as lost:
        here.offsets(5, 450)
    assert f"topic '{TOPIC}', broker 'broker-a', queue 0" in str(lost.value)
    assert "failOnDataLoss" in str(lost.value)


def test_deleted_messages_are_skipped_with_one_warning(
    here: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    here.put_numbers(50_000)
    drop_before(here, 49_000)
    caplog.set_level(logging.WARNING)
    assert here.offsets(5, 49_100, fail_on_data_loss=False) == [*range(49_000, 49_100)]
    assert len(losses(caplog)) == 1
    assert "'skipped': 48995" in losses(caplog)[0].replace("skipped=", "'skipped': ")
    assert len(here.pulls()) < 200  # not one pull per offset


def test_a_queue_that_ends_before_the_range_fails_the_task(here: Reading) -> None:
    here.put_numbers(100)
    with pytest.raises(DataLossError, match="the queue ends before"):
        here.offsets(150, 1000)


def test_a_queue_that_ends_before_the_range_ends_the_read(
    here: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    here.put_numbers(100)
    here.on(pull_response(MOVED, 60, most=60), None)
    caplog.set_level(logging.WARNING)
    assert here.offsets(80, 90_000, fail_on_data_loss=False) == []
    assert "89920" in losses(caplog)[0]


def test_a_queue_that_ends_within_the_range_fails_the_task(here: Reading) -> None:
    here.put_numbers(10)
    with pytest.raises(DataLossError, match="wanted offset 10, the queue has 0 to 10"):
        here.offsets(0, 12)


@pytest.mark.parametrize("wanted", ["*", "paid"])
def test_a_queue_that_ends_within_the_range_ends_the_read(
    here: Reading, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    here.put(*map(str, range(10)), tag="paid")
    caplog.set_level(logging.WARNING)
    options = {"sub_expression": wanted, "fail_on_data_loss": False}
    assert here.offsets(0, 90_000, **options) == [*range(10)]
    assert len(losses(caplog)) == 1
    assert "89990" in losses(caplog)[0]


GAPS: Final = {
    "before the first message": pull_response(FOUND, 6, body=records(3, 4, 5)),
    "in the next offset": pull_response(FOUND, 6, body=records(0, 1, 2)),
    "between messages": pull_response(FOUND, 6, body=records(0, 1, 5)),
    "without a message": pull_response(AGAIN, 6),
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_a_gap_fails_the_task(here: Reading, gap: Response) -> None:
    here.on(gap, None)
    with pytest.raises(DataLossError, match=r"messages are (missing|not stored)"):
        here.offsets(0, 6)


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_a_gap_is_skipped_with_a_warning(
    here: Reading, gap: Response, caplog: pytest.LogCaptureFixture
) -> None:
    here.on(gap, None)
    caplog.set_level(logging.WARNING)
    there = here.offsets(0, 6, fail_on_data_loss=False)
    assert set(there) < {*range(6)}
    assert str(6 - len(there)) in losses(caplog)[0]


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_gaps_of_a_compacted_topic_are_no_loss(here: Reading, gap: Response) -> None:
    config = {
        "topicName": TOPIC,
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 6,
        "attributes": {"cleanup.policy": "COMPACTION"},
    }
    here.broker.faults.handle(
        RequestCode.GET_TOPIC_CONFIG, Response(body=msgspec.json.encode(config)), times=None
    )
    here.on(gap, None)
    assert len(here.offsets(0, 6)) < 6


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_gaps_are_losses_while_the_settings_of_the_topic_are_unknown(
    here: Reading, gap: Response
) -> None:
    here.broker.faults.handle(RequestCode.GET_TOPIC_CONFIG, Close(reset=True), times=None)
    here.on(gap, None)

    with pytest.raises(DataLossError):
        here.offsets(0, 6)


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_gaps_of_a_filter_are_no_loss(here: Reading, gap: Response) -> None:
    here.on(gap, None)
    assert len(here.offsets(0, 6, sub_expression="paid")) < 6


def test_with_a_filter_messages_are_lost_below_the_minimum_only(here: Reading) -> None:
    here.on(pull_response(FOUND, 6, least=2, body=records(3, 5)), None)
    with pytest.raises(DataLossError, match="wanted offset 0, the queue has 2"):
        here.offsets(0, 6, sub_expression="paid")
    assert here.offsets(2, 6, sub_expression="paid") == [3, 5]


# --- retries --------------------------------------------------------------------------------------


def test_messages_not_stored_yet_are_waited_for(here: Reading) -> None:
    here.put_numbers(10)
    here.on(pull_response(NOTHING, 0), 3)
    here.on(pull_response(AGAIN, 0), 1)
    here.on(pull_response(MOVED, 5, remark="OFFSET_RESET"), 1)
    assert here.offsets(0, 10) == [*range(10)]


@pytest.mark.parametrize(("code", "end"), [(MOVED, 60), (NOTHING, 80)])
@pytest.mark.parametrize("fails", [True, False])
def test_an_end_that_recovers_is_no_loss(
    here: Reading, fails: bool, code: int, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a crash: the broker serves pulls before its maximum is restored."""
    here.put_numbers(100)
    here.on(pull_response(code, end, most=end), 2)
    caplog.set_level(logging.WARNING)
    assert here.offsets(80, 100, fail_on_data_loss=fails) == [*range(80, 100)]
    assert losses(caplog) == []


def test_messages_that_never_come_fail_the_task(here: Reading) -> None:
    here.on(pull_response(NOTHING, 0), None)
    with pytest.raises(ReadError, match="at offset 0: no progress for pullTimeoutMs=500") as slow:
        here.offsets(0, 12, pull_timeout_ms=500, fail_on_data_loss=False)
    assert "NO_NEW" in str(slow.value)


def test_busy_lost_connection_and_unknown_code_are_retried(here: Reading) -> None:
    here.put_numbers(100)
    here.on(Response(ResponseCode.SYSTEM_BUSY, remark="[PC_SYNCHRONIZED]"), 2)
    here.on(Close(reset=True), 1)
    here.on(Response(ResponseCode.SYSTEM_ERROR, remark="java.lang.NullPointerException"), 1)
    assert here.offsets(0, 100) == [*range(100)]


def test_a_read_error_names_queue_and_offset(here: Reading) -> None:
    here.put_numbers(64)

    def until_then(command: Command, connection: ServerConnection) -> Any:  # noqa: ANN401
        if pull_header(command).queue_offset >= 32:
            return Response(ResponseCode.NO_PERMISSION, remark="pulling message is forbidden")
        return here.broker.process(command, connection)

    here.broker.faults.handle(RequestCode.PULL_MESSAGE, until_then, times=None)
    here.on(until_then, None)
    with pytest.raises(ReadError, match=f"'{TOPIC}', broker 'broker-a', queue 0 at offset 32"):
        here.offsets(0, 64)


def test_a_missing_group_is_an_error_with_a_way_out(here: Reading) -> None:
    remark = "subscription group [rocketmq-spark] does not exist"
    here.on(Response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark), None)
    with pytest.raises(ReadError, match=r"does not exist.*option group"):
        here.offsets(0, 10)


def test_a_deleted_topic_fails_the_task_or_ends_its_range(
    here: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    del here.broker.topics[TOPIC]
    script_brokers(here.cluster, "broker-a")
    with pytest.raises(DataLossError, match="the queue ends before"):
        here.offsets(0, 10, pull_timeout_ms=500)
    caplog.set_level(logging.WARNING)
    assert here.offsets(0, 10, pull_timeout_ms=500, fail_on_data_loss=False) == []
    assert len(losses(caplog)) == 1


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_a_removed_queue_fails_the_task_or_ends_its_range(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    with reading(version) as here:
        del here.broker.topics[TOPIC]
        here.cluster.create_topic(TOPIC, 1)
        here.put("new")
        removed = within(0, 10, queue_id=1)
        with pytest.raises(DataLossError, match="queue 1: wanted offset 0"):
            here.read(removed, pull_timeout_ms=500)
        caplog.set_level(logging.WARNING)
        read = here.read(removed, within(0, 1), pull_timeout_ms=500, fail_on_data_loss=False)
        assert read == [(0, 0, b"new")]
        assert len(losses(caplog)) == 1


def test_a_queue_is_not_skipped_while_the_route_names_it(here: Reading) -> None:
    here.put_numbers(10)
    here.on(Response(ResponseCode.SYSTEM_ERROR, remark="no"), None)
    with pytest.raises(ReadError, match=r"no progress for pullTimeoutMs=500.*no"):
        here.offsets(0, 10, pull_timeout_ms=500, fail_on_data_loss=False)


@pytest.mark.parametrize("others", [(), ("broker-b",)])
def test_an_unavailable_broker_is_not_a_deleted_topic(
    here: Reading, others: tuple[str, ...]
) -> None:
    here.put_numbers(10)
    here.cluster.name_server.unregister(here.broker)
    script_brokers(here.cluster, *others)
    with pytest.raises(ReadError, match="no progress for pullTimeoutMs=500"):
        here.offsets(0, 10, pull_timeout_ms=500, fail_on_data_loss=False)


def test_a_topic_is_not_skipped_while_its_deletion_is_uncertain(here: Reading) -> None:
    del here.broker.topics[TOPIC]
    busy = Response(ResponseCode.SYSTEM_BUSY, remark="busy")
    here.cluster.faults.handle(RequestCode.GET_BROKER_CLUSTER_INFO, busy, times=None)
    with pytest.raises(ReadError, match="no progress for pullTimeoutMs=500"):
        here.offsets(0, 10, pull_timeout_ms=500, fail_on_data_loss=False)


# --- a log that is replaced while its batch is read ----------------------------------------------


def planned(start: int, end: int, stored: int, *, last: int | None = None) -> Range:
    """A part of a batch whose last message, at *last*, was stored at *stored* (milliseconds)."""
    mark = LogMark(end - 1 if last is None else last, stored)
    return within(start, end)._replace(mark=mark)


def replace_tail(here: Reading) -> None:
    """Store five messages, and replace the last two by three others, as a new master has them."""
    put_at(here.broker, 1000, 2000, 3000, 4000, 5000)
    del here.broker.topics[TOPIC].queues[0].messages[3:]
    put_at(here.broker, 6000, 7000, 8000)


@pytest.mark.parametrize("part", [planned(0, 5, 5000), planned(0, 4, 5000, last=4)])
def test_messages_that_replaced_planned_ones_are_left_to_the_next_batch(
    here: Reading, part: Range, caplog: pytest.LogCaptureFixture
) -> None:
    replace_tail(here)
    with pytest.raises(DataLossError, match=r"the log was replaced.*wanted offset 3"):
        here.read(part)
    caplog.set_level(logging.WARNING)
    rows = here.read(part, fail_on_data_loss=False)

    assert [offset for _, offset, _ in rows] == [0, 1, 2]
    assert len(losses(caplog)) == 1
    assert f"skipped={part.end - 3}" in losses(caplog)[0]


def test_messages_of_a_broker_whose_clock_was_set_back_are_read(here: Reading) -> None:
    put_at(here.broker, 1000, 5000, 2000, 3000)
    parts = planned(0, 2, 3000, last=3), planned(2, 4, 3000)

    assert [offset for _, offset, _ in here.read(*parts)] == [0, 1, 2, 3]


def test_a_log_that_cannot_be_compared_fails_the_task(here: Reading) -> None:
    replace_tail(here)
    busy = Response(ResponseCode.SYSTEM_BUSY, remark="busy")
    here.cluster.faults.handle(RequestCode.PULL_MESSAGE, busy, times=None)
    with pytest.raises(ReadError, match="the log cannot be compared"):
        here.read(planned(0, 4, 5000, last=4), fail_on_data_loss=False)


def test_an_unreadable_message_is_never_skipped(here: Reading) -> None:
    good = records(0, 1)
    here.on(pull_response(FOUND, 4, body=good + bytes(100) + records(3)), None)
    with pytest.raises(ReadError, match="at offset 2: it is no message"):
        here.offsets(0, 4, fail_on_data_loss=False)


def test_bodies_beyond_the_decompression_limit_are_read_in_parts(here: Reading) -> None:
    body = zlib.compress(bytes(20_000_000))

    def stored(command: Command, _connection: ServerConnection) -> Response:
        rest = range(pull_header(command).queue_offset, 4)
        return pull_response(FOUND, 4, body=records(*rest, body=body, sys_flag=COMPRESSED))

    here.on(stored, None)
    got = here.read(within(0, 4))
    assert [(offset, len(body)) for _, offset, body in got] == [(n, 20_000_000) for n in range(4)]


async def test_responses_fetched_again_leave_the_limit_of_the_buffer_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher_module, "MAX_BUFFERED_BYTES", 1000)
    pulls = Instant(400)
    fetch = instant_fetcher(pulls, within(0, 10**6))
    (cursor,) = fetch._cursors
    again = await fetch.refetch(cursor, 0, 96)
    assert [(each.start, each.end) for each in again] == [(0, 32), (32, 64), (64, 96)]
    async with create_task_group() as tasks:
        tasks.start_soon(fetch.run)
        await wait_all_tasks_blocked()
        assert fetch._buffered_bytes >= 1000
        assert sum(len(each.results) for each in fetch._segments) * 400 == fetch._buffered_bytes
        tasks.cancel_scope.cancel()


async def test_responses_without_matches_enlarge_the_segments() -> None:
    class NoMatch(Instant):
        async def pull(self, _queue: object, offset: int, *_: object, **__: object) -> Any:  # noqa: ANN401
            await asyncio.sleep(0)
            self.count += 1
            return RawPull(
                status=PullStatus.NO_MATCH,
                body=b"",
                offset_delta=0,
                next_offset=offset + 1000,
                min_offset=0,
                max_offset=10**9,
            )

    pulls = NoMatch(0)
    fetch = instant_fetcher(pulls, within(0, 200_000), sub_expression="paid")
    with fail_after(10):
        await fetch.run()
    # Each response is wanted once, except those of the first segments of all workers.
    assert pulls.count <= 200 + 2 * ReadOptions.pull_window


async def test_a_pull_cancelled_by_foreign_code_fails_the_task() -> None:
    class Cancelled(Instant):
        async def pull(
            self, _queue: object, offset: int, count: int, *_: object, **__: object
        ) -> Any:  # noqa: ANN401
            if offset == 32:
                raise asyncio.CancelledError
            return await super().pull(_queue, offset, count)

    fetch = instant_fetcher(Cancelled(100), within(0, 100))
    with fail_after(10), pytest.raises(asyncio.CancelledError):
        await fetch.run()


async def test_an_error_ends_the_workers_that_wait_for_the_reader() -> None:
    class Denied(Instant):
        async def pull(
            self, _queue: object, offset: int, count: int, *_: object, **__: object
        ) -> Any:  # noqa: ANN401
            if offset == 0:
                await wait_all_tasks_blocked()  # the others have read as far ahead as they may
                raise AuthError(ResponseCode.NO_PERMISSION, "denied")
            return await super().pull(_queue, offset, count)

    fetch = instant_fetcher(Denied(100), within(0, 10**6))
    with fail_after(10), pytest.raises(ReadError, match="denied"):
        await fetch.run()


# --- replicas -------------------------------------------------------------------------------------


def with_replica(here: Reading) -> FakeBroker:
    """Make the second broker a replica that the first one suggests."""
    replica = here.cluster.brokers[1]
    here.cluster.name_server.unregister(replica)

    def route(command: Command, connection: ServerConnection) -> Response:
        normal = here.cluster.name_server.process(command, connection)
        assert isinstance(normal, Response)
        body: dict[str, Any] = msgspec.json.decode(normal.body)
        body["brokerDatas"][0]["brokerAddrs"]["1"] = replica.address
        return Response(body=msgspec.json.encode(body))

    here.cluster.faults.handle("route", route, times=None)
    for broker in here.cluster.brokers:

        async def suggest(
            command: Command, connection: ServerConnection, broker: FakeBroker = broker
        ) -> Outcome:
            response = await resolve(broker.process(command, connection))
            assert isinstance(response, Response)
            ext = {**response.ext, "suggestWhichBrokerId": "1"}
            return Response(response.code, ext, response.body, response.remark)

        broker.faults.handle(here.code, suggest, times=None, broker=broker.name)
    return replica


@pytest.mark.parametrize(("read_from", "at_master"), [("suggested", 1), ("master", 4)])
def test_a_suggested_replica_is_read_if_the_option_allows_it(
    read_from: str, at_master: int
) -> None:
    with reading(brokers=2) as here:
        replica = with_replica(here)
        here.put_numbers(128)
        for number in range(128):
            replica.put(TOPIC, str(number).encode(), queue_id=0)
        wanted = {"read_from": read_from, "pull_window": 1, "pull_batch_size": 32}
        assert here.offsets(0, 128, **wanted) == [*range(128)]
        assert len(here.pulls()) == at_master
        assert len(replica.requests_of(here.code)) == 4 - at_master


@pytest.mark.parametrize("stored", [0, 40])
def test_messages_missing_on_a_replica_are_read_from_the_master(stored: int) -> None:
    with reading(brokers=2) as here:
        replica = with_replica(here)
        here.put_numbers(128)
        for number in range(stored):
            replica.put(TOPIC, str(number).encode(), queue_id=0)
        assert here.offsets(0, 128, read_from="suggested", pull_window=2) == [*range(128)]


def test_a_replica_that_lost_its_beginning_loses_nothing() -> None:
    with reading(brokers=2) as here:
        replica = with_replica(here)
        here.put_numbers(128)
        for number in range(128):
            replica.put(TOPIC, str(number).encode(), queue_id=0)
        replica.topics[TOPIC].queues[0].drop_before(100)
        assert here.offsets(0, 128, read_from="suggested", pull_window=2) == [*range(128)]


def test_offsets_of_a_static_topic_are_logical() -> None:
    with reading(brokers=2) as here:
        share_out(here.cluster, TOPIC, ["broker-a", "broker-b"])
        fields = {"least": 1000, "most": 1010, "delta": 1000}
        stored = records(*range(3, 10))  # a response may begin below the requested offset
        reply = pull_response(FOUND, 1010, body=stored, **fields)  # type: ignore[arg-type]
        here.cluster.faults.handle(here.code, reply, times=None, broker="broker-b")
        rows = here.read(Range(TOPIC, "__syslo__global__", 1, 1005, 1010))
        assert [(number, offset) for number, offset, _ in rows] == [
            (1, offset) for offset in range(1005, 1010)
        ]
        with pytest.raises(DataLossError, match=r"messages are missing.*wanted offset 1000"):
            here.read(Range(TOPIC, "__syslo__global__", 1, 1000, 1010))


LOGICAL: Final = "__syslo__global__"


async def move_twice(namesrv: str, topic: str) -> None:
    """Create a topic with one logical queue, and store three messages before and after moves."""
    async with (
        MQClientInstance(ClientConfig(namesrv=namesrv)) as client,
        AdminClient(client=client) as admin,
        Producer("shop", client=client) as producer,
    ):
        await admin.static_topics.create(topic, 1, brokers=["broker-a"])
        for owner in ("broker-b", "broker-a", None):
            for _ in range(3):
                await producer.send(Message(topic, b"x"))
            if owner is not None:
                await admin.static_topics.remap(topic, brokers=[owner])


def settings_requests(here: Reading) -> int:
    code = RequestCode.GET_TOPIC_CONFIG
    return sum(len(each.requests_of(code)) for each in here.cluster.brokers)


@pytest.mark.parametrize("wanted", ["*", "paid"])
def test_gaps_of_a_moved_logical_queue_are_no_loss(wanted: str) -> None:
    with reading(brokers=2) as here:
        asyncio.run(move_twice(here.cluster.namesrv, "moved"))
        before = settings_requests(here)
        found = here.read(Range("moved", LOGICAL, 0, 0, 20_003), sub_expression=wanted)
        assert settings_requests(here) - before == 1

    starts = (0, 10_000, 20_000) if wanted == "*" else ()
    assert [offset for _, offset, _ in found] == [at + n for at in starts for n in range(3)]


def test_messages_that_a_moved_logical_queue_has_lost_are_a_loss() -> None:
    with reading(brokers=2) as here:
        asyncio.run(move_twice(here.cluster.namesrv, "moved"))
        here.cluster.brokers[1].topics["moved"].queues[0].drop_before(1)
        with pytest.raises(DataLossError, match="wanted offset 10000"):
            here.read(Range("moved", LOGICAL, 0, 0, 20_003))


# --- closing and back-pressure --------------------------------------------------------------------


def test_closing_a_reader_cancels_its_pulls(here: Reading) -> None:
    here.put(*["x" * 1000] * 3000)
    with closing(read([within(0, 3000)], here.options(), PLACES)) as batches:
        next(batches)
        here.on(None, None)  # no answer any more
    runtime = Runtime.get(here.connection)

    async def ended() -> bool:
        # Cancelled with the reader: the loop has nothing to do but that.
        await settle(turns=100)
        return not runtime.instance.remoting._connections[here.broker.address].in_flight

    assert runtime.call(ended)


@pytest.mark.parametrize("size", [100, 1_000_000])
async def test_a_slow_consumer_bounds_the_buffer(size: int) -> None:
    pulls = Instant(size)
    fetch = instant_fetcher(pulls, within(0, 10**6))
    async with create_task_group() as tasks:
        tasks.start_soon(fetch.run)
        await wait_all_tasks_blocked()
        chunk = max(1, min(fetcher_module.CHUNK_RESULTS, fetcher_module.CHUNK_BYTES // size))
        held = fetcher_module.MAX_BUFFERED_BYTES // size + ReadOptions.pull_window
        ahead = fetcher_module.READ_AHEAD * ReadOptions.pull_window
        assert pulls.count <= 2 * (
            (fetcher_module.MAX_QUEUED_CHUNKS + 1) * chunk + min(held, ahead)
        )
        before = pulls.count
        some = itertools.islice(fetch.chunks(), 30)
        taken = await to_thread.run_sync(list, some)
        await wait_all_tasks_blocked()
        assert all(isinstance(piece, FetchedMessages) for chunk in taken for piece in chunk)
        assert pulls.count > before
        tasks.cancel_scope.cancel()
