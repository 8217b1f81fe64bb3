"""The core, compiled from the sources of the tests' own checkout."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from tests.core.building import SANITIZED, compile_core, load

settings.register_profile(
    "core", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine can be slow
settings.load_profile("core")


@pytest.fixture(scope="session")
def built_core(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if SANITIZED in os.environ:
        return sys.modules["rocketmq_aio._core"]
    return load(compile_core(tmp_path_factory.mktemp("core")))
