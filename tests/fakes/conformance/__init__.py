"""Conformance cases of brokers and name servers, run on the fakes and on real servers.

Cases use the protocol directly.  Differences of versions are part of a case; none is skipped.
"""

from __future__ import annotations

from tests.fakes.conformance.administration import CASES as ADMINISTRATION
from tests.fakes.conformance.assignments import CASES as ASSIGNMENTS
from tests.fakes.conformance.case_env import Case, CaseEnv
from tests.fakes.conformance.filtering import CASES as FILTERING
from tests.fakes.conformance.frames import CASES as FRAMES
from tests.fakes.conformance.light_queues import CASES_WITHOUT as WITHOUT_LIGHT_QUEUES
from tests.fakes.conformance.locking import CASES as LOCKING
from tests.fakes.conformance.membership import CASES as MEMBERSHIP
from tests.fakes.conformance.offsets import CASES as OFFSETS
from tests.fakes.conformance.popping import CASES as POPPING
from tests.fakes.conformance.pulling import CASES as PULLING
from tests.fakes.conformance.querying import CASES as QUERYING
from tests.fakes.conformance.replying import CASES as REPLYING
from tests.fakes.conformance.routes import CASES as ROUTES
from tests.fakes.conformance.sending import CASES as SENDING
from tests.fakes.conformance.sending_back import CASES as SENDING_BACK
from tests.fakes.conformance.timers import CASES as TIMERS

CASES = (
    *ROUTES,
    *SENDING,
    *SENDING_BACK,
    *TIMERS,
    *REPLYING,
    *PULLING,
    *FILTERING,
    *QUERYING,
    *POPPING,
    *OFFSETS,
    *MEMBERSHIP,
    *ASSIGNMENTS,
    *LOCKING,
    *ADMINISTRATION,
    *WITHOUT_LIGHT_QUEUES,
    *FRAMES,
)

__all__ = ["CASES", "Case", "CaseEnv"]
