"""Documentation: covers all public names, the same in both languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import rocketmq_aio
from rocketmq_aio import ConsumerEvent, errors

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
CODE = re.compile(r"^```.*?^```", re.M | re.S)
COMMENT = re.compile(r" *#.*")
ALIASES = {"ConsumerEvent", "AllocateStrategy"}  # documented where they are used


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    told = set(re.findall(r"^::: rocketmq_aio\.(\w+)$", pages, re.M))

    assert set(vars(rocketmq_aio)["__all__"]) - set(vars(errors)) - ALIASES <= told


def test_every_event_is_in_the_operating_guide() -> None:
    page = (ROOT / "docs" / "guide" / "operating.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]

    told = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert {event.__name__ for event in get_args(ConsumerEvent)} <= told


def test_both_readmes_show_the_same_code() -> None:
    english, chinese = (
        [COMMENT.sub("", code) for code in CODE.findall((ROOT / name).read_text())]
        for name in ("README.md", "README.zh-CN.md")
    )

    assert len(english) > 1
    assert chinese == english
