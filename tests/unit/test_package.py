"""What `import rocketmq_aio` gives: every name, each from where it is loaded when it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rocketmq_aio

SOURCE = Path(rocketmq_aio.__file__)


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    imports = [node for node in ast.walk(ast.parse(SOURCE.read_text())) if _is_ours(node)]
    seen = {
        (name.name, f"{node.module}")
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    homes = rocketmq_aio._HOMES.items()
    assert seen == {(name, f"rocketmq_aio.{module}") for name, module in homes}
    assert sorted(name for name, _ in seen) == sorted(rocketmq_aio.__all__)


def test_version_equals_the_project_metadata() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    assert rocketmq_aio.__version__ == project["version"]


def _is_ours(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rocketmq_aio.")


@pytest.mark.parametrize("name", rocketmq_aio.__all__)
def test_every_name_can_be_loaded(name: str) -> None:
    assert getattr(rocketmq_aio, name) is not None
    assert name in dir(rocketmq_aio)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'rocketmq_aio' has no attribute 'Prodcer'"):
        _ = rocketmq_aio.Prodcer


def test_a_producer_loads_no_consumer_and_no_administration() -> None:
    program = (
        "import sys; from rocketmq_aio import Message, Producer;"
        "print([n for n in sys.modules if n.startswith(('rocketmq_aio.consumer.push.consumer',"
        " 'rocketmq_aio.consumer.pop.consumer', 'rocketmq_aio.admin'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
