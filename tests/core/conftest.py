"""The core, compiled from the sources of the tests' own checkout."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.core.building import compile_core


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
    return load(compile_core(tmp_path_factory.mktemp("core")))
