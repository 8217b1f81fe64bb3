"""The option table of the guide has each option with its default."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.spark.options.source_options import OPTIONS, Connection, ReadOptions, WriteOptions

PAGE: Final = Path(__file__).parents[3] / "docs" / "guide" / "spark.md"
ROW: Final = re.compile(r"^\| `([\w.]+)` \| (.+?) \| ([BSW]+) \|", re.M)
DEFAULTS: Final = {
    each.name: each.default
    for options in (Connection, ReadOptions, WriteOptions)
    for each in fields(options)
}
IN_OTHER_WORDS: Final = {"starting_offsets", "max_trigger_delay", "batch_bytes"}

documented: Final = {
    name: (default, kinds) for name, default, kinds in ROW.findall(PAGE.read_text())
}


def test_the_guide_lists_exactly_the_options() -> None:
    assert {name: kinds for name, (_, kinds) in documented.items()} == {
        option.name: option.kinds for option in OPTIONS.values()
    }


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - IN_OTHER_WORDS))
def test_the_guide_shows_the_defaults(name: str) -> None:
    default, _ = documented[OPTIONS[name].name]
    value = DEFAULTS[name]

    if value in (None, ()) or not isinstance(value, bool | int | str):
        assert default == "–"
    else:
        assert default.strip("`") == (str(value).lower() if isinstance(value, bool) else str(value))
