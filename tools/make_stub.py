"""Writes the stubs of packages from their tables of public names.

python tools/make_stub.py
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Final

MAX_WIDTH: Final = 100
ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = (
    "rocketmq_aio",
    "rocketmq_aio.embedded",
    "rocketmq_aio.spark",
    "rocketmq_aio.spark.pipelines",
    "rocketmq_aio.testing",
)


def stub_file(package: str) -> Path:
    """Return the path of the stub of *package*."""
    return ROOT.joinpath(*package.split("."), "__init__.pyi")


def stub(package: str) -> str:
    """Return the text of the stub: every public name as an explicit re-export."""
    modules = runpy.run_path(str(stub_file(package).with_suffix(".py")))["_MODULES"]
    pairs = sorted((module, name) for name, module in modules.items())
    lines = [f"from {package}.{module} import {name} as {name}" for module, name in pairs]
    head = '"""The public names; made by `tools/make_stub.py`."""'
    rules = "E501, I001" if max(map(len, lines)) > MAX_WIDTH else "I001"
    version = ["", "__version__: str"] if package == "rocketmq_aio" else []
    return "\n".join([head, "", f"# ruff: noqa: {rules}", "# fmt: off", *lines, *version, ""])


if __name__ == "__main__":
    for each in PACKAGES:
        stub_file(each).write_text(stub(each), encoding="utf-8")
