"""How many examples hypothesis tries: few and always the same here, many and new when fuzzing.

``HYPOTHESIS_PROFILE=fuzz`` selects the second; what it finds is kept in ``.hypothesis``.
"""

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow]  # a busy machine is no fault of a strategy

settings.register_profile(
    "unit", max_examples=80, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile("fuzz", max_examples=20_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unit"))
