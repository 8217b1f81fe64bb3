"""Exports of ranges without messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocketmq_aio.spark.arrow.columns import SCHEMA
from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import exporting
from rocketmq_aio.spark.pipelines.exporting import ExportSettings, export
from rocketmq_aio.spark.pipelines.selection import Selection
from rocketmq_aio.spark.pipelines.target import Target


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_range_without_messages_is_written_and_not_counted(
    monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    def create(rows: list[Any], schema: object) -> Any:  # noqa: ANN401 - a DataFrame
        return SimpleNamespace(rows=rows, schema=schema)

    written: list[tuple[Any, Target]] = []
    monkeypatch.setattr(exporting, "plan_ranges", lambda *_: [Range("orders", "broker-a", 0, 9, 9)])
    monkeypatch.setattr(exporting, "prepare_rows", lambda messages, _: messages)
    monkeypatch.setattr(exporting, "write_rows", lambda *args: written.append(args))
    spark: Any = SimpleNamespace(createDataFrame=create)
    settings = ExportSettings(
        connection=Connection(name_server="127.0.0.1:1"),
        selection=Selection(topics=("orders",)),
        target=Target(path="/data", mode="overwrite"),
    )

    summary = export(spark, settings, dry_run=dry_run)

    empty = (SimpleNamespace(rows=[], schema=SCHEMA), settings.target)
    assert written == ([] if dry_run else [empty])
    assert (summary.complete, summary.rows, summary.offsets) == (True, 0, 0)
