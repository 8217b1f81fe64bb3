"""Where two queries of one stream begin."""

from __future__ import annotations

import pytest

from rocketmq_aio.spark.offsets import Range
from rocketmq_aio.spark.options import Connection
from rocketmq_aio.spark.pipelines import ingesting
from rocketmq_aio.spark.pipelines.ingesting import IngestSettings
from rocketmq_aio.spark.pipelines.reading import Selection
from rocketmq_aio.spark.pipelines.target import Target


def begins(start: str) -> str:
    settings = IngestSettings(
        connection=Connection(name_server="127.0.0.1:1"),
        selection=Selection(topics=("orders",), start=start),
        target=Target(path="/data"),
        checkpoint="/checkpoint",
    )
    return ingesting._start(settings)


def test_offsets_are_a_place_already_though_they_may_be_gone() -> None:
    offsets = '{"orders":{"broker-a":{"0":120}}}'

    assert begins(offsets) == offsets


@pytest.mark.parametrize(("start", "offset"), [("latest", 9), ("earliest", 3)])
def test_words_are_made_one_place_for_both(
    monkeypatch: pytest.MonkeyPatch, start: str, offset: int
) -> None:
    ranges = [Range("orders", "broker-a", 0, 3, 9)]
    monkeypatch.setattr(ingesting, "planned", lambda *_: ranges)

    assert begins(start) == f'{{"orders": {{"broker-a": {{"0": {offset}}}}}}}'
