"""The core, compiled from the sources of the tests' own checkout."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.collecting import run_first
from tests.core.building import SANITIZED, compile_core, load

settings.register_profile(
    "core", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine can be slow
settings.load_profile("core")


# A parallel run gives the first two processes a second module at once: short ones come third.
ORDER: Final = (
    *("test_sanitized_agreement", "test_sanitized_inputs", "test_agreement", "test_dispatch"),
    "test_build",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_first(items, ORDER)


@pytest.fixture(scope="session")
def built_core(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if SANITIZED in os.environ:
        return sys.modules["rocketmq_aio._core"]
    return load(compile_core(tmp_path_factory.mktemp("core")))
