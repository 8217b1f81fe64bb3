"""Lag computed from progress reports, for this source only."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark import LagListener, QueryLag, lag_report
from rocketmq_aio.spark.query_lag import query_lag


def source(end: dict[str, int], latest: dict[str, int], *, text: bool = True) -> dict[str, Any]:
    both = [{"v": 1, "end": {"orders": {"broker-a": each}}} for each in (end, latest)]
    shown = [json.dumps(each) if text else each for each in both]
    rows = {"numInputRows": 10, "processedRowsPerSecond": 20.0}
    return {"description": "rocketmq", "endOffset": shown[0], "latestOffset": shown[1], **rows}


def progress(*sources: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "7",
        "name": "copy",
        "batchId": 3,
        "timestamp": "2026-01-31T08:00:00Z",
        "sources": list(sources),
    }


OTHER = {"description": "rate", "endOffset": "17", "latestOffset": "18"}
KAFKA = {"endOffset": '{"end":{"0":17}}', "latestOffset": '{"end":{"0":18}}'}  # a topic "end"
NUMBERED = {"endOffset": '{"v":1,"end":17}', "latestOffset": '{"v":1,"end":18}'}
BEHIND = progress(OTHER, source({"0": 5, "1": 7}, {"0": 9, "1": 7}))


def test_rows_are_those_of_all_sources() -> None:
    two = query_lag(progress(OTHER, *(source({"0": 5}, {"0": 9}) for _ in range(2))))

    assert (two.input_rows, two.rows_per_second) == (20, 40.0)


@pytest.mark.parametrize("text", [True, False])
def test_lag_is_the_distance_to_the_end(text: bool) -> None:
    found = query_lag(progress(source({"0": 5, "1": 7}, {"0": 9, "1": 7}, text=text)))

    assert found.queues == {("orders", "broker-a", 0): 4, ("orders", "broker-a", 1): 0}
    assert (found.total, found.by_topic()) == (4, {"orders": 4})
    assert str(found) == "copy batch 3: 4 behind (orders 4); 10 rows, 20/s"


def test_lag_is_never_negative() -> None:
    assert query_lag(progress(source({"0": 9}, {"0": 5}))).total == 0


def test_a_queue_that_two_sources_read_has_the_lag_of_the_later_one() -> None:
    sources = [source({"0": at}, {"0": 9}) for at in (5, 3, 8)]

    assert query_lag(progress(*sources)).total == 6


@pytest.mark.parametrize(
    "other", [OTHER, KAFKA, NUMBERED, {}, {"endOffset": None, "latestOffset": None}]
)
def test_other_sources_have_no_lag(other: dict[str, Any]) -> None:
    assert query_lag(progress(other)).queues == {}


def test_a_listener_reports_queries_that_read_topics_until_they_end() -> None:
    lags: list[QueryLag] = []
    listener = LagListener(lags.append)
    for each in (BEHIND, progress(OTHER)):
        listener.onQueryProgress(SimpleNamespace(progress=each))  # type: ignore[arg-type]
    before = dict(listener.latest)
    listener.onQueryTerminated(SimpleNamespace(id="7"))  # type: ignore[arg-type]

    assert [each.total for each in lags] == [4]
    assert before == {"7": lags[0]}
    assert listener.latest == {}


@pytest.mark.parametrize("given", [None, 5, ["query"], "query"])
def test_a_lag_report_names_what_it_expects(given: object) -> None:
    with pytest.raises(ConfigError, match=r"queries.*expected a session or streaming queries"):
        lag_report(cast("Any", given))


def test_a_lag_report_accepts_a_query_several_or_a_session() -> None:
    query = SimpleNamespace(lastProgress=BEHIND)
    silent = SimpleNamespace(lastProgress=None)
    session = SimpleNamespace(streams=SimpleNamespace(active=[query, silent]))
    given: list[Any] = [query, [query, silent], session]

    assert [[each.total for each in lag_report(one)] for one in given] == [[4]] * 3


async def asynchronous(_: object) -> None: ...


@pytest.mark.parametrize("function", [lambda: None, asynchronous])
def test_a_listener_needs_a_plain_function_of_one_argument(
    function: Callable[[object], object],
) -> None:
    with pytest.raises(ConfigError, match="on_lag="):
        LagListener(on_lag=function)
