"""Hypothesis profiles: few fixed examples by default, many random ones for fuzzing.

``HYPOTHESIS_PROFILE=fuzz`` selects the second; failures are kept in ``.hypothesis``.
"""

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow]  # a busy machine can be slow

settings.register_profile(
    "unit", max_examples=80, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile("fuzz", max_examples=20_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unit"))
