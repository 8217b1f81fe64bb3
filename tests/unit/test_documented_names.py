"""Documentation: covers all public names, the same in both languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click

import rocketmq_aio
from rocketmq_aio import AdminClient, ConsumerEvent, errors
from rocketmq_aio.cli.nouns import NOUNS, apps

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
CODE = re.compile(r"^```.*?^```", re.M | re.S)
COMMENT = re.compile(r" *#.*")
ALIASES = {"ConsumerEvent", "AllocateStrategy"}  # documented where they are used


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    reported = set(re.findall(r"^::: rocketmq_aio\.(\w+)$", pages, re.M))

    assert set(vars(rocketmq_aio)["__all__"]) - set(vars(errors)) - ALIASES <= reported


def test_every_event_is_in_the_operating_guide() -> None:
    page = (ROOT / "docs" / "guide" / "operating.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]

    reported = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert {event.__name__ for event in get_args(ConsumerEvent)} <= reported


def test_both_readmes_show_the_same_code() -> None:
    english, chinese = (
        [COMMENT.sub("", code) for code in CODE.findall((ROOT / name).read_text())]
        for name in ("README.md", "README.zh-CN.md")
    )

    assert len(english) > 1
    assert chinese == english


def test_the_table_of_mqadmin_names_methods_and_commands_that_exist() -> None:
    page = (ROOT / "docs" / "guide" / "admin.md").read_text()
    rows = [line.split(" | ") for line in page.partition("| mqadmin |")[2].splitlines()[2:]]
    admin = AdminClient(namesrv="127.0.0.1:1")
    commands = {
        f"rmq {noun} {verb}"
        for noun in NOUNS
        for verb in apps[noun].list_commands(click.Context(apps[noun]))
    }
    shown = re.findall(r"`(rmq \w+ [a-z][\w-]*)", "".join(row[2] for row in rows))
    methods = re.findall(r"`([a-z_]+)\.(\w+)", "".join(row[1] for row in rows))

    assert len(rows) > 50
    assert set(shown) <= commands
    assert [name for part, name in methods if not hasattr(getattr(admin, part), name)] == []
