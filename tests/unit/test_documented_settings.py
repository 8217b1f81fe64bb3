"""Documentation: the tables of settings match the code."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path

import pytest

from rocketmq_aio import (
    AutoBatch,
    ClientConfig,
    LitePullConfig,
    PopConfig,
    ProducerConfig,
    PushConfig,
)

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "configuration.md"
SIZES = {"KiB": 1024, "MiB": 1024 * 1024}
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \|")


def documented(config: type) -> dict[str, str]:
    """Return setting -> default of the section about *config*."""
    section = PAGE.read_text().split(f"\n## {config.__name__}\n")[1].split("\n## ")[0]
    rows = map(ROW.match, section.splitlines())
    return {row[1]: row[2].strip("`") for row in rows if row and row[1] != "setting"}


def shown(field: Field[object]) -> str:
    """Return the default of *field* as the page writes it."""
    value = field.default
    assert value is not MISSING
    if isinstance(value, Enum):
        return str(value)
    for unit, size in SIZES.items():
        if unit == "MiB" and isinstance(value, int) and value and value % size == 0:
            return f"{value // size} {unit}"
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.mark.parametrize(
    "config", [ClientConfig, ProducerConfig, LitePullConfig, PushConfig, PopConfig]
)
def test_every_setting_is_documented_with_its_default(config: type) -> None:
    reported = documented(config)

    assert reported == {field.name: shown(field) for field in fields(config)}


@pytest.mark.parametrize(
    "config", [ClientConfig, ProducerConfig, LitePullConfig, PushConfig, PopConfig, AutoBatch]
)
def test_every_setting_is_described_in_the_docstrings(config: type) -> None:
    docstrings = "".join(each.__doc__ or "" for each in config.__mro__[:-1])
    described = re.findall(r":param (\w+):", docstrings) + re.findall(r"\*(\w+)\*", docstrings)

    assert {field.name for field in fields(config)} <= set(described)
