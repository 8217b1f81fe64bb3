"""Documentation: covers all public names, the same in both languages."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple, get_args

import rocketmq_aio
from rocketmq_aio import AdminClient, ConsumerEvent, errors
from tests.unit.cli.test_rmq import commands

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


def test_the_design_names_files_and_classes_that_exist() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    sources = [p for name in ("rocketmq_aio", "tests", "tools") for p in (ROOT / name).rglob("*.*")]
    text = "".join(p.read_text() for p in sources if p.suffix in (".py", ".c"))
    files = re.findall(r"`([\w./]+\.(?:py|c))`", page)
    classes = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", page)) - {"MessagePack"}

    assert len(files) > 30
    assert len(classes) > 40
    assert [name for name in files if not any(f"/{p}".endswith(f"/{name}") for p in sources)] == []
    assert [name for name in classes if not re.search(rf"\b{name}\b", text)] == []


def test_both_readmes_show_the_same_code() -> None:
    english, chinese = (
        [COMMENT.sub("", code) for code in CODE.findall((ROOT / name).read_text())]
        for name in ("README.md", "README.zh-CN.md")
    )

    assert len(english) > 1
    assert chinese == english


def test_the_table_of_mqadmin_names_methods_and_commands_that_exist() -> None:
    rows = mqadmin_rows()
    admin = AdminClient(namesrv="127.0.0.1:1")
    shown = re.findall(r"`rmq (\w+ [a-z][\w-]*)", "".join(row.rmq for row in rows))
    methods = re.findall(r"`([a-z_]+)\.(\w+)", "".join(row.methods for row in rows))

    assert len(rows) > 50
    assert set(shown) <= commands().keys()
    assert [name for part, name in methods if not hasattr(getattr(admin, part), name)] == []


def test_every_command_of_mqadmin_has_a_test_on_a_real_broker_or_a_reason() -> None:
    rows = mqadmin_rows()
    missing = [row for row in rows if row.methods == row.rmq == "none"]
    covered = {name for row in rows if row not in missing for name in row.commands}

    assert [row for row in rows if "none" in (row.methods, row.rmq) and not row.notes] == []
    assert covered - mqadmin_marks() == set()
    assert mqadmin_marks() - covered == set()


def test_every_test_that_the_security_guide_names_exists() -> None:
    page = (ROOT / "docs" / "guide" / "security.md").read_text()
    table = page.partition("\n## Threats\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+){3,})`", table))
    paths = list((ROOT / "tests").rglob("test_*.py"))
    texts = [path.read_text() for path in paths]
    defined = {name for text in texts for name in re.findall(r"def test_(\w+)\(", text)}

    assert len(named) > 20
    assert named <= defined
    assert set(re.findall(r"(test_\w+\.py)`", table)) <= {path.name for path in paths}


class Row(NamedTuple):
    """A row of the table of mqadmin."""

    commands: tuple[str, ...]
    methods: str
    rmq: str
    notes: str


def mqadmin_rows() -> list[Row]:
    page = (ROOT / "docs" / "guide" / "admin.md").read_text()
    lines = page.partition("| mqadmin |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [Row(tuple(re.findall(r"`(\w+)`", names)), *rest) for names, *rest in rows]


def mqadmin_marks() -> set[str]:
    """Return the commands in the marks ``mqadmin`` of tests on real brokers."""
    return {
        name
        for folder in ("broker", "topologies")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
        for mark in node.decorator_list
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.mqadmin"
        for names in mark.args
        for name in ast.literal_eval(names).split()
    }
