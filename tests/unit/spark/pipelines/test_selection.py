"""Selection of messages as options; ranges split into steps."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection, read_options
from rocketmq_aio.spark.pipelines import (
    BodySchema,
    DeadLetterSettings,
    ExportSettings,
    IngestSettings,
    LagSettings,
    LoadSettings,
    Target,
)
from rocketmq_aio.spark.pipelines.replaying import ReplaySettings, check_end, split_ranges
from rocketmq_aio.spark.pipelines.selection import (
    Selection,
    batch_options,
    connection_options,
    merge_options,
    range_options,
    stream_options,
)

CONNECTION = Connection(name_server="a:1", access_key="ak", secret_key="sk", tls=True)
MILLIS = "1767225600000"
TIME = "2026-01-01T00:00:00Z"
NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    sizes = draw(st.lists(st.integers(0, 50), max_size=6))
    return [Range("t", "b", n, 7 * n, 7 * n + size) for n, size in enumerate(sizes)]


@given(some_ranges(), st.integers(1, 40))
def test_steps_cover_every_offset_once_and_in_order(ranges: list[Range], most: int) -> None:
    steps = list(split_ranges(ranges, most))

    assert all(0 < sum(each.size for each in step) <= most for step in steps)
    assert sum(each.size for step in steps[:-1] for each in step) == most * (
        len(steps) - 1 if steps else 0
    )
    for queue in ranges:
        pieces = [each for step in steps for each in step if each.queue == queue.queue]
        assert sum(each.size for each in pieces) == queue.size
        assert all(a.end == b.start for a, b in pairwise(pieces))
        assert not pieces or (pieces[0].start, pieces[-1].end) == (queue.start, queue.end)


def test_queues_advance_together() -> None:
    first = next(split_ranges([Range("t", "b", 0, 0, 1000), Range("t", "b", 1, 0, 100)], 110))

    assert [(each.queue_id, each.end) for each in first] == [(0, 100), (1, 10)]


def test_a_connection_round_trips_through_options() -> None:
    options = connection_options(CONNECTION)

    assert options == {"nameServer": "a:1", "accessKey": "ak", "secretKey": "sk", "tls": "true"}
    assert read_options({**options, "topic": "t"}, streaming=False).connection == CONNECTION


@pytest.mark.parametrize(
    ("start", "end", "options"),
    [
        ("earliest", "latest", {"startingOffsets": "earliest", "endingOffsets": "latest"}),
        (TIME, MILLIS, {"startingTimestamp": TIME, "endingTimestamp": MILLIS}),
        ("group", "latest", {"startingOffsets": "group", "endingOffsets": "latest"}),
    ],
)
def test_positions_become_options(start: str, end: str, options: dict[str, str]) -> None:
    selection = Selection(topics=("a", "b"), start=start, end=end)

    found = batch_options(CONNECTION, selection)

    assert found == {**connection_options(CONNECTION), "subscribe": "a,b", **options}
    read_options(found, streaming=False)


def test_a_stream_has_a_filter_and_no_end() -> None:
    selection = Selection(pattern="t.*", start="latest", sql="a > 1", fail_on_data_loss=False)

    found = read_options(stream_options(CONNECTION, selection), streaming=True)

    assert (found.subscribe_pattern, found.starting_offsets) == ("t.*", "latest")
    assert (found.sub_expression, found.expression_type) == ("a > 1", "SQL92")
    assert not found.fail_on_data_loss


def test_range_options_read_exactly_the_ranges() -> None:
    ranges = [Range("t", "b", 0, 5, 9), Range("t", "b", 3, 0, 2)]

    found = read_options({"nameServer": "a:1", **range_options(ranges)}, streaming=False)

    assert found.assign == (("t", "b", 0), ("t", "b", 3))
    assert found.starting_offsets == {("t", "b", 0): 5, ("t", "b", 3): 0}
    assert found.ending_offsets == {("t", "b", 0): 9, ("t", "b", 3): 2}


def test_an_option_given_twice_is_rejected() -> None:
    with pytest.raises(ConfigError, match="set by the pipeline"):
        merge_options({"subscribe": "a"}, {"SUBSCRIBE": "b"})


@pytest.mark.parametrize(
    "given",
    [{}, {"topics": ("a",), "pattern": "b"}, {"topics": ("a",), "expression": "t", "sql": "a > 1"}],
)
def test_contradicting_settings_are_rejected(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="one of them"):
        Selection(**given)  # type: ignore[arg-type]


OFFSETS = json.dumps({"t": {"b": {"0": 5, "1": 0}}})
OPEN_OFFSETS = json.dumps({"t": {"b": {"0": -1, "1": 0}}})
SOME_OFFSETS = json.dumps({"t": {"b": {"0": 5}}})
QUEUES = [Range("t", "b", 0, 0, 5), Range("t", "b", 1, 0, 5)]


@pytest.mark.parametrize(
    ("end", "to", "refused"),
    [
        ("latest", None, True),
        ("latest", "t", True),
        ("latest", "other", False),
        ("2026-01-01T00:00:01Z", None, True),
        ("2026-01-01T00:00:00Z", None, False),
        (OFFSETS, None, False),
        (OPEN_OFFSETS, None, True),
        (SOME_OFFSETS, "t", True),
        (SOME_OFFSETS, "other", False),
    ],
)
def test_a_replay_into_a_source_topic_needs_a_fixed_end(
    end: str, to: str | None, refused: bool
) -> None:
    selection = Selection(topics=("t",), end=end)
    settings = ReplaySettings(connection=CONNECTION, selection=selection, to=to)

    assert_checked(settings, QUEUES, refused=refused)


@pytest.mark.parametrize(
    ("end", "to", "ranges", "refused"),
    [
        ("latest", "t", QUEUES, True),
        ("latest", "other", QUEUES, False),
        ("latest", "t-copies", QUEUES, True),  # made by the first copy
        (OFFSETS, "t-copies", QUEUES, True),
        (OFFSETS, "t", QUEUES, False),
        (SOME_OFFSETS, "t", QUEUES, True),
        ("2026-01-01T00:00:00Z", "t", QUEUES, False),
    ],
)
def test_a_pattern_that_matches_the_target_needs_a_fixed_end(
    end: str, to: str, ranges: list[Range], refused: bool
) -> None:
    selection = Selection(pattern="t.*", end=end)
    settings = ReplaySettings(connection=CONNECTION, selection=selection, to=to)

    assert_checked(settings, ranges, refused=refused)


def assert_checked(settings: ReplaySettings, ranges: list[Range], *, refused: bool) -> None:
    if not refused:
        check_end(settings, ranges, NOW)
        return
    with pytest.raises(ConfigError, match="a time in the past"):
        check_end(settings, ranges, NOW)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Connection, {"name_server": None}),
        (Selection, {"topics": "orders"}),
        (Selection, {"topics": ("orders",), "start": 5}),
        (Target, {"path": " "}),
        (Target, {"path": "/data", "partition_by": "topic"}),
        (ExportSettings, {"columns": "body"}),
        (IngestSettings, {"checkpoint": "/data/cp", "once": "yes"}),
        (ReplaySettings, {"selection": None}),
        (LoadSettings, {"topic": "orders", "path": None}),
        (DeadLetterSettings, {"group": "billing", "resend": 1}),
        (LagSettings, {"topics": "orders"}),
        (BodySchema, {"kind": "json", "schema": None}),
    ],
)
def test_settings_of_another_type_are_rejected(kind: Any, wrong: dict[str, Any]) -> None:  # noqa: ANN401
    valid = {
        "connection": CONNECTION,
        "selection": Selection(topics=("orders",)),
        "target": Target(path="/data"),
    }
    known = {each.name for each in fields(kind)}

    with pytest.raises(ConfigError):
        kind(**{name: value for name, value in valid.items() if name in known} | wrong)
