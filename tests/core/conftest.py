"""The core, compiled from the sources of the tests' own checkout."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.core.building import compile_core

SANITIZED: Final = "SANITIZED_CORE"  # set where the core is already loaded, by `sanitized.py`


def load(path: Path) -> ModuleType:
    """Return the extension module in *path*."""
    spec = importlib.util.spec_from_file_location("rocketmq_aio._core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def built_core(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if SANITIZED in os.environ:
        return sys.modules["rocketmq_aio._core"]
    return load(compile_core(tmp_path_factory.mktemp("core")))
