"""Hypothesis profiles: few fixed examples by default, many random ones for fuzzing.

``HYPOTHESIS_PROFILE=fuzz`` selects the second; failures are kept in ``.hypothesis``.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from rocketmq_aio.core import core
from tests.patience import patient_clients  # noqa: F401 - for every test of this folder
from tests.unit.cores import using

SLOW = [HealthCheck.too_slow]  # a busy machine can be slow

settings.register_profile(
    "unit", max_examples=80, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile("fuzz", max_examples=20_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unit"))


@pytest.fixture(params=["pure", "compiled"] if core else ["pure"])
def each_core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with and without the compiled core, where it is built."""
    with using(core if request.param == "compiled" else None):
        yield
