"""The build hook as a module, and commands that use it."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
HOOK: Final[dict[str, Any]] = runpy.run_path(str(ROOT / "tools" / "build_hook.py"))


SANITIZED: Final = "SANITIZED_CORE"  # set where the core is already loaded, by `sanitized.py`


def load(path: Path) -> ModuleType:
    """Return the extension module in *path*."""
    spec = importlib.util.spec_from_file_location("rocketmq_aio._core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_core(folder: Path, *flags: str, root: Path = ROOT) -> Path:
    """Compile the core of *root* into *folder* and return the file."""
    built: Path = HOOK["compile_core"](folder, root=root, flags=flags)
    return built


def python(
    *arguments: str, folder: Path = ROOT, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in *folder*, whose package is imported; *environment* is added."""
    kept = {name: value for name, value in os.environ.items() if name != "ROCKETMQ_AIO_PURE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=check,
    )
