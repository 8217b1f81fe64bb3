"""Offsets in checkpoints: every format ever written stays readable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.offsets import LogMark, StreamOffset, flattened
from rocketmq_aio.spark.options.source_options import Connection, ReadOptions
from rocketmq_aio.spark.read.planning import plan_between

CHECKPOINTS = sorted((Path(__file__).parent / "checkpoints").glob("v*.json"))
OPTIONS = ReadOptions(connection=Connection(name_server="127.0.0.1:9876"), subscribe=("T",))

names = st.text("abcXYZ-_%", min_size=1, max_size=5)
offsets = st.dictionaries(st.tuples(names, names, st.integers(0, 99)), st.integers(0, 2**62))


def golden(path: Path) -> dict[str, StreamOffset]:
    return {
        name: StreamOffset.from_json(each) for name, each in json.loads(path.read_text()).items()
    }


def planned(start: StreamOffset, end: StreamOffset) -> list[tuple[object, ...]]:
    parts = [part for each in plan_between(start, end, OPTIONS) for part in each.ranges]
    return sorted((*part.queue, part.start, part.end) for part in parts)


@given(offsets, offsets, offsets, st.none() | st.integers(0, 2**62))
def test_offsets_survive_a_json_round_trip(
    end: dict[tuple[str, str, int], int],
    starts: dict[tuple[str, str, int], int],
    stored: dict[tuple[str, str, int], int],
    since: int | None,
) -> None:
    offset = StreamOffset(end=end, starts=starts, stored=stored, since=since)

    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_each_part_of_a_range_has_the_mark_of_the_batch() -> None:
    queue = ("orders", "broker-a", 0)
    end = StreamOffset(end={queue: 9}, starts={queue: 0}, stored={queue: 5000})
    split = replace(OPTIONS, max_records_per_partition=4)
    parts = plan_between(StreamOffset(at_start=True), end, split)

    assert [part.mark for each in parts for part in each.ranges] == 3 * [LogMark(8, 5000)]


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.stem)
def test_old_checkpoints_plan_the_same_ranges(path: Path) -> None:
    seen = golden(path)

    assert planned(seen["start"], seen["first"]) == [
        ("orders", "broker-a", 0, 100, 120),
        ("orders", "broker-a", 1, 100, 118),
    ]
    assert planned(seen["first"], seen["later"]) == [
        ("orders", "broker-a", 0, 120, 130),
        ("orders", "broker-b", 0, 2, 7),
    ]
    assert planned(seen["later"], seen["last"]) == [("orders", "broker-a", 1, 118, 119)]


def test_this_version_writes_the_newest_checkpoint_format() -> None:
    written = json.loads(CHECKPOINTS[-1].read_text())

    assert {name: each.to_json() for name, each in golden(CHECKPOINTS[-1]).items()} == written


def test_a_newer_checkpoint_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"version 2.*reads 1.*newer package"):
        StreamOffset.from_json({"v": 2, "end": {}})


@pytest.mark.parametrize("value", [5, "0", None, {}, {"orders": {"0": 5}}, {"v": {"0": 5}}])
def test_a_checkpoint_of_another_source_is_rejected(value: object) -> None:
    with pytest.raises(ConfigError, match=r"another source.*checkpointLocation"):
        StreamOffset.from_json(value)


def test_an_end_below_the_start_reads_nothing() -> None:
    before, after = (StreamOffset(end={("T", "a", 0): at}) for at in (9, 5))

    assert plan_between(before, after, OPTIONS) == []


@pytest.mark.parametrize(
    "value",
    [
        {"T": {"a": {"x": 1}}},
        {"T": {"a": {"0": "1"}}},
        {"T": {"a": {"0": True}}},
        {"T": {"a": {"0": -1}}},
        {"T": {"a": 5}},
        {"T": 5},
        [],
        None,
    ],
)
def test_invalid_offsets_are_rejected(value: Any) -> None:  # noqa: ANN401 - any JSON
    with pytest.raises(ConfigError, match="startingOffsets"):
        flattened("startingOffsets", value)
