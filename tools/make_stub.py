"""Writes the stub of the package from its table of public names.

python tools/make_stub.py
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "rocketmq_aio"


def stub() -> str:
    """Return the text of the stub: every public name as an explicit re-export."""
    modules = runpy.run_path(str(PACKAGE / "__init__.py"))["_MODULES"]
    pairs = sorted((module, name) for name, module in modules.items())
    lines = [f"from rocketmq_aio.{module} import {name} as {name}" for module, name in pairs]
    head = '"""The public names; made by `tools/make_stub.py`."""'
    return "\n".join(
        [head, "", "# ruff: noqa: E501, I001", "# fmt: off", *lines, "", "__version__: str", ""]
    )


if __name__ == "__main__":
    (PACKAGE / "__init__.pyi").write_text(stub(), encoding="utf-8")
