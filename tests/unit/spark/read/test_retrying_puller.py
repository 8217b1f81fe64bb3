"""Retrying puller: sizes of segments, pauses and deadlines, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import anyio
import pytest

from rocketmq_aio.consumer.pull.result import PullStatus, RawPull
from rocketmq_aio.errors import NotConnectedError, NotRunningError, RocketMQError
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection, ReadOptions
from rocketmq_aio.spark.read import retrying_puller
from rocketmq_aio.spark.read.retrying_puller import (
    FULL_BEFORE_GROWTH,
    MAX_SEGMENT,
    QueueGoneError,
    RangeCursor,
    ReadError,
    RetryingPuller,
    cursor_of,
    is_filtered,
    subscription_of,
)

OPTIONS: Final = ReadOptions(connection=Connection(name_server="a:1"), subscribe=("orders",))
LOST: Final = NotConnectedError("a:1", "reset")


def cursor() -> RangeCursor:
    return cursor_of(Range("orders", "broker-a", 0, 10, 1000), OPTIONS)


def response(status: PullStatus, next_offset: int, most: int = 1000) -> RawPull:
    return RawPull(
        status=status,
        body=b"",
        offset_delta=0,
        next_offset=next_offset,
        min_offset=0,
        max_offset=most,
    )


GOOD: Final = response(PullStatus.FOUND, 42)


class Pulls:
    """Scripted responses, the last one repeated, on a clock that only pauses advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *script: RawPull | RocketMQError) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.calls: list[tuple[float, bool]] = []  # timeout, and whether a replica may answer
        self._script = list(script)
        loop = SimpleNamespace(time=lambda: self.now)
        fake = SimpleNamespace(get_running_loop=lambda: loop)
        monkeypatch.setattr(retrying_puller, "asyncio", fake)
        monkeypatch.setattr(anyio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def pull(self, *_: object, timeout: float, suggested: bool) -> RawPull:
        self.calls.append((timeout, suggested))
        outcome = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(outcome, RocketMQError):
            raise outcome
        return outcome


def puller(pulls: Pulls, *, gone: bool = False, **options: Any) -> RetryingPuller:  # noqa: ANN401
    async def is_gone(*_: object) -> bool:
        return gone

    chosen = ReadOptions(connection=OPTIONS.connection, subscribe=("orders",), **options)
    return RetryingPuller(pulls, chosen, is_gone)  # type: ignore[arg-type]


# --- sizes of segments ----------------------------------------------------------------------------


def test_a_full_response_doubles_the_size_up_to_the_maximum() -> None:
    sizes, each = [], cursor()
    for _ in range(12):
        sizes.append(each.segment_size)
        each.adapt(each.segment_size, each.segment_size)

    assert sizes == [min(32 * 2**step, MAX_SEGMENT) for step in range(12)]


def test_a_size_that_was_cut_grows_after_many_full_responses() -> None:
    each = cursor()
    each.adapt(32, 8)

    sizes = []
    for _ in range(2 * FULL_BEFORE_GROWTH):
        each.adapt(each.segment_size, each.segment_size)
        sizes.append(each.segment_size)

    assert sizes == [8] * (FULL_BEFORE_GROWTH - 1) + [16] * FULL_BEFORE_GROWTH + [32]


def test_a_cut_starts_the_count_of_full_responses_again() -> None:
    each = cursor()
    each.adapt(32, 8)
    for _ in range(FULL_BEFORE_GROWTH - 1):
        each.adapt(8, 8)
    each.adapt(8, 7)
    each.adapt(7, 7)

    assert (each.segment_size, each.full) == (7, 1)


@pytest.mark.parametrize(
    ("requested", "returned", "size"),
    [(5, 5, 32), (20, 20, 32), (20, 100, 100), (20, 10**6, MAX_SEGMENT), (32, 0, 1)],
)
def test_the_size_follows_what_a_response_covers(requested: int, returned: int, size: int) -> None:
    each = cursor()
    each.adapt(requested, returned)

    assert (each.segment_size, each.full) == (size, 0)


# --- retries --------------------------------------------------------------------------------------


async def test_a_failed_pull_is_repeated_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulls = Pulls(monkeypatch, *[LOST] * 12, GOOD)

    assert await puller(pulls).pull(cursor(), 10, 32) is GOOD

    assert len(pulls.pauses) == 12
    assert 0.01 <= pulls.pauses[0] <= 0.02  # with jitter
    assert 0.5 <= pulls.pauses[-1] <= 1
    assert set(pulls.calls) == {(15.0, False)}


async def test_a_queue_without_progress_fails_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulls = Pulls(monkeypatch, LOST)

    with pytest.raises(
        ReadError, match=r"offset 10: no progress for pullTimeoutMs=5000: .*reset"
    ) as failed:
        await puller(pulls, pull_timeout_ms=5000).pull(cursor(), 10, 32)

    assert type(failed.value) is ReadError
    assert 5 < sum(pulls.pauses) <= 6
    assert set(pulls.calls) == {(5.0, False)}


async def test_progress_elsewhere_in_the_range_extends_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulls, each = Pulls(monkeypatch, LOST), cursor()
    each.progressed = 103.0

    with pytest.raises(ReadError):
        await puller(pulls, pull_timeout_ms=5000).pull(each, 10, 32)

    assert 8 < sum(pulls.pauses) <= 9


async def test_progress_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls, each = Pulls(monkeypatch, LOST, GOOD), cursor()
    await puller(pulls).pull(each, 10, 32)

    assert each.progressed == pulls.now > 100


async def test_an_error_that_no_retry_changes_is_raised_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulls = Pulls(monkeypatch, NotRunningError("the client is closed"), GOOD)

    with pytest.raises(ReadError, match=r"offset 10: the client is closed$"):
        await puller(pulls).pull(cursor(), 10, 32)

    assert pulls.pauses == []


async def test_a_queue_that_is_gone_is_another_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls = Pulls(monkeypatch, LOST)

    with pytest.raises(QueueGoneError) as failed:
        await puller(pulls, gone=True, pull_timeout_ms=1000).pull(cursor(), 10, 32)

    assert failed.value.__cause__ is LOST


@pytest.mark.parametrize("first", [LOST, response(PullStatus.NO_NEW, 10, 5)])
async def test_a_replica_is_followed_by_the_master_without_a_pause(
    monkeypatch: pytest.MonkeyPatch, first: RawPull | RocketMQError
) -> None:
    pulls = Pulls(monkeypatch, first, LOST, GOOD)

    assert await puller(pulls, read_from="suggested").pull(cursor(), 10, 32) is GOOD

    assert [suggested for _, suggested in pulls.calls] == [True, False, False]
    assert len(pulls.pauses) == 1


@pytest.mark.parametrize(
    "cut", [response(PullStatus.NO_NEW, 10, 10), response(PullStatus.OFFSET_ILLEGAL, 5, 5)]
)
async def test_a_queue_that_ends_too_early_is_pulled_again_as_often_as_offsets_are_queried(
    monkeypatch: pytest.MonkeyPatch, cut: RawPull
) -> None:
    pulls = Pulls(monkeypatch, cut)

    assert await puller(pulls, fetch_num_retries=3).pull(cursor(), 10, 32) is cut

    assert pulls.pauses == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    "other",
    [
        response(PullStatus.FOUND, 10),
        response(PullStatus.FOUND, 5),
        response(PullStatus.NO_MATCH, 10),
        response(PullStatus.NO_NEW, 10, 11),
        response(PullStatus.NO_NEW, 11, 11),
        response(PullStatus.OFFSET_ILLEGAL, 10),
    ],
)
async def test_a_response_at_the_same_offset_is_no_progress(
    monkeypatch: pytest.MonkeyPatch, other: RawPull
) -> None:
    pulls = Pulls(monkeypatch, other, GOOD)

    assert await puller(pulls).pull(cursor(), 10, 32) is GOOD
    assert pulls.pauses[0] <= retrying_puller.FIRST_PAUSE  # not that of a queue that ends too early


@pytest.mark.parametrize(
    "other",
    [
        response(PullStatus.FOUND, 11),
        response(PullStatus.FOUND, 11, 10),
        response(PullStatus.NO_MATCH, 11),
        response(PullStatus.OFFSET_ILLEGAL, 11),
    ],
)
async def test_a_response_with_a_later_offset_is_progress(
    monkeypatch: pytest.MonkeyPatch, other: RawPull
) -> None:
    pulls = Pulls(monkeypatch, other, GOOD)

    assert await puller(pulls).pull(cursor(), 10, 32) is other
    assert pulls.pauses == []


@pytest.mark.parametrize(
    ("options", "filtered"),
    [
        ({}, False),
        ({"sub_expression": "new || paid"}, True),
        ({"sub_expression": "a > 1", "expression_type": "SQL92"}, True),
    ],
)
def test_brokers_filter_by_tags_and_conditions(options: dict[str, Any], filtered: bool) -> None:
    chosen = ReadOptions(connection=OPTIONS.connection, subscribe=("orders",), **options)

    assert is_filtered(subscription_of("orders", chosen)) is filtered
